//! Groups of two profiles side by side, as an old mkfs, or half a conversion, leaves them: how many copies
//! what is allocated has, which groups stay, and what a request that cannot be met leaves behind.

use crate::common;
use btrfs_disk::Error;
use btrfs_disk::ids::block_group::{DATA, DUP, METADATA, PROFILE_MASK, SYSTEM};
use btrfs_space::{Claim, Extent, Kind, Priority, Space, Unproven};
use btrfs_tree::NodeStore;
use common::edit::Commit;
use common::{Image, Opened, with_kernel};

const MIB: u64 = 1 << 20;

/// A chunk of one copy beside those of two.
fn with_a_single_group(opened: &Opened, kind: Kind) -> Space {
    let space = opened.space();
    space.convert_to(kind, Some(0));
    let new = space.new_chunk(kind).expect("room");
    assert_eq!(new.chunk.fields.kind & PROFILE_MASK, 0);
    space.convert_to(kind, None);
    assert_eq!(space.profile_of(kind), DUP);
    space
}

fn flags_of(space: &Space, extent: &Extent) -> u64 {
    let infos = space.group_infos();
    let holds = |at: u64, len: u64| (at..at + len).contains(&extent.logical.0);
    infos.iter().find(|group| holds(group.logical.0, group.len)).expect("a group").flags
}

fn groups(space: &Space, kind: u64) -> usize {
    space.group_infos().iter().filter(|group| group.flags & kind != 0).count()
}

/// What is said to have two copies has them, as long as there is room for two; all of the rest
/// can be had then, too.
#[test]
fn what_is_allocated_has_two_copies_as_long_as_there_is_room_for_them() {
    with_kernel(|| {
        for (kind, len) in [(Kind::Metadata, 16384), (Kind::Data, MIB), (Kind::System, 16384)] {
            let image = Image::new("512M", &["-m", "dup", "-d", "dup"]);
            let opened = image.open();
            let space = with_a_single_group(&opened, kind);
            let (mut doubled, mut single) = (0, 0);
            while let Ok(extent) = space.alloc(kind, len, len) {
                if flags_of(&space, &extent) & DUP != 0 {
                    assert_eq!(single, 0, "{kind:?}: the others come last");
                    doubled += len;
                } else {
                    let left = space.totals().unallocated;
                    assert!(left < 4 * MIB || kind == Kind::System, "{kind:?}: {left}");
                    single += len;
                }
            }
            assert!(doubled > 100 * MIB && single >= 24 * MIB, "{kind:?}: {doubled} {single}");
            let (free, all) = match kind {
                Kind::Data => (space.totals().data.free, space.totals().data.total),
                Kind::Metadata => (space.totals().metadata.free, space.totals().metadata.total),
                Kind::System => (space.totals().system.free, space.totals().system.total),
            };
            assert!(
                free < len * groups(&space, DATA | METADATA | SYSTEM) as u64,
                "{free} of {all}"
            );
        }
    });
}

/// Room in groups of either profile is room for what is reserved.
#[test]
fn what_is_reserved_finds_room_in_either_profile() {
    with_kernel(|| {
        let image = Image::new("512M", &["-m", "dup", "-d", "dup"]);
        let opened = image.open();
        let space = with_a_single_group(&opened, Kind::Data);
        let mut all = Vec::new();
        while let Ok(room) = space.reserve_data(MIB) {
            all.push(room);
        }
        let kept = space.reserve_metadata(MIB, Priority::Commit).expect("room for nodes");
        for mut room in all {
            while room.bytes() > 0 {
                room.alloc(&space, room.bytes(), 4096, None).expect("it was reserved");
            }
        }
        drop(kept);
        assert!(space.totals().data.free < MIB);
    });
}

/// A request that no chunk could hold makes one at most, and a reservation that all of them could not makes none.
#[test]
fn what_cannot_be_met_leaves_the_device_as_it_is() {
    with_kernel(|| {
        let image = Image::new("1G", &["-m", "dup", "-d", "dup"]);
        let opened = image.open();
        let space = opened.space();
        let before = (groups(&space, DATA), groups(&space, METADATA));
        for (kind, len) in [(Kind::Data, 300 * MIB), (Kind::Metadata, 300 * MIB)] {
            assert!(matches!(space.alloc(kind, len, len), Err(Error::NoSpace)));
        }
        let after = (groups(&space, DATA), groups(&space, METADATA));
        assert!(after.0 <= before.0 + 1 && after.1 <= before.1 + 1, "{before:?} {after:?}");
        let left = space.totals().unallocated;
        assert!(left > 300 * MIB, "{left}");
        // As many bytes as there are, and two copies of each.
        assert!(matches!(space.reserve_data(left), Err(Error::NoSpace)));
        let asked = space.reserve_metadata(left, Priority::Normal);
        assert!(matches!(asked, Err(Error::NoSpace)));
        assert_eq!(space.totals().unallocated, left);
    });
}

