//! Compression by the command line: of mounts, `cp`, `mkfs` and the property. The kernel reads
//! what came of it.

use crate::common;
use common::mount::{Mount, lacks_fuse};
use common::{Image, KernelMount, assert_clean, failing, fine, sh, text};
use std::fs;
use std::path::Path;
use testkit::require;

const COMPRESSED: &str = "seq 300000 > numbers && (seq 3000; head -c 50000 /dev/urandom) > mixed";

/// A directory with files that compress.
fn tree(beside: &Image) -> String {
    let dir = beside.path.with_extension("d");
    fs::create_dir_all(&dir).expect("mkdir");
    assert!(sh(&format!("cd {} && {COMPRESSED}", dir.display())).status.success());
    dir.display().to_string()
}

/// Bytes that the file's extents take, as the kernel tells them.
fn kernel_sees(image: &Path, dir: &str, original: &str) -> (u64, String) {
    assert_clean(image);
    let mount = KernelMount::new(image, "ro,noatime").unwrap();
    let script = format!(
        "diff -r {original} {at}/{dir} && stat -f -c '%b %f %S' {at} && \
         btrfs inspect-internal dump-super {} | grep -A4 incompat_flags",
        image.display(),
        at = mount.path().display(),
    );
    let told = sh(&script);
    assert!(told.status.success(), "{}", text(&told.stderr));
    let told = text(&told.stdout);
    let numbers: Vec<u64> =
        told.lines().next().unwrap().split(' ').map(|word| word.parse().unwrap()).collect();
    mount.unmount().unwrap();
    ((numbers[0] - numbers[1]) * numbers[2], told)
}

#[test]
fn cp_and_mkfs_compress_what_they_copy() {
    require!(kernel_btrfs);
    let (plain, image) = (Image::new("compress-no"), Image::new("compress-cp"));
    let from = tree(&image);
    fine(&["cp", "-r", &from, &plain.at("/d")]);
    fine(&["cp", "-r", "--compress=zstd:9", &from, &image.at("/d")]);
    let (most, _) = kernel_sees(&plain.path, "d", &from);
    let (less, told) = kernel_sees(&image.path, "d", &from);
    assert!(less + 1_000_000 < most, "{less} of {most}");
    assert!(told.contains("COMPRESS_ZSTD"), "{told}");
    let made = image.path.with_extension("made");
    fine(&["mkfs", "-s", "256M", "-r", &from, "--compress", "lzo", &made.display().to_string()]);
    let (least, told) = kernel_sees(&made, ".", &from);
    assert!(least < most && told.contains("COMPRESS_LZO"), "{least}: {told}");
    let (code, told) = failing(&["cp", "--compress=gzip", &from, &image.at("/e")]);
    assert!(code == 2 && told.contains("zlib[:1-9], lzo or zstd"), "{told}");
    fs::remove_dir_all(from).expect("remove");
    fs::remove_file(made).expect("remove");
}

/// The label of the whole volume was set, whatever the path was, and -t meant nothing.
fn what_has_no_such_property_is_refused(top: &str, dir: &str) {
    let before = fine(&["property", "get", top]);
    for (words, property) in [
        (&[dir, "label", "X"][..], "label"),
        (&["-t", "inode", top, "label", "X"], "label"),
        (&["-t", "subvol", top, "label", "X"], "label"),
        (&["-t", "filesystem", top, "ro", "true"], "ro"),
        (&[dir, "ro", "true"], "ro"),
        (&["-t", "subvol", dir, "compression", "lzo"], "compression"),
    ] {
        let (code, said) = failing(&[&["property", "set"], words].concat());
        let told = format!("object is not compatible with property: {property}");
        assert!(code == 1 && said.contains(&told), "{words:?}: {said}");
    }
    assert_eq!(fine(&["property", "get", top]), before);
    fine(&["property", "set", "-t", "device", top, "label", "again"]);
    fine(&["property", "set", "-t", "filesystem", top, "label", "some name"]);
    fine(&["property", "set", "-t", "subvol", top, "ro", "false"]);
    assert_eq!(fine(&["property", "get", top]), before);
}

#[test]
fn the_property_is_read_and_set_in_images_and_mounts() {
    require!(kernel_btrfs);
    let image = Image::new("compress-property");
    fine(&["mkdir", &image.at("/z")]);
    assert_eq!(fine(&["property", "get", &image.at("/z"), "compression"]), "");
    fine(&["property", "set", &image.at("/z"), "compression", "zstd"]);
    let got = fine(&["property", "get", "-t", "inode", &image.at("/z"), "compression"]);
    assert_eq!(got, "compression=zstd\n");
    let told = fine(&["property", "list", &image.at("/z")]);
    assert_eq!(told, "compression         compression algorithm for the file or directory\n");
    fine(&["property", "set", &image.word(), "label", "some name"]);
    assert_eq!(fine(&["property", "get", &image.word()]), "ro=false\nlabel=some name\n");
    what_has_no_such_property_is_refused(&image.word(), &image.at("/z"));
    let (_, said) = failing(&["property", "get", &image.at("/z"), "label"]);
    assert!(said.contains("not compatible with property: label"), "{said}");
    let (code, _) = failing(&["property", "set", &image.at("/z"), "compression", "gzip"]);
    assert_eq!(code, 2);
    let from = tree(&image);
    fine(&["cp", &format!("{from}/numbers"), &image.at("/z/numbers")]);
    let mount = KernelMount::new(&image.path, "ro,noatime").unwrap();
    let file = mount.join("z/numbers").display().to_string();
    let told = sh(&format!("btrfs property get {file} compression && lsattr {file}"));
    let told = text(&told.stdout);
    assert!(told.starts_with("compression=zstd\n") && told.contains("---c---"), "{told}");
    mount.unmount().unwrap();
    if lacks_fuse("classic") {
        return;
    }
    let mount = Mount::new(&image, "transport=classic,compress=lzo");
    let at = mount.word();
    what_has_no_such_property_is_refused(&at, &format!("{at}/z"));
    let got = fine(&["property", "get", &format!("{at}/z"), "compression"]);
    assert_eq!(got, "compression=zstd\n");
    fine(&["property", "set", &format!("{at}/z"), "compression", ""]);
    assert_eq!(fine(&["property", "get", &format!("{at}/z"), "compression"]), "");
    // A file of a mount is no image.
    fine(&["property", "set", &format!("{at}/z/numbers"), "compression", "lzo"]);
    let got = fine(&["property", "get", &format!("{at}/z/numbers"), "compression"]);
    assert_eq!(got, "compression=lzo\n");
    assert!(sh(&format!("cd {at} && mkdir d && cp -r {from}/. d && sync -f .")).status.success());
    mount.umount();
    let (_, told) = kernel_sees(&image.path, "d", &from);
    assert!(told.contains("COMPRESS_LZO"), "{told}");
    fs::remove_dir_all(from).expect("remove");
}
