//! Simple quotas: the kernel and the engine take turns on one volume, with all that may change whom an
//! extent counts for: files, partial overwrites, reflinks, snapshots, deletions, groups above, limits, quotas that end and
//! begin anew, balances and resizes.
//!
//! After each turn our check and a newer `btrfs check`, which knows simple quotas, count the same numbers as the
//! quota tree has; files are the model's to whoever's turn is next, and the kernel's scrub finds nothing.
//!
//! `SPINNEY_ROUNDS` makes it longer, `SPINNEY_SEED` and `SPINNEY_SEEDS` choose others.

use crate::{common, histories};
// What only other tests use.

use btrfs_disk::ids::incompat;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_fs::{BtrfsFs, Caller, NewSubvolume, Options, QgroupId};
use common::kernel::kernel_but;
use common::{CX, Image};
use fuzzing::patch::Patch;
use histories::{side, world};
use side::{Ours, Side, Theirs};
use std::path::Path;
use std::sync::Arc;
use testkit::oracle::{self, KernelMount, newer_btrfs, newer_btrfs_check, sh};
use vfs::{FileKind, FileSystem};
use world::History;

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

/// Both count, and find nothing else either.
fn judge(path: &Path) {
    common::check_ourselves(path);
    newer_btrfs_check(path).expect("a sound volume with the right numbers");
}

/// All names and contents are the model's.
fn compare(history: &History, side: &dyn Side, when: &str) {
    for (sub, known) in &history.world.subs {
        let mut names = side.names(sub);
        names.sort();
        assert!(names.iter().eq(known.files.keys()), "{when}: {sub:?} has {names:?}");
        for (name, content) in &known.files {
            let read = side.read(sub, name).expect("a file");
            assert!(read == **content, "{when}: {sub}/{name} is another");
        }
    }
}

fn swept(mount: &KernelMount) {
    let path = mount.path().to_string_lossy();
    sh("btrfs", &["filesystem", "sync", &path]).expect("sync");
    sh("btrfs", &["subvolume", "sync", &path]).expect("dropped");
}

fn engine_turn(image: &Image, history: &mut History, steps: usize) {
    let fs = common::open_image(&image.path, options());
    assert_eq!(fs.read_only_reason(), None);
    let side = Ours(&fs);
    history.tally.ended_for_others += u64::from(side.end_balance());
    compare(history, &side, "the kernel's, to us");
    history.turn(&side, steps);
    compare(history, &side, "ours");
    if history.below(3) > 0 {
        assert!(fs.sync_deleted(&[], None).expect("dropped"));
    }
    if history.below(4) == 0 {
        side.leave_balance();
    }
    assert_simple(&fs, history);
    assert_eq!(common::stat(&fs, "commit.over_promise"), 0);
    fs.destroy().expect("close");
}

fn assert_simple(fs: &BtrfsFs, history: &History) {
    let status = fs.quota_status().expect("status");
    let found = status.map(|status| (status.simple, status.inconsistent));
    assert_eq!(found, history.world.quotas.then_some((true, false)));
}

fn kernel_turn(image: &Image, history: &mut History, mount: &str, steps: usize) {
    kernel_but(&image.path, mount, &[], |mount| {
        let side = Theirs(mount);
        history.tally.ended_for_others += u64::from(side.end_balance());
        compare(history, &side, "ours, to the kernel");
        oracle::scrub(mount).expect("scrub");
        history.turn(&side, steps);
        compare(history, &side, "the kernel's");
        if history.below(2) == 0 {
            swept(mount);
        }
        if history.below(4) == 0 {
            side.leave_balance();
        }
    });
}

/// Simple quotas, by the kernel or by us.
fn begin(image: &Image, kernel: bool) {
    if kernel {
        let newer = newer_btrfs().expect("there").to_string_lossy().into_owned();
        kernel_but(&image.path, "noatime", &[], |mount| {
            let path = mount.path().to_string_lossy();
            sh(&newer, &["quota", "enable", "--simple", &path]).expect("on");
        });
    } else {
        let fs = common::open_image(&image.path, options());
        fs.enable_simple_quotas().expect("on");
        fs.destroy().expect("close");
    }
}

