//! Where the format has no room for one more: links of an inode, its names in one directory, names
//! and attributes of one hash. What is refused has changed nothing, whichever part of it did not
//! fit, and what is left is sound.

use crate::common;
use btrfs_fs::Caller;
use common::forge::forged;
use common::kernel::kernel;
use common::{CX, Image, assert_same, assert_sound, close_and_judge, errno, snapshot};
use testkit::PosixFs;
use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::oracle;
use vfs::{FileKind, FileSystem, Ino, RenameMode, XattrMode};

fn file(fs: &dyn FileSystem, dir: Ino, name: &[u8]) -> Ino {
    fs.mknod(&CX, dir, name, FileKind::File, 0o644, 0).expect("create").attr.ino
}

fn long_name(number: usize) -> Vec<u8> {
    format!("{number:03}-{}", "n".repeat(240)).into_bytes()
}

/// Takes the names of one inode in one directory to their limit, there tries everything that
/// would give it one more, and says what came of it.
fn at_the_limit(fs: &dyn FileSystem) -> Vec<(&'static str, i32)> {
    let root = fs.root();
    let dir = fs.mkdir(&CX, root, b"full", 0o755).expect("mkdir").attr.ino;
    let other = fs.mkdir(&CX, root, b"other", 0o755).expect("mkdir").attr.ino;
    let ino = file(fs, dir, b"first");
    let fits = |number| errno(fs.link(&CX, ino, dir, &long_name(number)));
    let count = (0..).take_while(|number| fits(*number) == 0).count();
    let rename =
        |from, name: &[u8], to, new: &[u8], mode| errno(fs.rename(&CX, from, name, to, new, mode));
    use RenameMode::{Exchange, NoReplace, Replace, Whiteout};
    let (first, long) = (long_name(0), long_name(900));
    let mut said = vec![("links", count as i32)];
    said.push(("one more", fits(count)));
    said.push(("elsewhere", errno(fs.link(&CX, ino, other, b"here"))));
    said.push(("into it", rename(other, b"here", dir, &long, NoReplace)));
    said.push(("whiteout", rename(other, b"here", dir, &long, Whiteout)));
    file(fs, dir, &long);
    said.push(("over another", rename(other, b"here", dir, &long, Replace)));
    said.push(("exchange", rename(other, b"here", dir, &long, Exchange)));
    said.push(("within", rename(dir, &first, dir, &long_name(901), Replace)));
    said.push(("out", rename(dir, &first, other, &first, Replace)));
    said.push(("again", errno(fs.link(&CX, ino, dir, &first))));
    said.push(("full again", errno(fs.link(&CX, ino, dir, &long_name(902)))));
    said.push(("unlink", errno(fs.unlink(&CX, dir, &long_name(1)))));
    said.push(("into the gap", rename(other, b"here", dir, &long_name(1), Replace)));
    said
}

fn same_names(kernel: &TreeSnapshot, ours: &TreeSnapshot) {
    let found = diff(kernel, ours, &Rules::default().ignoring_clock());
    assert!(found.is_empty(), "the kernel has it otherwise: {found:#?}");
}

/// An exchange whose second half does not fit (the kernel aborts its transaction there).
fn exchange_into(fs: &dyn FileSystem) {
    let entry = |at, name: &[u8]| fs.lookup(&CX, at, name).expect("lookup").attr.ino;
    let (dir, other) = (entry(fs.root(), b"full"), entry(fs.root(), b"other"));
    let full = entry(dir, b"first");
    fs.link(&CX, full, other, b"there").expect("link");
    let before = snapshot(fs);
    let result = fs.rename(&CX, dir, &long_name(900), other, b"there", RenameMode::Exchange);
    assert_eq!(errno(result), libc::EMLINK);
    assert_same(&before, &snapshot(fs));
}

/// The engine and the kernel's btrfs go to the limit on two copies of one volume.
fn as_the_kernel(mkfs: &[&str], expected_links: i32) {
    let image = Image::new(256 << 20, mkfs);
    let copy = image.path.with_extension("copy");
    std::fs::copy(&image.path, &copy).expect("copy");
    let (kernel_said, kernel_tree) = oracle::with_kernel(&copy, "noatime", |mount| {
        let model = PosixFs::open(mount.path()).expect("open the kernel's mount");
        (at_the_limit(&model), snapshot(&model))
    })
    .expect("the kernel mounts the volume");
    let fs = image.open();
    assert_eq!(at_the_limit(&fs), kernel_said, "{mkfs:?}");
    assert_eq!(kernel_said[0].1, expected_links, "{mkfs:?}");
    let ours = snapshot(&fs);
    same_names(&kernel_tree, &ours);
    exchange_into(&fs);
    close_and_judge(&image, fs);
}

