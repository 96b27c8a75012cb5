//! Files with every kind of extent that the kernel writes.

use vfs::{Context, FallocateMode, FileKind, FileSystem, Ino, Result, WriteFlags, XattrMode};

use crate::PosixFs;
use crate::ops::{Fill, FillKind, Rng};

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };
const MIB: u64 = 1 << 20;
const NOCOW: u32 = 0x0080_0000;

/// One directory being filled.
pub(super) struct Filler<'a> {
    pub fs: &'a PosixFs,
    pub dir: Ino,
    pub rng: Rng,
}

impl Filler<'_> {
    pub fn file(&self, name: &str) -> Result<Ino> {
        let entry = self.fs.mknod(&CX, self.dir, name.as_bytes(), FileKind::File, 0o644, 0)?;
        Ok(entry.attr.ino)
    }

    /// A filler of a new directory in this one.
    pub fn dir(&mut self, name: &str) -> Result<Filler<'_>> {
        let dir = self.fs.mkdir(&CX, self.dir, name.as_bytes(), 0o755)?.attr.ino;
        let rng = Rng::new(self.rng.next_u64());
        Ok(Filler { fs: self.fs, dir, rng })
    }

    pub fn write(&mut self, ino: Ino, offset: u64, len: u64, kind: FillKind) -> Result<()> {
        let data = Fill { seed: self.rng.next_u64(), len: len as usize, kind }.bytes();
        self.fs.write(&CX, ino, offset, &data, WriteFlags::default()).map(|_| ())
    }

    fn allocate(&self, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.fs.fallocate(&CX, ino, mode, offset, len)
    }

    /// From inline to several extents, each size around a limit.
    pub fn sizes(&mut self) -> Result<()> {
        let sizes = [0, 1, 100, 2047, 2048, 2049, 4095, 4096, 4097, 65536, 131073, 3 * MIB + 17];
        for size in sizes {
            for (kind, label) in [(FillKind::Random, "random"), (FillKind::Text, "text")] {
                let ino = self.file(&format!("{label}-{size}"))?;
                self.write(ino, 0, size, kind)?;
            }
        }
        Ok(())
    }

    pub fn preallocated(&mut self) -> Result<()> {
        let plain = self.file("prealloc")?;
        self.allocate(plain, FallocateMode::Allocate, 0, MIB)?;
        let behind = self.file("prealloc-behind-the-end")?;
        self.write(behind, 0, 10000, FillKind::Random)?;
        self.allocate(behind, FallocateMode::KeepSize, 4096, 2 * MIB)?;
        let partly = self.file("prealloc-partly-written")?;
        self.allocate(partly, FallocateMode::Allocate, 0, 2 * MIB)?;
        for _ in 0..12 {
            let offset = self.rng.below(2 * MIB - 20000);
            let len = 1 + self.rng.below(20000);
            self.write(partly, offset, len, FillKind::Random)?;
            self.fs.fsync(partly, true)?;
        }
        let zeroed = self.file("zero-range")?;
        self.write(zeroed, 0, MIB, FillKind::Random)?;
        self.allocate(zeroed, FallocateMode::ZeroRange { keep_size: true }, 5000, MIB / 2)
    }

    pub fn holes(&mut self) -> Result<()> {
        let sparse = self.file("sparse")?;
        for step in [1, 5, 130, 2000] {
            self.write(sparse, step * 4096 + 100, 5000, FillKind::Random)?;
        }
        let punched = self.file("punched")?;
        self.write(punched, 0, 2 * MIB, FillKind::Random)?;
        self.fs.fsync(punched, false)?;
        for _ in 0..8 {
            let (offset, len) = (self.rng.below(2 * MIB), 1 + self.rng.below(100_000));
            self.allocate(punched, FallocateMode::PunchHole, offset, len)?;
        }
        let tail = self.file("only-a-hole")?;
        let set = vfs::SetAttr { size: Some(123_456_789), ..Default::default() };
        self.fs.setattr(&CX, tail, &set).map(|_| ())
    }

    /// Many small extents: overwritten in random order and made durable each time.
    pub fn fragmented(&mut self) -> Result<()> {
        let ino = self.file("fragmented")?;
        self.write(ino, 0, 4 * MIB, FillKind::Random)?;
        for step in 0..150 {
            let offset = self.rng.below(1020) * 4096;
            self.write(ino, offset, 4096, FillKind::Random)?;
            if step % 10 == 0 {
                self.fs.fsync(ino, true)?;
            }
        }
        Ok(())
    }

    pub fn without_checksums(&mut self) -> Result<()> {
        let ino = self.file("nocow")?;
        self.fs.set_flags(&CX, ino, NOCOW)?;
        self.write(ino, 0, MIB, FillKind::Random)?;
        self.fs.fsync(ino, false)?;
        self.write(ino, 70000, 70000, FillKind::Text)
    }

    pub fn compressed(&mut self, kind: &str) -> Result<()> {
        let mut dir = self.dir(kind)?;
        let (name, value) = (b"btrfs.compression", kind.as_bytes());
        dir.fs.setxattr(&CX, dir.dir, name, value, XattrMode::Set)?;
        // Inline, one sector, several extents, with an odd end.
        for size in [60, 2000, 4096, 131072, 131073, MIB + 4321] {
            let ino = dir.file(&format!("text-{size}"))?;
            dir.write(ino, 0, size, FillKind::Text)?;
        }
        let mixed = dir.file("mixed")?;
        for step in 0..16 {
            let kind = [FillKind::Text, FillKind::Random, FillKind::Zeros][step as usize % 3];
            dir.write(mixed, step * 50000, 50000, kind)?;
        }
        dir.fs.fsync(mixed, false)?;
        // Overwriting parts leaves extents of which only a piece is used.
        let partly = dir.file("partly-overwritten")?;
        dir.write(partly, 0, MIB, FillKind::Text)?;
        dir.fs.fsync(partly, false)?;
        for step in 0..10 {
            dir.write(partly, step * 100_000 + 777, 5000, FillKind::Random)?;
        }
        let clone = dir.file("clone-of-parts")?;
        dir.fs.fsync(partly, false)?;
        dir.fs.clone_range(&CX, partly, 40960, clone, 8192, 20 * 4096)
    }

    pub fn shared(&mut self) -> Result<()> {
        let source = self.file("source")?;
        self.write(source, 0, 2 * MIB + 1000, FillKind::Random)?;
        self.fs.fsync(source, false)?;
        let whole = self.file("whole")?;
        self.fs.clone_range(&CX, source, 0, whole, 0, 0)?;
        let pieces = self.file("pieces")?;
        for step in 0..20 {
            let from = self.rng.below(400) * 4096;
            let len = (1 + self.rng.below(30)) * 4096;
            self.fs.clone_range(&CX, source, from, pieces, step * 40 * 4096, len)?;
        }
        // The same extent many times in one file.
        let repeated = self.file("repeated")?;
        for step in 0..50 {
            self.fs.clone_range(&CX, source, 4096, repeated, step * 8192, 4096)?;
        }
        self.write(whole, 100_000, 50_000, FillKind::Random)?;
        let inline = self.file("inline-source")?;
        self.write(inline, 0, 500, FillKind::Random)?;
        self.fs.fsync(inline, false)?;
        let copy = self.file("inline-clone")?;
        self.fs.clone_range(&CX, inline, 0, copy, 0, 0)
    }
}
