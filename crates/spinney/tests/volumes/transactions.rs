//! A transaction is on the medium wholly or not at all: at every crash, after an abort, and when
//! it is dropped; and nobody commits in the middle of it.

use crate::common;
use common::{device, seen, writable};
use spinney::{Cause, FormatOptions, FsError, Volume, VolumeOptions};
use std::io::ErrorKind;

/// Many changes of all kinds.
fn change(volume: &Volume) {
    volume.create_dir("new").unwrap();
    for i in 0..200 {
        volume.write(format!("new/{i}"), &vec![i as u8; 9000]).unwrap();
    }
    volume.rename("old", "new/moved").unwrap();
    volume.remove_dir_all("gone").unwrap();
    volume.set_xattr("kept", "user.k", b"v").unwrap();
    volume.write("kept", b"after").unwrap();
}

fn prepare(volume: &Volume) {
    volume.write("old", b"1").unwrap();
    volume.write("kept", b"before").unwrap();
    volume.create_dir_all("gone/deep").unwrap();
}

/// All of `change` (true) or none of it (false).
fn is_changed(volume: &Volume) -> bool {
    let after = volume.exists("new").unwrap();
    let kept = if after { &b"after"[..] } else { &b"before"[..] };
    assert_eq!(volume.read("kept").unwrap(), kept);
    assert_eq!(volume.exists("old").unwrap(), !after);
    assert_eq!(volume.exists("gone").unwrap(), !after);
    assert_eq!(volume.xattr("kept", "user.k").unwrap().is_some(), after);
    if after {
        assert_eq!(volume.read_dir("new").unwrap().len(), 201);
        assert_eq!(volume.read("new/77").unwrap(), vec![77; 9000]);
    }
    after
}

#[test]
fn a_crash_sees_all_of_it_or_nothing() {
    let device = device();
    let volume = writable(&device);
    prepare(&volume);
    let transaction = volume.transaction().unwrap();
    let begun = device.position();
    change(&volume);
    // Seen at once by who has it open, by nobody else.
    assert!(is_changed(&volume) && !is_changed(&seen(device.image())));
    transaction.commit().unwrap();
    assert!(is_changed(&seen(device.image())));

    let (mut with, mut without) = (0, 0);
    for epoch in device.recording().epochs().filter(|epoch| epoch.end >= begun) {
        for choice in epoch.choices(12, 1) {
            match is_changed(&seen(epoch.image(&choice))) {
                true => with += 1,
                false => without += 1,
            }
        }
    }
    assert!(with > 0 && without > 0, "{with} with, {without} without");
    volume.close().unwrap();
}

#[test]
fn nobody_makes_anything_durable_meanwhile() {
    let device = device();
    let volume = writable(&device);
    prepare(&volume);
    let file = volume.create("f").unwrap();
    let transaction = volume.transaction().unwrap();
    assert!(volume.exists("old").unwrap() && seen(device.image()).exists("old").unwrap());
    file.write_at(0, b"x").unwrap();
    let busy = |result: spinney::Result<()>| result.unwrap_err().errno() == Some(libc::EBUSY);
    assert!(busy(volume.sync()) && busy(file.sync_all()));
    assert!(busy(volume.transaction().map(drop)));
    // What is in the way, and what to do.
    let ends: [fn(Volume) -> spinney::Result<()>; 4] =
        [Volume::close, Volume::close_whole, |v| v.sync(), |v| v.transaction().map(drop)];
    for told in ends.map(|end| end(volume.clone()).unwrap_err()) {
        assert_eq!((told.kind(), told.errno()), (ErrorKind::ResourceBusy, Some(libc::EBUSY)));
        assert!(told.to_string().ends_with("is open (commit or abort it first)"), "{told}");
    }
    change(&volume);
    transaction.commit().unwrap();
    volume.sync().unwrap();
    file.sync_all().unwrap();
    volume.transaction().unwrap().commit().unwrap();
    drop(file);
    volume.close().unwrap();
    assert!(is_changed(&seen(device.image())));
}

/// What the end of a transaction without a commit leaves to go on with.
type End = fn(spinney::Transaction, &Volume) -> Volume;

const ENDS: [End; 2] = [
    |transaction, _| transaction.abort().unwrap(),
    |transaction, volume| {
        drop(transaction);
        volume.reopen().unwrap()
    },
];

#[test]
fn what_is_given_up_was_never_there() {
    for end in ENDS {
        let device = device();
        let before = writable(&device);
        prepare(&before);
        let file = before.open_path("kept").unwrap();
        assert!(before.reopen().is_err(), "it is open");
        let transaction = before.transaction().unwrap();
        let space = before.space().unwrap();
        change(&before);
        assert_ne!(before.space().unwrap(), space);
        let volume = end(transaction, &before);
        assert!(!is_changed(&volume));
        assert_eq!(volume.space().unwrap(), space);
        // The handles of before went with it, and say so.
        let told = before.read("kept").unwrap_err();
        assert!(told.to_string().contains("given up"), "{told}");
        assert!(before.write("kept", b"x").is_err() && before.sync().is_err());
        assert!(file.sync_all().is_err());
        let after = device.position();
        drop(file);
        // No handle may take it that its changes are kept: not the first, nor another.
        for handle in [before.clone(), before] {
            let told = handle.close().unwrap_err();
            assert!(told.to_string().contains("given up"), "{told}");
        }
        assert_eq!(device.position(), after, "nothing is written any more");
        assert!(!is_changed(&seen(device.image())));
        // It goes on as if nothing had been.
        let transaction = volume.transaction().unwrap();
        change(&volume);
        transaction.commit().unwrap();
        assert!(is_changed(&seen(device.image())));
        assert!(volume.check(true).unwrap().is_clean());
        volume.close().unwrap();
    }
}

