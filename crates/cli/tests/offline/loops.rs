//! Volumes whose directories or subvolumes go round in circles, or lie deeper than any stack: the verbs that walk
//! down the trees, or up, end.

use crate::common;
use btrfs_disk::items::{DirItem, RootItem};
use btrfs_disk::key::kind;
use btrfs_disk::node::HEADER_SIZE;
use btrfs_disk::{ChecksumType, FixedSize, Header, Key, TreeId};
use common::mount::{Mount, place};
use common::{Image, KernelMount, PROGRAM, failing, fine, text};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use testkit::require;

const NODE: usize = 16384;

/// Shows `edit` each item of a leaf: where its key lies, the key, and where its data do. How many were changed.
pub fn edit_items(
    leaf: &mut [u8],
    mut edit: impl FnMut(&mut [u8], usize, Key, Range<usize>) -> bool,
) -> usize {
    let header = Header::read(leaf).expect("sized");
    let mut changed = 0;
    for slot in 0..header.nritems as usize {
        let at = HEADER_SIZE + slot * 25;
        let key = Key::read(leaf[at..at + 17].try_into().expect("sized"));
        let word = |at: usize| u32::from_le_bytes(leaf[at..at + 4].try_into().expect("sized"));
        let (from, len) = (HEADER_SIZE + word(at + 17) as usize, word(at + 21) as usize);
        if from + len > leaf.len() {
            return 0;
        }
        changed += usize::from(edit(leaf, at, key, from..from + len));
    }
    if changed > 0 {
        ChecksumType::Crc32c.seal(leaf);
    }
    changed
}

/// The location of the entries called `name` in a leaf of files becomes the inode `to`; how many.
fn redirect(leaf: &mut [u8], name: &[u8], to: u64) -> usize {
    edit_items(leaf, |leaf, _, key, data| {
        let data = &mut leaf[data];
        let is_entry = matches!(key.kind, kind::DIR_ITEM | kind::DIR_INDEX);
        let is_it =
            is_entry && DirItem::iter(data).any(|entry| entry.is_ok_and(|e| e.name == name));
        if is_it {
            data[..8].copy_from_slice(&to.to_le_bytes());
        }
        is_it
    })
}

/// Every copy of every leaf of files, also such as nobody refers to any more.
fn redirect_all(image: &Path, name: &[u8], to: u64) {
    edit_leaves(image, TreeId::FS, |leaf| redirect(leaf, name, to));
}

pub fn edit_leaves(image: &Path, tree: TreeId, edit: impl Fn(&mut [u8]) -> usize) {
    let file = File::options().read(true).write(true).open(image).expect("open");
    let (mut node, mut changed) = (vec![0; NODE], 0);
    for at in (1 << 20..file.metadata().expect("metadata").len()).step_by(4096) {
        if file.read_exact_at(&mut node, at).is_err() {
            break;
        }
        let header = Header::read(&node).expect("sized");
        let sum = ChecksumType::Crc32c.digest(&node[32..]);
        let is_leaf = header.owner == tree && header.level == 0 && header.csum == sum;
        if is_leaf && edit(&mut node) > 0 {
            file.write_all_at(&node, at).expect("write");
            changed += 1;
        }
    }
    assert!(changed > 0, "no leaf has what was to be changed");
}

/// Within a minute.
fn ends(words: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    let output = command.args(["60", PROGRAM]).args(words).output().expect("it starts");
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 1)), "{words:?}: {code:?} {}", text(&output.stderr));
    output
}

