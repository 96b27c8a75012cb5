//! The few numbers that a comparison needs. Samples are rates: more is better.

/// The middle of the samples; the mean of the two middle ones where their number is even.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|s| s.is_finite()).collect();
    if sorted.is_empty() {
        return None;
    }
    sorted.sort_by(f64::total_cmp);
    let mid = sorted.len() / 2;
    Some(if sorted.len() % 2 == 1 { sorted[mid] } else { (sorted[mid - 1] + sorted[mid]) / 2.0 })
}

/// Percentiles of latencies in milliseconds, from nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Latency {
    pub count: usize,
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Latency {
    /// The smallest sample that so many are not above, exactly. `None` without samples.
    pub fn of(mut nanoseconds: Vec<u64>) -> Option<Latency> {
        nanoseconds.sort_unstable();
        let count = nanoseconds.len();
        let highest = *nanoseconds.last()?;
        let ms = |ns: u64| ns as f64 / 1e6;
        let at = |share: f64| {
            let rank = (share * count as f64).ceil() as usize;
            ms(nanoseconds[rank.clamp(1, count) - 1])
        };
        let sum: u64 = nanoseconds.iter().sum();
        let (p50, p99, p999) = (at(0.5), at(0.99), at(0.999));
        Some(Latency { count, mean: ms(sum) / count as f64, p50, p99, p999, max: ms(highest) })
    }
}

/// One side against the baseline.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ratio {
    /// Ratio of the medians.
    pub value: f64,
    /// The lowest and highest ratio of two samples of the same round.
    pub low: f64,
    pub high: f64,
}

/// `side` over `baseline`; sample `i` of both must come from one round. `None` where
/// one of them has no sample or the baseline is 0.
pub fn ratio(side: &[Option<f64>], baseline: &[Option<f64>]) -> Option<Ratio> {
    let present = |samples: &[Option<f64>]| samples.iter().copied().flatten().collect::<Vec<_>>();
    let base = median(&present(baseline)).filter(|b| *b > 0.0)?;
    let value = median(&present(side))? / base;
    let rounds = side.iter().zip(baseline).filter_map(|(s, b)| match (s, b) {
        (Some(s), Some(b)) if *b > 0.0 => Some(s / b),
        _ => None,
    });
    let (low, high) = rounds.fold((value, value), |(l, h), r| (l.min(r), h.max(r)));
    Some(Ratio { value, low, high })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Pass,
    Miss,
    /// There is no aim for this workload.
    NoAim,
    /// There is no number to judge.
    NoResult,
}

impl Verdict {
    /// Judges as printed, with two decimals: what reads "0.60" reaches 0.6.
    pub fn of(ratio: Option<Ratio>, aim: Option<f64>) -> Verdict {
        match (ratio, aim) {
            (None, _) => Verdict::NoResult,
            (_, None) => Verdict::NoAim,
            (Some(r), Some(aim)) if (r.value * 100.0).round() / 100.0 >= aim => Verdict::Pass,
            _ => Verdict::Miss,
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Miss => "miss",
            Verdict::NoAim => "-",
            Verdict::NoResult => "no result",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[f64::NAN, 5.0]), Some(5.0));
    }

    #[test]
    fn percentiles_are_samples() {
        let latency = Latency::of((1..=1000).rev().map(|ms| ms * 1_000_000).collect()).unwrap();
        assert_eq!((latency.count, latency.mean), (1000, 500.5));
        let percentiles = (latency.p50, latency.p99, latency.p999, latency.max);
        assert_eq!(percentiles, (500.0, 990.0, 999.0, 1000.0));
        let one = Latency::of(vec![2_000_000]).unwrap();
        assert_eq!((one.p50, one.p999, one.max), (2.0, 2.0, 2.0));
        assert!(Latency::of(Vec::new()).is_none());
    }

    #[test]
    fn ratio_is_of_medians_and_spans_the_rounds() {
        let side = [Some(10.0), Some(30.0), Some(20.0)];
        let base = [Some(10.0), Some(10.0), Some(40.0)];
        assert_eq!(ratio(&side, &base), Some(Ratio { value: 2.0, low: 0.5, high: 3.0 }));
    }

    #[test]
    fn a_failed_round_drops_out() {
        let side = [None, Some(30.0)];
        let base = [Some(10.0), Some(10.0)];
        assert_eq!(ratio(&side, &base), Some(Ratio { value: 3.0, low: 3.0, high: 3.0 }));
        assert_eq!(ratio(&[None], &base), None);
        assert_eq!(ratio(&side, &[Some(0.0)]), None);
    }

    #[test]
    fn verdicts() {
        let r = |value| Some(Ratio { value, low: value, high: value });
        assert_eq!(Verdict::of(r(0.596), Some(0.6)), Verdict::Pass);
        assert_eq!(Verdict::of(r(0.594), Some(0.6)), Verdict::Miss);
        assert_eq!(Verdict::of(r(9.0), None), Verdict::NoAim);
        assert_eq!(Verdict::of(None, Some(0.6)), Verdict::NoResult);
    }
}
