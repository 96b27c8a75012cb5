//! Each node of a volume is lost once, by its checksum or because the device does not answer: who needs it is
//! told, and everything else goes on. A volume is given up for nothing but nodes that a commit itself has to
//! read. When the damage is undone nothing that was acknowledged is missing.
//!
//! What it does not know: several callers at once (`crowd_damage`), and losses while they are at work.

use crate::common;
use blockdev::{BlockDevice, MemDevice};
use blocksim::Hooked;
use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind::INODE_ITEM;
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use btrfs_disk::{Key, Superblock, TreeId};
use btrfs_fs::{BtrfsFs, Caller, Options};
use btrfs_image::mkfs::{Features, MkfsOptions, make};
use common::unreadable::Unreadable;
use common::{CX, errno, find, new_file};
use fuzzing::hostile::base::{Base, NodeAt, options};
use fuzzing::hostile::disk::Layered;
use fuzzing::hostile::drive::{Seen, Walk, walk};
use fuzzing::hostile::leaf::Leaf;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use vfs::{FileKind, FileSystem, RenameMode, WriteFlags};

type Device = Hooked<Layered, Unreadable>;

/// How a node is lost, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    Checksum,
    Device,
    /// By its checksum, after the volume was opened and looked at; nothing is kept in memory.
    InUse,
}

fn flip(base: &Base, device: &Device, node: &NodeAt) {
    for at in base.copies(node.logical) {
        let mut byte = [0];
        device.below.read_at(at + 200, &mut byte).expect("in range");
        device.below.write_at(at + 200, &[!byte[0]]).expect("in range");
    }
}

fn ranges(base: &Base, node: &NodeAt) -> Vec<Range<u64>> {
    let size = u64::from(base.geometry.node_size);
    base.copies(node.logical).into_iter().map(|at| at..at + size).collect()
}

fn lose(base: &Base, node: &NodeAt, loss: Loss) -> Arc<Device> {
    let ranges = if let Loss::Device = loss { ranges(base, node) } else { Vec::new() };
    let hook = Unreadable::new(ranges);
    let device = Hooked { below: Layered::new(&base.device), hook };
    if loss == Loss::Checksum {
        flip(base, &device, node);
    }
    device.below.forget_writes();
    Arc::new(device)
}

fn is_there_again(base: &Base, device: &Device, node: &NodeAt, loss: Loss) {
    device.hook.mend();
    if loss != Loss::Device {
        flip(base, device, node);
    }
    let there = base.node_bytes(&device.below, node.logical);
    assert!(there == base.node_bytes(&*base.device, node.logical), "something was written there");
}

fn may_be(error: i32, what: &str) -> bool {
    let known = [0, libc::EIO, libc::EUCLEAN, libc::EROFS];
    assert!(known.contains(&error), "{what}: errno {error}");
    error == 0
}

/// What was done and said to be durable.
#[derive(Default, Debug)]
struct Done {
    created: bool,
    grown: bool,
    renamed: bool,
}

const KEPT: usize = 60_000;
const GROWN: u64 = 1 << 20;

/// Something of each kind that a commit has to enter in some tree.
fn change(fs: &BtrfsFs) -> Done {
    let top = fs.root();
    let mut done = Done::default();
    let made = fs.mknod(&CX, top, b"new", FileKind::File, 0o644, 0);
    let ino = made.as_ref().map_or(top, |made| made.attr.ino);
    if may_be(errno(made), "create") {
        let wrote = fs.write(&CX, ino, 0, &[7; 300_000], WriteFlags::default());
        done.created = may_be(errno(wrote), "write");
    }
    if let Ok(old) = fs.lookup(&CX, top, b"kept") {
        let wrote = fs.write(&CX, old.attr.ino, GROWN, &[8; 50_000], WriteFlags::default());
        done.grown = may_be(errno(wrote), "write to what was there");
    }
    may_be(errno(fs.unlink(&CX, top, b"victim")), "unlink");
    let renamed = fs.rename(&CX, top, b"from", top, b"to", RenameMode::Replace);
    done.renamed = may_be(errno(renamed), "rename");
    may_be(errno(fs.snapshot(&Caller::root(), top, top, b"snapshot", false)), "snapshot");
    may_be(errno(fs.create_subvolume(&Caller::root(), top, b"sub")), "subvolume");
    may_be(errno(fs.trim(&CX, 0, u64::MAX, 0)), "trim");
    done
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy, Debug)]
enum Outcome {
    NotOpened,
    ReadOnly,
    GivenUp,
    GoesOn,
}

