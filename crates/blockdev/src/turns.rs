//! Writes past the page cache and writes through it take turns where one folio may hold bytes of both.
//!
//! Behind a write past the cache the kernel drops what the cache has of the range. A folio is dropped whole, and
//! may be larger than a sector: a page is where pages are, and Linux reads block devices ahead into larger ones since
//! 6.15. If somebody has dirtied it meanwhile, beside the range, it stays with what was there before, and the next
//! flush tells an error although nothing was lost. Files are spared by the locks of their file system; a block device
//! has none for that. What is told to be free is dropped like that, too, and refused beside what is dirty.
//!
//! Invariants: no two writes of different ways are under way where their stretches meet. Who came first goes
//! first, so nobody waits for ever.
//!
//! What it does not know: who reads, and writes of other programs.

use parking_lot::{Condvar, Mutex};
use std::ops::Range;

/// How bytes get to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Past,
    Through,
}

struct Turn {
    number: u64,
    way: Way,
    /// In stretches.
    range: Range<u64>,
}

#[derive(Default)]
struct Queue {
    last: u64,
    /// Those under way and those who wait, as they came.
    turns: Vec<Turn>,
}

impl Queue {
    /// Somebody is in front of `number` whom it must not meet.
    fn must_wait(&self, number: u64) -> bool {
        let Some(place) = self.turns.iter().position(|turn| turn.number == number) else {
            return false;
        };
        let own = &self.turns[place];
        self.turns[..place].iter().any(|turn| {
            let meets = turn.range.start < own.range.end && own.range.start < turn.range.end;
            turn.way != own.way && meets
        })
    }
}

/// See the module.
pub(crate) struct Turns {
    /// No folio crosses a multiple of it.
    stretch: u64,
    queue: Mutex<Queue>,
    ended: Condvar,
}

impl Turns {
    pub(crate) fn new(stretch: u64) -> Turns {
        Turns { stretch, queue: Mutex::default(), ended: Condvar::new() }
    }

    /// Returns when `len` bytes at `offset` may be written that `way`; until what it returns is dropped.
    pub(crate) fn begin(&self, way: Way, offset: u64, len: u64) -> UnderWay<'_> {
        let range = self.stretches(offset, len);
        let mut queue = self.queue.lock();
        queue.last += 1;
        let number = queue.last;
        queue.turns.push(Turn { number, way, range });
        while queue.must_wait(number) {
            self.ended.wait(&mut queue);
        }
        UnderWay { turns: self, number }
    }

    fn stretches(&self, offset: u64, len: u64) -> Range<u64> {
        offset / self.stretch..(offset + len).div_ceil(self.stretch)
    }
}

/// A write that others wait for.
pub(crate) struct UnderWay<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.turns.queue.lock().turns.retain(|turn| turn.number != self.number);
        self.turns.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Turns {
        /// Whether one who came now would have to wait.
        fn waits(&self, way: Way, offset: u64, len: u64) -> bool {
            let mut queue = self.queue.lock();
            let range = self.stretches(offset, len);
            queue.turns.push(Turn { number: 0, way, range });
            let waits = queue.must_wait(0);
            queue.turns.pop();
            waits
        }
    }

    #[test]
    fn those_wait_who_go_another_way_in_the_same_stretch() {
        let turns = Turns::new(1 << 20);
        let past = turns.begin(Way::Past, 4096, 1 << 20);
        let also = turns.begin(Way::Past, 0, 4096);
        assert!(turns.waits(Way::Through, 0, 1));
        assert!(turns.waits(Way::Through, (2 << 20) - 1, 1));
        assert!(!turns.waits(Way::Through, 2 << 20, 1 << 20));
        assert!(!turns.waits(Way::Past, 0, 4 << 20));
        drop(past);
        assert!(turns.waits(Way::Through, 0, 1) && !turns.waits(Way::Through, 1 << 20, 1));
        drop(also);
        let through = turns.begin(Way::Through, 0, 1);
        assert!(turns.waits(Way::Past, 4096, 4096) && !turns.waits(Way::Through, 0, 1));
        drop(through);
    }

    /// Others of the first way that come later are behind who waits, who comes to his turn.
    #[test]
    fn nobody_is_passed_by_for_ever() {
        let turns = Turns::new(1 << 20);
        std::thread::scope(|scope| {
            let first = turns.begin(Way::Past, 0, 4096);
            let waiting = scope.spawn(|| drop(turns.begin(Way::Through, 8192, 4096)));
            while turns.queue.lock().turns.len() < 2 {
                std::thread::yield_now();
            }
            assert!(turns.waits(Way::Past, 0, 4096));
            drop(first);
            waiting.join().expect("it came to its turn");
        });
        assert!(turns.queue.lock().turns.is_empty());
    }
}
