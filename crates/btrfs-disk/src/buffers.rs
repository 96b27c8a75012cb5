//! Memory of nodes, used again for nodes.
//!
//! Nodes go one by one, and an allocator that has many of them in a page gives that back when the
//! last is gone: half of what nodes took stayed with a process behind a million files. So a program
//! that is to keep to a budget of memory says here how a buffer's memory goes back to the system
//! ([`keep`]); from then on buffers of nodes stay here until a node wants them, and what is more than a few
//! of them is given back as [`give_back`] is called. Who never says it has the allocator alone.
//!
//! Invariants: a buffer that is handed out is all zeros, or its taker's bytes; nothing is given back
//! while a list is locked.
//!
//! What it does not know: what is in a node, who has how many, and how memory is given back.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Sizes that nodes have: powers of two from here on.
const SMALLEST: usize = 4096;
const SIZES: usize = 5;
/// Bytes of each size that wait for the next node with their memory: about what a commit of a few changes
/// takes and gives. Chosen, not measured.
const WAITING: usize = 2 << 20;

/// Gives the memory of a buffer back to the system: it is all zeros from then on. False: it has its memory still
/// (no whole page lies in it), and goes to the allocator.
pub type GiveBack = fn(&mut [u8]) -> bool;

static GIVE_BACK: OnceLock<GiveBack> = OnceLock::new();
static POOL: Pool = Pool::new();

/// From here on buffers are kept for the next nodes, and `give_back` has those that are too many.
/// The first one stays.
pub fn keep(give_back: GiveBack) {
    let _others_were_first = GIVE_BACK.set(give_back);
}

fn pool() -> Option<&'static Pool> {
    GIVE_BACK.get().map(|_| &POOL)
}

/// A buffer of zeros for a node.
pub fn zeroed(len: usize) -> Box<[u8]> {
    let kept = pool().and_then(|pool| pool.zeroed(len));
    kept.unwrap_or_else(|| vec![0; len].into_boxed_slice())
}

/// A buffer with these bytes.
pub fn of(bytes: &[u8]) -> Box<[u8]> {
    pool().and_then(|pool| pool.of(bytes)).unwrap_or_else(|| bytes.into())
}

/// No node has it any more.
pub(crate) fn done_with(bytes: Box<[u8]>) {
    if let Some(pool) = pool() {
        pool.put(bytes);
    }
}

/// Gives back the memory of what waits for nodes, but for a little. For a thread of its own: it takes its
/// time, and all processors of the program look up from their work for each.
pub fn give_back() {
    if let Some(give_back) = GIVE_BACK.get() {
        POOL.give_back(*give_back);
    }
}

/// Bytes of memory that wait for nodes.
pub fn waiting() -> u64 {
    POOL.waiting()
}

/// Buffers by their size.
struct Pool {
    lists: [Mutex<Unused>; SIZES],
}

/// Buffers of one size that no node has.
struct Unused {
    /// As their nodes left them; what came last goes first.
    warm: Vec<Box<[u8]>>,
    /// All zeros, most of them without memory.
    cold: Vec<Box<[u8]>>,
}

impl Unused {
    const fn new() -> Unused {
        Unused { warm: Vec::new(), cold: Vec::new() }
    }
}

impl Pool {
    const fn new() -> Pool {
        Pool { lists: [const { Mutex::new(Unused::new()) }; SIZES] }
    }

