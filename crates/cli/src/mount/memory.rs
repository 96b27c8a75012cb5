//! The thread that gives memory back, so that no request has to: what the allocator keeps of freed
//! memory, and the buffers of nodes that wait for others.
//!
//! What is given back is to be asked for again, page by page, so it is done where it matters: now and
//! then, and where the process has more than its budget (`memory=`): buffers at each look, the allocator's
//! pages as it has grown since the last time.
//!
//! What the allocator keeps for a thread only that thread can give back. Where the process is beyond its budget threads
//! that serve are asked to, each time that it has grown; those at rest do so when it comes near.
//!
//! What it does not know: who has how much of it (`spinney stats` tells).

use super::sandbox;
use crate::sys;
use btrfs_disk::buffers;
use btrfs_fs::BtrfsFs;
use fuse::{Tidy, Tidying};
use std::cell::Cell;
use std::io;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Between two looks at what there is, while it changes; twice that each time that it did not.
/// Chosen, not measured.
const LOOK: Duration = Duration::from_millis(100);
const SELDOM: Duration = Duration::from_millis(1600);
/// Memory of whatever size goes back that often.
/// Chosen, not measured.
const EVERY: Duration = Duration::from_secs(10);
/// What the process may grow by between two times, beyond the budget: such a share of it.
/// Chosen, not measured.
const GROWTH: u64 = 16;
/// Threads at rest leave what they keep to others from such a share of the budget below it on.
/// Chosen, not measured.
const NEAR: u64 = 4;
/// Less is no change.
const CHANGE: u64 = 1 << 20;

/// Starts it, with rights to look that it would not get later; it is told of the volume when there is one.
pub fn tend(budget: u64) -> io::Result<Sender<Weak<BtrfsFs>>> {
    sys::keep_freed_memory();
    buffers::keep(sys::give_back_buffer);
    let (tell, told) = channel();
    let resident = sys::Resident::of_this_process();
    sandbox::spawn("memory", move || watch(&told, resident.as_ref(), budget))?;
    Ok(tell)
}

fn watch(told: &Receiver<Weak<BtrfsFs>>, resident: Option<&sys::Resident>, budget: u64) {
    let (mut pace, mut fs) = (Pace::new(budget, Instant::now()), Weak::<BtrfsFs>::new());
    loop {
        match told.recv_timeout(pace.pause) {
            Ok(volume) => fs = volume,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(pace.pause),
        }
        let look = || resident.and_then(sys::Resident::bytes).unwrap_or(0);
        let mut now = look();
        let due = pace.is_due(now, Instant::now());
        if due || now > budget {
            buffers::give_back();
            now = look();
        }
        if due {
            sys::give_back_memory();
            now = look();
            pace.gave_back(now, Instant::now());
        }
        WISH.say(now > budget / NEAR * (NEAR - 1), pace.asks);
        if let Some(fs) = fs.upgrade() {
            fs.note_process_memory(now, due);
        }
    }
}

/// What serving threads are to do for others ([`fuse::Tidying`]).
pub const TIDYING: Tidying =
    Tidying { wanted: || WISH.of_this_thread(), tidy: sys::leave_memory_to_others };

static WISH: Wish = Wish(AtomicU32::new(0));

thread_local! {
    /// How often this thread was asked.
    static ASKED: Cell<u32> = const { Cell::new(0) };
}

/// How often all threads were asked to leave their memory to others, twice, and one more where those are to do
/// so that are at rest.
struct Wish(AtomicU32);

impl Wish {
    fn say(&self, at_rest: bool, asks: u32) {
        self.0.store(asks.wrapping_mul(2) + u32::from(at_rest), Ordering::Relaxed);
    }

    fn of_this_thread(&self) -> Tidy {
        let now = self.0.load(Ordering::Relaxed);
        match (ASKED.replace(now / 2) == now / 2, now % 2) {
            (false, _) => Tidy::Now,
            (true, 0) => Tidy::No,
            (true, _) => Tidy::AtRest,
        }
    }
}