fn one(base: &Base, whole: &Walk, node: &NodeAt, loss: Loss) -> Outcome {
    let device = lose(base, node, loss);
    let loses = || {
        if loss == Loss::InUse {
            flip(base, &device, node)
        }
    };
    let (outcome, done) = used(&device, loses);
    if matches!(outcome, Outcome::NotOpened | Outcome::ReadOnly) {
        assert_eq!(device.below.writes(), 0, "nothing is written where nothing may be");
    }
    is_there_again(base, &device, node, loss);
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("it is whole again");
    assert_eq!(fs.read_only_reason(), None);
    judge(&fs, whole, &done);
    fs.destroy().expect("close");
    drop(fs);
    common::check_device(device, true, btrfs_check::Severity::Warning);
    outcome
}

/// The same with a crash in the midst, behind an fsync; and another mount before the node is there again.
fn crashed(base: &Base, whole: &Walk, node: &NodeAt) -> bool {
    let device = lose(base, node, Loss::Checksum);
    let open = || BtrfsFs::open_device(device.clone(), options());
    let mut done = Done::default();
    let opened = open().ok().filter(|fs| fs.read_only_reason().is_none());
    if let Some(fs) = &opened {
        change(fs);
        let new = fs.lookup(&CX, fs.root(), b"new").map(|entry| entry.attr.ino);
        done.created = new.is_ok_and(|ino| may_be(errno(fs.fsync(ino, false)), "fsync"));
        fs.give_up("as a crash");
    }
    let fsynced = done.created;
    drop(opened);
    match open() {
        Ok(fs) => _ = may_be(errno(fs.destroy()), "close"),
        Err(error) => assert!(!may_be(error.errno(), "open behind a crash")),
    }
    is_there_again(base, &device, node, Loss::Checksum);
    let fs = open().expect("it is whole again");
    judge(&fs, whole, &done);
    fs.destroy().expect("close");
    drop(fs);
    common::check_device(device, true, btrfs_check::Severity::Warning);
    fsynced
}

fn used(device: &Arc<Device>, loses: impl FnOnce()) -> (Outcome, Done) {
    let options = Options { cache_bytes: 0, ..options() };
    let fs = match BtrfsFs::open_device(device.clone(), options) {
        Ok(fs) => fs,
        Err(error) => {
            println!("{error}");
            assert!(!may_be(error.errno(), "open"));
            return (Outcome::NotOpened, Done::default());
        }
    };
    if fs.read_only_reason().is_some() {
        return (Outcome::ReadOnly, Done::default());
    }
    walk(&fs);
    loses();
    let mut done = change(&fs);
    // What is not durable may be there or not.
    if !may_be(errno(fs.sync()), "sync") {
        done = Done::default();
    }
    let outcome = match fs.read_only_reason() {
        Some(why) => {
            println!("{why}");
            Outcome::GivenUp
        }
        None => Outcome::GoesOn,
    };
    _ = may_be(errno(fs.destroy()), "close");
    (outcome, done)
}

/// Names that `change` has to do with.
const TOUCHED: [&str; 7] = ["new", "kept", "victim", "from", "to", "snapshot", "sub"];

fn untouched(walk: &Walk) -> BTreeMap<&[u8], &Seen> {
    let is_touched = |path: &[u8]| {
        let first = path.split(|byte| *byte == b'/').find(|part| !part.is_empty());
        first.is_none_or(|first| TOUCHED.iter().any(|name| name.as_bytes() == first))
    };
    let names = walk.names.iter().map(|(path, seen)| (path.as_slice(), seen));
    names.filter(|(path, _)| !is_touched(path)).collect()
}

