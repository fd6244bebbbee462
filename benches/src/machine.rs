//! Facts about the machine that figures were taken on, and what a process has used of it: from `/proc`, so Linux only.
//!
//! What cannot be read is absent or named as unknown; nothing here fails.

use serde::{Deserialize, Serialize};
use std::fs;

/// The machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The CPU's model, as it calls itself.
    pub cpu: String,
    /// Its clock in MHz as `/proc/cpuinfo` has it; some CPUs do not say.
    pub mhz: Option<f64>,
    /// Whether this is a virtual machine, so that the clock is what the host likes to say.
    pub is_virtual: bool,
    /// How many cores this process may use.
    pub cores: usize,
    /// The kernel's name and release.
    pub kernel: String,
}

impl Machine {
    /// This machine, now.
    pub fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::from_facts(&cpuinfo, &release, cores)
    }

    fn from_facts(cpuinfo: &str, release: &str, cores: usize) -> Self {
        let value = |names: &[&str]| {
            cpuinfo.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                names.contains(&name.trim()).then(|| value.trim())
            })
        };
        let release = match release.trim() {
            "" => "of unknown release",
            release => release,
        };
        Self {
            // x86, POWER, some ARM.
            cpu: value(&["model name", "cpu", "Model"])
                .filter(|name| !name.is_empty())
                .unwrap_or("unknown CPU")
                .to_owned(),
            mhz: value(&["cpu MHz", "clock"])
                .and_then(|mhz| mhz.trim_end_matches("MHz").parse().ok())
                .filter(|mhz| *mhz > 0.0),
            is_virtual: value(&["flags"])
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            cores,
            kernel: format!("Linux {release}"),
        }
    }

    /// The clock for people: `2100 MHz`, and a warning if it may not be the real one.
    pub fn clock(&self) -> String {
        match (self.mhz, self.is_virtual) {
            (None, _) => "clock unknown".to_owned(),
            (Some(mhz), false) => format!("{mhz:.0} MHz"),
            (Some(mhz), true) => {
                format!("{mhz:.0} MHz (a virtual machine's: the real clock may differ)")
            }
        }
    }
}

/// The most memory the process `pid` has had so far, in octets (`VmHWM`); this process for `None`.
///
/// `None` if there is no such process, or the kernel does not say.
pub fn peak_rss(pid: Option<u32>) -> Option<u64> {
    let path = match pid {
        None => "/proc/self/status".to_owned(),
        Some(pid) => format!("/proc/{pid}/status"),
    };
    peak_in_status(&fs::read_to_string(path).ok()?)
}

fn peak_in_status(status: &str) -> Option<u64> {
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_those_of_the_first_core() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 3.00GHz\ncpu MHz\t\t: 2992.968\n\
                       flags\t\t: fpu vme hypervisor lahf_lm\n\nprocessor\t: 1\ncpu MHz\t\t: 800.0\n";
        let machine = Machine::from_facts(cpuinfo, "6.1.0-18-amd64\n", 2);
        assert_eq!(machine.cpu, "Some CPU @ 3.00GHz");
        assert_eq!(machine.mhz, Some(2992.968));
        assert!(machine.is_virtual);
        assert_eq!(machine.kernel, "Linux 6.1.0-18-amd64");
        assert!(machine.clock().starts_with("2993 MHz (a virtual"));
    }

    #[test]
    fn a_cpu_that_says_nothing_is_unknown_and_not_zero() {
        let machine = Machine::from_facts("processor\t: 0\nBogoMIPS\t: 50.00\n", "", 4);
        assert_eq!(machine.cpu, "unknown CPU");
        assert_eq!(machine.mhz, None);
        assert!(!machine.is_virtual);
        assert_eq!(machine.clock(), "clock unknown");
        // A virtual flag is a whole word.
        assert!(!Machine::from_facts("flags : nohypervisor\n", "", 1).is_virtual);
    }

    #[test]
    fn peak_memory_is_in_octets() {
        assert_eq!(
            peak_in_status("Name:\tx\nVmHWM:\t    8112 kB\n"),
            Some(8_306_688)
        );
        assert_eq!(peak_in_status("Name:\tkthreadd\n"), None);
        let own = peak_rss(None).unwrap();
        assert!(own > 100_000);
        assert!(peak_rss(Some(std::process::id())).unwrap() >= own);
        assert_eq!(peak_rss(Some(u32::MAX)), None);
    }
}
