//! Damaged and crafted volumes: every answer is a typed error or the truth, nothing
//! panics, hangs, takes memory without bound, or harms what was whole.
//!
//! `SPINNEY_HOSTILE=N` runs N crafted images of each kind instead of a few hundred, from
//! `SPINNEY_HOSTILE_SEED` on.

mod memory;
mod watch;

use blockdev::{BlockDevice, MemDevice};
use btrfs_disk::ids::block_group::{DATA, SYSTEM};
use btrfs_disk::key::kind::{BLOCK_GROUP_ITEM, FREE_SPACE_EXTENT, INODE_ITEM};
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use btrfs_disk::{Key, Logical, TreeId};
use btrfs_fs::{BtrfsFs, Options};
use fuzzing::hostile::base::{Base, NodeAt, options};
use fuzzing::hostile::choices::Choices;
use fuzzing::hostile::disk::Layered;
use fuzzing::hostile::drive::{Opened, Opening, Seen, drive, walk};
use fuzzing::hostile::leaf::Leaf;
use fuzzing::hostile::{mutate, targeted};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use testkit::oracle;
use vfs::{FileKind, FileSystem, FsError};
use watch::{Failures, watched};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn small_nodes() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| Base::ours(1, 4096, 1500))
}

/// The kernel's own volume: compression, snapshots, nested subvolumes.
fn kernels() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| made_by_kernel(&["-n", "4096"]))
}

/// The same as it was in 2013: it gets a free-space tree, out of what its extents say.
fn old_ones() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    let mkfs = ["-n", "4096", "-O", "^skinny-metadata,^no-holes", "-R", "^free-space-tree"];
    BASE.get_or_init(|| made_by_kernel(&mkfs))
}

fn made_by_kernel(mkfs: &[&str]) -> Base {
    let dir = oracle::TempDir::new("hostile").expect("temp dir");
    let path = dir.join("disk.img");
    oracle::mkfs_btrfs(&path, 256 << 20, mkfs).expect("mkfs.btrfs");
    let populate = |mount: &oracle::KernelMount| oracle::kernel_populate(mount.path(), 3);
    oracle::with_kernel(&path, "noatime", populate).expect("mount").expect("populate");
    let image = std::fs::read(&path).expect("read the image");
    Base::of(Arc::new(MemDevice::from_bytes(&image)))
}

/// Nothing that was readable and that no operation had to do with is lost.
fn assert_kept(opened: &Opened) {
    let after = opened.after.as_ref().expect("the volume opens again");
    for (path, seen) in &opened.before.names {
        let name = String::from_utf8_lossy(path);
        if opened.touched.contains(&seen.ino) || seen.content.is_none() {
            continue;
        }
        if seen.kind == FileKind::Dir {
            // Its size goes with its names.
            assert!(after.names.get(path).is_some_and(|a| a.ino == seen.ino), "{name} is gone");
            continue;
        }
        assert_eq!(Some(seen), after.names.get(path), "{name} was harmed");
    }
}

/// How many names that no operation had to do with read otherwise than before.
fn harmed(opened: &Opened) -> usize {
    let Some(after) = &opened.after else { return opened.before.names.len() };
    let untouched = |seen: &Seen| !opened.touched.contains(&seen.ino) && seen.content.is_some();
    let files = opened.before.names.iter().filter(|(_, seen)| seen.kind == FileKind::File);
    files.filter(|(path, seen)| untouched(seen) && after.names.get(*path) != Some(*seen)).count()
}

fn opened(fate: Opening) -> Opened {
    match fate {
        Opening::Opened(opened) => opened,
        Opening::Refused(why) => panic!("refused: {why}"),
    }
}

#[test]
fn a_sound_image_stays_whole() {
    let device = Arc::new(Layered::new(&small_nodes().device));
    let opened = opened(watched("sound", move || drive(&device, &mut Choices::seed(1))).unwrap());
    assert!(opened.before.names.len() > 100 && opened.before.errors.is_empty());
    assert_eq!(
        (opened.operation_errors < 12, &opened.read_only, opened.closed),
        (true, &None, true)
    );
    assert_kept(&opened);
}

fn refusal(device: Arc<dyn BlockDevice>) -> FsError {
    match BtrfsFs::open_device(device, options()) {
        Ok(_) => panic!("opened"),
        Err(error) => error,
    }
}

