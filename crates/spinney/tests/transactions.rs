//! A transaction is on the medium wholly or not at all: at every crash, after an abort, and when
//! it is dropped; and nobody commits in the middle of it.

use blocksim::{Image, SimDevice};
use spinney::{Cause, Committed, FormatOptions, FsError, Volume, VolumeOptions};
use std::sync::Arc;

fn device() -> Arc<SimDevice> {
    let device = Arc::new(SimDevice::new(Image::zeros(256 << 20)));
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
    assert_eq!(transaction.commit().unwrap(), Committed::AtOnce);
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
    let told = volume.clone().close().unwrap_err();
    assert!(matches!(told.cause(), Cause::Refused { .. }), "{told}");
    change(&volume);
    assert_eq!(transaction.commit().unwrap(), Committed::AtOnce);
    volume.sync().unwrap();
    file.sync_all().unwrap();
    volume.transaction().unwrap().commit().map(drop).unwrap();
    drop(file);
    volume.close().unwrap();
    assert!(is_changed(&seen(device.image())));
}

#[test]
fn what_is_given_up_was_never_there() {
    let end: [fn(spinney::Transaction); 2] = [|t| t.abort().unwrap(), drop];
    for end in end {
        let device = device();
        let volume = writable(&device);
        prepare(&volume);
        let file = volume.open_path("kept").unwrap();
        let transaction = volume.transaction().unwrap();
        change(&volume);
        end(transaction);
        // The volume went with it, and says so.
        let told = volume.read("kept").unwrap_err();
        assert!(told.to_string().contains("given up"), "{told}");
        assert!(volume.write("kept", b"x").is_err() && volume.sync().is_err());
        assert!(file.sync_all().is_err());
        let after = device.position();
        drop(file);
        volume.close().unwrap();
        assert_eq!(device.position(), after, "nothing is written any more");
        assert!(!is_changed(&seen(device.image())));
        let volume = writable(&device);
        assert!(!is_changed(&volume));
        assert!(volume.check(true).unwrap().is_clean());
        volume.close().unwrap();
    }
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
    assert_eq!(transaction.commit().unwrap(), Committed::AtOnce);
    assert_eq!(seen(device.image()).read_dir("/").unwrap().len(), many);
    volume.write("more", b"x").unwrap();
    volume.close().unwrap();
}

/// Where the engine had to commit for room, that is told.
#[test]
fn one_that_did_not_fit_at_once_says_so() {
    let device = device();
    let volume = writable(&device);
    let much = volume.space().unwrap().available as usize * 2 / 3;
    volume.write("old", &vec![1; much]).unwrap();
    volume.sync().unwrap();
    let transaction = volume.transaction().unwrap();
    // What is removed comes back with a commit alone.
    volume.remove_file("old").unwrap();
    volume.write("new", &vec![2; much]).unwrap();
    assert_eq!(transaction.commit().unwrap(), Committed::InSteps);
    volume.close().unwrap();
    assert_eq!(seen(device.image()).read("new").unwrap(), vec![2; much]);
}
