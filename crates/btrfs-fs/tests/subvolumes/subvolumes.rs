//! Subvolumes, snapshots, deletions: the kernel, `btrfs check` and our own check judge.

use crate::common;
use btrfs_disk::key::kind;
use btrfs_disk::{ChecksumType, TreeId};
use btrfs_fs::{BtrfsFs, Caller, Delete, Options, SubvolId, SubvolumeInfo};
use common::kernel::{btrfs, kernel};
use common::{CX, Image, assert_same, assert_sound, errno, new_file, snapshot};
use fuzzing::patch::Patch;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use testkit::compare::{NodeView, TreeSnapshot};
use testkit::oracle;
use vfs::{FileKind, FileSystem, FsError, Ino, RenameMode, SetAttr, XattrMode};

/// Each commit is judged by our own check.
fn open(image: &Image) -> BtrfsFs {
    image.open_checked(Options { background: false, ..Options::default() })
}

fn lookup(fs: &BtrfsFs, dir: Ino, name: &str) -> Option<Ino> {
    fs.lookup(&CX, dir, name.as_bytes()).ok().map(|entry| entry.attr.ino)
}

fn at(fs: &BtrfsFs, path: &str) -> Ino {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.fold(fs.root(), |dir, name| lookup(fs, dir, name).unwrap_or_else(|| panic!("{path}")))
}

fn put(fs: &BtrfsFs, dir: &str, name: &str, content: &[u8]) -> Ino {
    let dir = at(fs, dir);
    let made = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0);
    let ino = made.expect("create").attr.ino;
    fs.write(&CX, ino, 0, content, Default::default()).expect("write");
    ino
}

fn write(fs: &BtrfsFs, path: &str, offset: u64, content: &[u8]) {
    fs.write(&CX, at(fs, path), offset, content, Default::default()).expect("write");
}

fn read(fs: &BtrfsFs, path: &str) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let len = fs.read(at(fs, path), 0, &mut bytes).expect("read");
    bytes.truncate(len);
    bytes
}

fn mkdir(fs: &BtrfsFs, dir: &str, name: &str) {
    fs.mkdir(&CX, at(fs, dir), name.as_bytes(), 0o755).expect("mkdir");
}

fn create(fs: &BtrfsFs, dir: &str, name: &str) -> SubvolId {
    let made = fs.create_subvolume(&Caller::root(), at(fs, dir), name.as_bytes());
    made.expect("create a subvolume").0
}

fn snap(fs: &BtrfsFs, source: &str, dir: &str, name: &str, read_only: bool) -> SubvolId {
    let (source, dir) = (at(fs, source), at(fs, dir));
    let made = fs.snapshot(&Caller::root(), source, dir, name.as_bytes(), read_only);
    made.expect("snapshot").0
}

fn delete(fs: &BtrfsFs, dir: &str, name: &str) -> Result<SubvolId, FsError> {
    fs.delete_subvolume(&Caller::root(), Delete::Name(at(fs, dir), name.as_bytes()))
}

fn sweep(fs: &BtrfsFs) {
    assert!(fs.sync_deleted(&[], None).expect("drop what is deleted"));
}

/// Nothing half done: the kernel sees what we saw, but for times of stand-ins, which are those
/// of when they are looked at; and so do we at the next mount.
fn close_and_judge(image: &Image, fs: BtrfsFs) {
    assert_eq!(fs.read_only_reason(), None);
    let mut expected = snapshot(&fs);
    fs.destroy().expect("close");
    drop(fs);
    assert_sound(&image.path);
    let mut seen = kernel(&image.path, "ro,noatime", |mount| {
        TreeSnapshot::of_dir(mount.path()).expect("walk the kernel's mount")
    });
    let mut again = snapshot(&image.open());
    let stand_ins: Vec<_> = stand_ins(&expected);
    for tree in [&mut expected, &mut seen, &mut again] {
        let gone = stand_ins.iter().filter_map(|path| tree.nodes.remove(path));
        assert_eq!(gone.count(), stand_ins.len(), "{stand_ins:?}");
    }
    assert_same(&expected, &seen);
    assert_same(&expected, &again);
    kernel(&image.path, "noatime", |mount| oracle::scrub(mount).expect("scrub"));
    assert_sound(&image.path);
}