#[test]
fn what_is_no_btrfs_is_refused() {
    let refused = |device: MemDevice| {
        let error = refusal(Arc::new(device));
        assert!(matches!(error, FsError::NotAVolume(_)), "{error:?}");
    };
    for len in [0, 1, 4095, 65536, 65537, 69632, 1 << 20, 65 << 20] {
        refused(MemDevice::new(len));
    }
    let mut noise = vec![0; 4 << 20];
    testkit::ops::Rng::new(9).fill(&mut noise);
    refused(MemDevice::from_bytes(&noise));
    let mut ext4 = vec![0; 4 << 20];
    ext4[1080..1082].copy_from_slice(&[0x53, 0xEF]);
    refused(MemDevice::from_bytes(&ext4));
}

#[test]
fn a_shortened_image_is_refused_or_read_where_it_can_be() {
    let base = small_nodes();
    let len = base.device.len();
    let mut failures = Failures::default();
    for cut in (0..40).map(|i| len * i / 40).chain([len - 4096, len - 1, 65536 + 4096, 65536]) {
        let device = Arc::new(Layered::cut(&base.device, cut));
        let result = watched(&format!("cut to {cut}"), move || {
            if let Ok(fs) = BtrfsFs::open_device(device.clone(), options()) {
                let why = fs.read_only_reason().expect("cut short, and may be written");
                assert!(why.contains("truncated"), "{why}");
            }
            drive(&device, &mut Choices::seed(cut));
            assert_eq!(device.writes(), 0, "a truncated image was written");
        });
        failures.note(result);
    }
    failures.assert_none();
}

#[test]
fn any_good_superblock_copy_opens_the_volume() {
    let base = small_nodes();
    for (spoilt, opens) in [(vec![0], true), (vec![1], true), (vec![0, 1], false)] {
        let device = Arc::new(Layered::new(&base.device));
        for copy in &spoilt {
            device.write_at(COPIES[*copy] + 500, &[0xFF; 8]).unwrap();
        }
        let fate = watched("superblock", move || drive(&device, &mut Choices::seed(1))).unwrap();
        assert_eq!(matches!(fate, Opening::Opened(_)), opens, "{spoilt:?}: {fate:?}");
        if let Opening::Opened(opened) = fate {
            assert_kept(&opened);
        }
    }
    let device = Layered::new(&base.device);
    device.write_at(COPIES[0], &[0; SUPER_SIZE]).unwrap();
    let fs = BtrfsFs::open_device(Arc::new(device), options()).expect("by the second copy");
    assert!(fs.read_only_reason().is_some_and(|why| why.contains("wiped")));
}

#[test]
fn one_bad_copy_of_any_node_is_answered_and_repaired() {
    let base = small_nodes();
    let mut failures = Failures::default();
    for (i, node) in base.nodes.iter().enumerate().step_by(3) {
        let device = Arc::new(Layered::new(&base.device));
        base.spoil(&device, node.logical, i / 3 % 2);
        let good = base.node_bytes(&*base.device, node.logical);
        let at = base.copies(node.logical)[0];
        let result = watched(&format!("one copy of {node:?}"), move || {
            let fs = BtrfsFs::open_device(device.clone(), options()).expect("opens");
            let seen = walk(&fs);
            assert!(seen.errors.is_empty(), "{:?}", seen.errors);
            drop(fs);
            let mut first = vec![0; good.len()];
            device.read_at(at, &mut first).unwrap();
            first == good
        });
        // What the walk had no need to read stays as it is.
        let needed = node.tree.is_subvolume() || node.tree == TreeId::ROOT;
        let repaired = failures.note(result);
        assert!(repaired != Some(false) || !needed, "{node:?} was not repaired");
    }
    failures.assert_none();
}

#[test]
fn a_read_only_mount_repairs_nothing() {
    let base = small_nodes();
    let device = Arc::new(Layered::new(&base.device));
    for node in &base.nodes {
        base.spoil(&device, node.logical, 0);
    }
    device.forget_writes();
    let options = Options { read_only: true, ..options() };
    let fs = BtrfsFs::open_device(device.clone(), options).expect("opens");
    assert!(walk(&fs).errors.is_empty());
    fs.destroy().unwrap();
    assert_eq!(device.writes(), 0);
}

