//! A leaf of a subvolume is lost, and what is done would need it later than when it was asked for: who asks is
//! told, nothing is lost of anybody else's, and the volume can be written.

use crate::{common, lost};
use blocksim::Hooked;
use btrfs_disk::checksum::ChecksumType;
use btrfs_disk::compress::{Encoded, compress};
use btrfs_disk::items::{Compression, DirItem, FileExtent};
use btrfs_disk::key::kind::{DIR_INDEX, DIR_ITEM, EXTENT_DATA, INODE_ITEM, XATTR_ITEM};
use btrfs_disk::{Key, Logical, TreeId};
use btrfs_fs::{BtrfsFs, Caller, Delete, Options};
use common::unreadable::Unreadable;
use common::{CX, files_of, find, new_file, read};
use fuzzing::hostile::base::{Base, options};
use fuzzing::hostile::disk::Layered;
use fuzzing::hostile::leaf::Leaf;
use lost::{
    Items, content_stays, flip, is_sound, leaves, leaves_of, open, set_owner, told, volume,
    volume_with,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use vfs::{FileKind, FileSystem, Ino, RenameMode, XattrMode};

const SECTOR: u64 = 4096;
const PIECES: u64 = 400;

fn all_of(ino: Ino, kind: u8) -> impl Fn(&Items) -> bool {
    move |items| items.iter().all(|(key, _)| (key.objectid, key.kind) == (ino.0, kind))
}

/// A file of so many pieces that their items are in several leaves.
fn pieces(fs: &BtrfsFs) -> Ino {
    let ino = new_file(fs, "pieces", &[]);
    for piece in 0..PIECES {
        let at = piece * 37 % PIECES * 2 * SECTOR;
        fs.write(&CX, ino, at, &[piece as u8; 4096], Default::default()).expect("write");
        if piece % 20 == 0 {
            fs.sync().expect("commit");
        }
    }
    ino
}

/// A volume with a file of many pieces, and a leaf in the midst of their items.
fn in_pieces() -> (Base, u64, u64) {
    let mut ino = Ino(0);
    let base = volume(|fs| {
        ino = pieces(fs);
        new_file(fs, "other", &[1; 5000]);
    });
    let found = leaves(&base, all_of(ino, EXTENT_DATA));
    assert!(found.len() >= 3, "{} leaves", found.len());
    let (items, lost) = &found[found.len() / 2];
    // Nothing of what is there has to be known for that.
    let at = items[0].0.offset + 4 * SECTOR;
    (base, *lost, at)
}

#[test]
fn content_whose_place_in_the_tree_is_lost_stays_in_memory() {
    let (base, lost, at) = in_pieces();
    flip(&base, lost);
    content_stays(base.device.clone(), at, || flip(&base, lost));
}

#[test]
fn content_whose_place_the_device_does_not_read_stays_in_memory() {
    let (base, lost, at) = in_pieces();
    let copies = base.copies(Logical(lost)).into_iter();
    let ranges = copies.map(|at| at..at + 4096).collect();
    let hook = Unreadable::new(ranges);
    let device = Arc::new(Hooked { below: Layered::new(&base.device), hook });
    content_stays(device.clone(), at, || device.hook.mend());
}

/// What somebody has compressed is refused before anything is changed.
#[test]
fn compressed_content_whose_place_in_the_tree_is_lost_is_refused() {
    let (base, lost, at) = in_pieces();
    let (content, mut room) = (vec![9; 16384], Vec::new());
    let stream = compress(Compression::Zlib, 3, 4096, &content, content.len()).expect("smaller");
    let encoded = Encoded::decode(Compression::Zlib, 4096, &stream, (16384, 0..16384), &mut room);
    let encoded = encoded.expect("our own stream");
    flip(&base, lost);
    let fs = open(&base.device);
    let pieces = find(&fs, fs.root(), "pieces").expect("there");
    let free = || fs.space().totals().data.free;
    let before = free();
    told(fs.write_encoded(pieces, at, &encoded), "its place is lost");
    assert_eq!((fs.read_only_reason(), free()), (None, before));
    flip(&base, lost);
    assert!(fs.write_encoded(pieces, at, &encoded).expect("it is there again"));
    fs.destroy().expect("close");
    drop(fs);
    is_sound(&base);
}

/// Where the end of a tree is lost, an open file without a name cannot be recorded as such; everything else is
/// committed.
#[test]
fn a_file_without_a_name_is_not_recorded_where_that_is_lost() {
    let base = volume(|fs| {
        new_file(fs, "victim", &[1; 9000]);
        (0..300).for_each(|n| _ = new_file(fs, &name(n), &[n as u8; 60]));
    });
    let found = leaves(&base, |items| items[0].0.kind == INODE_ITEM || items.len() > 1);
    let last = |items: &Items| items.last().map(|(key, _)| *key);
    let (_, lost) = found.iter().max_by_key(|(items, _)| last(items)).expect("leaves");
    flip(&base, *lost);
    for erased in [true, false] {
        let fs = open(&base.device);
        let top = fs.root();
        let name = if erased { "victim".into() } else { name(3) };
        let open = find(&fs, top, &name).expect("there");
        fs.unlink(&CX, top, name.as_bytes()).expect("unlink");
        let other = find(&fs, top, &self::name(1)).expect("there");
        fs.write(&CX, other, 60, &[4; 6000], Default::default()).expect("write");
        fs.sync().expect("commit");
        assert_eq!(fs.read_only_reason(), None);
        let mut there = [0; 10];
        fs.read(open, 0, &mut there).expect("it is open");
        if erased {
            fs.forget(open, 1);
            fs.sync().expect("commit");
            fs.destroy().expect("close");
            drop(fs);
            flip(&base, *lost);
            is_sound(&base);
            flip(&base, *lost);
        } else {
            fs.give_up("as a crash");
        }
    }
    flip(&base, *lost);
    let fs = open(&base.device);
    for n in (0..300).filter(|n| ![1, 3].contains(n)) {
        assert!(read(&fs, fs.root(), &name(n)) == [n as u8; 60], "{n}");
    }
    assert!(read(&fs, fs.root(), &name(1))[60..] == [4; 6000]);
    assert!(find(&fs, fs.root(), &name(3)).is_none());
    fs.destroy().expect("close");
}

fn name(n: usize) -> String {
    format!("a-name-of-some-length-{n}")
}

/// A name whose place in the order of its directory is lost is not taken away.
#[test]
fn a_name_whose_index_is_lost_stays() {
    let mut top = Ino(0);
    let base = volume(|fs| {
        top = fs.root();
        (0..300).for_each(|n| _ = new_file(fs, &name(n), &[n as u8; 60]));
        fs.create_subvolume(&Caller::root(), top, b"sub").expect("a subvolume");
    });
    let found = leaves(&base, all_of(top, DIR_INDEX));
    assert!(found.len() >= 3, "{} leaves", found.len());
    let (items, lost) = &found[found.len() / 2];
    let entry = DirItem::iter(&items[3].1).next().expect("an entry").expect("sound");
    let (there, victim) = (entry.name.to_vec(), name(0).into_bytes());
    flip(&base, *lost);
    let fs = open(&base.device);
    for round in 0..5 {
        new_file(&fs, &format!("new-{round}"), &[1; 90]);
        let gone = match round {
            0 => fs.unlink(&CX, top, &there),
            1 => fs.rename(&CX, top, &there, top, &victim, RenameMode::Replace),
            2 => fs.rename(&CX, top, &victim, top, &there, RenameMode::Exchange),
            3 => fs.rename(&CX, top, b"sub", top, &there, RenameMode::Exchange),
            _ => fs.rename(&CX, top, &there, top, b"sub", RenameMode::Exchange),
        };
        told(gone, "a name that goes");
        fs.sync().expect("commit");
        assert_eq!(fs.read_only_reason(), None);
    }
    fs.destroy().expect("close");
    drop(fs);
    flip(&base, *lost);
    let fs = open(&base.device);
    (0..300).for_each(|n| assert!(read(&fs, top, &name(n)) == [n as u8; 60], "{n}"));
    (0..5).for_each(|n| assert!(read(&fs, top, &format!("new-{n}")) == [1; 90]));
    fs.destroy().expect("close");
    is_sound(&base);
}

/// The last name of what could not be erased stays: an ORPHAN_ITEM that nobody can follow would keep the kernel from
/// mounting the volume to write.
#[test]
fn the_last_name_of_what_cannot_be_erased_stays() {
    let (mut top, mut many, mut dir) = (Ino(0), Ino(0), Ino(0));
    let base = volume(|fs| {
        top = fs.root();
        many = pieces(fs);
        dir = fs.mkdir(&CX, top, b"dir", 0o755).expect("mkdir").attr.ino;
        for n in 0..60 {
            fs.setxattr(&CX, dir, format!("user.{n}").as_bytes(), &[1; 200], XattrMode::Set)
                .expect("set");
        }
        new_file(fs, "new", &[1; 60]);
    });
    let lost = [(many, EXTENT_DATA), (dir, XATTR_ITEM)].map(|(ino, kind)| {
        let found = leaves(&base, all_of(ino, kind));
        found[found.len() / 2].1
    });
    lost.iter().for_each(|lost| flip(&base, *lost));
    let fs = open(&base.device);
    fs.create_subvolume(&Caller::root(), top, b"sub").expect("subvolume");
    for _ in 0..2 {
        let replace = |old: &str, new: &str| {
            fs.rename(&CX, top, old.as_bytes(), top, new.as_bytes(), RenameMode::Replace)
        };
        told(fs.unlink(&CX, top, b"pieces"), "unlink");
        told(replace("new", "pieces"), "a file replaces it");
        told(fs.rmdir(&CX, top, b"dir"), "rmdir");
        told(replace("sub", "dir"), "a subvolume replaces it");
        fs.sync().expect("commit");
    }
    // One name of two may go.
    fs.link(&CX, many, top, b"again").expect("link");
    fs.unlink(&CX, top, b"pieces").expect("unlink");
    fs.destroy().expect("close");
    drop(fs);
    lost.iter().for_each(|lost| flip(&base, *lost));
    is_sound(&base);
    let fs = open(&base.device);
    fs.unlink(&CX, top, b"again").expect("unlink");
    fs.rmdir(&CX, top, b"dir").expect("rmdir");
    fs.destroy().expect("close");
    is_sound(&base);
}

/// Where a log would have to say what is lost, a commit does, which need not know it.
#[test]
fn what_a_log_cannot_know_is_committed() {
    let mut dirs = [Ino(0); 3];
    let base = volume(|fs| {
        let dir = |above, name: &str| {
            fs.mkdir(&CX, above, name.as_bytes(), 0o755).expect("mkdir").attr.ino
        };
        let fill = |of: &str| (0..60).for_each(|n| _ = new_file(fs, &format!("{of}{n}"), &[7; 50]));
        fill("first");
        let above = dir(fs.root(), "above");
        fill("second");
        let into = dir(above, "into");
        fill("third");
        let moved = dir(fs.root(), "moved");
        dirs = [above, into, moved];
    });
    let [above, into, moved] = dirs;
    let has =
        |ino: Ino| move |(key, _): &(Key, Vec<u8>)| (key.objectid, key.kind) == (ino.0, INODE_ITEM);
    let found = leaves(&base, |items| items.iter().any(has(above)));
    assert!(!found[0].0.iter().any(|item| has(into)(item) || has(moved)(item)), "elsewhere");
    let fs = BtrfsFs::open_device(base.device.clone(), Options { cache_bytes: 0, ..options() })
        .expect("open");
    for name in ["above", "moved"] {
        find(&fs, fs.root(), name).expect("there");
    }
    find(&fs, above, "into").expect("there");
    fs.rename(&CX, fs.root(), b"moved", into, b"moved", RenameMode::Replace).expect("rename");
    flip(&base, found[0].1);
    let before = common::stat(&fs, "log.fallback_commits");
    fs.fsync(moved, false).expect("durable");
    assert_eq!(fs.read_only_reason(), None);
    assert_eq!(common::stat(&fs, "log.fallback_commits"), before + 1, "by a commit");
    fs.give_up("as a crash");
    drop(fs);
    flip(&base, found[0].1);
    let fs = open(&base.device);
    let above = find(&fs, fs.root(), "above").expect("there");
    let into = find(&fs, above, "into").expect("there");
    find(&fs, into, "moved").expect("it has moved");
    fs.destroy().expect("close");
    is_sound(&base);
}

/// A subvolume that is deleted and cannot be read goes as far as it can, and takes nothing along.
#[test]
fn a_deleted_subvolume_that_is_damaged_stays_in_part() {
    let base = volume(|fs| {
        let (root, top) = (Caller::root(), fs.root());
        let sub = fs.create_subvolume(&root, top, b"sub").expect("create").1.attr.ino;
        let fill = |dir, len: usize| {
            for n in 0..300 {
                let made = fs.mknod(&CX, dir, name(n).as_bytes(), FileKind::File, 0o644, 0);
                let ino = made.expect("create").attr.ino;
                fs.write(&CX, ino, 0, &vec![n as u8; len], Default::default()).expect("write");
            }
        };
        fill(sub, 3000);
        fs.snapshot(&root, sub, top, b"kept", true).expect("snapshot");
        let other = fs.create_subvolume(&root, top, b"other").expect("create").1.attr.ino;
        fill(other, 200);
        for n in (0..300).step_by(7) {
            fs.unlink(&CX, sub, name(n).as_bytes()).expect("unlink");
        }
    });
    let fs = open(&base.device);
    let (kept, id) = (files_of(&fs, "kept"), |name| {
        fs.subvolume_of(find(&fs, fs.root(), name).expect("there")).expect("one").0.0
    });
    let trees = [id("sub"), id("other")];
    fs.destroy().expect("close");
    drop(fs);
    let leaf = |tree: u64| {
        let mut all = base.nodes.iter().filter(move |node| (node.tree.0, node.level) == (tree, 0));
        all.nth(5).expect("a leaf").logical.0
    };
    let lost = trees.map(leaf);
    lost.iter().for_each(|at| flip(&base, *at));
    for round in 0..2 {
        let fs = open(&base.device);
        if round == 0 {
            for name in ["sub", "other"] {
                let which = Delete::Name(fs.root(), name.as_bytes());
                fs.delete_subvolume(&Caller::root(), which).expect("delete");
            }
        }
        told(fs.sync_deleted(&[], None), "they do not go");
        new_file(&fs, &format!("new-{round}"), &[5; 5000]);
        fs.sync().expect("commit");
        assert_eq!(fs.read_only_reason(), None);
        assert!(files_of(&fs, "kept") == kept);
        fs.destroy().expect("close");
    }
    lost.iter().for_each(|at| flip(&base, *at));
    let fs = open(&base.device);
    assert!(fs.sync_deleted(&[], None).expect("now they go"));
    assert!(files_of(&fs, "kept") == kept);
    fs.destroy().expect("close");
    drop(fs);
    is_sound(&base);
}

/// The same of one that has a node which says that it is another tree's: whose its pointers are is not known.
#[test]
fn a_deleted_subvolume_with_a_node_of_another_tree_stays_in_part() {
    let files = [("large", 300), ("small", 2)];
    let mut ids = Vec::new();
    let base = volume(|fs| {
        for (sub, files) in files {
            let made = fs.create_subvolume(&Caller::root(), fs.root(), sub.as_bytes());
            let (id, entry) = made.expect("create");
            for n in 0..files {
                let dir = entry.attr.ino;
                fs.mknod(&CX, dir, name(n).as_bytes(), FileKind::File, 0o644, 0).expect("create");
            }
            ids.push(TreeId(id.0));
        }
    });
    let leaf = |tree: &TreeId| leaves_of(&base, |of| of == *tree, |_| true);
    let strange: Vec<_> =
        ids.iter().map(|tree| (leaf(tree).pop().expect("a leaf").1, *tree)).collect();
    strange.iter().for_each(|(at, _)| set_owner(&base, *at, TreeId::FS));
    let fs = open(&base.device);
    for (sub, _) in files {
        let which = Delete::Name(fs.root(), sub.as_bytes());
        fs.delete_subvolume(&Caller::root(), which).expect("delete");
    }
    for round in 0..2 {
        told(fs.sync_deleted(&[], None), "they do not go");
        assert_eq!(fs.read_only_reason(), None);
        new_file(&fs, &format!("new-{round}"), &[5; 5000]);
        fs.sync().expect("commit");
    }
    fs.destroy().expect("close");
    drop(fs);
    strange.iter().for_each(|(at, tree)| set_owner(&base, *at, *tree));
    let fs = open(&base.device);
    assert!(fs.sync_deleted(&[], None).expect("now they go"));
    fs.destroy().expect("close");
    drop(fs);
    is_sound(&base);
}

/// A leaf of the tree of UUIDs is lost, which only repeats what root items say: the subvolumes that it lists come and
/// go as the others.
#[test]
fn subvolumes_come_and_go_where_a_leaf_of_uuids_is_lost() {
    let made = |fs: &BtrfsFs, from: usize, to: usize| {
        for n in from..to {
            fs.create_subvolume(&Caller::root(), fs.root(), name(n).as_bytes()).expect("create");
        }
    };
    let base = volume(|fs| made(fs, 0, 500));
    let found = leaves_of(&base, |tree| tree == TreeId::UUID, |_| true);
    assert!(found.len() >= 3, "{} leaves", found.len());
    flip(&base, found[found.len() / 2].1);
    let fs = open(&base.device);
    let (root, top) = (Caller::root(), fs.root());
    made(&fs, 500, 600);
    for n in (0..600).step_by(2) {
        fs.delete_subvolume(&root, Delete::Name(top, name(n).as_bytes())).expect("delete");
    }
    fs.sync().expect("commit");
    for n in (1..600).step_by(4) {
        let source = find(&fs, top, &name(n)).expect("there");
        fs.snapshot(&root, source, top, name(n - 1).as_bytes(), true).expect("snapshot");
    }
    assert!(fs.sync_deleted(&[], None).expect("they go"));
    assert!(fs.clear_uuid_tree().expect("it is cleared"));
    assert_eq!(fs.read_only_reason(), None);
    fs.destroy().expect("close");
    drop(fs);
    let makes = Options { background: true, ..options() };
    BtrfsFs::open_device(base.device.clone(), makes).expect("open").destroy().expect("close");
    is_sound(&base);
}

/// Names that a directory tells in pieces of `piece`, and how that ends.
fn listed(fs: &BtrfsFs, dir: Ino, piece: usize) -> (Vec<String>, vfs::Result<()>) {
    let (mut names, mut at) = (Vec::new(), 0);
    loop {
        let (start, mut told) = (at, 0);
        let result = fs.readdir(dir, start, &mut |entry| {
            if told == piece {
                return false;
            }
            (at, told) = (entry.next, told + 1);
            names.push(String::from_utf8(entry.name.to_vec()).expect("UTF-8"));
            true
        });
        // As the mount does: an error is told by the next piece, which meets it again.
        if at == start {
            return (names, result);
        }
    }
}

/// Where names are lost, a listing goes on behind them and ends with an error, in however many
/// pieces it comes.
#[test]
fn a_listing_goes_on_behind_lost_names() {
    let mut top = Ino(0);
    let base = volume(|fs| {
        top = fs.root();
        (0..600).for_each(|n| _ = new_file(fs, &name(n), b"x"));
    });
    let found = leaves(&base, all_of(top, DIR_INDEX));
    assert!(found.len() >= 6, "{} leaves", found.len());
    let whole = listed(&open(&base.device), top, usize::MAX).0;
    assert_eq!(whole.len(), 602);
    // One in the midst, two, two beside each other, the last that holds nothing else.
    for lost in [vec![2], vec![1, 4], vec![2, 3], vec![found.len() - 1]] {
        let names = |at: &usize| {
            let entries = found[*at].0.iter().flat_map(|(_, item)| DirItem::iter(item));
            let names = entries.map(|entry| entry.expect("sound").name.to_vec());
            names.map(|name| String::from_utf8(name).expect("UTF-8")).collect::<Vec<_>>()
        };
        let gone: Vec<_> = lost.iter().flat_map(names).collect();
        let left: Vec<_> = whole.iter().filter(|name| !gone.contains(name)).cloned().collect();
        lost.iter().for_each(|at| flip(&base, found[*at].1));
        let fs = open(&base.device);
        for piece in [usize::MAX, 300, 7, 1] {
            let (names, result) = listed(&fs, top, piece);
            assert!(names == left, "{lost:?} in pieces of {piece}: {} names", names.len());
            told(result, "a listing that is not whole");
        }
        lost.iter().for_each(|at| flip(&base, found[*at].1));
        let (names, result) = listed(&fs, top, 7);
        assert_eq!(names, whole, "it is there again");
        result.expect("whole");
        fs.destroy().expect("close");
    }
}

/// The same where names come meanwhile, with which a listing would not end: it ends where the directory ended when it
/// was begun.
#[test]
fn a_listing_of_lost_names_is_not_whole_where_others_come() {
    let mut top = Ino(0);
    let base = volume(|fs| {
        top = fs.root();
        (0..600).for_each(|n| _ = new_file(fs, &name(n), b"x"));
    });
    let found = leaves(&base, all_of(top, DIR_INDEX));
    flip(&base, found[2].1);
    let fs = open(&base.device);
    let end = fs.dir_end(top).expect("end");
    let mut at = 0;
    loop {
        let (start, mut told_here) = (at, 0);
        let result = fs.readdir(top, start, &mut |entry| {
            let takes = entry.next <= end && told_here < 7;
            if takes {
                (at, told_here) = (entry.next, told_here + 1);
            }
            takes
        });
        result.expect("another one comes behind the end");
        if at == start {
            break;
        }
        new_file(&fs, &format!("new {at}"), b"x");
    }
    told(fs.listing_ended(top, end), "the end of a listing that is not whole");
    flip(&base, found[2].1);
    fs.listing_ended(top, end).expect("whole");
    fs.destroy().expect("close");
}

/// What a leaf takes away that is lost: items of objects, names, and checksums of addresses.
#[derive(Default)]
struct Lost {
    objects: Vec<u64>,
    names: Vec<Vec<u8>>,
    sums: Vec<Range<u64>>,
}

fn lost_with(base: &Base, tree: TreeId, at: Logical) -> Lost {
    let mut lost = Lost::default();
    for (key, data) in Leaf::of(&base.node_bytes(&*base.device, at)).items {
        if tree == TreeId::CSUM {
            let sectors = (data.len() / base.geometry.csum.size()) as u64;
            lost.sums.push(key.offset..key.offset + sectors * SECTOR);
            continue;
        }
        lost.objects.push(key.objectid);
        if key.kind == DIR_ITEM {
            let names = DirItem::iter(&data).map(|entry| entry.expect("sound").name.to_vec());
            lost.names.extend(names);
        }
    }
    lost
}

/// Where files have their content.
fn places(base: &Base) -> BTreeMap<u64, Vec<Range<u64>>> {
    let mut places = BTreeMap::<u64, Vec<Range<u64>>>::new();
    for (key, data) in leaves(base, |_| true).into_iter().flat_map(|(items, _)| items) {
        if key.kind == EXTENT_DATA
            && let Ok(FileExtent::Extent { fields, .. }) = FileExtent::parse(&data)
        {
            let at = fields.disk_bytenr.0;
            places.entry(key.objectid).or_default().push(at..at + fields.disk_num_bytes);
        }
    }
    places
}

/// A leaf that is lost takes away what is in it, and nothing of what is beside it.
#[test]
fn what_is_not_in_the_lost_leaf_can_be_read() {
    let mut top = Ino(0);
    let base = volume_with(ChecksumType::Sha256, |fs| {
        top = fs.root();
        for n in 0..150 {
            let len = if n % 3 == 0 { 200 } else { 9000 };
            let ino = new_file(fs, &name(n), &vec![n as u8 + 1; len]);
            fs.setxattr(&CX, ino, b"user.n", &[n as u8], XattrMode::Set).expect("set");
        }
    });
    let places = places(&base);
    let mut counts = [0; 2];
    for node in base.nodes.iter().filter(|node| node.level == 0) {
        let (tree, at) = (node.tree, node.logical);
        if tree != TreeId::FS && tree != TreeId::CSUM {
            continue;
        }
        let lost = lost_with(&base, tree, at);
        flip(&base, at.0);
        let fs = open(&base.device);
        for n in 0..150 {
            let (name, len) = (name(n), if n % 3 == 0 { 200 } else { 9000 });
            let Some(ino) = find(&fs, top, &name) else {
                assert!(!lost.objects.is_empty(), "{name} is not found");
                continue;
            };
            let away = |place: &Range<u64>| {
                lost.sums.iter().any(|sums| sums.start < place.end && place.start < sums.end)
            };
            let touched = places.get(&ino.0).is_some_and(|places| places.iter().any(away));
            if lost.objects.contains(&ino.0) || lost.names.contains(&name.into_bytes()) || touched {
                continue;
            }
            counts[usize::from(tree == TreeId::CSUM)] += 1;
            assert_eq!(fs.listxattr(ino).expect("list"), [b"user.n"], "beside {tree} {at}");
            let mut content = vec![0; 9000];
            let got = fs.read(ino, 0, &mut content);
            assert_eq!(got.unwrap_or_else(|e| panic!("{n} beside {tree} {at}: {e}")), len);
            assert!(content[..len].iter().all(|byte| *byte == n as u8 + 1));
        }
        fs.destroy().expect("close");
        drop(fs);
        flip(&base, at.0);
    }
    is_sound(&base);
    assert!(counts[0] > 1000 && counts[1] > 150, "{counts:?} were looked at");
}
