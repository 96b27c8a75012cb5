//! Volumes whose quota tree, subvolumes or balance contradict themselves, with right checksums: items that are
//! missing, cut short or absurd, groups that are members of one another, subvolumes that nothing leads to,
//! trees that were dropped beyond their end, balances that nobody can mean.
//!
//! Each volume opens (read-only, with the reason, where writing is not safe) or is refused by a typed error;
//! nothing panics or hangs. What is used is used hard: files in all subvolumes, snapshots, deletions, groups, a
//! rescan, a balance. Files that nobody touched read as before, our check finds no more errors than
//! before, and numbers of groups that are said to be right are.

use crate::{common, watch};
use btrfs_check::{FindingKind, Severity};
use btrfs_disk::ids::{BALANCE_OBJECTID, ORPHAN_OBJECTID};
use btrfs_disk::items::{BalanceItem, QgroupInfo, QgroupLimit, QgroupStatus, RootItem};
use btrfs_disk::items::{balance_filter, balance_flags, qgroup_status};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_fs::{BalanceState, BtrfsFs, Caller, Delete, LimitChange, Options, QgroupId};
use common::kernel::{btrfs, kernel};
use common::{CX, Image};
use fuzzing::patch::Patch;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::{FileKind, FileSystem, Ino};
use watch::{Failures, watched};

/// Subvolumes, in the order in which they are made: the first has number 256.
const SUBVOLUMES: [&str; 4] = ["a", "b", "snap", "dead"];
const A: u64 = 256;
const SNAP: u64 = 258;
const DEAD: u64 = 259;
const STATUS: Key = Key::new(0, kind::QGROUP_STATUS, 0);
const BALANCE: Key = Key::new(BALANCE_OBJECTID, kind::TEMPORARY_ITEM, 0);

fn group(level: u64, number: u64) -> u64 {
    level << 48 | number
}

fn info(group: u64) -> Key {
    Key::new(0, kind::QGROUP_INFO, group)
}

fn limit(group: u64) -> Key {
    Key::new(0, kind::QGROUP_LIMIT, group)
}

fn relation(from: u64, to: u64) -> Key {
    Key::new(from, kind::QGROUP_RELATION, to)
}

/// What must become of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Must {
    /// Writable.
    Write,
    /// To be read, and not written, with the reason.
    Refuse,
    /// Either.
    Answer,
}

struct Case {
    name: &'static str,
    must: Must,
    damage: fn(&Patch),
}

macro_rules! case {
    ($name:literal, $must:ident, $damage:expr) => {
        Case { name: $name, must: Must::$must, damage: $damage }
    };
}

fn both_ways(p: &Patch, one: u64, other: u64) {
    p.insert(TreeId::QUOTA, relation(one, other), &[]);
    if one != other {
        p.insert(TreeId::QUOTA, relation(other, one), &[]);
    }
}

fn set_numbers(p: &Patch, group: u64, referenced: u64, exclusive: u64) {
    p.edit_as::<QgroupInfo>(TreeId::QUOTA, info(group), |info| {
        (info.referenced, info.exclusive) = (referenced, exclusive);
    });
}

