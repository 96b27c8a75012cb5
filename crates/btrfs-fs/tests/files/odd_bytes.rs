//! Bytes that no system call hands over, and only programs and strangers' archives do: what the engine takes
//! of them it can read again, and so can everybody.

use crate::common;
use blocksim::{Image as Disk, SimDevice};
use btrfs_disk::checksum::name_hash;
use btrfs_disk::items::{DirItem, dir_type};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_fs::{BtrfsFs, Options};
use btrfs_image::mkfs::{MkfsOptions, make};
use common::{
    CX, Image, assert_sound, check_device, errno, judge_device, new_file, seeds, snapshot, steps,
};
use fuzzing::patch::Patch;
use std::sync::Arc;
use testkit::ops::Rng;
use testkit::oracle;
use vfs::{Context, FileKind, FileSystem, Ino, RenameMode, SetAttr, SetTime, Timestamp, XattrMode};

/// Such a leaf was refused as a whole, the items of other files in it as well.
#[test]
fn no_attribute_gets_a_nul_into_its_name_and_one_that_has_it_can_be_removed() {
    testkit::require!(kernel_btrfs);
    let name = b"user.a\0b";
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let ino = new_file(&fs, "f", b"content");
    for mode in [XattrMode::Set, XattrMode::Create, XattrMode::Replace] {
        assert_eq!(errno(fs.setxattr(&CX, ino, name, b"v", mode)), libc::EINVAL);
    }
    let (number, before) = (ino.0, snapshot(&fs));
    fs.destroy().expect("close");
    drop(fs);
    let (location, kind, value) = (Key::new(0, 0, 0), dir_type::XATTR, &b"v"[..]);
    let item = DirItem { location, transid: 1, kind, name, value }.to_vec();
    let key = Key::new(number, kind::XATTR_ITEM, name_hash(name));
    Patch::new(&image.path).insert(TreeId::FS, key, &item);
    oracle::with_kernel(&image.path, "ro,noatime", |mount| {
        assert_eq!(std::fs::read(mount.join("f")).expect("the kernel reads it"), b"content");
    })
    .expect("the kernel mounts it");
    let fs = image.open();
    let ino = fs.lookup(&CX, fs.root(), b"f").expect("the leaf is read").attr.ino;
    assert_eq!(fs.listxattr(ino).expect("list"), [name]);
    assert_eq!(fs.getxattr(ino, name).expect("get"), b"v");
    fs.removexattr(&CX, ino, name).expect("remove");
    common::assert_same(&before, &snapshot(&fs));
    fs.destroy().expect("close");
    drop(fs);
    assert_sound(&image.path);
}

/// The kernel follows what is in front of the NUL.
#[test]
fn no_link_leads_to_a_path_with_a_nul_in_it() {
    let device = Arc::new(SimDevice::new(Disk::zeros(160 << 20)));
    make(&*device, &MkfsOptions::default()).expect("mkfs");
    let fs = BtrfsFs::open_device(device, Options::default()).expect("open");
    for target in [&b"\0"[..], b"a\0b", b"a\0"] {
        assert_eq!(errno(fs.symlink(&CX, fs.root(), b"l", target)), libc::EINVAL);
    }
    assert_eq!(errno(fs.lookup(&CX, fs.root(), b"l")), libc::ENOENT);
    fs.destroy().expect("close");
}

/// Who makes up what no caller of a system can say.
struct Odd<'f> {
    fs: &'f BtrfsFs,
    rng: Rng,
    dirs: Vec<Ino>,
    inodes: Vec<Ino>,
    names: Vec<(Ino, Vec<u8>)>,
    taken: usize,
}

