//! Subvolumes and snapshots, their numbers, and who may change them.

#[path = "../common/mod.rs"]
mod common;
#[path = "../harness/mod.rs"]
mod harness;

mod half_closed;
mod large_numbers;
mod many;
mod no_numbers;
mod numbers;
mod rights;
mod snapshot_beside;
mod snapshots;
mod strange_numbers;
mod subvolume_turns;
mod subvolumes;
