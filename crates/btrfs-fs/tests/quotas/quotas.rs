//! Quotas that the kernel enabled, kept through histories of ours.
//!
//! The kernel makes a volume with quotas, subvolumes and snapshots; the engine changes files in all
//! of them. Then `btrfs check --qgroup-report` counts the same numbers, and a rescan by the kernel
//! changes none.

use crate::common;
use btrfs_fs::{BtrfsFs, Caller, Delete, LimitChange, Options, QgroupId, QuotaStatus};
use common::kernel::{btrfs, kernel};
use common::{CX, Image};
use testkit::ops::Rng;
use testkit::oracle::{self, KernelMount};
use vfs::{FileKind, FileSystem, FsError, Ino, RenameMode, SetAttr};

const SUBVOLUMES: [&str; 6] = ["", "a", "a/nested", "b", "snap-1", "snap-2"];

/// What the kernel says of all groups.
fn numbers(mount: &KernelMount) -> String {
    let path = mount.path().to_string_lossy();
    oracle::sh("btrfs", &["qgroup", "show", "--raw", "--sync", "-rep", &path]).expect("numbers")
}

/// Both judges of the numbers, and all others of the rest.
fn judge(image: &Image) {
    let path = image.path.to_string_lossy();
    let report = oracle::sh("btrfs", &["check", "-Q", &*path]).expect("a report");
    assert!(!report.contains("different"), "btrfs check counts otherwise: {report}");
    assert!(report.contains("Counts for qgroup id: 0/5"), "it was to count: {report}");
    common::assert_sound(&image.path);
    kernel(&image.path, "noatime", |mount| {
        let before = numbers(mount);
        btrfs(mount, &["quota", "rescan", "-w", "/"]);
        assert_eq!(before, numbers(mount), "a rescan was to change nothing");
    });
}

/// Subvolumes with files of all sizes, some compressed, some shared; groups above them.
fn fill(mount: &KernelMount, seed: u64) {
    let mut rng = Rng::new(seed);
    btrfs(mount, &["quota", "enable", "/"]);
    for name in ["a", "a/nested", "b"] {
        btrfs(mount, &["subvolume", "create", &format!("/{name}")]);
    }
    for directory in ["", "a", "a/nested", "b"] {
        for i in 0..60 {
            let len = [100, 1500, 5000, 20_000, 140_000][rng.below(5) as usize];
            let mut content = vec![0; len + rng.below(1000) as usize];
            if rng.below(2) == 0 {
                rng.fill(&mut content);
            }
            std::fs::write(mount.join(directory).join(format!("k{i}")), content).expect("write");
        }
    }
    let clone = |from: &str, to: &str| {
        let (from, to) = (mount.join(from), mount.join(to));
        let (from, to) = (from.to_string_lossy(), to.to_string_lossy());
        oracle::sh("cp", &["--reflink=always", &from, &to]).expect("reflink");
    };
    clone("a/k1", "b/c1");
    clone("a/k2", "c2");
    clone("b/k3", "b/c3");
    btrfs(mount, &["subvolume", "snapshot", "/a", "/snap-1"]);
    std::fs::write(mount.join("a/later"), vec![7; 9000]).expect("write");
    btrfs(mount, &["subvolume", "snapshot", "/a", "/snap-2"]);
    btrfs(mount, &["subvolume", "snapshot", "-r", "/snap-1", "/snap-ro"]);
    btrfs(mount, &["qgroup", "create", "1/1", "/"]);
    btrfs(mount, &["qgroup", "create", "2/1", "/"]);
    for (group, above) in [("0/256", "1/1"), ("0/258", "1/1"), ("1/1", "2/1"), ("0/259", "2/1")] {
        btrfs(mount, &["qgroup", "assign", "--no-rescan", group, above, "/"]);
    }
    btrfs(mount, &["filesystem", "sync", "/"]);
    btrfs(mount, &["quota", "rescan", "-w", "/"]);
}

fn find(fs: &dyn FileSystem, path: &str) -> Ino {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.fold(fs.root(), |at, name| fs.lookup(&CX, at, name.as_bytes()).expect("there").attr.ino)
}

/// Names of what is in a directory and no subvolume.
fn files(fs: &dyn FileSystem, dir: Ino) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if entry.kind == FileKind::File {
            all.push(entry.name.to_vec());
        }
        true
    })
    .expect("list");
    all
}