fn stand_ins(tree: &TreeSnapshot) -> Vec<testkit::ops::Path> {
    let is = |node: &NodeView| node.attr.ino.0 >> 63 == 1;
    tree.nodes.iter().filter(|(_, node)| is(node)).map(|(path, _)| path.clone()).collect()
}

/// What `btrfs subvolume list` says of the image: id, top level, path.
fn kernels_list(image: &Path) -> Vec<(u64, u64, String)> {
    kernel(image, "ro", |mount| {
        let path = mount.path().to_string_lossy().into_owned();
        let text = oracle::sh("btrfs", &["subvolume", "list", &path]).expect("list");
        text.lines()
            .map(|line| {
                let words: Vec<&str> = line.splitn(9, ' ').collect();
                let number = |at: usize| words[at].parse().expect("a number");
                (number(1), number(6), words[8].to_owned())
            })
            .collect()
    })
}

fn our_list(all: &[SubvolumeInfo]) -> Vec<(u64, u64, String)> {
    let named = all.iter().filter(|info| info.parent.is_some());
    named
        .map(|info| {
            let path = String::from_utf8(info.path.clone().expect("a path")).expect("UTF-8");
            (info.id.0, info.parent.expect("a parent").0, path)
        })
        .collect()
}

#[test]
fn what_is_made_is_what_the_kernel_makes() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let fs = open(&image);
    let a = create(&fs, "", "a");
    assert_eq!(a, SubvolId(256));
    mkdir(&fs, "a", "d");
    put(&fs, "a", "f", b"before");
    put(&fs, "a/d", "large", &[7; 300_000]);
    create(&fs, "a/d", "nested");
    put(&fs, "a/d/nested", "x", b"inside");
    // Content in memory is in the snapshot; later content is not.
    snap(&fs, "a", "", "s", false);
    snap(&fs, "a", "a", "ro", true);
    write(&fs, "a/f", 0, b"behind");
    write(&fs, "s/f", 0, b"copied");
    assert_eq!(read(&fs, "a/ro/f"), b"before");
    assert_eq!(errno(fs.write(&CX, at(&fs, "a/ro/f"), 0, b"x", Default::default())), libc::EROFS);
    // A snapshot does not have its own name; that of a nested subvolume leads to nothing.
    assert_eq!(lookup(&fs, at(&fs, "a/ro"), "ro"), None);
    assert_eq!(lookup(&fs, at(&fs, "s/d/nested"), "x"), None);
    let all = fs.subvolumes().expect("list");
    assert_eq!(all.len(), 5);
    assert_eq!(errno(delete(&fs, "", "a")), libc::ENOTEMPTY);
    close_and_judge(&image, fs);
    assert_eq!(kernels_list(&image.path), our_list(&all));
}

#[test]
fn a_snapshot_of_the_top_level_lies_in_itself() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &["-n", "4096"]);
    let fs = open(&image);
    for i in 0..300 {
        new_file(&fs, &format!("file{i}"), &vec![i as u8; 10 + i * 40]);
    }
    fs.sync().expect("commit");
    for round in 0..5 {
        let name = format!("snap{round}");
        let before = fs.getattr(fs.root()).expect("stat");
        snap(&fs, "", "", &name, round % 2 == 1);
        let copy = fs.getattr(at(&fs, &name)).expect("stat");
        assert_eq!((copy.size, copy.mtime), (before.size, before.mtime));
        assert_eq!(lookup(&fs, at(&fs, &name), &name), None);
        write(&fs, &format!("file{round}"), 5, b"changed");
        fs.unlink(&CX, fs.root(), format!("file{}", 100 + round).as_bytes()).expect("unlink");
    }
    close_and_judge(&image, fs);
}

