//! How those who change something are slowed down while memory or room for the delta run short, so
//! that none of them has to wait for a whole commit.
//!
//! A commit takes its time for each byte of the delta that it merges. Who adds to the next delta pays
//! for what was added with a rest: nothing at first, the commit's own time half way to where everybody
//! must wait, and more than any commit takes close to that. So the delta comes to rest between, at the
//! rate at which commits go.
//!
//! Invariants: below the bound nobody rests; a rest is not longer than [`MOST`]; all who add share one
//! account, so that many threads together are as fast as one.
//!
//! What it does not know: who adds, what a commit is, and when one comes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest rest of one operation.
const MOST: Duration = Duration::from_millis(10);
/// Shorter ones are left to the next: the system's timers are late by a tenth of this.
const LEAST: Duration = Duration::from_micros(500);
/// Of a commit, until the first has been measured: slower than any machine that we know.
const NS_OF_A_KIB: u64 = 8_000;

/// What there is of something that a commit gives back, and what should be there at most: at twice
/// that everybody waits.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    /// There is so much.
    pub has: u64,
    /// From here on who adds rests.
    pub most: u64,
}

impl Level {
    /// It is higher than it should be.
    pub fn is_over(&self) -> bool {
        self.has > self.most
    }

    /// How much it is over, and how much is left to where everybody waits.
    fn share(&self) -> (u64, u64) {
        let over = self.has.saturating_sub(self.most);
        (over, self.most.saturating_sub(over).max(1))
    }
}

/// The account of all who change something.
pub struct Pacing {
    start: Instant,
    /// Nanoseconds that a commit takes for a KiB of its delta.
    commit_ns: AtomicU64,
    /// The delta's bytes when somebody paid last.
    paid: AtomicU64,
    /// Up to when all that was added is paid for, in nanoseconds since `start`.
    paid_until: AtomicU64,
}

impl Default for Pacing {
    fn default() -> Pacing {
        let (paid, paid_until) = Default::default();
        let commit_ns = AtomicU64::new(NS_OF_A_KIB);
        Pacing { start: Instant::now(), commit_ns, paid, paid_until }
    }
}

impl Pacing {
    /// A commit of a delta of so many bytes took so long.
    pub fn measured(&self, bytes: u64, took: Duration) {
        // A small one is mostly waiting for the device.
        if bytes >= 1 << 20 {
            let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            self.commit_ns.store(ns / (bytes >> 10), Ordering::Relaxed);
        }
    }

    /// Rests, if a level is over; the delta has `bytes`. No lock is held.
    pub fn pay(&self, bytes: u64, levels: [Level; 2]) -> bool {
        if !levels.iter().any(Level::is_over) {
            return false;
        }
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let rest = self.due(bytes, levels, now);
        if let Some(rest) = rest {
            std::thread::sleep(rest);
        }
        rest.is_some()
    }

    /// Somebody rests at this moment, or would if he came: a commit at work makes haste.
    pub fn is_behind(&self) -> bool {
        u128::from(self.paid_until.load(Ordering::Relaxed)) > self.start.elapsed().as_nanos()
    }

    /// How long to rest at `now`.
    fn due(&self, bytes: u64, levels: [Level; 2], now: u64) -> Option<Duration> {
        let added = bytes.saturating_sub(self.paid.swap(bytes, Ordering::Relaxed));
        let for_commit = u128::from(added) * u128::from(self.commit_ns.load(Ordering::Relaxed));
        let price = |level: &Level| {
            let (over, left) = level.share();
            for_commit / 1024 * u128::from(over) / u128::from(left)
        };
        let price = levels.iter().map(price).max().unwrap_or(0);
        let price = u64::try_from(price).unwrap_or(u64::MAX).min(MOST.as_nanos() as u64);
        // What was paid for in advance counts, time that went by without anybody does not.
        self.paid_until.fetch_max(now, Ordering::Relaxed);
        let until = self.paid_until.fetch_add(price, Ordering::Relaxed) + price;
        let rest = Duration::from_nanos(until.saturating_sub(now));
        (rest >= LEAST).then(|| rest.min(MOST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    const NOTHING: Level = Level { has: 0, most: 1 };

    fn memory(has: u64) -> [Level; 2] {
        [Level { has, most: 100 * MIB }, NOTHING]
    }

    /// A delta of 100 MiB at most, to which one adds a KiB a microsecond if he does not rest.
    fn fill(pacing: &Pacing, mut bytes: u64, until_ns: u64) -> (u64, Duration) {
        let (mut now, mut longest) = (0, Duration::ZERO);
        while now < until_ns {
            bytes += 1024;
            now += 1_000;
            if let Some(rest) = pacing.due(bytes, memory(bytes), now) {
                now += rest.as_nanos() as u64;
                longest = longest.max(rest);
            }
        }
        (bytes, longest)
    }

    #[test]
    fn below_the_bound_nobody_rests() {
        let pacing = Pacing::default();
        let (bytes, longest) = fill(&pacing, 0, 100_000_000);
        assert_eq!((bytes, longest), (100_000 * 1024, Duration::ZERO));
    }

    /// Four times slower than who adds: without rests there were 500 MiB.
    #[test]
    fn the_delta_stays_below_twice_the_bound_while_a_commit_is_at_work() {
        let pacing = Pacing::default();
        pacing.measured(150 * MIB, Duration::from_micros(150 * 1024 * 4));
        let (bytes, longest) = fill(&pacing, 0, 150 * 1024 * 4_000);
        assert!(bytes < 200 * MIB, "{} MiB", bytes / MIB);
        assert!(bytes > 120 * MIB, "{} MiB", bytes / MIB);
        assert!(longest <= Duration::from_millis(2), "{longest:?}");
    }

    #[test]
    fn a_rest_has_an_end_however_much_there_is() {
        let pacing = Pacing::default();
        for bytes in [150, 199, 200, 1_000, 1_000_000] {
            let rest = pacing.due(bytes * MIB, memory(bytes * MIB), 0);
            assert!(rest.is_none_or(|rest| rest <= MOST), "{bytes} MiB: {rest:?}");
        }
    }

    #[test]
    fn what_is_shortest_counts() {
        let rest = |levels| {
            let pacing = Pacing::default();
            pacing.measured(100 * MIB, Duration::from_secs(1));
            pacing.due(150 * MIB, memory(0), 0);
            pacing.due(151 * MIB, levels, 0).expect("a rest")
        };
        let (half, most) = (Level { has: 15, most: 10 }, Level { has: 19, most: 10 });
        assert_eq!(rest([half, most]), rest([most, NOTHING]));
        assert!(rest([half, NOTHING]) < rest([NOTHING, most]));
    }

    #[test]
    fn many_pay_into_one_account() {
        let pacing = Pacing::default();
        pacing.measured(100 * MIB, Duration::from_micros(100 * 1024));
        let one = |n: u64| pacing.due(150 * MIB + n * 1024, memory(150 * MIB), 0);
        let rests: Vec<_> = (0..4_000).filter_map(one).collect();
        // Who comes after others that have not rested yet rests behind them.
        assert!(rests.windows(2).all(|pair| pair[0] <= pair[1]));
        assert!(rests.last().is_some_and(|last| *last > Duration::from_millis(3)));
    }
}
