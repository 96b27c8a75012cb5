//! The index: what stands in the slots, and how it changes.
//!
//! A slot is empty, reserved, has an entry, or has claims without one: those that were left on an entry when it
//! was evicted, and those of who wants no more than that. All changes are exchanges of one word.
//!
//! Invariants:
//! * a slot that is not empty is counted in its leaf, by who filled it; who empties it takes
//!   that off;
//! * an entry that is gone ([`super::entry`]) is nothing that a lookup finds; the first who meets
//!   it puts what is left of it in its place, and who sealed it gives the index's reference up
//!   behind that;
//! * a number has one entry: another is put in its place when it is gone, and has its claims.
//!
//! [unsafe] Entries are reached by addresses that a pin keeps valid.

use super::entry::{Entry, MAX_CLAIMS, Ref, release};
use super::epochs::{Epochs, Pin};
use super::memory;
pub use super::node::NoMemory;
use super::node::{Node, Slot, Tree};
use super::sync::Ordering;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::Arc;

// Claims that are left stand in a slot.
const _: () = assert!(usize::BITS == 64, "a slot has 64 bits");

/// No address: entries are aligned to more than 2.
const RESERVED: usize = 2;

enum Found<'p, T> {
    Nothing,
    Reserved,
    Left(u64),
    Entry(&'p Entry<T>),
}

fn left(claims: u64) -> *mut () {
    without_provenance_mut((claims as usize) << 1 | 1)
}

/// Why an insert did not happen.
#[derive(Debug)]
// Exhaustive: each is another answer to whoever looks an inode up; one passed over would make two
// of it.
pub enum Refused<T> {
    /// The allocator refused.
    NoMemory,
    /// Somebody else's is there.
    Taken(Ref<T>),
    /// Somebody will fill it, or not.
    Reserved,
}

/// Why a number could not be reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: each is another answer to whoever wants a number.
pub enum Reserve {
    /// The allocator refused.
    NoMemory,
    /// Somebody else's is there, will be, or was and is still claimed.
    InUse,
}

/// What `Index::evict_idle` saw.
#[derive(Clone, Copy, Default, Debug)]
pub struct Evicted {
    /// Entries that went.
    pub gone: usize,
    /// Entries that have no claims and stayed.
    pub unclaimed: usize,
    /// The number to go on at, if there are more.
    pub next: Option<u64>,
}

/// Entries by number.
pub struct Index<T: Send + Sync + 'static> {
    tree: Tree,
    epochs: Arc<Epochs>,
    holds: PhantomData<Ref<T>>,
}

// SAFETY: what it holds are references that any thread may take and drop, as `Ref` is.
unsafe impl<T: Send + Sync> Send for Index<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Index<T> {}

