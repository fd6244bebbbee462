//! Rounds of several things to measure, taken in turn: clocks lie on shared machines, ratios within one run hardly do.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// One thing to measure: its name and the work of one go.
pub struct Subject<'a> {
    /// As it is called in the output.
    pub name: String,
    /// How many goes make one sample: enough to outweigh the clock.
    pub repeats: usize,
    /// One go. What comes out must be checked in it, or nobody knows what was measured.
    pub work: Box<dyn FnMut() + 'a>,
}

impl<'a> Subject<'a> {
    /// A subject of `repeats` goes a sample.
    pub fn new(name: impl Into<String>, repeats: usize, work: impl FnMut() + 'a) -> Self {
        Self {
            name: name.into(),
            repeats: repeats.max(1),
            work: Box::new(work),
        }
    }
}

/// Runs every subject once per round, A B C A B C, and gives for each the median of CPU seconds per go on this thread.
///
/// One round more is run first and not counted.
pub fn interleaved(rounds: usize, subjects: &mut [Subject<'_>]) -> Vec<f64> {
    let mut samples = vec![Vec::with_capacity(rounds); subjects.len()];
    for round in 0..=rounds {
        for (subject, samples) in subjects.iter_mut().zip(&mut samples) {
            let start = thread_cpu_time();
            (0..subject.repeats).for_each(|_| (subject.work)());
            let sample = (thread_cpu_time() - start).as_secs_f64() / subject.repeats as f64;
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    samples.into_iter().map(median).collect()
}

/// The middle one of `samples`, or what is between the two that are; 0 for none.
pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    let count = samples.len();
    match count {
        0 => 0.0,
        _ => f64::midpoint(samples[(count - 1) / 2], samples[count / 2]),
    }
}

/// CPU time that this thread has used.
pub fn thread_cpu_time() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// CPU time that all threads of this process have used.
pub fn process_cpu_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    // Neither is negative, and nanoseconds are below 10^9.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_of_any_order() {
        assert_eq!(median(vec![9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(vec![2.0, 9.0, 1.0, 4.0]), 3.0);
        assert_eq!(median(vec![]), 0.0);
    }

    #[test]
    fn subjects_take_turns_and_each_go_counts() {
        let log = std::cell::RefCell::new(String::new());
        let mut subjects = [
            Subject::new("a", 2, || log.borrow_mut().push('a')),
            Subject::new("b", 0, || log.borrow_mut().push('b')),
        ];
        assert_eq!(interleaved(2, &mut subjects).len(), 2);
        drop(subjects);
        assert_eq!(log.into_inner(), "aabaabaab");
    }
}
