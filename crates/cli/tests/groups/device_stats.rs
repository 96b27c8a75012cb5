//! The errors of a device: what scrubs and reads of ours meet is in the volume's own statistics, as
//! the kernel's btrfs counts and shows them.

use crate::common;
use btrfs_disk::{ChecksumType, FixedSize, Header};
use common::mount::Mount;
use common::{Image, KernelMount, SCRUB, copies, fine, sh, text, told_behind};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use testkit::require;

fn shell(script: &str) -> String {
    let done = sh(script);
    assert!(done.status.success(), "{script}: {}", text(&done.stderr));
    text(&done.stdout)
}

/// Writes, reads, flushes, corruption, generation.
fn numbers(told: &str) -> Vec<u64> {
    let number = |line: &str| line.split_whitespace().last().and_then(|n| n.parse().ok());
    told.lines().filter_map(number).collect()
}

/// As the kernel has them once it has mounted it.
fn as_the_kernel_tells(image: &Path) -> Vec<u64> {
    let kernels = KernelMount::new(image, "ro").expect("mount");
    let told = shell(&format!("btrfs device stats {}", kernels.path().display()));
    kernels.unmount().expect("unmount");
    numbers(&told)
}

fn as_we_tell(place: &str) -> Vec<u64> {
    numbers(&fine(&["device", "stats", place]))
}

fn dump(image: &Path, words: &str) -> String {
    shell(&format!("btrfs inspect-internal dump-tree {words} {}", image.display()))
}

/// `count` files of a sector each, and in front of them one of 64 KiB.
fn made(name: &str, count: u64) -> Image {
    let image = Image::with(name, &["-d", "single", "-m", "dup"]);
    let kernels = KernelMount::new(&image.path, "noatime").expect("mount");
    shell(&format!(
        "cd {}; head -c 65536 /dev/urandom > large; sync -f .
         for i in $(seq {count}); do head -c 4096 /dev/urandom > f$i; done; sync -f .",
        kernels.path().display()
    ));
    kernels.unmount().expect("unmount");
    image
}

/// Logical addresses of content, in the order of inodes.
fn content(image: &Path) -> Vec<u64> {
    told_behind(&dump(image, "-t 5"), "extent data disk byte ")
}

/// The second copy of a leaf of the checksum tree becomes another; where it is read only by a scrub.
fn change_second_copy(image: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let tree = dump(image, "-t csum");
    let at = copies(image, told_behind(&tree, "leaf ")[0])[1];
    let file = File::options().read(true).write(true).open(image).expect("open");
    let mut node = vec![0; 16384];
    file.read_exact_at(&mut node, at).expect("read");
    change(&mut node);
    file.write_all_at(&node, at).expect("write");
}

#[test]
fn a_scrub_counts_what_the_kernels_scrub_counts() {
    require!(kernel_btrfs);
    require!(fuse);
    for stale in [false, true] {
        let image = made("stats-scrub", 4);
        let file = File::options().write(true).open(&image.path).expect("open");
        for (at, sector) in [(0, 0), (0, 3), (1, 0), (2, 0)] {
            let place = copies(&image.path, content(&image.path)[at])[0] + 4096 * sector;
            file.write_all_at(&[0xa5; 16], place + 100).expect("write");
        }
        change_second_copy(&image.path, |node| {
            if stale {
                let mut header = Header::read(node).expect("sized");
                header.generation.0 -= 1;
                header.write(node);
                ChecksumType::Crc32c.seal(node);
            } else {
                node[5000] ^= 1;
            }
        });
        let theirs = image.dir.join("theirs.img");
        let mounted = image.dir.join("mounted.img");
        for copy in [&theirs, &mounted] {
            let (from, to) = (image.path.display(), copy.display());
            shell(&format!("cp --sparse=always {from} {to}"));
        }
        let kernels = KernelMount::new(&theirs, "noatime").expect("mount");
        let top = kernels.path().display().to_string();
        sh(&format!("{SCRUB} start -B {top}"));
        let expected = numbers(&shell(&format!("btrfs device stats {top}")));
        kernels.unmount().expect("unmount");
        println!("{expected:?}");
        // Of damaged nodes those of another time alone.
        assert_eq!(expected, [0, 0, 0, 4, stale.into()]);

        common::spinney(&["scrub", "start", &image.word()]);
        assert_eq!(as_we_tell(&image.word()), expected);
        assert_eq!(as_the_kernel_tells(&image.path), expected);

        let other = Image { dir: image.dir, path: mounted };
        let mount = Mount::new(&other, "");
        common::spinney(&["scrub", "start", "-B", &mount.word()]);
        assert_eq!(as_we_tell(&mount.word()), expected);
        mount.umount();
        assert_eq!(as_the_kernel_tells(&other.path), expected);
    }
}

