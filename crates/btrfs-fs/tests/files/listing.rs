//! Listing a directory whose names move all the time: it ends where the directory ended, and
//! what stays is listed once.

use crate::common;
use btrfs_fs::BtrfsFs;
use common::Image;
use std::collections::BTreeSet;
use vfs::{Context, FileKind, FileSystem, Ino, RenameMode};

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };
const NAMES: usize = 2000;

fn filled(fs: &BtrfsFs) -> Ino {
    let dir = fs.mkdir(&CX, fs.root(), b"dir", 0o755).expect("mkdir").attr.ino;
    for n in 0..NAMES {
        let name = format!("name-{n}");
        let new = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0).expect("mknod");
        fs.forget(new.attr.ino, 1);
    }
    dir
}

/// Lists all, and moves each name for which `moves` when it comes.
fn list(fs: &BtrfsFs, dir: Ino, plus: bool, moves: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let mut seen = Vec::new();
    let mut take = |name: &[u8]| {
        if name == b"." || name == b".." {
            return true;
        }
        seen.push(name.to_vec());
        if moves(name) {
            let to = format!("moved-{}", seen.len());
            fs.rename(&CX, dir, name, dir, to.as_bytes(), RenameMode::Replace).expect("rename");
        }
        seen.len() < 3 * NAMES
    };
    match plus {
        false => fs.readdir(dir, 0, &mut |entry| take(entry.name)).expect("readdir"),
        true => {
            let mut emit = |entry: &vfs::DirEntry<'_>, full: Option<&vfs::Entry>| {
                let go_on = take(entry.name);
                if let (true, Some(full)) = (go_on, full) {
                    fs.forget(full.attr.ino, 1);
                }
                go_on
            };
            fs.readdir_plus(dir, 0, &mut emit).expect("readdir_plus");
        }
    }
    seen
}

fn listed_once(fs: &BtrfsFs, dir: Ino) {
    for plus in [false, true] {
        let all = list(fs, dir, plus, |_| false);
        let before: BTreeSet<_> = all.iter().cloned().collect();
        assert_eq!((before.len(), all.len()), (NAMES, NAMES));
        let stays = |name: &[u8]| name.ends_with(b"7");
        let seen = list(fs, dir, plus, |name| !stays(name));
        // What moved in front of the listing may come again under its new name, once a batch.
        assert!(seen.len() < 2 * NAMES, "plus {plus}: {} names", seen.len());
        let mut staying = seen.iter().filter(|name| stays(name) && before.contains(*name));
        let expected = before.iter().filter(|name| stays(name)).count();
        assert_eq!(staying.by_ref().count(), expected, "plus {plus}");
        // What was renamed is named anew for the next round.
        for (n, name) in list(fs, dir, plus, |_| false).iter().enumerate() {
            let to = format!("name-{plus}-{n}");
            fs.rename(&CX, dir, name, dir, to.as_bytes(), RenameMode::Replace).expect("rename");
        }
    }
}

#[test]
fn a_listing_ends_beside_renames() {
    testkit::require!(btrfs_progs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let dir = filled(&fs);
    listed_once(&fs, dir);
    fs.sync().expect("sync");
    listed_once(&fs, dir);
    fs.forget(dir, 1);
    common::close_and_judge(&image, fs);
    // The directory is not in memory: its end comes from the tree.
    let fs = image.open();
    let dir = fs.lookup(&CX, fs.root(), b"dir").expect("lookup").attr.ino;
    let end = fs.dir_end(dir).expect("end");
    let mut last = 0;
    fs.readdir(dir, 0, &mut |entry| {
        last = entry.next;
        true
    })
    .expect("readdir");
    assert_eq!(end, last);
    listed_once(&fs, dir);
}

/// All that is listed of `dir`, each with a reference.
fn list_all(fs: &BtrfsFs, dir: Ino) -> Vec<(Vec<u8>, vfs::Entry)> {
    let mut listed = Vec::new();
    let mut take = |name: &vfs::DirEntry<'_>, entry: Option<&vfs::Entry>| {
        listed.extend(entry.map(|entry| (name.name.to_vec(), *entry)));
        true
    };
    fs.readdir_plus(dir, 0, &mut take).expect("readdir_plus");
    listed
}

fn open_inodes(fs: &BtrfsFs) -> u64 {
    let stats = fs.stats();
    stats.iter().find(|stat| stat.name == "inodes.open").expect("a counter").value
}

/// A directory of many names of which nothing is in memory, and the first one has content.
fn opened_anew(image: &Image) -> (BtrfsFs, Ino) {
    let fs = image.open();
    let dir = filled(&fs);
    fs.write(&CX, list_all(&fs, dir)[0].1.attr.ino, 0, &[7; 9000], Default::default())
        .expect("write");
    common::close_and_judge(image, fs);
    let fs = image.open();
    let dir = fs.lookup(&CX, fs.root(), b"dir").expect("lookup").attr.ino;
    (fs, dir)
}

/// Who lists holds inodes by number; they come into memory by who works with them. What is told of them is the
/// same, and a name that goes meanwhile leaves the inode to who listed it.
#[test]
fn what_is_listed_stays_out_of_memory() {
    testkit::require!(btrfs_progs);
    let image = Image::new(256 << 20, &[]);
    let (fs, dir) = opened_anew(&image);
    let before = open_inodes(&fs);
    let listed = list_all(&fs, dir);
    assert_eq!((listed.len(), open_inodes(&fs)), (NAMES, before));
    for (name, entry) in &listed {
        let known = fs.getattr(entry.attr.ino).expect("it is claimed");
        assert_eq!(&known, &entry.attr);
        let found = fs.lookup(&CX, dir, name).expect("lookup");
        assert_eq!((found.attr, found.generation), (entry.attr, entry.generation));
        fs.forget(entry.attr.ino, 1);
    }
    assert_eq!(list_all(&fs, dir).len(), NAMES, "they are in memory now");
    listed.iter().for_each(|(_, entry)| fs.forget(entry.attr.ino, 2));
    common::close_and_judge(&image, fs);
}

#[test]
fn what_is_listed_outlasts_its_name() {
    testkit::require!(btrfs_progs);
    let image = Image::new(256 << 20, &[]);
    let (fs, dir) = opened_anew(&image);
    let listed = list_all(&fs, dir);
    for (name, _) in &listed {
        fs.unlink(&CX, dir, name).expect("unlink");
    }
    fs.sync().expect("sync");
    let first = listed[0].1.attr.ino;
    let mut content = [0; 9001];
    assert_eq!(fs.read(first, 0, &mut content).expect("nobody forgot it"), 9000);
    assert!(content[..9000].iter().all(|byte| *byte == 7));
    listed
        .iter()
        .for_each(|(_, entry)| assert_eq!(fs.getattr(entry.attr.ino).expect("held").nlink, 0));
    listed.iter().for_each(|(_, entry)| fs.forget(entry.attr.ino, 1));
    assert!(
        listed.iter().all(|(_, entry)| fs.getattr(entry.attr.ino).is_err()),
        "nobody holds them"
    );
    fs.forget(dir, 1);
    common::close_and_judge(&image, fs);
}
