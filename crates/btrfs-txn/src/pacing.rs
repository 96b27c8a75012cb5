//! How those who change something are slowed down while memory or room for the delta run short, so
//! that none of them has to wait for a whole commit.
//!
//! A commit takes its time for each byte of the delta that it merges. Who adds to the next delta pays
//! for what was added with a rest: nothing at first, the commit's own time half way to where everybody
//! must wait, and more than any commit takes close to that. A commit's time is that of those before, and
//! what the one at work has taken already if that is more. So the delta comes to rest between, at the
//! rate at which commits go.
//!
//! Invariants: below the bound nobody rests; all who add share one account, so that many threads together
//! are as fast as one; it is never further behind than [`MOST`], which is the longest rest: what is owed beyond
//! that is forgiven, since soon everybody must wait in any case.
//!
//! What it does not know: who adds, what a commit is, and when one comes.

use locks::thread_number;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The longest rest of one operation.
/// Chosen, not measured.
const MOST: Duration = Duration::from_millis(10);
/// Shorter ones are left to the next: the system's timers are late by a tenth of this.
const LEAST: Duration = Duration::from_micros(500);
/// Of a commit, until the first has been measured: slower than any machine that we know.
const NS_OF_A_KIB: u64 = 8_000;

/// What is used of something that a commit gives back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// In bytes.
    pub used: u64,
    /// From here on who adds rests; at twice as much everybody waits.
    pub limit: u64,
}

impl Usage {
    /// More is used than should be.
    pub fn is_over(&self) -> bool {
        self.used > self.limit
    }

    /// How much it is over, and how much is left to where everybody waits.
    fn share(&self) -> (u64, u64) {
        let over = self.used.saturating_sub(self.limit);
        (over, self.limit.saturating_sub(over).max(1))
    }
}

/// The account of all who change something.
pub struct Pacing {
    start: Instant,
    /// Nanoseconds that a commit takes for a KiB of its delta.
    commit_ns: AtomicU64,
    /// When the commit at work began, in nanoseconds since `start`, later by what it has rested.
    began: AtomicU64,
    /// The number of the thread that is at it.
    thread: AtomicUsize,
    /// The KiB of its delta; none if none is at work, or if they are too few to say anything.
    merging: AtomicU64,
    /// The delta's bytes when somebody paid last.
    paid: AtomicU64,
    /// Up to when all that was added is paid for, in nanoseconds since `start`.
    paid_until: AtomicU64,
}

impl Default for Pacing {
    fn default() -> Pacing {
        let (began, merging, paid, paid_until) = Default::default();
        let (commit_ns, thread) = (AtomicU64::new(NS_OF_A_KIB), AtomicUsize::new(usize::MAX));
        Pacing { start: Instant::now(), commit_ns, began, thread, merging, paid, paid_until }
    }
}

/// The work of one commit on a delta, of which there is one at a time.
pub struct Work<'a>(&'a Pacing);

impl Work<'_> {
    /// The commit is durable, but for what it frees, and was of that delta alone.
    pub fn ends(self) {
        let merging = self.0.merging.load(Ordering::Relaxed);
        if merging > 0 {
            let began = self.0.began.load(Ordering::Relaxed);
            self.0.measured(merging, self.0.now().saturating_sub(began));
        }
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.merging.store(0, Ordering::Relaxed);
        self.0.thread.store(usize::MAX, Ordering::Relaxed);
    }
}

