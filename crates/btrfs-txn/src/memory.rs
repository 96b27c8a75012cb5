//! One budget of memory for all that a volume holds: cached nodes, changed items, inodes, content
//! that no extent holds yet, and the nodes that a commit builds.
//!
//! Whoever has less leaves more to the others: changes and content get what inodes and a commit at
//! work leave, the cache what all of them leave, and a floor that keeps trees walkable. Each part
//! has a bound of its own beside that.
//!
//! It counts and compares. What is done about too much of it is its users' business.

mod contents;

pub use contents::Contents;

use std::sync::atomic::{AtomicU64, Ordering};

/// How much memory there may be, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimits {
    /// Everything together.
    pub all: u64,
    /// Cached nodes.
    pub cache: u64,
    /// Changed items.
    pub delta: u64,
    /// Content that no extent holds yet.
    pub content: u64,
    /// Inodes, beside those that cannot be loaded again.
    pub inodes: u64,
}

/// What is left to one part however much the others have, as a share of everything.
/// Chosen, not measured.
const LEAST: u64 = 16;
/// What inodes may take, as a share of everything.
/// Chosen, not measured.
const MOST_INODES: u64 = 4;
/// The cache's share of that kind is twice as large.
const LEAST_CACHE: u64 = 8;
/// The cache follows in steps of such a share of everything.
/// Chosen, not measured.
const STEP: u64 = 128;
/// And what is noted of a delta.
/// Chosen, not measured.
const GRAIN: u64 = 4096;

/// What a process has that holds nothing: its program, its threads' stacks, the transport's buffers.
/// Measured: 17 MiB of a server with 64 threads that has just begun.
const PROGRAM: u64 = 16 << 20;
/// What it may have beside that and what is counted, as a share of everything, before that becomes less; and what
/// that becomes less at most. Chosen, not measured.
const FREE: u64 = 8;
const MOST_WITHHELD: u64 = 2;

fn sum(of: &[(&str, u64)]) -> u64 {
    of.iter().map(|(_, bytes)| bytes).sum()
}

/// How much memory is taken, and how much may be.
pub struct Memory {
    limits: MemoryLimits,
    /// Bytes of content that no extent holds yet.
    dirty: AtomicU64,
    /// Changed items: those that operations add to, and those that a commit is at.
    delta: AtomicU64,
    sealed: AtomicU64,
    inodes: AtomicU64,
    /// Nodes that a commit has built and not written.
    building: AtomicU64,
    /// Changes that a commit has merged and somebody still reads.
    retired: AtomicU64,
    /// All of the process, where somebody says so.
    process: AtomicU64,
    /// What the budget is less for what the process has beside it.
    withheld: AtomicU64,
    /// What the cache was told last.
    cache: AtomicU64,
}

impl Memory {
    /// Nothing is taken yet.
    pub fn new(limits: MemoryLimits) -> Memory {
        let [dirty, delta, sealed, inodes, building, retired] = Default::default();
        let [process, withheld] = Default::default();
        let cache = AtomicU64::new(limits.cache.min(limits.all));
        Memory { limits, dirty, delta, sealed, inodes, building, retired, process, withheld, cache }
    }

    /// What there may be of what is counted.
    fn all(&self) -> u64 {
        self.limits.all - self.withheld.load(Ordering::Relaxed)
    }

    /// Bytes of content that no extent holds yet.
    pub fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// So many more.
    pub fn add_dirty(&self, bytes: u64) {
        self.dirty.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many fewer: they have landed, or are gone. Who finds that (and has an acquiring fence behind)
    /// finds in the delta what became of them.
    pub fn sub_dirty(&self, bytes: u64) {
        let before = self.dirty.fetch_sub(bytes, Ordering::Release);
        debug_assert!(before >= bytes, "{bytes} of {before} bytes are no longer dirty");
    }

    /// What inodes in use take.
    pub fn note_inodes(&self, bytes: u64) {
        self.inodes.store(bytes, Ordering::Relaxed);
    }

    /// From where on some inodes should leave memory.
    pub fn most_inodes(&self) -> u64 {
        self.limits.inodes.min(self.all() / MOST_INODES)
    }

    /// Whether there are more than that.
    pub fn has_many_inodes(&self) -> bool {
        self.inodes.load(Ordering::Relaxed) > self.most_inodes()
    }

    /// What the nodes take that a commit has built and not written.
    pub fn note_building(&self, bytes: u64) {
        self.building.store(bytes, Ordering::Relaxed);
    }

    /// Changes that are in the trees wait for who reads them: so many bytes more.
    pub fn add_retired(&self, bytes: u64) {
        self.retired.fetch_add(bytes, Ordering::Relaxed);
    }

    /// And fewer: they are freed.
    pub fn sub_retired(&self, bytes: u64) {
        let before = self.retired.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "{bytes} of {before} bytes are no longer kept");
    }

