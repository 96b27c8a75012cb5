//! Balances of volumes with damage in what is to move: what no copy has stays where it is, by name, and the
//! block groups that do not need it move; with a good copy everything does.

use crate::common;
use btrfs_disk::ids::block_group::{DATA, METADATA, SYSTEM};
use btrfs_disk::items::BalanceItem;
use btrfs_fs::{BalanceState, BalanceStatus, BtrfsFs, Caller, Options};
use btrfs_space::Kind;
use common::{CX, Image, copies};
use std::os::unix::fs::FileExt;
use std::time::Duration;
use testkit::oracle;
use vfs::{FileKind, FileSystem, Ino};

const NODE: usize = 4096;
const FILES: usize = 400;

fn status(fs: &BtrfsFs) -> BalanceStatus {
    common::end_of_balance(fs, Duration::from_secs(60))
}

fn balance(fs: &BtrfsFs) -> BalanceStatus {
    let flags = DATA | METADATA | SYSTEM;
    fs.start_balance(BalanceItem { flags, ..BalanceItem::default() }).expect("begin");
    status(fs)
}

/// A volume with a file, two block groups for content, and many small files in a subvolume.
fn a_volume() -> Image {
    let image = Image::new(600 << 20, &["-n", "4096"]);
    let fs = image.open();
    common::new_file(&fs, "other", &content(2));
    fs.create_subvolume(&Caller::root(), fs.root(), b"sub").expect("create");
    let sub = fs.lookup(&CX, fs.root(), b"sub").expect("there").attr.ino;
    for n in 0..FILES {
        let name = format!("file-{n}");
        let made = fs.mknod(&CX, sub, name.as_bytes(), FileKind::File, 0o644, 0).expect("create");
        fs.write(&CX, made.attr.ino, 0, &[n as u8; 900], Default::default()).expect("write");
    }
    fs.sync().expect("commit");
    fs.space().new_chunk(Kind::Data).expect("a chunk");
    fs.destroy().expect("close");
    image
}

fn content(n: u8) -> Vec<u8> {
    (0..300_000u32).map(|at| (at / 7) as u8 ^ n).collect()
}

/// Nodes of the subvolume, by what `btrfs` says: (whether it is a leaf, address).
fn nodes(image: &Image) -> Vec<(bool, u64)> {
    let path = image.path.to_string_lossy();
    let told = oracle::sh("btrfs", &["inspect-internal", "dump-tree", "-t", "256", &path]);
    let told = told.expect("a dump");
    let lines = told.lines().filter(|line| line.starts_with("leaf ") || line.starts_with("node "));
    let number =
        |line: &str| line.split(' ').nth(1).expect("an address").parse().expect("a number");
    lines
        .filter(|line| line.contains(" items ") || line.contains(" level "))
        .map(|line| (line.starts_with("leaf "), number(line)))
        .collect()
}

fn damage(image: &Image, copies: &[u64]) {
    let file = std::fs::File::options().write(true).open(&image.path).expect("open");
    copies.iter().for_each(|at| file.write_all_at(&[0x5a; NODE], *at).expect("damage"));
}

fn read(fs: &BtrfsFs, ino: Ino) -> vfs::Result<Vec<u8>> {
    let mut content = vec![0; fs.getattr(ino)?.size as usize];
    fs.read(ino, 0, &mut content)?;
    Ok(content)
}

/// How many of the small files can be read, and are what they were.
fn readable(fs: &BtrfsFs) -> usize {
    let is_there = |n: &usize| {
        let sub = fs.lookup(&CX, fs.root(), b"sub").map(|entry| entry.attr.ino);
        let found = sub.and_then(|sub| fs.lookup(&CX, sub, format!("file-{n}").as_bytes()));
        let Ok(content) = found.and_then(|entry| read(fs, entry.attr.ino)) else { return false };
        assert!(content == [*n as u8; 900], "file-{n} is another");
        true
    };
    (0..FILES).filter(is_there).count()
}

fn groups(fs: &BtrfsFs) -> Vec<u64> {
    fs.space().group_infos().iter().map(|group| group.logical.0).collect()
}

#[test]
fn a_bad_copy_of_a_node_is_no_obstacle() {
    testkit::require!(btrfs_progs);
    let image = a_volume();
    let all = nodes(&image);
    for leaf in [true, false] {
        let one = all.iter().filter(|node| node.0 == leaf).nth(leaf as usize * 3);
        let at = copies(&image, one.expect("a node").1);
        assert_eq!(at.len(), 2, "two copies");
        damage(&image, &at[..1]);
    }
    let fs = image.open_with(Options { background: false, ..Options::default() });
    let before = groups(&fs);
    let done = balance(&fs);
    assert_eq!((done.failed, done.errno), (0, 0), "{done:?}");
    assert!(groups(&fs).iter().all(|group| !before.contains(group)), "all have moved");
    assert_eq!(readable(&fs), FILES);
    common::close_and_judge(&image, fs);
}

/// A leaf is lost, or the node above all leaves: all that these lead to lies in one block group.
fn lost(leaf: bool) {
    let image = a_volume();
    let all = nodes(&image);
    let one = all.iter().filter(|node| node.0 == leaf).nth(leaf as usize * 30).expect("a node");
    let lies_in = |group: &btrfs_space::GroupInfo| {
        (group.logical.0..group.logical.0 + group.len).contains(&one.1)
    };
    damage(&image, &copies(&image, one.1));
    let fs = image.open_with(Options { background: false, ..Options::default() });
    let there = readable(&fs);
    assert_eq!(there > 0, leaf, "{there} files are left");
    let before = fs.space().group_infos();
    for round in 0..2 {
        let done = balance(&fs);
        assert_eq!(fs.read_only_reason(), None);
        assert_eq!(done.state, BalanceState::Done);
        assert_eq!(done.errno, libc::EUCLEAN, "round {round}: {done:?}");
        let now = groups(&fs);
        let stayed: Vec<_> = before.iter().filter(|g| now.contains(&g.logical.0)).collect();
        assert!(stayed.iter().any(|group| lies_in(group)), "what is lost stays: {stayed:?}");
        if round == 0 {
            assert_eq!((done.failed, stayed.len()), (1, 1), "all others move: {stayed:?}");
        }
        assert_eq!(readable(&fs), there);
    }
    // And the volume can be changed.
    let ino = common::new_file(&fs, "behind", &content(3));
    fs.sync().expect("commit");
    assert!(read(&fs, ino).expect("read") == content(3));
    fs.destroy().expect("close");
    drop(fs);
    let fs = image.open();
    assert_eq!(readable(&fs), there);
    let other = fs.lookup(&CX, fs.root(), b"other").expect("there").attr.ino;
    assert!(read(&fs, other).expect("read") == content(2));
}

#[test]
fn a_leaf_that_is_lost_keeps_its_group_alone() {
    testkit::require!(btrfs_progs);
    lost(true);
}

#[test]
fn an_interior_node_that_is_lost_ends_nothing_else() {
    testkit::require!(btrfs_progs);
    lost(false);
}