fn alternate(seed: u64, rounds: u64, mkfs: &[&str], mount: &str) {
    println!("SPINNEY_SEED={seed} SPINNEY_SEEDS=1 SPINNEY_ROUNDS={rounds}: {mkfs:?}, {mount}");
    let mut history = History::new(seed);
    (history.simple, history.world.quotas) = (true, true);
    let image = Image::new(1 << 30, mkfs);
    begin(&image, seed.is_multiple_of(2));
    for round in 0..rounds {
        println!("round {round}: the engine's turn, {:?}", history.tally);
        engine_turn(&image, &mut history, common::steps(60));
        judge(&image.path);
        println!("round {round}: the kernel's turn");
        kernel_turn(&image, &mut history, mount, common::steps(60) / 2);
        judge(&image.path);
    }
    let tally = &history.tally;
    println!("{tally:?}");
    assert!(tally.deleted > 0 && tally.balances > 0 && tally.limits > 0, "this shows little");
}

#[test]
fn rounds_of_everything() {
    testkit::require!(ready(), "no kernel's btrfs, or no newer btrfs-progs");
    for seed in common::seeds(1, 2) {
        let (mkfs, mount): (&[&str], _) = match seed % 3 {
            // No `btrfs check` reads a quota tree of two leaves.
            0 => (&["-n", "8192"], "noatime"),
            1 => (&[], "noatime"),
            _ => (&["--csum", "xxhash"], "noatime,compress=zstd"),
        };
        alternate(seed, common::number("SPINNEY_ROUNDS", 4), mkfs, mount);
    }
}

fn ready() -> bool {
    newer_btrfs().is_ok() && oracle::capabilities().lacking_kernel_btrfs().is_none()
}

/// What a group counts; both numbers are one.
fn counted(fs: &BtrfsFs, group: &str) -> Option<u64> {
    fs.sync().expect("commit");
    let all = fs.qgroups_from(QgroupId(0), usize::MAX).expect("groups");
    let found = all.into_iter().find(|found| found.id.to_string() == group)?;
    assert_eq!(found.referenced, found.exclusive);
    Some(found.referenced)
}

const LEN: u64 = 1 << 20;

/// Of this length are nodes.
const NODE: u64 = 16384;

/// A new volume with simple quotas, by the kernel or by us.
fn begun(kernel: bool) -> (Image, BtrfsFs) {
    let image = Image::new(512 << 20, &[]);
    begin(&image, kernel);
    let fs = common::open_image(&image.path, options());
    (image, fs)
}

fn two_subvolumes(side: &Ours<'_>) {
    for name in ["a", "b"] {
        side.create(name).expect("a subvolume");
    }
}

fn close(image: &Image, fs: BtrfsFs) {
    fs.destroy().expect("close");
    drop(fs);
    judge(&image.path);
}

/// Content counts for who wrote it first until nobody has it, in one commit and over many; a snapshot begins
/// with its root alone; a group with charges outlives its subvolume.
#[test]
fn who_wrote_it_first_pays() {
    testkit::require!(ready(), "no kernel's btrfs, or no newer btrfs-progs");
    let (image, fs) = begun(false);
    let side = Ours(&fs);
    two_subvolumes(&side);
    let (a, b) = (side.group_of("a"), side.group_of("b"));
    let content = vec![7; LEN as usize];
    fs.sync().expect("commit");
    let commits = common::stat(&fs, "commit.count");
    side.write("a", "first", 0, &content).expect("written");
    // All in one commit: the one that has it in the end is not the one that wrote it.
    side.clone_file("a", "first", "b", "second").expect("shared");
    side.cut("a", "first", 0).expect("cut");
    assert_eq!(common::stat(&fs, "commit.count"), commits, "this shows nothing");
    assert_eq!((counted(&fs, &a), counted(&fs, &b)), (Some(LEN + NODE), Some(NODE)));
    side.write("b", "second", 0, &content[..4096]).expect("written");
    assert_eq!((counted(&fs, &a), counted(&fs, &b)), (Some(LEN + NODE), Some(NODE + 4096)));
    side.snapshot("b", "c", false).expect("a snapshot");
    let c = side.group_of("c");
    assert_eq!((counted(&fs, &a), counted(&fs, &c)), (Some(LEN + NODE), Some(NODE)));
    side.delete("a").expect("deleted");
    assert!(fs.sync_deleted(&[], None).expect("dropped"));
    assert_eq!(counted(&fs, &a), Some(LEN));
    let refused = |done: vfs::Result<()>| done.expect_err("refused").errno();
    let group = |text: &str| text.parse::<QgroupId>().expect("a group");
    assert_eq!(refused(fs.destroy_qgroup(group(&a))), libc::EBUSY);
    assert_eq!(refused(fs.rescan_quotas()), libc::EINVAL);
    side.balance(side::Balance::All).expect("moved");
    assert_eq!(counted(&fs, &a), Some(LEN));
    side.remove("b", "second").expect("removed");
    assert_eq!(counted(&fs, &a), Some(LEN));
    side.remove("c", "second").expect("removed");
    // Who looked them up has them still.
    close(&image, fs);
    let fs = common::open_image(&image.path, options());
    assert_eq!(counted(&fs, &a), Some(0));
    fs.destroy_qgroup(group(&a)).expect("nothing is charged");
    close(&image, fs);
}