/// The leaf with the directory that the mount starts at.
fn holds_top(base: &Base, node: &NodeAt) -> bool {
    let leaf = Leaf::of(&base.node_bytes(&*base.device, node.logical));
    leaf.items.iter().any(|(key, _)| (key.objectid, key.kind) == (256, INODE_ITEM))
}

#[test]
fn a_node_without_a_good_copy_harms_nothing_else() {
    let base = small_nodes();
    let mut failures = Failures::default();
    let mut refused = 0;
    for (i, node) in base.nodes.iter().enumerate() {
        let names_something = matches!(node.tree, TreeId::FS | TreeId::ROOT);
        if i % 2 == 1 && !names_something {
            continue;
        }
        let device = Arc::new(Layered::new(&base.device));
        base.spoil(&device, node.logical, 0);
        base.spoil(&device, node.logical, 1);
        let fate = watched(&format!("both copies of {node:?}"), move || {
            let fate = drive(&device, &mut Choices::seed(i as u64));
            if let Opening::Opened(opened) = &fate {
                assert_kept(opened);
            }
            fate
        });
        // Whoever can list the subvolumes can reach all other files.
        match (failures.note(fate), node.tree) {
            (Some(Opening::Refused(why)), TreeId::FS)
                if node.level == 0 && !holds_top(base, node) =>
            {
                failures.add(format!("{node:?}: a leaf of files refuses the mount: {why}"));
            }
            (Some(Opening::Opened(_)), TreeId::ROOT) => {
                failures.add(format!("{node:?}: opened without a list of trees"));
            }
            (Some(Opening::Refused(_)), _) => refused += 1,
            _ => {}
        }
    }
    println!("{refused} mounts refused");
    failures.assert_none();
}

/// Crafted images: each change is one of many, each with a right checksum.
fn crafted(base: &'static Base, seeds: std::ops::Range<u64>) {
    let mut failures = Failures::default();
    let mut fates: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in seeds {
        let mut choices = Choices::seed(seed);
        let device = Arc::new(Layered::new(&base.device));
        let told = mutate::mutate(base, &device, &mut choices);
        let fate = watched(&format!("seed {seed}: {told}"), move || drive(&device, &mut choices));
        let Some(fate) = failures.note(fate) else { continue };
        *fates.entry(sort_of(&fate)).or_default() += 1;
        if let Opening::Opened(Opened { after: None, .. }) = fate {
            failures.add(format!("seed {seed}: {told}: opens only once"));
        }
    }
    println!("{fates:?}, peak of memory {} MiB", memory::peak() >> 20);
    failures.assert_none();
    assert!(memory::peak() < 1536 << 20, "{} bytes of memory", memory::peak());
}

/// Volumes of the same seeds that once went wrong.
#[test]
fn what_was_found_before() {
    let base = small_nodes();
    let mut failures = Failures::default();
    // (contradiction, seed): a link count of 0 on the top directory, byte counts near the
    // end of the numbers, the last index that there is.
    for (which, seed) in [(14, 14019), (16, 16015), (16, 16049), (4, 4009), (4, 4027)] {
        let mut choices = Choices::seed(seed);
        let device = Arc::new(Layered::new(&base.device));
        let start = choices.index(base.nodes.len());
        let told = targeted::apply(base, &device, &mut choices, which, start);
        let fate = watched(&format!("seed {seed}: {told}"), move || drive(&device, &mut choices));
        match failures.note(fate) {
            Some(Opening::Opened(opened)) => assert!(opened.after.is_some(), "{told}"),
            Some(Opening::Refused(why)) => println!("{told}: refused: {why}"),
            None => {}
        }
    }
    failures.assert_none();
}

fn sort_of(fate: &Opening) -> &'static str {
    match fate {
        Opening::Refused(_) => "refused",
        Opening::Opened(o) if o.read_only.is_some() || !o.closed => "turned read-only",
        Opening::Opened(o) if o.before.errors.is_empty() => "opened, no error seen",
        Opening::Opened(_) => "opened, with errors",
    }
}

#[test]
fn crafted_nodes_of_our_own_volume() {
    let first = number("SPINNEY_HOSTILE_SEED", 0);
    crafted(small_nodes(), first..first + number("SPINNEY_HOSTILE", 300));
}