/// What was there before is as it was, but for what `change` changes; and what was made durable is there.
fn judge(fs: &BtrfsFs, whole: &Walk, done: &Done) {
    let now = walk(fs);
    assert!(now.errors.is_empty(), "{:?}", now.errors);
    assert!(untouched(&now) == untouched(whole), "something else has changed");
    if done.created {
        assert!(common::read(fs, fs.root(), "new") == [7; 300_000]);
    }
    let kept = common::read(fs, fs.root(), "kept");
    assert!(kept[..KEPT] == [5; KEPT]);
    if done.grown {
        assert!(kept[GROWN as usize..] == [8; 50_000]);
    }
    if done.renamed {
        assert!(find(fs, fs.root(), "to").is_some() && find(fs, fs.root(), "from").is_none());
    }
}

/// Trees of several leaves each; the items of block groups are in a tree of their own, so that a volume without
/// some of the extent tree can be opened.
fn base() -> Base {
    let device = Arc::new(MemDevice::new(256 << 20));
    let features = Features { block_group_tree: true, ..Features::default() };
    let mkfs =
        MkfsOptions { node_size: Some(4096), seed: Some(1), features, ..MkfsOptions::default() };
    make(&*device, &mkfs).expect("mkfs");
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
    new_file(&fs, "kept", &[5; KEPT]);
    new_file(&fs, "victim", &[6; 100_000]);
    new_file(&fs, "from", &[4; 900]);
    for n in 0..250usize {
        let ino = new_file(&fs, &format!("file-{n}"), &vec![n as u8; n * 67 % 9000]);
        if n % 9 == 0 {
            let made =
                fs.mkdir(&CX, fs.root(), format!("dir-{n}").as_bytes(), 0o755).expect("mkdir");
            let linked = fs.link(&CX, ino, made.attr.ino, b"another");
            linked.expect("link");
            fs.sync().expect("commit");
        }
    }
    fs.destroy().expect("close");
    drop(fs);
    Base::of(device)
}

/// A commit changes these wherever the change is, and has to read them for that. What was in memory when its node
/// was lost (the groups' items, the inode of the directory) has changed before anybody knows.
fn may_end(base: &Base, node: &NodeAt, loss: Loss) -> bool {
    let everywhere = [TreeId::ROOT, TreeId::EXTENT, TreeId::FREE_SPACE, TreeId::CSUM];
    let leaf = || Leaf::of(&base.node_bytes(&*base.device, node.logical));
    let is_top = |(key, _): &(Key, _)| (key.objectid, key.kind) == (256, INODE_ITEM);
    let was_in_memory = || {
        node.tree == TreeId::BLOCK_GROUP
            || node.tree == TreeId::FS && node.level == 0 && leaf().items.iter().any(is_top)
    };
    everywhere.contains(&node.tree) || loss == Loss::InUse && was_in_memory()
}

fn each_once(loss: Loss) {
    let base = base();
    let fs = BtrfsFs::open_device(base.device.clone(), options()).expect("open");
    let whole = walk(&fs);
    drop(fs);
    let mut outcomes: BTreeMap<(TreeId, Outcome), usize> = BTreeMap::new();
    for node in &base.nodes {
        println!("{node:?}");
        let outcome = one(&base, &whole, node, loss);
        assert!(outcome != Outcome::GivenUp || may_end(&base, node, loss), "{node:?}");
        *outcomes.entry((node.tree, outcome)).or_default() += 1;
    }
    for ((tree, outcome), count) in &outcomes {
        println!("tree {tree}: {outcome:?} {count}");
    }
    let most = outcomes.iter().filter(|((_, outcome), _)| *outcome == Outcome::GoesOn);
    let goes_on: usize = most.map(|(_, count)| count).sum();
    assert!(goes_on * 2 > base.nodes.len(), "{goes_on} of {}", base.nodes.len());
}