#[test]
fn what_is_deleted_is_gone_at_once_and_its_space_comes_back() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(512 << 20, &["-n", "4096"]);
    let fs = open(&image);
    create(&fs, "", "a");
    for i in 0..400 {
        put(&fs, "a", &format!("f{i}"), &vec![i as u8; 3000 + i * 16]);
    }
    fs.sync().expect("commit");
    let free = |fs: &BtrfsFs| fs.statfs().expect("statfs").blocks_free;
    let one = free(&fs);
    for i in 0..8 {
        let name = format!("s{i}");
        snap(&fs, "a", "", &name, i == 3);
        write(&fs, &format!("a/f{i}"), 0, &[9; 5000]);
        if i != 3 {
            put(&fs, &name, "own", &[3; 100_000]);
        }
    }
    let open_file = at(&fs, "s2/own");
    write(&fs, "s2/own", 0, b"never to be written");
    for i in [2, 0, 7, 3] {
        delete(&fs, "", &format!("s{i}")).expect("delete");
    }
    assert_eq!(lookup(&fs, fs.root(), "s2"), None);
    assert_eq!(errno(fs.read(open_file, 0, &mut [0; 10])), libc::ESTALE);
    assert_eq!(errno(fs.fsync(open_file, false)), libc::ESTALE, "what was written is not kept");
    fs.sync().expect("commit");
    oracle::assert_clean(&image.path);
    sweep(&fs);
    delete(&fs, "", "a").expect("delete the source");
    sweep(&fs);
    for i in [1, 4, 5, 6] {
        assert_eq!(read(&fs, &format!("s{i}/own")), [3; 100_000]);
        assert_eq!(read(&fs, &format!("s{i}/f9")).len(), 3144);
    }
    for i in [1, 4, 5, 6] {
        delete(&fs, "", &format!("s{i}")).expect("delete");
    }
    sweep(&fs);
    assert!(free(&fs) >= one, "space comes back");
    assert_eq!(fs.subvolumes().expect("list").len(), 1);
    // The next mount would take them away.
    let left = Patch::new(&image.path).items(TreeId::ROOT);
    let orphans = left.iter().filter(|(key, _)| key.kind == kind::ORPHAN_ITEM).count();
    assert_eq!(orphans, 0, "nothing is left to be deleted");
    close_and_judge(&image, fs);
}

#[test]
fn names_of_subvolumes_move_as_in_the_kernel() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let fs = open(&image);
    create(&fs, "", "a");
    create(&fs, "", "b");
    create(&fs, "a", "inner");
    mkdir(&fs, "a", "d");
    mkdir(&fs, "", "top");
    put(&fs, "a/inner", "x", b"x");
    let rename = |from: &str, name: &str, to: &str, new: &str, mode| {
        let (from, to) = (at(&fs, from), at(&fs, to));
        errno(fs.rename(&CX, from, name.as_bytes(), to, new.as_bytes(), mode))
    };
    use RenameMode::{Exchange, NoReplace, Replace};
    assert_eq!(rename("a", "inner", "b", "moved", Replace), 0);
    assert_eq!(read(&fs, "b/moved/x"), b"x");
    assert_eq!(rename("a", "d", "b", "d", Replace), libc::EXDEV);
    assert_eq!(rename("", "a", "", "b", Replace), libc::ENOTEMPTY);
    assert_eq!(rename("", "a", "", "b", NoReplace), libc::EEXIST);
    assert_eq!(rename("", "a", "", "b", Exchange), 0);
    assert_eq!(read(&fs, "a/moved/x"), b"x");
    assert_eq!(rename("", "a", "a", "loop", Replace), libc::EINVAL);
    assert_eq!(rename("", "a", "a/moved", "loop", Replace), libc::EINVAL);
    assert_eq!(rename("", "a", "", "top", Exchange), 0);
    assert_eq!(rename("", "top", "", "again", Replace), 0);
    assert_eq!(rename("", "again", "", "a", Replace), 0);
    assert_eq!(rename("a", "moved", "b/d", "m", Exchange), libc::ENOENT);
    assert_eq!(rename("a", "moved", "b/d", "m", Replace), 0);
    assert_eq!(errno(fs.rmdir(&CX, at(&fs, "b/d"), b"m")), libc::ENOTEMPTY);
    fs.unlink(&CX, at(&fs, "b/d/m"), b"x").expect("unlink");
    assert_eq!(errno(fs.rmdir(&CX, at(&fs, "b/d"), b"m")), 0);
    sweep(&fs);
    let all = fs.subvolumes().expect("list");
    close_and_judge(&image, fs);
    assert_eq!(kernels_list(&image.path), our_list(&all));
}