/// While it converts, what moves goes to the new profile, or stays; what it has no room for makes no chunk.
#[test]
fn what_moves_in_a_conversion_goes_to_the_new_profile() {
    with_kernel(|| {
        let image = Image::new("1G", &["-m", "single"]);
        let opened = image.open();
        let space = opened.space();
        for _ in 0..4 {
            space.new_chunk(Kind::Data).expect("room");
        }
        space.convert_to(Kind::Data, Some(DUP));
        let group = space.group_infos().into_iter().find(|group| group.flags & DATA != 0);
        let group = group.expect("a group");
        assert!(space.set_aside(group.logical).expect("room"));
        let mut room = space.reserve_data(300 * MIB).expect("in groups of one copy");
        let mut doubled = 0;
        while let Ok(extent) = room.alloc_to_move(&space, MIB) {
            assert_ne!(flags_of(&space, &extent) & DUP, 0);
            doubled += MIB;
        }
        assert!(doubled > 50 * MIB && room.bytes() > 0, "{doubled}");
        room.alloc(&space, MIB, MIB, None).expect("who does not move has what was reserved");
    });
}

/// The last group of the profile that new ones get says so: without it the volume would be another one.
#[test]
fn the_last_group_of_two_copies_stays() {
    with_kernel(|| {
        let image = Image::new("512M", &["-m", "dup"]);
        let opened = image.open();
        let space = opened.space();
        space.convert_to(Kind::Data, Some(DUP));
        space.new_chunk(Kind::Data).expect("room");
        space.convert_to(Kind::Data, None);
        assert_eq!(space.profile_of(Kind::Data), DUP);
        while space.reclaim_for(Kind::Metadata, space.chunk_changes()).expect("reclaim") {
            assert_eq!(space.profile_of(Kind::Data), DUP);
        }
        assert_eq!(groups(&space, DATA), 1);
        let new = space.new_chunk(Kind::Data).expect("room");
        assert_eq!(new.chunk.fields.kind & PROFILE_MASK, DUP);
        Commit::new(&opened, &space).finish();
        drop((space, opened));
        image.check();
    });
}

/// Nor does the small one that takes its place change it, beside groups of one copy that are in use.
#[test]
fn what_takes_the_place_of_the_last_group_of_two_copies_has_two() {
    with_kernel(|| {
        let image = Image::new("512M", &["-m", "dup"]);
        let opened = image.open();
        let space = opened.space();
        let used = space.alloc(Kind::Data, MIB, MIB).expect("room");
        assert_eq!(flags_of(&space, &used) & PROFILE_MASK, 0);
        space.convert_to(Kind::Data, Some(DUP));
        let large = space.new_chunk(Kind::Data).expect("room").chunk.fields.length;
        assert!(large >= 16 * MIB, "{large}");
        space.convert_to(Kind::Data, None);
        while space.reclaim_for(Kind::Metadata, space.chunk_changes()).expect("reclaim") {
            assert_eq!(space.profile_of(Kind::Data), DUP);
        }
        let infos = space.group_infos();
        let doubled = infos.iter().find(|group| group.flags & DATA != 0 && group.flags & DUP != 0);
        assert_eq!(doubled.map(|group| group.len), Some(8 * MIB));
    });
}

/// While the device is made smaller, what the last group of data leaves behind may be no place for another.
#[test]
fn the_last_group_of_data_stays_where_another_finds_no_place() {
    with_kernel(|| {
        let image = Image::new("512M", &["-m", "single"]);
        let opened = image.open();
        let space = opened.space();
        // Behind all others.
        while space.totals().unallocated > 100 * MIB {
            space.new_chunk(Kind::Metadata).expect("room");
        }
        let room = space.reserve_data(40 * MIB).expect("makes a large group");
        assert!(
            space.reclaim_for(Kind::Metadata, space.chunk_changes()).expect("reclaim"),
            "the small one goes"
        );
        drop(room);
        let _reserved = space.reserve_data(7 * MIB).expect("room");
        let infos = space.group_infos();
        let last = infos.iter().find(|group| group.flags & DATA != 0).expect("a group");
        let at = opened.volume.chunk(last.logical).expect("there").stripes[0].1.0;
        space.will_shrink(at).expect("it can be made smaller");
        while space.new_chunk(Kind::Metadata).is_ok() {}
        assert!(
            !space.reclaim_for(Kind::Metadata, space.chunk_changes()).expect("reclaim"),
            "it has to stay"
        );
        assert_eq!(space.group_infos().iter().filter(|g| g.flags & DATA != 0).count(), 1);
        let data = space.totals().data;
        assert!(data.free >= data.reserved && data.reserved == 7 * MIB, "{data:?}");
        space.do_not_shrink();
        assert!(
            space.reclaim_for(Kind::Metadata, space.chunk_changes()).expect("reclaim"),
            "where it lay"
        );
        assert_eq!(space.totals().data.total, 8 * MIB);
    });
}

