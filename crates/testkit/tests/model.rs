//! The generator and the model on their own: everything happens, nothing leaks, the
//! same seed gives the same run, and a wrong file system is caught and told shortly.

use std::collections::HashMap;

use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::ops::{
    Config, Op, OpKind, Outcome, Path, Session, Tolerance, check_against_model,
    check_private_trees, check_shared_tree, generate, lockstep,
};
use testkit::{Profile, RefFs};
use vfs::{
    Attr, Context, DirEntry, Entry, FallocateMode, FileKind, FileSystem, Ino, RenameMode, Result,
    SeekWhence, SetAttr, StatFs, Timestamp, WriteFlags, XattrMode,
};

fn name_of(op: &Op) -> String {
    let text = format!("{op:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}

#[test]
fn one_seed_one_run() {
    let ops = generate(42, 3000, &Config::all());
    assert_eq!(ops, generate(42, 3000, &Config::all()));
    let tolerance = Tolerance { exact_holes: true, times: true, ..Tolerance::default() };
    lockstep(&RefFs::new(), &RefFs::new(), &ops, &tolerance).unwrap();
}

#[test]
fn every_operation_succeeds_often_enough() {
    let fs = RefFs::new();
    let mut session = Session::new(&fs);
    let mut counts: HashMap<String, (u32, u32)> = HashMap::new();
    for op in generate(3, 20000, &Config::all()) {
        let count = counts.entry(name_of(&op)).or_default();
        count.0 += 1;
        count.1 += u32::from(!matches!(session.apply(&op), Outcome::Error(_)));
    }
    for (name, (tried, succeeded)) in counts {
        assert!(succeeded >= 10, "{name}: {succeeded} of {tried} succeeded");
        assert!(succeeded * 30 >= tried, "{name}: {succeeded} of {tried} succeeded");
    }
}

#[test]
fn sessions_give_all_references_back_and_no_inode_is_lost() {
    for seed in 0..20 {
        let fs = RefFs::new();
        let mut session = Session::new(&fs).watching_times();
        for op in generate(seed, 2000, &Config::all()) {
            session.step(&op);
        }
        drop(session);
        assert_eq!(fs.held_references(), 0, "seed {seed}");
        let tree = TreeSnapshot::of(&fs).unwrap();
        let inodes = tree.nodes.iter().filter(|(path, node)| node.first_path == **path);
        assert_eq!(fs.inode_count(), inodes.count(), "seed {seed}");
    }
}

#[test]
fn the_link_limit_holds() {
    let profile = Profile { link_max: 3, ..Profile::BTRFS };
    let fs = RefFs::with(profile, Box::new(Timestamp::now));
    let cx = Context::default();
    let file = fs.mknod(&cx, fs.root(), b"a", FileKind::File, 0o644, 0).unwrap();
    fs.link(&cx, file.attr.ino, fs.root(), b"b").unwrap();
    fs.link(&cx, file.attr.ino, fs.root(), b"c").unwrap();
    let error = fs.link(&cx, file.attr.ino, fs.root(), b"d").unwrap_err();
    assert_eq!(error.errno(), libc::EMLINK);
}

#[test]
fn classic_directories_count_their_subdirectories() {
    let fs = RefFs::with(Profile::CLASSIC, Box::new(Timestamp::now));
    fs.mkdir(&Context::default(), fs.root(), b"d", 0o755).unwrap();
    let root = fs.getattr(fs.root()).unwrap();
    assert_eq!((root.nlink, root.size), (3, 4096));
}

#[test]
fn differences_are_found_and_named() {
    let (a, b) = (RefFs::new(), RefFs::new());
    let cx = Context::default();
    for (fs, last) in [(&a, 1), (&b, 2)] {
        let ino = fs.mknod(&cx, fs.root(), b"f", FileKind::File, 0o644, 0).unwrap().attr.ino;
        let mut data = vec![7; 10000];
        data[9000] = last;
        fs.write(&cx, ino, 0, &data, WriteFlags::default()).unwrap();
        fs.setxattr(&cx, ino, b"user.x", &[last], XattrMode::Set).unwrap();
    }
    fs_only(&b, &cx, b"g");
    let (a, b) = (TreeSnapshot::of(&a).unwrap(), TreeSnapshot::of(&b).unwrap());
    let rules = Rules::default().ignoring_clock();
    let found: Vec<_> =
        diff(&a, &b, &rules).iter().map(|one| format!("{:?} {}", one.path, one.what)).collect();
    assert_eq!(found, ["/ size", "/f xattr user.x", "/f content at 8192", "/g exists"]);
    assert_eq!(diff(&a, &a, &Rules::strict()), []);
}

fn fs_only(fs: &RefFs, cx: &Context, name: &[u8]) {
    fs.mknod(cx, fs.root(), name, FileKind::File, 0o644, 0).unwrap();
}

#[test]
fn threads_agree_with_their_models_and_leave_a_sound_tree() {
    let fs = RefFs::new();
    check_private_trees(&fs, 50, 4, 1000, &Config::all(), &Tolerance::default()).unwrap();
    assert_eq!(fs.held_references(), 0);
    let fs = RefFs::new();
    check_shared_tree(&fs, 60, 4, 2000, &Config::all()).unwrap();
    assert_eq!(fs.held_references(), 0);
}

#[test]
fn a_tree_that_contradicts_itself_is_told() {
    let fs = RefFs::new();
    fs_only(&fs, &Context::default(), b"f");
    let mut tree = TreeSnapshot::of(&fs).unwrap();
    assert_eq!(tree.contradictions(), Vec::<String>::new());
    tree.nodes.get_mut(&Path::new("f")).unwrap().attr.nlink = 2;
    tree.nodes.get_mut(&Path::default()).unwrap().attr.size = 4;
    assert_eq!(tree.contradictions().len(), 2);
}

/// The model with a fault: a truncation to an odd size leaves the last byte there.
struct Faulty(RefFs);

#[rustfmt::skip]
impl FileSystem for Faulty {
    fn setattr(&self, cx: &Context, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let mut set = *set;
        if let Some(size) = set.size.filter(|size| size % 2 == 1) {
            set.size = Some(size + 1);
        }
        self.0.setattr(cx, ino, &set)
    }

    fn root(&self) -> Ino { self.0.root() }
    fn lookup(&self, cx: &Context, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.0.lookup(cx, dir, name)
    }
    fn forget(&self, ino: Ino, count: u64) { self.0.forget(ino, count) }
    fn getattr(&self, ino: Ino) -> Result<Attr> { self.0.getattr(ino) }
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> { self.0.readlink(ino) }
    fn mknod(&self, cx: &Context, dir: Ino, name: &[u8], kind: FileKind, perm: u16, rdev: u32)
        -> Result<Entry> { self.0.mknod(cx, dir, name, kind, perm, rdev) }
    fn mkdir(&self, cx: &Context, dir: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        self.0.mkdir(cx, dir, name, perm)
    }
    fn symlink(&self, cx: &Context, dir: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.0.symlink(cx, dir, name, target)
    }
    fn link(&self, cx: &Context, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.0.link(cx, ino, dir, name)
    }
    fn tmpfile(&self, cx: &Context, dir: Ino, perm: u16) -> Result<Entry> {
        self.0.tmpfile(cx, dir, perm)
    }
    fn unlink(&self, cx: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        self.0.unlink(cx, dir, name)
    }
    fn rmdir(&self, cx: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        self.0.rmdir(cx, dir, name)
    }
    fn rename(&self, cx: &Context, a: Ino, name: &[u8], b: Ino, new: &[u8], mode: RenameMode)
        -> Result<()> { self.0.rename(cx, a, name, b, new, mode) }
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.0.read(ino, offset, buf)
    }
    fn write(&self, cx: &Context, ino: Ino, offset: u64, data: &[u8], flags: WriteFlags)
        -> Result<usize> { self.0.write(cx, ino, offset, data, flags) }
    fn fallocate(&self, cx: &Context, ino: Ino, mode: FallocateMode, offset: u64, len: u64)
        -> Result<()> { self.0.fallocate(cx, ino, mode, offset, len) }
    fn copy_range(&self, cx: &Context, a: Ino, x: u64, b: Ino, y: u64, len: u64) -> Result<u64> {
        self.0.copy_range(cx, a, x, b, y, len)
    }
    fn clone_range(&self, cx: &Context, a: Ino, x: u64, b: Ino, y: u64, len: u64) -> Result<()> {
        self.0.clone_range(cx, a, x, b, y, len)
    }
    fn seek(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64> {
        self.0.seek(ino, offset, whence)
    }
    fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> { self.0.fsync(ino, datasync) }
    fn sync(&self) -> Result<()> { self.0.sync() }
    fn readdir(&self, dir: Ino, offset: u64, emit: &mut dyn FnMut(&DirEntry<'_>) -> bool)
        -> Result<()> { self.0.readdir(dir, offset, emit) }
    fn readdir_plus(
        &self, dir: Ino, offset: u64, emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()> { self.0.readdir_plus(dir, offset, emit) }
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> { self.0.getxattr(ino, name) }
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> { self.0.listxattr(ino) }
    fn setxattr(&self, cx: &Context, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode)
        -> Result<()> { self.0.setxattr(cx, ino, name, value, mode) }
    fn removexattr(&self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        self.0.removexattr(cx, ino, name)
    }
    fn flags(&self, ino: Ino) -> Result<u32> { self.0.flags(ino) }
    fn set_flags(&self, cx: &Context, ino: Ino, flags: u32) -> Result<()> {
        self.0.set_flags(cx, ino, flags)
    }
    fn statfs(&self) -> Result<StatFs> { self.0.statfs() }
    fn destroy(&self) -> Result<()> { self.0.destroy() }
}

#[test]
fn a_fault_is_caught_and_its_story_is_short() {
    let make = || Faulty(RefFs::new());
    let config = Config::all().without(&[OpKind::Mkdir]);
    let told = check_against_model(9, 2000, &config, &Tolerance::default(), make).unwrap_err();
    assert!(told.contains("Truncate"), "{told}");
    assert!(told.contains("sequence found (2 operations)"), "{told}");
    let fine = check_against_model(9, 2000, &config, &Tolerance::default(), RefFs::new);
    assert_eq!(fine, Ok(()));
}
