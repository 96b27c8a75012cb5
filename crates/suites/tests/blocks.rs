//! `st_blocks`, of content that is not written yet too: what `stat` says of a mount is what it
//! says on the kernel's btrfs, after each change and again after a sync, when content got its
//! extents and the kernel was told.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use suites::{TRANSPORTS, Volume, lacking, shell, transports};
use testkit::oracle::with_kernel;
use testkit::skip;

const SECTOR: usize = 4096;
/// By so much may a notification come behind its commit.
const LATE: Duration = Duration::from_secs(10);

/// Files whose block count settles in different ways.
fn write_files(root: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut file = |name: &str| {
        names.push(name.to_owned());
        File::options().create(true).truncate(true).write(true).open(root.join(name)).unwrap()
    };
    for len in [1, 100, 2000, 3000, SECTOR, SECTOR + 1, 100_000, 3 << 20] {
        file(&format!("of-{len}")).write_all(&vec![7; len]).unwrap();
    }
    let holes = file("holes");
    for at in [0, 20, 21, 300] {
        holes.write_all_at(&[5; SECTOR], at * SECTOR as u64).unwrap();
    }
    holes.set_len(900 * SECTOR as u64).unwrap();
    let over = file("overwritten");
    over.write_all_at(&vec![1; 64 * SECTOR], 0).unwrap();
    over.sync_all().unwrap();
    over.write_all_at(&vec![2; 24 * SECTOR], 10 * SECTOR as u64).unwrap();
    let reserved = file("reserved");
    shell(60, root, "fallocate -l 200000 reserved");
    reserved.write_all_at(&vec![3; 9 * SECTOR], SECTOR as u64).unwrap();
    names
}

fn blocks(root: &Path, names: &[String]) -> Vec<(String, u64)> {
    let of = |name: &String| (name.clone(), fs::metadata(root.join(name)).unwrap().blocks());
    names.iter().map(of).collect()
}

fn blocks_settle(transport: &str) {
    if let Some(why) = lacking(transport) {
        skip!("{why}");
    }
    let volume = Volume::new("blocks", 1 << 30);
    let mount = volume.mount(transport, Duration::from_secs(120));
    let names = write_files(mount.path());
    let told = blocks(mount.path(), &names);
    shell(60, mount.path(), "sync -f .");
    // What the kernel has of the volume as it is now.
    let copy = volume.beside("copy.img");
    shell(
        60,
        mount.path(),
        &format!("cp --sparse=always {} {}", volume.image().display(), copy.display()),
    );
    let expected = with_kernel(&copy, "noatime", |kernel| blocks(kernel.path(), &names)).unwrap();
    // Notifications follow the commit by the time that a thread needs to wake up.
    let start = Instant::now();
    let mut after = blocks(mount.path(), &names);
    while after != expected && start.elapsed() < LATE {
        sleep(Duration::from_millis(10));
        after = blocks(mount.path(), &names);
    }
    // Where they differ: was the content not written, or the count not told?
    let spinney = suites::spinney().display().to_string();
    let stats = shell(60, mount.path(), &format!("{spinney} stats --json ."));
    mount.unmount();
    assert_eq!(told, expected, "what has no extent yet counts what it will have");
    assert_eq!(after, expected, "{stats}");
}

/// Changes of `f`, one after the other. `put` writes so many sectors at a sector.
const CHANGES: &[&str] = &[
    "put 0 64",
    "sync",
    "put 10 24",
    "put 60 10",
    "put 100 4",
    "sync",
    "put 72 8",
    "put 0 200",
    "sync",
    "truncate -s 40000 f",
    "put 4 3",
    "truncate -s 5000 f",
    "truncate -s 901120 f",
    "put 3 1",
    "sync",
    "printf abc | dd of=f bs=1 seek=20000 conv=notrunc status=none",
    "printf abc | dd of=f bs=1 seek=100 conv=notrunc status=none",
    "fallocate -p -o 0 -l 8192 f",
    "put 0 1",
    "sync",
    "fallocate -o 400000 -l 100000 f",
    "put 98 4",
    "put 150 1",
    "fallocate -o 600000 -l 100000 f",
    "sync",
    "put 150 8",
    "fallocate -n -o 2000000 -l 65536 f",
    "sync",
    "put 489 2",
    "sync",
    "rm f; printf 'small' >f",
    "printf 'smaller still' >f",
    "sync",
    "printf 'more' >>f",
    "head -c 3000 /dev/zero >>f",
    "sync",
    "put 1 1",
    "put 0 1",
    "sync",
    "rm f; head -c 300000 /dev/urandom >f; cp f g; mv g f",
    "sync",
    "put 5 5",
    "dd if=other of=f bs=4096 seek=7 count=9 oflag=direct conv=notrunc status=none",
    "put 90 2",
    "sync",
];

/// The block count after each change; for a while it may differ from the `expected` ones.
fn counts(root: &Path, expected: Option<&[String]>) -> Vec<String> {
    let put = "put() { dd if=other of=f bs=4096 seek=$1 count=$2 conv=notrunc status=none; }";
    shell(60, root, "head -c 1000000 /dev/urandom >other");
    let count = |(number, change): (usize, &&str)| {
        let does = if *change == "sync" { "sync -f ." } else { change };
        shell(60, root, &format!("{put}; set -e; {does}"));
        let (asked, start) = (File::open(root.join("f")).unwrap(), Instant::now());
        loop {
            let told = format!("{change}: {}", asked.metadata().unwrap().blocks());
            let agrees = expected.is_none_or(|expected| expected[number] == told);
            if agrees || *change != "sync" || start.elapsed() > LATE {
                return told;
            }
            sleep(Duration::from_millis(10));
        }
    };
    CHANGES.iter().enumerate().map(count).collect()
}

#[test]
fn blocks_are_the_kernels_after_each_change() {
    for transport in transports() {
        let reference = Volume::new("blocks-kernel", 1 << 30);
        let kernel = reference.mount_by_kernel();
        let expected = counts(kernel.path(), None);
        kernel.unmount().unwrap();
        let volume = Volume::new("blocks-each", 1 << 30);
        let mount = volume.mount(transport, Duration::from_secs(120));
        let told = counts(mount.path(), Some(&expected));
        let differ: Vec<_> = told.iter().zip(&expected).filter(|(a, b)| a != b).collect();
        assert!(differ.is_empty(), "{transport}; the kernel's btrfs is on the right: {differ:#?}");
        volume.judge(&mount.unmount_with_tree());
    }
}

#[test]
fn blocks_settle_over_uring() {
    blocks_settle(TRANSPORTS[0]);
}

#[test]
fn blocks_settle_over_classic() {
    blocks_settle(TRANSPORTS[1]);
}
