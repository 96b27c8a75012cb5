//! The reference changes of one epoch: what was added and dropped, cancelling.
//!
//! Invariants: an owner stands once in its extent's list and never with 0; an extent
//! that is born and whose references cancelled stays known, because its space must be
//! given back. Contradictions between callers (one address, two lengths) come from
//! damaged trees: they are kept and reported by the drain, never a panic.
//!
//! What it does not know: what the extent tree says about an extent.

use super::owner::{ExtentKind, RefOwner};
use super::touched::{Touched, words};
use btrfs_disk::{Key, Logical, TreeId};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Changes of one extent.
#[derive(Clone, Debug)]
pub struct ExtentDelta {
    /// Bytes that it takes, as the first change said; a change that says otherwise means damage.
    pub len: u64,
    /// Content, or a tree block and its level, as the first change said.
    pub kind: ExtentKind,
    /// Allocated in this epoch: the extent tree does not have it yet.
    pub born: bool,
    /// The tree that it was allocated for, whoever has it now; of what is born alone.
    pub first_owner: TreeId,
    /// The node's pointers become shared references from now on.
    pub full_backref: bool,
    /// Of a node that is born, where that is asked for.
    pub(crate) first_key: Key,
    /// Callers disagree about length or kind.
    pub(crate) torn: bool,
    /// Sorted by owner.
    owners: Vec<(RefOwner, i64)>,
}

impl ExtentDelta {
    fn new(len: u64, kind: ExtentKind) -> ExtentDelta {
        ExtentDelta {
            len,
            kind,
            born: false,
            first_owner: TreeId(0),
            full_backref: false,
            first_key: Key::MIN,
            torn: false,
            owners: Vec::new(),
        }
    }

    /// By how many references each owner has more (or, negative, fewer), ascending by owner.
    pub fn owners(&self) -> &[(RefOwner, i64)] {
        &self.owners
    }

    /// Sum of all changes.
    pub fn net(&self) -> i64 {
        self.owners.iter().map(|(_, count)| count).sum()
    }

    /// Of a tree block that only trees come to or leave which are no subvolumes, one of them: such trees never share a
    /// block with a subvolume. So nobody needs to read the block to know that it is none's.
    pub(crate) fn elsewhere(&self) -> Option<TreeId> {
        let other = |owner: &RefOwner| match owner {
            RefOwner::Tree { root } => Some(*root).filter(|root| !root.is_subvolume()),
            _ => None,
        };
        let mut trees = self.owners.iter().map(|(owner, _)| other(owner));
        let first = trees.next()??;
        trees.all(|tree| tree.is_some()).then_some(first)
    }

    fn add(&mut self, owner: RefOwner, count: i64) {
        match self.owners.binary_search_by_key(&owner, |(owner, _)| *owner) {
            Ok(at) => {
                self.owners[at].1 += count;
                if self.owners[at].1 == 0 {
                    self.owners.remove(at);
                }
            }
            Err(at) if count != 0 => self.owners.insert(at, (owner, count)),
            Err(_) => {}
        }
    }

    fn is_nothing(&self) -> bool {
        self.owners.is_empty() && !self.born && !self.full_backref && !self.torn
    }
}

/// Extents by address, each with the changes of its references.
#[derive(Clone, Default, Debug)]
pub struct RefDeltas {
    extents: HashMap<u64, ExtentDelta, BuildHasherDefault<AddressHasher>>,
    /// What changes cancelled of, and what was said to be below a change; `None` while nobody
    /// asks.
    touched: Option<Touched>,
}

impl RefDeltas {
    /// No changes, and nothing touched is remembered.
    pub fn new() -> RefDeltas {
        RefDeltas::default()
    }

    /// Whether no extent has changes; what was touched does not count.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Extents with changes.
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// The changes of the extent at this address, if it has any.
    pub fn get(&self, extent: Logical) -> Option<&ExtentDelta> {
        self.extents.get(&extent.0)
    }

