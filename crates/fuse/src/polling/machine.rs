//! Where polling pays.
//!
//! Measured is it on virtual machines with few processors: a halted one takes several
//! times longer to wake there than a request to serve. A real machine halts and wakes its
//! processors by itself; on a large one this many threads that keep them awake would be rude.
//! Where a quota limits the time of processors, waiting must not use it up.

use crate::sys;
use std::fs;
use std::thread;

/// Processors of a machine on which it pays, and below at most. Chosen; figures are of machines of two.
const FEWEST: usize = 2;
const MOST: usize = 8;

/// The processors on which it pays; none if it does not.
pub(crate) fn polling_pays() -> Vec<usize> {
    let processors = sys::usable_cpus();
    // What the standard library says takes quotas of control groups into account.
    let free = thread::available_parallelism().is_ok_and(|n| n.get() >= processors.len());
    let few = (FEWEST..=MOST).contains(&processors.len());
    if free && few && is_virtual() { processors } else { Vec::new() }
}

/// Whether a hypervisor has told this machine's processors of itself. Known of x86 alone.
fn is_virtual() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| names_hypervisor(&text))
}

fn names_hypervisor(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hypervisors_name_themselves() {
        assert!(names_hypervisor("processor: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n"));
        assert!(!names_hypervisor("processor: 0\nflags\t\t: fpu vme lahf_lm\n"));
        assert!(!names_hypervisor("hypervisor\n"));
    }
}