#[test]
fn directories_in_a_circle_are_gone_through_once() {
    require!(kernel_btrfs);
    let image = Image::new("loops-circle");
    let kernels = KernelMount::new(&image.path, "noatime").expect("mount");
    std::fs::create_dir_all(kernels.join("a/b/c")).expect("mkdir");
    std::fs::write(kernels.join("a/b/file"), [7; 8192]).expect("write");
    std::fs::write(kernels.join("a/b/c/lost"), [7; 4096]).expect("write");
    kernels.unmount().expect("unmount");
    // `c`, in a/b, leads to `a`, the first inode that was made.
    redirect_all(&image.path, b"c", 257);
    let root = image.at("/");
    let told = text(&ends(&["compsize", &root]).stdout);
    assert!(told.contains("Processed 1 file, 1 regular extents (1 refs), 0 inline."), "{told}");
    let told = text(&ends(&["filesystem", "du", "--raw", &root]).stdout);
    let rows: Vec<Vec<&str>> =
        told.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let path = |at: &str| format!("{}{at}", image.at("/"));
    let expected: Vec<Vec<String>> = ["a/b/file", "a/b", "a"]
        .iter()
        .map(|at| vec!["8192".into(), "8192".into(), "-".into(), path(at)])
        .chain([vec!["8192".into(), "8192".into(), "0".into(), root.clone()]])
        .collect();
    assert_eq!(rows, expected);
    // Those who walk by names tell of it, and go on.
    let other = Image::new("loops-circle-copy");
    let archive = image.dir.join("archive.tar").display().to_string();
    for words in [
        &["du", &root][..],
        &["find", &root],
        &["ls", "-R", &root],
        &["tar", "-c", "-f", &archive, &root],
        &["chmod", "-R", "755", &root],
        &["chown", "-R", "7:7", &root],
        &["cp", "-r", &root, &other.at("/")],
        &["cp", "-r", &image.at("/a"), &image.at("/copy")],
        &["rm", "-r", &image.at("/a")],
    ] {
        let output = ends(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let said = text(&output.stderr);
        assert!(said.contains("another name"), "{words:?}: {said}");
    }
    for copied in [other.at("/a/b"), image.at("/copy/b")] {
        assert_eq!(fine(&["ls", &copied]), "file\n", "{copied}");
    }
    common::assert_clean(&other.path);
    // From within the circle as well.
    ends(&["filesystem", "du", "-s", &image.at("/a/b")]);
    ends(&["compsize", &image.at("/a/b")]);
    ends(&["inspect-internal", "inode-resolve", "257", &root]);
}

/// Each of the subvolumes lies in the next one, and is a snapshot of it.
fn put_in_a_circle(image: &Path, circle: &[u64]) {
    let next = |id: u64| {
        let at = circle.iter().position(|one| *one == id)?;
        Some(circle[(at + 1) % circle.len()])
    };
    edit_leaves(image, TreeId::ROOT, |leaf| {
        edit_items(leaf, |leaf, at, key, data| match (key.kind, next(key.objectid)) {
            (kind::ROOT_BACKREF, Some(above)) => {
                leaf[at + 9..at + 17].copy_from_slice(&above.to_le_bytes());
                true
            }
            (kind::ROOT_ITEM, Some(above)) => {
                let mut item = RootItem::parse(&leaf[data.clone()]).expect("a root item");
                item.uuid = [key.objectid as u8 + 1; 16];
                item.parent_uuid = [above as u8 + 1; 16];
                item.write(&mut leaf[data]);
                true
            }
            _ => false,
        })
    });
}

#[test]
fn subvolumes_in_a_circle_are_gone_through_once() {
    require!(kernel_btrfs);
    for circle in [&[256][..], &[256, 257], &[256, 257, 258]] {
        let image = Image::new("loops-subvolumes");
        let kernels = KernelMount::new(&image.path, "noatime").expect("mount");
        for name in ["x", "y", "z"] {
            let at = kernels.join(name).display().to_string();
            let made = Command::new("btrfs").args(["-q", "subvolume", "create", &at]).status();
            assert!(made.expect("btrfs").success());
            std::fs::write(kernels.join(name).join("file"), [7; 9000]).expect("write");
        }
        kernels.unmount().expect("unmount");
        put_in_a_circle(&image.path, circle);
        let (root, word) = (image.at("/"), image.word());
        let checked = ends(&["check", &word]);
        let said = text(&checked.stdout);
        assert_eq!(checked.status.code(), Some(1), "{circle:?}: {said}");
        assert!(said.contains("256"), "{said}");
        for option in ["-a", "-p", "-u", "-q", "-s"] {
            ends(&["subvolume", "list", option, &root]);
        }
        let stream = image.dir.join("stream").display().to_string();
        for words in [
            &["subvolume", "show", &image.at("/x")][..],
            &["subvolume", "show", &image.at("/z")],
            &["inspect-internal", "subvolid-resolve", "256", &root],
            &["inspect-internal", "inode-resolve", "257", &image.at("/x")],
            &["filesystem", "du", "-s", &root],
            &["subvolume", "snapshot", "-r", &image.at("/x"), &image.at("/of-x")],
            &["subvolume", "snapshot", "-r", &image.at("/y"), &image.at("/of-y")],
            &["send", "-f", &stream, &image.at("/of-x")],
            &["send", "-p", &image.at("/of-x"), "-f", &stream, &image.at("/of-y")],
            &["subvolume", "delete", &image.at("/of-y")],
            &["receive", "-f", &stream, &root],
            &["subvolume", "delete", &image.at("/x")],
            &["subvolume", "delete", &image.at("/of-x")],
            &["subvolume", "sync", &root],
        ] {
            ends(words);
        }
        ends(&["check", &word]);
    }
}

/// It was taken for the top level, so that who asked for that got the subvolume.
#[test]
fn a_mounted_subvolume_to_which_no_path_leads_is_not_the_top() {
    require!(kernel_btrfs);
    require!(fuse);
    let image = Image::new("loops-mounted");
    fine(&["subvolume", "create", &image.at("/x")]);
    put_in_a_circle(&image.path, &[256]);
    let mount = Mount::new(&image, "subvolid=256");
    std::fs::write(mount.join("file"), "of x").expect("write");
    let (second, word) = place(&image, "second");
    for asked in ["rw", "subvolid=5", "subvol=/"] {
        let (_, told) = failing(&["mount", "-o", asked, &image.word(), &word]);
        assert!(told.contains("to which no path leads"), "{asked}: {told}");
    }
    fine(&["mount", "-o", "subvolid=256", &image.word(), &word]);
    assert_eq!(std::fs::read(second.join("file")).expect("read"), b"of x");
    fine(&["umount", &word]);
    mount.umount();
}

#[test]
fn directories_lie_as_deep_as_they_like() {
    require!(kernel_btrfs);
    const DEEP: usize = 40_000;
    let image = Image::new("loops-deep");
    let kernels = KernelMount::new(&image.path, "noatime").expect("mount");
    let script = format!(
        "import os\nfor i in range({DEEP}):\n    os.mkdir('d'); os.chdir('d')\n\
         open('f', 'wb').write(b'x' * 8192)\n"
    );
    let made = Command::new("python3").args(["-c", &script]).current_dir(kernels.path()).output();
    assert!(made.expect("python3").status.success());
    kernels.unmount().expect("unmount");
    let told = text(&ends(&["filesystem", "du", "-s", "--raw", &image.at("/")]).stdout);
    assert_eq!(told.lines().last().map(|line| line.split_whitespace().next()), Some(Some("8192")));
    let told = text(&ends(&["compsize", &image.at("/")]).stdout);
    assert!(told.contains("Processed 1 file"), "{told}");
}
