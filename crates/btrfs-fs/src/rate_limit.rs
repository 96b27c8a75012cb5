//! Messages that a broken device would repeat for ever: ten in five seconds are enough, as in
//! the kernel's log, and the next one says how many were left out.
//!
//! What it does not know: what is said, and where.

use locks::{Mutex, Rank};
use std::time::{Duration, Instant};

/// The kernel's printk_ratelimit has the same two.
const MOST: u32 = 10;
const EACH: Duration = Duration::from_secs(5);

pub(crate) struct RateLimit(Mutex<State>);

impl Default for RateLimit {
    fn default() -> RateLimit {
        RateLimit(Mutex::new(Rank::Leaf, State::default()))
    }
}

#[derive(Default)]
struct State {
    since: Option<Instant>,
    said: u32,
    left_out: u64,
}

impl RateLimit {
    /// `Some`: it may be said now, and so many were left out before it.
    pub(crate) fn may_say(&self) -> Option<u64> {
        self.may_say_at(Instant::now())
    }

    fn may_say_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state.since.is_none_or(|since| now.duration_since(since) >= EACH) {
            (state.since, state.said) = (Some(now), 0);
        }
        if state.said == MOST {
            state.left_out += 1;
            return None;
        }
        state.said += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_in_five_seconds() {
        let (hush, start) = (RateLimit::default(), Instant::now());
        let said = |at: u64| hush.may_say_at(start + Duration::from_millis(at));
        let all: Vec<_> = (0..1000).filter_map(said).collect();
        assert_eq!(all, [0; 10]);
        assert_eq!(said(4999), None);
        assert_eq!(said(5000), Some(991));
        assert_eq!(said(5001), Some(0));
    }
}