/// Nothing half done: not poisoned, and the outside judges see what we saw.
/// Such a volume has no INODE_EXTREF, and must not get one.
#[test]
fn without_extended_references_names_end_where_the_kernels_do() {
    testkit::require!(kernel_btrfs);
    as_the_kernel(&["-O", "^extref"], 63);
    as_the_kernel(&["-O", "^extref", "-n", "4096"], 15);
}

/// Links of one inode as far as it goes, in two directories; what would give it one more, and what does not.
fn to_the_most_links(fs: &dyn FileSystem) -> Vec<(&'static str, i32)> {
    let root = fs.root();
    let dirs = ["one", "two"]
        .map(|name| fs.mkdir(&CX, root, name.as_bytes(), 0o755).expect("mkdir").attr.ino);
    let ino = file(fs, root, b"first");
    fs.write(&CX, ino, 0, &[7; 9000], Default::default()).expect("write");
    let name = |n: usize| format!("link-{n}").into_bytes();
    let link = |n: usize| {
        if n == 40_000 {
            fs.sync().expect("commit");
        }
        errno(fs.link(&CX, ino, dirs[n % 2], &name(n)))
    };
    let rename = |from: usize, to, new: usize| {
        errno(fs.rename(&CX, dirs[from % 2], &name(from), to, &name(new), RenameMode::Replace))
    };
    let count = (1..).take_while(|n| link(*n) == 0).count();
    let nlink = || fs.getattr(ino).expect("there").nlink as i32;
    let mut said = vec![("links", count as i32), ("counted", nlink())];
    said.push(("one more", link(70_001)));
    said.push(("where a name is", link(2)));
    said.push(("a name that moves", rename(2, root, 2)));
    said.push(("one over another", rename(4, dirs[0], 6)));
    said.push(("unlink", errno(fs.unlink(&CX, dirs[0], &name(8)))));
    said.push(("again", link(70_002)));
    said.push(("and no more", link(70_004)));
    said.push(("counted", nlink()));
    said
}

fn names_in(fs: &dyn FileSystem, dir: Ino) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let listed = fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    });
    listed.expect("list");
    names.retain(|name| name != b"." && name != b"..");
    names
}

/// What somebody else took to the limit is there, and goes link by link until nothing is left.
fn no_link_is_left(fs: &dyn FileSystem) {
    let root = fs.root();
    let ino = fs.lookup(&CX, root, b"first").expect("there").attr.ino;
    assert_eq!(errno(fs.link(&CX, ino, root, b"new")), libc::EMLINK);
    let mut left = fs.getattr(ino).expect("there").nlink;
    for dir in [b"one", b"two"] {
        let at = fs.lookup(&CX, root, dir).expect("there").attr.ino;
        for name in names_in(fs, at) {
            fs.unlink(&CX, at, &name).expect("unlink");
            left -= 1;
        }
        fs.rmdir(&CX, root, dir).expect("it is empty");
    }
    assert_eq!((left, fs.getattr(ino).expect("there").nlink), (2, 2));
    let mut content = [0; 9000];
    assert_eq!(fs.read(ino, 0, &mut content).expect("read"), 9000);
    assert!(content == [7; 9000]);
    names_in(fs, root).iter().for_each(|name| fs.unlink(&CX, root, name).expect("unlink"));
    assert_eq!(names_in(fs, root), [b""; 0]);
}

/// The engine and the kernel's btrfs go there on two copies of one volume, and each takes away what the other made.
fn most_links(mkfs: &[&str]) {
    let image = Image::new(512 << 20, mkfs);
    let copy = image.copy("kernels.img");
    let posix = |mount: &oracle::KernelMount| PosixFs::open(mount.path()).expect("open the mount");
    let said = kernel(&copy.path, "noatime", |mount| to_the_most_links(&posix(mount)));
    let fs = image.open();
    assert_eq!(to_the_most_links(&fs), said, "{mkfs:?}");
    assert_eq!((said[1], said[2]), (("counted", 65_535), ("one more", libc::EMLINK)), "{mkfs:?}");
    let ours = snapshot(&fs);
    fs.destroy().expect("close");
    drop(fs);
    // `btrfs check` takes time by the square of an inode's names: a soak has it.
    match common::number("SPINNEY_LINKS", 0) {
        0 => common::check_ourselves(&image.path),
        _ => assert_sound(&image.path),
    }
    kernel(&image.path, "noatime", |mount| {
        assert_same(&ours, &TreeSnapshot::of_dir(mount.path()).expect("walk the mount"));
        no_link_is_left(&posix(mount));
    });
    assert_sound(&image.path);
    let fs = copy.open();
    no_link_is_left(&fs);
    close_and_judge(&copy, fs);
}

#[test]
fn an_inode_has_as_many_links_as_the_kernel_gives_it() {
    testkit::require!(kernel_btrfs);
    most_links(&["-n", "4096"]);
}