#[test]
fn crafted_nodes_of_the_kernels_volume() {
    testkit::require!(kernel_btrfs);
    let first = number("SPINNEY_HOSTILE_SEED", 0);
    crafted(kernels(), first..first + number("SPINNEY_HOSTILE", 60));
}

#[test]
fn crafted_nodes_of_an_old_volume() {
    testkit::require!(kernel_btrfs);
    let first = number("SPINNEY_HOSTILE_SEED", 0);
    crafted(old_ones(), first..first + number("SPINNEY_HOSTILE", 60));
}

/// Each named contradiction a few times, alone.
#[test]
fn every_contradiction() {
    let base = small_nodes();
    let mut failures = Failures::default();
    let rounds = number("SPINNEY_HOSTILE", 200) / 25;
    for which in 0..targeted::count() {
        let (mut harm, mut fates) = (0, BTreeMap::<&str, u64>::new());
        for round in 0..rounds {
            let seed = which as u64 * 1000 + round;
            let mut choices = Choices::seed(seed);
            let device = Arc::new(Layered::new(&base.device));
            let start = choices.index(base.nodes.len());
            let told = targeted::apply(base, &device, &mut choices, which, start);
            assert!(round > 0 || !told.contains("no place"), "{told}");
            let fate =
                watched(&format!("seed {seed}: {told}"), move || drive(&device, &mut choices));
            let Some(fate) = failures.note(fate) else { continue };
            *fates.entry(sort_of(&fate)).or_default() += 1;
            if let Opening::Opened(opened) = &fate {
                harm += harmed(opened);
                if opened.after.is_none() {
                    failures.add(format!("seed {seed}: {told}: opens only once"));
                }
            }
        }
        println!("{}: {fates:?}, {harm} bystanders harmed", targeted::name(which));
    }
    failures.assert_none();
}

/// A volume with one file of known content; data in one copy or two.
fn with_content(mkfs: &[&str]) -> (Arc<MemDevice>, Vec<u8>, Vec<u64>) {
    let dir = oracle::TempDir::new("hostile").expect("temp dir");
    let path = dir.join("disk.img");
    oracle::mkfs_btrfs(&path, 256 << 20, mkfs).expect("mkfs.btrfs");
    let device = Arc::new(MemDevice::from_bytes(&std::fs::read(&path).expect("read")));
    let mut content = vec![0; 300 << 10];
    testkit::ops::Rng::new(4).fill(&mut content);
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
    let cx = vfs::Context::default();
    let entry = fs.mknod(&cx, fs.root(), b"file", FileKind::File, 0o644, 0).expect("make");
    fs.write(&cx, entry.attr.ino, 0, &content, vfs::WriteFlags::default()).expect("write");
    fs.destroy().expect("close");
    let image = device.to_bytes();
    let found = |at: &usize| image[*at..].starts_with(&content[..4096]);
    let copies = (0..image.len()).step_by(4096).filter(found).map(|at| at as u64).collect();
    (device, content, copies)
}

/// What reading the file's second sector, and the whole file, gives.
fn read_file(device: &Arc<Layered>) -> (vfs::Result<Vec<u8>>, vfs::Result<Vec<u8>>) {
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
    let entry = fs.lookup(&vfs::Context::default(), fs.root(), b"file").expect("lookup");
    let read = |offset, len: usize| {
        let mut buf = vec![0x5A; len];
        fs.read(entry.attr.ino, offset, &mut buf).map(|read| buf[..read].to_vec())
    };
    (read(4096, 4096), read(0, entry.attr.size as usize))
}

#[test]
fn content_that_fails_its_checksum_is_never_handed_out() {
    testkit::require!(btrfs_progs);
    let (base, content, copies) = with_content(&[]);
    assert_eq!(copies.len(), 1);
    for (at, bit) in [(0, 0), (4095, 7), (4096, 1), (5000, 3), (8191, 5), (299 << 10, 2)] {
        let device = Arc::new(Layered::new(&base));
        device.write_at(copies[0] + at, &[content[at as usize] ^ 1 << bit]).unwrap();
        let (sector, whole) = read_file(&device);
        let error = whole.expect_err("damaged content");
        assert_eq!(error.errno(), libc::EIO, "{error}");
        assert!(error.to_string().contains("checksum"), "{error}");
        match (4096..8192).contains(&at) {
            true => assert_eq!(sector.expect_err("damaged").errno(), libc::EIO),
            false => assert_eq!(sector.expect("whole"), content[4096..8192]),
        }
    }
}

