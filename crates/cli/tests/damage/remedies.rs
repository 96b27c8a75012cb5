//! What `check` tells people to do about damage is done here word for word: nothing may be lost by it, and the
//! volume must be whole then.
//!
//! Judge: `btrfs check`, and the kernel, which finds what was in the volume.

use crate::common;
use btrfs_disk::checksum::ChecksumType;
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use common::mount::Mount;
use common::streams::shell;
use common::{Image, KernelMount, assert_clean, copies, failing, fine, json, spinney, text};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use testkit::damage::forget_checksum;
use testkit::require;

/// The command that `check` gives of the finding of a kind: what stands between back quotes, with the words of
/// `names` in the place of theirs.
fn remedy(image: &Image, kind: &str, names: &[(&str, &str)]) -> Vec<String> {
    let report = json(&text(&spinney(&["check", "--json", &image.word()]).stdout));
    let findings = report["findings"].as_array().expect("findings");
    let found = findings.iter().find(|finding| finding["kind"] == kind);
    let found = found.unwrap_or_else(|| panic!("no {kind}: {report}"));
    let said = found["remedy"].as_str().expect("a remedy");
    let command = said.split('`').nth(1).unwrap_or_else(|| panic!("no command: {said}"));
    let word = |word: &str| names.iter().fold(word.to_owned(), |w, (from, to)| w.replace(from, to));
    let words: Vec<String> = command.split(' ').map(word).collect();
    assert_eq!(words[0], "spinney", "{said}");
    words[1..].to_vec()
}

fn read(image: &Path, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(image).expect("open").read_exact_at(&mut bytes, at).expect("read");
    bytes
}

fn write(image: &Path, at: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(image).expect("open");
    file.write_all_at(bytes, at).expect("write");
}

/// Changes the one leaf of a tree.
fn change_leaf(image: &Image, tree: &str, change: impl Fn(&mut [u8])) {
    let dump = common::sh(&format!("btrfs inspect-internal dump-tree -t {tree} {}", image.word()));
    let leaf = common::told_behind(&text(&dump.stdout), "leaf ")[0];
    for at in copies(&image.path, leaf) {
        let mut node = read(&image.path, at, 16384);
        change(&mut node);
        ChecksumType::Crc32c.seal(&mut node);
        write(&image.path, at, &node);
    }
}

fn filled(name: &str) -> (Image, Vec<u8>) {
    let image = Image::new(name);
    let content: Vec<u8> =
        (0..400_000).map(|i: u32| (i.wrapping_mul(2654435761) >> 13) as u8).collect();
    let mount = KernelMount::new(&image.path, "noatime").expect("mount");
    std::fs::write(mount.join("file"), &content).expect("write");
    shell(&format!("cd {}; btrfs -q subvolume create sub; sync -f .", mount.path().display()));
    mount.unmount().expect("unmount");
    (image, content)
}

fn kernel_reads(image: &Image, name: &str) -> std::io::Result<Vec<u8>> {
    let mount = KernelMount::new(&image.path, "noatime").expect("the kernel mounts it");
    let found = std::fs::read(mount.join(name));
    mount.unmount().expect("unmount");
    found
}

/// Its content is whole, and no other way of reading gives it: whoever deleted it first would have nothing.
#[test]
fn a_file_that_lacks_a_checksum_is_not_lost() {
    require!(kernel_btrfs);
    let (image, content) = filled("remedy-csum");
    change_leaf(&image, "csum", forget_checksum);
    let (file, copy) = (image.at("/file"), image.dir.join("copy").display().to_string());
    failing(&["cp", &file, &copy]);
    assert!(std::fs::read(&copy).expect("copied") != content, "a mere copy has zeros in it");
    let words = remedy(&image, "csum-missing", &[("IMAGE:/PATH", &file), ("FILE", &copy)]);
    let (code, said) = failing(&words);
    assert!(code == 1 && said.contains("4096 bytes from 0 on are copied as they are"), "{said}");
    assert!(std::fs::read(&copy).expect("copied") == content, "{words:?}");
    fine(&["rm", &file]);
    fine(&["cp", &copy, &file]);
    fine(&["check", "--data", &image.word()]);
    assert_clean(&image.path);
    assert!(kernel_reads(&image, "file").expect("read") == content);
}

/// A wiped first copy lets no mount write, so that none would mend it.
#[test]
fn the_first_superblock_is_written_anew() {
    require!(kernel_btrfs);
    require!(fuse);
    let (image, content) = filled("remedy-super");
    write(&image.path, COPIES[0], &[0; SUPER_SIZE]);
    let mount = Mount::new(&image, "rw");
    assert!(std::fs::write(mount.point.join("new"), "x").is_err(), "it is mounted read-only");
    mount.umount();
    let words = remedy(&image, "super-copy-bad", &[("IMAGE", &image.word())]);
    assert_eq!(spinney(&words).status.code(), Some(2), "{words:?}: as btrfs-progs ends");
    fine(&["check", &image.word()]);
    assert_clean(&image.path);
    assert!(kernel_reads(&image, "file").expect("read") == content);
}

/// The kernel would mount by it, and write over what has been committed since.
#[test]
fn an_older_first_superblock_is_written_anew() {
    require!(kernel_btrfs);
    let (image, _) = filled("remedy-stale");
    let older = read(&image.path, COPIES[0], SUPER_SIZE);
    let mount = KernelMount::new(&image.path, "noatime").expect("mount");
    std::fs::write(mount.join("later"), "kept").expect("write");
    mount.unmount().expect("unmount");
    write(&image.path, COPIES[0], &older);
    let words = remedy(&image, "super-copy-stale", &[("IMAGE", &image.word())]);
    assert_eq!(spinney(&words).status.code(), Some(2), "{words:?}: as btrfs-progs ends");
    fine(&["check", &image.word()]);
    assert_clean(&image.path);
    assert_eq!(kernel_reads(&image, "later").expect("read"), b"kept");
}

/// A mount alone does nothing about an entry: the tree says that it is up to date.
#[test]
fn entries_of_the_uuid_tree_are_made_anew() {
    require!(kernel_btrfs);
    let (image, content) = filled("remedy-uuid");
    // The number of a subvolume: the first item's data ends the leaf.
    change_leaf(&image, "uuid", |node| *node.last_mut().expect("a byte") ^= 1);
    let words = remedy(&image, "uuid-missing", &[("IMAGE", &image.word())]);
    assert_eq!(words, remedy(&image, "uuid-stray", &[("IMAGE", &image.word())]));
    fine(&words);
    assert!(kernel_reads(&image, "file").expect("read") == content);
    let report = json(&fine(&["check", "--json", &image.word()]));
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(0), "{report}");
    assert_clean(&image.path);
}