/// One change somewhere.
fn step(fs: &BtrfsFs, rng: &mut Rng, number: &str) -> Result<(), FsError> {
    let any = |rng: &mut Rng| {
        let dir = find(fs, SUBVOLUMES[rng.below(SUBVOLUMES.len() as u64) as usize]);
        let names = files(fs, dir);
        let name =
            (!names.is_empty()).then(|| names[rng.below(names.len() as u64) as usize].clone());
        (dir, name)
    };
    let (dir, name) = any(rng);
    let lookup = |dir, name: &[u8]| fs.lookup(&CX, dir, name).expect("listed").attr.ino;
    let what = rng.below(10);
    let Some(name) = name.filter(|_| what > 1) else {
        let name = format!("e{number}").into_bytes();
        let ino = fs.mknod(&CX, dir, &name, FileKind::File, 0o644, 0)?.attr.ino;
        let mut content = vec![0; rng.below(150_000) as usize];
        rng.fill(&mut content);
        fs.write(&CX, ino, 0, &content, Default::default())?;
        return Ok(());
    };
    let ino = lookup(dir, &name);
    let size = fs.getattr(ino)?.size;
    match what {
        2 | 3 => {
            let mut content = vec![0; 1 + rng.below(30_000) as usize];
            rng.fill(&mut content);
            fs.write(&CX, ino, rng.below(size + 5000), &content, Default::default())?;
        }
        4 => {
            let size = rng.below(size + 1);
            fs.setattr(&CX, ino, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        }
        5 | 6 => {
            let (to, _) = any(rng);
            let to =
                fs.mknod(&CX, to, format!("r{number}").as_bytes(), FileKind::File, 0o644, 0)?;
            fs.clone_range(&CX, ino, 0, to.attr.ino, 0, 0)?;
        }
        7 => {
            let (from, other) = any(rng);
            let Some(other) = other else { return Ok(()) };
            let from = lookup(from, &other);
            let len = fs.getattr(from)?.size / 4096 * 4096;
            if from != ino && len > 0 {
                fs.clone_range(&CX, from, 0, ino, rng.below(4) * 4096, len)?;
            }
        }
        8 => fs.unlink(&CX, dir, &name)?,
        _ => {
            let new = format!("m{number}");
            fs.rename(&CX, dir, &name, dir, new.as_bytes(), RenameMode::Replace)?;
        }
    }
    Ok(())
}

fn history(fs: &BtrfsFs, seed: u64, steps: usize) {
    let mut rng = Rng::new(seed);
    for number in 0..steps {
        let result = step(fs, &mut rng, &format!("{seed}-{number}"));
        result.unwrap_or_else(|error| panic!("seed {seed}, step {number}: {error}"));
        if rng.below(40) == 0 {
            fs.sync().expect("commit");
        }
    }
}

fn random(mkfs: &[&str], mount: &str, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        println!("seed {seed}, mkfs {mkfs:?}, mount {mount:?}");
        let image = Image::new(512 << 20, mkfs);
        kernel(&image.path, mount, |mount| fill(mount, seed));
        for turn in 0..3 {
            let fs = image.open_checked(Options { background: false, ..Options::default() });
            assert_eq!(fs.read_only_reason(), None, "quotas are kept");
            history(&fs, seed * 10 + turn, common::steps(200));
            fs.destroy().expect("close");
            drop(fs);
            judge(&image);
        }
    }
}

#[test]
fn numbers_stay_right_with_small_nodes() {
    testkit::require!(kernel_btrfs);
    random(&["-n", "4096"], "noatime", common::seeds(1, 3));
}

#[test]
fn numbers_stay_right_with_usual_nodes_and_compression() {
    testkit::require!(kernel_btrfs);
    random(&[], "noatime,compress=zstd", common::seeds(11, 2));
}

/// Writes until something is refused; answers what was accepted.
fn write_until_refused(fs: &BtrfsFs, ino: Ino, piece: usize) -> u64 {
    let content = vec![0x5a; piece];
    let mut at = 0;
    loop {
        match fs.write(&CX, ino, at, &content, Default::default()) {
            Ok(len) => at += len as u64,
            Err(error) => {
                assert_eq!(error.errno(), libc::EDQUOT, "{error}");
                return at;
            }
        }
        assert!(at < 64 << 20, "no limit held");
    }
}

