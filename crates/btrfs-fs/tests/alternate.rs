//! The kernel and the engine take turns on one volume.
//!
//! In each round the kernel writes, snapshots, deletes snapshots and balances; then the
//! engine must see the same trees and change them, in lockstep with the kernel's btrfs on
//! a copy of the image, next to nodes and extents that snapshots share. Every reference
//! count that the engine gets wrong shows when the kernel deletes a snapshot.

mod common;

use btrfs_fs::BtrfsFs;
use common::kernel::{btrfs, kernel};
use common::likeness::{assert_like, assert_none, differences};
use common::{Image, existing};
use std::path::{Path, PathBuf};
use testkit::PosixFs;
use testkit::compare::{Rules, TreeSnapshot};
use testkit::ops::{Config, Op, OpKind, Path as Name, Rng, Session, Subject, Tolerance, generate};
use testkit::ops::{listing, lockstep_answers};
use testkit::oracle::{self, KernelMount};
use vfs::{FileSystem, Ino};

const CX: vfs::Context = vfs::Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };

struct Case<'a> {
    seed: u64,
    /// Options of `mkfs.btrfs`, or `None` for a volume of our own mkfs with a
    /// block-group tree.
    mkfs: Option<&'a [&'a str]>,
    /// Mount options of the kernel's turns.
    mount: &'a str,
    rounds: u64,
    /// What else is done to the volume when the kernel has filled it.
    then: fn(&Path),
}

impl Default for Case<'_> {
    fn default() -> Self {
        Case { seed: 0, mkfs: Some(&[]), mount: "noatime", rounds: 1, then: |_| {} }
    }
}

impl Case<'_> {
    /// What does not fit a small node is refused sooner or later than by the kernel.
    fn has_small_nodes(&self) -> bool {
        let small = |option: &&str| ["4096", "8192", "--mixed"].contains(option);
        self.mkfs.is_some_and(|mkfs| mkfs.iter().any(small))
    }
}

struct Volume<'a> {
    case: &'a Case<'a>,
    image: Image,
    /// Subvolumes that there are and may be written, by path.
    writable: Vec<String>,
    read_only: Vec<String>,
    rng: Rng,
}

fn alternate(case: &Case<'_>) {
    println!("seed {}, mkfs {:?}, mount {:?}", case.seed, case.mkfs, case.mount);
    let image = match case.mkfs {
        Some(options) => Image::new(1 << 30, options),
        None => Image::with_block_group_tree(1 << 30),
    };
    let writable = ["", "sub", "sub/nested", "snap-rw", "snap-0", "snap-2"];
    let mut volume = Volume {
        case,
        image,
        writable: writable.map(str::to_owned).to_vec(),
        read_only: vec!["snap-ro".to_owned()],
        rng: Rng::new(case.seed),
    };
    kernel(&volume.image.path, case.mount, |mount| {
        oracle::kernel_populate(mount.path(), case.seed).expect("populate");
        btrfs(mount, &["subvolume", "sync", "/"]);
    });
    (case.then)(&volume.image.path);
    for round in 0..case.rounds {
        println!("round {round}: the engine's turn");
        volume.engine_turn(round);
        println!("round {round}: the kernel's turn");
        let path = volume.image.path.clone();
        kernel(&path, case.mount, |mount| volume.kernel_turn(mount, round));
        common::assert_sound(&volume.image.path);
    }
    volume.engine_turn(case.rounds);
    assert!(volume.has_bitmaps(), "free space was to be in pieces");
    let path = volume.image.path.clone();
    kernel(&path, case.mount, |mount| volume.delete_everything(mount));
    common::assert_sound(&volume.image.path);
}

