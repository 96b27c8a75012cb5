//! What the delta has under one key of an object.

/// Kind and offset of an item of one object.
pub(super) type SubKey = (u8, u64);

/// Whether a key may exist in a lower layer (the sealed delta or the tree).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: a key may be below or it may not.
pub enum Base {
    /// The trees do not have the key: what is born and gone in this epoch leaves nothing.
    Absent,
    /// They may have it: its end must be said to the commit.
    Possible,
}

/// `value` is `None` for a deleted key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    pub value: Option<Box<[u8]>>,
    pub(super) base: Base,
    /// Counts as one of `ItemDelta::spread`.
    pub(super) spread: bool,
}
