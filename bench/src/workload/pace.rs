//! The same step many times over: how fast, whether the last tenth goes as fast as the first, the
//! longest that one took, and the memory that was in use.

use super::Detail;
use crate::memory::{Memory, Watch};
use std::io;
use std::time::{Duration, Instant};

/// Seconds of each tenth, and the longest step.
#[derive(Default, Clone, Debug)]
pub struct Pace {
    steps: u64,
    tenths: [Duration; 10],
    longest: Duration,
    memory: Memory,
}

impl Pace {
    /// Does `step` for each number below `steps`, in order.
    pub fn of(
        watch: &Watch,
        steps: u64,
        mut step: impl FnMut(usize) -> io::Result<()>,
    ) -> io::Result<Pace> {
        let (mut pace, memory) = watch.during(|| {
            let mut pace = Pace { steps, ..Pace::default() };
            let mut before = Instant::now();
            for number in 0..steps {
                step(number as usize)?;
                let now = Instant::now();
                let took = now - before;
                pace.tenths[(number * 10 / steps) as usize] += took;
                pace.longest = pace.longest.max(took);
                before = now;
            }
            Ok(pace)
        })?;
        pace.memory = memory;
        Ok(pace)
    }

    /// One piece of work that does as much as so many steps, which nobody can look into.
    pub fn whole(
        watch: &Watch,
        steps: u64,
        work: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<Pace> {
        let start = Instant::now();
        let ((), memory) = watch.during(work)?;
        let all = start.elapsed();
        Ok(Pace { steps, tenths: [all / 10; 10], longest: Duration::ZERO, memory })
    }

    pub fn elapsed(&self) -> Duration {
        self.tenths.iter().sum()
    }

    /// The rate of the last tenth to that of the first.
    fn last_to_first(&self) -> f64 {
        self.tenths[0].as_secs_f64() / self.tenths[9].as_secs_f64().max(1e-9)
    }

    pub fn detail(&self, name: &str) -> Detail {
        let rate = self.steps as f64 / self.elapsed().as_secs_f64().max(1e-9);
        let mib = |bytes: u64| (bytes >> 20) as f64;
        Detail {
            name: name.into(),
            values: vec![
                ("per s", rate),
                ("last/first tenth", self.last_to_first()),
                ("longest ms", self.longest.as_secs_f64() * 1e3),
                ("process MiB", mib(self.memory.process)),
                ("in kernel MiB", mib(self.memory.kernel)),
            ],
        }
    }
}

/// The percentiles of operations that everybody asks for, in microseconds; empties `times` of nanoseconds.
pub fn percentiles(what: &str, mut times: Vec<u64>) -> Vec<Detail> {
    times.sort_unstable();
    let row = |name: &str, share: f64| {
        let at = ((share * times.len() as f64).ceil() as usize).clamp(1, times.len()) - 1;
        let us = times[at] as f64 / 1e3;
        Detail { name: format!("{what} {name} us"), values: vec![("us", us)] }
    };
    if times.is_empty() {
        return Vec::new();
    }
    vec![row("50 %", 0.5), row("99 %", 0.99), row("99.9 %", 0.999), row("100 %", 1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_list() {
        let rows = percentiles("x", (1..=1000).map(|n| n * 1000).collect());
        let values: Vec<f64> = rows.iter().map(|row| row.values[0].1).collect();
        assert_eq!(values, [500.0, 990.0, 999.0, 1000.0]);
        assert!(percentiles("x", Vec::new()).is_empty());
    }

    #[test]
    fn a_last_tenth_that_takes_longer_shows() {
        let watch = Watch::on(None).unwrap();
        let mut done = Vec::new();
        let pace = Pace::of(&watch, 25, |number| {
            done.push(number);
            Ok(())
        });
        assert_eq!(done, (0..25).collect::<Vec<_>>());
        assert!(pace.unwrap().memory.process > 0);
        let (ms, mut slow) = (Duration::from_millis, Pace { steps: 100, ..Pace::default() });
        slow.tenths = [ms(10); 10];
        slow.tenths[9] = ms(40);
        assert_eq!(slow.last_to_first(), 0.25);
        let values: Vec<f64> = slow.detail("x").values.iter().map(|(_, value)| *value).collect();
        assert_eq!((values[0].round(), values[1]), (769.0, 0.25));
    }
}