/// Each answer is what the kernel gave to the same calls.
#[test]
fn whiteouts_and_stand_ins_are_as_in_the_kernel() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let fs = open(&image);
    create(&fs, "", "a");
    create(&fs, "a", "b");
    for name in ["s", "s2"] {
        snap(&fs, "a", "", name, false);
        mkdir(&fs, name, "d");
        put(&fs, name, "f", b"f");
    }
    let rename = |from: &str, name: &str, to: &str, new: &str, mode| {
        let (from, to) = (at(&fs, from), at(&fs, to));
        errno(fs.rename(&CX, from, name.as_bytes(), to, new.as_bytes(), mode))
    };
    use RenameMode::{Exchange, NoReplace, Replace, Whiteout};
    assert_eq!(rename("s", "b", "s", "x", Replace), libc::ENOTEMPTY);
    assert_eq!(rename("s", "b", "s", "x", Whiteout), libc::ENOTEMPTY);
    assert_eq!(rename("s", "f", "s", "b", Replace), libc::EISDIR);
    assert_eq!(rename("s", "d", "s", "b", NoReplace), libc::EEXIST);
    assert_eq!(rename("s", "d", "s", "b", Exchange), libc::ENOTEMPTY);
    assert_eq!(rename("s", "d", "s", "b", Replace), 0);
    mkdir(&fs, "s/b", "inside");
    create(&fs, "", "n");
    put(&fs, "n", "own", b"own");
    assert_eq!(rename("", "n", "s2", "b", Replace), 0);
    assert_eq!(read(&fs, "s2/b/own"), b"own");
    for (name, to) in [("w", ""), ("v", "s2")] {
        create(&fs, "", name);
        assert_eq!(rename("", name, to, &format!("{name}2"), Whiteout), 0);
        let left = fs.lookup(&CX, fs.root(), name.as_bytes()).expect("a whiteout").attr;
        assert_eq!((left.kind, left.rdev, left.perm), (FileKind::CharDevice, 0, 0));
    }
    mkdir(&fs, "", "dir");
    assert_eq!(rename("", "dir", "", "a", Whiteout), libc::ENOTEMPTY);
    // What replaced a stand-in is there after a crash.
    fs.fsync(at(&fs, "s/b/inside"), false).expect("fsync");
    let crashed = common::crashed(&image, "crashed.img");
    assert!(
        lookup(&common::open_image(&crashed, Options::default()), at(&fs, "s/b"), "inside")
            .is_some()
    );
    close_and_judge(&image, fs);
}

/// As for the kernel: in a snapshot the name of a nested subvolume is none to begin at, the live one's least of all.
#[test]
fn a_mount_begins_where_the_subvolume_hangs() {
    let image = Image::new(256 << 20, &[]);
    let fs = open(&image);
    create(&fs, "", "a");
    let nested = create(&fs, "a", "n");
    put(&fs, "a/n", "live", b"live");
    snap(&fs, "a", "", "s", false);
    mkdir(&fs, "s", "d");
    fs.destroy().expect("close");
    drop(fs);
    let begin = |path: &str| {
        let subvol = btrfs_fs::Subvol::Path(path.as_bytes().to_vec());
        let options = Options { background: false, subvol, ..Options::default() };
        BtrfsFs::open_device(std::sync::Arc::new(common::open_device(&image.path, false)), options)
    };
    for (path, why) in [("s/n", libc::EINVAL), ("s/n/x", libc::ENOENT), ("s/d", libc::EINVAL)] {
        assert_eq!(errno(begin(path)), why, "{path}");
    }
    let fs = begin("/a//./n/").expect("there it hangs");
    assert_eq!(fs.subvolume_of(fs.root()).expect("a subvolume").0, nested);
}