fn quota_cases() -> Vec<Case> {
    vec![
        case!("no status", Write, |p| p.remove(TreeId::QUOTA, STATUS)),
        case!("no numbers of a group", Write, |p| p.remove(TreeId::QUOTA, info(A))),
        case!("no limit of a group", Write, |p| p.remove(TreeId::QUOTA, limit(A))),
        case!("a relation one way only", Write, |p| {
            p.remove(TreeId::QUOTA, relation(group(1, 1), A));
        }),
        case!("the other way only", Write, |p| {
            p.remove(TreeId::QUOTA, relation(A, group(1, 1)));
        }),
        case!("a member of itself", Write, |p| both_ways(p, group(1, 1), group(1, 1))),
        case!("members of each other", Write, |p| both_ways(p, group(1, 1), group(1, 2))),
        case!("a loop over levels", Write, |p| {
            both_ways(p, group(1, 1), group(3, 1));
            both_ways(p, group(3, 1), group(2, 1));
        }),
        case!("a member of what is not there", Write, |p| both_ways(p, A, group(5, 9))),
        case!("what is not there is a member", Write, |p| both_ways(p, 999, group(1, 1))),
        case!("huge numbers", Write, |p| set_numbers(p, A, u64::MAX, u64::MAX)),
        case!("no numbers", Write, |p| set_numbers(p, A, 0, 0)),
        case!("more exclusive than referenced", Write, |p| set_numbers(p, A, 4096, 1 << 40)),
        case!("huge numbers above", Write, |p| set_numbers(p, group(1, 1), u64::MAX, 1 << 63)),
        case!("half of all numbers", Write, |p| set_numbers(p, A, 1 << 63, 1 << 63)),
        case!("half of all numbers above, and below", Write, |p| {
            set_numbers(p, group(1, 1), 1 << 63, 1 << 63);
            set_numbers(p, A, 1 << 63, 1 << 63);
            set_numbers(p, A + 1, 1 << 63, 1 << 63);
        }),
        case!("a group of no subvolume", Write, |p| {
            p.insert(TreeId::QUOTA, info(9999), &QgroupInfo::default().to_vec());
        }),
        case!("a strange limit", Write, |p| {
            p.edit_as::<QgroupLimit>(TreeId::QUOTA, limit(A), |limit| {
                (limit.flags, limit.max_referenced) = (u64::MAX, u64::MAX);
            });
        }),
        case!("numbers cut short", Refuse, |p| p.edit(TreeId::QUOTA, info(A), |d| d.truncate(3))),
        case!("a limit cut short", Refuse, |p| p.edit(TreeId::QUOTA, limit(A), |d| d.truncate(7))),
        case!("a status cut short", Refuse, |p| p.edit(TreeId::QUOTA, STATUS, |d| d.truncate(9))),
        case!("a status of all flags", Refuse, |p| {
            p.edit_as::<QgroupStatus>(TreeId::QUOTA, STATUS, |status| status.flags = u64::MAX);
        }),
        case!("simple quotas that the superblock does not know", Refuse, |p| {
            p.edit_as::<QgroupStatus>(TreeId::QUOTA, STATUS, |status| status.flags = 9);
        }),
        case!("a status of another version", Refuse, |p| {
            p.edit_as::<QgroupStatus>(TreeId::QUOTA, STATUS, |status| status.version = 99);
        }),
        case!("a status of the future", Write, |p| {
            p.edit_as::<QgroupStatus>(TreeId::QUOTA, STATUS, |s| s.generation = u64::MAX);
        }),
        case!("a rescan behind the end", Write, |p| {
            p.edit_as::<QgroupStatus>(TreeId::QUOTA, STATUS, |status| {
                (status.flags, status.rescan) = (3, u64::MAX - 1);
            });
        }),
        case!("an item nobody knows", Answer, |p| {
            p.insert(TreeId::QUOTA, Key::new(0, 203, 1), &[1, 2, 3]);
        }),
    ]
}

/// Of volumes with simple quotas.
fn simple_cases() -> Vec<Case> {
    vec![
        case!("half of all numbers", Write, |p| set_numbers(p, A, 1 << 63, 1 << 63)),
        case!("half of all numbers, and once more above", Write, |p| {
            for group in [A, A + 1, group(1, 1)] {
                set_numbers(p, group, 1 << 63, 1 << 63);
            }
        }),
        case!("huge numbers", Write, |p| {
            for group in [A, A + 1, SNAP, group(1, 1), group(2, 1)] {
                set_numbers(p, group, u64::MAX, u64::MAX);
            }
        }),
        case!("no numbers above", Write, |p| set_numbers(p, group(1, 1), 0, 0)),
        case!("more exclusive than referenced", Write, |p| set_numbers(p, A, 4096, 1 << 40)),
        case!("no numbers of a group", Write, |p| p.remove(TreeId::QUOTA, info(A))),
        case!("members of each other", Write, |p| both_ways(p, group(1, 1), group(1, 2))),
    ]
}

