//! A volume filled to the brim through a mount and emptied again, over and over: ENOSPC and
//! nothing worse, deleting works on a full volume, and the space comes back to the block. And what a full volume still writes.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use suites::{Volume, number, shell, transports};
use testkit::oracle::{KernelMount, LoopDevice};

const ROUNDS: u64 = 8;
const SIZE: u64 = 160 << 20;
/// Bytes of a file, one size for each kind of round: extents, parts of blocks, inline.
const SIZES: [usize; 3] = [1 << 20, 70_001, 1500];
/// Small files are many; what is left after so many is filled with large ones.
const MOST: usize = 4000;

fn free_blocks(root: &Path) -> u64 {
    shell(60, root, "stat -f -c %f .").trim().parse().expect("a number")
}

/// As many files as go in, or `MOST`; whether the volume is full.
fn fill(dir: &Path, size: usize) -> bool {
    let content = vec![size as u8 | 1; size];
    for number in 0..MOST {
        let path = dir.join(format!("{size}-{number}"));
        let written = File::create(path).and_then(|mut file| file.write_all(&content));
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => return true,
            Err(error) => panic!("file {number} of {size} bytes: {error}"),
        }
    }
    false
}

fn round(root: &Path, number: usize) {
    let dir = root.join("round");
    fs::create_dir(&dir).unwrap();
    let full = fill(&dir, SIZES[number % SIZES.len()]);
    assert!(full || fill(&dir, SIZES[0]), "round {number} does not fill the volume");
    // What was promised goes to disk, on a full volume too.
    shell(60, root, "sync -f .");
    fs::remove_dir_all(&dir).unwrap();
}

/// What is free once the kernel's late FORGETs are in and everything is committed.
fn settled(root: &Path, expected: Option<u64>) -> u64 {
    let start = Instant::now();
    let (mut last, mut since) = (0, start);
    loop {
        shell(60, root, "sync -f .");
        let free = free_blocks(root);
        if free != last {
            (last, since) = (free, Instant::now());
        }
        let done = expected.map_or(since.elapsed() > Duration::from_secs(1), |e| e == free);
        if done || start.elapsed() > Duration::from_secs(30) {
            return free;
        }
        sleep(Duration::from_millis(50));
    }
}

/// Of a read-only mount of a writable device: a read-only device would count as full.
fn free_for_the_kernel(volume: &Volume) -> u64 {
    let device = LoopDevice::attach(&volume.image(), false).unwrap();
    let mount = KernelMount::of_attached(vec![device], "ro").unwrap();
    let free = free_blocks(mount.path());
    mount.unmount().unwrap();
    free
}

#[test]
fn rounds_give_all_space_back() {
    let rounds = number("SPINNEY_ROUNDS", ROUNDS) as usize;
    for transport in transports() {
        let volume = Volume::new("full", SIZE);
        let mount = volume.mount(transport, Duration::from_secs(400));
        let mut free = Vec::new();
        for number in 0..rounds {
            round(mount.path(), number);
            // The first round of each kind may leave chunks behind.
            let expected = if number > SIZES.len() { free.last().copied() } else { None };
            free.push(settled(mount.path(), expected));
        }
        let rest = &free[SIZES.len()..];
        assert!(rest.iter().all(|blocks| *blocks == rest[0]), "{transport}: {free:?}");
        let seen = mount.unmount_with_tree();
        assert_eq!(free_for_the_kernel(&volume), rest[0], "{transport}: {free:?}");
        volume.judge(&seen);
    }
}

/// Of five sectors that have space, and five that have none.
const PARTS: &str = "truncate -s 40960 buffered direct; for name in buffered direct; do fallocate -n -l 20480 $name; done
    dd if=/dev/zero of=rest bs=1M 2>/dev/null || true
    dd if=/dev/zero of=more bs=4k 2>/dev/null || true; sync -f .";

/// What has space is written in front and told; of a direct write, of whose short answer the kernel would make an error of
/// the device, nothing is.
#[test]
fn a_write_that_has_space_in_front_is_short_and_a_direct_one_refused() {
    for transport in transports() {
        let volume = Volume::new("full-parts", SIZE);
        let mount = volume.mount(transport, Duration::from_secs(400));
        shell(60, mount.path(), PARTS);
        let write = |name: &str, flags: i32| {
            let path = mount.path().join(name);
            let file = File::options().write(true).custom_flags(flags).open(path).unwrap();
            file.write_at(&[7; 40960], 0).map_err(|error| error.raw_os_error())
        };
        assert_eq!(write("buffered", 0), Ok(20480), "{transport}");
        assert_eq!(write("direct", libc::O_DIRECT), Err(Some(libc::ENOSPC)), "{transport}");
        let content = |name: &str| fs::read(mount.path().join(name)).unwrap();
        assert!(content("buffered") == [[7; 20480], [0; 20480]].concat(), "{transport}");
        assert!(content("direct") == [0; 40960], "{transport}");
        let seen = mount.unmount_with_tree();
        volume.judge(&seen);
    }
}