#[test]
fn a_deletion_that_the_kernel_began_is_ended() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &["-n", "4096"]);
    kernel(&image.path, "noatime", |mount| {
        btrfs(mount, &["-q", "subvolume", "create", "/a"]);
        for i in 0..2000 {
            std::fs::write(mount.join(&format!("a/f{i}")), vec![1; 2500]).expect("write");
        }
        btrfs(mount, &["-q", "subvolume", "snapshot", "/a", "/s"]);
        oracle::sh("sync", &["-f", &mount.path().to_string_lossy()]).expect("sync");
        btrfs(mount, &["-q", "subvolume", "delete", "-c", "/a"]);
    });
    let fs = open(&image);
    assert_eq!(fs.read_only_reason(), None);
    sweep(&fs);
    assert_eq!(fs.subvolumes().expect("list").len(), 2);
    assert_eq!(read(&fs, "s/f77"), [1; 2500]);
    close_and_judge(&image, fs);
}

/// No root item says what the UUID of a subvolume is that no commit has.
#[test]
fn what_comes_and_goes_in_one_epoch_leaves_nothing() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    // With a UUID tree.
    kernel(&image.path, "noatime", |mount| btrfs(mount, &["subvolume", "create", "/sub"]));
    let fs = open(&image);
    create(&fs, "", "gone");
    put(&fs, "gone", "file", &[7; 30_000]);
    delete(&fs, "", "gone").expect("delete");
    sweep(&fs);
    close_and_judge(&image, fs);
}

/// Which snapshots the kernel lets nobody write to.
fn frozen_to_the_kernel(image: &Image, names: &[&str]) -> Vec<bool> {
    kernel(&image.path, "noatime", |mount| {
        let refused = |name: &&str| {
            let made = std::fs::write(mount.join(name).join("new"), b"x");
            made.is_err_and(|error| error.raw_os_error() == Some(libc::EROFS))
        };
        names.iter().map(refused).collect()
    })
}

/// What mkfs makes has a root item of the top level whose flags the kernel does not heed, and a
/// snapshot takes that along.
#[test]
fn what_is_read_only_is_that_to_the_kernel() {
    testkit::require!(kernel_btrfs);
    for image in [Image::new(256 << 20, &[]), Image::with_block_group_tree(256 << 20)] {
        let fs = open(&image);
        snap(&fs, "", "", "made-so", true);
        let later = snap(&fs, "", "", "made-so-later", false);
        fs.set_read_only(&Caller::root(), later, true).expect("read-only");
        snap(&fs, "", "", "writable", false);
        close_and_judge(&image, fs);
        let names = ["made-so", "made-so-later", "writable"];
        assert_eq!(frozen_to_the_kernel(&image, &names), [true, true, false]);
    }
}

/// The root item of the subvolume, at both places where its node is, as earlier versions made it.
fn forget_the_flags_count(image: &Path, uuid: &[u8; 16]) {
    const NODE: usize = 16 << 10;
    const UUID_IN_ITEM: usize = 247;
    const INODE_FLAGS: usize = 64;
    let mut bytes = std::fs::read(image).expect("read the image");
    let found: Vec<usize> =
        (UUID_IN_ITEM..bytes.len() - 16).filter(|at| bytes[*at..][..16] == uuid[..]).collect();
    for at in found {
        let node = at / NODE * NODE;
        // Bit 31.
        bytes[at - UUID_IN_ITEM + INODE_FLAGS + 3] &= 0x7f;
        ChecksumType::Crc32c.seal(&mut bytes[node..node + NODE]);
    }
    std::fs::write(image, bytes).expect("write the image");
}