fn drop_at(p: &Patch, level: u8, key: Key) {
    let (at, _) = p.find(TreeId::ROOT, Key::new(DEAD, kind::ROOT_ITEM, 0)).expect("it is there");
    p.edit(TreeId::ROOT, at, |data| {
        let mut item = RootItem::parse(data).expect("a root item");
        assert_eq!(item.refs, 0, "it is deleted");
        (item.drop_level, item.drop_progress) = (level, key);
        item.write(data);
    });
}

/// `child` lies in `above` as well, by what it says itself, and is a snapshot of it.
fn lies_in(p: &Patch, child: u64, above: u64) {
    let back = Key::new(child, kind::ROOT_BACKREF, 5);
    let (_, data) = p.find(TreeId::ROOT, back).expect("there");
    p.remove(TreeId::ROOT, back);
    p.insert(TreeId::ROOT, Key::new(child, kind::ROOT_BACKREF, above), &data);
    let item = |id: u64| p.find(TreeId::ROOT, Key::new(id, kind::ROOT_ITEM, 0)).expect("there");
    let uuid = RootItem::parse(&item(above).1).expect("a root item").uuid;
    p.edit(TreeId::ROOT, item(child).0, |data| {
        let mut item = RootItem::parse(data).expect("a root item");
        item.parent_uuid = uuid;
        item.write(data);
    });
}

fn subvolume_cases() -> Vec<Case> {
    vec![
        case!("a subvolume in itself", Answer, |p| lies_in(p, SNAP, SNAP)),
        case!("two subvolumes in each other", Answer, |p| {
            lies_in(p, A, A + 1);
            lies_in(p, A + 1, A);
        }),
        case!("three subvolumes in a circle", Answer, |p| {
            lies_in(p, A, A + 1);
            lies_in(p, A + 1, SNAP);
            lies_in(p, SNAP, A);
        }),
        case!("no reference of a subvolume", Answer, |p| {
            p.remove(TreeId::ROOT, Key::new(5, kind::ROOT_REF, SNAP));
        }),
        case!("no reference back", Answer, |p| {
            p.remove(TreeId::ROOT, Key::new(SNAP, kind::ROOT_BACKREF, 5));
        }),
        case!("a reference to no subvolume", Answer, |p| {
            let (_, data) = p.find(TreeId::ROOT, Key::new(5, kind::ROOT_REF, SNAP)).expect("there");
            p.insert(TreeId::ROOT, Key::new(5, kind::ROOT_REF, 7777), &data);
        }),
        case!("a reference to another directory", Answer, |p| {
            p.edit(TreeId::ROOT, Key::new(5, kind::ROOT_REF, SNAP), |data| data[0] = 77);
        }),
        case!("a reference with another name", Answer, |p| {
            let last = |data: &mut Vec<u8>| *data.last_mut().expect("a name") = b'!';
            p.edit(TreeId::ROOT, Key::new(5, kind::ROOT_REF, SNAP), last);
        }),
        case!("dropped beyond the end", Write, |p| drop_at(p, 1, Key::MAX)),
        case!("dropped at a level that there is not", Write, |p| drop_at(
            p,
            7,
            Key::new(300, 1, 0)
        )),
        case!("dropped at an impossible level", Answer, |p| drop_at(p, 200, Key::new(300, 1, 0))),
        case!("dropped in a leaf", Write, |p| drop_at(p, 0, Key::new(300, 1, 0))),
        case!("dropped by a key of no node", Write, |p| drop_at(p, 1, Key::new(257, 99, 12345))),
        case!("dropped in front", Write, |p| drop_at(p, 1, Key::new(1, 0, 0))),
        case!("a dead tree without an orphan item", Answer, |p| {
            p.remove(TreeId::ROOT, Key::new(ORPHAN_OBJECTID, kind::ORPHAN_ITEM, DEAD));
        }),
        case!("an orphan item of a live tree", Answer, |p| {
            p.insert(TreeId::ROOT, Key::new(ORPHAN_OBJECTID, kind::ORPHAN_ITEM, SNAP), &[]);
        }),
        case!("an orphan item of no tree", Answer, |p| {
            p.insert(TreeId::ROOT, Key::new(ORPHAN_OBJECTID, kind::ORPHAN_ITEM, 7777), &[]);
        }),
        case!("a live tree without references", Answer, |p| {
            let (at, _) = p.find(TreeId::ROOT, Key::new(SNAP, kind::ROOT_ITEM, 0)).expect("there");
            p.edit(TreeId::ROOT, at, |data| {
                let mut item = RootItem::parse(data).expect("a root item");
                item.refs = 0;
                item.write(data);
            });
        }),
    ]
}

