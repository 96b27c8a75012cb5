//! Listing a directory of a mount while its names move: it ends where the directory ended when
//! it was opened or rewound, as on the kernel's btrfs. So it does in a directory that has seen so
//! many names that the offsets are told in their long form.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use suites::{TRANSPORTS, Volume, lacking};
use testkit::skip;

const NAMES: usize = 5000;

/// Up to here the file system's offsets are told in the short form.
const SHORT: u64 = 1 << 20;

/// Names that come into it from now on stand behind what the short form can tell. One stays, or the
/// next mount would begin anew.
fn use_up(dir: &Path) {
    let names = [dir.join("a"), dir.join("b")];
    fs::write(&names[0], b"").unwrap();
    for _ in 0..SHORT / 2 {
        fs::rename(&names[0], &names[1]).unwrap();
        fs::rename(&names[1], &names[0]).unwrap();
    }
}

/// The largest offset that a listing tells.
fn largest_offset(dir: &Path) -> u64 {
    let path = CString::new(dir.as_os_str().as_bytes()).unwrap();
    let mut largest = 0;
    // SAFETY: the path ends with NUL; an entry is looked at before the next is asked for.
    unsafe {
        let listing = libc::opendir(path.as_ptr());
        assert!(!listing.is_null(), "{}", std::io::Error::last_os_error());
        while let Some(entry) = libc::readdir64(listing).as_ref() {
            largest = largest.max(entry.d_off.cast_unsigned());
        }
        libc::closedir(listing);
    }
    largest
}

/// More than a buffer of READDIR holds.
fn fill(root: &Path) {
    let there = fs::read_dir(root.join("dir")).unwrap().count();
    for n in there..NAMES {
        fs::write(root.join(format!("dir/a-name-that-is-not-short-{n:040}")), b"").unwrap();
    }
}

/// Renames each name when it is listed: what was listed.
fn moving_all(root: &Path, round: usize) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for (n, entry) in fs::read_dir(root.join("dir")).unwrap().enumerate() {
        let entry = entry.unwrap();
        assert!(n < NAMES, "round {round}: {n} names");
        assert!(seen.insert(entry.file_name().into_string().unwrap()), "{entry:?} twice");
        let to = format!("dir/round-{round}-with-a-name-that-is-not-short-{n:040}");
        fs::rename(entry.path(), root.join(to)).unwrap();
    }
    seen
}

/// Other threads rename all the time; some names stay, and each listing has those.
fn storm(root: &Path) {
    let dir = root.join("stormy");
    fs::create_dir(&dir).unwrap();
    for n in 0..2000 {
        fs::write(dir.join(format!("stays-{n:060}")), b"").unwrap();
        fs::write(dir.join(format!("moves-{n:060}-0")), b"").unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (dir, stop) = (&dir, &stop);
            scope.spawn(move || {
                let name = |n: usize, turn: usize| dir.join(format!("moves-{n:060}-{turn}"));
                for turn in 0.. {
                    for n in (thread..2000).step_by(2) {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        fs::rename(name(n, turn), name(n, turn + 1)).unwrap();
                    }
                }
            });
        }
        let begin = Instant::now();
        for _ in 0..10 {
            let names = fs::read_dir(&dir).unwrap();
            let mut stayed = 0;
            for (n, entry) in names.enumerate() {
                stayed += usize::from(entry.unwrap().file_name().as_encoded_bytes()[0] == b's');
                if n > 100_000 {
                    stop.store(true, Ordering::Relaxed);
                    panic!("a listing of 4000 names does not end");
                }
            }
            assert_eq!(stayed, 2000);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    });
}

fn everything(root: &Path) -> Vec<BTreeSet<String>> {
    fill(root);
    let told = (0..4).map(|round| moving_all(root, round)).collect();
    storm(root);
    told
}

/// A volume with an empty directory, used or new, that the kernel made.
fn made(used: bool) -> Volume {
    let volume = Volume::new("listing-made", 512 << 20);
    let kernel = volume.mount_by_kernel();
    let dir = kernel.path().join("dir");
    fs::create_dir(&dir).unwrap();
    if used {
        use_up(&dir);
    }
    kernel.unmount().unwrap();
    volume
}

fn copied(from: &Volume) -> Volume {
    let volume = Volume::new("listing", 512 << 20);
    let mut copy = Command::new("cp");
    copy.arg("--sparse=always").arg(from.image()).arg(volume.image());
    assert!(copy.status().unwrap().success());
    volume
}

fn ends_as_on_the_kernel(used: bool) {
    let original = made(used);
    let reference = copied(&original);
    let kernel = reference.mount_by_kernel();
    let expected = everything(kernel.path());
    kernel.unmount().unwrap();
    TRANSPORTS.iter().for_each(|transport| lists(transport, &original, used, &expected));
}

fn lists(transport: &str, original: &Volume, used: bool, expected: &[BTreeSet<String>]) {
    if let Some(why) = lacking(transport) {
        skip!("{why}");
    }
    let volume = copied(original);
    let mount = volume.mount(transport, Duration::from_secs(180));
    let told = everything(mount.path());
    assert!(told == expected, "{transport}: the kernel lists the same names");
    assert!(told.iter().all(|names| names.len() == NAMES));
    let largest = largest_offset(&mount.path().join("dir"));
    assert_eq!(largest < 1 << 31, !used, "{transport}: {largest:#x}");
    volume.judge(&mount.unmount_with_tree());
}

#[test]
fn a_listing_ends_beside_renames() {
    if let Some(why) = lacking("classic") {
        skip!("{why}");
    }
    ends_as_on_the_kernel(false);
}

#[test]
fn a_listing_of_long_offsets_ends_beside_renames() {
    if let Some(why) = lacking("classic") {
        skip!("{why}");
    }
    ends_as_on_the_kernel(true);
}