#[test]
fn read_only_snapshots_of_earlier_versions_are_mended() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let fs = open(&image);
    snap(&fs, "", "", "mended", true);
    let uuid = fs.subvolumes().expect("list").last().expect("a snapshot").uuid;
    fs.destroy().expect("close");
    drop(fs);
    forget_the_flags_count(&image.path, &uuid);
    assert_sound(&image.path);
    let fs = open(&image);
    assert_eq!(errno(fs.unlink(&CX, at(&fs, "mended"), b"x")), libc::EROFS);
    close_and_judge(&image, fs);
    assert_eq!(frozen_to_the_kernel(&image, &["mended"]), [true]);
}

/// Nothing of a set-group-ID directory; of the subvolume around it the compression, flag and all.
#[test]
fn a_subvolume_inherits_what_the_kernel_lets_it() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let fs = open(&image);
    mkdir(&fs, "", "shared");
    let set = SetAttr { gid: Some(50), ..SetAttr::default() };
    fs.setattr(&CX, at(&fs, "shared"), &set).expect("chgrp");
    let set = SetAttr { perm: Some(0o2775), ..SetAttr::default() };
    fs.setattr(&CX, at(&fs, "shared"), &set).expect("chmod");
    fs.setxattr(&CX, fs.root(), b"btrfs.compression", b"zstd", XattrMode::Set).expect("property");
    create(&fs, "shared", "ours");
    fs.setxattr(&CX, fs.root(), b"btrfs.compression", b"no", XattrMode::Set).expect("property");
    create(&fs, "shared", "ours-not");
    close_and_judge(&image, fs);
    kernel(&image.path, "noatime", |mount| {
        // The kernel writes the flag later than the property, so it is asked, not the volume.
        let of = |name: &str| {
            let path = mount.join("shared").join(name);
            let stat = std::fs::metadata(&path).expect("stat");
            let path = path.to_string_lossy().into_owned();
            let told = oracle::sh("lsattr", &["-d", &path]).expect("lsattr");
            let flags = told.split(' ').next().expect("flags").to_owned();
            let property = ["property", "get", &path, "compression"];
            let property = oracle::sh("btrfs", &property).expect("property");
            (stat.mode() & 0o7000, stat.gid(), flags, property)
        };
        btrfs(mount, &["property", "set", "/", "compression", "zstd"]);
        btrfs(mount, &["subvolume", "create", "/shared/theirs"]);
        btrfs(mount, &["property", "set", "/", "compression", "no"]);
        btrfs(mount, &["subvolume", "create", "/shared/theirs-not"]);
        assert_eq!(of("ours"), of("theirs"));
        assert_eq!(of("ours-not"), of("theirs-not"));
    });
    // A subvolume that is made compresses what is written to it.
    let fs = open(&image);
    assert_eq!(fs.flags(at(&fs, "shared/ours")).expect("flags"), 4);
}

/// Without a kernel in front, as programs use the library, nobody holds the directory while it goes.
#[test]
fn a_subvolume_that_gets_a_file_is_not_removed_as_an_empty_one() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let root = fs.root();
    let mut kept = 0;
    for round in 0..3000 {
        let made = fs.create_subvolume(&Caller::root(), root, b"sub").expect("create");
        let sub = made.1.attr.ino;
        let (removed, file) = std::thread::scope(|threads| {
            let make = || errno(fs.mknod(&CX, sub, b"file", FileKind::File, 0o644, 0));
            let file = threads.spawn(make);
            (0..round % 64).for_each(|_| std::hint::spin_loop());
            (errno(fs.rmdir(&CX, root, b"sub")), file.join().expect("no panic"))
        });
        assert!(removed != 0 || file != 0, "round {round}: a file that was made went with it");
        if removed != 0 {
            assert_eq!((removed, file), (libc::ENOTEMPTY, 0));
            delete(&fs, "/", "sub").expect("delete");
            kept += 1;
        }
    }
    println!("{kept} were not empty");
    fs.destroy().expect("close");
}

