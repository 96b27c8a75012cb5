//! Power cuts in the midst of `rescue`: what a device may hold then, state by state.
//!
//! Every verb runs on volumes that need it, and on some that do not. Of each state one copy of the
//! superblock is valid and at most one is torn that was not; our check and `btrfs check` say no
//! more than of the volume before or after the verb; the content is that of before or after; and
//! the verb, run again, comes to the same end, with all copies alike. The kernel mounts a sample.
//!
//! Invariant: a torn first copy is put right by `Superblocks::recover` before the others judge,
//! since nobody but us looks at another one.

mod bases;
mod judge;

use bases::Damaged;
use blockdev::BlockDevice;
use blocksim::{Event, Image, Lie, SimDevice};
use judge::Judge;
use spinney::rescue::{self, Superblocks};
use std::sync::Arc;

type Device = Arc<dyn BlockDevice>;
type Verb = fn(Device) -> spinney::Result<()>;

/// States of an epoch at most.
const BUDGET: usize = 18;

fn zero_log(device: Device) -> spinney::Result<()> {
    rescue::zero_log(device).map(drop)
}

fn super_recover(device: Device) -> spinney::Result<()> {
    Superblocks::survey(device)?.recover()
}

fn fix_device_size(device: Device) -> spinney::Result<()> {
    rescue::fix_device_size(device).map(drop)
}

fn clear_free_space_tree(device: Device) -> spinney::Result<()> {
    rescue::clear_free_space_tree(device).map(drop)
}

fn clear_uuid_tree(device: Device) -> spinney::Result<()> {
    rescue::clear_uuid_tree(device).map(drop)
}

fn clear_quotas(device: Device) -> spinney::Result<()> {
    rescue::clear_quotas(device).map(drop)
}

/// Runs `verb` on `image`; judges whatever its power cuts may leave. How many states that were.
fn crashes(name: &str, verb: Verb, image: &Image, lie: Option<Lie>) -> Result<usize, String> {
    let device = Arc::new(SimDevice::new(image.clone()).lying(lie));
    verb(device.clone()).map_err(|e| format!("{name}: {e}"))?;
    let judge = Judge::new(verb, image, &device.image())?;
    let mut states = 0;
    for epoch in device.recording().epochs() {
        for (number, choice) in epoch.choices(BUDGET, 15).iter().enumerate() {
            let outside = number < 2 || number % 12 == 0;
            let at = format!("{name}: epoch {}, {:?}", epoch.index, choice.0);
            judge.state(&epoch.image(choice), outside).map_err(|why| format!("{at}: {why}"))?;
            states += 1;
        }
    }
    Ok(states)
}

fn all(verb: Verb, damaged: Vec<Damaged>) {
    for Damaged { name, image } in damaged {
        match crashes(name, verb, &image, None) {
            Ok(states) => println!("{name}: {states} states"),
            Err(why) => panic!("{why}"),
        }
    }
}

#[test]
fn a_log_is_forgotten_or_not() {
    all(zero_log, bases::with_logs());
}

#[test]
fn superblocks_are_put_right_one_by_one() {
    all(super_recover, bases::with_bad_superblocks());
}

#[test]
fn sizes_are_put_right() {
    all(fix_device_size, bases::with_odd_sizes());
}

#[test]
fn a_free_space_tree_is_made_anew() {
    all(clear_free_space_tree, bases::with_free_space_trees());
}

#[test]
fn a_uuid_tree_is_there_or_not() {
    all(clear_uuid_tree, bases::with_uuid_trees());
}

#[test]
fn quotas_are_there_or_not() {
    all(clear_quotas, bases::with_quotas());
}

/// One that cannot be done changes nothing: what could be used before can be used after.
#[test]
fn what_fails_leaves_every_byte() {
    for (Damaged { name, image }, used) in bases::with_what_is_in_the_way() {
        for verb in [clear_free_space_tree as Verb, clear_uuid_tree, clear_quotas] {
            let device = Arc::new(SimDevice::new(image.clone()));
            // Who does not need the tree that is lost succeeds, and is judged elsewhere.
            let Err(why) = verb(device.clone()) else { continue };
            let writes = device.recording().events().iter().any(|e| !matches!(e, Event::Flush));
            assert!(!writes, "{name}: {why}");
        }
        let device = Arc::new(SimDevice::new(image.clone()));
        clear_free_space_tree(device.clone()).expect_err("nobody knows what is free");
        let volume = spinney::VolumeOptions::new().write(true).open_device(device);
        let written = volume.and_then(|volume| {
            volume.write("new", &[1; 9000])?;
            volume.close()
        });
        assert_eq!(written.is_ok(), used, "{name}: {:?}", written.err());
    }
}

/// The kernel would go on with a superblock of the new device, or leave what was changed behind.
#[test]
fn what_is_being_replaced_stays_as_it_is() {
    let image = bases::being_replaced();
    let verbs =
        [zero_log as Verb, fix_device_size, clear_free_space_tree, clear_uuid_tree, clear_quotas];
    for verb in verbs {
        let device = Arc::new(SimDevice::new(image.clone()));
        let why = verb(device.clone()).expect_err("refused").to_string();
        assert!(why.contains("unfinished replacement"), "{why}");
        let writes = device.recording().events().iter().any(|e| !matches!(e, Event::Flush));
        assert!(!writes, "{why}");
    }
}

/// A volume with a block-group tree cannot be without a free-space tree, and is not for a moment.
#[test]
fn a_free_space_tree_beside_block_groups_is_made_anew() {
    all(clear_free_space_tree, bases::with_block_group_trees());
}

/// Who judges here can find something: a device that drops flushes is found out.
#[test]
fn a_device_that_lies_is_found_out() {
    let Damaged { name, image } = bases::with_free_space_trees().remove(0);
    let found = crashes(name, clear_free_space_tree, &image, Some(Lie::AllFlushes));
    println!("{}", found.expect_err("a superblock without what it leads to"));
}