/// What one goes on with that another wrote counts for the one, though it lands right behind it in the same commit.
#[test]
fn who_goes_on_pays_for_that() {
    testkit::require!(ready(), "no kernel's btrfs, or no newer btrfs-progs");
    let (image, fs) = begun(false);
    let side = Ours(&fs);
    two_subvolumes(&side);
    let (a, b) = (side.group_of("a"), side.group_of("b"));
    fs.sync().expect("commit");
    let (commits, content) = (common::stat(&fs, "commit.count"), vec![7; LEN as usize]);
    side.write("a", "first", 0, &content).expect("written");
    side.clone_file("a", "first", "b", "second").expect("shared");
    // Who looked it up would have a removed one still.
    side.cut("a", "first", 0).expect("cut");
    side.write("b", "second", LEN, &content).expect("written");
    assert_eq!(common::stat(&fs, "commit.count"), commits, "this shows nothing");
    assert_eq!((counted(&fs, &a), counted(&fs, &b)), (Some(LEN + NODE), Some(LEN + NODE)));
    close(&image, fs);
}

/// Who is made in a subvolume is in the groups that it is in; what comes and goes above is the sum of what is below.
#[test]
fn groups_above_are_inherited_and_summed() {
    testkit::require!(ready(), "no kernel's btrfs, or no newer btrfs-progs");
    let (image, fs) = begun(false);
    let side = Ours(&fs);
    for group in ["1/1", "1/2", "2/1"] {
        side.group(group).expect("a group");
    }
    side.relate("0/5", "1/1", true).expect("a relation");
    side.create("a").expect("a subvolume");
    side.write("a", "file", 0, &vec![7; LEN as usize]).expect("written");
    let a = side.group_of("a");
    let top = counted(&fs, "0/5").expect("counted");
    assert_eq!(counted(&fs, "1/1"), Some(top + LEN + NODE));
    side.snapshot("a", "b", false).expect("a snapshot");
    let two = top + LEN + 2 * NODE;
    assert_eq!(counted(&fs, "1/1"), Some(two));
    // By two ways, and counted once: as `btrfs check` has it, and not the kernel.
    side.relate(&a, "1/2", true).expect("a relation");
    side.relate("1/1", "2/1", true).expect("a relation");
    side.relate("1/2", "2/1", true).expect("a relation");
    assert_eq!((counted(&fs, "1/2"), counted(&fs, "2/1")), (Some(LEN + NODE), Some(two)));
    side.relate(&a, "1/1", false).expect("out of one");
    assert_eq!(
        (counted(&fs, "1/1"), counted(&fs, "2/1")),
        (Some(top + 2 * NODE - NODE), Some(two))
    );
    side.relate("1/2", "2/1", false).expect("out of the other");
    assert_eq!(counted(&fs, "2/1"), Some(top + NODE));
    close(&image, fs);
}

/// A limit holds for who writes; what others have written may be shared beyond it.
#[test]
fn limits_are_for_who_writes() {
    testkit::require!(ready(), "no kernel's btrfs, or no newer btrfs-progs");
    let (image, fs) = begun(true);
    let side = Ours(&fs);
    two_subvolumes(&side);
    side.limit(&side.group_of("b"), Some(2 * LEN), false).expect("limited");
    side.write("a", "large", 0, &vec![1; 4 * LEN as usize]).expect("no limit");
    side.clone_file("a", "large", "b", "large").expect("it counts for the other");
    side.write("b", "small", 0, &vec![2; LEN as usize]).expect("within it");
    let beyond = side.write("b", "more", 0, &vec![3; 2 * LEN as usize]);
    assert_eq!(beyond, Err(side::Refused::Quota));
    side.remove("b", "small").expect("removed");
    close(&image, fs);
    let fs = common::open_image(&image.path, options());
    let content = vec![4; LEN as usize];
    Ours(&fs).write("b", "again", 0, &content).expect("there is room again");
    close(&image, fs);
}

