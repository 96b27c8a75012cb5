//! The judges themselves: they accept what is right and refuse what is wrong.

use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::oracle::{
    KernelMount, TempDir, btrfs_check, btrfs_check_devices, kernel_populate, kernel_populate_mount,
    mkfs_btrfs, mkfs_btrfs_devices, newer_btrfs, newer_btrfs_check, scrub, sh, with_kernel,
};
use testkit::{require, skip};

fn snapshot(image: &Path, options: &str) -> TreeSnapshot {
    with_kernel(image, options, |mount| TreeSnapshot::of_dir(mount.path())).unwrap().unwrap()
}

/// All bytes of `marker` in the image become other bytes.
fn damage(image: &Path, marker: &[u8]) -> usize {
    let mut file = OpenOptions::new().read(true).write(true).open(image).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    let windows = bytes.windows(marker.len()).enumerate();
    let places: Vec<_> = windows.filter(|(_, window)| *window == marker).collect();
    for (at, _) in &places {
        file.seek(SeekFrom::Start(*at as u64)).unwrap();
        file.write_all(&vec![b'#'; marker.len()]).unwrap();
    }
    file.sync_all().unwrap();
    places.len()
}

#[test]
fn a_populated_volume_is_clean_and_reads_the_same_again() {
    require!(kernel_btrfs);
    let dir = TempDir::new("populate").unwrap();
    let image = dir.join("image");
    mkfs_btrfs(&image, 2 << 30, &[]).unwrap();
    let mount = KernelMount::new(&image, "noatime").unwrap();
    kernel_populate_mount(&mount, 7).unwrap();
    let before = TreeSnapshot::of_dir(mount.path()).unwrap();
    scrub(&mount).unwrap();
    mount.unmount().unwrap();
    btrfs_check(&image).unwrap();
    let again = snapshot(&image, "ro");
    let mut found = diff(&before, &again, &Rules::strict());
    // What stands for a nested subvolume in a snapshot is on no disk: its times are those
    // of its first sight.
    found.retain(|one| !one.path.0.ends_with(b"/nested") || !one.what.ends_with("time"));
    assert!(found.is_empty(), "{found:#?}");
    assert!(before.nodes.len() > 2000, "{} inodes", before.nodes.len());
    let origin = before.node("links/origin").unwrap();
    assert!(origin.attr.nlink > 300);
    assert!(before.node("snap-ro/nested").is_some());
}

