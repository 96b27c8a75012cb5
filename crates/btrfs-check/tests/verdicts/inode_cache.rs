//! The cache of free inode numbers that kernels before 5.11 kept in each subvolume with
//! `-o inode_cache`: an inode -12 with content, and a header that names it. Nobody reads it any
//! more, and it stays where it is until `btrfs rescue clear-ino-cache` takes it away.
//!
//! Such kernels are not at hand, so the content of a file that the kernel wrote is given to
//! that inode, as the format wants it. `btrfs check` judges alone: the kernel (6.18) refuses the
//! leaf of the extent tree that names such an inode, though older ones wrote and read it.

use crate::common;
use btrfs_disk::ids::{FREE_INO_OBJECTID, FREE_SPACE_OBJECTID};
use btrfs_disk::items::{InodeItem, inode_flags};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use common::{Recipe, Scratch, assert_sound, make, ready};
use fuzzing::patch::Patch;
use std::path::Path;

const AFTER: &str = "yes free | head -c 16384 > cache; sync -f .";

/// What is in the file `cache` is the cache's from now on, and the file is a hole.
fn give_to_the_cache(image: &Path) {
    let patch = Patch::new(image);
    let ino = patch.ino(TreeId::FS, "cache");
    let at = Key::new(ino, kind::INODE_ITEM, 0);
    let (content, extent) = patch.find(TreeId::FS, Key::new(ino, kind::EXTENT_DATA, 0)).unwrap();
    assert_eq!(content, Key::new(ino, kind::EXTENT_DATA, 0));
    let (_, inode) = patch.find(TreeId::FS, at).unwrap();
    let mut cache = InodeItem::read(&inode).unwrap();
    cache.flags = inode_flags::NOCOMPRESS | inode_flags::PREALLOC;
    let mut header = Key::new(FREE_INO_OBJECTID, kind::INODE_ITEM, 0).to_bytes().to_vec();
    header.extend([cache.generation, 1, 0].iter().flat_map(|number| number.to_le_bytes()));
    let of_cache = |kind| Key::new(FREE_INO_OBJECTID, kind, 0);
    patch.remove(TreeId::FS, content);
    patch.edit_as::<InodeItem>(TreeId::FS, at, |item| item.nbytes = 0);
    patch.insert(TreeId::FS, of_cache(kind::INODE_ITEM), &cache.to_vec());
    patch.insert(TreeId::FS, of_cache(kind::EXTENT_DATA), &extent);
    patch.insert(TreeId::FS, Key::new(FREE_SPACE_OBJECTID, 0, 0), &header);
    let place = u64::from_le_bytes(extent[21..29].try_into().unwrap());
    let (key, _) = patch.find(TreeId::EXTENT, Key::new(place, kind::EXTENT_ITEM, 0)).unwrap();
    patch.edit(TreeId::EXTENT, key, |item| {
        // Behind 24 bytes of the extent, one of the reference's type, and its tree.
        let of = &mut item[33..41];
        assert_eq!(of, ino.to_le_bytes());
        of.copy_from_slice(&FREE_INO_OBJECTID.to_le_bytes());
    });
}

#[test]
fn the_old_cache_of_inode_numbers_is_no_damage() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("inode-cache");
    let image = scratch.path("image");
    make(&image, &Recipe { after: AFTER, ..Recipe::default() });
    give_to_the_cache(&image);
    assert_sound(&image, "with a cache of inode numbers", true);
}
