//! What an index holds: a value, and one word that says who refers to it.
//!
//! Invariants of the word:
//! * references: one for each [`Ref`] and one for the index, as long as readers may find it
//!   there. Whoever takes the last one off frees it;
//! * claims: what callers outside hold by number alone;
//! * GONE is set once and then for good, behind that nobody gets at it through the index. It is set
//!   together with a look at all the others (`seal`), or by who takes it away from all.
//!
//! [unsafe] for references that are counted by hand.

use super::memory;
use super::sync::{AtomicU64, Ordering};
use std::alloc::Layout;
use std::ops::Deref;
use std::ptr::NonNull;

/// Set when the index does not have it any more.
const GONE: u64 = 1 << 63;
/// Set when an index has or had it: there is no second.
const INDEXED: u64 = 1 << 62;
const CLAIM: u64 = 1 << 23;
const REFS: u64 = CLAIM - 1;
/// Claims on one number that can be counted.
pub const MAX_CLAIMS: u64 = (INDEXED >> 23) - 1;

pub(crate) struct Entry<T> {
    word: AtomicU64,
    pub(crate) value: T,
}

fn claims_in(word: u64) -> u64 {
    (word & (INDEXED - 1)) >> 23
}

fn is_idle(word: u64, refs: u64, claims: u64) -> bool {
    word & REFS == refs && word & GONE == 0 && claims_in(word) <= claims
}

impl<T> Entry<T> {
    pub(crate) fn new(value: T, claims: u64) -> Entry<T> {
        // Of who makes it.
        Entry { word: AtomicU64::new(1 + claims * CLAIM), value }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.word.load(Ordering::Acquire) & GONE != 0
    }

    /// The claims that were left on it when it went.
    pub(crate) fn claims(&self) -> u64 {
        claims_in(self.word.load(Ordering::Acquire))
    }

    /// An index takes its reference, and `claims` besides.
    pub(crate) fn enter_index(&self, claims: u64) {
        let before = self.word.fetch_or(INDEXED, Ordering::Relaxed);
        assert!(before & INDEXED == 0, "what an index has is in no second place");
        self.word.fetch_add(1 + claims * CLAIM, Ordering::Relaxed);
    }

    /// `enter_index` was in vain.
    pub(crate) fn leave_index(&self, claims: u64) {
        self.word.fetch_sub(1 + claims * CLAIM, Ordering::Relaxed);
        self.word.fetch_and(!INDEXED, Ordering::Release);
    }

    /// One reference more, and `claims`; false if it is gone.
    pub(crate) fn take(&self, claims: u64) -> bool {
        let more = |word: u64| {
            assert!(word & REFS < REFS / 2, "references have leaked");
            let most = MAX_CLAIMS - claims_in(word);
            (word & GONE == 0).then(|| word + 1 + claims.min(most) * CLAIM)
        };
        self.word.fetch_update(Ordering::Acquire, Ordering::Acquire, more).is_ok()
    }

    /// Gives `count` claims back; the claims that are left.
    fn give_back(&self, count: u64) -> u64 {
        let fewer = |word: u64| {
            debug_assert!(claims_in(word) >= count, "more given back than were claimed");
            Some(word - count.min(claims_in(word)) * CLAIM)
        };
        let before = self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer);
        claims_in(before.unwrap_or_else(|word| word)).saturating_sub(count)
    }

    /// Whether only the index has it, with at most `claims` claims.
    pub(crate) fn is_idle(&self, claims: u64) -> bool {
        is_idle(self.word.load(Ordering::Relaxed), 1, claims)
    }

    /// Sets GONE if there are `refs` references, the index's and the caller's if he has one, and
    /// at most `claims` claims.
    pub(crate) fn seal(&self, refs: u64, claims: u64) -> bool {
        let gone = |word: u64| is_idle(word, refs, claims).then_some(word | GONE);
        self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, gone).is_ok()
    }

    /// Sets GONE whoever has it, and gives `count` claims back; false if it was set.
    pub(crate) fn seal_at_once(&self, count: u64) -> bool {
        let fewer = |word: u64| word - count.min(claims_in(word)) * CLAIM;
        let gone = |word: u64| (word & GONE == 0).then(|| fewer(word) | GONE);
        self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, gone).is_ok()
    }
}

/// Gives the index's reference back.
///
/// # Safety
/// `entry` is one of `Entry<T>` by `Ref::into_raw` or the like, of which the caller has a
/// reference that it does not use behind this.
pub(crate) unsafe fn release<T>(entry: *mut ()) {
    // SAFETY: the caller's reference becomes this one's.
    drop(unsafe { Ref::<T>::from_raw(NonNull::new_unchecked(entry.cast())) });
}

/// A counted reference to what an index holds or held.
pub struct Ref<T>(NonNull<Entry<T>>);

// SAFETY: as `Arc`: it gives out `&T` on any thread, and the last one drops `T` on its own.
unsafe impl<T: Send + Sync> Send for Ref<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Ref<T> {}

impl<T> Ref<T> {
    /// A value that no index has; `None` if the allocator refuses the memory.
    pub fn try_new(value: T) -> Option<Ref<T>> {
        Some(Ref::of(memory::try_box(Entry::new(value, 0))?))
    }

    /// The memory that a value takes with its counts.
    pub const fn layout() -> Layout {
        Layout::new::<Entry<T>>()
    }

    /// The reference of who made `entry`.
    pub(crate) fn of(entry: Box<Entry<T>>) -> Ref<T> {
        Ref(NonNull::from(Box::leak(entry)))
    }

    /// # Safety
    /// The entry has a reference counted that becomes this one.
    pub(crate) unsafe fn from_raw(entry: NonNull<Entry<T>>) -> Ref<T> {
        Ref(entry)
    }

    pub(crate) fn as_ptr(&self) -> *mut Entry<T> {
        self.0.as_ptr()
    }

    pub(crate) fn entry(&self) -> &Entry<T> {
        // SAFETY: it lives as long as it has references, of which this is one.
        unsafe { self.0.as_ref() }
    }

    /// Claims on it from outside.
    pub fn claims(this: &Ref<T>) -> u64 {
        this.entry().claims()
    }

    /// Gives `count` claims back; true if those were the last.
    pub fn give_back(this: &Ref<T>, count: u64) -> bool {
        this.entry().give_back(count) == 0
    }

    /// Whether both are of one value.
    pub fn ptr_eq(a: &Ref<T>, b: &Ref<T>) -> bool {
        a.0 == b.0
    }
}

impl<T> Deref for Ref<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.entry().value
    }
}

impl<T> Clone for Ref<T> {
    fn clone(&self) -> Ref<T> {
        let before = self.entry().word.fetch_add(1, Ordering::Relaxed);
        assert!(before & REFS < REFS / 2, "references have leaked");
        Ref(self.0)
    }
}

impl<T> Drop for Ref<T> {
    fn drop(&mut self) {
        if self.entry().word.fetch_sub(1, Ordering::AcqRel) & REFS == 1 {
            // SAFETY: the last reference: the index has none, so no reader finds it, and those
            // that were about to have looked away before the index's was given back.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Ref<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}