impl Volume<'_> {
    fn copy(&self) -> PathBuf {
        let copy = self.image.path.with_extension("copy");
        let (from, to) = (self.image.path.to_string_lossy(), copy.to_string_lossy());
        oracle::sh("cp", &["--sparse=always", &from, &to]).expect("copy the image");
        copy
    }

    /// The engine and the kernel (on a copy) do the same; the kernel then judges what the
    /// engine wrote.
    fn engine_turn(&mut self, round: u64) {
        let copy = self.copy();
        let before = {
            let fs = self.image.open();
            let before = common::snapshot(&fs);
            kernel(&copy, "noatime", |mount| {
                let model = PosixFs::open(mount.path()).expect("open the kernel's mount");
                assert_like(&common::snapshot(&model), &before, &Rules::default());
                self.lockstep(round, &model, &fs, &before);
            });
            before
        };
        let fs = self.image.open();
        let after = common::snapshot(&fs);
        fs.destroy().expect("close");
        drop(fs);
        self.judge(&before, &after);
        std::fs::remove_file(copy).expect("remove the copy");
    }

    fn lockstep(&mut self, round: u64, model: &PosixFs, fs: &BtrfsFs, before: &TreeSnapshot) {
        let seed = self.rng.next_u64();
        let mut config = Config { freeze: false, ..Config::all() }.without(&[OpKind::Seek]);
        if self.case.has_small_nodes() {
            config = config.without(&[OpKind::SetXattr, OpKind::Symlink]);
        }
        let mut steps: Vec<(String, Vec<Op>)> = Vec::new();
        let read_write = self.read_write_part(before);
        steps.push((String::new(), existing::operations(seed, &read_write, 700)));
        for place in self.places() {
            let ops = generate(self.rng.next_u64(), 150, &config);
            steps.push((place, ops));
        }
        let fragments = Name(format!("fragments-{round}").into_bytes());
        steps.push((String::new(), existing::fragmenting(&fragments, 800)));
        steps.push((String::new(), existing::operations(seed + 1, &read_write, 300)));
        for (place, ops) in steps {
            let (a, b) = (resolve(model, &place), resolve(fs, &place));
            let (model, tested) = (Subject { fs: model, root: a }, Subject { fs, root: b });
            if let Err(divergence) = lockstep_answers(model, tested, &ops, &tolerance()) {
                let last = &ops[..divergence.steps().min(ops.len())];
                let last = listing(&last[last.len().saturating_sub(12)..]);
                panic!("below {place:?}: {divergence}\nlast operations:\n{last}");
            }
        }
        self.knock_on_snapshots(fs);
        let expected = common::snapshot(model);
        let mut differences = differences(&expected, &common::snapshot(fs), &tolerance().rules);
        // A directory that the kernel reads back passes the property on only if it lies in
        // one leaf with the inode.
        differences.retain(|found| found.what != "xattr btrfs.compression");
        assert_none(differences);
        fs.destroy().expect("close");
    }

    /// Directories for random operations: in every subvolume, and one that is not at the top.
    fn places(&self) -> Vec<String> {
        let mut places = vec!["random".to_owned()];
        places.extend(self.writable.iter().filter(|p| !p.is_empty()).cloned());
        places
    }

    fn read_write_part(&self, tree: &TreeSnapshot) -> TreeSnapshot {
        let mut tree = tree.clone();
        tree.nodes.retain(|path, _| !self.read_only.iter().any(|place| is_below(path, place)));
        tree
    }

    /// Nothing that is asked of a read-only snapshot changes it (`judge` looks).
    fn knock_on_snapshots(&mut self, fs: &BtrfsFs) {
        for place in &self.read_only {
            let mut session = Session::below(fs, resolve(fs, place));
            for op in generate(self.rng.next_u64(), 150, &Config::all()) {
                session.apply(&op);
            }
        }
    }

    /// Some block group has its free space in bitmaps.
    fn has_bitmaps(&self) -> bool {
        let image = self.image.path.to_string_lossy();
        let tree = oracle::sh("btrfs", &["inspect-internal", "dump-tree", "-t", "10", &*image]);
        tree.expect("dump the free-space tree").contains("FREE_SPACE_BITMAP")
    }

    /// Outside judges of what the engine committed.
    fn judge(&self, before: &TreeSnapshot, after: &TreeSnapshot) {
        let image = &self.image.path;
        common::assert_sound(image);
        let seen = kernel(image, "ro,noatime", |mount| {
            TreeSnapshot::of_dir(mount.path()).expect("walk the kernel's mount")
        });
        assert_like(&seen, after, &Rules::default());
        for snapshot in &self.read_only {
            assert_like(&below(before, snapshot), &below(&seen, snapshot), &Rules::strict());
        }
        kernel(image, "noatime", |mount| oracle::scrub(mount).expect("scrub"));
    }

    fn kernel_turn(&mut self, mount: &KernelMount, round: u64) {
        let (ro, rw) = (format!("ro-{round}"), format!("rw-{round}"));
        let source = self.rng.pick(&self.writable).clone();
        let sub = format!("/{source}");
        btrfs(mount, &["subvolume", "snapshot", "-r", &sub, &format!("/{ro}")]);
        btrfs(mount, &["subvolume", "snapshot", &sub, &format!("/{rw}")]);
        self.read_only.push(ro);
        self.writable.push(rw.clone());
        load(mount, &rw, self.rng.next_u64());
        load(mount, &source, self.rng.next_u64());
        if round.is_multiple_of(2) {
            btrfs(mount, &["filesystem", "sync", "/"]);
            // What is mixed is balanced as a whole.
            let mixed = self.case.mkfs.is_some_and(|mkfs| mkfs.contains(&"--mixed"));
            let what: &[&str] = if mixed { &["-d", "-m"] } else { &["-m"] };
            btrfs(mount, &[&["balance", "start"], what, &["/"]].concat());
        }
        self.delete_some(mount);
        if round % 2 == 1 {
            btrfs(mount, &["filesystem", "sync", "/"]);
            btrfs(mount, &["balance", "start", "-d", "-m", "/"]);
        }
        btrfs(mount, &["subvolume", "sync", "/"]);
    }

    fn delete_some(&mut self, mount: &KernelMount) {
        let mut delete = |list: &mut Vec<String>, keep: usize| {
            while list.len() > keep {
                let at = self.rng.below(list.len() as u64) as usize;
                if ["", "sub", "sub/nested"].contains(&list[at].as_str()) {
                    continue;
                }
                let name = list.remove(at);
                btrfs(mount, &["subvolume", "delete", "-c", &format!("/{name}")]);
            }
        };
        delete(&mut self.writable, 6);
        delete(&mut self.read_only, 2);
    }

    /// Every count that is still wrong has nowhere to hide.
    fn delete_everything(&mut self, mount: &KernelMount) {
        self.read_only.append(&mut self.writable);
        self.read_only.retain(|name| !name.is_empty());
        self.read_only.sort_by_key(|name| std::cmp::Reverse(name.len()));
        for name in &self.read_only {
            btrfs(mount, &["subvolume", "delete", "-c", &format!("/{name}")]);
        }
        btrfs(mount, &["subvolume", "sync", "/"]);
        assert!(self.case.rounds > 0);
    }
}

