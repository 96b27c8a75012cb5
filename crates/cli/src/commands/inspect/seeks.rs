//! How scattered the nodes of a tree are, as btrfs-progs counts it: from each node to its children, one
//! behind the other.

use std::collections::BTreeMap;

/// Below this many a histogram says nothing.
const HISTOGRAM_FROM: u64 = 20;

/// What was counted on the way.
#[derive(Debug, Default)]
pub struct Seeks {
    pub forward: u64,
    pub backward: u64,
    length: u64,
    by_distance: BTreeMap<u64, u64>,
    /// Nodes that lie behind each other, more than one: how many such runs, their bytes.
    clusters: u64,
    cluster_bytes: u64,
    smallest: Option<u64>,
    largest: u64,
    lowest: Option<u64>,
    highest: u64,
}

/// Bars of a histogram: distances from, to, how many, and how long the bar is.
pub type Bar = (u64, u64, u64, u64);

impl Seeks {
    /// A node at `at`, and its children in order.
    pub fn node(&mut self, at: u64, size: u64, children: impl Iterator<Item = u64>) {
        let (mut last, mut cluster) = (at, size);
        self.reach(at);
        for child in children {
            // What a damaged pointer says may be any number.
            if last.checked_add(size) == Some(child) {
                cluster += size;
            } else {
                self.seek(last, child, size);
                self.end_cluster(cluster, size);
                cluster = size;
            }
            last = child;
            self.reach(child);
        }
    }

    fn reach(&mut self, at: u64) {
        self.lowest = Some(self.lowest.map_or(at, |lowest| lowest.min(at)));
        self.highest = self.highest.max(at);
    }

    fn seek(&mut self, last: u64, next: u64, size: u64) {
        let distance = last.saturating_add(size).abs_diff(next);
        self.length = self.length.saturating_add(distance);
        *self.by_distance.entry(distance).or_default() += 1;
        match last < next {
            true => self.forward += 1,
            false => self.backward += 1,
        }
    }

    fn end_cluster(&mut self, cluster: u64, size: u64) {
        if cluster == size {
            return;
        }
        self.clusters += 1;
        self.cluster_bytes += cluster;
        self.smallest = Some(self.smallest.map_or(cluster, |least| least.min(cluster)));
        self.largest = self.largest.max(cluster);
    }

    pub fn total(&self) -> u64 {
        self.forward + self.backward
    }

    pub fn average(&self) -> u64 {
        self.length / self.total().max(1)
    }

    pub fn clusters(&self) -> u64 {
        self.clusters.max(1)
    }

    pub fn average_cluster(&self) -> u64 {
        self.cluster_bytes / self.clusters()
    }

    /// One node alone is none that would be small, but one of its size.
    pub fn cluster_sizes(&self, size: u64) -> (u64, u64) {
        (self.smallest.unwrap_or(0), self.largest.max(size))
    }

    pub fn spread(&self) -> u64 {
        self.highest - self.lowest.unwrap_or(self.highest)
    }

    /// Few seeks of one distance are put together with the next ones, until they are enough for a bar of
    /// three. The distance at which that is seen has a bar of its own, or none.
    pub fn histogram(&self) -> Vec<Bar> {
        if self.total() < HISTOGRAM_FROM {
            return Vec::new();
        }
        let tick = self.total() / HISTOGRAM_FROM;
        let (mut bars, mut group) = (Vec::new(), None::<(u64, u64, u64)>);
        for (&distance, &count) in &self.by_distance {
            let (few, gathered) = (count / tick <= 2, group.map_or(0, |(_, _, n)| n / tick));
            if few && gathered <= 2 {
                let (from, _, before) = group.unwrap_or((distance, distance, 0));
                group = Some((from, distance, before + count));
                continue;
            }
            bars.extend(group.take().map(|(from, to, n)| (from, to, n, n / tick)));
            if !few {
                bars.push((distance, distance, count, count / tick));
            }
        }
        bars.extend(group.map(|(from, to, n)| (from, to, n, n / tick)));
        bars
    }

    /// Digits of the longest distance.
    pub fn width(&self) -> usize {
        self.by_distance.keys().next_back().map_or(1, |longest| longest.to_string().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_may_be_a_child() {
        let mut seeks = Seeks::default();
        let last = u64::MAX - 4095;
        seeks.node(8192, 4096, [12288, last, 4096, last].into_iter());
        seeks.node(last, 4096, [last, 0].into_iter());
        assert_eq!((seeks.forward, seeks.backward, seeks.clusters()), (2, 3, 1));
        assert_eq!(seeks.spread(), last);
    }
}
