//! Directories, links, attributes and special inodes.

use vfs::{
    Context, FileKind, FileSystem, RenameMode, Result, SetAttr, SetTime, Timestamp, XattrMode,
};

use super::collide::colliding_names;
use super::extents::Filler;
use crate::ops::{Fill, FillKind};

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };

/// Attribute bytes of an ACL that names a user and a group.
fn acl() -> Vec<u8> {
    let entries: [(u16, u16, u32); 6] = [
        (0x01, 7, u32::MAX),
        (0x02, 6, 1000),
        (0x04, 5, u32::MAX),
        (0x08, 4, 100),
        (0x10, 7, u32::MAX),
        (0x20, 1, u32::MAX),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

impl Filler<'_> {
    /// Hard links of one inode: so many, with names so long, that its back-references
    /// do not fit into one item; and a few in other directories.
    pub fn links(&mut self) -> Result<()> {
        let ino = self.file("origin")?;
        for number in 0..400 {
            let name = format!("{number:04}-{}", "x".repeat(200));
            self.fs.link(&CX, ino, self.dir, name.as_bytes())?;
        }
        for number in 0..5 {
            let other = self.dir(&format!("other{number}"))?;
            other.fs.link(&CX, ino, other.dir, b"link")?;
        }
        // Some go away again, in the middle.
        for number in (100..200).step_by(3) {
            let name = format!("{number:04}-{}", "x".repeat(200));
            self.fs.unlink(&CX, self.dir, name.as_bytes())?;
        }
        Ok(())
    }

    pub fn attributes(&mut self) -> Result<()> {
        let many = self.file("many")?;
        for number in 0..120 {
            let len = self.rng.below(300) as usize;
            let fill = Fill { seed: self.rng.next_u64(), len, kind: FillKind::Random };
            let name = format!("user.name{number}");
            self.fs.setxattr(&CX, many, name.as_bytes(), &fill.bytes(), XattrMode::Set)?;
        }
        let large = self.file("large")?;
        for (name, len) in [("user.large", 16000), ("trusted.large", 9000), ("security.x", 0)] {
            let fill = Fill { seed: self.rng.next_u64(), len, kind: FillKind::Random };
            let result =
                self.fs.setxattr(&CX, large, name.as_bytes(), &fill.bytes(), XattrMode::Set);
            // Small nodes do not hold the large ones.
            if !matches!(&result, Err(error) if error.errno() == libc::ENOSPC) {
                result?;
            }
        }
        for (a, b) in colliding_names(self.rng.next_u64(), 3) {
            for name in [a, b] {
                let name = format!("user.{name}");
                self.fs.setxattr(&CX, many, name.as_bytes(), name.as_bytes(), XattrMode::Set)?;
            }
        }
        self.acls()
    }

    fn acls(&mut self) -> Result<()> {
        let dir = self.dir("acl")?;
        for name in [b"system.posix_acl_default", b"system.posix_acl_access".as_slice()] {
            dir.fs.setxattr(&CX, dir.dir, name, &acl(), XattrMode::Set)?;
        }
        dir.file("inherits")?;
        let plain = dir.file("own")?;
        dir.fs.setxattr(&CX, plain, b"system.posix_acl_access", &acl(), XattrMode::Set)
    }

    /// One of each kind, with owners, modes and times away from the usual.
    pub fn specials(&mut self) -> Result<()> {
        use FileKind::{BlockDevice, CharDevice, Fifo, Socket};
        let kinds = [(Fifo, 0), (Socket, 0), (CharDevice, 0x0103), (BlockDevice, 0x1234_56ff)];
        for (kind, rdev) in kinds {
            let name = format!("{kind:?}");
            self.fs.mknod(&CX, self.dir, name.as_bytes(), kind, 0o640, rdev)?;
        }
        for len in [1, 59, 2000, 4095] {
            let name = format!("symlink-{len}");
            let result = self.fs.symlink(&CX, self.dir, name.as_bytes(), &vec![b't'; len]);
            if !matches!(&result, Err(error) if error.errno() == libc::ENAMETOOLONG) {
                result?;
            }
        }
        let odd = self.file("odd")?;
        let time = |secs| Some(SetTime::At(Timestamp { secs, nanos: 123_456_789 }));
        let (perm, uid, gid) = (Some(0o7751), Some(4_000_000_000), Some(77));
        let (atime, mtime) = (time(-1000), time(10_000_000_000));
        let owner = SetAttr { uid, gid, kill_priv: true, ..SetAttr::default() };
        self.fs.setattr(&CX, odd, &owner)?;
        self.fs.setattr(&CX, odd, &SetAttr { perm, atime, mtime, ..SetAttr::default() })?;
        let frozen = self.file("immutable")?;
        self.write(frozen, 0, 5000, FillKind::Text)?;
        self.fs.set_flags(&CX, frozen, 0x10)
    }

    /// A large directory with colliding, long and strange names; half of it went away
    /// and came back under other numbers.
    pub fn many_names(&mut self) -> Result<()> {
        for number in 0..1500 {
            self.file(&format!("file-{number}"))?;
        }
        for number in (0..1500).step_by(2) {
            self.fs.unlink(&CX, self.dir, format!("file-{number}").as_bytes())?;
        }
        for number in (0..1500).step_by(4) {
            self.file(&format!("file-{number}"))?;
        }
        for number in (1..300).step_by(2) {
            let (name, new) = (format!("file-{number}"), format!("renamed-{number}"));
            let (dir, mode) = (self.dir, RenameMode::Replace);
            self.fs.rename(&CX, dir, name.as_bytes(), dir, new.as_bytes(), mode)?;
        }
        for (a, b) in colliding_names(self.rng.next_u64(), 8) {
            self.file(&a)?;
            self.file(&b)?;
        }
        let strange: [&[u8]; 5] = [b"\xff\xfe", b" ", b"new\nline", "ß☃".as_bytes(), &[b'm'; 255]];
        for name in strange {
            self.fs.mknod(&CX, self.dir, name, FileKind::File, 0o600, 0)?;
        }
        self.deep()
    }

    fn deep(&mut self) -> Result<()> {
        let mut dir = self.dir;
        for depth in 0..40 {
            let name = format!("level-{depth}");
            dir = self.fs.mkdir(&CX, dir, name.as_bytes(), 0o700)?.attr.ino;
        }
        Ok(())
    }
}