/// What those who are at work write late comes nowhere, whatever has its place by then.
#[test]
fn giving_up_stops_other_threads() {
    let device = device();
    let mut volume = writable(&device);
    prepare(&volume);
    for round in 0..8 {
        let transaction = volume.transaction().unwrap();
        let path = format!("late{round}");
        let old = volume.clone();
        volume = std::thread::scope(|scope| {
            let writes = |i: usize| {
                let (volume, path) = (old.clone(), format!("{path}-{i}"));
                move || while volume.write(&path, &vec![i as u8; 1 << 20]).is_ok() {}
            };
            for i in 0..3 {
                scope.spawn(writes(i));
            }
            while !old.exists(format!("{path}-0")).unwrap() {}
            let volume = transaction.abort().unwrap();
            volume.write("after", &vec![round; 4 << 20]).unwrap();
            volume
        });
        volume.sync().unwrap();
    }
    assert_eq!(volume.read("after").unwrap(), vec![7; 4 << 20]);
    assert_eq!(volume.read_dir("/").unwrap().len(), 4);
    assert!(volume.check(true).unwrap().is_clean());
    volume.close().unwrap();
}

#[test]
fn an_image_is_locked_from_before_to_behind_an_abort() {
    let dir = testkit::oracle::TempDir::new("lib-abort").unwrap();
    let image = dir.path().join("disk.img");
    let volume = FormatOptions::new().create(&image, 256 << 20).unwrap();
    let transaction = volume.transaction().unwrap();
    let again = transaction.abort().unwrap();
    drop(volume);
    let refused = Volume::open_writable(&image).unwrap_err();
    assert!(matches!(refused.cause(), Cause::InUse(_)), "{refused}");
    again.close().unwrap();
}

#[test]
fn a_panic_half_way_leaves_nothing() {
    let device = device();
    let volume = writable(&device);
    prepare(&volume);
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _transaction = volume.transaction().unwrap();
        volume.create_dir("new").unwrap();
        panic!("half way");
    }));
    assert!(unwound.is_err());
    drop(volume);
    assert!(!is_changed(&seen(device.image())));
}

/// Too many changes are refused before the engine would commit a part of them.
#[test]
fn its_bound_is_told_before_it_is_broken() {
    let device = device();
    let options = VolumeOptions::new().write(true).transaction_limit(1 << 20);
    let volume = options.open_device(device.clone()).unwrap();
    prepare(&volume);
    let transaction = volume.transaction().unwrap();
    let refused = (0..100_000).find_map(|i| volume.write(format!("f{i}"), b"x").err());
    let refused = refused.expect("a bound");
    assert!(matches!(refused.cause(), Cause::Volume(FsError::Unsupported(_))), "{refused}");
    let before = seen(device.image());
    assert_eq!(before.read_dir("/").unwrap().len(), 3, "no part of it is on the medium");
    let many = volume.read_dir("/").unwrap().len();
    transaction.commit().unwrap();
    assert_eq!(seen(device.image()).read_dir("/").unwrap().len(), many);
    volume.write("more", b"x").unwrap();
    volume.close().unwrap();
}

/// Sharing a file in many pieces is many changes in one call.
#[test]
fn its_bound_holds_within_a_call() {
    let device = device();
    let options = VolumeOptions::new().write(true).transaction_limit(1 << 20);
    let volume = options.open_device(device.clone()).unwrap();
    let (source, target) = (volume.create("source").unwrap(), volume.create("target").unwrap());
    for block in 0..20_000 {
        source.write_at(block * 8192, &[1; 4096]).unwrap();
    }
    volume.sync().unwrap();
    let transaction = volume.transaction().unwrap();
    let [from, to] = [&source, &target].map(|file| file.metadata().unwrap().ino());
    let [from, to] = [from, to].map(spinney::vfs::Ino);
    let cx = spinney::vfs::Context::default();
    let refused = volume.fs().clone_range(&cx, from, 0, to, 0, 0).expect_err("a bound");
    assert!(matches!(refused, FsError::Unsupported(_)), "{refused}");
    transaction.abort().unwrap();
    let again = seen(device.image());
    assert_eq!(again.metadata("target").unwrap().len(), 0, "no part of it is on the medium");
    drop((source, target));
}

/// What only a commit would make room for is refused; the transaction is none the worse for it.
#[test]
fn what_needs_a_commit_is_refused() {
    let device = device();
    let volume = writable(&device);
    let much = volume.space().unwrap().available as usize * 2 / 3;
    volume.write("old", &vec![1; much]).unwrap();
    volume.sync().unwrap();
    let transaction = volume.transaction().unwrap();
    // What is removed comes back with a commit alone.
    volume.remove_file("old").unwrap();
    let refused = volume.write("new", &vec![2; much]).unwrap_err();
    assert_eq!(refused.errno(), Some(libc::ENOSPC), "{refused}");
    volume.remove_file("new").unwrap();
    volume.write("small", b"3").unwrap();
    assert!(seen(device.image()).exists("old").unwrap(), "no part of it is on the medium");
    transaction.commit().unwrap();
    let after = seen(device.image());
    assert!(!after.exists("old").unwrap() && after.read("small").unwrap() == b"3");
    // And now there is room.
    volume.write("new", &vec![2; much]).unwrap();
    volume.close().unwrap();
    assert_eq!(seen(device.image()).read("new").unwrap(), vec![2; much]);
}