/// Names of one hash are made, moved over and past one another, exchanged and removed, in
/// one epoch (`commits` false) or with each step in an epoch of its own.
fn collide(mkfs: &[&str], commits: bool) {
    let image = Image::new(256 << 20, mkfs);
    let fs = image.open();
    let commit = || {
        if commits {
            fs.sync().expect("commit")
        }
    };
    let root = fs.root();
    let names = forged("name-", 0x00c0_ffee, 24, 12);
    let dir = fs.mkdir(&CX, root, b"dir", 0o755).expect("mkdir").attr.ino;
    for (number, name) in names[..8].iter().enumerate() {
        let ino = match number {
            3 => fs.mkdir(&CX, dir, name, 0o700).expect("mkdir").attr.ino,
            4 => fs.symlink(&CX, dir, name, b"target").expect("symlink").attr.ino,
            _ => file(&fs, dir, name),
        };
        if !matches!(number, 3 | 4) {
            let content = vec![number as u8 + 1; 100 + 5000 * number];
            fs.write(&CX, ino, 0, &content, Default::default()).expect("write");
        }
        commit();
    }
    let rename = |from: usize, to: usize, mode| {
        fs.rename(&CX, dir, &names[from], dir, &names[to], mode).expect("rename");
        commit();
    };
    rename(0, 8, RenameMode::Replace);
    rename(1, 2, RenameMode::Replace);
    rename(5, 3, RenameMode::Exchange);
    rename(6, 9, RenameMode::Whiteout);
    let linked = fs.lookup(&CX, dir, &names[7]).expect("lookup").attr.ino;
    fs.link(&CX, linked, dir, &names[10]).expect("link");
    commit();
    fs.unlink(&CX, dir, &names[7]).expect("unlink");
    fs.rmdir(&CX, dir, &names[5]).expect("rmdir");
    commit();
    fs.rename(&CX, dir, &names[9], root, &names[9], RenameMode::Replace).expect("rename");
    let left: Vec<bool> = names.iter().map(|name| fs.lookup(&CX, dir, name).is_ok()).collect();
    let there = [2, 3, 4, 6, 8, 10];
    assert_eq!(left, (0..12).map(|n| there.contains(&n)).collect::<Vec<_>>());
    close_and_judge(&image, fs);
}

#[test]
fn names_of_one_hash() {
    testkit::require!(kernel_btrfs);
    collide(&[], true);
    collide(&["-n", "4096"], false);
}

/// Attributes of one hash: set, replaced by longer and shorter values, removed.
fn colliding_attributes(mkfs: &[&str], commits: bool) {
    let image = Image::new(256 << 20, mkfs);
    let fs = image.open();
    let names = forged("user.", 0xdead_beef, 30, 6);
    let ino = file(&fs, fs.root(), b"file");
    let set = |name: usize, byte: u8, len: usize, mode| {
        let result = fs.setxattr(&CX, ino, &names[name], &vec![byte; len], mode);
        if commits {
            fs.sync().expect("commit");
        }
        errno(result)
    };
    for name in 0..5 {
        assert_eq!(set(name, name as u8, 100 * name, XattrMode::Create), 0);
    }
    assert_eq!(set(5, 9, 5, XattrMode::Replace), libc::ENODATA);
    assert_eq!(set(2, 9, 5, XattrMode::Create), libc::EEXIST);
    assert_eq!(set(1, 11, 700, XattrMode::Replace), 0);
    assert_eq!(set(3, 13, 1, XattrMode::Set), 0);
    fs.removexattr(&CX, ino, &names[0]).expect("remove");
    fs.removexattr(&CX, ino, &names[4]).expect("remove");
    let get = |name: usize| fs.getxattr(ino, &names[name]).map_err(|error| error.errno());
    assert_eq!(get(0), Err(libc::ENODATA));
    assert_eq!(get(1), Ok(vec![11; 700]));
    assert_eq!(get(2), Ok(vec![2; 200]));
    assert_eq!(get(3), Ok(vec![13; 1]));
    close_and_judge(&image, fs);
}

#[test]
fn attributes_of_one_hash() {
    testkit::require!(kernel_btrfs);
    colliding_attributes(&[], true);
    colliding_attributes(&["-n", "4096"], false);
}