fn balance(p: &Patch, change: fn(&mut BalanceItem)) {
    let mut item = BalanceItem { flags: 7, ..BalanceItem::default() };
    change(&mut item);
    p.insert(TreeId::ROOT, BALANCE, &item.to_vec());
}

fn balance_cases() -> Vec<Case> {
    use balance_filter as f;
    vec![
        case!("a balance of unknown flags", Refuse, |p| balance(p, |item| item.flags |= 1 << 40)),
        case!("a balance of unknown filters", Refuse, |p| {
            balance(p, |item| item.data.flags = 1 << 50);
        }),
        case!("a balance of nothing", Write, |p| balance(p, |item| item.flags = 0)),
        case!("ranges that end before they begin", Write, |p| {
            balance(p, |item| {
                item.data.flags = f::VRANGE | f::DRANGE | f::DEVID;
                (item.data.vstart, item.data.vend) = (u64::MAX, 1);
                (item.data.pstart, item.data.pend, item.data.devid) = (u64::MAX, 0, 1);
            });
        }),
        case!("ranges of everything", Write, |p| {
            balance(p, |item| {
                item.metadata.flags = f::VRANGE | f::DRANGE | f::DEVID | f::LIMIT | f::USAGE;
                (item.metadata.vend, item.metadata.pend) = (u64::MAX, u64::MAX);
                (item.metadata.limit, item.metadata.usage) = (u64::MAX, u64::MAX);
                item.metadata.devid = 1;
            });
        }),
        case!("a device that is not there", Write, |p| {
            balance(p, |item| (item.data.flags, item.data.devid) = (f::DEVID, 77));
        }),
        case!("profiles nobody has", Answer, |p| {
            balance(p, |item| (item.data.flags, item.data.target) = (f::CONVERT, 1 << 30));
        }),
        case!("a conversion to what needs more devices", Answer, |p| {
            balance(p, |item| (item.metadata.flags, item.metadata.target) = (f::CONVERT, 1 << 8));
        }),
        case!("stripes in the wrong order", Write, |p| {
            balance(p, |item| {
                item.data.flags = f::STRIPES_RANGE | f::LIMIT_RANGE | f::USAGE_RANGE;
                (item.data.stripes_min, item.data.stripes_max) = (u32::MAX, 0);
                (item.data.limit, item.data.usage) = (u64::MAX >> 32, u64::MAX);
            });
        }),
        case!("a balance that went on for ever", Write, |p| {
            balance(p, |item| item.flags |= balance_flags::RESUME | balance_flags::FORCE);
        }),
        case!("a balance cut short", Answer, |p| p.insert(TreeId::ROOT, BALANCE, &[7; 20])),
    ]
}

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