impl Pacing {
    /// A commit begins to work on a delta of so many bytes.
    pub fn begins(&self, bytes: u64) -> Work<'_> {
        self.begins_at(bytes, self.now());
        Work(self)
    }

    fn begins_at(&self, bytes: u64, now: u64) {
        self.began.store(now, Ordering::Relaxed);
        self.thread.store(thread_number(), Ordering::Relaxed);
        // A small one says more of the device's flushes.
        let merging = if bytes >= 1 << 20 { bytes >> 10 } else { 0 };
        self.merging.store(merging, Ordering::Relaxed);
    }

    /// The caller left the processor to others. Where he is not the commit at work (a scrub, what is freed behind
    /// another one) its time is not shorter for that.
    pub fn rested(&self, rest: Duration) {
        if self.thread.load(Ordering::Relaxed) != thread_number() {
            return;
        }
        self.began.fetch_add(u64::try_from(rest.as_nanos()).unwrap_or(0), Ordering::Relaxed);
    }

    /// A commit took `ns` for that many KiB. One that was slow by chance moves the price by half or to twice
    /// as much.
    fn measured(&self, merged: u64, ns: u64) {
        let before = self.commit_ns.load(Ordering::Relaxed);
        let now = (ns / merged).clamp(before / 2, before.saturating_mul(2)).max(1);
        self.commit_ns.store(now, Ordering::Relaxed);
    }

    /// Nanoseconds that a KiB costs: as before, or more if the commit at work already took longer than that,
    /// as the first one on a slow device does.
    fn price(&self, now: u64) -> u64 {
        let merging = self.merging.load(Ordering::Relaxed);
        let working = now.saturating_sub(self.began.load(Ordering::Relaxed));
        let at_work = working.checked_div(merging).unwrap_or(0);
        self.commit_ns.load(Ordering::Relaxed).max(at_work)
    }

    /// Nanoseconds since `start`.
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Rests, if more is used of anything than should be; the delta has `bytes`. The caller holds no
    /// lock that a commit needs.
    pub fn pay(&self, bytes: u64, of: [Usage; 2]) -> bool {
        if !of.iter().any(Usage::is_over) {
            return false;
        }
        let rest = self.due(bytes, of, self.now());
        if let Some(rest) = rest {
            std::thread::sleep(rest);
        }
        rest.is_some()
    }

    /// What was added is not paid for yet: somebody rests, and a commit at work makes haste.
    pub fn is_behind(&self) -> bool {
        self.paid_until.load(Ordering::Relaxed) > self.now()
    }

    /// How long to rest at `now`.
    fn due(&self, bytes: u64, of: [Usage; 2], now: u64) -> Option<Duration> {
        let most = MOST.as_nanos() as u64;
        let added = bytes.saturating_sub(self.paid.swap(bytes, Ordering::Relaxed));
        let for_commit = u128::from(added) * u128::from(self.price(now));
        let price = |usage: &Usage| {
            let (over, left) = usage.share();
            for_commit / 1024 * u128::from(over) / u128::from(left)
        };
        let price = of.iter().map(price).max().unwrap_or(0).min(u128::from(most)) as u64;
        // What was paid for in advance counts, time that went by without anybody does not.
        let owed = |until: u64| Some((until.max(now) + price).min(now + most));
        let before = self.paid_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, owed);
        let until = before.ok().and_then(owed).unwrap_or(now);
        let rest = Duration::from_nanos(until.saturating_sub(now));
        (rest >= LEAST).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    const NOTHING: Usage = Usage { used: 0, limit: 1 };

    fn memory(used: u64) -> [Usage; 2] {
        [Usage { used, limit: 100 * MIB }, NOTHING]
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
        pacing.measured(150 * 1024, 150 * 1024 * 4_000);
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
    fn what_is_further_over_counts() {
        let rest = |of| {
            let pacing = Pacing::default();
            pacing.due(150 * MIB, memory(0), 0);
            pacing.due(150 * MIB + (200 << 10), of, 0).expect("a rest")
        };
        let (half, most) = (Usage { used: 15, limit: 10 }, Usage { used: 18, limit: 10 });
        let (short, long) = (rest([half, NOTHING]), rest([NOTHING, most]));
        assert_eq!((short, long), (Duration::from_micros(1_600), Duration::from_micros(6_400)));
        assert_eq!(rest([half, most]), long);
    }

    #[test]
    fn many_pay_into_one_account() {
        let pacing = Pacing::default();
        pacing.due(150 * MIB, memory(0), 0);
        let one = |n: u64| pacing.due(150 * MIB + n * 1024, memory(150 * MIB), 0);
        let rests: Vec<_> = (0..1_000).filter_map(one).collect();
        // Who comes after others that have not rested yet rests behind them.
        assert!(rests.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!(rests.last(), Some(&Duration::from_micros(999 * 8)));
    }

    /// As many as there may be, each of whom owes as much as can be owed.
    #[test]
    fn what_a_crowd_owes_is_forgotten_soon() {
        let pacing = Pacing::default();
        for n in 1..=64 {
            let rest = pacing.due(n * 100 * MIB, memory(200 * MIB), 0);
            assert_eq!(rest, Some(MOST));
        }
        let after = MOST.as_nanos() as u64;
        let rest = pacing.due(6_401 * MIB, memory(100 * MIB + 1), after);
        assert_eq!(rest, None, "little is over, and nothing is owed");
    }

    #[test]
    fn a_slow_commit_moves_the_price_by_half() {
        let pacing = Pacing::default();
        let price = || pacing.commit_ns.load(Ordering::Relaxed);
        pacing.measured(10 << 10, 100_000_000_000);
        assert_eq!(price(), 2 * NS_OF_A_KIB);
        for _ in 0..20 {
            pacing.measured(10 << 10, 10_000_000);
        }
        assert_eq!(price(), 10_000_000 / 10_240);
    }

    #[test]
    fn a_small_commit_says_nothing() {
        let pacing = Pacing::default();
        let work = pacing.begins(MIB - 1);
        assert_eq!(pacing.price(100_000_000_000), NS_OF_A_KIB);
        work.ends();
        assert_eq!(pacing.price(100_000_000_000), NS_OF_A_KIB);
    }

    #[test]
    fn a_commit_that_takes_long_costs_more_while_it_is_at_work() {
        let pacing = Pacing::default();
        let second = 1_000_000_000;
        pacing.begins_at(10 * MIB, second);
        assert_eq!(pacing.price(second + 1), NS_OF_A_KIB);
        assert_eq!(pacing.price(3 * second), 2 * second / 10_240);
        pacing.rested(Duration::from_secs(1));
        assert_eq!(pacing.price(3 * second), second / 10_240);
        drop(Work(&pacing));
        assert_eq!(pacing.price(3 * second), NS_OF_A_KIB, "none is at work");
    }

    #[test]
    fn rests_of_others_make_no_commit_faster() {
        let pacing = Pacing::default();
        let second = 1_000_000_000;
        pacing.begins_at(10 * MIB, second);
        std::thread::scope(|scope| {
            scope.spawn(|| pacing.rested(Duration::from_secs(1)));
        });
        assert_eq!(pacing.price(3 * second), 2 * second / 10_240);
        drop(Work(&pacing));
        pacing.rested(Duration::from_secs(1));
        assert_eq!(pacing.began.load(Ordering::Relaxed), second, "none is at work");
    }
}
