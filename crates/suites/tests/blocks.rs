//! `st_blocks` changes when content gets its extents, which is after the kernel was told:
//! what `stat` says of a mount after a sync is what the kernel's btrfs says of the volume.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use suites::{TRANSPORTS, Volume, lacking, shell};
use testkit::skip;

const SECTOR: usize = 4096;

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
    // Notifications follow the commit by the time that a thread needs to wake up.
    let start = Instant::now();
    let mut after = blocks(mount.path(), &names);
    while after == told && start.elapsed() < Duration::from_secs(5) {
        sleep(Duration::from_millis(10));
        after = blocks(mount.path(), &names);
    }
    sleep(Duration::from_millis(200));
    after = blocks(mount.path(), &names);
    // Where they differ: was the content not written, or the count not told?
    let spinney = suites::spinney().display().to_string();
    let stats = shell(60, mount.path(), &format!("{spinney} stats --json ."));
    mount.unmount();
    let kernel = volume.mount_by_kernel();
    let expected = blocks(kernel.path(), &names);
    assert_ne!(told, expected, "nothing had to settle: this shows nothing");
    assert_eq!(after, expected, "{stats}");
}

#[test]
fn blocks_settle_over_uring() {
    blocks_settle(TRANSPORTS[0]);
}

#[test]
fn blocks_settle_over_classic() {
    blocks_settle(TRANSPORTS[1]);
}