/// Subvolumes with files, two of them in a group, and one that is deleted and not dropped.
fn base() -> Image {
    let image = Image::new(512 << 20, &["-n", "4096"]);
    kernel(&image.path, "noatime", |mount| {
        btrfs(mount, &["quota", "enable", "/"]);
        for name in ["a", "b"] {
            btrfs(mount, &["subvolume", "create", &format!("/{name}")]);
            for n in 0..120 {
                let name = mount.join(&format!("{name}/f{n}"));
                std::fs::write(name, vec![n; 700 + 300 * usize::from(n)]).expect("write");
            }
        }
        btrfs(mount, &["subvolume", "snapshot", "/a", "/snap"]);
        btrfs(mount, &["subvolume", "snapshot", "/b", "/dead"]);
        for n in 0..100 {
            let name = mount.join(&format!("dead/own-{n}"));
            std::fs::write(name, vec![n; 3000]).expect("write");
        }
        for above in ["1/1", "1/2", "2/1"] {
            btrfs(mount, &["qgroup", "create", above, "/"]);
        }
        for (one, above) in [("0/256", "1/1"), ("0/257", "1/1"), ("1/1", "2/1")] {
            btrfs(mount, &["qgroup", "assign", "--no-rescan", one, above, "/"]);
        }
        btrfs(mount, &["filesystem", "sync", "/"]);
        btrfs(mount, &["quota", "rescan", "-w", "/"]);
    });
    let fs = image.open();
    fs.delete_subvolume(&Caller::root(), Delete::Name(fs.root(), b"dead")).expect("delete");
    fs.destroy().expect("close");
    drop(fs);
    common::check_ourselves(&image.path);
    image
}

/// Simple quotas are never counted anew, so no commit would be the last of a rescan: none begins.
#[test]
fn simple_quotas_are_not_counted_anew() {
    testkit::require!(kernel_btrfs);
    let image = simple_base();
    let patch = Patch::new(&image.path);
    patch.edit_as::<QgroupStatus>(TreeId::QUOTA, STATUS, |status| {
        assert_ne!(status.flags & qgroup_status::SIMPLE, 0);
        status.flags |= qgroup_status::RESCAN;
    });
    drop(patch);
    let fs = image.open_with(Options { background: true, ..Options::default() });
    fs.mknod(&CX, fs.root(), b"new", FileKind::File, 0o644, 0).expect("create");
    fs.sync().expect("sync");
    let commits = || common::stat(&fs, "commit.count");
    let before = commits();
    std::thread::sleep(Duration::from_secs(1));
    assert!(commits() <= before + 1, "a volume at rest: {before}, then {} commits", commits());
    assert_eq!(fs.read_only_reason(), None);
    fs.destroy().expect("close");
    drop(fs);
    common::check_ourselves(&image.path);
}

/// The same with simple quotas; all of them count something, and two are in a group.
fn simple_base() -> Image {
    let image = base();
    let fs = image.open_checked(options());
    fs.disable_quotas().expect("they end");
    fs.enable_simple_quotas().expect("others begin");
    fs.sync().expect("commit");
    for sub in ["a", "b", "snap"] {
        let dir = lookup(&fs, fs.root(), sub).expect("there");
        let made = fs.mknod(&CX, dir, b"counted", FileKind::File, 0o644, 0).expect("made");
        fs.write(&CX, made.attr.ino, 0, &[7; 9000], Default::default()).expect("written");
    }
    let of = |(level, number)| QgroupId(group(level, number));
    for above in [(1, 1), (1, 2), (2, 1)] {
        fs.create_qgroup(of(above)).expect("a group");
    }
    for (one, above) in [((0, A), (1, 1)), ((0, A + 1), (1, 1)), ((1, 1), (2, 1))] {
        fs.assign_qgroup(of(one), of(above)).expect("in it");
    }
    fs.destroy().expect("close");
    drop(fs);
    common::check_ourselves(&image.path);
    image
}

type Content = BTreeMap<String, Option<Vec<u8>>>;

fn lookup(fs: &BtrfsFs, dir: Ino, name: &str) -> Option<Ino> {
    fs.lookup(&CX, dir, name.as_bytes()).ok().map(|entry| entry.attr.ino)
}

/// Files that no operation here has to do with, as far as they can be read.
fn content(fs: &BtrfsFs) -> Content {
    let mut all = Content::new();
    for sub in SUBVOLUMES {
        let Some(dir) = lookup(fs, fs.root(), sub) else { continue };
        for n in 10..120 {
            let name = format!("f{n}");
            let read = lookup(fs, dir, &name).and_then(|ino| {
                let mut bytes = vec![0; fs.getattr(ino).ok()?.size as usize];
                let len = fs.read(ino, 0, &mut bytes).ok()?;
                (len == bytes.len()).then_some(bytes)
            });
            all.insert(format!("{sub}/{name}"), read);
        }
    }
    all
}

