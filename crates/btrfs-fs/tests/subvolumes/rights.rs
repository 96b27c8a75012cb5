//! Who may change subvolumes: the kernel's rules, by owner, mode and who is known.

use crate::common;
use btrfs_fs::{Caller, Delete, Options, SubvolId};
use common::{CX, Image, close_and_judge, errno, find};
use vfs::{Errno, FileSystem, FsError, SetAttr, XattrMode};

#[test]
fn who_may_is_the_kernels_rule() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open_checked(Options { background: false, ..Options::default() });
    let user = Caller { uid: 1000, gid: 1000, umask: 0o022, ..Caller::default() };
    let root = fs.root();
    assert_eq!(errno(fs.create_subvolume(&user, root, b"no")), libc::EACCES);
    let home = fs.mkdir(&vfs::Context { uid: 1000, gid: 1000, ..CX }, root, b"home", 0o755);
    let home = home.expect("mkdir").attr.ino;
    let (_, own) = fs.create_subvolume(&user, home, b"own").expect("create");
    assert_eq!((own.attr.uid, own.attr.perm), (1000, 0o755));
    fs.snapshot(&user, own.attr.ino, home, b"s", true).expect("snapshot");
    assert_eq!(errno(fs.snapshot(&user, root, home, b"t", true)), libc::EPERM);
    let name = |name| Delete::Name(home, name);
    assert_eq!(errno(fs.delete_subvolume(&user, name(b"own"))), libc::EPERM);
    assert_eq!(errno(fs.delete_subvolume(&Caller::root(), name(b"gone"))), libc::ENOENT);
    let (id, _) = fs.subvolume_of(own.attr.ino).expect("a subvolume");
    assert_eq!(errno(fs.set_default_subvolume(&user, id)), libc::EPERM);
    fs.set_default_subvolume(&Caller::root(), id).expect("set the default");
    assert_eq!(errno(fs.delete_subvolume(&Caller::root(), name(b"own"))), libc::EPERM);
    fs.set_default_subvolume(&Caller::root(), SubvolId::TOP_LEVEL).expect("set it back");
    fs.set_read_only(&user, id, true).expect("read-only");
    let made = fs.mkdir(&CX, own.attr.ino, b"d", 0o755);
    assert_eq!(errno(made), FsError::Posix(Errno::EROFS).errno());
    fs.set_read_only(&user, id, false).expect("writable");
    fs.mkdir(&CX, own.attr.ino, b"d", 0o755).expect("mkdir");
    fs.destroy().expect("close");
    drop(fs);
    let allowed = Options { user_subvol_rm_allowed: true, background: false, ..Options::default() };
    let fs = image.open_with(allowed);
    let home = find(&fs, fs.root(), "home").expect("there");
    assert_eq!(errno(fs.delete_subvolume(&user, Delete::Name(home, b"s"))), libc::EROFS);
    fs.delete_subvolume(&user, Delete::Name(home, b"own")).expect("an owner may");
    assert!(fs.sync_deleted(&[], None).expect("drop what is deleted"));
    close_and_judge(&image, fs);
}

/// Whose numbers nobody can tell owns nothing, be it stored as nobody's, and leaves nothing behind that is another's.
#[test]
fn who_is_unknown_owns_nothing_and_makes_nothing() {
    let image = Image::new(256 << 20, &[]);
    let allowed = Options { user_subvol_rm_allowed: true, background: false, ..Options::default() };
    let fs = image.open_with(allowed);
    let root = fs.root();
    let (uid, gid) = (vfs::NOBODY, vfs::NOBODY);
    let unknown = Caller { uid, gid, unknown: true, ..Caller::default() };
    let (id, sub) = fs.create_subvolume(&Caller::root(), root, b"sub").expect("create");
    let set = |perm| {
        let set =
            SetAttr { uid: Some(uid), gid: Some(gid), perm: Some(perm), ..SetAttr::default() };
        fs.setattr(&CX, sub.attr.ino, &set).expect("chown");
    };
    for (perm, refused) in [(0o700, libc::EACCES), (0o1777, libc::EPERM), (0o707, libc::EACCES)] {
        set(perm);
        fs.setattr(&CX, root, &SetAttr { perm: Some(perm), ..SetAttr::default() }).expect("chmod");
        assert_eq!(errno(fs.set_read_only(&unknown, id, true)), libc::EPERM, "{perm:o}");
        assert_eq!(errno(fs.snapshot(&unknown, sub.attr.ino, root, b"s", true)), libc::EPERM);
        assert_eq!(errno(fs.create_subvolume(&unknown, root, b"new")), libc::EOVERFLOW);
        let deleted = fs.delete_subvolume(&unknown, Delete::Name(root, b"sub"));
        assert_eq!(errno(deleted), refused, "{perm:o}");
    }
    // The kernel shows such an owner otherwise.
    let root = SetAttr { uid: Some(0), gid: Some(0), ..SetAttr::default() };
    fs.setattr(&CX, sub.attr.ino, &root).expect("chown");
    close_and_judge(&image, fs);
}

/// Who the mount's owners make a stranger is no owner either, where an ACL decides.
#[test]
fn a_stranger_is_nobody_of_an_acl() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    let root = fs.root();
    let (uid, gid) = (vfs::NOBODY, vfs::NOBODY);
    let stranger = Caller { uid, gid, ..Caller::default() };
    let dir = fs.mkdir(&CX, root, b"dir", 0o755).expect("mkdir").attr.ino;
    let acl = |named: u32| -> Vec<u8> {
        const NONE: u32 = u32::MAX;
        // user::rwx, user:named:rwx, group::r-x, mask::rwx, other::---
        let entries =
            [(1u16, 7u16, NONE), (2, 7, named), (4, 5, NONE), (0x10, 7, NONE), (0x20, 0, NONE)];
        let entry = |(tag, perm, id): (u16, u16, u32)| {
            [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        [2u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat()
    };
    for (owner, named) in [(vfs::NOBODY, 1000), (0, vfs::NOBODY)] {
        let set = SetAttr { uid: Some(owner), gid: Some(owner), ..SetAttr::default() };
        fs.setattr(&CX, dir, &set).expect("chown");
        let acl = acl(named);
        fs.setxattr(&CX, dir, b"system.posix_acl_access", &acl, XattrMode::Set).expect("an ACL");
        assert_eq!(errno(fs.create_subvolume(&stranger, dir, b"new")), libc::EACCES, "{named}");
    }
    let named = Caller { uid: 1000, gid: 1000, ..Caller::default() };
    fs.setxattr(&CX, dir, b"system.posix_acl_access", &acl(1000), XattrMode::Set).expect("an ACL");
    fs.create_subvolume(&named, dir, b"new").expect("the one who is named may");
    close_and_judge(&image, fs);
}