#[test]
fn content_with_a_good_copy_is_read_and_repaired() {
    testkit::require!(btrfs_progs);
    let (base, content, copies) = with_content(&["-d", "dup", "-m", "dup"]);
    assert_eq!(copies.len(), 2);
    for spoilt in 0..2 {
        let device = Arc::new(Layered::new(&base));
        for at in [0, 4097, 9000, 200_000, 299 << 10] {
            // Not the same sectors in both copies: each has something to give.
            device.write_at(copies[spoilt] + at, &[!content[at as usize]]).unwrap();
        }
        device.write_at(copies[1 - spoilt] + 20_000, &[!content[20_000]]).unwrap();
        let (sector, whole) = read_file(&device);
        assert_eq!(sector.expect("the other copy"), content[4096..8192]);
        assert_eq!(whole.expect("the other copy"), content);
        let mut first = vec![0; content.len()];
        device.read_at(copies[0], &mut first).unwrap();
        assert!(first == content, "the first copy was not repaired");
    }
    let device = Arc::new(Layered::new(&base));
    for copy in copies {
        device.write_at(copy + 5000, &[!content[5000]]).unwrap();
    }
    let error = read_file(&device).1.expect_err("both copies");
    assert_eq!(error.errno(), libc::EIO);
    let vfs::FsError::Corrupt(damage) = error else { panic!("{error}") };
    assert_eq!((damage.kind, damage.copy), (vfs::DamageKind::Content, Some(0)), "{damage:?}");
    assert!(damage.address.is_some(), "{damage:?}");
}

/// The free-space tree calls a used place free and as much free space used: sums agree, so
/// the mount believes it. It must be noticed before a byte that is in use is written over,
/// be it a node's, the log's or content's, or discarded; what stands there is what stood there.
#[test]
fn a_lying_free_space_tree_costs_neither_node_nor_content() {
    let base = small_nodes();
    let (mut failures, mut lies) = (Failures::default(), 0);
    let groups = base.nodes.iter().filter(|n| n.tree == TreeId::FREE_SPACE && n.level == 0);
    for node in groups {
        let leaf = Leaf::of(&base.node_bytes(&*base.device, node.logical));
        let is_free = |(slot, _): &(usize, u64)| leaf.items[*slot].0.kind == FREE_SPACE_EXTENT;
        let shifts = (0..leaf.items.len()).flat_map(|slot| [1, 2, 16].map(|by| (slot, by * 4096)));
        for (slot, by) in shifts.filter(is_free) {
            let mut leaf = leaf.clone();
            leaf.items[slot].0.objectid -= by;
            let front = slot.checked_sub(1).map(|slot| leaf.items[slot].0);
            let key = leaf.items[slot].0;
            let overlaps = |front: Key| front.objectid + front.offset >= key.objectid;
            if front.is_some_and(|f| f.kind == FREE_SPACE_EXTENT && overlaps(f) || f >= key) {
                continue;
            }
            lies += 1;
            let device = Arc::new(Layered::new(&base.device));
            base.put_node(&device, node.logical, leaf.clone().bytes());
            let case = format!("free space {key} is {by} further in front");
            let (seen, there) = (device.clone(), bytes_of(base, &device, key.objectid, by));
            let fate = watched(&case, move || drive(&seen, &mut Choices::seed(slot as u64)));
            let unused = Arc::new(Layered::new(&base.device));
            base.put_node(&unused, node.logical, leaf.clone().bytes());
            if let Err(why) = judge_trim(base, unused, key.objectid, &there) {
                failures.add(format!("{case}: trim: {why}"));
            }
            if let Some(fate) = failures.note(fate) {
                judge_lie(base, &device, key.objectid, &there, fate)
                    .unwrap_or_else(|why| failures.add(format!("{case}: {why}")));
            }
        }
    }
    assert!(lies > 10, "{lies} lies");
    failures.assert_none();
}

