//! What each kind of operation changes at most: one table, each line with its reason.
//!
//! Places are keys of file trees that lie apart; a run of one inode's keys is
//! [`RUN_PLACES`]; an inode that is born lies behind all others, so all its keys are one place
//! ([`btrfs_txn::delta::ItemDelta::spread`]). Bytes are those that leaves get longer by: an item
//! that is written anew over an older one counts for what is added to it alone, but where both
//! may be in one epoch the delta counts it whole, so fixed items are in the numbers. Headers of
//! items are among them ([`super::records`]).
//!
//! Invariant: an operation never changes more than its line says ([`super::bound`] makes nodes of
//! it). What it does not know: trees, and what is free.

pub(crate) use super::bound::Cost;
pub(super) use super::records::UNWRITTEN;
use super::records::{FILE_EXTENT, HEADER, INODE, NAMED};
use btrfs_disk::Geometry;
use btrfs_txn::RUN_PLACES;
use btrfs_txn::delta::ActionCost;

/// Bytes of the items that a removal writes anew: an inode's, and what is left of one that held
/// several names.
const REWRITTEN: u64 = 1024;
/// A run of one inode's keys.
const RUN: u64 = RUN_PLACES as u64;

/// Items that one small step of a removal takes away at most, in as many places.
pub(crate) const SMALL_STEP: u64 = 8;

/// In one tree. Keys of the extent tree: of each extent that comes or goes its own and its referrer's,
/// and as much for each place where nothing is said of extents.
fn cost(places: u64, bytes: u64, sums: u64) -> Cost {
    Cost { places, trees: 1, births: 0, bytes, sums, records: sums + 2 * places }
}

/// Bytes of the headers of the items that a run of checksums is in, at most.
const RUN_OF_SUMS: u64 = 16 * 25;

/// A new inode under a new name. Places: the entry by hash, the entry by index, the directory's
/// inode, the new inode with all its items, and one each for the ends of two runs. Bytes: both
/// inodes, three items with the name, the target of a symlink, the directory's default ACL as
/// access ACL, for a directory as default ACL again, and a property (its name and value are
/// short).
pub(crate) fn create(geometry: &Geometry, name: usize, target: usize, directory: bool) -> Cost {
    let acls = if directory { 2 } else { 1 } * geometry.max_item_size() as u64;
    let items = 2 * INODE + 3 * (NAMED + name as u64);
    let bytes = items + FILE_EXTENT + target as u64 + acls + 2 * NAMED;
    Cost { births: 1, ..cost(6, bytes, 0) }
}

/// As [`create`], with an ORPHAN_ITEM (no bytes but its header) in the place of a name.
pub(crate) fn tmpfile(geometry: &Geometry) -> Cost {
    let acls = geometry.max_item_size() as u64;
    Cost { births: 1, ..cost(4, 2 * INODE + acls + 3 * NAMED, 0) }
}

/// A ROOT_ITEM and its header.
const ROOT: u64 = 439 + 25;
/// Nodes that one step of a drop may read beyond its budget: the way down to where it goes on, and
/// one more of each level.
const DROP_OVERSHOOT: u64 = 16;

/// A new tree: its first leaf, its ROOT_ITEM.
pub(crate) fn plant(geometry: &Geometry) -> ActionCost {
    ActionCost { places: 2, trees: 1, bytes: ROOT + u64::from(geometry.node_size), sums: 0 }
}

/// A free-space tree of `bytes`, and `caches` files of the root tree that go with `extents`: a
/// header (or an entry of orphans), an inode and content each, apart from each other; `stale` nodes of a tree that was not
/// valid go, too.
pub(crate) fn free_space_tree(bytes: u64, caches: u64, extents: u64, stale: u64) -> ActionCost {
    let bytes = bytes + forget_tree(stale).bytes;
    ActionCost { places: 2 + 3 * caches, trees: 2, bytes: ROOT + bytes, sums: 2 * extents }
}

/// Caches beside a valid tree: all their items lie in so many `leaves` of the root tree. None of their `extents` has
/// checksums; of each go at most two records, which are not shorter than headers.
pub(crate) fn forget_caches(leaves: u64, extents: u64) -> ActionCost {
    ActionCost { places: leaves, trees: 1, bytes: ROOT + 2 * extents * HEADER, sums: 0 }
}