    /// The extent was allocated in this epoch, for the tree `owner`. Must be said once, before or
    /// after its first reference; only then may the drain create its item.
    pub fn born(&mut self, extent: Logical, len: u64, kind: ExtentKind, owner: TreeId) {
        let entry = self.entry(extent, len, kind);
        (entry.born, entry.first_owner) = (true, owner);
    }

    /// `owner` gains (or, negative, drops) `count` references to `extent`.
    pub fn add(
        &mut self,
        extent: Logical,
        len: u64,
        kind: ExtentKind,
        owner: RefOwner,
        count: i64,
    ) {
        debug_assert_eq!(owner.is_data(), kind == ExtentKind::Data, "owner fits the extent");
        let entry = self.entry(extent, len, kind);
        entry.add(owner, count);
        if entry.is_nothing() {
            self.extents.remove(&extent.0);
            self.touch(extent, len, kind);
        }
    }

    /// From now on extents whose changes cancel are remembered: one reference may have come in
    /// another's stead.
    pub fn remember_touched(&mut self) {
        self.touched.get_or_insert_default();
    }

    /// Nobody will ask for what was touched.
    pub(crate) fn forget_touched(&mut self) {
        self.touched = None;
    }

    /// Who reaches the extent may change, though none of its references does. Nothing, unless
    /// that is remembered.
    pub fn touch(&mut self, extent: Logical, len: u64, kind: ExtentKind) {
        if let Some(touched) = &mut self.touched {
            touched.insert((extent, len, kind));
        }
    }

    /// Words of eight bytes that one more touched takes until the commit ends.
    pub(crate) fn words(extent: Logical, len: u64, kind: ExtentKind) -> usize {
        words((extent, len, kind))
    }

    /// No more is touched: before [`RefDeltas::all_touched`].
    pub(crate) fn order_touched(&mut self) {
        self.touched.iter_mut().for_each(Touched::in_order);
    }

    /// Extents with changes, by ascending address.
    pub(crate) fn changed(&self) -> Vec<(Logical, u64, ExtentKind)> {
        self.changed_and([].into_iter())
    }

    fn changed_and(
        &self,
        more: impl Iterator<Item = (Logical, u64, ExtentKind)>,
    ) -> Vec<(Logical, u64, ExtentKind)> {
        let changed = self.extents.iter().map(|(at, delta)| (Logical(*at), delta.len, delta.kind));
        let mut all: Vec<_> = changed.chain(more).collect();
        all.sort_unstable_by_key(|(logical, ..)| *logical);
        all
    }

    /// Extents with changes and those that were touched, by ascending address.
    pub(crate) fn all_touched(&self) -> impl Iterator<Item = (Logical, u64, ExtentKind)> + '_ {
        let wide = self.touched.iter().flat_map(|touched| touched.wide());
        let mut few = self.changed_and(wide).into_iter().peekable();
        let mut many = self.touched.iter().flat_map(|touched| touched.packed()).peekable();
        let mut last = None;
        std::iter::from_fn(move || {
            loop {
                let next = match (few.peek(), many.peek()) {
                    (Some((one, ..)), Some((other, ..))) if other < one => many.next(),
                    (None, _) => many.next(),
                    _ => few.next(),
                }?;
                if last.replace(next.0) != Some(next.0) {
                    return Some(next);
                }
            }
        })
    }

    /// Marks the node's extent item: its pointers are full back-references now.
    pub fn set_full_backref(&mut self, node: Logical, len: u64, level: u8) {
        self.entry(node, len, ExtentKind::Node { level }).full_backref = true;
    }

    fn entry(&mut self, extent: Logical, len: u64, kind: ExtentKind) -> &mut ExtentDelta {
        let entry = self.extents.entry(extent.0).or_insert_with(|| ExtentDelta::new(len, kind));
        entry.torn |= entry.len != len || entry.kind != kind;
        entry
    }

    /// Tells those nodes that are born their first keys, as `key_of` knows them.
    pub(crate) fn set_first_keys(&mut self, key_of: impl Fn(Logical) -> Option<Key>) {
        for (at, delta) in self.extents.iter_mut().filter(|(_, delta)| delta.born) {
            if delta.kind != ExtentKind::Data {
                delta.first_key = key_of(Logical(*at)).unwrap_or(Key::MIN);
            }
        }
    }

    /// Takes over what `other` says.
    pub fn merge(&mut self, other: RefDeltas) {
        debug_assert!(other.touched.is_none(), "what was touched stays where it is");
        if self.extents.is_empty() {
            self.extents = other.extents;
            return;
        }
        for (address, theirs) in other.extents {
            let entry = self.entry(Logical(address), theirs.len, theirs.kind);
            if theirs.born {
                (entry.born, entry.first_owner) = (true, theirs.first_owner);
            }
            entry.full_backref |= theirs.full_backref;
            entry.torn |= theirs.torn;
            for (owner, count) in theirs.owners {
                entry.add(owner, count);
            }
            if entry.is_nothing() {
                self.extents.remove(&address);
            }
        }
    }

    /// All changes by ascending address; nothing is left behind.
    pub fn take_sorted(&mut self) -> Vec<(Logical, ExtentDelta)> {
        let mut all: Vec<_> = std::mem::take(&mut self.extents)
            .into_iter()
            .map(|(address, delta)| (Logical(address), delta))
            .collect();
        all.sort_unstable_by_key(|(logical, _)| *logical);
        all
    }
}

