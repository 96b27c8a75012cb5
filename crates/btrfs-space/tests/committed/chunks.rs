//! New chunks: made when space runs out, recorded by the next commit, accepted by the
//! kernel.

use crate::common;
use btrfs_disk::ids::FIRST_CHUNK_TREE_OBJECTID;
use btrfs_disk::ids::block_group::{DATA, DUP, METADATA};
use btrfs_disk::items::{BlockGroupItem, DevExtent};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Error, FixedSize, Key, TreeId};
use btrfs_space::{Claim, GroupInfo, Kept, Kind, Moment, Priority, Space, Unproven};
use btrfs_tree::NodeStore;
use common::derive::{assert_space_true, assert_true};
use common::edit::Commit;
use common::{Image, Opened, with_kernel};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

fn judge(image: &Image) {
    let opened = image.open();
    assert_true(&opened);
    assert_space_true(&opened);
    drop(opened);
    image.check();
}

/// Preallocates in pieces of `piece` bytes until there is no room; answers the bytes.
fn fill(opened: &Opened, space: &Space, piece: u64) -> u64 {
    let mut filled = 0;
    loop {
        let mut commit = Commit::new(opened, space);
        let ino = commit.files(TreeId::FS)[0].0;
        let done = match commit.prealloc(TreeId::FS, ino, piece) {
            Ok(done) => done,
            Err(Error::NoSpace) => {
                commit.finish();
                return filled;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(done);
        filled += piece;
        commit.finish();
    }
}

/// The last chunk ends where addresses do: there is none behind it, and that is no damage.
#[test]
fn behind_the_last_address_there_is_no_chunk() {
    with_kernel(|| {
        let image = Image::new("512M", &["-m", "single"]);
        let opened = image.open();
        let chunks = opened.volume.chunks();
        let last = chunks.last().expect("chunks");
        let mut chunk = Space::unloaded(&opened.volume).new_chunk(Kind::Data).expect("room").chunk;
        opened.volume.remove_chunk(btrfs_disk::Logical(last.end())).expect("it was made there");
        chunk.fields.length = 1 << 20;
        let at = btrfs_disk::Logical((1 << 63) - (2 << 20));
        opened.volume.add_chunk(at, &chunk).expect("in front of the end");
        let made = Space::unloaded(&opened.volume).new_chunk(Kind::Data);
        assert!(matches!(made, Err(Error::NoSpace)), "{made:?}");
    });
}

/// What commits and removals need is kept, as a wish is where there is plenty; and of what does not fit, half of all.
#[test]
fn what_is_kept_of_metadata_is_what_was_asked_or_half() {
    with_kernel(|| {
        let image = Image::new("512M", &["-m", "single"]);
        let opened = image.open();
        let space = opened.space();
        // Of a device without room the numbers stay what they are.
        while space.new_chunk(Kind::Metadata).is_ok() {}
        let total = space.totals().metadata.total;
        // The most that one can reserve.
        let most = |priority| {
            let (mut low, mut high) = (0, 1u64 << 40);
            while high - low > 1 {
                let middle = (low + high) / 2;
                match space.reserve_metadata(middle, priority) {
                    Ok(_) => low = middle,
                    Err(_) => high = middle,
                }
            }
            low
        };
        let kept = |commit: u64, removal: u64, wish: u64| {
            space.keep(Kept { commit, removal, wish, in_place: total });
            let of_commits = most(Priority::Commit) - most(Priority::Delete);
            let in_place = most(Priority::InPlace) - most(Priority::Normal);
            let beyond = space.totals().global_reserve - (commit + removal).min(total / 2);
            assert_eq!(in_place, beyond, "what is beyond both");
            (space.totals().global_reserve, of_commits)
        };
        let unit = total / 64;
        assert_eq!(kept(unit, 2 * unit, 0), (3 * unit, unit));
        assert_eq!(kept(unit, unit, 6 * unit), (6 * unit, unit), "a wish");
        assert_eq!(kept(unit, unit, 1 << 40), (total / 8, unit), "a wish for more than an eighth");
        assert_eq!(kept(total, 0, 0), (total / 2, total / 2), "commits that need all");
        assert_eq!(kept(total, total, 0), (total / 2, total / 4), "and removals, too");
        assert_eq!(kept(unit, total, 0), (total / 2, unit), "little, beside removals");
    });
}

/// Of block groups that data is in, too, it leaves as much as that needs.
#[test]
fn a_mixed_volume_keeps_room_for_writes_in_place() {
    with_kernel(|| {
        let image = Image::new("256M", &["--mixed"]);
        let opened = image.open();
        let space = opened.space();
        while space.new_chunk(Kind::Data).is_ok() {}
        let unit = space.totals().metadata.total / 64;
        space.keep(Kept { commit: unit, removal: unit, in_place: 2 * unit, wish: 0 });
        let totals = space.totals();
        // What new data can still take: free now, or in chunks to come.
        let free = totals.data.free.saturating_sub(totals.data.reserved);
        let free =
            (free + totals.unallocated / totals.data.copies).saturating_sub(totals.global_reserve);
        let all = space.reserve_data(free).expect("what is not kept");
        assert!(space.reserve_data(4096).is_err());
        assert!(space.reserve_metadata(4096, Priority::Normal).is_err());
        let kept =
            [(Priority::InPlace, 2 * unit), (Priority::Delete, unit), (Priority::Commit, unit)];
        let held = kept.map(|(priority, bytes)| {
            let held = space.reserve_metadata(bytes, priority).expect("it is kept");
            assert!(space.reserve_metadata(4096, priority).is_err(), "{priority:?}");
            held
        });
        drop((all, held));
    });
}

#[test]
fn a_volume_is_filled_to_the_brim_and_emptied_again() {
    with_kernel(|| {
        let image = Image::new("1G", &[]);
        image.script("", "touch file; btrfs property set . compression none");
        let opened = image.open();
        let space = opened.space();
        let before = space.totals();
        let filled = fill(&opened, &space, 32 << 20);
        let rest = fill(&opened, &space, 4096 * 16);
        let after = space.totals();
        assert_eq!(after.data.used, before.data.used + filled + rest);
        assert!(after.data.total > before.data.total, "data chunks were made");
        assert!(after.unallocated < (2 << 20), "{after:?}");
        assert!(after.data.free < 65536, "{after:?}");
        assert_eq!(after.data.pinned, 0);
        let total = before.device - (1 << 20) - before.metadata.total * 2 - before.system.total * 2;
        assert!(filled + rest > total * 9 / 10, "{filled} of {total}");
        drop((space, opened));
        judge(&image);
        let opened = image.open();
        let space = opened.space();
        let mut commit = Commit::new(&opened, &space);
        let ino = commit.files(TreeId::FS)[0].0;
        commit.truncate(TreeId::FS, ino);
        commit.finish();
        assert_eq!(space.totals().data.used, before.data.used);
        assert!(space.reserve_data(filled).is_ok());
        drop((space, opened));
        judge(&image);
        let mounted = image.mount("");
        mounted.script("dd if=/dev/urandom of=file bs=1M count=200 status=none; sync -f .");
        mounted.scrub();
        drop(mounted);
        judge(&image);
    });
}

#[test]
fn chunks_of_every_kind_and_profile() {
    with_kernel(|| {
        for mkfs in [&["-m", "single"][..], &["-m", "dup", "-d", "dup"], &["--mixed"], &[]] {
            let image = Image::new("800M", mkfs);
            image.script("", "touch file; for i in $(seq 1 100); do echo $i > f$i; done");
            let opened = image.open();
            let space = opened.space();
            let before = opened.volume.chunks().len();
            for kind in [Kind::Data, Kind::Metadata, Kind::System, Kind::Metadata] {
                let new = space.new_chunk(kind).expect("room for a chunk");
                assert_eq!(new.chunk.fields.kind & DUP, space.profile_of(kind), "{mkfs:?}");
                let extent = space.alloc(kind, 16384, 16384).expect("room");
                space.release(extent).expect("mine");
            }
            let mut commit = Commit::new(&opened, &space);
            let ino = commit.files(TreeId::FS)[0].0;
            assert!(commit.prealloc(TreeId::FS, ino, 40 << 20).expect("room"));
            commit.finish();
            assert!(opened.volume.chunks().len() >= before + 4);
            drop((space, opened));
            judge(&image);
            let mounted = image.mount("");
            mounted.script(
                "for i in $(seq 1 300); do head -c 9999 /dev/urandom > k$i; done; sync -f .",
            );
            mounted.scrub();
            drop(mounted);
            judge(&image);
        }
    });
}

#[test]
fn reservations_are_kept_and_given_back() {
    with_kernel(|| {
        let image = Image::new("1G", &[]);
        image.script("", "touch file");
        let opened = image.open();
        let space = opened.space();
        let start = space.totals();
        assert!(matches!(space.reserve_data(1 << 40), Err(Error::NoSpace)));
        assert_eq!(space.totals(), start, "a hopeless wish makes no chunk");
        let mut reservations = Vec::new();
        while let Ok(reservation) = space.reserve_data(10 << 20) {
            reservations.push(reservation);
        }
        let reserved = reservations.len() as u64 * (10 << 20);
        let full = space.totals();
        assert_eq!(full.data.reserved, reserved);
        assert!(full.data.free < reserved + (10 << 20));
        for reservation in &mut reservations {
            let mut got = 0;
            while reservation.bytes() > 0 {
                got += reservation
                    .alloc(&space, reservation.bytes(), 4096, None)
                    .expect("reserved")
                    .len;
            }
            assert_eq!(got, 10 << 20);
        }
        drop(reservations);
        let normal = space.reserve_metadata(1 << 20, Priority::Normal).expect("room");
        let mut all = Vec::new();
        while let Ok(reservation) = space.reserve_metadata(1 << 20, Priority::Normal) {
            all.push(reservation);
        }
        let last = space.reserve_metadata(1 << 20, Priority::Delete);
        assert!(last.is_ok(), "deletions may use the reserve");
        drop((last, all, normal));
        assert_eq!(space.totals().metadata.reserved, 0);
        assert!(opened.volume.chunks().iter().any(|c| c.flags & METADATA != 0));
    });
}

#[test]
fn a_group_of_the_volume_is_proven_once_and_a_new_one_never() {
    with_kernel(|| {
        let image = Image::new("1G", &[]);
        let opened = image.open();
        let space = opened.space();
        let (roots, calls) = (opened.space_roots(), Arc::new(AtomicU64::new(0)));
        let (volume, counted) = (space.volume().clone(), calls.clone());
        space.prove_with(Box::new(move |claim: &Claim<'_>| {
            counted.fetch_add(1, Ordering::Relaxed);
            claim.check(&NodeStore::new(volume.clone(), 1 << 20), &roots)
        }));
        let groups = space.group_infos().iter().filter(|group| group.flags & DATA != 0).count();
        let mut taken = 0;
        while space.totals().data.total < 700 << 20 {
            let reservation = space.reserve_data(8 << 20).expect("room");
            drop(reservation);
            space.alloc(Kind::Data, 8 << 20, 8 << 20).expect("room");
            taken += 1;
        }
        assert!(taken > 20 && space.group_infos().len() > 3 + groups);
        assert_eq!(calls.load(Ordering::Relaxed), groups as u64);
    });
}

#[test]
fn nothing_is_allocated_from_a_group_that_is_found_wrong() {
    with_kernel(|| {
        let image = Image::new("1G", &[]);
        let opened = image.open();
        let space = opened.space();
        space.prove_with(Box::new(|_: &Claim<'_>| Err(Unproven::Wrong(Corrupt::new("a lie")))));
        let before = space.group_infos();
        for kind in [Kind::Data, Kind::Metadata, Kind::System] {
            for _ in 0..2 {
                let got = space.alloc(kind, 16384, 16384);
                assert!(matches!(got, Err(Error::Corrupt(_))), "{kind:?}: {got:?}");
            }
        }
        assert_eq!(space.group_infos(), before);
    });
}

/// Of which group it cannot be read what it holds, that one is done without.
#[test]
fn others_are_allocated_from_where_a_group_cannot_be_read() {
    with_kernel(|| {
        for kind in [Kind::Data, Kind::Metadata] {
            let image = Image::new("1G", &[]);
            let opened = image.open();
            let space = opened.space();
            let first = AtomicBool::new(true);
            space.prove_with(Box::new(move |_: &Claim<'_>| {
                match first.swap(false, Ordering::Relaxed) {
                    true => Err(Unproven::Unread(Error::corrupt("lost"))),
                    false => Ok(()),
                }
            }));
            let before = space.group_infos();
            for _ in 0..3 {
                let got = space.alloc(kind, 16384, 16384).expect("from another");
                let within = |group: &&GroupInfo| {
                    group.logical <= got.logical && got.logical.0 < group.logical.0 + group.len
                };
                assert!(!before.iter().any(|group| within(&group)), "{got:?} of {before:?}");
            }
        }
    });
}

/// Of two who look for room at once, one makes the last chunk that the device has room for: it has room for
/// the other as well.
#[test]
fn the_last_chunk_is_there_for_all_who_looked_before_it_came() {
    with_kernel(|| {
        for kind in [Kind::Data, Kind::Metadata] {
            let image = Image::new("512M", &["-m", "single"]);
            let opened = image.open();
            let space = opened.space();
            let others = move |space: &Space| while space.new_chunk(kind).is_ok() {};
            space.meanwhile(Moment::NoRoom, others);
            let wanted = space.totals().unallocated / 4 * 3;
            let reserve = || match kind {
                Kind::Data => space.reserve_data(wanted).map(drop),
                _ => space.reserve_metadata(wanted, Priority::Normal).map(drop),
            };
            let before = space.chunk_changes();
            reserve().unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            assert!(space.chunk_changes() > before + 1, "others made some");
        }
    });
}

/// Of two who look for an empty chunk of the other kind, one finds it, and its room is for both.
#[test]
fn who_finds_nothing_to_give_back_since_another_has_done_it_looks_for_room_again() {
    with_kernel(|| {
        let image = Image::new("512M", &["-m", "single"]);
        let opened = image.open();
        let space = opened.space();
        while space.new_chunk(Kind::Data).is_ok() {}
        let others = |space: &Space| {
            while space.reclaim_for(Kind::Metadata, space.chunk_changes()).expect("reclaim") {}
        };
        let seen = space.chunk_changes();
        space.meanwhile(Moment::Reclaim, others);
        assert!(space.reclaim_for(Kind::Metadata, seen).expect("reclaim"), "look again");
        assert!(!space.reclaim_for(Kind::Metadata, space.chunk_changes()).expect("reclaim"));
    });
}

/// Small files live in metadata: the last data group, if it is large and empty, makes room.
#[test]
fn the_last_empty_data_group_is_exchanged_for_a_small_one() {
    with_kernel(|| {
        let image = Image::new("512M", &[]);
        let opened = image.open();
        let space = opened.space();
        let reservation = space.reserve_data(40 << 20).expect("makes a large group");
        assert!(
            space.reclaim_for(Kind::Metadata, space.chunk_changes()).expect("reclaim"),
            "the small one goes"
        );
        let before = space.totals();
        assert!(before.data.total > 40 << 20 && before.data.used == 0);
        assert!(
            !space.reclaim_for(Kind::Metadata, space.chunk_changes()).expect("reclaim"),
            "reservations are kept"
        );
        drop(reservation);
        let reservation = space.reserve_data(7 << 20).expect("room");
        assert!(space.reclaim_for(Kind::Metadata, space.chunk_changes()).expect("reclaim"));
        let after = space.totals();
        assert_eq!((after.data.total, after.data.reserved), (8 << 20, 7 << 20));
        assert_eq!(after.unallocated - before.unallocated, before.data.total - (8 << 20));
        drop(reservation);
        assert!(
            !space.reclaim_for(Kind::Metadata, space.chunk_changes()).expect("reclaim"),
            "the last one stays"
        );
        let commit = Commit::new(&opened, &space);
        commit.finish();
        drop((space, opened));
        judge(&image);
    });
}

/// A free-space tree that lies, or one that nothing can be held against: what seems empty may be in use.
fn is_not_given_back(why: fn() -> Unproven) {
    with_kernel(|| {
        let image = Image::new("512M", &["-m", "single"]);
        let opened = image.open();
        let space = opened.space();
        space.new_chunk(Kind::Data).expect("room");
        Commit::new(&opened, &space).finish();
        drop((space, opened));
        let opened = image.open();
        let space = opened.space();
        let asked = Arc::new(AtomicU32::new(0));
        let asks = asked.clone();
        space.prove_with(Box::new(move |_: &Claim<'_>| {
            asks.fetch_add(1, Ordering::SeqCst);
            Err(why())
        }));
        let data = || space.group_infos().iter().filter(|group| group.flags & DATA != 0).count();
        let reclaim = || space.reclaim_for(Kind::Metadata, space.chunk_changes()).expect("reclaim");
        assert_eq!(data(), 2);
        for _ in 0..3 {
            assert!(!reclaim());
            assert_eq!(data(), 2);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2, "each is looked at once");
    });
}

#[test]
fn what_only_seems_empty_is_not_given_back() {
    is_not_given_back(|| Unproven::Wrong(Corrupt::new("it is in use")));
}

#[test]
fn what_may_not_be_empty_is_not_given_back() {
    is_not_given_back(|| Unproven::Unread(Error::corrupt("nobody knows")));
}

/// The same of the last one, which a small one would take the place of.
#[test]
fn what_only_seems_empty_is_not_exchanged() {
    with_kernel(|| {
        let image = Image::new("512M", &["-m", "single"]);
        let opened = image.open();
        let space = opened.space();
        let room = space.reserve_data(40 << 20).expect("makes a large group");
        let reclaim = |space: &Space| {
            space.reclaim_for(Kind::Metadata, space.chunk_changes()).expect("reclaim")
        };
        assert!(reclaim(&space), "the small one goes");
        drop(room);
        Commit::new(&opened, &space).finish();
        drop((space, opened));
        let opened = image.open();
        let space = opened.space();
        space.prove_with(Box::new(|_: &Claim<'_>| {
            Err(Unproven::Wrong(Corrupt::new("it is in use")))
        }));
        let before = space.totals().data.total;
        assert!(!reclaim(&space));
        assert_eq!(space.totals().data.total, before);
    });
}

