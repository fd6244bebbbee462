//! What the milter takes of the machine, read from outside: CPU time, to the nanosecond, and memory.
//!
//! CPU time is that of the process' CPU clock: all threads, those that have ended too, which the per-thread files of
//! proc(5) forget and the ticks of its `stat` round to 10 ms. A daemon of several processes is counted with those that
//! descend from the one named and are there when watching begins.

use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use std::fs;
use std::time::Duration;

/// A process and its descendants.
#[derive(Clone, Debug)]
pub struct Watched {
    pids: Vec<i32>,
}

impl Watched {
    /// Watches process `pid` and those that descend from it. `None` if there is no such process.
    ///
    /// This process is not among the descendants, in case a milter should run its own load.
    pub fn new(pid: i32) -> Option<Self> {
        if pid <= 0 || fs::metadata(format!("/proc/{pid}")).is_err() {
            return None;
        }
        let parents = parents();
        let mut pids = vec![pid];
        // Each round finds one more generation; pids come once, so that it ends.
        let mut done = 0;
        while done < pids.len() {
            let parent = pids[done];
            done += 1;
            pids.extend(
                parents
                    .iter()
                    .filter(|(_, of)| *of == parent)
                    .map(|(pid, _)| *pid),
            );
        }
        let own = std::process::id().cast_signed();
        pids.retain(|other| *other != own || pid == own);
        Some(Self { pids })
    }

    /// The process that was named.
    pub fn pid(&self) -> i32 {
        self.pids[0]
    }

    /// How many processes are watched.
    pub fn processes(&self) -> usize {
        self.pids.len()
    }

    /// CPU time of all of them so far. `None` once one has ended.
    pub fn cpu_time(&self) -> Option<Duration> {
        self.pids.iter().map(|&pid| cpu_time(pid)).sum()
    }

    /// Memory of all of them. `None` once one has ended. For several processes, shared pages count more than once.
    pub fn memory(&self) -> Option<Memory> {
        let all = self.pids.iter().map(|pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            Memory::parse(&status)
        });
        all.sum()
    }
}

/// Resident memory, in octets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Now.
    pub resident: u64,
    /// The largest ever.
    pub peak: u64,
}

impl Memory {
    /// Reads `/proc/PID/status`, which counts in KiB. `None` where there is no memory, as for a zombie.
    fn parse(status: &str) -> Option<Self> {
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
            Some(kib * 1024)
        };
        Some(Self {
            resident: value("VmRSS:")?,
            peak: value("VmHWM:")?,
        })
    }
}

impl std::iter::Sum for Memory {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            resident: sum.resident + one.resident,
            peak: sum.peak + one.peak,
        })
    }
}

fn cpu_time(pid: i32) -> Option<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).ok()?;
    let time = clock_gettime(clock).ok()?;
    // Neither is negative, and nanoseconds are below 10^9.
    Some(Duration::new(time.tv_sec() as u64, time.tv_nsec() as u32))
}

/// All processes with their parents.
fn parents() -> Vec<(i32, i32)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, parent(&stat)?))
    })
    .collect()
}

/// The parent in `/proc/PID/stat`. The name in it may contain anything, so what counts is behind its last bracket.
fn parent(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_proc_are_read() {
        let status = "Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t    20 kB\nVmRSS:\t    12 kB\n";
        let wanted = Memory {
            resident: 12 * 1024,
            peak: 20 * 1024,
        };
        assert_eq!(Memory::parse(status), Some(wanted));
        assert_eq!(Memory::parse("Name:\tx\nState:\tZ (zombie)\n"), None);
        assert_eq!(parent("7 (a) b) S 3 7 7 0"), Some(3));
        assert_eq!(parent("7 a"), None);
    }

    #[test]
    fn cpu_time_of_ended_threads_is_counted() {
        // Without descendants: other tests have some, which end.
        let pids = vec![std::process::id().cast_signed()];
        let own = Watched { pids };
        let before = own.cpu_time().unwrap();
        let busy = crate::rounds::thread_cpu_time;
        let thread = std::thread::spawn(move || {
            let start = busy();
            while busy() - start < Duration::from_millis(20) {}
        });
        thread.join().unwrap();
        assert!(own.cpu_time().unwrap() - before >= Duration::from_millis(20));
        assert!(own.memory().unwrap().peak > 0);
    }

    #[test]
    fn children_are_watched_and_missing_processes_are_not() {
        let mut child = std::process::Command::new("sleep")
            .arg("10")
            .spawn()
            .unwrap();
        let own = Watched::new(std::process::id().cast_signed()).unwrap();
        assert!(own.pids.contains(&child.id().cast_signed()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(own.cpu_time(), None);
        assert!(Watched::new(0).is_none());
        assert!(Watched::new(-1).is_none());
        assert!(Watched::new(i32::MAX).is_none());
    }
}