/// One hash's item in a directory is full: nothing more gets in, by whatever way, and what
/// takes no room is done.
#[test]
fn more_names_of_one_hash_than_a_node_holds() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &["-n", "4096"]);
    let fs = image.open();
    let root = fs.root();
    let names = forged("long-", 0x0bad_cafe, 255, 20);
    // 30 bytes and the name each, in an item of 3970.
    let fits = 13;
    let made: Vec<Ino> = names[..fits].iter().map(|name| file(&fs, root, name)).collect();
    let outside = file(&fs, root, b"outside");
    let dir = fs.mkdir(&CX, root, b"dir", 0o755).expect("mkdir").attr.ino;
    fs.sync().expect("commit");
    let before = snapshot(&fs);
    let full = &names[fits];
    let rename = |from: &[u8], to: &[u8], mode| errno(fs.rename(&CX, root, from, root, to, mode));
    use RenameMode::{Exchange, NoReplace, Replace, Whiteout};
    let refused = [
        errno(fs.mknod(&CX, root, full, FileKind::File, 0o644, 0)),
        errno(fs.mkdir(&CX, root, full, 0o755)),
        errno(fs.symlink(&CX, root, full, b"target")),
        errno(fs.link(&CX, outside, root, full)),
        rename(b"outside", full, NoReplace),
        rename(b"outside", full, Whiteout),
        // As the kernel, which looks before the old name is gone.
        rename(&names[0], full, Replace),
    ];
    assert_eq!(refused, [libc::EOVERFLOW; 7]);
    assert_same(&before, &snapshot(&fs));
    assert_eq!(rename(b"outside", &names[1], Replace), 0, "it takes the other's place");
    assert_eq!(rename(b"dir", &names[2], Exchange), 0);
    assert_eq!(rename(&names[3], &names[4], Replace), 0);
    assert_eq!(errno(fs.link(&CX, made[5], root, full)), 0, "there is room again");
    fs.rename(&CX, root, &names[6], dir, &names[6], Replace).expect("elsewhere is room");
    close_and_judge(&image, fs);
}

/// The same of attributes.
#[test]
fn more_attributes_of_one_hash_than_a_node_holds() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &["-n", "4096"]);
    let fs = image.open();
    let ino = file(&fs, fs.root(), b"file");
    let names = forged("user.", 0x0bad_cafe, 30, 5);
    let set = |name: &[u8], len: usize| {
        errno(fs.setxattr(&CX, ino, name, &vec![b'v'; len], XattrMode::Set))
    };
    // 30 bytes, the name's 30 and the value each, in an item of 3970.
    assert_eq!([0, 1, 2].map(|n| set(&names[n], 1000)), [0; 3]);
    fs.sync().expect("commit");
    let before = snapshot(&fs);
    assert_eq!(set(&names[3], 800), libc::ENOSPC);
    assert_eq!(set(&names[1], 1800), libc::ENOSPC, "no longer value either");
    assert_same(&before, &snapshot(&fs));
    assert_eq!(set(&names[1], 1790), 0, "the last byte");
    assert_eq!(set(&names[3], 0), libc::ENOSPC);
    assert_eq!(set(&names[0], 10), 0);
    assert_eq!(set(&names[3], 930), 0);
    close_and_judge(&image, fs);
}

#[test]
fn forged_names_meet() {
    let names = forged("user.", 0x1234_5678, 40, 50);
    for name in &names {
        assert_eq!((name.len(), oracle::name_hash(name)), (40, 0x1234_5678));
    }
    assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 50);
}

/// Two threads want the last place of an item at the same time, one of them for a subvolume's name.
fn last_place(mode: RenameMode) {
    let image = Image::new(256 << 20, &["-n", "4096"]);
    let fs = image.open();
    let root = fs.root();
    let full = fs.mkdir(&CX, root, b"full", 0o755).expect("mkdir").attr.ino;
    let names = forged("long-", 0x0bad_cafe, 255, 15);
    names[..12].iter().for_each(|name| _ = file(&fs, full, name));
    fs.create_subvolume(&Caller::root(), root, b"sub").expect("subvolume");
    let (ours, theirs) = (&names[13], &names[14]);
    std::thread::scope(|threads| {
        let others = threads.spawn(|| {
            for _ in 0..20_000 {
                match errno(fs.mknod(&CX, full, theirs, FileKind::File, 0o644, 0)) {
                    0 => fs.unlink(&CX, full, theirs).expect("unlink"),
                    refused => assert_eq!(refused, libc::EOVERFLOW),
                }
            }
        });
        while !others.is_finished() {
            match errno(fs.rename(&CX, root, b"sub", full, ours, mode)) {
                0 => {
                    let both = fs.lookup(&CX, full, theirs);
                    fs.sync().expect("commit");
                    assert_eq!(errno(both.map(|_| ())), libc::ENOENT, "more than fits");
                    let back = fs.rename(&CX, full, ours, root, b"sub", RenameMode::Replace);
                    back.expect("back");
                }
                refused => assert_eq!(refused, libc::EOVERFLOW),
            }
        }
    });
    close_and_judge(&image, fs);
}

#[test]
fn a_subvolume_does_not_take_a_place_that_went_meanwhile() {
    testkit::require!(kernel_btrfs);
    last_place(RenameMode::NoReplace);
}