/// An item where a new chunk's would go says that somebody has the space: the commit fails, and
/// nothing of it is written.
#[test]
fn a_new_chunk_is_not_put_over_an_item() {
    type Where = fn(&btrfs_space::NewChunk) -> (TreeId, Key, Vec<u8>);
    let places: [Where; 3] = [
        |new| {
            let stripe = new.chunk.stripes[0];
            let extent = DevExtent { length: 4096, chunk_offset: 1 << 50, ..fixed() };
            (TreeId::DEV, Key::new(stripe.devid, kind::DEV_EXTENT, stripe.offset), extent.to_vec())
        },
        |new| {
            let key = Key::new(FIRST_CHUNK_TREE_OBJECTID, kind::CHUNK_ITEM, new.logical.0);
            (TreeId::CHUNK, key, new.chunk.to_vec())
        },
        |new| {
            let key = Key::new(new.logical.0, kind::BLOCK_GROUP_ITEM, new.chunk.fields.length);
            let (chunk_objectid, flags) = (FIRST_CHUNK_TREE_OBJECTID, new.chunk.fields.kind);
            (TreeId::EXTENT, key, BlockGroupItem { used: 0, chunk_objectid, flags }.to_vec())
        },
    ];
    with_kernel(|| {
        let image = Image::new("800M", &[]);
        image.script("", "touch file");
        for (place, at) in places.iter().zip(0..) {
            let opened = image.open();
            let space = opened.space();
            let before = std::fs::read(&image.path).expect("image");
            let new = space.new_chunk(Kind::Data).expect("room for a chunk");
            let mut commit = Commit::new(&opened, &space);
            let (tree, key, data) = place(&new);
            commit.apply(tree, vec![(key, btrfs_tree::Edit::Put(data.into()))]);
            let error = commit.settle.finish().expect_err("refused").to_string();
            assert!(error.contains("a new chunk meets an item"), "{at}: {error}");
            assert!(std::fs::read(&image.path).expect("image") == before, "{at}: written");
        }
        judge(&image);
    });
}