/// Who asks for a trim is told of groups that are left out, and that is all.
#[test]
fn a_trim_that_cannot_read_what_is_in_use_ends_nothing() {
    let (base, mut told) = (base(), 0);
    for node in base.nodes.iter().filter(|node| node.tree == TreeId::EXTENT) {
        for loss in [Loss::Checksum, Loss::Device] {
            let device = lose(&base, node, loss);
            let fs = BtrfsFs::open_device(device, options()).expect("open");
            told += usize::from(!may_be(errno(fs.trim(&CX, 0, u64::MAX, 0)), "trim"));
            assert_eq!(fs.read_only_reason(), None);
            // Errors of the device are counted on the volume, and that commit reads the tree, too.
            _ = may_be(errno(fs.destroy()), "close");
        }
    }
    assert!(told > 0, "each of them was read");
}

/// The root of the log of fsyncs as the device has it, and the root of the one subvolume's log below it.
fn logs(base: &Base, device: &Device) -> [NodeAt; 2] {
    let mut bytes = [0; SUPER_SIZE];
    device.below.read_at(COPIES[0], &mut bytes).expect("in range");
    let sb = Superblock::parse(&bytes, COPIES[0]).expect("a superblock").fields;
    let (tree, level) = (TreeId::LOG, sb.log_root_level);
    let top = NodeAt { tree, logical: sb.log_root, level };
    let leaf = Leaf::of(&base.node_bytes(&device.below, top.logical));
    let item = RootItem::parse(&leaf.items[0].1).expect("a root item");
    [top, NodeAt { tree, logical: item.bytenr, level: item.level }]
}

/// A log is added to by reading its nodes; the commit that does in their place reads none of them.
#[test]
fn a_node_of_the_log_costs_a_commit_and_nothing_else() {
    let device = Arc::new(MemDevice::new(128 << 20));
    make(&*device, &MkfsOptions::default()).expect("mkfs");
    let base = Base::of(device);
    for (which, loss) in
        [(0, Loss::Checksum), (1, Loss::Checksum), (0, Loss::Device), (1, Loss::Device)]
    {
        println!("{which} {loss:?}");
        let hook = Unreadable::new(Vec::new());
        let device = Arc::new(Hooked { below: Layered::new(&base.device), hook });
        let options = Options { cache_bytes: 0, ..options() };
        let fs = BtrfsFs::open_device(device.clone(), options.clone()).expect("open");
        let fsync = |name| fs.fsync(new_file(&fs, name, &[7; 5000]), false).expect("fsync");
        fsync("first");
        let node = logs(&base, &device)[which];
        match loss {
            Loss::Device => device.hook.lose(ranges(&base, &node)),
            _ => flip(&base, &device, &node),
        }
        let counted =
            || ["log.fallback_commits", "commit.count"].map(|name| common::stat(&fs, name));
        let before = counted();
        fsync("second");
        assert_eq!(counted(), before.map(|count| count + 1));
        assert_eq!(fs.read_only_reason(), None);
        fsync("third");
        assert_eq!(counted(), before.map(|count| count + 1), "there is another log");
        fs.give_up("as a crash");
        drop(fs);
        let fs = BtrfsFs::open_device(device.clone(), options).expect("open behind a crash");
        for name in ["first", "second", "third"] {
            assert!(common::read(&fs, fs.root(), name) == [7; 5000], "{name}");
        }
        fs.destroy().expect("close");
        drop(fs);
        common::check_device(device, true, btrfs_check::Severity::Warning);
    }
}

#[test]
fn and_then_a_crash() {
    let base = base();
    let fs = BtrfsFs::open_device(base.device.clone(), options()).expect("open");
    let whole = walk(&fs);
    drop(fs);
    let fsynced = base.nodes.iter().filter(|node| {
        println!("{node:?}");
        crashed(&base, &whole, node)
    });
    let (count, all) = (fsynced.count(), base.nodes.len());
    assert!(count * 2 > all, "{count} of {all} were fsynced");
}

#[test]
fn by_its_checksum() {
    each_once(Loss::Checksum);
}

#[test]
fn while_it_is_in_use() {
    each_once(Loss::InUse);
}

#[test]
fn by_the_device() {
    each_once(Loss::Device);
}