/// What is free in a group that is set aside is looked at as well: it is allocated from again later.
#[test]
fn a_group_that_is_set_aside_is_proven_by_what_it_has() {
    with_kernel(|| {
        let image = Image::new("512M", &["-m", "single"]);
        image.script("", "head -c 3000000 /dev/urandom > file");
        let opened = image.open();
        let space = opened.space();
        let (roots, volume) = (opened.space_roots(), space.volume().clone());
        space.prove_with(Box::new(move |claim: &Claim<'_>| {
            claim.check(&NodeStore::new(volume.clone(), MIB as usize), &roots)
        }));
        let infos = space.group_infos();
        let group = infos.iter().find(|group| group.flags & DATA != 0 && group.used > 0);
        let group = group.expect("a group with content");
        let free: u64 = group.free.iter().map(|(_, len)| len).sum();
        assert!(space.set_aside(group.logical).expect("room"));
        // As a free-space tree that lies has it.
        let first = group.free.first().map_or(group.logical.0, |(start, len)| match *start {
            start if start == group.logical.0 => start + len,
            _ => group.logical.0,
        });
        space.release(Extent { logical: btrfs_disk::Logical(first), len: 4096 }).expect("a lie");
        let told = space.trim(0..u64::MAX, 0, &|| Ok(()));
        assert!(matches!(told, Err(Unproven::Wrong(_))), "{free} free: {told:?}");
        space.take_back(group.logical).expect("as any other");
        let got = space.alloc(Kind::Data, 4096, 4096);
        assert!(matches!(got, Err(Error::Corrupt(_))) || !holds(group, &got), "{got:?}");
    });
}

fn holds(group: &btrfs_space::GroupInfo, got: &btrfs_disk::Result<Extent>) -> bool {
    let within = |e: &Extent| (group.logical.0..group.logical.0 + group.len).contains(&e.logical.0);
    got.as_ref().is_ok_and(within)
}

/// The superblock has to name them all.
#[test]
fn there_are_no_more_system_chunks_than_a_superblock_can_name() {
    with_kernel(|| {
        for profile in ["single", "dup"] {
            let image = Image::new("4G", &["-m", profile]);
            let opened = image.open();
            let space = opened.space();
            let full = (0..100).find(|_| space.new_chunk(Kind::System).is_err());
            assert!(full.is_some_and(|made| made > 5), "{full:?}");
            let mut commit = Commit::new(&opened, &space);
            let ino = commit.files(btrfs_disk::TreeId::FS).first().map(|file| file.0);
            commit.touch(btrfs_disk::TreeId::FS, ino.unwrap_or(256), 5);
            commit.finish();
            drop((space, opened));
            image.check();
        }
    });
}

/// Nor does anything make room for one: empty groups of data stay, and the volume goes on.
#[test]
fn nothing_is_given_up_for_a_system_chunk_that_a_superblock_cannot_name() {
    with_kernel(|| {
        let image = Image::new("4G", &["-m", "single"]);
        let opened = image.open();
        let space = opened.space();
        while space.new_chunk(Kind::System).is_ok() {}
        (0..3).for_each(|_| drop(space.new_chunk(Kind::Data).expect("room")));
        let before = groups(&space, DATA);
        let infos = space.group_infos();
        let system = infos.iter().find(|group| group.flags & SYSTEM != 0 && group.used > 0);
        let system = system.expect("the chunk tree lies there").logical;
        space.convert_to(Kind::System, Some(DUP));
        let told = space.set_aside(system);
        assert!(matches!(told, Err(Error::NoSpace)), "{told:?}");
        assert_eq!(groups(&space, DATA), before, "empty groups of data were given up");
        space.convert_to(Kind::System, None);
        space.alloc(Kind::Data, MIB, MIB).expect("it goes on");
        Commit::new(&opened, &space).finish();
        drop((space, opened));
        image.check();
    });
}