    /// What all of the process has in memory, as its owner sees it.
    pub fn note_process(&self, bytes: u64) {
        self.process.store(bytes, Ordering::Relaxed);
    }

    /// What the process was noted to have beside what is known, more of it than it may, is taken off the
    /// budget: for who noted it when all that was free had gone back. `cached` and `beside` as for `list`.
    pub fn withhold(&self, cached: u64, beside: &[(&str, u64)]) {
        let known = cached + self.delta.load(Ordering::Relaxed) + self.dirty() + self.committed();
        let known = known + sum(beside);
        let rest = self.process.load(Ordering::Relaxed).saturating_sub(known);
        let free = PROGRAM + self.limits.all / FREE;
        let withheld = rest.saturating_sub(free).min(self.limits.all / MOST_WITHHELD);
        self.withheld.store(withheld, Ordering::Relaxed);
    }

    /// What changed items take: those of the current epoch, and of one that is committed.
    /// Answers the cache's new budget, if it is another one by now.
    pub(crate) fn note_delta(&self, current: u64, sealed: u64) -> Option<u64> {
        let grain = self.limits.all / GRAIN;
        for (part, now) in [(&self.delta, current), (&self.sealed, sealed)] {
            // Lines that are only read stay with every processor.
            if part.load(Ordering::Relaxed).abs_diff(now) > grain {
                part.store(now, Ordering::Relaxed);
            }
        }
        let (told, now) = (self.cache.load(Ordering::Relaxed), self.cache_budget());
        if told.abs_diff(now) <= self.limits.all / STEP {
            return None;
        }
        self.cache.store(now, Ordering::Relaxed);
        Some(now)
    }

    fn cache_budget(&self) -> u64 {
        let taken = self.committed() + self.delta.load(Ordering::Relaxed) + self.dirty();
        let left = self.all().saturating_sub(taken);
        left.max(self.all() / LEAST_CACHE).min(self.limits.cache)
    }

    /// What no change can be made to give back at once.
    fn committed(&self) -> u64 {
        let of = |part: &AtomicU64| part.load(Ordering::Relaxed);
        of(&self.inodes) + of(&self.building) + of(&self.sealed) + of(&self.retired)
    }

    /// What changes and content may take together.
    fn for_changes(&self) -> u64 {
        let floor = (self.all() / LEAST_CACHE).min(self.limits.cache);
        self.all().saturating_sub(self.committed() + floor)
    }

    /// From where on content is written back: who adds to it waits at one and a half times that.
    pub fn most_dirty(&self) -> u64 {
        let left = self.for_changes().saturating_sub(self.delta.load(Ordering::Relaxed));
        (left / 2).max(self.all() / LEAST).min(self.limits.content)
    }

    /// From where on a delta is committed. While a commit is at it there are its nodes as well,
    /// and the next delta grows.
    pub fn most_delta(&self) -> u64 {
        let left = self.for_changes().saturating_sub(self.dirty());
        (left / 3).max(self.all() / LEAST).min(self.limits.delta)
    }

    /// Half way from where a commit is asked for to where who changes something must wait.
    pub fn is_short(&self, delta: u64) -> bool {
        self.dirty() > self.most_dirty() / 4 * 5 || delta > self.most_delta() / 2 * 3
    }