/// What programs do with such a volume; each answer is fine.
fn use_it(fs: &BtrfsFs) {
    let (root, caller) = (fs.root(), Caller::root());
    let looks = || common::stat(fs, "cache.hits") + common::stat(fs, "cache.misses");
    let before = looks();
    let _any = fs.subvolumes();
    assert!(
        looks() - before < 2000,
        "a list of some subvolumes that takes {} nodes",
        looks() - before
    );
    for sub in ["a", "b", "snap"] {
        let Some(dir) = lookup(fs, root, sub) else { continue };
        for n in 0..6 {
            let name = format!("new-{n}");
            if let Ok(made) = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0) {
                let _any = fs.write(&CX, made.attr.ino, 0, &[n; 9000], Default::default());
            }
            let _any = fs.unlink(&CX, dir, format!("f{n}").as_bytes());
        }
        let _any = fs.snapshot(&caller, dir, root, format!("of-{sub}").as_bytes(), false);
    }
    let _any = (fs.sync(), fs.subvolumes(), fs.quota_status());
    let _any = fs.delete_subvolume(&caller, Delete::Name(root, b"of-a"));
    let _any = fs.sync_deleted(&[], Some(Duration::from_secs(5)));
    let groups = fs.qgroups_from(QgroupId(0), 1000).unwrap_or_default();
    let high = QgroupId(group(2, 1));
    for group in groups.iter().map(|group| group.id).filter(|id| *id != high) {
        let change = LimitChange { referenced: Some(Some(1 << 40)), ..LimitChange::default() };
        let _any = fs.limit_qgroup(group, &change);
        let _any = (fs.assign_qgroup(group, high), fs.remove_qgroup(group, high));
    }
    let _any = fs.destroy_qgroup(QgroupId(group(1, 2)));
    let _any = fs.resume_balance();
    wait_for_balance(fs);
    let _any = fs.start_balance(BalanceItem { flags: 7, ..BalanceItem::default() });
    wait_for_balance(fs);
    let _any = fs.cancel_balance();
    let _any = (fs.enable_quotas(), fs.rescan_quotas());
    let _any = (fs.wait_for_rescan(), fs.sync());
}

