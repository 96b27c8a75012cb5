//! Random operations from a seed.
//!
//! The generator knows nothing of the state it acts on: names come from a small pool,
//! so that operations meet each other, and many fail for good reasons. Sizes and
//! offsets gather where formats change their mind: inline limits, blocks, extents.

use vfs::{
    Context, FallocateMode, FileKind, RenameMode, SeekWhence, SetTime, Timestamp, XattrMode,
};

use super::Rng;
use super::config::{Config, OpKind};
use super::op::{Fill, FillKind, Name, Op, Path, Target};
use super::outcome::Bytes;

pub struct Generator {
    rng: Rng,
    config: Config,
    total: u64,
}

const EDGES: &[u64] = &[
    0, 1, 100, 2047, 2048, 2049, 3000, 4095, 4096, 4097, 8192, 12288, 16384, 65535, 65536, 65537,
    131071, 131072, 131073, 135168, 262144, 1048575, 1048576, 1048577,
];
const BLOCK: u64 = 4096;

/// `steps` operations from `seed`.
pub fn generate(seed: u64, steps: usize, config: &Config) -> Vec<Op> {
    Generator::new(seed, config.clone()).take(steps).collect()
}

impl Iterator for Generator {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        Some(self.op())
    }
}

impl Generator {
    pub fn new(seed: u64, config: Config) -> Generator {
        let total = config.weights.iter().map(|(_, weight)| u64::from(*weight)).sum();
        Generator { rng: Rng::new(seed), config, total }
    }

    fn kind(&mut self) -> OpKind {
        let mut left = self.rng.below(self.total);
        for (kind, weight) in &self.config.weights {
            match left.checked_sub(u64::from(*weight)) {
                Some(rest) => left = rest,
                None => return *kind,
            }
        }
        OpKind::Stat
    }

    fn name(&mut self, prefix: char) -> Vec<u8> {
        let number = self.rng.below(self.config.names);
        match self.rng.below(100) {
            0 => vec![b'n'; 256],
            1..=3 => {
                let mut name = vec![b'L'; 255];
                name[254] = b'0' + number as u8 % 3;
                name
            }
            4 => "näme ☃".as_bytes().to_vec(),
            5 => b"\xff\xfe\x01".to_vec(),
            _ => format!("{prefix}{number}").into_bytes(),
        }
    }

