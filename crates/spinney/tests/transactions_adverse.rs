//! Transactions against what works against them: files that want each write durable, limits, full
//! volumes, devices that fail, and several who open the volume again.

use blocksim::{Access, Event, Fault, Image, Rng, SimDevice, Span};
use spinney::{
    FormatOptions, LimitChange, QgroupId, SendOptions, SnapshotOptions, Volume, VolumeOptions,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn device(bytes: u64) -> Arc<SimDevice> {
    let device = Arc::new(SimDevice::new(Image::zeros(bytes)));
    FormatOptions::new().format(&*device).unwrap();
    device
}

fn writable(device: &Arc<SimDevice>) -> Volume {
    VolumeOptions::new().write(true).open_device(device.clone()).unwrap()
}

/// The volume that is on `image`, as the next program sees it.
fn seen(image: Image) -> Volume {
    VolumeOptions::new().open_device(Arc::new(SimDevice::new(image))).unwrap()
}

/// `FS_SYNC_FL`, as `chattr +S` sets it.
const SYNC: u32 = 8;

fn sync_at_each_write(volume: &Volume, path: &str) {
    let node = volume.find(path.as_bytes(), true).unwrap();
    volume.fs().set_flags(volume.context(), node.ino(), SYNC).unwrap();
}

/// `chattr +S` asks for each write to be durable, and would put a part of the transaction on the
/// medium by the log.
#[test]
fn a_file_that_wants_each_write_durable_waits_for_the_commit() {
    let device = device(256 << 20);
    let volume = writable(&device);
    volume.write("f", b"before").unwrap();
    volume.write("other", b"before").unwrap();
    sync_at_each_write(&volume, "f");
    volume.write("f", b"before").unwrap();
    assert_eq!(seen(device.image()).read("f").unwrap(), b"before", "it is durable at once");
    let transaction = volume.transaction().unwrap();
    volume.write("other", b"after_").unwrap();
    volume.rename("f", "g").unwrap();
    volume.write("g", b"after_").unwrap();
    let half_way = seen(device.image());
    assert_eq!(half_way.read("f").unwrap(), b"before");
    assert!(!half_way.exists("g").unwrap());
    transaction.commit().unwrap();
    let after = seen(device.image());
    assert_eq!((after.read("g").unwrap(), after.read("other").unwrap()).0, b"after_");
    let transaction = volume.transaction().unwrap();
    volume.write("g", b"never_").unwrap();
    let volume = transaction.abort().unwrap();
    assert_eq!(volume.read("g").unwrap(), b"after_");
    // And again as before.
    volume.write("g", b"at once").unwrap();
    assert_eq!(seen(device.image()).read("g").unwrap(), b"at once");
    volume.close().unwrap();
}

/// Two engines on one device would write over each other's trees.
#[test]
fn it_is_opened_again_once() {
    let device = device(256 << 20);
    let first = writable(&device);
    let again = first.transaction().unwrap().abort().unwrap();
    let refused = first.reopen().map(drop).unwrap_err();
    assert!(refused.to_string().contains("again"), "{refused}");
    again.write("f", b"1").unwrap();
    again.close().unwrap();
    assert_eq!(seen(device.image()).read("f").unwrap(), b"1");

    // Whoever of several is told that it was given up: one of them opens it.
    for _ in 0..20 {
        let first = writable(&device);
        let transaction = first.transaction().unwrap();
        let opened: Vec<Volume> = std::thread::scope(|scope| {
            let waits = || loop {
                match first.reopen() {
                    Ok(volume) => return Some(volume),
                    Err(error) if error.to_string().contains("again") => return None,
                    Err(_) => std::thread::yield_now(),
                }
            };
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(waits)).collect();
            first.write("late", &vec![1; 300 << 10]).unwrap();
            drop(transaction);
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(opened.len(), 1);
        assert!(!opened[0].exists("late").unwrap());
    }
}

/// What only a commit would make room for is refused as what there is too little of, not as busy.
#[test]
fn at_a_limit_it_is_edquot() {
    let device = device(256 << 20);
    let volume = writable(&device);
    volume.enable_quotas().unwrap();
    let id = volume.create_subvolume("s").unwrap();
    volume.write("s/old", &vec![1; 2 << 20]).unwrap();
    let change = LimitChange { referenced: Some(Some(4 << 20)), ..LimitChange::default() };
    volume.limit_qgroup(QgroupId(id.0), &change).unwrap();
    let transaction = volume.transaction().unwrap();
    volume.remove_file("s/old").unwrap();
    let refused = (0..64).find_map(|i| volume.write(format!("s/{i}"), &vec![2; 1 << 20]).err());
    assert_eq!(refused.expect("a limit").errno(), Some(libc::EDQUOT));
    transaction.commit().unwrap();
    volume.close().unwrap();
}

/// A device that fails at any access of the commit: what it leaves is all of the transaction or
/// nothing, and nothing where the volume says that it can go on.
#[test]
fn a_commit_on_a_device_that_fails_is_whole_or_not_at_all() {
    let change = |volume: &Volume| -> spinney::Result<()> {
        volume.create_dir("new")?;
        for i in 0..40 {
            volume.write(format!("new/{i}"), &vec![i as u8; 9000])?;
        }
        volume.rename("old", "new/moved")?;
        volume.write("kept", b"after")
    };
    let is_changed = |volume: &Volume| {
        let after = volume.exists("new").unwrap();
        assert_eq!(volume.exists("old").unwrap(), !after);
        assert_eq!(volume.read("kept").unwrap(), if after { &b"after"[..] } else { b"before" });
        if after {
            assert_eq!(volume.read_dir("new").unwrap().len(), 41);
            assert_eq!(volume.read("new/7").unwrap(), vec![7; 9000]);
        }
        after
    };
    let (mut tried, mut with, mut reopened) = (0, 0, 0);
    for access in [Access::Read, Access::Write, Access::Flush] {
        for span in [Span::Once, Span::FromThenOn] {
            let all = std::env::var_os("SPINNEY_ALL_FAULTS").is_some() || access == Access::Flush;
            for after in (0..).step_by(if all { 1 } else { 5 }) {
                let device = device(256 << 20);
                let volume = writable(&device);
                volume.write("old", b"1").unwrap();
                volume.write("kept", b"before").unwrap();
                let transaction = volume.transaction().unwrap();
                change(&volume).unwrap();
                let counts = device.counts();
                let so_far = match access {
                    Access::Read => counts.reads,
                    Access::Write => counts.writes,
                    Access::Flush => counts.flushes,
                };
                device.set_faults(&[Fault { access, nth: so_far + after, span }]);
                let told = transaction.commit();
                let hit = device.counts().failed > counts.failed;
                device.set_faults(&[]);
                let left = is_changed(&seen(device.image()));
                if told.is_ok() {
                    assert!(left, "{access:?} {after} {span:?}: promised");
                    if !hit {
                        break;
                    }
                    continue;
                }
                tried += 1;
                with += u32::from(left);
                match volume.reopen() {
                    Ok(again) => {
                        reopened += 1;
                        assert!(!is_changed(&again) && !left, "{access:?} {after} {span:?}");
                        again.write("more", b"x").unwrap();
                        again.close().unwrap();
                    }
                    Err(error) => assert!(error.to_string().contains("cannot"), "{error}"),
                }
                drop(volume);
                let after = writable(&device);
                assert_eq!(is_changed(&after), left);
                assert!(after.check(true).unwrap().is_clean());
                after.close().unwrap();
            }
        }
    }
    println!("{tried} failed, {with} of them left all of it, {reopened} were opened again");
    assert!(tried > 10 && reopened > 0 && with > 0);
}

/// What of random changes a full volume took, its commit takes: ENOSPC comes to who changes
/// something, never to who commits.
fn fill(seed: u64, bytes: u64) {
    let mut rng = Rng::new(seed);
    let device = device(bytes);
    let volume = writable(&device);
    let available = volume.space().unwrap().available;
    let ballast = available * (50 + rng.below(50)) / 100;
    let mut at = 0;
    while at < ballast {
        let len = (1 << 20).min(ballast - at);
        if volume.write(format!("ballast{at}"), &vec![at as u8; len as usize]).is_err() {
            break;
        }
        at += 1 << 20;
    }
    volume.sync().unwrap();
    for round in 0..3 {
        let before = volume.read_dir("/").unwrap().len();
        let transaction = volume.transaction().unwrap();
        let (mut refused, mut steps) = (0, 0);
        while refused < 30 && steps < 6000 {
            steps += 1;
            let name = format!("f{}", rng.below(400));
            let other = format!("f{}", rng.below(400));
            let sizes = [0, 100, 2000, 5000, 70_000, 200_000, 1 << 20];
            let done = match rng.below(12) {
                0..=4 => {
                    let size = sizes[rng.below(sizes.len() as u64) as usize];
                    volume.write(&name, &vec![steps as u8; size])
                }
                5 => volume.remove_file(&name),
                6 => volume.rename(&name, &other),
                7 => volume.hard_link(&name, &other),
                8 => volume.copy(&name, &other),
                9 => volume.set_xattr(&name, "user.x", &vec![7; 1 + rng.below(3000) as usize]),
                10 => volume.open_path(&name).map(drop).and_then(|()| {
                    let file = spinney::FileOptions::new().write(true).open(&volume, &name)?;
                    file.set_len(rng.below(300_000))
                }),
                _ => volume.remove_file(format!("ballast{}", rng.below(at >> 20) << 20)),
            };
            match done.as_ref().map_err(|error| error.errno()) {
                Ok(()) => {}
                Err(Some(libc::ENOSPC)) => refused += 1,
                Err(Some(libc::ENOENT | libc::EEXIST)) => {}
                Err(_) => panic!("seed {seed} round {round} step {steps}: {done:?}"),
            }
        }
        assert_eq!(
            seen(device.image()).read_dir("/").unwrap().len(),
            before,
            "seed {seed} round {round}: a part of it is on the medium"
        );
        let now = volume.read_dir("/").unwrap().len();
        let told = transaction.commit();
        assert!(told.is_ok(), "seed {seed} round {round} after {steps} steps: {told:?}");
        assert_eq!(seen(device.image()).read_dir("/").unwrap().len(), now);
    }
    let report = volume.check(true).unwrap();
    assert!(report.is_clean(), "seed {seed}: {:?}", report.findings);
    volume.close().unwrap();
}

#[test]
fn a_full_volume_commits_what_it_took() {
    let seed: u64 = std::env::var("SPINNEY_SEED").map_or(1, |seed| seed.parse().unwrap());
    let seeds: u64 = std::env::var("SPINNEY_SEEDS").map_or(3, |seeds| seeds.parse().unwrap());
    for seed in seed..seed + seeds {
        println!("SPINNEY_SEED={seed}");
        fill(seed, [110 << 20, 128 << 20, 160 << 20, 256 << 20][(seed % 4) as usize]);
    }
}

/// Where the copies of the superblock are.
fn is_superblock(event: &Event) -> bool {
    matches!(event, Event::Write { offset, .. } if [64 << 10, 64 << 20].contains(offset))
}

/// Others write, sync, snapshot, delete and send: until the commit no superblock changes, so
/// nothing of what they did is on the medium; with it all is.
fn beside(seed: u64) {
    let device = device(256 << 20);
    let volume = writable(&device);
    volume.create_subvolume("s").unwrap();
    volume.snapshot("s", "sent", &SnapshotOptions::new().read_only(true)).unwrap();
    volume.write("durable", b"x").unwrap();
    sync_at_each_write(&volume, "durable");
    let ended = AtomicBool::new(false);
    let works: [fn(&Volume, u64) -> spinney::Result<()>; 8] = [
        |volume, i| volume.write(format!("w{}", i % 20), &vec![i as u8; 200_000]),
        |volume, i| volume.write("durable", &i.to_le_bytes()),
        |volume, i| {
            let file = volume.create(format!("s/{}", i % 20))?;
            file.write_at(0, &i.to_le_bytes())?;
            file.sync_all()
        },
        |volume, i| {
            volume.snapshot("s", format!("snap{i}"), &SnapshotOptions::new())?;
            volume.delete_subvolume(format!("snap{i}")).map(drop)
        },
        |volume, _| volume.send(&["sent"], &SendOptions::new(), &mut std::io::sink()),
        |volume, i| {
            volume.sync()?;
            volume.remove_file(format!("w{}", i % 20))
        },
        |volume, i| volume.set_label(format!("l{i}")),
        |volume, _| volume.wait_for_deleted(&[], None).map(drop),
    ];
    std::thread::scope(|scope| {
        for (number, work) in works.iter().enumerate() {
            let (volume, ended) = (&volume, &ended);
            scope.spawn(move || {
                for i in 0.. {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    let busy = [libc::EBUSY, libc::ENOENT, libc::ENOSPC, libc::EEXIST];
                    match work(volume, i) {
                        Err(error) if error.errno().is_some_and(|no| busy.contains(&no)) => {
                            std::thread::yield_now();
                        }
                        done => done.unwrap_or_else(|e| panic!("seed {seed} work {number}: {e}")),
                    }
                }
            });
        }
        let mut rng = Rng::new(seed);
        for round in 0..12 {
            let transaction = loop {
                match volume.transaction() {
                    Ok(transaction) => break transaction,
                    Err(error) => assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}"),
                }
            };
            let begun = device.position();
            for i in 0..rng.below(40) {
                volume.write(format!("t{i}"), &[round as u8; 5000]).unwrap();
                std::thread::sleep(std::time::Duration::from_micros(rng.below(1500)));
            }
            volume.write("round", &[round as u8]).unwrap();
            let recording = device.recording();
            let early = recording.since(begun).iter().any(is_superblock);
            if early {
                ended.store(true, Ordering::Relaxed);
            }
            assert!(!early, "seed {seed} round {round}");
            transaction.commit().unwrap();
            assert_eq!(seen(device.image()).read("round").unwrap(), [round as u8]);
            device.forget(device.position());
        }
        ended.store(true, Ordering::Relaxed);
    });
    let report = volume.check(true).unwrap();
    assert!(report.is_clean(), "seed {seed}: {:?}", report.findings);
    volume.close().unwrap();
}

#[test]
fn nobody_beside_it_makes_a_part_durable() {
    let seed: u64 = std::env::var("SPINNEY_SEED").map_or(1, |seed| seed.parse().unwrap());
    let seeds: u64 = std::env::var("SPINNEY_SEEDS").map_or(2, |seeds| seeds.parse().unwrap());
    for seed in seed..seed + seeds {
        println!("SPINNEY_SEED={seed}");
        beside(seed);
    }
}