#[test]
fn reads_of_damaged_content_are_counted_and_set_to_zero() {
    require!(kernel_btrfs);
    require!(fuse);
    let image = made("stats-reads", 5);
    let file = File::options().write(true).open(&image.path).expect("open");
    for at in [1, 3] {
        let place = copies(&image.path, content(&image.path)[at])[0];
        file.write_all_at(&[0xa5; 16], place + 100).expect("write");
    }
    let read = |top: &str| sh(&format!("cat {top}/f* > /dev/null"));
    // Two sectors, each read once at least: who retries counts again, as in the kernel.
    let mount = Mount::new(&image, "");
    assert!(!read(&mount.word()).status.success());
    let told = as_we_tell(&mount.word());
    assert!(told[3] >= 2 && told[..3] == [0; 3] && told[4] == 0, "{told:?}");
    mount.umount();
    assert_eq!(as_we_tell(&image.word()), told);
    assert_eq!(as_the_kernel_tells(&image.path), told);
    // Those of a second mount come on top, and so do the kernel's.
    let mount = Mount::new(&image, "");
    assert_eq!(as_we_tell(&mount.word()), told);
    assert!(!read(&mount.word()).status.success());
    let more = as_we_tell(&mount.word());
    assert!(more[3] >= told[3] + 2, "{told:?} {more:?}");
    // By its image or device as by its point: not what the last commit has.
    let (_, device) = common::mount::mounted(&mount.point).expect("a mount");
    for word in [image.word(), device] {
        assert!(!read(&mount.word()).status.success());
        let told = as_we_tell(&word);
        assert!(told[3] > more[3] && told == as_we_tell(&mount.word()), "{word}: {told:?}");
    }
    let more = as_we_tell(&mount.word());
    mount.umount();
    let kernels = KernelMount::new(&image.path, "noatime").expect("mount");
    let top = kernels.path().display().to_string();
    assert!(!read(&top).status.success());
    shell(&format!("touch {top}/new; sync -f {top}"));
    let most = numbers(&shell(&format!("btrfs device stats {top}")));
    assert!(most[3] >= more[3] + 2, "{more:?} {most:?}");
    kernels.unmount().expect("unmount");
    // A mount that may not write tells what it meets, and leaves the volume as it is.
    let mount = Mount::new(&image, "ro");
    assert!(!read(&mount.word()).status.success());
    assert!(as_we_tell(&mount.word())[3] > most[3]);
    let (code, _) = common::failing(&["device", "stats", "-z", &mount.word()]);
    assert_eq!(code, 1);
    mount.umount();
    assert_eq!(as_the_kernel_tells(&image.path), most);

    assert_eq!(numbers(&fine(&["device", "stats", "-z", &image.word()])), most);
    assert_eq!(as_we_tell(&image.word()), [0; 5]);
    assert_eq!(as_the_kernel_tells(&image.path), [0; 5]);
    let mount = Mount::new(&image, "");
    assert!(!read(&mount.word()).status.success());
    let some = as_we_tell(&mount.word());
    assert!(some[3] >= 2);
    assert_eq!(numbers(&fine(&["device", "stats", "--reset", &mount.word()])), some);
    assert_eq!(as_we_tell(&mount.word()), [0; 5]);
    mount.umount();
    assert_eq!(as_the_kernel_tells(&image.path), [0; 5]);
}

#[test]
fn who_may_not_ask_a_mount_is_told_what_the_image_has() {
    require!(kernel_btrfs);
    require!(fuse);
    require!(sh("setpriv --help").status.success(), "no setpriv here");
    let image = made("stats-closed", 2);
    let dir = image.dir.path().display().to_string();
    fs::copy(common::PROGRAM, image.dir.join("program")).expect("copy");
    shell(&format!("chmod 755 {dir} {dir}/program; chmod 644 {}", image.path.display()));
    let mount = Mount::new(&image, "");
    let ask = |words: &str| {
        let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
        sh(&format!("{nobody} {dir}/program device stats {words} {}", image.word()))
    };
    // Whom the server refuses, and who does not even get in.
    for mode in [755, 700] {
        shell(&format!("chmod {mode} {}", mount.word()));
        let told = ask("");
        assert!(told.status.success(), "{mode}: {}", text(&told.stderr));
        assert_eq!(numbers(&text(&told.stdout)), [0; 5]);
        assert_eq!(ask("-z").status.code(), Some(1), "{mode}");
    }
    mount.umount();
}
