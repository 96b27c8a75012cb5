//! What it costs to track each truncation as an orphan, beside the truncation itself.
//!
//! The engine's own truncations of a file whose epoch has room need no such note: they are one
//! change of one epoch. So the engine as it is stands for "off"; the two others claim before the
//! truncation and release behind it, in the table that the engine has for inodes without a name, and
//! in one set behind one lock, as the kernels of old had it.

use orphans::Orphans;
use std::collections::BTreeSet;
use std::sync::Mutex;

/// How truncations are tracked.
pub enum Tracking {
    Off,
    Lockless(Orphans),
    Locked(Mutex<BTreeSet<u64>>),
}

/// Which of them a side has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tracked {
    Off,
    Lockless,
    Locked,
}

/// All of a table is one epoch: what came is gone before a commit could ask.
const EPOCH: u64 = 1;

impl Tracking {
    pub fn new(how: Tracked) -> Tracking {
        match how {
            Tracked::Off => Tracking::Off,
            Tracked::Lockless => Tracking::Lockless(Orphans::new().expect("room for a table")),
            Tracked::Locked => Tracking::Locked(Mutex::default()),
        }
    }

    /// Runs `work` while `number` is noted.
    pub fn during<T>(&self, number: u64, work: impl FnOnce() -> T) -> T {
        match self {
            Tracking::Off => work(),
            Tracking::Lockless(table) => {
                let slot = table.claim(number, EPOCH).expect("room for a slot");
                let done = work();
                table.release(slot, EPOCH);
                done
            }
            Tracking::Locked(set) => {
                set.lock().expect("no panic").insert(number);
                let done = work();
                set.lock().expect("no panic").remove(&number);
                done
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_behind() {
        let lockless = Tracking::new(Tracked::Lockless);
        let locked = Tracking::new(Tracked::Locked);
        for tracking in [&lockless, &locked, &Tracking::new(Tracked::Off)] {
            let sum = tracking.during(3, || tracking.during(4, || 5));
            assert_eq!(sum, 5);
        }
        let Tracking::Lockless(table) = &lockless else { panic!("it is") };
        assert!(table.is_empty());
        let Tracking::Locked(set) = &locked else { panic!("it is") };
        assert!(set.lock().unwrap().is_empty());
    }
}
