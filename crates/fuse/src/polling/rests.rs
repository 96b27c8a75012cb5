//! For how long polling rests when others have work for the processors: longer each time that
//! it ends as soon as it began.
//!
//! To try takes a tick of the watcher, in which a poller may be in somebody's way; not to try
//! leaves a half of the rate. Work that takes some milliseconds now and then (our own
//! writeback does) is to be told from work that stays.

use std::time::Duration;

/// The first rest, and below the longest. Not measured apart from polling as a whole.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(100);
/// Who polled for so long met nobody at first: several ticks of the watcher.
/// Not measured apart from polling as a whole.
const IN_PEACE: Duration = Duration::from_millis(10);

#[derive(Default)]
pub(super) struct Rests {
    last: Duration,
}

impl Rests {
    /// The next one, after polling for `time`.
    pub(super) fn after(&mut self, time: Duration) -> Duration {
        self.last = match time > IN_PEACE {
            true => SHORTEST,
            false => (self.last * 2).clamp(SHORTEST, LONGEST),
        };
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_each_time_and_short_again_after_peace() {
        let mut rests = Rests::default();
        let soon = Duration::from_millis(2);
        let times: Vec<u128> = (0..8).map(|_| rests.after(soon).as_millis()).collect();
        assert_eq!(times, [5, 10, 20, 40, 80, 100, 100, 100]);
        assert_eq!(rests.after(Duration::from_millis(30)), SHORTEST);
        assert_eq!(rests.after(soon), SHORTEST * 2);
    }
}
