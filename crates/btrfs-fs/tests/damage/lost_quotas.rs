//! What a commit needs to reckon quotas with is lost: its numbers are, and nothing else. Each subvolume has its group,
//! with the limits and groups above that it was made with; and a rescan gives one to who has none.

use crate::{common, lost};
use btrfs_check::{CheckOptions, FindingKind};
use btrfs_disk::Key;
use btrfs_disk::TreeId;
use btrfs_disk::key::kind::{EXTENT_DATA, QGROUP_INFO, QGROUP_LIMIT};
use btrfs_fs::{BtrfsFs, Caller, LimitChange, NewSubvolume, Options, Qgroup, QgroupId};
use btrfs_volume::{OpenOptions, Volume};
use common::{CX, Image, find};
use fuzzing::hostile::base::Base;
use fuzzing::patch::Patch;
use lost::{flip, is_sound, leaves_of, open, volume};
use std::sync::Arc;
use vfs::{FileKind, FileSystem, Ino};

const MOST: u64 = 100 << 20;

fn file(fs: &BtrfsFs, dir: Ino, name: &str, content: &[u8]) -> Ino {
    let made = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0);
    let ino = made.expect("create").attr.ino;
    fs.write(&CX, ino, 0, content, Default::default()).expect("write");
    ino
}

/// The group of a subvolume in the top directory.
fn group(fs: &BtrfsFs, name: &str) -> Option<Qgroup> {
    let root = find(fs, fs.root(), name).expect("there");
    let id = QgroupId(fs.subvolume_of(root).expect("one").0.0);
    let groups = fs.qgroups_from(id, 1).expect("groups");
    groups.into_iter().find(|group| group.id == id)
}

/// Subvolumes that our check finds without a group.
fn uncounted(base: &Base) -> usize {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = Volume::open(base.device.clone(), options).expect("open the volume");
    let report = btrfs_check::check(Arc::new(volume), &CheckOptions::default()).expect("check");
    let such = |kind: &FindingKind| matches!(kind, FindingKind::QgroupUncounted { .. });
    report.findings.iter().filter(|finding| such(&finding.kind)).count()
}

/// A volume whose subvolume `sub` has a limit and was in a snapshot before, with a file `twice` that shares its extent
/// with another one; and the leaf of that.
fn shared_twice() -> (Base, u64) {
    let mut shared = Ino(0);
    let base = volume(|fs| {
        let (root, top) = (Caller::root(), fs.root());
        fs.enable_quotas().expect("quotas");
        fs.wait_for_rescan().expect("counted");
        let (id, made) = fs.create_subvolume(&root, top, b"sub").expect("create");
        let sub = made.attr.ino;
        let fill =
            |of: &str| (0..200).for_each(|n| _ = file(fs, sub, &format!("{of}{n}"), &[7; 60]));
        fill("first");
        shared = file(fs, sub, "shared", &[1; 8192]);
        fill("second");
        let twice = file(fs, sub, "twice", b"");
        fs.sync().expect("sync");
        fs.clone_range(&CX, shared, 0, twice, 0, 8192).expect("clone");
        fs.snapshot(&root, sub, top, b"before", true).expect("snapshot");
        let most = LimitChange { referenced: Some(Some(MOST)), ..LimitChange::default() };
        fs.limit_qgroup(QgroupId(id.0), &most).expect("limit");
        fs.create_qgroup(QgroupId::new(1, 7).expect("fits")).expect("a group");
    });
    let object = shared.0 & ((1 << 40) - 1);
    let has = |(key, _): &(Key, Vec<u8>)| (key.objectid, key.kind) == (object, EXTENT_DATA);
    let of = |tree: TreeId| tree.is_subvolume() && tree != TreeId::FS;
    let found = leaves_of(&base, of, |items| items.iter().any(has));
    assert_eq!(found.len(), 1, "one leaf, which both have");
    (base, found[0].1)
}

#[test]
fn subvolumes_have_their_groups_where_a_commit_cannot_count() {
    let (base, lost) = shared_twice();
    flip(&base, lost);
    let fs = open(&base.device);
    let (root, top) = (Caller::root(), fs.root());
    let sub = find(&fs, top, "sub").expect("there");
    let twice = find(&fs, sub, "twice").expect("there");
    // Who has the old extent still is not to be known.
    fs.write(&CX, twice, 0, &[2; 8192], Default::default()).expect("write");
    fs.create_subvolume(&root, top, b"new").expect("create");
    let groups = &[QgroupId::new(1, 7).expect("fits")];
    let member = NewSubvolume { parent: top, name: b"member", groups };
    fs.create_subvolume_in(&root, &member).expect("create");
    fs.snapshot(&root, sub, top, b"copy", false).expect("snapshot");
    assert_eq!(fs.read_only_reason(), None);
    assert!(fs.quota_status().expect("status").expect("quotas").inconsistent);
    let judge = |fs: &BtrfsFs| {
        assert_eq!(group(fs, "copy").expect("a group").max_referenced, Some(MOST));
        assert_eq!(group(fs, "new").expect("a group").max_referenced, None);
        assert_eq!(group(fs, "member").expect("a group").parents.len(), 1);
        assert!(fs.limits_are_right().expect("limits"));
    };
    judge(&fs);
    fs.destroy().expect("close");
    drop(fs);
    flip(&base, lost);
    assert_eq!(uncounted(&base), 0);
    let fs = open(&base.device);
    fs.rescan_quotas().expect("a rescan");
    fs.wait_for_rescan().expect("counted");
    judge(&fs);
    fs.destroy().expect("close");
    drop(fs);
    is_sound(&base);
}

/// Volumes of earlier versions may have such.
#[test]
fn a_rescan_makes_groups_that_are_missing() {
    let image = Image::new(256 << 20, &[]);
    let options = || Options { background: false, ..Options::default() };
    let fs = image.open_with(options());
    fs.enable_quotas().expect("quotas");
    let ids = ["a", "b", "c"].map(|name| {
        let made = fs.create_subvolume(&Caller::root(), fs.root(), name.as_bytes());
        let (id, entry) = made.expect("create");
        file(&fs, entry.attr.ino, "file", &[3; 50_000]);
        id.0
    });
    fs.wait_for_rescan().expect("counted");
    fs.destroy().expect("close");
    drop(fs);
    let patch = Patch::new(&image.path);
    for (id, kinds) in [(ids[0], &[QGROUP_INFO, QGROUP_LIMIT][..]), (ids[1], &[QGROUP_INFO])] {
        kinds.iter().for_each(|kind| patch.remove(TreeId::QUOTA, Key::new(0, *kind, id)));
    }
    let fs = image.open_with(options());
    assert!(group(&fs, "a").is_none() && group(&fs, "b").is_none());
    fs.rescan_quotas().expect("a rescan");
    fs.wait_for_rescan().expect("counted");
    for name in ["a", "b", "c"] {
        assert!(group(&fs, name).expect("a group").exclusive > 50_000);
    }
    common::close_and_judge(&image, fs);
}
