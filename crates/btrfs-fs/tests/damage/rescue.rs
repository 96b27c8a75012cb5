//! What rescuers make do with (`Options::rescue`): an earlier commit's trees, a root tree with holes, content whose
//! checksum is wrong or lost. Nothing is written, and without asking nobody gets any of it.

use crate::common;
use blockdev::{BlockDevice, MemDevice};
use btrfs_disk::key::kind;
use btrfs_disk::{Logical, TreeId};
use btrfs_fs::{BtrfsFs, Caller, Options, Rescue};
use btrfs_image::mkfs::{MkfsOptions, make};
use common::{CX, errno, find, new_file, read};
use fuzzing::hostile::base::{Base, NodeAt, options};
use fuzzing::hostile::leaf::Leaf;
use std::sync::Arc;
use vfs::FileSystem;

static CONTENT: [u8; 40_000] = [0xA5; 40_000];
/// Has no checksums.
static PLAIN: [u8; 40_000] = [0x3C; 40_000];
const FS_NOCOW: u32 = 0x80_0000;
const SUBVOLUMES: usize = 40;

/// Long ones, so that what refers to them lies between the top level's item and which subvolume is the default.
fn name_of(n: usize) -> String {
    format!("sub{n:0200}")
}

fn volume() -> Base {
    let device = Arc::new(MemDevice::new(256 << 20));
    let mkfs = MkfsOptions { node_size: Some(4096), ..MkfsOptions::default() };
    make(&*device, &mkfs).expect("mkfs");
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
    new_file(&fs, "content", &CONTENT);
    let made = fs.mknod(&CX, fs.root(), b"without-sums", vfs::FileKind::File, 0o644, 0);
    let ino = made.expect("create").attr.ino;
    fs.set_flags(&CX, ino, FS_NOCOW).expect("chattr +C");
    fs.write(&CX, ino, 0, &PLAIN, Default::default()).expect("write");
    fs.forget(ino, 1);
    for n in 0..SUBVOLUMES {
        let name = name_of(n);
        fs.create_subvolume(&Caller::root(), fs.root(), name.as_bytes()).expect("create");
    }
    for n in 0..6 {
        new_file(&fs, &format!("of-commit-{n}"), &[n; 3000]);
        fs.sync().expect("commit");
    }
    fs.destroy().expect("close");
    drop(fs);
    Base::of(device)
}

/// What is at `logical` is lost, in all copies.
fn lose(base: &Base, logical: Logical) {
    for at in base.copies(logical) {
        let mut byte = [0];
        base.device.read_at(at + 200, &mut byte).expect("in range");
        base.device.write_at(at + 200, &[!byte[0]]).expect("in range");
    }
}

fn open(base: &Base, rescue: Rescue) -> vfs::Result<BtrfsFs> {
    let options = Options { read_only: true, rescue, ..options() };
    BtrfsFs::open_device(base.device.clone(), options)
}

fn is_damage<T>(result: vfs::Result<T>) {
    let errno = errno(result);
    assert!([libc::EIO, libc::EUCLEAN].contains(&errno), "errno {errno}");
}

#[test]
fn where_the_last_commit_is_lost_an_earlier_one_is_shown() {
    let base = volume();
    let (roots, last) = (&base.superblock.backups, base.superblock.generation());
    let rescue = Rescue { backup_root: true, ..Rescue::default() };
    let fs = open(&base, rescue).expect("nothing is lost");
    assert_eq!(fs.read_only_reason().as_deref(), Some("mounted read-only"));
    assert!(read(&fs, fs.root(), "of-commit-5") == [5; 3000]);
    drop(fs);
    lose(&base, base.superblock.fields.root);
    is_damage(open(&base, Rescue::default()));
    let fs = open(&base, rescue).expect("an earlier commit");
    let why = fs.read_only_reason().expect("it is");
    let shown = last.0 - 1;
    assert!(why.contains(&format!("commit {shown}; those of {last}")), "{why}");
    assert!(read(&fs, fs.root(), "content") == CONTENT);
    assert!(read(&fs, fs.root(), "of-commit-4") == [4; 3000]);
    assert_eq!(errno(fs.mknod(&CX, fs.root(), b"x", vfs::FileKind::File, 0o644, 0)), libc::EROFS);
    drop(fs);
    let writing = Options { rescue, ..options() };
    let refused = BtrfsFs::open_device(base.device.clone(), writing);
    assert_eq!(errno(refused), libc::EOPNOTSUPP);
    // The next one is lost as well, and then all.
    let mut others: Vec<_> = roots.iter().filter(|b| b.tree_root_gen != last).collect();
    others.sort_by_key(|backup| std::cmp::Reverse(backup.tree_root_gen.0));
    assert_eq!(others.len(), 3);
    for backup in others {
        lose(&base, backup.tree_root);
        if let Ok(fs) = open(&base, rescue) {
            let why = fs.read_only_reason().expect("it is");
            assert!(!why.contains(&format!("commit {};", backup.tree_root_gen)), "{why}");
        }
    }
    is_damage(open(&base, rescue));
}

