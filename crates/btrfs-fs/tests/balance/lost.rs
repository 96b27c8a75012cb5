//! Balances of volumes on which an interior node is lost, each of every tree: what it leads to stays where
//! it is, block groups without any of that move, and when the damage is undone nothing is missing.
//!
//! What it does not know: leaves (`damage.rs`), and who else is at work meanwhile.

use crate::{common, spread, watch};
use blockdev::{BlockDevice, FileDevice};
use btrfs_check::{CheckOptions, check};
use btrfs_disk::items::FileExtent;
use btrfs_disk::key::kind;
use btrfs_disk::{Expect, Logical, Node, TreeId};
use btrfs_fs::{BalanceState, BtrfsFs, Caller, Options};
use btrfs_space::Kind;
use btrfs_volume::{OpenOptions, Volume};

use fuzzing::hostile::base::{Base, NodeAt, options};
use fuzzing::hostile::disk::Layered;
use fuzzing::hostile::drive::{Walk, walk};
use spread::{balance, content, elsewhere, has, put, volume};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use testkit::oracle::{self, TempDir};
use vfs::FileSystem;
use watch::{Failures, watched};

const FILES: usize = 1100;
/// Room for many block groups; nothing but what is in use takes any.
const SIZE: u64 = 8 << 30;
const PIECE: usize = 1 << 20;

/// A volume in memory, and as a file for who judges from outside.
struct Sound {
    base: Base,
    walk: Walk,
    image: PathBuf,
    _dir: TempDir,
}

/// Subvolumes and snapshots whose nodes and content lie in several block groups, some shared.
fn fill(fs: &BtrfsFs) {
    let (root, mut aside) = (Caller::root(), Vec::new());
    for (turn, name) in ["one", "two"].into_iter().enumerate() {
        let made = fs.create_subvolume(&root, fs.root(), name.as_bytes()).expect("create");
        for n in 0..FILES {
            put(fs, made.1.attr.ino, &format!("a-file-of-{name}-{n}"), &content(n + turn));
        }
        elsewhere(fs, &mut aside);
    }
    let one = common::find(fs, fs.root(), "one").expect("there");
    for name in ["snapshot", "another"] {
        let made = fs.snapshot(&root, one, fs.root(), name.as_bytes(), false).expect("snapshot");
        elsewhere(fs, &mut aside);
        for n in (0..FILES).step_by(150) {
            put(fs, made.1.attr.ino, &format!("a-file-of-one-{n}"), &content(n + 7));
            put(fs, one, &format!("newer-{name}-{n}"), &content(n));
        }
        fs.sync().expect("commit");
    }
    let mut large = vec![0; 9 << 20];
    large.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 4096) as u8);
    put(fs, fs.root(), "large", &large);
    fs.space().new_chunk(Kind::Data).expect("a chunk");
    aside.into_iter().for_each(|group| fs.space().take_back(group).expect("taken back"));
}

impl Sound {
    fn new() -> Sound {
        let base = volume(SIZE, fill);
        let fs = BtrfsFs::open_device(base.device.clone(), reading()).expect("open");
        let walk = walk(&fs);
        assert!(walk.errors.is_empty() && walk.names.len() > 4 * FILES);
        let dir = TempDir::new("balance-lost").expect("temp dir");
        let image = dir.join("disk.img");
        let file = FileDevice::create(&image, SIZE).expect("create");
        let mut piece = vec![0; PIECE];
        for at in (0..SIZE).step_by(PIECE) {
            base.device.read_at(at, &mut piece).expect("in range");
            if piece.iter().any(|byte| *byte != 0) {
                file.write_at(at, &piece).expect("write");
            }
        }
        Sound { base, walk, image, _dir: dir }
    }

    fn node(&self, at: Logical, level: u8) -> Node {
        let bytes = self.base.node_bytes(&*self.base.device, at).into_boxed_slice();
        let expect = Expect { logical: at, level, generation: None, owner: None, first_key: None };
        btrfs_disk::check::node(bytes, &self.base.geometry, &expect).expect("a sound node")
    }

    /// The addresses of a node, of all below it, and of content that these name.
    fn all_below(&self, at: Logical, level: u8, found: &mut BTreeSet<u64>) {
        let node = self.node(at, level);
        found.insert(at.0);
        if !node.is_leaf() {
            node.children().for_each(|child| self.all_below(child.logical, level - 1, found));
            return;
        }
        for (_, data) in node.items().filter(|(key, _)| key.kind == kind::EXTENT_DATA) {
            if let Ok(FileExtent::Extent { fields, .. }) = FileExtent::parse(data) {
                found.insert(fields.disk_bytenr.0);
            }
        }
    }

    /// What `btrfs check` and our own check say of the device.
    fn judge(&self, device: &Arc<Layered>) {
        let open = OpenOptions { read_only: true, ..OpenOptions::default() };
        let volume = Volume::open(device.clone(), open).expect("open the volume");
        let options = CheckOptions { verify_data: true, ..CheckOptions::default() };
        let found = check(Arc::new(volume), &options).expect("check").findings;
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "our check, the damage undone: {found:#?}");
        let file = common::open_device(&self.image, false);
        let mut own = device.own();
        own.iter().for_each(|(at, block)| file.write_at(*at, block).expect("write"));
        let said = oracle::btrfs_check(&self.image);
        for (at, block) in &mut own {
            self.base.device.read_at(*at, block).expect("in range");
            file.write_at(*at, block).expect("write");
        }
        said.unwrap_or_else(|why| panic!("the damage undone: {why}"));
    }
}

