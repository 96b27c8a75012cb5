//! How many nodes a commit can need: an upper bound from a handful of counters.
//!
//! A commit writes new nodes in four ways. Each has its bound here, and each bound its reason.
//! Node counts are of one size; `room` is what a node holds of items.
//!
//! **1. Nodes that change** ([`rewritten`]). A key that changes lies in one leaf. A leaf's old
//! items (at most `room` bytes) and `b` bytes more make at most `1 + 2 * ceil(b / room)` nodes:
//! two neighbours that a cut makes hold more than `room` bytes together, or they would be one. So
//! `p` places make at most `3p` leaves, beside `2/room` of the bytes ([`grown`]). Joining only
//! makes nodes fewer. A node that overflows may take one neighbour in, if both make no more nodes
//! than it would by itself: the neighbour's new node stands for the new one, and its old one is
//! free with the commit, like the node's own. So a place takes as many. An interior node over
//! them is cut into `1 + ceil(a / fanout)` for `a` new pointers, and there are at most `p` of them
//! on each level: `2p` for each level, and what the bytes' leaves make beyond `fanout` pointers
//! is in [`grown`]. The highest level has one node in each tree, whatever changes below it: that
//! is cut in two, and gets one above it. No node is rewritten twice, so all of it is at most
//! three times what the trees have, however large `p`.
//!
//! **2. Checksums.** The checksums of one data extent are one run of keys: taking it away
//! changes two leaves (what lies between vanishes), putting it there one. Their bytes are growth.
//!
//! **3. Records of nodes and extents.** What is new takes a record in the extent tree, and
//! splits free ranges: bytes, which are growth. Where snapshots share nodes, a copied node gives
//! each of its children a new referrer. That is a record of [`REFERENCE`] bytes at most for each
//! pointer, which takes [`POINTER`] bytes of the node, and one of [`DATA_REFERENCE`] for each file
//! extent, which takes [`FILE_EXTENT`] of a leaf (where the record lies in the extent's own item it
//! is shorter; those that are there stay where they are). In one tree a node has one pointer to it, so
//! those of all interior nodes are no more than the trees have nodes.
//! What is copied are the old nodes alone, not those that cuts make beside them, and no node
//! twice ([`referrers`]). One that overflows copies a neighbour, too; one that shrinks may
//! join several, but they and it are one node then, and what a child gained that went at once
//! leaves no record. So it is two nodes' room for each place on each level, and on the
//! highest the root alone: where the root goes because one child is left, the child's copy is the
//! root, and nothing is left on the way to what went.
//!
//! **4. The trees that keep account of space, rewritten.** Each record lies in some leaf of them,
//! and each such leaf that is rewritten moves itself, which changes other records. In the worst
//! layout this goes on until all of them have moved and each was split: [`accounts`]. That much
//! is kept free for commits at all times, whatever operations are promised, and no operation
//! promises it again.
//!
//! **5. Leaves of the extent tree that lie apart** ([`apart`]). Where room may run short it is known which
//! leaves hold nothing but references of files that share no nodes ([`super::reach`]): neither what
//! moves nodes nor a copied leaf moves these, so they are not in (4) then. One is rewritten because a
//! key in it changes, and is cut in two at most, since records are short: the keys are counted. From
//! when a snapshot is announced a copied leaf may reach them, which gives each extent in it a referrer: as
//! in (3) that is two old leaves for each place, with as many file extents as have room.
//!
//! It knows numbers alone: neither what is free nor who asks.

use super::records::{DATA_REFERENCE, FILE_EXTENT, HEADER, NODE_RECORD, POINTER};

/// Leaves that new inodes of several threads may share out among themselves, where the last
/// epoch's numbers end.
const ENDS: u64 = 4;
/// Bytes of an item that says who refers to a node.
const REFERENCE: u64 = HEADER;
/// Bytes of the records of a new data extent, with a referrer of its own.
const EXTENT_RECORD: u64 = NODE_RECORD + DATA_REFERENCE;
/// That may each have got a level more.
const TREES_OF_EVERY_COMMIT: u64 = 8;

/// What the trees have now, as of the last commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trees {
    pub node_size: u64,
    /// Bytes of a leaf that items can have.
    pub room: u64,
    /// Nodes of all trees.
    pub all: u64,
    /// Nodes of the checksum tree.
    pub sums: u64,
    /// How many trees files are in.
    pub subvolumes: u64,
    /// Interior levels of the highest tree that files are in, and of the checksum tree's.
    pub height: u64,
    /// Nodes of the trees that keep account of space, less `inner`.
    pub accounts: u64,
    /// Leaves of the extent tree that only references of files reach ([`super::reach`]), and, where
    /// a snapshot is `coming`, copies of leaves.
    pub inner: u64,
    pub coming: bool,
    /// Nodes on the paths to what every commit changes: counted with [`accounts`] alone.
    pub paths: u64,
    /// Bytes of the bitmaps that all free space may become.
    pub bitmaps: u64,
    /// Snapshots share nodes.
    pub shared: bool,
}

