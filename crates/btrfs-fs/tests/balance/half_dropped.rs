//! Balances beside a deleted subvolume of which a leaf is lost, so that half of it stays: what is left of it moves
//! with all others, but for what lies with that leaf; when the damage is undone the rest of it is dropped.
//!
//! What it does not know: lost nodes of those that live (`lost.rs`).

use crate::{common, spread};
use blockdev::BlockDevice;
use blocksim::SimDevice;
use btrfs_check::Severity;
use btrfs_disk::items::FileExtent;
use btrfs_disk::key::kind;
use btrfs_disk::{Expect, Key, Logical, Node, TreeId};
use btrfs_fs::{BalanceState, BtrfsFs, Caller, Defect, Delete, Injection, Options};
use btrfs_space::{GroupInfo, Kind};
use common::CX;
use fuzzing::hostile::base::{Base, options};
use fuzzing::hostile::disk::Layered;
use fuzzing::hostile::drive::{Walk, walk};
use spread::{balance, content, elsewhere, has, put, volume};
use std::collections::BTreeSet;
use std::sync::Arc;
use vfs::FileSystem;

const FILES: usize = 1100;
const SIZE: u64 = 4 << 30;
const PIECE: usize = 1 << 20;

fn delete(fs: &BtrfsFs, name: &str) -> btrfs_fs::SubvolId {
    let which = Delete::Name(fs.root(), name.as_bytes());
    fs.delete_subvolume(&Caller::root(), which).expect("delete")
}

/// Subvolume `doomed` shares with `kept`; a snapshot of it that is gone is newer than most of its nodes.
fn fill(fs: &BtrfsFs) {
    let (root, mut aside) = (Caller::root(), Vec::new());
    let made = fs.create_subvolume(&root, fs.root(), b"doomed").expect("create");
    let doomed = made.1.attr.ino;
    for n in 0..FILES {
        put(fs, doomed, &format!("a-file-of-some-name-{n}"), &content(n));
    }
    elsewhere(fs, &mut aside);
    fs.snapshot(&root, doomed, fs.root(), b"kept", false).expect("snapshot");
    elsewhere(fs, &mut aside);
    for n in (0..FILES).step_by(20) {
        put(fs, doomed, &format!("a-file-of-some-name-{n}"), &content(n + 7));
    }
    elsewhere(fs, &mut aside);
    fs.snapshot(&root, doomed, fs.root(), b"gone", false).expect("snapshot");
    let gone = delete(fs, "gone");
    fs.sync_deleted(&[gone], None).expect("dropped");
    let large: Vec<u8> = (0..9 << 20).map(|at| (at / 4096) as u8).collect();
    put(fs, fs.root(), "large", &large);
    fs.space().new_chunk(Kind::Data).expect("a chunk");
    aside.into_iter().for_each(|group| fs.space().take_back(group).expect("taken back"));
}

fn node(fs: &BtrfsFs, expect: &Expect) -> Arc<Node> {
    fs.committed().expect("a commit").nodes().node(expect).expect("a sound node")
}

/// The leaves of a subvolume, in the order of their keys.
fn leaves(fs: &BtrfsFs, name: &[u8]) -> Vec<(Logical, Arc<Node>)> {
    let ino = fs.lookup(&CX, fs.root(), name).expect("there").attr.ino;
    let tree = TreeId(fs.subvolume_of(ino).expect("a subvolume").0.0);
    let root = fs.committed().expect("a commit").tree(tree).expect("there").0;
    let mut level = vec![node(fs, &root.expect())];
    while !level[0].is_leaf() {
        let below = |node: &Arc<Node>| {
            let child = |slot| Expect::of_child(&node.child(slot), node.level() - 1, tree);
            (0..node.len()).map(child).collect::<Vec<_>>()
        };
        level = level.iter().flat_map(below).map(|expect| node(fs, &expect)).collect();
    }
    level.into_iter().map(|leaf| (leaf.logical(), leaf)).collect()
}

/// A sound volume, all that it has, and a leaf in the middle of `doomed` that nobody else has.
struct Sound {
    base: Base,
    walk: Walk,
    lost: Arc<Node>,
}

