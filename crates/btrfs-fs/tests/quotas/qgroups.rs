//! Groups of quotas where it is not obvious what they have: limits beside content that has no name or finds no place,
//! and groups of subvolumes that are gone in part, or where nobody counts. The kernel (6.18) says the same.

use crate::{common, lost};
use btrfs_disk::key::kind::EXTENT_DATA;
use btrfs_fs::{
    BtrfsFs, Caller, Compress, Defect, Delete, Injection, LimitChange, Method, NewSubvolume,
    Options, QgroupId,
};
use common::{CX, find, new_file};
use fuzzing::hostile::base::{Base, options};
use lost::{Items, flip, is_sound, leaves, open, told, volume};
use vfs::{FileKind, FileSystem, Ino, SetAttr, WriteFlags};

const MIB: u64 = 1 << 20;
const SECTOR: u64 = 4096;

fn limit(fs: &BtrfsFs, id: QgroupId, most: u64) {
    let change = LimitChange { referenced: Some(Some(most)), ..LimitChange::default() };
    fs.limit_qgroup(id, &change).expect("a limit");
}

/// A volume with quotas, and a subvolume that may have so much; its group, and its directory.
fn limited(most: u64) -> (Base, BtrfsFs, QgroupId, Ino) {
    let base = volume(|fs| {
        fs.enable_quotas().expect("quotas");
        fs.wait_for_rescan().expect("rescan");
    });
    let fs = open(&base.device);
    let made = fs.create_subvolume(&Caller::root(), fs.root(), b"sub").expect("create");
    let group = QgroupId(made.0.0);
    limit(&fs, group, most);
    (base, fs, group, made.1.attr.ino)
}

fn referenced(fs: &BtrfsFs, id: QgroupId) -> u64 {
    let all = fs.qgroups_from(id, 1).expect("groups");
    assert_eq!(all[0].id, id);
    all[0].referenced
}

/// Writes pieces one behind the other until the limit forbids it, or `most` are written.
fn until_refused(fs: &BtrfsFs, ino: Ino, piece: u64, most: u64) -> u64 {
    let content = vec![0x5a; piece as usize];
    for at in (0..most).step_by(piece as usize) {
        if let Err(error) = fs.write(&CX, ino, at, &content, WriteFlags::default()) {
            assert_eq!(error.errno(), libc::EDQUOT, "{error}");
            return at;
        }
    }
    most
}

fn holds(written: u64, most: u64) {
    assert!(written <= most && written + MIB / 2 > most, "{written} of {most}");
}

/// It lands late or never, and must not be beyond the limit when it does.
#[test]
fn a_limit_holds_for_content_of_files_without_names() {
    const MOST: u64 = 4 * MIB;
    let (base, fs, group, dir) = limited(MOST);
    let unlinked = fs.mknod(&CX, dir, b"f", FileKind::File, 0o644, 0).expect("room").attr.ino;
    fs.unlink(&CX, dir, b"f").expect("unlink");
    holds(until_refused(&fs, unlinked, 1024, 4 * MOST), MOST);
    // What is let go has the room no more.
    fs.forget(unlinked, 1);
    let nameless = fs.tmpfile(&CX, dir, 0o644).expect("room").attr.ino;
    holds(until_refused(&fs, nameless, 64 << 10, 4 * MOST), MOST);
    fs.setattr(&CX, nameless, &SetAttr { size: Some(MOST - MIB), ..SetAttr::default() })
        .expect("shorter");
    fs.link(&CX, nameless, dir, b"named").expect("a name");
    fs.sync().expect("commit");
    let landed = referenced(&fs, group);
    assert!((MOST - 2 * MIB..=MOST).contains(&landed), "{landed}");
    fs.destroy().expect("close");
    drop(fs);
    is_sound(&base);
}

