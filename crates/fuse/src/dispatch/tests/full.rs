//! File systems that change attributes in other ways: one has no room for it, and what is left of requests that are more than
//! one change; in another blocks settle just then.

use super::{CX, Served};
use crate::abi::record::{AttrOut, SetattrIn, SetxattrIn};
use crate::abi::{Opcode, SETXATTR_ACL_KILL_SGID, Wire, fattr};
use crate::config::Config;
use crate::dispatch::Outcome;
use std::sync::Arc;
use testkit::RefFs;
use vfs::*;

type Change = fn(&RefFs, &Context, Ino, &SetAttr) -> Result<Attr>;

struct Instead {
    inner: Arc<RefFs>,
    change: Change,
}

/// Methods that go on to `inner`.
macro_rules! pass_on {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result { self.inner.$name($($arg),*) })*
    };
}

impl FileSystem for Instead {
    fn setattr(&self, cx: &Context, ino: Ino, set: &SetAttr) -> Result<Attr> {
        (self.change)(&self.inner, cx, ino, set)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.inner.forget(ino, count);
    }

    pass_on! {
        fn root() -> Ino;
        fn lookup(cx: &Context, parent: Ino, name: &[u8]) -> Result<Entry>;
        fn getattr(ino: Ino) -> Result<Attr>;
        fn readlink(ino: Ino) -> Result<Vec<u8>>;
        fn mknod(cx: &Context, parent: Ino, name: &[u8], kind: FileKind, perm: u16, rdev: u32) -> Result<Entry>;
        fn mkdir(cx: &Context, parent: Ino, name: &[u8], perm: u16) -> Result<Entry>;
        fn symlink(cx: &Context, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry>;
        fn link(cx: &Context, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry>;
        fn tmpfile(cx: &Context, parent: Ino, perm: u16) -> Result<Entry>;
        fn unlink(cx: &Context, parent: Ino, name: &[u8]) -> Result<()>;
        fn rmdir(cx: &Context, parent: Ino, name: &[u8]) -> Result<()>;
        fn rename(cx: &Context, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], mode: RenameMode) -> Result<()>;
        fn read(ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;
        fn write(cx: &Context, ino: Ino, offset: u64, data: &[u8], flags: WriteFlags) -> Result<usize>;
        fn fallocate(cx: &Context, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()>;
        fn copy_range(cx: &Context, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64>;
        fn clone_range(cx: &Context, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<()>;
        fn seek(ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64>;
        fn readdir(dir: Ino, offset: u64, emit: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()>;
        fn readdir_plus(dir: Ino, offset: u64, emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool) -> Result<()>;
        fn getxattr(ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
        fn listxattr(ino: Ino) -> Result<Vec<Vec<u8>>>;
        fn setxattr(cx: &Context, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
        fn removexattr(cx: &Context, ino: Ino, name: &[u8]) -> Result<()>;
        fn flags(ino: Ino) -> Result<u32>;
        fn set_flags(cx: &Context, ino: Ino, flags: u32) -> Result<()>;
        fn statfs() -> Result<StatFs>;
        fn fsync(ino: Ino, datasync: bool) -> Result<()>;
        fn sync() -> Result<()>;
        fn destroy() -> Result<()>;
    }
}

const ACCESS: &[u8] = b"system.posix_acl_access";

/// Owner, a user, the group, the most, others; as `setfacl -m u:1:rwx`.
fn acl() -> Vec<u8> {
    let entries =
        [(1, 7, u32::MAX), (2, 7, 1), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend([u16::to_le_bytes(tag), u16::to_le_bytes(perm)].concat());
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}

#[test]
fn an_acl_that_takes_a_bit_away_is_not_set_without_that() {
    let fs = Arc::new(RefFs::new());
    let set_acl = |served: &Served, ino| {
        let acl = acl();
        let flags = SETXATTR_ACL_KILL_SGID;
        let arg =
            SetxattrIn { size: acl.len() as u32, setxattr_flags: flags, ..Default::default() };
        served.asked(Opcode::Setxattr, ino, &arg, &[ACCESS, b"\0", &acl].concat())
    };
    let ends = |ino| (fs.getattr(ino).unwrap().perm, fs.getxattr(ino, ACCESS).is_ok());

    let change: Change = |_, _, _, _| Err(Errno::ENOSPC.into());
    let full = Arc::new(Instead { inner: fs.clone(), change });
    let served = Served::of(fs.clone(), full, &Config::default());
    let ino = served.new_file("file", 1);
    let set = SetAttr { perm: Some(0o2755), ..Default::default() };
    fs.setattr(&CX, ino, &set).expect("chmod");
    assert_eq!(set_acl(&served, ino), Outcome::Refuse(libc::ENOSPC));
    assert_eq!(ends(ino), (0o2755, false));

    let served = Served::of(fs.clone(), fs.clone(), &Config::default());
    assert!(matches!(set_acl(&served, ino), Outcome::Reply(_)));
    assert_eq!(ends(ino), (0o775, true));
}

/// The kernel keeps what the reply says, and has forgotten by then what it was told of meanwhile.
#[test]
fn attributes_are_those_behind_what_was_waited_for() {
    const BEFORE: u64 = 99;
    let fs = Arc::new(RefFs::new());
    let change: Change =
        |fs, cx, ino, set| fs.setattr(cx, ino, set).map(|attr| Attr { blocks: BEFORE, ..attr });
    let settles = Arc::new(Instead { inner: fs.clone(), change });
    let served = Served::of(fs.clone(), settles, &Config::default());
    let ino = served.new_file("file", 100);
    let told = |size| {
        let arg = SetattrIn { valid: fattr::SIZE, size, ..Default::default() };
        let mut out = vec![0; 1 << 16];
        let outcome = served.answered(Opcode::Setattr, ino, &arg, &[], &mut out);
        assert!(matches!(outcome, Outcome::Reply(_)), "{outcome:?}");
        let AttrOut { attr, .. } = AttrOut::load(&out);
        (attr.size, attr.blocks)
    };
    assert_eq!(told(200), (200, BEFORE), "nothing was waited for");
    served.read(ino, 0, 4096);
    assert_eq!(told(300), (300, fs.getattr(ino).unwrap().blocks));
    assert_eq!(served.cleared(), 1);
}
