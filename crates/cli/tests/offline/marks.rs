//! `mkfs` without -f overwrites nothing that somebody may miss, and says what is there.

use crate::common;
use common::{Image, PROGRAM, TempDir, failing, fine, sh};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use testkit::require;

const LEN: u64 = (200 << 20) + (40 << 10) + 512;

fn empty(name: &str) -> Image {
    let dir = TempDir::new(name).unwrap();
    let path = dir.join("disk.img");
    File::create(&path).unwrap().set_len(LEN).unwrap();
    Image { dir, path }
}

fn put(image: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(image).unwrap().write_all_at(bytes, at).unwrap();
}

/// Refused as `what`, and left as it is.
fn assert_refused(image: &Image, what: &str) {
    let written = || fs::metadata(&image.path).unwrap().modified().unwrap();
    let before = written();
    let (code, told) = failing(&["mkfs", &image.word()]);
    assert_eq!(code, 1, "{what}: {told}");
    assert!(told.contains(&format!("there is {what} on it")), "{what}: {told}");
    assert!(told.contains("-f overwrites it"), "{told}");
    assert_eq!(written(), before, "{what}: the image was written to");
}

/// A mark at each place where it may be, alone on the medium.
#[test]
fn each_mark_is_known() {
    let md = [0xa92b_4efc_u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
    let raid = "a member of a Linux software RAID (md)";
    let (zfs, lvm) = ("a member of a ZFS pool", "a physical volume of LVM2");
    let (luks, gpt) = ("an encrypted volume (LUKS)", "a partition table (GPT)");
    let copy = "a btrfs volume (a copy of its superblock; the first one is gone)";
    let lvm_label =
        |sector: u64| [&b"LABELONE"[..], &sector.to_le_bytes(), &[0; 8], b"LVM2 001"].concat();
    let mut marks: Vec<(u64, Vec<u8>, &str)> = vec![
        (0x1_0040, b"_BHRfS_M".to_vec(), "a btrfs volume"),
        (0x400_0040, b"_BHRfS_M".to_vec(), copy),
        (0, md.clone(), raid),
        (4096, md.clone(), raid),
        // 1.0: at least 8 KiB in front of the end, on 4 KiB; 0.90: the last whole 64 KiB.
        ((LEN - 8192) / 4096 * 4096, md.clone(), raid),
        (LEN / 65536 * 65536 - 65536, md[..4].to_vec(), raid),
        (LEN / 65536 * 65536 - 65536, vec![0xa9, 0x2b, 0x4e, 0xfc], raid),
        (0, b"LUKS\xba\xbe".to_vec(), luks),
        (0x4000, b"SKUL\xba\xbe".to_vec(), luks),
        (0x40_0000, b"SKUL\xba\xbe".to_vec(), luks),
        (512, b"EFI PART".to_vec(), gpt),
        (LEN - 512, b"EFI PART".to_vec(), gpt),
        (510, b"\x55\xaa".to_vec(), "a partition table or a boot sector"),
        (1024, 0xf2f5_2010_u32.to_le_bytes().to_vec(), "an F2FS file system"),
        (32769, b"CD001".to_vec(), "an ISO 9660 file system"),
        (3, b"NTFS    ".to_vec(), "an NTFS file system"),
        (3, b"EXFAT   ".to_vec(), "an exFAT file system"),
        (82, b"FAT32   ".to_vec(), "a FAT file system"),
        (
            4120,
            b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81".to_vec(),
            "a bcache device",
        ),
        (1080, b"\x53\xef".to_vec(), "an ext2, ext3 or ext4 file system"),
        (0, b"XFSB".to_vec(), "an XFS file system"),
    ];
    marks.extend((0..4).map(|sector| (sector * 512, lvm_label(sector), lvm)));
    let ends = [4096, 8192, 16384, 32768, 65536_u64];
    marks.extend(ends.map(|page| (page - 10, b"SWAPSPACE2".to_vec(), "a swap area")));
    let last = LEN / 0x4_0000 * 0x4_0000;
    let labels = [0, 0x4_0000, last - 0x8_0000, last - 0x4_0000];
    let uberblock = 0x00ba_b10c_u64.to_be_bytes().to_vec();
    marks.extend(labels.map(|label| (label + 0x2_0000 + 5 * 1024, uberblock.clone(), zfs)));
    let image = empty("marks");
    for (at, mark, what) in marks {
        put(&image.path, at, &mark);
        assert_refused(&image, what);
        put(&image.path, at, &vec![0; mark.len()]);
    }
    assert!(fine(&["mkfs", &image.word()]).contains("chunk"), "nothing is there any more");
    assert_refused(&image, "a btrfs volume");
    fine(&["mkfs", "-f", &image.word()]);
}

/// As the tools make them, where they are; of each of them mkfs.btrfs keeps away, too.
#[test]
fn what_tools_make_is_known() {
    require!(btrfs_progs);
    let swap = "a swap area";
    let (gpt, mbr) = ("a partition table (GPT)", "a partition table or a boot sector");
    let copy = "a btrfs volume (a copy of its superblock; the first one is gone)";
    let mut made = 0;
    for (script, what) in [
        ("mkswap -p 4096", swap),
        ("mkswap -p 65536", swap),
        ("mkfs.ext4 -q -F", "an ext2, ext3 or ext4 file system"),
        ("mkfs.vfat", "a FAT file system"),
        ("echo 'label: gpt' | sfdisk -q", gpt),
        ("echo 'label: dos' | sfdisk -q", mbr),
        ("f() { mkfs.btrfs -q $1 && wipefs -qa $1; }; f", copy),
    ] {
        let image = empty("marks-made");
        if !sh(&format!("{script} {}", image.word())).status.success() {
            eprintln!("not here: {script}");
            continue;
        }
        made += 1;
        assert_refused(&image, what);
        let theirs = sh(&format!("mkfs.btrfs {}", image.word()));
        assert!(!theirs.status.success() || what == copy, "{script}");
        assert!(sh(&format!("{PROGRAM} mkfs -f {}", image.word())).status.success());
        common::assert_clean(&image.path);
    }
    assert!(made >= 2, "swap and btrfs at least");
}