fn tolerance() -> Tolerance {
    Tolerance::default()
}

/// Random operations by the kernel.
fn load(mount: &KernelMount, place: &str, seed: u64) {
    let fs = PosixFs::open(&mount.join(place)).expect("open");
    let mut session = Session::new(&fs);
    for op in generate(seed, 400, &Config { freeze: false, ..Config::all() }) {
        session.apply(&op);
    }
}

/// The inode at a path, with a reference that stays.
fn resolve(fs: &dyn FileSystem, path: &str) -> Ino {
    let step = |at: Ino, name: &str| fs.lookup(&CX, at, name.as_bytes()).expect("lookup").attr.ino;
    path.split('/').filter(|name| !name.is_empty()).fold(fs.root(), step)
}

fn is_below(path: &Name, place: &str) -> bool {
    Path::new(&*String::from_utf8_lossy(&path.0)).starts_with(place)
}

/// The part of a tree below `place`.
fn below(tree: &TreeSnapshot, place: &str) -> TreeSnapshot {
    let nodes = tree.nodes.iter().filter(|(path, _)| is_below(path, place));
    TreeSnapshot { nodes: nodes.map(|(path, node)| (path.clone(), node.clone())).collect() }
}

fn rounds() -> u64 {
    common::number("SPINNEY_ROUNDS", 2)
}