    fn list(&self, len: usize) -> Option<MutexGuard<'_, Unused>> {
        let number = (0..SIZES).find(|number| SMALLEST << number == len)?;
        self.lists.get(number).map(locked)
    }

    fn zeroed(&self, len: usize) -> Option<Box<[u8]>> {
        let mut unused = self.list(len)?;
        match unused.warm.pop() {
            Some(mut bytes) => {
                drop(unused);
                bytes.fill(0);
                Some(bytes)
            }
            None => unused.cold.pop(),
        }
    }

    fn of(&self, bytes: &[u8]) -> Option<Box<[u8]>> {
        let mut buffer = {
            let mut unused = self.list(bytes.len())?;
            unused.warm.pop().or_else(|| unused.cold.pop())?
        };
        buffer.copy_from_slice(bytes);
        Some(buffer)
    }

    fn put(&self, bytes: Box<[u8]>) {
        if let Some(mut unused) = self.list(bytes.len()) {
            unused.warm.push(bytes);
        }
    }

    fn give_back(&self, give_back: GiveBack) {
        for (number, list) in self.lists.iter().enumerate() {
            let most = WAITING / (SMALLEST << number);
            let much: Vec<Box<[u8]>> = {
                let mut unused = locked(list);
                let much = unused.warm.len().saturating_sub(most);
                // Those that wait the longest: the others are in the processors' caches.
                unused.warm.drain(..much).collect()
            };
            for mut bytes in much {
                if give_back(&mut bytes) {
                    locked(list).cold.push(bytes);
                }
            }
        }
    }

    fn waiting(&self) -> u64 {
        let lists = self.lists.iter().enumerate();
        let bytes = lists.map(|(number, list)| locked(list).warm.len() * (SMALLEST << number));
        u64::try_from(bytes.sum::<usize>()).unwrap_or(u64::MAX)
    }
}

fn locked(list: &Mutex<Unused>) -> MutexGuard<'_, Unused> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const LEN: usize = 16384;
    const MOST: usize = WAITING / LEN;

    fn put_used(pool: &Pool, count: usize) {
        let all: Vec<_> = (0..count)
            .map(|_| {
                let mut bytes = pool.zeroed(LEN).unwrap_or_else(|| vec![0; LEN].into());
                assert!(bytes.iter().all(|byte| *byte == 0), "of an old node");
                bytes.fill(7);
                bytes
            })
            .collect();
        all.into_iter().for_each(|bytes| pool.put(bytes));
    }

    fn counts(pool: &Pool) -> (usize, usize) {
        let unused = pool.list(LEN).expect("a size of nodes");
        (unused.warm.len(), unused.cold.len())
    }

    #[test]
    fn what_nodes_leave_is_for_the_next_ones_and_too_much_of_it_goes() {
        static GIVEN: AtomicUsize = AtomicUsize::new(0);
        let pool = Pool::new();
        put_used(&pool, 3 * MOST);
        assert_eq!(pool.waiting(), 3 * WAITING as u64);
        let clear = |bytes: &mut [u8]| {
            bytes.fill(0);
            // All but the first.
            GIVEN.fetch_add(1, Ordering::Relaxed) > 0
        };
        pool.give_back(clear);
        assert_eq!(
            (GIVEN.load(Ordering::Relaxed), counts(&pool)),
            (2 * MOST, (MOST, 2 * MOST - 1))
        );
        assert_eq!(pool.waiting(), WAITING as u64);
        put_used(&pool, 3 * MOST);
        assert_eq!(counts(&pool), (3 * MOST, 0), "one is new");
    }

    #[test]
    fn copies_are_made_in_them() {
        let pool = Pool::new();
        assert!(pool.of(&[9; LEN]).is_none(), "there is none yet");
        put_used(&pool, 1);
        let copy = pool.of(&[9; LEN]).expect("there was one");
        assert!(copy.iter().all(|byte| *byte == 9));
        assert_eq!(counts(&pool), (0, 0));
    }

    #[test]
    fn what_is_no_nodes_is_the_allocators() {
        let pool = Pool::new();
        pool.put(vec![1; 5000].into());
        assert!(pool.zeroed(5000).is_none() && pool.of(&[1; 5000]).is_none());
        assert!(pool.list(2048).is_none() && pool.list(131_072).is_none());
        assert!(pool.list(4096).is_some() && pool.list(65536).is_some());
    }

    /// As long as nobody has said how.
    #[test]
    fn who_asks_for_nothing_keeps_nothing() {
        done_with(vec![1; LEN].into());
        assert_eq!((waiting(), zeroed(LEN).len(), of(&[3; LEN])[0]), (0, LEN, 3));
    }
}