/// Mixes addresses (multiples of a power of two) well; they come from trees that the
/// gate has seen, so the cheap mix of splitmix64 is enough.
#[derive(Clone, Copy, Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mut z = (self.0 ^ value).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        self.0 = z ^ (z >> 31);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use btrfs_disk::TreeId;

    const A: RefOwner = RefOwner::Data { root: TreeId(5), ino: 257, offset: 0 };
    const B: RefOwner = RefOwner::Data { root: TreeId(5), ino: 258, offset: 4096 };

    #[test]
    fn what_cancels_is_forgotten_unless_it_was_born() {
        let mut deltas = RefDeltas::new();
        deltas.add(Logical(4096), 4096, ExtentKind::Data, A, 2);
        deltas.add(Logical(4096), 4096, ExtentKind::Data, A, -2);
        assert!(deltas.is_empty());
        deltas.born(Logical(8192), 4096, ExtentKind::Data, TreeId(5));
        deltas.add(Logical(8192), 4096, ExtentKind::Data, A, 1);
        deltas.add(Logical(8192), 4096, ExtentKind::Data, A, -1);
        let delta = deltas.get(Logical(8192)).unwrap();
        assert!(delta.born && delta.owners().is_empty());
    }

    #[test]
    fn a_block_of_other_trees_alone_is_no_subvolumes() {
        let node = ExtentKind::Node { level: 0 };
        let of = |root| RefOwner::Tree { root };
        let all = |owners: &[RefOwner]| {
            let mut deltas = RefDeltas::new();
            owners.iter().for_each(|owner| deltas.add(Logical(0), 4096, node, *owner, -1));
            deltas.get(Logical(0)).and_then(ExtentDelta::elsewhere)
        };
        assert_eq!(all(&[of(TreeId::UUID)]), Some(TreeId::UUID));
        assert!(all(&[of(TreeId::QUOTA), of(TreeId::UUID)]).is_some());
        let shared = RefOwner::SharedTree { parent: Logical(8192) };
        for other in [of(TreeId::FS), of(TreeId(256)), shared] {
            assert_eq!(all(&[other]), None);
            assert_eq!(all(&[of(TreeId::UUID), other]), None);
        }
    }

    #[test]
    fn merge_adds_up() {
        let (mut one, mut two) = (RefDeltas::new(), RefDeltas::new());
        one.add(Logical(0), 4096, ExtentKind::Data, A, 1);
        one.add(Logical(0), 4096, ExtentKind::Data, B, 1);
        two.add(Logical(0), 4096, ExtentKind::Data, A, -1);
        two.add(Logical(4096), 4096, ExtentKind::Data, B, -1);
        one.merge(two);
        assert_eq!(one.len(), 2);
        assert_eq!(one.get(Logical(0)).unwrap().owners(), [(B, 1)]);
        assert_eq!(one.get(Logical(4096)).unwrap().net(), -1);
    }
}