/// Who compares, or sends, goes by it: when a subvolume changed last, and by which commit.
#[test]
fn a_commit_stamps_the_subvolumes_that_it_changes() {
    let image = Image::new(256 << 20, &[]);
    let fs = open(&image);
    let ids = [create(&fs, "/", "changed"), create(&fs, "/", "other")];
    fs.sync().expect("commit");
    let items = || ids.map(|id| fs.committed().expect("open").tree(TreeId(id.0)).expect("there").1);
    let before = items();
    std::thread::sleep(std::time::Duration::from_millis(20));
    put(&fs, "changed", "file", &[1; 9000]);
    fs.sync().expect("commit");
    let [changed, other] = items();
    assert!(changed.ctransid == changed.generation.0 && changed.ctransid > before[0].ctransid);
    assert!((changed.ctime.sec, changed.ctime.nsec) > (before[0].ctime.sec, before[0].ctime.nsec));
    assert_eq!((other.ctransid, other.ctime), (before[1].ctransid, before[1].ctime));
    fs.destroy().expect("close");
}

/// Its tree may be half dropped: nobody is led into what is left.
#[test]
fn a_deleted_subvolume_is_none_to_those_who_read_trees() {
    let image = Image::new(256 << 20, &[]);
    let fs = open(&image);
    let id = create(&fs, "/", "sub");
    put(&fs, "sub", "file", &[1; 9000]);
    fs.sync().expect("commit");
    let found = |fs: &BtrfsFs| fs.find_new(id, 0, None, 10).map(|(_, pieces)| pieces.len());
    let there = |fs: &BtrfsFs| fs.committed().expect("open").subvolume(id).map(|_| ());
    assert_eq!((found(&fs).expect("there"), errno(there(&fs))), (1, 0));
    delete(&fs, "/", "sub").expect("delete");
    fs.sync().expect("commit");
    assert!(fs.committed().expect("open").tree(TreeId(id.0)).is_some(), "it is not dropped yet");
    assert_eq!((errno(found(&fs)), errno(there(&fs))), (libc::ENOENT, libc::ENOENT));
    fs.destroy().expect("close");
}

/// What is immutable or append-only keeps its names, subvolumes as files.
#[test]
fn what_may_not_change_keeps_its_subvolumes() {
    let image = Image::new(256 << 20, &[]);
    let fs = open(&image);
    mkdir(&fs, "", "dir");
    create(&fs, "dir", "sub");
    put(&fs, "", "file", b"beside");
    let root = fs.root();
    for (fixed, flag) in [("dir", 0x10), ("dir", 0x20), ("dir/sub", 0x10), ("dir/sub", 0x20)] {
        let (dir, ino) = (at(&fs, "dir"), at(&fs, fixed));
        fs.set_flags(&CX, ino, flag).expect("flags");
        let moved = |mode| fs.rename(&CX, dir, b"sub", root, b"file", mode);
        assert_eq!(errno(delete(&fs, "dir", "sub")), libc::EPERM, "{fixed} {flag:x}");
        assert_eq!(errno(fs.rmdir(&CX, dir, b"sub")), libc::EPERM, "{fixed} {flag:x}");
        assert_eq!(errno(moved(RenameMode::Exchange)), libc::EPERM, "{fixed} {flag:x}");
        let away = fs.rename(&CX, dir, b"sub", root, b"away", RenameMode::Replace);
        assert_eq!(errno(away), libc::EPERM, "{fixed} {flag:x}");
        fs.set_flags(&CX, ino, 0).expect("flags");
    }
    delete(&fs, "dir", "sub").expect("now it may");
    close_and_judge(&image, fs);
}