#[test]
fn one_seed_fills_two_volumes_alike() {
    require!(kernel_btrfs);
    let dir = TempDir::new("alike").unwrap();
    // Different checksums and features, but the same tree.
    let kinds: [&[&str]; 2] =
        [&["--csum", "xxhash"], &["-O", "^no-holes", "-R", "^free-space-tree"]];
    let [a, b] = kinds.map(|options| {
        let image = dir.join(&options.concat());
        mkfs_btrfs(&image, 1 << 30, options).unwrap();
        let mount = KernelMount::new(&image, "noatime").unwrap();
        kernel_populate(mount.path(), 3).unwrap();
        let tree = TreeSnapshot::of_dir(mount.path()).unwrap();
        mount.unmount().unwrap();
        btrfs_check(&image).unwrap();
        tree
    });
    let found = diff(&a, &b, &Rules::default().ignoring_clock());
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn check_and_scrub_find_damaged_data() {
    require!(kernel_btrfs);
    let dir = TempDir::new("damage").unwrap();
    let image = dir.join("image");
    mkfs_btrfs(&image, 256 << 20, &["-m", "single"]).unwrap();
    let marker = b"a marker that is nowhere else in this image";
    with_kernel(&image, "", |mount| {
        let content = marker.repeat(1000);
        std::fs::write(mount.join("file"), content).unwrap();
    })
    .unwrap();
    btrfs_check(&image).unwrap();
    assert!(damage(&image, marker) > 100);
    let told = btrfs_check(&image).unwrap_err();
    assert!(told.contains("csum"), "{told}");
    let told = with_kernel(&image, "", scrub).unwrap().unwrap_err();
    assert!(told.contains("csum_errors"), "{told}");
}

#[test]
fn check_finds_damaged_metadata() {
    require!(kernel_btrfs);
    let dir = TempDir::new("metadata").unwrap();
    let image = dir.join("image");
    mkfs_btrfs(&image, 256 << 20, &["-m", "single"]).unwrap();
    let name = "a-name-that-is-nowhere-else-in-this-image";
    with_kernel(&image, "", |mount| std::fs::write(mount.join(name), "").unwrap()).unwrap();
    btrfs_check(&image).unwrap();
    assert!(damage(&image, name.as_bytes()) > 0);
    assert!(btrfs_check(&image).is_err());
}

#[test]
fn a_volume_of_two_devices_mounts() {
    require!(kernel_btrfs);
    let dir = TempDir::new("two").unwrap();
    let (a, b) = (dir.join("a"), dir.join("b"));
    mkfs_btrfs_devices(&[&a, &b], 256 << 20, &["-d", "raid1", "-m", "raid1"]).unwrap();
    let mount = KernelMount::of_devices(&[&a, &b], "").unwrap();
    std::fs::write(mount.join("file"), vec![1; 100_000]).unwrap();
    scrub(&mount).unwrap();
    mount.unmount().unwrap();
    btrfs_check_devices(&[&a, &b]).unwrap();
}

#[test]
fn a_failing_test_leaves_nothing_behind() {
    require!(kernel_btrfs);
    let dir = TempDir::new("leave").unwrap();
    let image = dir.join("image");
    mkfs_btrfs(&image, 256 << 20, &[]).unwrap();
    let mut point = std::path::PathBuf::new();
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mount = KernelMount::new(&image, "").unwrap();
        point = mount.path().to_owned();
        panic!("as a failing test would");
    }));
    assert!(failed.is_err());
    assert!(!point.exists());
    // Another test's tool may look at all block devices just now, and holds this one open.
    let attached = || sh("losetup", &["-j", &image.to_string_lossy()]).unwrap();
    for _ in 0..500 {
        if attached().is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(attached(), "");
    assert!(KernelMount::new(Path::new("/dev/null/nothing"), "").is_err());
}

#[test]
fn skips_are_counted_and_noted() {
    fn skipped() {
        require!(1 > 2, "one is not more than {}", 2);
        panic!("was not skipped");
    }
    let before = testkit::oracle::skip_count();
    skipped();
    assert_eq!(testkit::oracle::skip_count(), before + 1);
}

#[test]
fn the_newer_program_judges_too() {
    require!(btrfs_progs);
    if let Err(why) = newer_btrfs() {
        skip!("{why}");
    }
    let dir = TempDir::new("newer").unwrap();
    let image = dir.join("image");
    mkfs_btrfs(&image, 256 << 20, &[]).unwrap();
    newer_btrfs_check(&image).unwrap();
    OpenOptions::new().write(true).open(&image).unwrap().set_len(64 << 20).unwrap();
    assert!(newer_btrfs_check(&image).is_err());
}

/// Any service that starts has a copy of all mounts for a while.
#[test]
fn an_unmounted_volume_is_closed_although_another_namespace_had_it() {
    require!(kernel_btrfs);
    let dir = TempDir::new("namespace").unwrap();
    let image = dir.join("image");
    mkfs_btrfs(&image, 256 << 20, &[]).unwrap();
    let mount = KernelMount::new(&image, "noatime").unwrap();
    std::fs::write(mount.join("file"), "content").unwrap();
    let (within, has) = std::io::pipe().unwrap();
    let mut other = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 1"])
        .stdout(has)
        .spawn()
        .unwrap();
    (&within).read_exact(&mut [0]).unwrap();
    mount.unmount().unwrap();
    assert_eq!(sh("losetup", &["-j", image.to_str().unwrap()]).unwrap(), "");
    let copy = dir.join("copy");
    std::fs::copy(&image, &copy).unwrap();
    let read = with_kernel(&copy, "ro", |mount| std::fs::read(mount.join("file")).unwrap());
    assert_eq!(read.unwrap(), b"content");
    other.wait().unwrap();
}
