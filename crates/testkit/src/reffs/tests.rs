//! The model's own rules, one by one; the kernel judges the whole in tests/kernel.rs.

use vfs::{
    Context, Errno, FileKind, FileSystem, Ino, RenameMode, SeekWhence, SetAttr, WriteFlags,
    XattrMode,
};

use super::RefFs;

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };

fn file(fs: &RefFs, parent: Ino, name: &str) -> Ino {
    fs.mknod(&CX, parent, name.as_bytes(), FileKind::File, 0o666, 0).unwrap().attr.ino
}

fn dir(fs: &RefFs, parent: Ino, name: &str) -> Ino {
    fs.mkdir(&CX, parent, name.as_bytes(), 0o777).unwrap().attr.ino
}

fn errno<T: std::fmt::Debug>(result: vfs::Result<T>) -> i32 {
    result.unwrap_err().errno()
}

fn names(fs: &RefFs, dir: Ino, offset: u64, limit: usize) -> (Vec<String>, u64) {
    let (mut names, mut next) = (Vec::new(), offset);
    fs.readdir(dir, offset, &mut |entry| {
        if names.len() == limit {
            return false;
        }
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        next = entry.next;
        true
    })
    .unwrap();
    (names, next)
}

#[test]
fn an_unlinked_file_lives_as_long_as_it_is_referenced() {
    let fs = RefFs::new();
    let ino = file(&fs, fs.root(), "a");
    fs.write(&CX, ino, 0, b"hello", WriteFlags::default()).unwrap();
    fs.unlink(&CX, fs.root(), b"a").unwrap();
    let mut buf = [0; 8];
    assert_eq!(fs.read(ino, 0, &mut buf).unwrap(), 5);
    assert_eq!(fs.getattr(ino).unwrap().nlink, 0);
    assert_eq!(errno(fs.link(&CX, ino, fs.root(), b"b")), libc::ENOENT);
    fs.forget(ino, 1);
    assert_eq!(fs.inode_count(), 1);
    assert_eq!(errno(fs.getattr(ino)), libc::ESTALE);
}

#[test]
fn a_tmpfile_can_be_named_once() {
    let fs = RefFs::new();
    let ino = fs.tmpfile(&CX, fs.root(), 0o600).unwrap().attr.ino;
    assert_eq!(fs.link(&CX, ino, fs.root(), b"t").unwrap().attr.nlink, 1);
    fs.unlink(&CX, fs.root(), b"t").unwrap();
    assert_eq!(errno(fs.link(&CX, ino, fs.root(), b"t")), libc::ENOENT);
}

#[test]
fn readdir_goes_on_where_it_stopped_whatever_changed() {
    let fs = RefFs::new();
    for name in ["a", "b", "c", "d"] {
        file(&fs, fs.root(), name);
    }
    let (first, next) = names(&fs, fs.root(), 0, 4);
    assert_eq!(first, [".", "..", "a", "b"]);
    fs.unlink(&CX, fs.root(), b"b").unwrap();
    fs.unlink(&CX, fs.root(), b"c").unwrap();
    file(&fs, fs.root(), "aa");
    assert_eq!(names(&fs, fs.root(), next, 9).0, ["d", "aa"]);
}

#[test]
fn readdir_plus_counts_only_what_was_taken() {
    let fs = RefFs::new();
    for name in ["a", "b"] {
        let ino = file(&fs, fs.root(), name);
        fs.forget(ino, 1);
    }
    let mut taken = Vec::new();
    let mut emit = |_: &vfs::DirEntry<'_>, entry: Option<&vfs::Entry>| {
        let full = taken.len() == 1;
        taken.extend(entry.filter(|_| !full).map(|entry| entry.attr.ino));
        !full
    };
    fs.readdir_plus(fs.root(), 0, &mut emit).unwrap();
    assert_eq!((taken.len(), fs.held_references()), (1, 1));
}

#[test]
fn renames_that_cannot_be() {
    let fs = RefFs::new();
    let root = fs.root();
    let (a, f) = (dir(&fs, root, "a"), file(&fs, root, "f"));
    let b = dir(&fs, a, "b");
    let replace = RenameMode::Replace;
    assert_eq!(errno(fs.rename(&CX, root, b"a", b, b"x", replace)), libc::EINVAL);
    assert_eq!(errno(fs.rename(&CX, a, b"b", root, b"a", replace)), libc::ENOTEMPTY);
    assert_eq!(errno(fs.rename(&CX, root, b"a", root, b"f", replace)), libc::ENOTDIR);
    assert_eq!(errno(fs.rename(&CX, root, b"f", root, b"a", replace)), libc::EISDIR);
    assert_eq!(errno(fs.rename(&CX, root, b"f", a, b"b", RenameMode::NoReplace)), libc::EEXIST);
    assert_eq!(errno(fs.rename(&CX, root, b"f", a, b"x", RenameMode::Exchange)), libc::ENOENT);
    fs.link(&CX, f, root, b"g").unwrap();
    fs.rename(&CX, root, b"f", root, b"g", replace).unwrap();
    assert_eq!(fs.getattr(f).unwrap().nlink, 2);
}

