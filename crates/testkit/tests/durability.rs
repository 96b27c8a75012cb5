//! The judge of crashes, judged: trees that a crash may leave pass, and each kind of loss and
//! invention is told.

use testkit::RefFs;
use testkit::compare::TreeSnapshot;
use testkit::durability::{History, Rules, Witness};
use testkit::ops::{Bytes, Fill, FillKind, Name, Op, Path, Session, Target};
use vfs::{Context, FileKind, FileSystem, RenameMode, XattrMode};

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };

fn create(path: &str) -> Op {
    Op::Mknod { cx: CX, path: Path::new(path), kind: FileKind::File, perm: 0o644, rdev: 0 }
}

fn mkdir(path: &str) -> Op {
    Op::Mkdir { cx: CX, path: Path::new(path), perm: 0o755 }
}

fn write(path: &str, seed: u64) -> Op {
    let fill = Fill { seed, len: 9000, kind: FillKind::Random };
    let target = Target::Path(Path::new(path));
    Op::Write { target, offset: 0, fill, kill_priv: false }
}

fn link(from: &str, to: &str) -> Op {
    Op::Link { from: Target::Path(Path::new(from)), to: Path::new(to) }
}

fn rename(from: &str, to: &str) -> Op {
    Op::Rename { from: Path::new(from), to: Path::new(to), mode: RenameMode::Replace }
}

fn unlink(path: &str) -> Op {
    Op::Unlink { path: Path::new(path) }
}

fn xattr(path: &str, value: u8) -> Op {
    let (target, value) = (Target::Path(Path::new(path)), Bytes(vec![value; 9]));
    Op::SetXattr { target, name: Name(b"user.a".to_vec()), value, mode: XattrMode::Set }
}

fn synced(path: &str, datasync: bool) -> Op {
    Op::Fsync { target: Target::Path(Path::new(path)), datasync }
}

fn fsync(path: &str) -> Op {
    synced(path, false)
}

/// What the judge says of a tree that `found` makes, after `told` was done and then a crash.
fn verdict(told: &[Op], found: &[Op]) -> Vec<String> {
    let (tested, model, recovered) = (RefFs::default(), RefFs::default(), RefFs::default());
    let history = History::new();
    let position = || 0;
    let mut witness =
        Witness::new(&history, (&tested, tested.root()), &model, &position).expect("equal");
    for op in told {
        witness.apply(op).expect("two models agree");
    }
    let mut session = Session::new(&recovered);
    found.iter().for_each(|op| drop(session.apply(op)));
    let tree = TreeSnapshot::of(&recovered).expect("a tree");
    history.demands(0).judge(&tree, Rules::default())
}

fn passes(told: &[Op], found: &[Op]) {
    assert_eq!(verdict(told, found), Vec::<String>::new(), "{told:?}\n{found:?}");
}

fn fails(told: &[Op], found: &[Op], why: &str) {
    let verdict = verdict(told, found);
    assert!(verdict.iter().any(|line| line.contains(why)), "{told:?}\n{found:?}: {verdict:?}");
}

#[test]
fn what_was_not_synced_may_be_there_or_not() {
    let told = [create("x"), write("x", 1), write("x", 2)];
    for len in 0..=told.len() {
        passes(&told, &told[..len]);
    }
    fails(&told, &[create("y")], "a name that never was");
    fails(&told, &[create("x"), write("x", 3)], "content of 9000 bytes");
    fails(&told, &[create("x"), xattr("x", 1)], "xattrs");
    fails(&told, &[mkdir("x")], "is Dir");
}

#[test]
fn fsync_of_a_file_keeps_its_content_its_names_and_the_way_there() {
    let told = [mkdir("d"), create("d/x"), write("d/x", 1), write("d/x", 2), fsync("d/x")];
    passes(&told, &told);
    fails(&told, &told[..3], "content of 9000 bytes");
    fails(&told, &told[..2], "content of 0 bytes");
    fails(&told, &told[..1], "\"x\" in directory 257 is nothing");
    fails(&told, &[], "is lost");
    let later = [&told[..], &[write("d/x", 3), unlink("d/x")]].concat();
    passes(&later, &told);
    passes(&later, &later[..6]);
    passes(&later, &later);
    fails(&later, &told[..3], "content");
}

