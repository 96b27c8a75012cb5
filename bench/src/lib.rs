//! Workloads, run on two or more file systems side by side in one run.
//!
//! A *workload* (`workload`) speaks to a *target* (`target`: system calls on a
//! directory, or the library trait in this process). A *side* (`side`) provides the
//! target: a directory, an image mounted by the kernel, one mounted by `spinney`, or one
//! opened by the engine in this process. The *runner* alternates the sides,
//! and `report` turns what it measured into text, JSON and a plot.
//!
//! What it does not know: any on-disk format.

pub mod balance;
pub mod cli;
#[cfg(feature = "count-contention")]
pub mod contention;
pub mod counters;
pub mod index;
pub mod inode_memory;
pub mod null;
pub mod report;
pub mod runner;
pub mod send;
pub mod side;
pub mod stats;
pub mod subvolumes;
pub mod target;
pub mod workload;

mod burners;
mod memory;
mod rng;
mod source_tree;
mod sys;
mod watchdog;