/// It may have been written over since, and nothing tells: `cp` copied it with an exit status of success.
#[test]
fn content_of_an_earlier_commit_that_has_no_checksums_is_named() {
    let base = volume();
    let rescue = Rescue { backup_root: true, ..Rescue::default() };
    for lost in [false, true] {
        if lost {
            lose(&base, base.superblock.fields.root);
        }
        let fs = open(&base, rescue).expect("a commit");
        for (name, content, sums) in [("content", CONTENT, true), ("without-sums", PLAIN, false)] {
            assert!(read(&fs, fs.root(), name) == content, "{name}");
            let ino = find(&fs, fs.root(), name).expect("there");
            let doubted: u64 = fs.take_unverified(ino).iter().map(|(_, len)| len).sum();
            let expected = if lost && !sums { CONTENT.len() as u64 } else { 0 };
            assert_eq!(doubted, expected, "{name}, lost: {lost}");
        }
    }
}

/// Whichever leaf of it; but the top of the volume must be named somewhere.
#[test]
fn what_a_lost_part_of_the_root_tree_names_is_not_there_and_all_else_is() {
    let base = volume();
    let is_leaf = |node: &&NodeAt| (node.tree, node.level) == (TreeId::ROOT, 0);
    let leaves: Vec<&NodeAt> = base.nodes.iter().filter(is_leaf).collect();
    assert!(leaves.len() >= 4, "{} leaves", leaves.len());
    let mut lost_default = false;
    for leaf in leaves {
        let keys = Leaf::of(&base.node_bytes(&*base.device, leaf.logical)).items;
        let has =
            |id: TreeId, kind| keys.iter().any(|(key, _)| (key.objectid, key.kind) == (id.0, kind));
        let names = |id| has(id, kind::ROOT_ITEM);
        lose(&base, leaf.logical);
        is_damage(open(&base, Rescue::default()));
        let data_sums = names(TreeId::CSUM);
        let opened = open(&base, Rescue { bad_roots: true, data_sums, ..Rescue::default() });
        match names(TreeId::FS) {
            false => the_rest_is_there(&opened.expect("the rest of it")),
            true => assert_eq!(errno(opened), libc::ENOENT),
        }
        lost_default |= !names(TreeId::FS) && has(TreeId::ROOT_DIR, kind::DIR_ITEM);
        // And as it was.
        lose(&base, leaf.logical);
    }
    assert!(lost_default && open(&base, Rescue::default()).is_ok());
}

fn the_rest_is_there(fs: &BtrfsFs) {
    assert!(read(fs, fs.root(), "content") == CONTENT);
    let is_there = |n: &usize| {
        let found = find(fs, fs.root(), &name_of(*n));
        found.is_some_and(|ino| {
            fs.readdir(ino, 0, &mut |_| true).is_ok() && fs.subvolume_of(ino).is_ok()
        })
    };
    let there = (0..SUBVOLUMES).filter(is_there).count();
    println!("{there} subvolumes are there");
    assert!(there >= SUBVOLUMES / 2);
}

#[test]
fn content_is_given_out_without_its_checksum_where_that_is_asked_for() {
    let unverified = Rescue { data_sums: true, ..Rescue::default() };
    let base = volume();
    let lost = base.nodes.iter().find(|node| node.tree == TreeId::CSUM).expect("a checksum tree");
    lose(&base, lost.logical);
    let mut buf = [0; 4096];
    let fs = open(&base, Rescue::default()).expect("open");
    let ino = find(&fs, fs.root(), "content").expect("there");
    is_damage(fs.read(ino, 8192, &mut buf));
    drop(fs);
    let fs = open(&base, unverified).expect("open");
    assert!(read(&fs, fs.root(), "content") == CONTENT);
    drop(fs);
    lose(&base, lost.logical);
    // Content that has changed under its checksum.
    let at = content_at(&base);
    base.device.write_at(at + 8192, &[0x5A]).expect("in range");
    let fs = open(&base, Rescue::default()).expect("open");
    is_damage(fs.read(ino, 8192, &mut buf));
    drop(fs);
    let fs = open(&base, unverified).expect("open");
    fs.read(ino, 8192, &mut buf).expect("as it is");
    assert!(buf[0] == 0x5A && buf[1..] == CONTENT[1..4096]);
}

/// Where on the device the file's content begins.
fn content_at(base: &Base) -> u64 {
    let mut block = vec![0; CONTENT.len()];
    let found = (0..base.device.len()).step_by(4096).find(|at| {
        at + block.len() as u64 <= base.device.len()
            && base.device.read_at(*at, &mut block).is_ok()
            && block == CONTENT
    });
    found.expect("it is somewhere")
}