impl Sound {
    fn new() -> Sound {
        let base = volume(SIZE, fill);
        let reading = Options { read_only: true, ..options() };
        let fs = BtrfsFs::open_device(base.device.clone(), reading).expect("open");
        let kept: BTreeSet<_> = leaves(&fs, b"kept").into_iter().map(|(at, _)| at).collect();
        let mut own = leaves(&fs, b"doomed");
        own.retain(|(at, _)| !kept.contains(at));
        assert!(own.len() > 20, "{} leaves", own.len());
        let lost = own.swap_remove(own.len() / 2).1;
        Sound { base, walk: walk(&fs), lost }
    }

    /// Whether a block group has the lost leaf, or content that it names.
    fn concerns(&self, group: &GroupInfo) -> bool {
        let has = |at| has(group, at);
        let extents = self.lost.items().filter(|(key, _)| key.kind == kind::EXTENT_DATA);
        let mut named = extents.filter_map(|(_, data)| match FileExtent::parse(data) {
            Ok(FileExtent::Extent { fields, .. }) => Some(fields.disk_bytenr.0),
            _ => None,
        });
        has(self.lost.logical().0) || named.any(has)
    }

    fn mend(&self, device: &Layered) {
        for at in self.base.copies(self.lost.logical()) {
            let good = self.base.node_bytes(&*self.base.device, self.lost.logical());
            device.write_at(at, &good).expect("in range");
        }
    }
}

/// What `btrfs check` says of the device.
fn judge(device: &Layered) {
    let image = SimDevice::new(blocksim::Image::zeros(SIZE));
    let mut piece = vec![0; PIECE];
    for at in (0..SIZE).step_by(PIECE) {
        device.read_at(at, &mut piece).expect("in range");
        if piece.iter().any(|byte| *byte != 0) {
            image.write_at(at, &piece).expect("write");
        }
    }
    common::judge_image(&image.image());
}

#[test]
fn what_is_left_of_a_deleted_subvolume_moves() {
    let sound = Sound::new();
    let device = Arc::new(Layered::new(&sound.base.device));
    let copies = sound.base.copies(sound.lost.logical()).len();
    (0..copies).for_each(|copy| sound.base.spoil(&device, sound.lost.logical(), copy));
    let injection = Injection::of(Some(Defect::TinySteps));
    let fs = BtrfsFs::open_device(device.clone(), Options { injection, ..options() });
    let fs = fs.expect("open");
    let doomed = delete(&fs, "doomed");
    let stuck = fs.sync_deleted(&[doomed], None).expect_err("a leaf is lost");
    assert_eq!(stuck.errno(), libc::EUCLEAN, "{stuck}");
    let item = fs.committed().expect("a commit").tree(TreeId(doomed.0)).expect("there").1;
    assert!(item.drop_progress != Key::MIN && item.drop_level == 1, "{item:?}");
    let before = fs.space().group_infos();
    let done = balance(&fs);
    assert_eq!(done.state, BalanceState::Done);
    let now: BTreeSet<_> = fs.space().group_infos().iter().map(|group| group.logical).collect();
    let stayed: Vec<_> = before.iter().filter(|group| now.contains(&group.logical)).collect();
    println!("{} of {} block groups stay: {done:?}", stayed.len(), before.len());
    for group in &stayed {
        assert!(sound.concerns(group), "{group:?} stays for nothing");
    }
    assert!(stayed.len() * 2 < before.len(), "{} of {} stay", stayed.len(), before.len());
    fs.destroy().expect("close");
    drop(fs);
    sound.mend(&device);
    common::check_device(device.clone(), true, Severity::Warning);
    is_dropped_to_the_end(&sound, device, doomed);
}

fn is_dropped_to_the_end(sound: &Sound, device: Arc<Layered>, doomed: btrfs_fs::SubvolId) {
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
    fs.sync_deleted(&[doomed], None).expect("dropped");
    let after = walk(&fs);
    assert!(after.errors.is_empty(), "{:?}", after.errors);
    let mut expected = sound.walk.names.clone();
    expected.retain(|name, _| !name.starts_with(b"/doomed"));
    assert!(after.names == expected, "something is another");
    fs.destroy().expect("close");
    drop(fs);
    common::check_device(device.clone(), true, Severity::Warning);
    judge(&device);
}