#[test]
fn large_nodes() {
    testkit::require!(kernel_btrfs);
    for seed in common::seeds(1, 1) {
        alternate(&Case { seed, rounds: rounds(), ..Case::default() });
    }
}

#[test]
fn small_nodes() {
    testkit::require!(kernel_btrfs);
    for seed in common::seeds(3, 1) {
        alternate(&Case { seed, mkfs: Some(&["-n", "4096"]), rounds: rounds(), ..Case::default() });
    }
}

#[test]
fn other_formats() {
    testkit::require!(kernel_btrfs);
    let mkfs: &[&str] = &["-O", "^no-holes", "--csum", "xxhash"];
    let mount = "noatime,compress-force=zstd";
    alternate(&Case { seed: 5, mkfs: Some(mkfs), mount, rounds: rounds() / 2, ..Case::default() });
    let mount = "noatime,flushoncommit";
    alternate(&Case { seed: 6, mkfs: None, mount, rounds: rounds() / 2, ..Case::default() });
}

/// As volumes were made until 2013: a node's item has its level and first key in it.
#[test]
fn without_skinny_metadata() {
    testkit::require!(kernel_btrfs);
    let mkfs: &[&str] = &["-n", "4096", "-O", "^skinny-metadata,^no-holes"];
    alternate(&Case { seed: 10, mkfs: Some(mkfs), rounds: rounds() / 2, ..Case::default() });
}

fn one_round(seed: u64, mkfs: &[&str]) {
    testkit::require!(kernel_btrfs);
    alternate(&Case { seed, mkfs: Some(mkfs), ..Case::default() });
}

#[test]
fn nodes_of_8_kib_and_sha256() {
    one_round(7, &["-n", "8192", "--csum", "sha256"]);
}

#[test]
fn nodes_of_32_kib_and_blake2() {
    one_round(8, &["-n", "32768", "--csum", "blake2"]);
}

#[test]
fn nodes_of_64_kib_and_xxhash() {
    one_round(9, &["-n", "65536", "--csum", "xxhash"]);
}

#[test]
fn mixed() {
    one_round(10, &["--mixed"]);
}

#[test]
fn mixed_dup_without_no_holes() {
    one_round(11, &["--mixed", "-m", "dup", "-d", "dup", "-O", "^no-holes"]);
}

#[test]
fn dup_data() {
    one_round(12, &["-m", "dup", "-d", "dup"]);
}

/// A volume that got another UUID, while its nodes keep the one that they have.
#[test]
fn metadata_uuid() {
    testkit::require!(kernel_btrfs);
    let then = |image: &Path| {
        let path = image.to_string_lossy();
        oracle::sh("btrfstune", &["-f", "-m", &*path]).expect("btrfstune");
        let dump = oracle::sh("btrfs", &["inspect-internal", "dump-super", &*path]);
        let dump = dump.expect("dump the superblock");
        let uuid = |name: &str| {
            let line = dump.lines().find(|line| line.starts_with(name)).expect("a line");
            line.split_whitespace().last().expect("a UUID").to_owned()
        };
        assert_ne!(uuid("fsid"), uuid("metadata_uuid"));
    };
    alternate(&Case { seed: 13, then, ..Case::default() });
}