/// A UUID tree of so many `entries`, which say `bytes` together.
pub(crate) fn uuid_tree(geometry: &Geometry, entries: u64, bytes: u64) -> ActionCost {
    let plant = plant(geometry);
    ActionCost { bytes: plant.bytes + entries * HEADER + bytes, ..plant }
}

/// The UUID tree goes, or a stale free-space tree: its ROOT_ITEM, and the records of its `nodes`,
/// of which each may have its referrer in an item of its own.
pub(crate) fn forget_tree(nodes: u64) -> ActionCost {
    ActionCost { places: 1, trees: 1, bytes: ROOT + 2 * nodes * HEADER, sums: 0 }
}

/// A snapshot: the source's root and its copy, which both refer to all below ([`referrers`]
/// counts that for places; the copy's references are bytes here), three items of the copy's own
/// directory, two ROOT_ITEMs.
///
/// [`referrers`]: super::bound
pub(crate) fn copy_tree(geometry: &Geometry) -> ActionCost {
    let node = u64::from(geometry.node_size);
    ActionCost { places: 6, trees: 3, bytes: 2 * ROOT + INODE + 4 * node, sums: 0 }
}

/// A ROOT_ITEM that changes.
pub(crate) fn root_item() -> ActionCost {
    ActionCost { places: 1, trees: 1, bytes: ROOT, sums: 0 }
}

/// One step of a drop that reads `budget` nodes, one at least, of up to `trees` trees. Each that others hold gets
/// a referrer for each of its pointers, which together are no longer than those; of each leaf all
/// extents may die, whose checksums lie anywhere. The records themselves go out of the trees that
/// keep account of space.
///
/// Of leaves there are no more than `budget`: each that is read counts, but for one behind the last that does; then
/// that was a node on the way down to it.
pub(crate) fn drop_nodes(geometry: &Geometry, budget: u64, trees: u64) -> ActionCost {
    let room = geometry.leaf_space() as u64;
    let bytes = (budget + DROP_OVERSHOOT) * room + trees * ROOT;
    ActionCost { places: 2 * trees, trees, bytes, sums: 2 * budget * (room / FILE_EXTENT) }
}

/// A step of a relocation that copies up to `copies` nodes. Each has all its referrers, and where its
/// pointers are held by its address, a referrer for each of them, which together are no longer
/// than those. No leaf overflows, and nothing is cut.
pub(crate) fn move_nodes(geometry: &Geometry, copies: u64, trees: u64) -> ActionCost {
    let room = geometry.leaf_space() as u64;
    ActionCost { places: trees, trees, bytes: 2 * copies * room + trees * ROOT, sums: 0 }
}

/// Content that moves in such a step, beside the copies: `extents` records that come with all their
/// `references`, and checksums of `sums` bytes that go there and come here.
pub(crate) fn move_content(extents: u64, references: u64, sums: u64) -> ActionCost {
    let bytes = (extents + references) * UNWRITTEN + sums + extents * 2 * RUN_OF_SUMS;
    ActionCost { places: 0, trees: 0, bytes, sums: 3 * extents }
}

/// What a balance is to do.
pub(crate) fn balance_item() -> Cost {
    cost(1, 448 + 25, 0)
}

/// The errors of a device, an item of `len` bytes.
pub(crate) fn device_stats(len: u64) -> Cost {
    cost(1, len + 25, 0)
}

/// Of an operation with `action` in it, and `cost` beside that.
pub(crate) fn with(cost: Cost, action: ActionCost) -> Cost {
    cost + Cost {
        places: action.places,
        trees: action.trees,
        births: 0,
        bytes: action.bytes,
        sums: action.sums,
        records: records_of(&action),
    }
}

/// Keys of the extent tree that an action changes: those of extents that go are as many as their
/// checksums have places, and none that comes is shorter than a header.
pub(super) fn records_of(action: &ActionCost) -> u64 {
    action.sums + 2 * action.places + action.bytes / HEADER
}

