//! How long single goes take: counted by size in classes, so that memory is bounded and nothing is sorted.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long goes took, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of them took no longer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
}

/// Goes by how long they took. Classes are within 3 % of each other.
#[derive(Clone, Debug, Default)]
pub(super) struct Latencies {
    /// By class; as many as were needed.
    counts: Vec<u64>,
}

impl Latencies {
    /// Counts one.
    pub(super) fn add(&mut self, time: Duration) {
        let class = class(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        if self.counts.len() <= class {
            self.counts.resize(class + 1, 0);
        }
        self.counts[class] += 1;
    }

    /// Counts those of another thread.
    pub(super) fn add_all(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, other) in self.counts.iter_mut().zip(&other.counts) {
            *count += other;
        }
    }

    /// The percentiles, if anything was counted.
    pub(super) fn percentiles(&self) -> Option<Latency> {
        Some(Latency {
            p50_us: self.percentile(0.50)?,
            p99_us: self.percentile(0.99)?,
        })
    }

    fn percentile(&self, share: f64) -> Option<f64> {
        let all: u64 = self.counts.iter().sum();
        let wanted = ((all as f64 * share).ceil() as u64).max(1);
        let mut so_far = 0;
        let class = self.counts.iter().position(|count| {
            so_far += count;
            so_far >= wanted
        })?;
        Some(middle(class) / 1e3)
    }
}

/// Classes for each power of two.
const PARTS: u64 = 32;

fn class(nanos: u64) -> usize {
    if nanos < PARTS {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - PARTS.ilog2();
    // At most 60 times 32.
    (u64::from(shift) * PARTS + (nanos >> shift)) as usize
}

/// The nanoseconds in the middle of a class.
fn middle(class: usize) -> f64 {
    let class = class as u64;
    if class < 2 * PARTS {
        return class as f64;
    }
    let shift = class / PARTS - 1;
    let width = (1_u64 << shift) as f64;
    ((class % PARTS + PARTS) as f64 + 0.5) * width
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_in_order_and_near_what_is_in_them() {
        let mut last = 0;
        for nanos in (0..200).chain([999, 1000, 123_456, 5_000_000, 77_000_000_000, u64::MAX]) {
            let class = class(nanos);
            assert!(class >= last);
            last = class;
            let off = (middle(class) - nanos as f64).abs();
            assert!(
                off <= nanos as f64 * 0.02 + 0.5,
                "{nanos}: {}",
                middle(class)
            );
        }
    }

    #[test]
    fn percentiles_are_those_of_all_threads() {
        let (mut one, mut other) = (Latencies::default(), Latencies::default());
        assert_eq!(one.percentiles(), None);
        (0..60).for_each(|_| one.add(Duration::from_micros(100)));
        (0..40).for_each(|_| other.add(Duration::from_micros(300)));
        one.add_all(&other);
        let found = one.percentiles().unwrap();
        assert!((found.p50_us - 100.0).abs() < 3.0, "{found:?}");
        assert!((found.p99_us - 300.0).abs() < 9.0, "{found:?}");
    }
}