/// Two files, of which neither has a name: what one may have is what the other has not.
#[test]
fn files_without_names_share_what_a_limit_leaves() {
    const MOST: u64 = 4 * MIB;
    let (_base, fs, _, dir) = limited(MOST);
    let of = |most| {
        let ino = fs.tmpfile(&CX, dir, 0o644).expect("room").attr.ino;
        (ino, until_refused(&fs, ino, 8192, most))
    };
    let (first, written) = of(3 * MIB);
    assert_eq!(written, 3 * MIB);
    (0..3).for_each(|_| fs.sync().expect("commit"));
    // Written over, it is what it was.
    assert_eq!(until_refused(&fs, first, 8192, 3 * MIB), 3 * MIB);
    let (_, written) = of(3 * MIB);
    holds(3 * MIB + written, MOST);
    fs.forget(first, 1);
    assert_eq!(of(2 * MIB).1, 2 * MIB);
    fs.destroy().expect("close");
}

/// It replaces what counts already, or is shorter on the volume than in memory: in the end nothing is exceeded.
#[test]
fn content_without_a_name_lands_before_a_limit_refuses_it() {
    const MOST: u64 = 10 * MIB;
    let (base, fs, group, dir) = limited(MOST);
    let ino = fs.mknod(&CX, dir, b"f", FileKind::File, 0o644, 0).expect("room").attr.ino;
    for n in 0..6 {
        let piece = vec![1; MIB as usize];
        fs.write(&CX, ino, n * MIB, &piece, WriteFlags::default()).expect("write");
        fs.sync().expect("commit");
    }
    fs.unlink(&CX, dir, b"f").expect("unlink");
    fs.sync().expect("commit");
    for _ in 0..3 {
        assert_eq!(until_refused(&fs, ino, 64 << 10, 6 * MIB), 6 * MIB);
    }
    fs.forget(ino, 1);
    fs.destroy().expect("close");
    let compress = Method::parse("zstd").map(|method| Compress { method, force: false });
    let options = Options { compress, ..options() };
    let fs = BtrfsFs::open_device(base.device.clone(), options).expect("open");
    let dir = find(&fs, fs.root(), "sub").expect("there");
    let nameless = fs.tmpfile(&CX, dir, 0o644).expect("room").attr.ino;
    assert_eq!(until_refused(&fs, nameless, 64 << 10, 3 * MOST), 3 * MOST);
    fs.sync().expect("commit");
    assert!(referenced(&fs, group) < MOST);
    fs.destroy().expect("close");
    drop(fs);
    is_sound(&base);
}

/// A file of so many pieces that their items are in several leaves.
fn pieces(fs: &BtrfsFs) {
    let ino = new_file(fs, "pieces", &[]);
    for piece in 0..400 {
        let at = piece * 37 % 400 * 2 * SECTOR;
        fs.write(&CX, ino, at, &[piece as u8; 4096], WriteFlags::default()).expect("write");
        if piece % 20 == 0 {
            fs.sync().expect("commit");
        }
    }
}

/// It is in memory as long as its place is lost.
#[test]
fn a_limit_holds_beside_content_whose_place_is_lost() {
    const MOST: u64 = 8 * MIB;
    let base = volume(|fs| {
        pieces(fs);
        fs.enable_quotas().expect("quotas");
        fs.wait_for_rescan().expect("rescan");
        limit(fs, QgroupId(5), MOST);
    });
    let content = |items: &Items| items.iter().all(|(key, _)| key.kind == EXTENT_DATA);
    let found = leaves(&base, content);
    let (items, lost) = &found[found.len() / 2];
    flip(&base, *lost);
    let fs = open(&base.device);
    let stuck = find(&fs, fs.root(), "pieces").expect("there");
    let at = items[0].0.offset + 4 * SECTOR;
    for n in 0..32 {
        let piece = vec![9; 64 << 10];
        fs.write(&CX, stuck, at + n * (64 << 10), &piece, WriteFlags::default()).expect("write");
    }
    (0..3).for_each(|_| told(fs.sync(), "it cannot be written"));
    let other = new_file(&fs, "other", &[]);
    let rest = MOST - referenced(&fs, QgroupId(5)) - 2 * MIB;
    holds(until_refused(&fs, other, 32 << 10, 2 * MOST), rest);
    flip(&base, *lost);
    fs.sync().expect("all of it");
    let landed = referenced(&fs, QgroupId(5));
    assert!(landed <= MOST, "{landed}");
    fs.destroy().expect("close");
    drop(fs);
    is_sound(&base);
}