#[test]
fn an_append_may_be_cut_off_but_no_synced_content() {
    let resize = |size| Op::Truncate { target: Target::Path(Path::new("x")), size };
    let told = [create("x"), write("x", 1)];
    passes(&told, &[create("x"), write("x", 1), resize(4096)]);
    fails(&told, &[create("x"), write("x", 1), resize(5000)], "content of 5000 bytes");
    fails(&told, &[create("x"), write("x", 2), resize(4096)], "content of 4096 bytes");
    let synced = [&told[..], &[fsync("x")]].concat();
    fails(&synced, &[create("x"), write("x", 1), resize(4096)], "content of 4096 bytes");
}

#[test]
fn fdatasync_keeps_content_but_not_attributes() {
    let base = [create("x"), fsync("x")];
    let told = [&base[..], &[write("x", 1), xattr("x", 1), synced("x", true)]].concat();
    passes(&told, &told);
    passes(&told, &told[..3]);
    fails(&told, &told[..2], "content of 0 bytes");
    let full = [&told[..], &[fsync("x")]].concat();
    fails(&full, &told[..3], "xattrs");
}

#[test]
fn fsync_of_a_directory_keeps_entries_and_their_absence_but_not_content() {
    let told = [mkdir("d"), create("d/x"), write("d/x", 1), fsync("d")];
    passes(&told, &told[..2]);
    fails(&told, &told[..1], "is nothing");
    let gone = [&told[..], &[unlink("d/x"), fsync("d")]].concat();
    passes(&gone, &gone);
    fails(&gone, &told, "may be [\"nothing\"]");
}

#[test]
fn a_name_that_a_synced_file_lost_does_not_come_back() {
    let told = [create("x"), link("x", "y"), Op::Sync, unlink("y"), fsync("x")];
    passes(&told, &told);
    fails(&told, &told[..2], "\"y\" in directory 256 is inode 257");
}

#[test]
fn a_rename_is_whole() {
    let told = [create("x"), Op::Sync, rename("x", "y")];
    passes(&told, &told);
    passes(&told, &told[..1]);
    fails(&told, &[create("x"), link("x", "y")], "half a rename");
    fails(&told, &[], "is lost");
    let moved = [&told[..], &[create("x"), fsync("x")]].concat();
    passes(&moved, &moved);
    fails(&moved, &[create("z"), unlink("z"), create("x")], "half a rename");
    // What nobody synced may be lost with the rename that moved it.
    let told = [create("x"), rename("x", "y"), create("x"), fsync("x")];
    passes(&told, &told);
    passes(&told, &[create("z"), unlink("z"), create("x")]);
    fails(&told, &[create("x"), link("x", "y")], "may be [\"inode 258\"]");
}

#[test]
fn a_durable_file_that_always_had_a_name_is_not_lost_between_two() {
    let told = [create("x"), Op::Sync, link("x", "y"), unlink("x")];
    passes(&told, &told);
    passes(&told, &told[..3]);
    fails(&told, &[], "is lost");
}

#[test]
fn sync_keeps_everything() {
    let told = [mkdir("d"), create("d/x"), write("d/x", 1), xattr("d/x", 1), Op::Sync];
    passes(&told, &told);
    fails(&told, &told[..3], "xattrs");
    fails(&told, &told[..2], "content");
    fails(&told, &[], "is lost");
}

/// What returned before a sync of somebody else began is durable; what came later is not.
#[test]
fn a_sync_beside_counts_from_its_beginning() {
    let (tested, model) = (RefFs::default(), RefFs::default());
    let history = History::new();
    let position = || 0;
    let mut witness =
        Witness::new(&history, (&tested, tested.root()), &model, &position).expect("equal");
    witness.apply(&create("before")).expect("two models agree");
    let during = || {
        witness.apply(&create("during")).expect("two models agree");
        Ok(())
    };
    history.sync_beside(&position, during).expect("no error");
    let judged = |list: &[&str]| {
        let recovered = RefFs::default();
        let mut session = Session::new(&recovered);
        list.iter().for_each(|name| drop(session.apply(&create(name))));
        history.demands(0).judge(&TreeSnapshot::of(&recovered).expect("a tree"), Rules::default())
    };
    assert_eq!(judged(&["before"]), Vec::<String>::new());
    assert_eq!(judged(&["before", "during"]), Vec::<String>::new());
    assert!(!judged(&[]).is_empty(), "what was durable is missing");
}
