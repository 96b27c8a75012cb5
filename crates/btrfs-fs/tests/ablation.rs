//! Each switch of the measuring build takes away what it names, as the counters tell, and
//! nothing that the log promises.
//!
//!     cargo test -p spinney-btrfs-fs --features ablation --test ablation

mod common;

use blockdev::MemDevice;
use btrfs_fs::{Ablate, BtrfsFs, Options};
use btrfs_image::mkfs::{MkfsOptions, make};
use common::{assert_same, snapshot};
use std::collections::BTreeMap;
use std::sync::Arc;
use vfs::{Context, FileKind, FileSystem, Ino, SetAttr, WriteFlags};

const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };

fn options(ablate: &str) -> Options {
    let mut switches = Ablate::default();
    assert!(ablate.is_empty() || switches.add(ablate), "{ablate}");
    Options { background: false, ablate: switches, ..Options::default() }
}

fn create(fs: &BtrfsFs, dir: Ino, name: &str) -> Ino {
    fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0).expect("create").attr.ino
}

fn write(fs: &BtrfsFs, ino: Ino, block: u64) {
    let data = [block as u8 + 1; 4096];
    fs.write(&CX, ino, block * 4096, &data, WriteFlags::default()).expect("write");
}

/// New files beside others, overwrites, a rename and a file made shorter, each synced.
fn work(fs: &BtrfsFs) {
    let dir = fs.mkdir(&CX, fs.root(), b"dir", 0o755).expect("mkdir").attr.ino;
    let old = create(fs, dir, "old");
    (0..8).for_each(|block| write(fs, old, block));
    fs.sync().expect("sync");
    let new: Vec<Ino> = (0..10).map(|i| create(fs, dir, &format!("new-{i}"))).collect();
    for ino in [new[0], old] {
        for round in 0..12 {
            // Not in a row: an extent each.
            write(fs, ino, round * 5 % 12 * 2);
            fs.fsync(ino, false).expect("fsync");
        }
        fs.setattr(&CX, ino, &SetAttr { size: Some(5000), ..SetAttr::default() }).expect("cut");
        fs.fsync(ino, false).expect("fsync");
    }
    fs.rename(&CX, dir, b"new-0", dir, b"moved", vfs::RenameMode::Replace).expect("rename");
    fs.fsync(new[0], false).expect("fsync");
}

/// What a run with these switches counts. What was synced is there after a crash.
fn counted(ablate: &str) -> BTreeMap<&'static str, u64> {
    let device = Arc::new(MemDevice::new(128 << 20));
    make(&*device, &MkfsOptions::default()).expect("mkfs");
    let fs = BtrfsFs::open_device(device.clone(), options(ablate)).expect("open");
    work(&fs);
    // Before the directory is synced, which takes the files along that nobody synced.
    let counters = fs.stats().into_iter().map(|stat| (stat.name, stat.value)).collect();
    let dir = fs.lookup(&CX, fs.root(), b"dir").expect("dir").attr.ino;
    fs.fsync(dir, false).expect("fsync");
    let expected = snapshot(&fs);
    let crashed = Arc::new(MemDevice::from_bytes(&device.to_bytes()));
    fs.destroy().expect("close");
    let again = BtrfsFs::open_device(crashed, options("")).expect("replay");
    assert_same(&expected, &snapshot(&again));
    counters
}

#[test]
fn each_switch_shows_in_what_it_takes_away() {
    let base = counted("");
    assert_eq!(base["log.fallback_commits"], 0);
    let of = |name| (base[name], base["log.items"]);

    let search = counted("search");
    assert_eq!(base["log.inodes_dropped"], 0);
    assert!(search["log.inodes_dropped"] > 20 && search["log.tree_reads"] > 60, "{search:?}");
    assert!(search["log.items"] > base["log.items"] + 20, "dropped and logged again");

    let drop = counted("drop");
    assert!(drop["log.tree_reads"] >= base["log.tree_reads"] + 30, "{drop:?}");
    assert!(drop["log.items"] <= base["log.items"] && drop["log.inodes_dropped"] == 0);

    let ordered = counted("ordered");
    assert!(ordered["log.tree_reads"] > base["log.tree_reads"] + 48, "{ordered:?}");
    assert_eq!((ordered["log.inodes"], ordered["log.items"]), of("log.inodes"));

    let names = counted("names");
    assert!(names["log.inodes"] > base["log.inodes"] + 8, "{names:?}");
    assert_eq!(names["log.inodes_dropped"], 0);

    let all = counted("ordered+search+drop+names");
    assert!(all["log.items"] > search["log.items"], "{all:?}");
    let of_ordered = ordered["log.tree_reads"] - base["log.tree_reads"];
    assert!(all["log.tree_reads"] > search["log.tree_reads"] + of_ordered / 2);
}

#[test]
fn only_names_of_switches_are_taken() {
    let mut switches = Ablate::default();
    assert!(!switches.add("everything") && !switches.add("search+") && !switches.add(""));
    assert!(switches.add("search+drop"));
    assert_eq!(switches, Ablate { search: true, drop: true, ..Ablate::default() });
}