/// A subvolume that no commit has is held to the limits of the groups that it came into, whoever put it there.
#[test]
fn a_new_subvolume_is_held_to_limits_above() {
    testkit::require!(ready(), "no kernel's btrfs, or no newer btrfs-progs");
    for simple in [true, false] {
        let image = Image::new(512 << 20, &[]);
        let fs = common::open_image(&image.path, options());
        if simple { fs.enable_simple_quotas() } else { fs.enable_quotas() }.expect("on");
        let side = Ours(&fs);
        side.create("a").expect("a subvolume");
        for group in ["1/1", "2/1"] {
            side.group(group).expect("a group");
        }
        side.relate(&side.group_of("a"), "1/1", true).expect("a relation");
        side.relate("1/1", "2/1", true).expect("a relation");
        side.limit("2/1", Some(LEN), false).expect("limited");
        let (dir, groups) = match simple {
            true => (fs.lookup(&CX, fs.root(), b"a").expect("there").attr.ino, vec![]),
            false => (fs.root(), vec!["1/1".parse().expect("a group")]),
        };
        let new = NewSubvolume { parent: dir, name: b"x", groups: &groups };
        fs.create_subvolume_in(&Caller::root(), &new).expect("a subvolume");
        let x = fs.lookup(&CX, dir, b"x").expect("there").attr.ino;
        let made = fs.mknod(&CX, x, b"file", FileKind::File, 0o644, 0).expect("made").attr.ino;
        let write = |at, len| {
            let content = vec![1; len as usize];
            fs.write(&CX, made, at, &content, Default::default()).map_err(|e| e.errno())
        };
        let commits = common::stat(&fs, "commit.count");
        assert_eq!(write(0, LEN / 4), Ok(LEN as usize / 4));
        assert_eq!(common::stat(&fs, "commit.count"), commits, "this shows nothing");
        assert_eq!(write(LEN, 2 * LEN), Err(libc::EDQUOT), "simple: {simple}");
        // Now a commit has it.
        assert_eq!(write(LEN, 2 * LEN), Err(libc::EDQUOT), "simple: {simple}");
        fs.destroy().expect("close");
    }
}

/// What a log has, and no commit, counts when it is replayed, by us and by the kernel.
#[test]
fn a_replayed_log_is_counted() {
    testkit::require!(ready(), "no kernel's btrfs, or no newer btrfs-progs");
    let (image, fs) = begun(false);
    Ours(&fs).create("a").expect("a subvolume");
    fs.sync().expect("commit");
    let dir = fs.lookup(&CX, fs.root(), b"a").expect("there").attr.ino;
    let made = fs.mknod(&CX, dir, b"file", FileKind::File, 0o644, 0).expect("made").attr.ino;
    fs.write(&CX, made, 0, &vec![5; LEN as usize], Default::default()).expect("written");
    let commits = common::stat(&fs, "commit.count");
    fs.fsync(made, false).expect("logged");
    assert_eq!(common::stat(&fs, "commit.count"), commits, "this shows nothing");
    let (ours, theirs) = (common::crashed(&image, "ours"), common::crashed(&image, "theirs"));
    drop(fs);
    let fs = common::open_image(&ours, options());
    assert_eq!(counted(&fs, "0/256"), Some(LEN + NODE));
    fs.destroy().expect("close");
    drop(fs);
    judge(&ours);
    kernel_but(&theirs, "noatime", &[], |_| ());
    judge(&theirs);
}

/// Where files, snapshots and deleted subvolumes are when quotas begin, by whomever, what is old does not count;
/// they may end and begin anew.
#[test]
fn what_is_older_does_not_count() {
    testkit::require!(ready(), "no kernel's btrfs, or no newer btrfs-progs");
    for kernel in [false, true] {
        let image = Image::new(1 << 30, &[]);
        let fs = common::open_image(&image.path, options());
        for name in ["a", "b"] {
            Ours(&fs).create(name).expect("a subvolume");
            let content = vec![1; LEN as usize];
            Ours(&fs).write(name, "old", 0, &content).expect("written");
        }
        Ours(&fs).snapshot("a", "c", false).expect("a snapshot");
        Ours(&fs).snapshot("a", "d", false).expect("a snapshot");
        // Its nodes are there still when quotas begin.
        Ours(&fs).delete("d").expect("deleted");
        fs.destroy().expect("close");
        drop(fs);
        for _ in 0..2 {
            begin(&image, kernel);
            judge(&image.path);
            let fs = common::open_image(&image.path, options());
            let side = Ours(&fs);
            assert_eq!(counted(&fs, &side.group_of("b")), Some(0));
            side.write("b", "new", 0, &vec![2; LEN as usize]).expect("written");
            side.clone_file("b", "new", "c", "new").expect("shared");
            side.remove("b", "old").expect("removed");
            side.balance(side::Balance::All).expect("moved");
            assert!(fs.sync_deleted(&[], None).expect("dropped"));
            close(&image, fs);
            kernel_but(&image.path, "noatime", &[], |mount| Theirs(mount).remove("c", "new"))
                .expect("removed");
            judge(&image.path);
            let fs = common::open_image(&image.path, options());
            fs.disable_quotas().expect("they end");
            Ours(&fs).write("b", "old", 0, &vec![3; LEN as usize]).expect("written");
            close(&image, fs);
        }
    }
}