    fn dir(&mut self) -> Path {
        // Shallow in most cases, or the way there will often be missing.
        let depth = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3][self.rng.below(11) as usize];
        let depth = self.config.depth.min(depth);
        (0..depth).fold(Path::default(), |path, _| {
            let number = self.rng.below(self.config.names.min(3));
            path.join(format!("d{number}").as_bytes())
        })
    }

    /// A path that is most likely a directory (or made to be one). Those called `e` are
    /// never gone through, so they stay empty and can be removed.
    fn dir_path(&mut self) -> Path {
        let parent = self.dir();
        let name = match self.rng.below(100) {
            0..50 => format!("d{}", self.rng.below(self.config.names.min(3))).into_bytes(),
            50..95 => format!("e{}", self.rng.below(2)).into_bytes(),
            _ => self.name('f'),
        };
        parent.join(&name)
    }

    fn file_path(&mut self) -> Path {
        let dir = self.dir();
        let prefix = if self.rng.chance(2) { 'd' } else { 'f' };
        let name = self.name(prefix);
        dir.join(&name)
    }

    fn any_path(&mut self) -> Path {
        match self.rng.below(100) {
            0..25 => self.dir_path(),
            25..27 => Path::default(),
            _ => self.file_path(),
        }
    }

    fn slot(&mut self) -> usize {
        self.rng.below(self.config.slots as u64) as usize
    }

    fn file(&mut self) -> Target {
        match self.rng.chance(25) {
            true => Target::Slot(self.slot()),
            false => Target::Path(self.file_path()),
        }
    }

    fn any(&mut self) -> Target {
        match self.rng.chance(15) {
            true => Target::Slot(self.slot()),
            false => Target::Path(self.any_path()),
        }
    }

    fn context(&mut self) -> Context {
        let mut cx = Context { umask: 0o022, ..Context::default() };
        if self.config.callers && self.rng.chance(30) {
            cx.umask = *self.rng.pick(&[0, 0o002, 0o027, 0o077, 0o777]);
            cx.uid = *self.rng.pick(&[0, 1000, 65534]);
            cx.gid = *self.rng.pick(&[0, 100, 1000]);
        }
        cx
    }

    fn perm(&mut self) -> u16 {
        match self.rng.below(10) {
            0 => self.rng.below(0o10000) as u16,
            1 => 0o777,
            2 => 0o4755,
            3 => 0o2775,
            4 => 0o2644,
            _ => *self.rng.pick(&[0o644, 0o666, 0o600, 0o755]),
        }
    }

    /// A size or offset, mostly near an edge.
    fn size(&mut self) -> u64 {
        let max = self.config.max_size;
        let size = match self.rng.below(10) {
            0..6 => *self.rng.pick(EDGES),
            6 | 7 => self.rng.below(max / BLOCK + 1) * BLOCK,
            8 => self.rng.below(16384),
            _ => self.rng.below(max),
        };
        size.min(max)
    }

    fn offset(&mut self) -> u64 {
        if self.rng.chance(25) { 0 } else { self.size() }
    }

    /// A length, shorter in most cases than sizes are.
    fn len(&mut self) -> u64 {
        let len = self.size();
        if self.rng.chance(60) { len.min(20000) } else { len }
    }

    fn fill(&mut self) -> Fill {
        let kind = *self.rng.pick(&[FillKind::Random, FillKind::Text, FillKind::Random]);
        let kind = if self.rng.chance(8) { FillKind::Zeros } else { kind };
        Fill { seed: self.rng.next_u64(), len: self.len() as usize, kind }
    }

    fn time(&mut self) -> Option<SetTime> {
        let secs = *self.rng.pick(&[0, 1, 1_000_000_000, 1_234_567_890, -1, 5_000_000_000]);
        let nanos = *self.rng.pick(&[0, 1, 999_999_999]);
        match self.rng.below(4) {
            0 => None,
            1 => Some(SetTime::Now),
            _ => Some(SetTime::At(Timestamp { secs, nanos })),
        }
    }

    fn op(&mut self) -> Op {
        match self.kind() {
            kind @ (OpKind::Create
            | OpKind::Special
            | OpKind::Mkdir
            | OpKind::Symlink
            | OpKind::Tmpfile
            | OpKind::Link
            | OpKind::Unlink
            | OpKind::Rmdir
            | OpKind::Rename
            | OpKind::RenameFlags
            | OpKind::Open
            | OpKind::Close) => self.name_op(kind),
            kind @ (OpKind::Read
            | OpKind::Write
            | OpKind::Append
            | OpKind::Truncate
            | OpKind::Fallocate
            | OpKind::CopyRange
            | OpKind::CloneRange
            | OpKind::Seek) => self.data_op(kind),
            kind => self.attr_op(kind),
        }
    }

    fn name_op(&mut self, kind: OpKind) -> Op {
        match kind {
            OpKind::Create => {
                let kind = FileKind::File;
                let (cx, path, perm) = (self.context(), self.file_path(), self.perm());
                Op::Mknod { cx, path, kind, perm, rdev: 0 }
            }
            OpKind::Special => self.special(),
            OpKind::Mkdir => {
                Op::Mkdir { cx: self.context(), path: self.dir_path(), perm: self.perm() }
            }
            OpKind::Symlink => self.symlink(),
            OpKind::Tmpfile => Op::Tmpfile {
                cx: self.context(),
                dir: self.dir(),
                perm: self.perm(),
                slot: self.slot(),
            },
            OpKind::Link => Op::Link { from: self.file(), to: self.file_path() },
            OpKind::Unlink => Op::Unlink { path: self.file_path() },
            OpKind::Rmdir => Op::Rmdir { path: self.dir_path() },
            OpKind::Rename => self.rename(RenameMode::Replace),
            OpKind::RenameFlags => {
                let mode = *self.rng.pick(&[
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                    RenameMode::Exchange,
                    RenameMode::Whiteout,
                    RenameMode::NoReplaceWhiteout,
                ]);
                self.rename(mode)
            }
            OpKind::Open => Op::Open { path: self.any_path(), slot: self.slot() },
            _ => Op::Close { slot: self.slot() },
        }
    }

    fn rename(&mut self, mode: RenameMode) -> Op {
        let dirs = self.rng.chance(35);
        let mut path = || if dirs { self.dir_path() } else { self.file_path() };
        Op::Rename { from: path(), to: path(), mode }
    }

    fn special(&mut self) -> Op {
        let kind = *self.rng.pick(&[
            FileKind::Fifo,
            FileKind::Socket,
            FileKind::CharDevice,
            FileKind::BlockDevice,
        ]);
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        // Minor numbers above 255 test the split encoding.
        let rdev = if device { *self.rng.pick(&[0x0103, 0x0801, 0x1234_56ff]) } else { 0 };
        Op::Mknod { cx: self.context(), path: self.file_path(), kind, perm: self.perm(), rdev }
    }

    fn symlink(&mut self) -> Op {
        let len = *self.rng.pick(&[1, 10, 60, 255, 2048, 4000, 4095]);
        let target = Bytes((0..len).map(|at| b'a' + (at % 26) as u8).collect());
        Op::Symlink { cx: self.context(), path: self.file_path(), target }
    }

    fn data_op(&mut self, kind: OpKind) -> Op {
        let target = self.file();
        match kind {
            OpKind::Read => Op::Read { target, offset: self.offset(), len: self.size() as usize },
            OpKind::Write => {
                let (offset, fill) = (self.offset(), self.fill());
                Op::Write { target, offset, fill, kill_priv: self.rng.chance(5) }
            }
            OpKind::Append => Op::Append { target, fill: self.fill() },
            OpKind::Truncate => Op::Truncate { target, size: self.size() },
            OpKind::Fallocate => {
                let mode = *self.rng.pick(&[
                    FallocateMode::Allocate,
                    FallocateMode::KeepSize,
                    FallocateMode::PunchHole,
                    FallocateMode::PunchHole,
                    FallocateMode::ZeroRange { keep_size: false },
                    FallocateMode::ZeroRange { keep_size: true },
                ]);
                Op::Fallocate { target, mode, offset: self.offset(), len: self.size() }
            }
            OpKind::Seek => {
                let whence = *self.rng.pick(&[SeekWhence::Data, SeekWhence::Hole]);
                Op::Seek { target, offset: self.offset(), whence }
            }
            kind => self.transfer(kind, target),
        }
    }

    fn transfer(&mut self, kind: OpKind, from: Target) -> Op {
        let to = if self.rng.chance(25) { from.clone() } else { self.file() };
        let aligned = self.rng.chance(60);
        let round = |value: u64| if aligned { value / BLOCK * BLOCK } else { value };
        let (from_offset, to_offset) = (round(self.offset()), round(self.offset()));
        // Now and then to the end of the source, which may be unaligned.
        let len = round(self.size());
        if kind == OpKind::CopyRange {
            let len = if self.rng.chance(20) { self.config.max_size } else { len };
            return Op::CopyRange { from, from_offset, to, to_offset, len };
        }
        let len = if self.rng.chance(60) { 0 } else { len };
        let from_offset = if self.rng.chance(60) { 0 } else { from_offset };
        Op::CloneRange { from, from_offset, to, to_offset, len }
    }

    fn attr_op(&mut self, kind: OpKind) -> Op {
        let target = self.any();
        match kind {
            OpKind::Chmod => Op::Chmod { target, perm: self.perm() },
            OpKind::Chown => {
                let mut id = || self.rng.chance(70).then(|| *self.rng.pick(&[0, 1000, 70000]));
                Op::Chown { target, uid: id(), gid: id() }
            }
            OpKind::Utimes => Op::Utimes { target, atime: self.time(), mtime: self.time() },
            OpKind::Readlink => Op::Readlink { path: self.file_path() },
            OpKind::Readdir => {
                let batch = *self.rng.pick(&[1, 3, 1000]);
                match self.rng.chance(80) {
                    true => Op::Readdir { target: Target::Path(self.dir()), batch },
                    false => Op::Readdir { target, batch },
                }
            }
            OpKind::GetXattr | OpKind::SetXattr => self.xattr_op(kind, target),
            OpKind::Acl => self.acl_op(target),
            OpKind::Compression => {
                let value = self.rng.pick(&["zlib", "lzo", "zstd", "none", "", "wrong"]);
                let name = Name(b"btrfs.compression".to_vec());
                let value = Bytes(value.as_bytes().to_vec());
                Op::SetXattr { target, name, value, mode: XattrMode::Set }
            }
            OpKind::Flags => self.flags_op(target),
            OpKind::Fsync => Op::Fsync { target, datasync: self.rng.chance(50) },
            OpKind::Sync => Op::Sync,
            _ => Op::Stat { target },
        }
    }

    fn xattr_op(&mut self, kind: OpKind, target: Target) -> Op {
        let space = *self.rng.pick(&["user", "user", "trusted", "security"]);
        let mut name = format!("{space}.a{}", self.rng.below(3)).into_bytes();
        if self.rng.chance(10) {
            name.resize(255, b'x');
        }
        let name = Name(name);
        match (kind, self.rng.below(10)) {
            (OpKind::GetXattr, 0..3) => return Op::ListXattr { target },
            (OpKind::GetXattr, _) => return Op::GetXattr { target, name },
            (_, 0..3) => return Op::RemoveXattr { target, name },
            _ => {}
        }
        if self.rng.chance(10) {
            return self.large_xattr(target);
        }
        let len = *self.rng.pick(&[0, 1, 20, 100, 300, 1000, 4000]);
        let fill = Fill { seed: self.rng.next_u64(), len, kind: FillKind::Random };
        let mode = *self.rng.pick(&[
            XattrMode::Set,
            XattrMode::Set,
            XattrMode::Create,
            XattrMode::Replace,
        ]);
        Op::SetXattr { target, name, value: Bytes(fill.bytes()), mode }
    }

    /// One that (nearly) fills a leaf, or is too large. It is never replaced: the kernel
    /// refuses that if the old and the new value do not fit into a leaf together.
    fn large_xattr(&mut self, target: Target) -> Op {
        let len = *self.rng.pick(&[16000, 16228 - 8, 16228 - 7, 20000]);
        let fill = Fill { seed: self.rng.next_u64(), len, kind: FillKind::Random };
        let (name, value) = (Name(b"user.big".to_vec()), Bytes(fill.bytes()));
        Op::SetXattr { target, name, value, mode: XattrMode::Create }
    }

    fn acl_op(&mut self, target: Target) -> Op {
        let default = self.rng.chance(50);
        let kind = if default { "default" } else { "access" };
        let name = Name(format!("system.posix_acl_{kind}").into_bytes());
        match self.rng.below(10) {
            0 | 1 => Op::RemoveXattr { target, name },
            2 => Op::GetXattr { target, name },
            _ => {
                let value = Bytes(self.acl());
                Op::SetXattr { target, name, value, mode: XattrMode::Set }
            }
        }
    }

    /// Attribute bytes of an ACL, now and then an invalid one.
    fn acl(&mut self) -> Vec<u8> {
        let mut value = 2u32.to_le_bytes().to_vec();
        let named = self.rng.chance(60);
        let masked = if named { self.rng.chance(95) } else { self.rng.chance(20) };
        let entries: [(u16, bool, u32); 6] = [
            (0x01, true, u32::MAX),
            (0x02, named, 1000),
            (0x04, true, u32::MAX),
            (0x08, named, 100),
            (0x10, masked, u32::MAX),
            (0x20, self.rng.chance(97), u32::MAX),
        ];
        for (tag, _, id) in entries.into_iter().filter(|(_, there, _)| *there) {
            value.extend(tag.to_le_bytes());
            value.extend((self.rng.below(8) as u16).to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn flags_op(&mut self, target: Target) -> Op {
        const COMPR: u32 = 0x4;
        const NOCOW: u32 = 0x0080_0000;
        const PLAIN: [u32; 9] = [0, 0, 0, 0x8, 0x40, 0x80, 0x400, 0x0001_0000, 0x40 | 0x80 | 0x400];
        const OTHERS: [u32; 4] = [COMPR, NOCOW, COMPR | NOCOW, 0x1];
        let mut flags = match self.rng.chance(60) {
            true => *self.rng.pick(&PLAIN),
            false => *self.rng.pick(&OTHERS),
        };
        if self.rng.chance(30) {
            return Op::GetFlags { target };
        }
        if self.config.freeze && self.rng.chance(15) {
            flags |= *self.rng.pick(&[0x10, 0x20]);
        }
        Op::SetFlags { target, flags }
    }
}
