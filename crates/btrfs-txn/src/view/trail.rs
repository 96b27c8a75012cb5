//! What one look has passed over: where that was much, the delta remembers that nothing is there.
//!
//! Invariant: what is remembered is of the items of files and directories alone, which come by operations. Keys of other
//! trees come with a commit, too, of which no delta says anything before.
//!
//! What it does not know: which way somebody looks.

use super::View;
use crate::delta::ItemDelta;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};

/// Keys that are passed over before somebody leaves word of further ones: what takes less time is not worth
/// the memory.
/// Chosen, not measured.
const FAR: u32 = 8;
/// And so many further ones are one piece: an item that comes meanwhile takes no more away.
/// Chosen, not measured.
const PIECE: u32 = 1024;

pub(super) struct Trail<'v> {
    view: &'v View<'v>,
    tree: TreeId,
    passed: u32,
    look: Option<Look<'v>>,
}

/// Nothing is under the keys between both ends.
struct Look<'v> {
    delta: &'v ItemDelta,
    number: u64,
    begin: Key,
    reached: Option<Key>,
}

impl<'v> Trail<'v> {
    pub(super) fn new(view: &'v View<'v>, tree: TreeId) -> Trail<'v> {
        Trail { view, tree, passed: 0, look: None }
    }

    /// `key` was deleted, and it goes on at `next`.
    pub(super) fn pass(&mut self, key: &Key, next: Option<Key>) {
        passed();
        self.passed += 1;
        if let Some(look) = self.look.as_mut().filter(|look| look.begin.kind == key.kind) {
            look.reached = Some(*key);
        }
        if self.passed.is_multiple_of(PIECE) {
            self.leave_word();
        }
        if self.look.is_none() && self.passed >= FAR {
            self.look = next.and_then(|next| self.begin(next));
        }
    }

    /// What is known to be bare was passed over.
    pub(super) fn jump(&self) {
        passed();
    }

    /// Something is there.
    pub(super) fn end(&mut self) {
        self.leave_word();
        self.passed = 0;
    }

    fn begin(&self, begin: Key) -> Option<Look<'v>> {
        if !self.tree.holds_files() || !matches!(begin.kind, kind::EXTENT_DATA | kind::DIR_INDEX) {
            return None;
        }
        let layers = &self.view.layers;
        let of = |delta: &'v ItemDelta| {
            let number = delta.look(self.tree, begin.objectid)?;
            Some(Look { delta, number, begin, reached: None })
        };
        of(&layers.current.items).or_else(|| of(&layers.sealed.as_deref()?.items))
    }

    fn leave_word(&mut self) {
        let Some(Look { delta, number, begin, reached: Some(reached) }) = self.look.take() else {
            return;
        };
        // What the current one deletes is no business of the sealed one.
        let current = &self.view.layers.current.items;
        if std::ptr::eq(delta, current) || !current.knows(self.tree, begin.objectid) {
            let (first, last) = (begin.min(reached), begin.max(reached));
            delta.remember_bare(self.tree, number, &first, &last);
        }
    }
}

/// A deleted key was on the way, or several that are known.
fn passed() {
    #[cfg(feature = "fault-injection")]
    PASSED.with(|passed| passed.set(passed.get() + 1));
}

#[cfg(feature = "fault-injection")]
thread_local! {
    static PASSED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// How many deleted keys were on the way of this thread since it asked last.
#[cfg(feature = "fault-injection")]
pub fn passed_over() -> u64 {
    PASSED.with(|passed| passed.replace(0))
}