fn wait_for_balance(fs: &BtrfsFs) {
    let start = Instant::now();
    while fs.balance_status().is_ok_and(|status| status.state == BalanceState::Running) {
        assert!(start.elapsed() < Duration::from_secs(60), "a balance that does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Errors that our check finds; `None` if it cannot open the volume. Numbers of groups that are trusted
/// count as errors if `numbers`.
fn errors(path: &Path, numbers: bool) -> Option<Vec<String>> {
    let open = btrfs_volume::OpenOptions { read_only: true, ..Default::default() };
    let device = Arc::new(common::open_device(path, true));
    let volume = btrfs_volume::Volume::open(device, open).ok()?;
    let options = btrfs_check::CheckOptions { verify_data: true, ..Default::default() };
    let report = btrfs_check::check(Arc::new(volume), &options).ok()?;
    let miscounts = |kind: &FindingKind| matches!(kind, FindingKind::QgroupCount { .. });
    let bad =
        |f: &&btrfs_check::Finding| f.severity >= Severity::Error || numbers && miscounts(&f.kind);
    Some(report.findings.iter().filter(bad).map(ToString::to_string).collect())
}

/// What became of a volume: whether it could be written.
fn drive(path: &Path) -> Result<bool, String> {
    let before_errors = errors(path, false);
    let fs = match BtrfsFs::open_device(Arc::new(common::open_device(path, false)), options()) {
        Ok(fs) => fs,
        Err(error) => return Err(format!("refused: {error}")),
    };
    let reason = fs.read_only_reason();
    let before = content(&fs);
    let there = before.values().flatten().count();
    assert!(there >= 220, "{there} files can be read");
    use_it(&fs);
    let later = fs.read_only_reason();
    let closed = fs.destroy();
    drop(fs);
    let fs = BtrfsFs::open_device(Arc::new(common::open_device(path, false)), options());
    let fs = fs.unwrap_or_else(|error| panic!("it opens only once: {error}"));
    let after = content(&fs);
    drop(fs);
    for (name, content) in before.iter().filter(|(_, content)| content.is_some()) {
        assert!(after.get(name) == Some(content), "{name} was harmed");
    }
    let after_errors = errors(path, true);
    let count = |errors: &Option<Vec<String>>| errors.as_ref().map_or(usize::MAX, Vec::len);
    assert!(count(&after_errors) <= count(&before_errors), "{before_errors:?} {after_errors:#?}");
    match (reason, later) {
        (Some(why), _) => Err(format!("read-only: {why}")),
        (None, Some(why)) => Err(format!("turned read-only: {why}")),
        (None, None) => {
            closed.map_err(|error| format!("not closed: {error}"))?;
            Ok(true)
        }
    }
}

fn run(base: &Image, cases: Vec<Case>) {
    let mut failures = Failures::default();
    for case in cases {
        let path: PathBuf = common::crashed(base, "case.img");
        (case.damage)(&Patch::new(&path));
        let fate = watched(case.name, move || drive(&path));
        let Some(fate) = failures.note(fate) else { continue };
        println!("{}: {fate:?}", case.name);
        let as_it_must = match case.must {
            Must::Write => fate.is_ok(),
            Must::Refuse => fate.as_ref().is_err_and(|why| why.starts_with("read-only")),
            Must::Answer => true,
        };
        if !as_it_must {
            failures.add(format!("{}: {:?}: {fate:?}", case.name, case.must));
        }
    }
    failures.assert_none();
}

#[test]
fn quota_trees_that_contradict_themselves() {
    testkit::require!(kernel_btrfs);
    run(&base(), quota_cases());
}

/// Relations that outlived a group, or of which one half is there, can be taken away, and the numbers stay
/// right by it, though the member shares what it has.
#[test]
fn relations_that_are_dead_can_be_taken_away() {
    testkit::require!(kernel_btrfs);
    let (upper, absent) = (group(1, 1), group(5, 9));
    let image = base();
    let fs = image.open_checked(options());
    assert!(fs.sync_deleted(&[], None).expect("dropped"));
    let gone = fs.remove_qgroup(QgroupId(A), QgroupId(absent));
    assert!(matches!(gone, Err(vfs::FsError::Posix(vfs::Errno::ENOENT))), "{gone:?}");
    fs.destroy().expect("close");
    drop(fs);
    let patch = Patch::new(&image.path);
    both_ways(&patch, A, absent);
    both_ways(&patch, A + 1, absent);
    both_ways(&patch, 999, upper);
    both_ways(&patch, upper, group(1, 2));
    patch.insert(TreeId::QUOTA, relation(absent, group(1, 2)), &[]);
    patch.insert(TreeId::QUOTA, relation(SNAP, absent), &[]);
    let fs = image.open();
    let dead = [(A, absent), (999, upper), (upper, group(1, 2)), (group(1, 2), absent)];
    for (child, parent) in dead.into_iter().chain([(A + 1, absent), (SNAP, absent)]) {
        let right = fs.remove_qgroup(QgroupId(child), QgroupId(parent)).expect("taken away");
        assert!(right, "{child} in {parent}: the numbers are not affected");
    }
    fs.destroy().expect("close");
    drop(fs);
    common::assert_sound(&image.path);
}

#[test]
fn simple_quotas_whose_numbers_cannot_be() {
    testkit::require!(kernel_btrfs);
    run(&simple_base(), simple_cases());
}

#[test]
fn subvolumes_that_nothing_leads_to_and_trees_half_dropped() {
    testkit::require!(kernel_btrfs);
    run(&base(), subvolume_cases());
}

#[test]
fn balances_that_nobody_can_mean() {
    testkit::require!(kernel_btrfs);
    run(&base(), balance_cases());
}