/// A name of a subvolume that comes or goes: the entry by hash and by index, the directory; both
/// references between the trees; the UUID, and that of what was received; an orphan item.
pub(crate) fn subvolume_name(name: usize) -> Cost {
    Cost { trees: 3, ..cost(10, 2 * INODE + 5 * (NAMED + name as u64) + REWRITTEN, 0) }
}

/// Another name of an inode: the entry by hash, by index, the reference, both inodes, an
/// ORPHAN_ITEM that goes.
pub(crate) fn link(name: usize) -> Cost {
    cost(6, 2 * INODE + 3 * (NAMED + name as u64), 0)
}

/// Two names and what was under them: for each four places as in [`link`] (hash, index,
/// reference, inode), the two directories, a replaced inode's orphan item, a whiteout (a new
/// inode and its name). Bytes: five inodes, three items for each name that comes, a whiteout's
/// among them.
pub(crate) fn rename(name: usize, new_name: usize) -> Cost {
    let names = 3 * (3 * NAMED + (name + new_name) as u64);
    Cost { births: 1, ..cost(16, 5 * INODE + names, 0) }
}

/// An attribute and the inode.
pub(crate) fn set_xattr(name: usize, value: usize) -> Cost {
    cost(2, INODE + NAMED + (name + value) as u64, 0)
}

/// The inode, the access ACL (which is as long as before), and a capability that goes.
pub(crate) fn set_attributes() -> Cost {
    cost(3, INODE + 2 * NAMED, 0)
}

/// The inode and its compression property.
pub(crate) fn set_flags() -> Cost {
    cost(3, INODE + 3 * NAMED, 0)
}

/// A write, beside the content in the middle. Places: four runs (what goes straight to an extent, a
/// piece of memory at each end, and one at the old end of the file), the inode, an inline item
/// that becomes content again, and the capability that goes. What `gathers` in memory is one
/// piece, on volumes that have no items for holes: two runs. Bytes: the inode, an extent for each
/// run, and the inline item that a piece may become.
pub(crate) fn write(geometry: &Geometry, gathers: bool) -> Cost {
    let runs = if gathers { 2 } else { 4 };
    let inline = FILE_EXTENT + geometry.max_inline() as u64;
    cost(runs * RUN + 3, INODE + runs * UNWRITTEN + NAMED + inline, 0)
}

/// As [`write`], where `items` extent items of a file's own take `sectors` of content themselves. Each is cut in three
/// at most, its extent is named once more, or by another item, and its checksums come; in front of each may be a hole
/// that the file grows over.
pub(crate) fn write_in_place(geometry: &Geometry, sectors: u64, items: u64) -> Cost {
    let bytes = 2 * items * UNWRITTEN + sectors * geometry.csum.size() as u64;
    write(geometry, false) + cost(RUN + 1, bytes, 3 * items) + holes(items)
}

/// Extent items that one step of such a write takes at most.
/// Chosen, not measured.
pub(crate) const IN_PLACE_ITEMS: u64 = 8;
/// Bytes of one: as much as the kernel sends at once.
pub(crate) const IN_PLACE_BYTES: u64 = 1 << 20;

/// The largest step, with the last sector of a file that it makes longer.
pub(crate) fn most_in_place(geometry: &Geometry) -> Cost {
    let sectors = IN_PLACE_BYTES / u64::from(geometry.sector_size);
    write_in_place(geometry, sectors + 1, IN_PLACE_ITEMS + 1)
}

/// Space for a file without content: a run of extents for each piece is counted apart
/// ([`extent`]); here its inode, its first and last sectors, a hole in front.
pub(crate) fn allocate_range() -> Cost {
    cost(16, INODE + 4 * FILE_EXTENT + UNWRITTEN, 0)
}

/// A file gets longer: its inode, the end of its last extent, a hole, and as many places as the
/// steps of a cut (a smaller size may have come in between).
pub(crate) fn grow() -> Cost {
    cost(2 * SMALL_STEP, INODE + 3 * FILE_EXTENT, 0)
}

/// Further holes, each between two extents of a file.
pub(crate) fn holes(holes: u64) -> Cost {
    cost(holes, holes * FILE_EXTENT, 0)
}