/// All copies of a logical range.
fn bytes_of(base: &Base, device: &Layered, at: u64, len: u64) -> Vec<Vec<u8>> {
    let read = |copy: u64| {
        let mut bytes = vec![0; len as usize];
        device.read_at(copy, &mut bytes).expect("in range");
        bytes
    };
    base.copies(Logical(at)).into_iter().map(read).collect()
}

/// What `there` says at `at` was in use and said to be free.
fn judge_lie(
    base: &Base,
    device: &Layered,
    at: u64,
    there: &[Vec<u8>],
    fate: Opening,
) -> Result<(), String> {
    let Opening::Opened(opened) = fate else { return Err(format!("{fate:?}")) };
    if bytes_of(base, device, at, there[0].len() as u64) != there {
        return Err("what was in use is written over".into());
    }
    let told = opened.read_only.as_deref().unwrap_or_default();
    // Nothing that was done changes the chunk tree.
    let mut system = base.chunks.iter().filter(|c| c.flags & SYSTEM != 0);
    let unasked = system.any(|c| (c.logical.0..c.end()).contains(&at));
    let explained = told.contains("block group of") && told.contains("btrfs check");
    if !(unasked || explained) {
        return Err(format!("turned read-only: {:?}", opened.read_only));
    }
    match (opened.after.as_ref().map_or(usize::MAX, metadata_errors), harmed(&opened)) {
        (0, 0) => Ok(()),
        (errors, harmed) => Err(format!("{errors} errors of structure, {harmed} files harmed")),
    }
}

/// The first thing that is done to the volume is to tell the device what is free.
fn judge_trim(base: &Base, device: Arc<Layered>, at: u64, there: &[Vec<u8>]) -> Result<(), String> {
    let fs = BtrfsFs::open_device(device.clone(), options()).map_err(|e| e.to_string())?;
    let trimmed = fs.trim(&vfs::Context::default(), 0, u64::MAX, 0);
    if bytes_of(base, &device, at, there[0].len() as u64) != there {
        return Err("what was in use is discarded".into());
    }
    match trimmed {
        Err(error) if error.errno() == libc::EUCLEAN && fs.read_only_reason().is_some() => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// A block group is said to use more than its extents have, the free-space tree agrees: no
/// byte is in danger, but whoever counts on with it must not go on.
#[test]
fn a_block_group_with_more_in_use_than_extents_is_noticed() {
    let base = small_nodes();
    let mut found = 0;
    for group in base.chunks.iter().filter(|c| c.flags & DATA != 0) {
        let device = Arc::new(Layered::new(&base.device));
        let inside = |key: &Key| (group.logical.0..group.end()).contains(&key.objectid);
        let shortened = change_item(base, &device, FREE_SPACE_EXTENT, inside, |key, _| {
            key.objectid += 4096;
            key.offset -= 4096;
        });
        let raised = change_item(base, &device, BLOCK_GROUP_ITEM, inside, |_, data| {
            let used = u64::from_le_bytes(data[..8].try_into().expect("8")) + 4096;
            data[..8].copy_from_slice(&used.to_le_bytes());
        });
        if !(shortened && raised) {
            continue;
        }
        found += 1;
        let opened =
            opened(watched("leak", move || drive(&device, &mut Choices::seed(1))).unwrap());
        let told = opened.read_only.as_deref().unwrap_or_default();
        assert!(told.contains("are said to be used, and extents have"), "{told:?}");
        assert_eq!(harmed(&opened), 0);
    }
    assert!(found > 0);
}

/// Changes the first item of this kind whose key is `meant`, in whatever tree it is.
fn change_item(
    base: &Base,
    device: &Layered,
    kind: u8,
    meant: impl Fn(&Key) -> bool,
    change: impl Fn(&mut Key, &mut Vec<u8>),
) -> bool {
    for node in base.nodes.iter().filter(|n| n.level == 0) {
        let mut leaf = Leaf::of(&base.node_bytes(device, node.logical));
        let item =
            leaf.items.iter_mut().find(|(k, _)| k.kind == kind && meant(k) && k.offset > 4096);
        if let Some((key, data)) = item {
            change(key, data);
            base.put_node(device, node.logical, leaf.bytes());
            return true;
        }
    }
    false
}

fn metadata_errors(walk: &fuzzing::hostile::drive::Walk) -> usize {
    walk.errors.get(&libc::EUCLEAN).copied().unwrap_or(0)
}
