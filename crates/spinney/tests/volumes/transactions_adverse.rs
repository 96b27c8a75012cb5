//! Transactions against what works against them: files that want each write durable, limits, devices that fail, and several who open the volume again.

use crate::common;
use blocksim::{Access, Fault, SimDevice, Span};
use common::{device, seen, writable};
use spinney::{LimitChange, QgroupId, Volume};
use std::sync::Arc;

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
    let device = device();
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
    let device = device();
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
    let device = device();
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

/// Changes of some kinds.
fn change(volume: &Volume) -> spinney::Result<()> {
    volume.create_dir("new")?;
    for i in 0..40 {
        volume.write(format!("new/{i}"), &vec![i as u8; 9000])?;
    }
    volume.rename("old", "new/moved")?;
    volume.write("kept", b"after")
}

/// All of `change` (true) or none of it (false).
fn is_changed(volume: &Volume) -> bool {
    let after = volume.exists("new").unwrap();
    assert_eq!(volume.exists("old").unwrap(), !after);
    assert_eq!(volume.read("kept").unwrap(), if after { &b"after"[..] } else { b"before" });
    if after {
        assert_eq!(volume.read_dir("new").unwrap().len(), 41);
        assert_eq!(volume.read("new/7").unwrap(), vec![7; 9000]);
    }
    after
}

#[derive(Default)]
struct Tally {
    failed: u32,
    left_all: u32,
    reopened: u32,
}

/// A commit whose access number `nth` fails; true: it has not so many.
fn fails(access: Access, nth: u64, span: Span, tally: &mut Tally) -> bool {
    let device = device();
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
    device.set_faults(&[Fault { access, nth: so_far + nth, span }]);
    let told = transaction.commit();
    let hit = device.counts().failed > counts.failed;
    device.set_faults(&[]);
    let left = is_changed(&seen(device.image()));
    if told.is_ok() {
        assert!(left, "{access:?} {nth} {span:?}: promised");
        return !hit;
    }
    tally.failed += 1;
    tally.left_all += u32::from(left);
    goes_on(&device, volume, left, tally);
    false
}

/// What a commit that failed leaves: nothing, where the volume says that it can go on.
fn goes_on(device: &Arc<SimDevice>, volume: Volume, left: bool, tally: &mut Tally) {
    match volume.reopen() {
        Ok(again) => {
            tally.reopened += 1;
            assert!(!is_changed(&again) && !left);
            again.write("more", b"x").unwrap();
            again.close().unwrap();
        }
        Err(error) => assert!(error.to_string().contains("cannot"), "{error}"),
    }
    drop(volume);
    let after = writable(device);
    assert_eq!(is_changed(&after), left);
    assert!(after.check(true).unwrap().is_clean());
    after.close().unwrap();
}

/// A device that fails at any access of the commit: what it leaves is all of the transaction or
/// nothing, and nothing where the volume says that it can go on.
#[test]
fn a_commit_on_a_device_that_fails_is_whole_or_not_at_all() {
    let mut tally = Tally::default();
    for access in [Access::Read, Access::Write, Access::Flush] {
        let all = std::env::var_os("SPINNEY_ALL_FAULTS").is_some() || access == Access::Flush;
        for span in [Span::Once, Span::FromThenOn] {
            let mut each = (0..).step_by(if all { 1 } else { 5 });
            while !fails(access, each.next().unwrap(), span, &mut tally) {}
        }
    }
    let Tally { failed, left_all, reopened } = tally;
    println!("{failed} failed, {left_all} of them left all of it, {reopened} were opened again");
    assert!(failed > 10 && reopened > 0 && left_all > 0);
}