/// Content shared with another file, beside its extents ([`shares`]): both inodes, a run in each for
/// the content of partial sectors, or of an inline item, that becomes an extent, and a hole.
pub(crate) fn copy_range() -> Cost {
    Cost { trees: 2, ..cost(2 * RUN + 3, 8192, 0) }
}

/// One extent more of a file: its item cuts a run in two.
pub(crate) fn extent() -> Cost {
    cost(RUN + 1, 2 * UNWRITTEN, 2)
}

/// The status of quotas, and a tree with it, or a new group: what each counts and its limit.
pub(crate) fn quota_groups(groups: u64) -> Cost {
    cost(2, (groups + 1) * 2 * (40 + 25), 0)
}

/// Relations of quota groups, each there twice, and a group with its limit.
pub(crate) fn quota_relations(relations: u64) -> Cost {
    cost(2 + 2 * relations, 2 * 25 * relations, 0)
}

/// An inode item.
pub(crate) fn touch() -> Cost {
    cost(1, INODE, 0)
}

/// A run of `new` items that share extents in place of `old` items.
pub(crate) fn shares(new: u64, old: u64) -> Cost {
    Cost { trees: 2, ..cost(RUN + 1, (new + 2) * 2 * UNWRITTEN, 2 * (new + old)) }
}

/// A name goes: the entry by hash and by index, the directory, the child, its reference, its
/// orphan item.
pub(crate) fn unlink() -> Cost {
    cost(6, REWRITTEN, 0)
}

/// An attribute goes, with the inode; or attributes are set beside a change of size that has its
/// own reservation.
pub(crate) fn remove_xattr() -> Cost {
    cost(3, REWRITTEN, 0)
}

/// An orphan item of what is no orphan.
pub(crate) fn remove_orphan_item() -> Cost {
    cost(1, REWRITTEN, 0)
}

/// The orphan item of a verity tree that is not made; the slot of an inode without a name is told of once more.
pub(crate) fn give_up_verity() -> Cost {
    cost(2, REWRITTEN, 0)
}

/// Blocks of a verity tree, of `bytes` together, in `runs` of keys. Items are of 1 KiB at least.
pub(crate) fn verity_blocks(runs: u64, bytes: u64) -> Cost {
    cost(runs * RUN, bytes + bytes / 1024 * 25, 0)
}

/// A verity descriptor of `len` bytes: its items are a run, and with the first the inode and its orphan
/// item, which goes or comes.
pub(crate) fn verity_descriptor(len: u64) -> Cost {
    cost(RUN + 3, INODE + len + (len / 2048 + 4) * 25 + 25, 0)
}

/// Up to `items` items of one inode go, which lie in a run: with it its inode item, its orphan
/// item, and an attribute that goes.
pub(crate) fn removal_of_items(items: u64) -> Cost {
    cost(RUN + 3, REWRITTEN, 2 * items)
}

/// Extents more that `sectors` of content become where they are compressed: one for each 128 KiB
/// (32 sectors of 4 KiB; larger sectors make fewer of them), and one for what is left over in each
/// batch, of which there are fewer.
pub(crate) fn compressed(sectors: u64) -> u64 {
    const SECTORS: u64 = (btrfs_disk::compress::MAX_UNCOMPRESSED / 4096) as u64;
    sectors.div_ceil(SECTORS) + sectors / (8 * SECTORS)
}

/// What `sectors` of content in `pieces` change when they land, in up to `extents` extents with
/// checksums of `sum` bytes for each sector. A piece becomes a run of extent items, one extent or
/// more where free space is in pieces, in place of another run; its inode is written. Each of
/// its sectors may take the place of an extent of its own, whose checksums lie anywhere: those
/// that come, and both ends of those that go.
pub(crate) fn content(sectors: u64, pieces: u64, extents: u64, sum: u64) -> Cost {
    let bytes = (extents + 3 * pieces) * UNWRITTEN + sectors * sum;
    Cost { trees: pieces, ..cost(pieces * (RUN + 1), bytes, extents + 2 * sectors) }
}
