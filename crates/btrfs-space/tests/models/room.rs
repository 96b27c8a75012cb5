//! What metadata has reserved, and what is kept of it for commits and removals, stays theirs, whoever else takes room. And
//! loading block groups costs what their number does.

use crate::common;
use btrfs_disk::ids::block_group::METADATA;
use btrfs_disk::{Error, Logical, TreeId};
use btrfs_space::{Kept, Kind, MetadataReservation, Priority, Space};
use common::edit::Commit;
use common::{Image, Opened, with_kernel};

const MIB: u64 = 1 << 20;
const NODE: u64 = 16384;

/// All metadata that ordinary operations could have.
fn all_ordinary(space: &Space) -> MetadataReservation {
    let mut all = space.reserve_metadata(0, Priority::Normal).expect("nothing");
    for bytes in [MIB, NODE] {
        while let Ok(more) = space.reserve_metadata(bytes, Priority::Normal) {
            all.absorb(more);
        }
    }
    all
}

/// A commit that begins while the device is told of what is free has what is kept for it.
#[test]
fn trimming_leaves_commits_what_is_kept_for_them() {
    with_kernel(|| {
        let image = Image::new("512M", &["-m", "single"]);
        let opened = image.open();
        let space = opened.space();
        while space.new_chunk(Kind::Data).is_ok() {}
        space.keep(Kept { commit: 2 * MIB, removal: 0, in_place: 0, wish: 0 });
        let infos = space.group_infos();
        let group = infos.iter().find(|group| group.flags & METADATA != 0).expect("one");
        let range = group.logical.0..group.logical.0 + group.len;
        let trim = || space.trim(range.clone(), MIB, &|| Ok(())).expect("the image has holes");
        let all = all_ordinary(&space);
        assert_eq!(trim(), 0, "the device has something of what is kept");
        drop(all);
        assert!(trim() > 2 * MIB, "nobody needs it");
    });
}

/// Of the upper half of the device small chunks leave holes that no chunk of metadata fits in.
fn with_small_holes(opened: &Opened) {
    let volume = &opened.volume;
    let made = Space::unloaded(volume).new_chunk(Kind::Data).expect("room");
    volume.remove_chunk(made.logical).expect("it was made there");
    let mut small = made.chunk;
    small.fields.length = 64 << 10;
    for number in 256..511 {
        small.stripes[0].offset = number * MIB;
        volume.add_chunk(Logical((1 << 40) + number * MIB), &small).expect("nothing is there");
    }
}

/// Chunks of data took all holes that metadata could have had, as long as the others were as many bytes as it
/// counts on.
#[test]
fn data_leaves_metadata_holes_that_are_large_enough() {
    with_kernel(|| {
        let image = Image::new("512M", &["-m", "single"]);
        let opened = image.open();
        with_small_holes(&opened);
        let space = Space::unloaded(&opened.volume);
        space.keep(Kept { commit: 0, removal: 0, in_place: 0, wish: 0 });
        let mut reserved = space.reserve_metadata(60 * MIB, Priority::Normal).expect("room");
        let mut data = 0;
        while let Ok(chunk) = space.new_chunk(Kind::Data) {
            data += chunk.chunk.fields.length;
        }
        assert!(data > 60 * MIB, "{data} bytes of data");
        while reserved.bytes() > 0 {
            reserved.alloc_node(&space, NODE).expect("it was reserved");
        }
    });
}

/// Each group of a kind made a list of all that had come before it.
#[test]
fn loading_makes_one_list_of_each_kind() {
    with_kernel(|| {
        let image = Image::new("512M", &[]);
        image.script("", "touch file");
        let opened = image.open();
        let space = opened.space();
        for _ in 0..5 {
            space.new_chunk(Kind::Data).expect("room");
        }
        let mut commit = Commit::new(&opened, &space);
        let ino = commit.files(TreeId::FS)[0].0;
        assert!(commit.prealloc(TreeId::FS, ino, MIB).expect("room"));
        commit.finish();
        let before = space.group_infos().len();
        drop((space, opened));
        let opened = image.open();
        let space = opened.space();
        assert!(space.group_infos().len() == before && before > 7);
        for kind in [Kind::Data, Kind::Metadata, Kind::System] {
            assert_eq!(space.group_lists(kind), 1, "{kind:?}");
        }
        let full = space.reserve_data(1 << 40);
        assert!(matches!(full, Err(Error::NoSpace)));
    });
}