/// When it is time.
struct Pace {
    budget: u64,
    pause: Duration,
    /// What there was at the last look, and behind the last time that memory was given back.
    seen: u64,
    left: u64,
    last: Instant,
    /// How often threads were asked for theirs, and whether what they left is to be given back.
    asks: u32,
    asked: bool,
}

impl Pace {
    fn new(budget: u64, now: Instant) -> Pace {
        Pace { budget, pause: LOOK, seen: 0, left: 0, last: now, asks: 0, asked: false }
    }

    fn is_due(&mut self, resident: u64, now: Instant) -> bool {
        let still = resident.abs_diff(self.seen) < CHANGE;
        self.pause = if still { (self.pause * 2).min(SELDOM) } else { LOOK };
        self.seen = resident;
        let most = self.budget.max(self.left).saturating_add(self.budget / GROWTH);
        resident > most || self.asked || now.duration_since(self.last) >= EVERY
    }

    /// Where that is not enough all threads are asked for theirs, which goes back at the next look.
    fn gave_back(&mut self, resident: u64, now: Instant) {
        self.asked = !self.asked && resident > self.budget;
        if self.asked {
            (self.asks, self.pause) = (self.asks.wrapping_add(1), LOOK);
        }
        (self.left, self.seen, self.last) = (resident, resident, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn who_is_beyond_his_budget_gives_back_as_he_grows_and_others_now_and_then() {
        let begin = Instant::now();
        let mut pace = Pace::new(128 * MIB, begin);
        assert!(!pace.is_due(130 * MIB, begin));
        assert!(pace.is_due(140 * MIB, begin));
        pace.gave_back(135 * MIB, begin);
        assert!(pace.is_due(135 * MIB, begin), "threads were asked");
        pace.gave_back(135 * MIB, begin);
        assert!(!pace.is_due(140 * MIB, begin), "it has not grown");
        assert!(pace.is_due(144 * MIB, begin));
        pace.gave_back(20 * MIB, begin);
        assert!(!pace.is_due(100 * MIB, begin + EVERY / 2));
        assert!(pace.is_due(100 * MIB, begin + EVERY));
    }

    #[test]
    fn where_what_is_free_is_not_enough_threads_are_asked_for_theirs() {
        let begin = Instant::now();
        let mut pace = Pace::new(128 * MIB, begin);
        assert!(pace.is_due(140 * MIB, begin));
        pace.gave_back(120 * MIB, begin);
        assert_eq!((pace.asks, pace.is_due(120 * MIB, begin)), (0, false));
        assert!(pace.is_due(150 * MIB, begin));
        pace.gave_back(140 * MIB, begin);
        assert_eq!((pace.asks, pace.pause), (1, LOOK));
        assert!(pace.is_due(140 * MIB, begin), "what they left");
        pace.gave_back(140 * MIB, begin);
        assert_eq!((pace.asks, pace.is_due(140 * MIB, begin)), (1, false), "once is enough");
    }

    #[test]
    fn each_thread_is_asked_once_and_at_rest_as_long_as_it_matters() {
        let wish = Wish(AtomicU32::new(0));
        assert_eq!(wish.of_this_thread(), Tidy::No);
        wish.say(true, 0);
        assert_eq!([wish.of_this_thread(), wish.of_this_thread()], [Tidy::AtRest; 2]);
        wish.say(true, 1);
        assert_eq!([wish.of_this_thread(), wish.of_this_thread()], [Tidy::Now, Tidy::AtRest]);
        let other = std::thread::scope(|scope| scope.spawn(|| wish.of_this_thread()).join());
        assert_eq!(other.unwrap(), Tidy::Now, "it was asked once, too");
        wish.say(false, 1);
        assert_eq!(wish.of_this_thread(), Tidy::No);
    }

    #[test]
    fn where_nothing_changes_it_looks_seldom() {
        let begin = Instant::now();
        let mut pace = Pace::new(u64::MAX, begin);
        assert!(!pace.is_due(50 * MIB, begin));
        assert_eq!(pace.pause, LOOK);
        (0..9).for_each(|_| _ = pace.is_due(50 * MIB, begin));
        assert_eq!(pace.pause, SELDOM);
        assert!(!pace.is_due(52 * MIB, begin));
        assert_eq!(pace.pause, LOOK);
    }
}
