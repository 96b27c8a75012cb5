//! Crashes of a volume that is being filled: what the device may hold then is mounted and held
//! against the mirror. What no call has touched since it was made durable is as the model says.
//!
//! It knows a device's record, and neither fillers nor how a volume is laid out.

use crate::mirror::{BLOCK, Loose, Mirror, Slot, State, at_top, hash, shorten, slot};
use crate::{base, outside, state};
use blocksim::{Epoch, Event, Image, Recording, Rng, SimDevice};
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use testkit::compare::{Content, NodeView, view, walk};
use testkit::oracle;
use vfs::{Context, FileKind, FileSystem, Ino};

const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0 };
const SHOWN: usize = 10;

/// What is not as the model has it, although nothing changed it since a sync.
struct Judge<'a> {
    mirror: &'a Mirror<'a>,
    state: &'a State,
    /// The model's numbers in the tested file system's.
    back: &'a HashMap<Ino, Ino>,
    found: Found,
    wrong: Vec<String>,
}

/// What a crashed volume has: names, and of each inode what must follow from them.
#[derive(Default)]
struct Found {
    slots: HashMap<Slot, Ino>,
    /// Links that it says it has, and names.
    links: HashMap<Ino, (u32, u32)>,
    /// Sizes of directories, and twice what their names have.
    sizes: HashMap<Ino, (u64, u64)>,
}

impl Judge<'_> {
    fn look(&mut self, fs: &dyn FileSystem, top: &[u8]) {
        at_top(fs, top, |dir| {
            let own = view(fs, dir).expect("a directory");
            self.inode(dir, top, &own);
            walk(fs, dir, &mut |dir, name, node| self.name(dir, name, node)).expect("walk");
        });
        let ours = self.mirror.model();
        at_top(ours, top, |dir| {
            names(ours, dir, &mut |dir, name, ino| self.is_there(dir, name, ino)).expect("walk");
        });
    }

    /// A name of the crashed volume.
    fn name(&mut self, dir: Ino, name: &[u8], node: &NodeView) {
        let (slot, ino) = (slot(dir, name), node.attr.ino);
        self.found.slots.insert(slot, ino);
        self.found.sizes.entry(dir).or_default().1 += 2 * name.len() as u64;
        let links = self.found.links.entry(ino).or_insert((node.attr.nlink, 0));
        links.1 += 1;
        if links.1 == 1 {
            self.inode(ino, name, node);
        }
        if self.state.slots.contains_key(&slot) {
            return;
        }
        let ours = self.state.numbers.get(&dir).and_then(|dir| {
            let found = self.mirror.model().lookup(&CX, *dir, name).ok()?.attr.ino;
            self.mirror.model().forget(found, 1);
            self.back.get(&found)
        });
        if ours != Some(&ino) {
            let name = String::from_utf8_lossy(name);
            self.wrong.push(format!("{name} in {dir:?} is {ino:?}, not {ours:?}"));
        }
    }

    fn inode(&mut self, ino: Ino, name: &[u8], found: &NodeView) {
        if found.attr.kind == FileKind::Dir {
            self.found.sizes.entry(ino).or_default().0 = found.attr.size;
        }
        let ours = self.state.numbers.get(&ino).and_then(|ours| {
            let ours = view(self.mirror.model(), *ours).ok()?;
            // What has no name any more is in no tree.
            (ours.attr.nlink > 0).then_some(ours)
        });
        let mut found = found.clone();
        shorten(&mut found);
        if let Some(ours) = ours
            && let Some(why) = differs(self.state.loose.get(&ino), &ours, &found)
        {
            self.wrong.push(format!("{} {ino:?}: {why}", String::from_utf8_lossy(name)));
        }
    }

    /// A name of the model, whose numbers these are.
    fn is_there(&mut self, dir: Ino, name: &[u8], ino: Ino) {
        let (dir, ino) = (self.back[&dir], self.back[&ino]);
        let slot = slot(dir, name);
        let found = self.found.slots.get(&slot);
        if !self.state.slots.contains_key(&slot) && found != Some(&ino) {
            let name = String::from_utf8_lossy(name);
            self.wrong.push(format!("{name} in {dir:?} is {found:?}, not {ino:?}"));
        }
    }

    /// With what contradicts itself in the crashed volume.
    fn all_wrong(mut self) -> Vec<String> {
        for (ino, (links, names)) in &self.found.links {
            if links != names {
                self.wrong.push(format!("{ino:?} has {links} links but {names} names"));
            }
        }
        for (dir, (size, names)) in &self.found.sizes {
            if size != names {
                self.wrong.push(format!("{dir:?} has size {size} but should have {names}"));
            }
        }
        self.wrong
    }
}

/// Shows `see` each name below a directory: (directory, name, inode).
fn names(fs: &dyn FileSystem, dir: Ino, see: &mut dyn FnMut(Ino, &[u8], Ino)) -> vfs::Result<()> {
    let mut dirs = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if !matches!(entry.name, b"." | b"..") {
            see(dir, entry.name, entry.ino);
            if entry.kind == FileKind::Dir {
                dirs.push(entry.ino);
            }
        }
        true
    })?;
    dirs.into_iter().try_for_each(|dir| names(fs, dir, see))
}

/// How many names there are below a directory.
pub fn count(fs: &dyn FileSystem, dir: Ino) -> usize {
    let mut count = 0;
    names(fs, dir, &mut |_, _, _| count += 1).expect("walk");
    count
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
    for name in names.filter(|name| !loose.xattrs.contains(&hash(name))) {
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
    let back = Mirror::back(&state);
    let device = crashed(&image, &told, |fs| {
        for top in tops {
            let (found, wrong) = Default::default();
            let mut judge = Judge { mirror, state: &state, back: &back, found, wrong };
            judge.look(fs, top);
            let wrong = judge.all_wrong();
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
