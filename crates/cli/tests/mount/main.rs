//! Mounts: how they start and end, who may have them, and what they are to the machine.

#[path = "../common/mod.rs"]
mod common;

mod again;
mod begins;
mod contained;
mod guest;
mod held;
mod helpers;
mod memory;
mod mounts;
mod other_subvolumes;
mod remount;
mod sandbox;
mod signals;
mod silent_loops;
mod starts;
mod strangers;
