//! Listing a directory of a mount while its names move: it ends where the directory ended when
//! it was opened or rewound, as on the kernel's btrfs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use suites::{TRANSPORTS, Volume, lacking};
use testkit::skip;

const NAMES: usize = 5000;

/// More than a buffer of READDIR holds.
fn fill(root: &Path) {
    fs::create_dir(root.join("dir")).unwrap();
    for n in 0..NAMES {
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

#[test]
fn a_listing_ends_beside_renames() {
    for transport in TRANSPORTS {
        if let Some(why) = lacking(transport) {
            skip!("{why}");
        }
        let reference = Volume::new("listing-kernel", 512 << 20);
        let kernel = reference.mount_by_kernel();
        let expected = everything(kernel.path());
        kernel.unmount().unwrap();
        let volume = Volume::new("listing", 512 << 20);
        let mount = volume.mount(transport, Duration::from_secs(180));
        let told = everything(mount.path());
        assert!(told == expected, "{transport}: the kernel lists the same names");
        assert!(told.iter().all(|names| names.len() == NAMES));
        volume.judge(&mount.unmount_with_tree());
    }
}