#[test]
fn exchange_and_whiteout() {
    let fs = RefFs::new();
    let root = fs.root();
    let (a, f) = (dir(&fs, root, "a"), file(&fs, root, "f"));
    let sub = dir(&fs, a, "sub");
    fs.rename(&CX, a, b"sub", root, b"f", RenameMode::Exchange).unwrap();
    assert_eq!(fs.lookup(&CX, a, b"sub").unwrap().attr.ino, f);
    assert_eq!(fs.lookup(&CX, sub, b"..").unwrap().attr.ino, root);
    fs.rename(&CX, a, b"sub", root, b"g", RenameMode::Whiteout).unwrap();
    let white = fs.lookup(&CX, a, b"sub").unwrap().attr;
    assert_eq!((white.kind, white.rdev, white.perm), (FileKind::CharDevice, 0, 0));
}

#[test]
fn immutable_and_append_only() {
    let fs = RefFs::new();
    let ino = file(&fs, fs.root(), "a");
    fs.write(&CX, ino, 0, b"12345", WriteFlags::default()).unwrap();
    fs.set_flags(&CX, ino, 0x20).unwrap();
    assert_eq!(errno(fs.write(&CX, ino, 0, b"x", WriteFlags::default())), libc::EPERM);
    fs.write(&CX, ino, 5, b"6", WriteFlags::default()).unwrap();
    fs.set_flags(&CX, ino, 0x10).unwrap();
    assert_eq!(errno(fs.write(&CX, ino, 6, b"x", WriteFlags::default())), libc::EPERM);
    assert_eq!(errno(fs.unlink(&CX, fs.root(), b"a")), libc::EPERM);
    let chmod = SetAttr { perm: Some(0), ..SetAttr::default() };
    assert_eq!(errno(fs.setattr(&CX, ino, &chmod)), libc::EPERM);
    fs.set_flags(&CX, ino, 0).unwrap();
    fs.unlink(&CX, fs.root(), b"a").unwrap();
}

#[test]
fn holes_are_found_and_clones_keep_them() {
    let fs = RefFs::new();
    let (a, b) = (file(&fs, fs.root(), "a"), file(&fs, fs.root(), "b"));
    fs.write(&CX, a, 8192, &[7; 5000], WriteFlags::default()).unwrap();
    assert_eq!(fs.seek(a, 0, SeekWhence::Data).unwrap(), 8192);
    assert_eq!(fs.seek(a, 9000, SeekWhence::Hole).unwrap(), 13192);
    assert_eq!(errno(fs.seek(a, 13192, SeekWhence::Hole)), libc::ENXIO);
    assert_eq!(errno(fs.clone_range(&CX, a, 0, b, 100, 0)), libc::EINVAL);
    fs.clone_range(&CX, a, 0, b, 4096, 0).unwrap();
    assert_eq!(fs.getattr(b).unwrap().size, 17288);
    assert_eq!(fs.seek(b, 0, SeekWhence::Data).unwrap(), 12288);
    assert_eq!(errno(fs.clone_range(&CX, a, 0, a, 4096, 8192)), libc::EINVAL);
}

#[test]
fn setgid_directories_pass_their_group_on() {
    let fs = RefFs::new();
    let d = dir(&fs, fs.root(), "d");
    let set = SetAttr { perm: Some(0o2775), gid: Some(50), ..SetAttr::default() };
    fs.setattr(&CX, d, &set).unwrap();
    let f = fs.getattr(file(&fs, d, "f")).unwrap();
    let e = fs.getattr(dir(&fs, d, "e")).unwrap();
    assert_eq!((f.gid, f.perm, e.gid, e.perm), (50, 0o644, 50, 0o2755));
}

#[test]
fn a_write_by_others_clears_privileges() {
    let fs = RefFs::new();
    let ino = file(&fs, fs.root(), "a");
    let set = SetAttr { perm: Some(0o6755), ..SetAttr::default() };
    fs.setattr(&CX, ino, &set).unwrap();
    fs.setxattr(&CX, ino, b"security.capability", b"x", XattrMode::Set).unwrap();
    let flags = WriteFlags { kill_priv: true, ..WriteFlags::default() };
    fs.write(&CX, ino, 0, b"x", flags).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().perm, 0o755);
    assert_eq!(errno(fs.getxattr(ino, b"security.capability")), Errno::ENODATA.code());
}