impl Trees {
    /// What they may be behind a commit that adds up to `bytes` of nodes.
    pub(super) fn larger_by(self, bytes: u64) -> Trees {
        let (more, levels) = (bytes / self.node_size, u64::from(bytes > 0));
        let (all, sums) = (self.all + more, self.sums + more);
        let inner = if self.inner > 0 { self.inner + more } else { 0 };
        Trees { all, sums, inner, height: self.height + levels, ..self }
    }
}

/// What changes: of one operation, of many, of a delta.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Cost {
    /// Keys in file trees that lie apart.
    pub places: u64,
    /// Trees that these lie in, at most.
    pub trees: u64,
    /// Trees in which inodes are born, at most.
    pub births: u64,
    /// Bytes that items take anew, in all trees, with their headers.
    pub bytes: u64,
    /// Places in the checksum tree: one for each data extent that comes, two for each that goes.
    pub sums: u64,
    /// Keys of the extent tree that references of files change: an extent's, and a referrer's.
    pub records: u64,
}

impl Cost {
    /// Whether what is reserved for `other` is enough for it.
    pub(crate) fn is_within(&self, other: &Cost) -> bool {
        self.parts().iter().zip(other.parts()).all(|(one, most)| *one <= most)
    }

    /// As numbers, in the order of [`Cost::of_parts`].
    pub(super) fn parts(&self) -> [u64; 6] {
        let Cost { places, trees, births, bytes, sums, records } = *self;
        [places, trees, births, bytes, sums, records]
    }

    pub(super) fn of_parts([places, trees, births, bytes, sums, records]: [u64; 6]) -> Cost {
        Cost { places, trees, births, bytes, sums, records }
    }
}

impl std::ops::Add for Cost {
    type Output = Cost;
    fn add(self, other: Cost) -> Cost {
        Cost {
            places: self.places + other.places,
            trees: self.trees + other.trees,
            births: self.births + other.births,
            bytes: self.bytes + other.bytes,
            sums: self.sums + other.sums,
            records: self.records + other.records,
        }
    }
}

/// Bytes of new nodes that the commit of `cost` needs at most, beside [`accounts`].
pub(crate) fn bound(trees: &Trees, cost: &Cost) -> u64 {
    if *cost == Cost::default() {
        return 0;
    }
    let places = cost.places + if cost.births > 0 { ENDS } else { 0 };
    let tops = cost.trees.min(trees.subvolumes);
    let files = rewritten(places, tops, trees.height, trees.all);
    let sums = rewritten(cost.sums, 1, trees.height, trees.sums);
    let referrers = match trees.shared {
        true => referrers(trees, places, tops),
        false => 0,
    };
    // Wherever they lie, the leaf there may be rewritten anyway ([`accounts`]).
    let records = grown(trees, referrers);
    let nodes =
        files + sums + records + grown(trees, cost.bytes) + apart(trees, cost.records, places);
    (nodes + grown(trees, nodes * NODE_RECORD)) * trees.node_size
}

/// Nodes that leaves become which not every commit may rewrite: those that `records` changed keys lie in.
fn apart(trees: &Trees, records: u64, places: u64) -> u64 {
    let copied = match trees.coming {
        true => 2 * places.min(trees.all) * (trees.room / FILE_EXTENT),
        false => 0,
    };
    2 * (records + copied).min(trees.inner)
}

/// Bytes of new nodes that any commit may need for the trees that keep account of space: each
/// of their nodes moves and is split, free space turns into its other form, and the records of
/// all that.
pub(crate) fn accounts(trees: &Trees) -> u64 {
    let nodes = 2 * trees.accounts + grown(trees, trees.bitmaps);
    (nodes + grown(trees, nodes * NODE_RECORD) + trees.paths) * trees.node_size
}

/// The same of the commit after one of `cost`, which may write `bytes` of new nodes: each new node
/// and data extent has a record in these trees then, and one of their levels more.
pub(super) fn accounts_after(trees: &Trees, cost: &Cost, bytes: u64) -> u64 {
    let nodes = (bytes + accounts(trees)) / trees.node_size;
    let records = nodes * NODE_RECORD + cost.sums * EXTENT_RECORD;
    let more = grown(trees, records);
    // Of few leaves many may be cut; where they are all, no more than that were there is told.
    let cut = nodes.min(trees.accounts).min(trees.inner);
    accounts(&Trees {
        accounts: trees.accounts + more + cut,
        paths: trees.paths + TREES_OF_EVERY_COMMIT,
        ..*trees
    })
}

/// Nodes that `places` changed keys make in `tops` trees which have `nodes` nodes together, less
/// growth: leaves, interior nodes, and roots.
fn rewritten(places: u64, tops: u64, height: u64, nodes: u64) -> u64 {
    let below = 3 + 2 * height.saturating_sub(1);
    let roots = 3 * tops.min(places);
    places.saturating_mul(below).saturating_add(roots).min(3 * nodes)
}