#[test]
fn limits_hold_for_content_in_memory_too() {
    testkit::require!(kernel_btrfs);
    for piece in [5000, 300_000] {
        let image = Image::new(512 << 20, &[]);
        kernel(&image.path, "noatime", |mount| {
            btrfs(mount, &["quota", "enable", "/"]);
            for name in ["a", "b"] {
                btrfs(mount, &["subvolume", "create", &format!("/{name}")]);
            }
            btrfs(mount, &["qgroup", "create", "1/1", "/"]);
            btrfs(mount, &["qgroup", "assign", "0/257", "1/1", "/"]);
            btrfs(mount, &["quota", "rescan", "-w", "/"]);
            btrfs(mount, &["qgroup", "limit", "4M", "0/256", "/"]);
            btrfs(mount, &["qgroup", "limit", "-e", "8M", "1/1", "/"]);
        });
        let fs = image.open();
        for (name, most) in [("a", 4 << 20), ("b", 8 << 20)] {
            let dir = find(&fs, name);
            let ino = fs.mknod(&CX, dir, b"f", FileKind::File, 0o644, 0).expect("room").attr.ino;
            let written = write_until_refused(&fs, ino, piece);
            assert!(written <= most && written > most - (1 << 20), "{written} of {most}");
            // What is taken away makes room again, once it is committed. Not a part of it: that may be of a long extent.
            let empty = SetAttr { size: Some(0), ..SetAttr::default() };
            fs.setattr(&CX, ino, &empty).expect("shorter");
            let again = vec![1; 1 << 20];
            fs.write(&CX, ino, 0, &again, Default::default()).expect("there is room again");
        }
        let ino =
            fs.mknod(&CX, fs.root(), b"f", FileKind::File, 0o644, 0).expect("no limit").attr.ino;
        fs.write(&CX, ino, 0, &vec![7; 20 << 20], Default::default()).expect("no limit");
        fs.destroy().expect("close");
        drop(fs);
        judge(&image);
    }
}

/// The kernel has the group with the subvolume; nobody has to wait for a commit.
#[test]
fn a_new_subvolume_has_a_group_at_once() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(512 << 20, &[]);
    let fs = image.open_checked(Options { background: false, ..Options::default() });
    fs.enable_quotas().expect("enable");
    fs.create_qgroup("1/1".parse().unwrap()).expect("a group");
    let new = |name: &str| {
        let made = fs.create_subvolume(&Caller::root(), fs.root(), name.as_bytes());
        QgroupId(made.expect("create").0.0)
    };
    let change = LimitChange { referenced: Some(Some(1 << 20)), ..LimitChange::default() };
    let limited = new("limited");
    fs.limit_qgroup(limited, &change).expect("it is there");
    let member = new("member");
    assert!(fs.assign_qgroup(member, "1/1".parse().unwrap()).expect("it is there"));
    let listed = new("listed");
    let all = fs.qgroups_from(QgroupId(0), 100).expect("groups");
    let known = |id| all.iter().find(|group| group.id == id).expect("listed");
    assert_eq!(known(limited).max_referenced, Some(1 << 20));
    assert_eq!(known(member).parents, ["1/1".parse().unwrap()]);
    assert_eq!(known(listed).max_referenced, None);
    fs.destroy().expect("close");
    drop(fs);
    kernel(&image.path, "noatime", |mount| btrfs(mount, &["quota", "rescan", "-w", "/"]));
    judge(&image);
}

/// Enabled by us, counted anew, disabled, enabled once more; the kernel judges each.
#[test]
fn quotas_come_and_go() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(512 << 20, &["-n", "4096"]);
    kernel(&image.path, "noatime", |mount| {
        fill(mount, 5);
        btrfs(mount, &["quota", "disable", "/"]);
    });
    let fs = image.open_checked(Options { background: false, ..Options::default() });
    assert_eq!(fs.quota_status().unwrap(), None);
    assert_eq!(fs.rescan_quotas().unwrap_err().errno(), libc::ENOTCONN);
    history(&fs, 1, 40);
    fs.enable_quotas().expect("enable");
    fs.wait_for_rescan().expect("a rescan");
    history(&fs, 2, 40);
    let right = Some(QuotaStatus { rescan: None, inconsistent: false, simple: false });
    assert_eq!(fs.quota_status().unwrap(), right);
    fs.destroy().expect("close");
    drop(fs);
    judge(&image);

    let fs = image.open();
    fs.rescan_quotas().expect("a rescan");
    history(&fs, 3, 40);
    fs.wait_for_rescan().expect("a rescan");
    fs.destroy().expect("close");
    drop(fs);
    judge(&image);

    let fs = image.open();
    fs.disable_quotas().expect("disable");
    assert_eq!(fs.quota_status().unwrap(), None);
    history(&fs, 4, 40);
    fs.destroy().expect("close");
    drop(fs);
    common::assert_sound(&image.path);
    kernel(&image.path, "noatime", |mount| {
        let path = mount.path().to_string_lossy();
        assert!(oracle::sh("btrfs", &["qgroup", "show", &path]).is_err(), "there are none");
    });
    let fs = image.open();
    fs.enable_quotas().expect("enable");
    fs.destroy().expect("close");
    drop(fs);
    kernel(&image.path, "noatime", |mount| btrfs(mount, &["quota", "rescan", "-w", "/"]));
    judge(&image);
}

