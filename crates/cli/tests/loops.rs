//! Volumes whose directories go round in circles, or lie deeper than any stack: the verbs that walk
//! down the trees end.

mod common;

use btrfs_disk::items::DirItem;
use btrfs_disk::key::kind;
use btrfs_disk::node::HEADER_SIZE;
use btrfs_disk::{ChecksumType, FixedSize, Header, Key, TreeId};
use common::{Image, KernelMount, PROGRAM, text};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use testkit::require;

const NODE: usize = 16384;

/// The location of the entries called `name` in a leaf of files becomes the inode `to`; how many.
fn redirect(leaf: &mut [u8], name: &[u8], to: u64) -> usize {
    let header = Header::read(leaf).expect("sized");
    let mut changed = 0;
    for slot in 0..header.nritems as usize {
        let at = HEADER_SIZE + slot * 25;
        let key = Key::read(leaf[at..at + 17].try_into().expect("sized"));
        let word = |at: usize| u32::from_le_bytes(leaf[at..at + 4].try_into().expect("sized"));
        let (from, len) = (HEADER_SIZE + word(at + 17) as usize, word(at + 21) as usize);
        let Some(data) = leaf.get_mut(from..from + len) else { return 0 };
        let is_entry = matches!(key.kind, kind::DIR_ITEM | kind::DIR_INDEX);
        if is_entry && DirItem::iter(data).any(|entry| entry.is_ok_and(|e| e.name == name)) {
            data[..8].copy_from_slice(&to.to_le_bytes());
            changed += 1;
        }
    }
    if changed > 0 {
        let digest = ChecksumType::Crc32c.digest(&leaf[32..]);
        leaf[..32].copy_from_slice(&digest);
    }
    changed
}

/// Every copy of every leaf of files, also such as nobody refers to any more.
fn redirect_all(image: &Path, name: &[u8], to: u64) {
    let file = File::options().read(true).write(true).open(image).expect("open");
    let (mut node, mut changed) = (vec![0; NODE], 0);
    for at in (1 << 20..file.metadata().expect("metadata").len()).step_by(4096) {
        if file.read_exact_at(&mut node, at).is_err() {
            break;
        }
        let header = Header::read(&node).expect("sized");
        let sum = ChecksumType::Crc32c.digest(&node[32..]);
        let is_leaf = header.owner == TreeId::FS && header.level == 0 && header.csum == sum;
        if is_leaf && redirect(&mut node, name, to) > 0 {
            file.write_all_at(&node, at).expect("write");
            changed += 1;
        }
    }
    assert!(changed > 0, "no leaf has the name");
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
    let archive = image.dir.join("archive.tar").display().to_string();
    for words in [
        &["du", &root][..],
        &["find", &root],
        &["ls", "-R", &root],
        &["tar", "-c", "-f", &archive, &root],
        &["chmod", "-R", "755", &root],
        &["chown", "-R", "7:7", &root],
        &["rm", "-r", &image.at("/a")],
    ] {
        let output = ends(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let said = text(&output.stderr);
        assert!(said.contains("another name"), "{words:?}: {said}");
    }
    // From within the circle as well.
    ends(&["filesystem", "du", "-s", &image.at("/a/b")]);
    ends(&["compsize", &image.at("/a/b")]);
    ends(&["inspect-internal", "inode-resolve", "257", &root]);
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