/// The kernel gives up where it frees what a group is to be credited with that is not there: of what we leave it does not.
#[test]
fn the_kernel_finds_all_groups() {
    testkit::require!(ready(), "no kernel's btrfs, or no newer btrfs-progs");
    let image = Image::new(1 << 30, &[]);
    let fs = common::open_image(&image.path, options());
    let side = Ours(&fs);
    side.create("a").expect("a subvolume");
    for n in 0..400 {
        side.write("a", &format!("a-name-that-is-long-{n}"), 0, b"small").expect("written");
    }
    side.snapshot("a", "b", false).expect("a snapshot");
    fs.enable_simple_quotas().expect("on");
    // The copy has nodes of it, which are older than quotas.
    side.delete("a").expect("deleted");
    assert!(fs.sync_deleted(&[], None).expect("dropped"));
    close(&image, fs);
    kernel_but(&image.path, "noatime", &[], |mount| {
        let side = Theirs(mount);
        side.balance(side::Balance::Metadata).expect("moved");
        for n in 0..400 {
            side.remove("b", &format!("a-name-that-is-long-{n}")).expect("removed");
        }
        side.sync();
    });
    judge(&image.path);
}

/// What our check says of `image`, by the findings' codes; and whether the newer `btrfs check` is content.
fn judged(image: &Path) -> (Vec<&'static str>, bool) {
    let options = btrfs_volume::OpenOptions { read_only: true, ..Default::default() };
    let device = Arc::new(common::open_device(image, true));
    let volume = btrfs_volume::Volume::open(device, options).expect("open the volume");
    let report = btrfs_check::check(Arc::new(volume), &Default::default()).expect("check");
    let mut codes: Vec<_> = report.findings.iter().map(|finding| finding.kind.code()).collect();
    codes.dedup();
    (codes, newer_btrfs_check(image).is_ok())
}

/// The checks that judge above see what would be wrong; ours more of it.
#[test]
fn what_is_wrong_is_found() {
    testkit::require!(ready(), "no kernel's btrfs, or no newer btrfs-progs");
    let (image, fs) = begun(false);
    let side = Ours(&fs);
    side.create("a").expect("a subvolume");
    // Not of the generation in which they began: the kernel may leave some of that without an owner.
    side.sync();
    side.write("a", "file", 0, &vec![7; LEN as usize]).expect("written");
    close(&image, fs);
    let info = Key::new(0, kind::QGROUP_INFO, 256);
    type Case = (fn(&Patch, Key), &'static [&'static str], bool);
    let cases: [Case; 5] = [
        (|p, info| p.edit(TreeId::QUOTA, info, |data| data[9] ^= 0x10), &["qgroup-owned"], false),
        (|p, info| p.remove(TreeId::QUOTA, info), &["qgroup-limit-alone", "qgroup-missing"], true),
        // Their extent item, without the 9 bytes of the owner.
        (|p, _| without_owner(p), &["extent-owner-missing", "qgroup-owned"], false),
        (|p, _| of_another(p), &["qgroup-owned"], false),
        (
            |p, _| p.edit_super(|sb| sb.fields.incompat_flags &= !incompat::SIMPLE_QUOTA),
            &["simple-quota-flag"],
            false,
        ),
    ];
    for (number, (damage, codes, content)) in cases.into_iter().enumerate() {
        let damaged = common::crashed(&image, &format!("damaged{number}"));
        damage(&Patch::new(&damaged), info);
        assert_eq!(judged(&damaged), (codes.to_vec(), content), "case {number}");
    }
}

fn content_item(patch: &Patch) -> Key {
    let mut items = patch.items(TreeId::EXTENT).into_iter();
    let content = items.find(|(key, data)| key.kind == kind::EXTENT_ITEM && data.len() == 62);
    content.expect("an extent with an owner and a reference").0
}

fn without_owner(patch: &Patch) {
    patch.edit(TreeId::EXTENT, content_item(patch), |data| drop(data.drain(24..33)));
}

fn of_another(patch: &Patch) {
    patch.edit(TreeId::EXTENT, content_item(patch), |data| data[25..27].copy_from_slice(&[5, 0]));
}