/// Bytes on both sides of a border take two sectors, as the kernel counts them.
#[test]
fn a_limit_holds_for_writes_that_are_not_aligned() {
    const MOST: u64 = 4 * MIB;
    let (base, fs, group, dir) = limited(MOST);
    let ino = fs.mknod(&CX, dir, b"f", FileKind::File, 0o644, 0).expect("room").attr.ino;
    fs.sync().expect("commit");
    let pair = |n| fs.write(&CX, ino, n * 2 * SECTOR + SECTOR - 1, b"ab", WriteFlags::default());
    let pairs = (0..u64::MAX).take_while(|n| pair(*n).is_ok()).count() as u64;
    holds(pairs * 2 * SECTOR, MOST);
    fs.sync().expect("commit");
    let landed = referenced(&fs, group);
    assert!(landed <= MOST, "{landed}");
    fs.destroy().expect("close");
    drop(fs);
    is_sound(&base);
}

/// Scripts name groups without asking whether anybody counts.
#[test]
fn groups_to_be_in_are_not_looked_for_without_quotas() {
    let base = volume(|_| ());
    let fs = open(&base.device);
    let (caller, top) = (Caller::root(), fs.root());
    for group in ["1/0", "0/300"] {
        let groups = [group.parse().expect("a group")];
        let names = ["new", "copy"].map(|what| format!("{what}-{}", group.replace('/', "-")));
        let [new, copy] = names.each_ref().map(|name| NewSubvolume {
            parent: top,
            name: name.as_bytes(),
            groups: &groups,
        });
        fs.create_subvolume_in(&caller, &new).expect("create");
        fs.snapshot_in(&caller, top, &copy, false).expect("snapshot");
    }
    fs.enable_quotas().expect("quotas");
    fs.wait_for_rescan().expect("rescan");
    let all = fs.qgroups_from(QgroupId(0), 100).expect("groups");
    assert_eq!(all.len(), 5);
    assert!(all.iter().all(|group| group.parents.is_empty()), "{all:?}");
    fs.destroy().expect("close");
    drop(fs);
    is_sound(&base);
}

/// It has extents that count still, and its group goes with it by itself.
#[test]
fn the_group_of_a_subvolume_that_is_not_wholly_gone_stays() {
    let base = volume(|fs| {
        let (_, entry) = fs.create_subvolume(&Caller::root(), fs.root(), b"sub").expect("create");
        for n in 0..400 {
            let name = format!("file-{n}");
            let made = fs.mknod(&CX, entry.attr.ino, name.as_bytes(), FileKind::File, 0o644, 0);
            let ino = made.expect("create").attr.ino;
            fs.write(&CX, ino, 0, &[7; 5000], WriteFlags::default()).expect("write");
        }
        fs.enable_quotas().expect("quotas");
        fs.wait_for_rescan().expect("rescan");
    });
    let injection = Injection::of(Some(Defect::TinySteps));
    let options = Options { injection, ..options() };
    let fs = BtrfsFs::open_device(base.device.clone(), options).expect("open");
    let (caller, top, above) = (Caller::root(), fs.root(), "1/0".parse().expect("a group"));
    let sub = find(&fs, top, "sub").expect("there");
    fs.create_qgroup(above).expect("a group");
    let new = NewSubvolume { parent: top, name: b"copy", groups: &[above] };
    let (copy, _) = fs.snapshot_in(&caller, sub, &new, false).expect("copy");
    fs.sync().expect("commit");
    let group = QgroupId(copy.0);
    fs.rescan_quotas().expect("begun");
    fs.wait_for_rescan().expect("counted");
    fs.delete_subvolume(&caller, Delete::Name(top, b"copy")).expect("delete");
    for _ in 0..2 {
        let refused = fs.destroy_qgroup(group).expect_err("it counts still");
        assert_eq!(refused.errno(), libc::EBUSY, "{refused}");
        fs.sync().expect("commit");
    }
    assert!(fs.sync_deleted(&[copy], None).expect("it goes"));
    fs.sync().expect("commit");
    let status = fs.quota_status().expect("status").expect("quotas");
    assert!(!status.inconsistent, "{status:?}");
    assert_eq!(fs.destroy_qgroup(group).expect_err("gone").errno(), libc::ENOENT);
    fs.destroy().expect("close");
    drop(fs);
    is_sound(&base);
}