    /// Who holds what, for who asks.
    /// `beside` is what is known and in no account: it is for a moment, or has a bound of its own. The rest of
    /// the process is its program, its threads' and the allocator's.
    pub fn list(&self, cached: u64, beside: &[(&'static str, u64)]) -> Vec<(&'static str, u64)> {
        let of = |part: &AtomicU64| part.load(Ordering::Relaxed);
        let counted = [
            ("memory.cache", cached),
            ("memory.delta", of(&self.delta)),
            ("memory.sealed", of(&self.sealed)),
            ("memory.retired", of(&self.retired)),
            ("memory.building", of(&self.building)),
            ("memory.inodes", of(&self.inodes)),
            ("memory.content", self.dirty()),
        ];
        let (process, known) = (of(&self.process), sum(&counted) + sum(beside));
        let all = [
            ("memory.budget", self.limits.all),
            ("memory.counted", sum(&counted)),
            ("memory.process", process),
            ("memory.rest", process.saturating_sub(known)),
            ("memory.withheld", of(&self.withheld)),
            ("memory.cache_budget", of(&self.cache)),
        ];
        all.into_iter().chain(counted).chain(beside.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory() -> Memory {
        let (all, half) = (512 * MIB, 256 * MIB);
        Memory::new(MemoryLimits { all, cache: all, delta: half, content: half, inodes: half })
    }

    #[test]
    fn who_has_less_leaves_more_to_the_others() {
        let memory = memory();
        assert_eq!(memory.note_delta(0, 0), None, "all of it is the cache's");
        let (delta, dirty) = (memory.most_delta(), memory.most_dirty());
        memory.note_inodes(100 * MIB);
        assert_eq!(memory.note_delta(50 * MIB, 0), Some(362 * MIB));
        assert!(memory.most_delta() < delta && memory.most_dirty() < dirty);
        memory.add_dirty(60 * MIB);
        assert_eq!(memory.note_delta(50 * MIB, 0), Some(302 * MIB));
        memory.note_building(10_000 * MIB);
        assert_eq!(memory.note_delta(50 * MIB, 0), Some(64 * MIB), "a floor stays");
        assert_eq!((memory.most_delta(), memory.most_dirty()), (32 * MIB, 32 * MIB));
    }

    #[test]
    fn small_changes_are_not_told_to_the_cache() {
        let memory = memory();
        assert_eq!(memory.note_delta(3 * MIB, 0), None);
        assert_eq!(memory.note_delta(5 * MIB, 0), Some(507 * MIB));
    }

    #[test]
    fn all_of_the_process_is_told() {
        let memory = memory();
        memory.note_inodes(3);
        memory.add_retired(40);
        memory.sub_retired(10);
        let of = |name: &str| {
            let list = memory.list(100, &[("memory.waiting", 7)]);
            list.into_iter().find(|(of, _)| *of == name).expect("it is told").1
        };
        assert_eq!((of("memory.counted"), of("memory.rest")), (133, 0), "nobody has said");
        memory.note_process(150);
        assert_eq!((of("memory.process"), of("memory.rest")), (150, 10));
        assert_eq!((of("memory.retired"), of("memory.waiting")), (30, 7));
        assert_eq!(memory.committed(), 33, "no change gives back at once what is read");
    }

    #[test]
    fn what_a_process_has_beside_it_makes_the_budget_less() {
        let memory = memory();
        let free = PROGRAM + 512 * MIB / FREE;
        let has = |rest: u64| {
            memory.note_process(rest + 108 * MIB);
            memory.withhold(90 * MIB, &[("memory.waiting", 8 * MIB)]);
            memory.note_delta(0, 0)
        };
        memory.note_inodes(10 * MIB);
        memory.note_delta(0, 0);
        assert_eq!(has(free), None, "so much may be");
        assert_eq!(has(free + 100 * MIB), Some(402 * MIB));
        let less = Memory::new(MemoryLimits { all: 412 * MIB, ..memory.limits });
        less.note_inodes(10 * MIB);
        assert_eq!(memory.most_delta(), less.most_delta());
        assert_eq!(memory.most_dirty(), less.most_dirty());
        assert_eq!(memory.most_inodes(), less.most_inodes());
        assert_eq!(has(4096 * MIB), Some(246 * MIB), "a half stays");
        assert_eq!(has(0), Some(502 * MIB), "it is given back");
    }

    #[test]
    fn without_a_budget_each_part_has_its_bound() {
        let (cache, delta, content, inodes) = (64 * MIB, 200 * MIB, 100 * MIB, 50 * MIB);
        let memory = Memory::new(MemoryLimits { all: u64::MAX, cache, delta, content, inodes });
        memory.note_inodes(inodes);
        assert!(!memory.has_many_inodes());
        memory.note_inodes(1 << 40);
        assert!(memory.has_many_inodes());
        assert_eq!(memory.note_delta(1 << 40, 1 << 40), None);
        assert_eq!((memory.most_delta(), memory.most_dirty()), (200 * MIB, 100 * MIB));
    }
}