impl Odd<'_> {
    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let len = if self.rng.chance(10) { self.rng.below(most) } else { self.rng.below(9) };
        let odd = [0, b'/', b'.', b'a', 0xff, b'\n', b'%', 0x80];
        (0..len).map(|_| *self.rng.pick(&odd)).collect()
    }

    fn attribute(&mut self) -> Vec<u8> {
        let classes =
            ["user.", "trusted.", "security.", "btrfs.", "system.posix_acl_access", "", "other."];
        let mut name = self.rng.pick(&classes).as_bytes().to_vec();
        name.extend(self.bytes(300));
        name
    }

    fn number(&mut self) -> u64 {
        let ends = [0, 1, 0xfff, u64::from(u32::MAX), i64::MAX as u64, u64::MAX];
        if self.rng.chance(50) { *self.rng.pick(&ends) } else { self.rng.next_u64() >> 20 }
    }

    fn time(&mut self) -> Timestamp {
        Timestamp { secs: self.number() as i64, nanos: self.rng.below(1_000_000_000) as u32 }
    }

    fn dir(&mut self) -> Ino {
        *self.rng.pick(&self.dirs)
    }

    fn ino(&mut self) -> Ino {
        *self.rng.pick(&self.inodes)
    }

    fn note<T>(&mut self, result: vfs::Result<T>) -> Option<T> {
        let error = match result {
            Ok(done) => {
                self.taken += 1;
                return Some(done);
            }
            Err(error) => error,
        };
        assert!(!error.is_of_medium(), "{error}");
        None
    }

    fn make(&mut self) {
        use FileKind::{BlockDevice, CharDevice, Dir, Fifo, File, Socket, Symlink};
        let (dir, name, target) = (self.dir(), self.bytes(300), self.bytes(5000));
        let kind =
            *self.rng.pick(&[File, File, Dir, Symlink, CharDevice, BlockDevice, Fifo, Socket]);
        let (perm, rdev) = (self.number() as u16, self.number() as u32);
        let (uid, gid) = (self.number() as u32, self.number() as u32);
        let cx = Context { uid, gid, umask: self.number() as u16, ..CX };
        let made = match kind {
            Dir => self.fs.mkdir(&cx, dir, &name, perm),
            Symlink => self.fs.symlink(&cx, dir, &name, &target),
            kind => self.fs.mknod(&cx, dir, &name, kind, perm, rdev),
        };
        if let Some(made) = self.note(made) {
            if kind == Dir {
                self.dirs.push(made.attr.ino);
            }
            self.inodes.push(made.attr.ino);
            self.names.push((dir, name));
        }
    }

    fn change(&mut self) {
        let (ino, name) = (self.ino(), self.attribute());
        let (value, number) = (self.bytes(5000), self.number());
        let (_, old) = self.rng.pick(&self.names).clone();
        let (from, to, new) = (self.rng.pick(&self.names).0, self.dir(), self.bytes(300));
        let fs = self.fs;
        let done = match self.rng.below(12) {
            0..4 => fs.setxattr(&CX, ino, &name, &value, XattrMode::Set),
            4 => fs.removexattr(&CX, ino, &name),
            // Nothing else is done to what is frozen.
            5 => fs.set_flags(&CX, ino, number as u32 & !0x30),
            6 => fs.setattr(&CX, ino, &self.attributes()).map(drop),
            7 => fs.link(&CX, ino, to, &new).map(drop),
            8 => fs.rename(&CX, from, &old, to, &new, RenameMode::Replace),
            9 => fs.rename(&CX, from, &old, to, &new, RenameMode::Whiteout),
            10 => fs.write(&CX, ino, number, &value, Default::default()).map(drop),
            _ => fs.set_label(&CX, &value),
        };
        self.note(done);
    }

    /// Files that nobody reads to their end in his life.
    fn cut_long_ones(&mut self) {
        for ino in &self.inodes {
            if self.fs.getattr(*ino).is_ok_and(|attr| attr.size > 1 << 24) {
                let cut = SetAttr { size: Some(7), ..SetAttr::default() };
                let done = self.fs.setattr(&CX, *ino, &cut);
                done.expect("cut");
            }
        }
    }

    fn attributes(&mut self) -> SetAttr {
        SetAttr {
            perm: Some(self.number() as u16),
            uid: Some(self.number() as u32),
            gid: Some(self.number() as u32),
            size: self.rng.chance(30).then(|| self.number()),
            atime: Some(SetTime::At(self.time())),
            mtime: Some(SetTime::At(self.time())),
            ctime: Some(self.time()),
            btime: Some(self.time()),
            ..SetAttr::default()
        }
    }
}

/// Whatever the engine takes passes the check of all who read the nodes that it is in.
#[test]
fn what_is_taken_of_odd_bytes_can_be_read_again() {
    for seed in seeds(0, 12) {
        let device = Arc::new(SimDevice::new(Disk::zeros(160 << 20)));
        make(&*device, &MkfsOptions::default()).expect("mkfs");
        let options = || Options { background: false, ..Options::default() };
        let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
        let (dirs, first) = (vec![fs.root()], new_file(&fs, "first", b"1"));
        let (inodes, names) = (vec![fs.root(), first], vec![(fs.root(), b"first".to_vec())]);
        let mut odd = Odd { fs: &fs, rng: Rng::new(seed), dirs, inodes, names, taken: 0 };
        for step in 0..steps(300) {
            if odd.rng.chance(40) {
                odd.make()
            } else {
                odd.change()
            }
            if step % 60 == 59 {
                fs.sync().expect("commit");
                check_device(device.clone(), false, btrfs_check::Severity::Warning);
            }
        }
        odd.cut_long_ones();
        assert!(odd.taken > 50, "{}", odd.taken);
        let expected = snapshot(&fs);
        fs.destroy().expect("close");
        drop(fs);
        let fs = BtrfsFs::open_device(device.clone(), options()).expect("open again");
        common::assert_same(&expected, &snapshot(&fs));
        fs.destroy().expect("close");
        judge_device(device, btrfs_check::Severity::Warning);
    }
}