/// Subvolumes that we make, snapshot and delete between the changes of files, at any level.
fn history_of_trees(fs: &BtrfsFs, seed: u64, rounds: u64) {
    let (mut rng, root) = (Rng::new(seed), Caller::root());
    let mut made: Vec<String> = vec!["a".into(), "b".into(), "snap-1".into()];
    for round in 0..rounds {
        history(fs, seed * 1000 + round, 25);
        let name = format!("t{seed}-{round}");
        let source = made[rng.below(made.len() as u64) as usize].clone();
        match rng.below(5) {
            0 => {
                let parent = find(fs, ["", "a", "b"][rng.below(3) as usize]);
                fs.create_subvolume(&root, parent, name.as_bytes()).expect("create");
                let within = fs.lookup(&CX, parent, name.as_bytes()).expect("made").attr.ino;
                let file = fs.mknod(&CX, within, name.as_bytes(), FileKind::File, 0o644, 0);
                let ino = file.expect("create").attr.ino;
                fs.write(&CX, ino, 0, &[3; 50_000], Default::default()).expect("write");
            }
            1 if made.len() > 5 => {
                let gone = made.swap_remove(made.len() - 1);
                fs.delete_subvolume(&root, Delete::Name(fs.root(), gone.as_bytes()))
                    .expect("delete");
                if rng.below(2) == 0 {
                    assert!(fs.sync_deleted(&[], None).expect("dropped"));
                }
            }
            _ => {
                let read_only = rng.below(4) == 0;
                fs.snapshot(&root, find(fs, &source), fs.root(), name.as_bytes(), read_only)
                    .expect("snapshot");
                if !read_only {
                    let within = find(fs, &name);
                    let file = fs.mknod(&CX, within, name.as_bytes(), FileKind::File, 0o644, 0);
                    let ino = file.expect("create").attr.ino;
                    fs.write(&CX, ino, 0, &[9; 20_000], Default::default()).expect("write");
                }
                made.push(name);
            }
        }
    }
    assert!(fs.sync_deleted(&[], None).expect("dropped"));
}

#[test]
fn numbers_stay_right_where_trees_come_and_go() {
    testkit::require!(kernel_btrfs);
    for seed in common::seeds(1, 3) {
        println!("seed {seed}");
        // `btrfs check -Q` (6.2) does not read a quota tree of two leaves, the kernel's neither.
        let (node, rounds) = [("4096", 6), ("16384", 14)][seed as usize % 2];
        let image = Image::new(512 << 20, &["-n", node]);
        kernel(&image.path, "noatime", |mount| fill(mount, seed));
        for turn in 0..2 {
            let fs = image.open_checked(Options { background: false, ..Options::default() });
            assert_eq!(fs.read_only_reason(), None, "quotas are kept");
            history_of_trees(&fs, seed * 10 + turn, rounds);
            fs.destroy().expect("close");
            drop(fs);
            judge(&image);
        }
    }
}

/// Who waits for numbers is told that they are not right.
#[test]
fn who_waits_hears_that_nobody_counts() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    let (caller, above) = (Caller::root(), "1/1".parse().unwrap());
    common::new_file(&fs, "file", &[7; 50_000]);
    fs.enable_quotas().expect("quotas");
    fs.wait_for_rescan().expect("rescan");
    let (copy, _) = fs.snapshot(&caller, fs.root(), fs.root(), b"copy", false).expect("a copy");
    fs.sync().expect("commit");
    fs.create_qgroup(above).expect("a group");
    let member = format!("0/{}", copy.0).parse().unwrap();
    assert!(fs.assign_qgroup(member, above).expect("a member"), "all that the group counts");
    let other = QgroupId(5);
    assert!(!fs.assign_qgroup(other, above).expect("a member"), "they share what is in them");
    assert_eq!(fs.wait_for_rescan().expect_err("nobody counts").errno(), libc::EUCLEAN);
    fs.rescan_quotas().expect("begun");
    fs.wait_for_rescan().expect("counted");
}

/// A commit looks at what it changed, however much the volume has, and reads nothing for that.
#[test]
fn a_commit_counts_what_it_changed_alone() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    let make = |from: u32, files: u32| {
        for n in from..from + files {
            common::new_file(&fs, &format!("file-{n}"), &[7; 5000]);
        }
        fs.sync().expect("commit");
    };
    make(0, 2000);
    fs.enable_quotas().expect("quotas");
    fs.wait_for_rescan().expect("rescan");
    let counters = || ["quota.extents", "device.reads"].map(|name| common::stat(&fs, name));
    for round in 1..4 {
        let before = counters();
        make(round * 2000, 500);
        let after = counters();
        let (extents, reads) = (after[0] - before[0], after[1] - before[1]);
        assert!((500..600).contains(&extents), "{extents} extents for 500 files");
        assert!(reads < 10, "{reads} reads");
    }
    fs.destroy().expect("close");
    drop(fs);
    common::assert_sound(&image.path);
}