/// Bytes of records of what is in the old nodes that `places` changed keys in `tops` trees copy.
fn referrers(trees: &Trees, places: u64, tops: u64) -> u64 {
    let part = |nodes: u64, record: u64, item: u64| (nodes * trees.room * record).div_ceil(item);
    // More than there are nodes copy no more than all of them.
    let places = places.min(trees.all);
    let leaves = 2 * places;
    let above = leaves * trees.height.saturating_sub(1) + tops.min(places);
    // The same for all places, or parts would need less than the whole.
    let pointers = trees.subvolumes.max(1) * trees.all * REFERENCE;
    let above = part(above, REFERENCE, POINTER).min(pointers);
    let each = part(leaves, DATA_REFERENCE, FILE_EXTENT) + above;
    each.min(part(trees.all, REFERENCE, POINTER))
}

/// Nodes that `bytes` of new items make, wherever they come, and what is above so many leaves
/// (by half as much again as full nodes would hold of pointers).
fn grown(trees: &Trees, bytes: u64) -> u64 {
    let leaves = 2 * bytes.div_ceil(trees.room);
    // Rounded up, or two parts would need less than the whole.
    leaves + leaves.saturating_mul(3 * POINTER).div_ceil(trees.room)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::reserve) const TREES: Trees = Trees {
        node_size: 4096,
        room: 3995,
        all: 1000,
        sums: 50,
        subvolumes: 1,
        height: 2,
        accounts: 100,
        inner: 0,
        coming: false,
        paths: 16,
        bitmaps: 2048,
        shared: false,
    };

    #[test]
    fn a_small_step_needs_little_of_what_a_large_volume_has() {
        let large = Trees { all: 1 << 20, accounts: 1 << 16, ..TREES };
        let step = Cost { places: 16, trees: 3, ..Cost::default() };
        assert_eq!(bound(&large, &step), bound(&TREES, &step));
        assert!(bound(&TREES, &step) <= 200 * 4096);
        assert_eq!(bound(&TREES, &Cost::default()), 0, "nothing to commit");
    }

    #[test]
    fn many_places_need_no_more_than_the_trees_have_three_times() {
        let cost = Cost { places: 1 << 30, sums: 1 << 30, ..Cost::default() };
        let most = (3 * (1000 + 50)) * 4096;
        // And the records of so many nodes.
        let most = most + most / 15;
        assert!(bound(&TREES, &cost) <= most);
        let shared = Trees { shared: true, ..TREES };
        assert!(bound(&shared, &cost) <= 3 * most);
    }

    /// Interior nodes that are copied refer to each node once in each tree.
    #[test]
    fn few_nodes_have_few_pointers_to_them() {
        let shared = |all| Trees { all, height: 3, shared: true, ..TREES };
        let step = Cost { places: 16, trees: 3, ..Cost::default() };
        let pointers = |all| referrers(&shared(all), step.places, 1);
        let leaves = 32 * (shared(0).room * DATA_REFERENCE).div_ceil(FILE_EXTENT);
        assert!(pointers(200) <= leaves + 200 * REFERENCE + 32, "{}", pointers(200));
        assert_eq!(pointers(1 << 20), pointers(1 << 21), "no more than so many places copy");
        assert!(bound(&shared(200), &step) < bound(&shared(1 << 20), &step));
    }

    /// What is reserved apart is committed together.
    #[test]
    fn parts_never_need_less_than_the_whole() {
        let part = |n: u64| Cost {
            places: n,
            trees: n,
            bytes: n * 1000,
            sums: n,
            births: n % 2,
            records: 3 * n,
        };
        let large = Trees { all: 1 << 20, sums: 1 << 20, shared: true, ..TREES };
        for trees in [
            TREES,
            large,
            Trees { inner: 500, ..large },
            Trees { inner: 500, coming: true, ..large },
        ] {
            for (a, b) in (0..300).flat_map(|a| (0..300).map(move |b| (a, b))) {
                let parts = bound(&trees, &part(a)) + bound(&trees, &part(b));
                assert!(parts >= bound(&trees, &(part(a) + part(b))), "{a} and {b}");
            }
        }
    }

    #[test]
    fn more_of_anything_never_needs_less() {
        let base = Cost { places: 5, bytes: 9000, sums: 3, ..Cost::default() };
        for more in
            [Cost { places: 6, ..base }, Cost { bytes: 20_000, ..base }, Cost { sums: 4, ..base }]
        {
            assert!(bound(&TREES, &more) > bound(&TREES, &base), "{more:?}");
        }
        assert!(accounts(&Trees { accounts: 101, ..TREES }) > accounts(&TREES));
        assert!(accounts_after(&TREES, &base, 0) > accounts(&TREES));
        assert!(accounts_after(&TREES, &base, 1 << 22) > accounts_after(&TREES, &base, 0));
    }
}
