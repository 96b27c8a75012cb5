//! `kill -9` of the server in the middle of a balance, and of the deletion of a subvolume: the next mount, ours
//! or the kernel's, goes on with it or cancels it; what was synced meanwhile is there, other files and
//! snapshots are what they were, quotas are right, and the volume is sound.
//!
//! `SPINNEY_ROUNDS` makes it longer.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use suites::{Limited, Mounted, Volume, shell, transports};
use testkit::oracle::{KernelMount, btrfs_check, run, scrub, sh};

const LIMIT: Duration = Duration::from_secs(120);
const RECORD: usize = 5000;

/// Subvolumes with content that is shared, and one for each round to be deleted.
fn fill(volume: &Volume, rounds: u64) {
    let mount = volume.mount_by_kernel();
    let script = format!(
        "set -e; btrfs -q quota enable . >/dev/null; btrfs -q subvolume create data; cd data
         for d in $(seq 20); do mkdir d$d; for i in $(seq 40); do
             head -c $((i * 400)) /dev/urandom >d$d/f$i; done
             head -c 2000000 /dev/urandom >d$d/big; done; cd ..
         for s in $(seq 4); do btrfs -q subvolume snapshot data s$s
             for d in $(seq 1 5 20); do head -c 9000 /dev/urandom >s$s/d$d/f$s; done; done
         for r in $(seq 1 2 {rounds}); do btrfs -q subvolume create gone$r
             for i in $(seq 5000); do echo $r $i >gone$r/a-name-that-is-a-little-longer-$i; done
             (cd gone$r; seq 100000 | sed s/^/another-name-that-is-a-little-longer-/ | xargs touch); done
         btrfs filesystem sync . >/dev/null; btrfs quota rescan -w . >/dev/null"
    );
    shell(240, mount.path(), &script);
    mount.unmount().unwrap();
}

/// All files that nobody changes.
fn content(root: &Path) -> String {
    let script = "find data s1 s2 s3 s4 -type f | sort | xargs sha1sum | sha1sum";
    shell(120, root, script).trim().to_owned()
}

/// Appends records to a log, each durable before the next; counts them.
fn append(root: &Path, name: &str, promised: &AtomicU64) {
    let step = || -> io::Result<()> {
        let mut file: File = OpenOptions::new().create(true).append(true).open(root.join(name))?;
        let number = promised.load(Ordering::SeqCst);
        // What was not promised before the server was killed may be there, or a part of it.
        file.set_len(number * RECORD as u64)?;
        file.write_all(&[(number % 250) as u8 + 1; RECORD])?;
        file.sync_all()?;
        File::open(root)?.sync_all()
    };
    while step().is_ok() {
        promised.fetch_add(1, Ordering::SeqCst);
    }
}

/// What is lost of it.
fn lost(root: &Path, name: &str, promised: u64) -> Option<String> {
    let found = std::fs::read(root.join(name)).unwrap_or_default();
    let record = |n: u64| found.get(n as usize * RECORD..(n as usize + 1) * RECORD);
    let whole = |n: &u64| record(*n).is_some_and(|r| r.iter().all(|b| *b == (*n % 250) as u8 + 1));
    let first = (0..promised).find(|n| !whole(n))?;
    Some(format!("{name}: record {first} of {promised}"))
}

/// What a round leaves unfinished.
#[derive(Default, Debug)]
struct Left {
    balances: u64,
    deletions: u64,
}

fn left(image: &Path) -> Left {
    let image = image.to_string_lossy();
    let tree = sh("btrfs", &["inspect-internal", "dump-tree", "-t", "root", &*image]).unwrap();
    let any = |text: &str| u64::from(tree.contains(text));
    Left { balances: any("(BALANCE TEMPORARY_ITEM"), deletions: any(" refs 0\n") }
}

/// Of a half dropped tree `btrfs check` (6.2) counts for its group what is dropped already: then numbers are
/// looked at when it is gone.
fn sound_as_left(image: &Path, left: &Left) {
    let text = image.to_string_lossy();
    let checked = btrfs_check(image);
    let counts = |why: &String| why.contains("are different") && !why.contains("ERROR");
    if let Err(why) = checked.as_ref() {
        assert!(left.deletions > 0 && counts(why), "{why}");
    }
    let ours = run(&suites::spinney().to_string_lossy(), &["check", "--data", &text]);
    assert!(!ours.text().contains("error: "), "{}", ours.text());
}

