//! Crashes of a volume that is being filled: what the device may hold then is mounted and held
//! against the mirror. What no call has touched since it was made durable is as the model says.
//!
//! It knows a device's record, and neither fillers nor how a volume is laid out.

use crate::mirror::{BLOCK, Loose, Mirror, Slot, State, below};
use crate::{base, outside, state};
use blocksim::{Epoch, Event, Image, Recording, Rng, SimDevice};
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use testkit::compare::{Content, NodeView, TreeSnapshot};
use testkit::oracle;
use vfs::{Context, FileKind, FileSystem, Ino};

const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0 };
const SHOWN: usize = 10;

/// A tree by names and by inodes, in the tested file system's numbers.
struct Seen<'t> {
    slots: HashMap<Slot, Ino>,
    inodes: HashMap<Ino, (&'t testkit::ops::Path, &'t NodeView)>,
}

impl<'t> Seen<'t> {
    fn of(tree: &'t TreeSnapshot, number: impl Fn(Ino) -> Ino) -> Seen<'t> {
        let mut seen = Seen { slots: HashMap::new(), inodes: HashMap::new() };
        for (path, node) in &tree.nodes {
            let ino = number(node.attr.ino);
            seen.inodes.entry(ino).or_insert((path, node));
            let (dir, name) = path.split();
            if *path != testkit::ops::Path::default() {
                let dir = number(tree.nodes[&dir].attr.ino);
                seen.slots.insert((dir, name.to_vec()), ino);
            }
        }
        seen
    }
}

/// What of `found` is not as the model's `expected`, although nothing changed it since a sync.
fn wrong(state: &State, expected: &TreeSnapshot, found: &TreeSnapshot) -> Vec<String> {
    let back: HashMap<Ino, Ino> = state.numbers.iter().map(|(real, ours)| (*ours, *real)).collect();
    let expected = Seen::of(expected, |ino| back[&ino]);
    let mut wrong = found.contradictions();
    let found = Seen::of(found, |ino| ino);
    let slots: HashSet<&Slot> = expected.slots.keys().chain(found.slots.keys()).collect();
    for slot in slots.into_iter().filter(|slot| !state.slots.contains_key(*slot)) {
        let (ours, theirs) = (expected.slots.get(slot), found.slots.get(slot));
        if ours != theirs {
            let name = String::from_utf8_lossy(&slot.1);
            wrong.push(format!("{name} in {:?} is {theirs:?}, not {ours:?}", slot.0));
        }
    }
    for (ino, (path, ours)) in &expected.inodes {
        if let Some((_, theirs)) = found.inodes.get(ino)
            && let Some(why) = differs(state.loose.get(ino), ours, theirs)
        {
            wrong.push(format!("{path:?} {ino:?}: {why}"));
        }
    }
    wrong
}

fn differs(loose: Option<&Loose>, ours: &NodeView, theirs: &NodeView) -> Option<String> {
    let nothing = Loose::default();
    let loose = loose.unwrap_or(&nothing);
    let (a, b) = (&ours.attr, &theirs.attr);
    if a.kind != b.kind {
        return Some(format!("a {:?}, not a {:?}", b.kind, a.kind));
    }
    if loose.all {
        return None;
    }
    let about = |node: &NodeView| {
        let attr = &node.attr;
        (attr.perm, attr.uid, attr.gid, attr.nlink, node.flags, node.target.clone())
    };
    if !loose.attr && about(ours) != about(theirs) {
        return Some(format!("{:?}, not {:?}", about(theirs), about(ours)));
    }
    if a.kind == FileKind::File && !loose.size && a.size != b.size {
        return Some(format!("{} bytes, not {}", b.size, a.size));
    }
    let names = ours.xattrs.keys().chain(theirs.xattrs.keys());
    for name in names.filter(|name| !loose.xattrs.contains(*name)) {
        if ours.xattrs.get(name) != theirs.xattrs.get(name) {
            let there = theirs.xattrs.get(name).map(Vec::len);
            return Some(format!("attribute {} is {there:?}", String::from_utf8_lossy(name)));
        }
    }
    let (a, b) = (ours.content.as_ref()?, theirs.content.as_ref()?);
    block_that_differs(loose, a, b).map(|block| format!("block {block} differs"))
}

fn block_that_differs(loose: &Loose, a: &Content, b: &Content) -> Option<u64> {
    let whole = |content: &Content, block: u64| (block + 1) * BLOCK <= content.len;
    (0..a.blocks.len().max(b.blocks.len()) as u64).find(|&block| {
        // Where the end is, the hash is of what lies before it.
        let known = !loose.size || whole(a, block) && whole(b, block);
        let hash = |content: &Content| content.blocks.get(block as usize).copied().unwrap_or(0);
        known && !loose.blocks.contains(&block) && hash(a) != hash(b)
    })
}

/// One of the epochs that end at `position` or later. Each holds all that is durable, so
/// thousands of them at once would be gigabytes.
fn one_since(recording: &Recording, position: usize, rng: &mut Rng) -> Epoch {
    let flushes = recording.since(position).iter().filter(|event| matches!(event, Event::Flush));
    let count = 1 + flushes.count();
    let mut since = recording.epochs().filter(|epoch| epoch.end >= position);
    since.nth(rng.below(count as u64) as usize).expect("the last one ends where the record does")
}

/// Judges one of the states that a crash may leave since the last sync, in the directories
/// `tops` of the root. With `scratch`, `btrfs check` is asked as well, once it is mounted and
/// closed.
pub fn judge(
    device: &SimDevice,
    mirror: &Mirror<'_>,
    tops: &[&[u8]],
    seed: u64,
    told: &str,
    scratch: Option<&Path>,
) {
    let state = mirror.state();
    device.forget(state.durable_at);
    let recording = device.recording();
    let mut rng = Rng::new(seed);
    let epoch = one_since(&recording, state.durable_at, &mut rng);
    let choices = epoch.choices(8, rng.next_u64());
    let told = format!("{told}, crash {seed}, before flush {}", epoch.index);
    let mut image = epoch.image(rng.pick(&choices));
    // Where there is one superblock alone nobody mounts a torn one.
    while image.len() <= COPIES[1] + SUPER_SIZE as u64 && !outside::fit(&image) {
        image = epoch.image(rng.pick(&choices));
    }
    let device = crashed(&image, &told, |fs| {
        for top in tops {
            let wrong = wrong(&state, &mirror.expected(top), &below(fs, top));
            let some = &wrong[..wrong.len().min(SHOWN)];
            assert!(some.is_empty(), "{told}: {} wrong: {some:#?}", wrong.len());
        }
    });
    if let Some(scratch) = scratch {
        let path = scratch.join("crashed.img");
        device.image().export(&path).expect("export");
        oracle::assert_clean(&path);
        std::fs::remove_file(path).expect("remove");
    }
}

/// Mounts what a crash left, and closes it; our check has nothing to say before and after.
fn crashed(image: &Image, told: &str, look: impl FnOnce(&dyn FileSystem)) -> Arc<SimDevice> {
    state::check(image).unwrap_or_else(|why| panic!("{told}: {why}"));
    let device = Arc::new(SimDevice::new(image.clone()));
    let fs = base::mount(device.clone()).unwrap_or_else(|why| panic!("{told}: mount: {why}"));
    assert_eq!(fs.read_only_reason(), None, "{told}");
    look(&fs);
    fs.destroy().unwrap_or_else(|why| panic!("{told}: close: {why}"));
    drop(fs);
    state::check(&device.image()).unwrap_or_else(|why| panic!("{told}: after recovery: {why}"));
    device
}