fn fixed() -> DevExtent {
    let (chunk_tree, chunk_objectid) = (TreeId::CHUNK.0, FIRST_CHUNK_TREE_OBJECTID);
    DevExtent { chunk_tree, chunk_objectid, ..DevExtent::default() }
}

/// While a device is made larger no chunk lies in what is new; later only empty ones go with it.
#[test]
fn a_device_that_was_to_grow_has_its_old_end_again_unless_something_lies_behind_that() {
    with_kernel(|| {
        let image = Image::new("1G", &["-b", "512M"]);
        let opened = image.open();
        let space = opened.space();
        let old = space.device_bytes();
        let unallocated = space.totals().unallocated;
        space.grow(1 << 30).expect("the device has as much");
        assert_eq!(space.totals().unallocated, unallocated);
        assert!(space.not_grown(old).expect("back"));
        assert_eq!((space.device_bytes(), space.totals().unallocated), (old, unallocated));
        space.grow(1 << 30).expect("the device has as much");
        space.grown();
        while space.behind(old).is_empty() {
            space.new_chunk(Kind::Data).expect("room");
        }
        assert!(space.not_grown(old).expect("back"), "they are empty");
        assert_eq!((space.device_bytes(), space.behind(old).len()), (old, 0));
        space.grow(1 << 30).expect("the device has as much");
        space.grown();
        let used = loop {
            let got = space.alloc(Kind::Data, 1 << 20, 1 << 20).expect("room");
            if space.behind(old).iter().any(|group| group.logical <= got.logical) {
                break got;
            }
        };
        assert!(!space.not_grown(old).expect("as it is"), "{used:?} lies there");
        assert_eq!(space.device_bytes(), 1 << 30);
    });
}