/// The clients work, and the server dies in the middle of what `what` begins.
fn kill_within(volume: &Volume, transport: &str, round: u64, promised: &[AtomicU64; 2]) {
    let mount = volume.mount(transport, LIMIT);
    let place = mount.path().to_string_lossy().into_owned();
    let spinney = |words: &[&str]| {
        let report = run(&suites::spinney().to_string_lossy(), words);
        assert!(report.success(), "{}", report.text());
    };
    thread::scope(|scope| {
        for (name, promised) in ["log0", "log1"].into_iter().zip(promised) {
            let root = mount.path();
            scope.spawn(move || append(root, name, promised));
        }
        thread::sleep(Duration::from_millis(50));
        if round.is_multiple_of(2) {
            spinney(&["balance", "start", "--bg", "--full-balance", &place]);
            thread::sleep(Duration::from_millis(20 + round * 61 % 250));
        } else {
            let gone = mount.join(&format!("gone{round}"));
            spinney(&["subvolume", "delete", "-c", &gone.to_string_lossy()]);
            thread::sleep(Duration::from_millis(round / 2 * 3 % 10));
        }
        mount.kill_server();
    });
}

/// Files are what they were, and what was deleted is gone.
fn judge(root: &Path, round: u64, promised: &[AtomicU64; 2], before: &str) {
    for (name, promised) in ["log0", "log1"].into_iter().zip(promised) {
        assert_eq!(lost(root, name, promised.load(Ordering::SeqCst)), None, "round {round}");
    }
    assert_eq!(content(root), before, "round {round}");
    for n in (1..=round).step_by(2) {
        let gone = root.join(format!("gone{n}"));
        assert!(!gone.exists(), "round {round}: {gone:?} is there again");
    }
}

/// With `program` (the kernel's or ours): what was left goes on to its end, or is cancelled.
fn end_what_is_left(program: &str, place: &str, cancels: bool) {
    if cancels {
        // It may be over already.
        let _any = run(program, &["balance", "cancel", place]);
    }
    let start = Instant::now();
    while run(program, &["balance", "status", place]).code == Some(1) {
        assert!(start.elapsed() < LIMIT, "the balance ends");
        thread::sleep(Duration::from_millis(20));
    }
    Limited::new(60, "sync").args(["-f", place]).ok();
    // The kernel's cleaner is woken by this alone, or by time.
    let _not_ours = run("btrfs", &["filesystem", "sync", place]);
    Limited::new(120, program).args(["subvolume", "sync", place]).ok();
}

fn numbers_are_right(image: &Path) {
    let report = run("btrfs", &["check", "-Q", &image.to_string_lossy()]);
    let counted = report.stdout.contains("Counts for qgroup id: 0/5");
    assert!(counted && !report.stdout.contains("different"), "{}", report.text());
}

fn ours_goes_on(mount: Mounted, round: u64, promised: &[AtomicU64; 2], before: &str) {
    judge(mount.path(), round, promised, before);
    let program = suites::spinney().to_string_lossy();
    end_what_is_left(&program, &mount.path().to_string_lossy(), round % 8 >= 4);
    judge(mount.path(), round, promised, before);
    mount.unmount();
}

/// What the kernel drops after a balance it counts wrong, ours or its own: a rescan comes before the numbers are
/// asked for.
fn the_kernel_goes_on(volume: &Volume, round: u64, promised: &[AtomicU64; 2], before: &str) {
    let mount = KernelMount::new(&volume.image(), "noatime").unwrap();
    judge(mount.path(), round, promised, before);
    let place = mount.path().to_string_lossy().into_owned();
    end_what_is_left("btrfs", &place, round % 8 >= 4);
    sh("btrfs", &["quota", "rescan", "-w", &place]).unwrap();
    scrub(&mount).unwrap();
    judge(mount.path(), round, promised, before);
    mount.unmount().unwrap();
    numbers_are_right(&volume.image());
}

#[test]
fn balances_and_deletions_that_were_cut_off_go_on() {
    let able = transports();
    if able.is_empty() {
        return;
    }
    let rounds = suites::number("SPINNEY_ROUNDS", 4);
    let volume = Volume::new("kill-balance", 2 << 30);
    // More, where none of so many is cut off in the middle: a quick server is done before it dies.
    let most = 3 * rounds;
    fill(&volume, most);
    let before = {
        let mount = volume.mount_by_kernel();
        let before = content(mount.path());
        mount.unmount().unwrap();
        before
    };
    let (promised, mut all) = ([AtomicU64::new(0), AtomicU64::new(0)], Left::default());
    for round in 0..most {
        if round >= rounds && all.balances > 0 && all.deletions > 0 {
            break;
        }
        kill_within(&volume, able[round as usize % able.len()], round, &promised);
        let found = left(&volume.image());
        sound_as_left(&volume.image(), &found);
        println!("round {round}: {promised:?} promised, left: {found:?}");
        all.balances += found.balances;
        all.deletions += found.deletions;
        match round / 2 % 2 {
            0 => {
                let mount = volume.mount(able[round as usize / 4 % able.len()], LIMIT);
                ours_goes_on(mount, round, &promised, &before);
                numbers_are_right(&volume.image());
            }
            _ => the_kernel_goes_on(&volume, round, &promised, &before),
        }
        suites::assert_sound(&volume.image());
    }
    assert!(all.balances > 0 && all.deletions > 0, "nothing was cut off: {all:?}");
    assert!(promised.iter().all(|promised| promised.load(Ordering::SeqCst) > 3));
}