impl<T: Send + Sync + 'static> Index<T> {
    /// An empty one, whose callers pin `epochs`.
    pub fn new(epochs: Arc<Epochs>) -> Index<T> {
        Index { tree: Tree::new(), epochs, holds: PhantomData }
    }

    fn held<'p>(&self, _: &'p Pin<'_>, at: *mut ()) -> Found<'p, T> {
        match at.addr() {
            0 => Found::Nothing,
            RESERVED => Found::Reserved,
            word if word & 1 == 1 => Found::Left(word as u64 >> 1),
            // SAFETY: an entry's address, whose reference of the index is given up behind its
            // unlinking; the caller was pinned before it loaded the slot.
            _ => Found::Entry(unsafe { &*at.cast::<Entry<T>>() }),
        }
    }

    fn guarded(&self, pin: &Pin<'_>) {
        assert!(pin.is_of(&self.epochs), "a pin of other epochs protects nothing here");
    }

    /// What has this number, with `claims` more on it.
    pub fn find(&self, pin: &Pin<'_>, number: u64, claims: u64) -> Option<Ref<T>> {
        self.guarded(pin);
        let slot = self.tree.leaf(pin, number)?.slot(number);
        match self.held(pin, slot.load(Ordering::SeqCst)) {
            Found::Entry(entry) if entry.take(claims) => Some(counted(entry)),
            _ => None,
        }
    }

    /// Puts `new` there, which no index had, with `claims` besides those that stand there without an entry.
    pub fn insert(
        &self,
        pin: &Pin<'_>,
        number: u64,
        new: &Ref<T>,
        claims: u64,
    ) -> Result<(), Refused<T>> {
        self.put(pin, number, claims, |slot, at, claims| {
            new.entry().enter_index(claims);
            let done = exchange(slot, at, new.as_ptr().cast());
            match done {
                true => self.epochs.count(1),
                false => new.entry().leave_index(claims),
            }
            done
        })
    }

    /// `claims` more, at least one, on a number that has no entry, where they stand as what an evicted one left.
    pub fn claim(&self, pin: &Pin<'_>, number: u64, claims: u64) -> Result<(), Refused<T>> {
        debug_assert!(claims > 0, "a slot that is in use says for what");
        self.put(pin, number, claims, |slot, at, claims| exchange(slot, at, left(claims)))
    }

    /// Changes a slot without an entry by `put`, which is given what stands there and how many claims stand there
    /// behind it, and answers whether it did.
    fn put(
        &self,
        pin: &Pin<'_>,
        number: u64,
        claims: u64,
        put: impl Fn(&Slot, *mut (), u64) -> bool,
    ) -> Result<(), Refused<T>> {
        self.guarded(pin);
        let Ok(leaf) = self.tree.enter(pin, number) else { return Err(Refused::NoMemory) };
        let slot = leaf.slot(number);
        let result = loop {
            let at = slot.load(Ordering::SeqCst);
            let claims = match self.held(pin, at) {
                Found::Nothing => claims,
                Found::Left(before) => (before + claims).min(MAX_CLAIMS),
                Found::Reserved => break Err(Refused::Reserved),
                Found::Entry(entry) if entry.take(claims) => {
                    break Err(Refused::Taken(counted(entry)));
                }
                Found::Entry(entry) => {
                    self.put_left(pin, number, slot, entry);
                    continue;
                }
            };
            if put(slot, at, claims) {
                if at.is_null() {
                    return Ok(());
                }
                // What stood there had counted itself.
                break Ok(());
            }
        };
        self.tree.leave(pin, number);
        result
    }

    /// The first of two phases of an insert: all that can fail.
    pub fn reserve(&self, number: u64) -> Result<Reservation<'_, T>, Reserve> {
        let memory = memory::try_uninit().ok_or(Reserve::NoMemory)?;
        let pin = self.epochs.pin();
        let leaf = self.tree.enter(&pin, number).map_err(|_| Reserve::NoMemory)?;
        let leaf_slot = leaf.slot(number);
        loop {
            let at = leaf_slot.load(Ordering::SeqCst);
            match self.held(&pin, at) {
                Found::Nothing => {}
                Found::Entry(entry) if entry.is_gone() => {
                    self.put_left(&pin, number, leaf_slot, entry);
                    continue;
                }
                _ => {
                    self.tree.leave(&pin, number);
                    return Err(Reserve::InUse);
                }
            }
            if exchange(leaf_slot, at, without_provenance_mut(RESERVED)) {
                let leaf = NonNull::from(leaf);
                return Ok(Reservation { index: self, number, leaf, memory: Some(memory) });
            }
        }
    }

    /// Gives `count` claims back; the entry, if those were the last and it is there.
    pub fn give_back(&self, pin: &Pin<'_>, number: u64, count: u64) -> Option<Ref<T>> {
        self.guarded(pin);
        loop {
            let slot = self.tree.leaf(pin, number)?.slot(number);
            let at = slot.load(Ordering::SeqCst);
            match self.held(pin, at) {
                Found::Nothing | Found::Reserved => return None,
                Found::Left(before) => {
                    debug_assert!(before >= count, "more given back than were claimed");
                    if self.replace_left(pin, number, slot, at, before.saturating_sub(count)) {
                        return None;
                    }
                }
                Found::Entry(entry) if entry.take(0) => {
                    let found = counted(entry);
                    return Ref::give_back(&found, count).then_some(found);
                }
                Found::Entry(entry) => self.put_left(pin, number, slot, entry),
            }
        }
    }

    /// The claims on this number by now, with an entry or without.
    pub fn claims(&self, pin: &Pin<'_>, number: u64) -> u64 {
        self.guarded(pin);
        let Some(leaf) = self.tree.leaf(pin, number) else { return 0 };
        match self.held(pin, leaf.slot(number).load(Ordering::SeqCst)) {
            Found::Nothing | Found::Reserved => 0,
            Found::Left(claims) => claims,
            Found::Entry(entry) => entry.claims(),
        }
    }

    /// Takes `entry` out if nobody else refers to it. With `keep_claims` its claims stay in its
    /// slot; without, one that has any stays.
    pub fn evict(&self, pin: &Pin<'_>, number: u64, entry: &Ref<T>, keep_claims: bool) -> bool {
        let most = if keep_claims { MAX_CLAIMS } else { 0 };
        self.take_out(pin, number, entry, |entry| entry.seal(2, most))
    }

    /// Takes `entry` out whoever refers to it, and gives `count` claims back; others stay.
    pub fn remove(&self, pin: &Pin<'_>, number: u64, entry: &Ref<T>, count: u64) -> bool {
        self.take_out(pin, number, entry, |entry| entry.seal_at_once(count))
    }

    fn take_out(
        &self,
        pin: &Pin<'_>,
        number: u64,
        entry: &Ref<T>,
        seal: impl FnOnce(&Entry<T>) -> bool,
    ) -> bool {
        self.guarded(pin);
        let Some(leaf) = self.tree.leaf(pin, number) else { return false };
        let slot = leaf.slot(number);
        if slot.load(Ordering::SeqCst) != entry.as_ptr().cast() || !seal(entry.entry()) {
            return false;
        }
        self.unlink(pin, number, slot, entry.entry());
        true
    }

    /// Takes out, from the number `from` on, what nobody refers to and may go; looks at `most`
    /// entries. `leaves` is given what takes one out, and calls that where it may, behind whatever keeps others
    /// from making it such as may not: who comes and goes in between leaves no trace in the counts.
    pub fn evict_idle(
        &self,
        from: u64,
        most: usize,
        keep_claims: bool,
        mut leaves: impl FnMut(&T, &dyn Fn() -> bool) -> bool,
    ) -> Evicted {
        let pin = self.epochs.pin();
        let claims = if keep_claims { MAX_CLAIMS } else { 0 };
        let (mut seen, mut result) = (0, Evicted::default());
        _ = self.tree.walk(&pin, from, &mut |number, slot| {
            let Found::Entry(entry) = self.held(&pin, slot.load(Ordering::SeqCst)) else {
                return ControlFlow::Continue(());
            };
            if seen == most {
                result.next = Some(number);
                return ControlFlow::Break(());
            }
            seen += 1;
            if entry.is_idle(claims) && leaves(&entry.value, &|| entry.seal(1, claims)) {
                result.gone += 1;
                self.unlink(&pin, number, slot, entry);
            } else if entry.claims() == 0 {
                result.unclaimed += 1;
            }
            ControlFlow::Continue(())
        });
        result
    }

    /// A reference to each entry.
    pub fn each(&self, pin: &Pin<'_>, visit: &mut dyn FnMut(u64, Ref<T>)) {
        self.guarded(pin);
        _ = self.tree.walk(pin, 0, &mut |number, slot| {
            if let Found::Entry(entry) = self.held(pin, slot.load(Ordering::SeqCst))
                && entry.take(0)
            {
                visit(number, counted(entry));
            }
            ControlFlow::Continue(())
        });
    }

    /// The first number from `from` on that has an entry.
    pub(crate) fn next_number(&self, pin: &Pin<'_>, from: u64) -> Option<u64> {
        self.guarded(pin);
        let mut next = None;
        _ = self.tree.walk(pin, from, &mut |number, slot| {
            if let Found::Entry(_) = self.held(pin, slot.load(Ordering::SeqCst)) {
                next = Some(number);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        next
    }

    /// For who never takes anything out: what has this number.
    pub(crate) fn borrow_kept(&self, pin: &Pin<'_>, number: u64) -> Option<&T> {
        self.guarded(pin);
        let slot = self.tree.leaf(pin, number)?.slot(number);
        match self.held(pin, slot.load(Ordering::SeqCst)) {
            // SAFETY: `Grown` takes nothing out, so the index's reference stays as long as the
            // index is borrowed.
            Found::Entry(entry) => Some(unsafe { &*std::ptr::from_ref(&entry.value) }),
            _ => None,
        }
    }

    /// Behind the seal of `entry`, by who set it.
    fn unlink(&self, pin: &Pin<'_>, number: u64, slot: &Slot, entry: &Entry<T>) {
        self.put_left(pin, number, slot, entry);
        self.epochs.count(-1);
        let entry = std::ptr::from_ref(entry).cast_mut().cast();
        // SAFETY: the index's reference, which who sealed gives up, once; no slot has it any more,
        // by this thread or by another that was here before.
        unsafe { self.epochs.give_up(entry, release::<T>) };
    }

    /// Puts what is left of a gone `entry` in its place, if nobody has.
    fn put_left(&self, pin: &Pin<'_>, number: u64, slot: &Slot, entry: &Entry<T>) {
        let at = std::ptr::from_ref(entry).cast_mut().cast();
        self.replace_left(pin, number, slot, at, entry.claims());
    }

    /// `claims` claims instead of `at`; nothing, if it is none.
    fn replace_left(
        &self,
        pin: &Pin<'_>,
        number: u64,
        slot: &Slot,
        at: *mut (),
        claims: u64,
    ) -> bool {
        let new = if claims == 0 { null_mut() } else { left(claims) };
        let done = exchange(slot, at, new);
        if done && claims == 0 {
            self.tree.leave(pin, number);
        }
        done
    }
}

fn exchange(slot: &Slot, old: *mut (), new: *mut ()) -> bool {
    slot.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

/// The reference that `take` has counted.
fn counted<T>(entry: &Entry<T>) -> Ref<T> {
    // SAFETY: the caller's `take` said yes.
    unsafe { Ref::from_raw(NonNull::from(entry)) }
}

impl<T: Send + Sync + 'static> Drop for Index<T> {
    fn drop(&mut self) {
        self.tree.clear(&mut |at| {
            if at.addr() & 1 == 0 && at.addr() > RESERVED {
                self.epochs.count(-1);
                // SAFETY: an entry with the index's reference; nobody else looks any more. A gone
                // one has been replaced by who sealed it, and he borrowed the index.
                unsafe { release::<T>(at) };
            }
        });
    }
}

/// A number that nobody else can have, and the memory for what will have it.
pub struct Reservation<'i, T: Send + Sync + 'static> {
    index: &'i Index<T>,
    number: u64,
    leaf: NonNull<Node>,
    /// Until it is filled.
    memory: Option<Box<MaybeUninit<Entry<T>>>>,
}

impl<T: Send + Sync + 'static> Reservation<'_, T> {
    /// The second phase: cannot fail.
    pub fn fill(mut self, value: T, claims: u64) -> Ref<T> {
        let memory = self.memory.take().expect("filled once");
        let new = Ref::of(Box::write(memory, Entry::new(value, 0)));
        new.entry().enter_index(claims);
        // SAFETY: the reserved slot is counted, so its leaf lives.
        let slot = unsafe { self.leaf.as_ref() }.slot(self.number);
        slot.store(new.as_ptr().cast(), Ordering::SeqCst);
        self.index.epochs.count(1);
        new
    }
}

impl<T: Send + Sync + 'static> Drop for Reservation<'_, T> {
    fn drop(&mut self) {
        if self.memory.is_none() {
            return;
        }
        let pin = self.index.epochs.pin();
        // SAFETY: as in `fill`.
        let slot = unsafe { self.leaf.as_ref() }.slot(self.number);
        slot.store(null_mut(), Ordering::SeqCst);
        self.index.tree.leave(&pin, self.number);
    }
}
