//! Workloads that exist once for each number of jobs: `NAME-1`, `NAME-2`, and so on.
//! Their rows make one table.

use super::{Detail, Info};
use crate::stats::Latency;

/// `[("NAME-1", 1), ...]`: names are static, so they are made here.
macro_rules! by_jobs {
    ($name:literal: $($jobs:literal),*) => {
        &[$((concat!($name, "-", $jobs), $jobs)),*]
    };
}

pub(super) use by_jobs;

/// The family and the number of jobs that a name such as `dbench-8` stands for.
pub fn family(name: &str) -> Option<(&str, u64)> {
    let (family, jobs) = name.rsplit_once('-')?;
    Some((family, jobs.parse().ok()?))
}

/// Keeps the rows with these numbers of jobs, and the workloads that have none.
pub fn wanted(info: &Info, jobs: &[u64]) -> bool {
    jobs.is_empty() || family(info.name).is_none_or(|(_, n)| jobs.contains(&n))
}

/// The name of the row that holds latencies of fsync.
pub const FSYNC: &str = "fsync ms";

/// Beside those latencies, how long the commit took in which they were taken.
pub const COMMIT: &str = "Commit";

pub(super) fn fsync_detail(latency: &Latency) -> Detail {
    Detail {
        name: FSYNC.to_string(),
        values: vec![
            ("Count", latency.count as f64),
            ("Average", latency.mean),
            ("p50", latency.p50),
            ("p99", latency.p99),
            ("p99.9", latency.p999),
            ("Max", latency.max),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_jobs() {
        assert_eq!(family("fio-fsync-seq64k-16"), Some(("fio-fsync-seq64k", 16)));
        assert_eq!(family("create-2t"), None);
        assert_eq!(family("untar"), None);
        let made: &[(&str, u64)] = by_jobs!("x": 1, 64);
        assert_eq!(made, [("x-1", 1), ("x-64", 64)]);
    }
}