fn reading() -> Options {
    Options { read_only: true, ..options() }
}

/// How it ended.
enum Fate {
    Refused,
    ReadOnly,
    /// Block groups that stayed, of how many.
    Stayed(usize, usize),
}

/// Both copies of a node bad, all block groups to be moved; then the damage is undone.
fn without(sound: &Sound, node: &NodeAt) -> Fate {
    let device = Arc::new(Layered::new(&sound.base.device));
    (0..sound.base.copies(node.logical).len())
        .for_each(|copy| sound.base.spoil(&device, node.logical, copy));
    device.forget_writes();
    let Ok(fs) = BtrfsFs::open_device(device.clone(), options()) else {
        assert_eq!(device.writes(), 0, "written although refused");
        return Fate::Refused;
    };
    let seen = walk(&fs);
    let before = fs.space().group_infos();
    let done = balance(&fs);
    let read_only = fs.read_only_reason();
    if read_only.is_none() {
        assert_eq!(done.state, BalanceState::Done);
        assert_eq!(done.failed > 0, done.errno != 0, "{done:?}");
        assert!([0, libc::EUCLEAN].contains(&done.errno), "{done:?}");
    }
    let now: BTreeSet<_> = fs.space().group_infos().iter().map(|group| group.logical).collect();
    let again = walk(&fs);
    assert!(again.names == seen.names && again.errors == seen.errors, "others are read");
    // What every commit needs, or every file, may be what is lost.
    if node.tree.is_subvolume() {
        common::new_file(&fs, "behind", &content(9));
        fs.sync().expect("a commit");
    }
    let closed = fs.destroy();
    assert!(closed.is_ok() || read_only.is_some(), "{closed:?}");
    drop(fs);
    let stayed: Vec<_> = before.iter().filter(|group| now.contains(&group.logical)).collect();
    assert!(stayed.iter().any(|group| has(group, node.logical.0)), "what is lost stays");
    if node.tree.is_subvolume() {
        let mut below = BTreeSet::new();
        sound.all_below(node.logical, node.level, &mut below);
        for group in &stayed {
            assert!(below.iter().any(|at| has(group, *at)), "{group:?} stays for nothing");
        }
    }
    sound.is_whole_again(&device, node);
    match read_only {
        Some(_) => Fate::ReadOnly,
        None => Fate::Stayed(stayed.len(), before.len()),
    }
}

impl Sound {
    /// What is left of a volume once the lost node is there again.
    fn is_whole_again(&self, device: &Arc<Layered>, node: &NodeAt) {
        let good = self.base.node_bytes(&*self.base.device, node.logical);
        for at in self.base.copies(node.logical) {
            let mut there = vec![0; good.len()];
            device.read_at(at, &mut there).expect("in range");
            let spoilt = there.iter().zip(&good).filter(|(a, b)| a != b).count();
            assert_eq!(spoilt, 1, "nothing was written there");
            device.write_at(at, &good).expect("in range");
        }
        self.judge(device);
        let fs = BtrfsFs::open_device(device.clone(), reading()).expect("opens");
        let mut after = walk(&fs);
        after.names.remove(&b"/behind"[..]);
        assert!(after.errors.is_empty(), "{:?}", after.errors);
        assert!(after.names == self.walk.names, "something is another");
    }
}

#[test]
fn an_interior_node_that_is_lost_keeps_what_it_leads_to_alone() {
    testkit::require!(btrfs_progs);
    let sound = Arc::new(Sound::new());
    let interior: Vec<_> = sound.base.nodes.iter().filter(|node| node.level > 0).collect();
    let mut failures = Failures::default();
    let mut fates: BTreeMap<(u64, String), usize> = BTreeMap::new();
    for node in &interior {
        let (of, node) = (sound.clone(), **node);
        let fate = watched(&format!("{node:?}"), move || without(&of, &node));
        let fate = match failures.note(fate) {
            Some(Fate::Refused) => "refused".into(),
            Some(Fate::ReadOnly) => "read-only".into(),
            Some(Fate::Stayed(stayed, of)) => {
                if node.tree.is_subvolume() && stayed == of {
                    failures.add(format!("{node:?}: nothing moves"));
                }
                format!("{stayed} of {of} stay")
            }
            None => continue,
        };
        *fates.entry((node.tree.0, fate)).or_default() += 1;
    }
    println!("by tree: {fates:#?}");
    failures.assert_none();
    let trees: BTreeSet<_> = interior.iter().map(|node| node.tree).collect();
    assert!(trees.iter().filter(|tree| tree.is_subvolume()).count() >= 4, "{trees:?}");
    assert!(interior.len() > 12, "{} interior nodes", interior.len());
    assert!([TreeId::CSUM, TreeId::EXTENT].iter().all(|tree| trees.contains(tree)), "{trees:?}");
}
