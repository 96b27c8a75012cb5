//! `spinney filesystem ...`: a command for each verb of `btrfs filesystem`, on images and mounts.

mod defragment;
mod df;
mod du;
pub mod label;
pub mod numbers;
mod resize;
mod show;
mod sync;
pub mod units;
mod usage;
mod usage_table;

use super::Command;

pub const COMMANDS: &[&Command] = &[
    &show::COMMAND,
    &df::COMMAND,
    &du::COMMAND,
    &usage::COMMAND,
    &label::COMMAND,
    &resize::COMMAND,
    &sync::COMMAND,
    &defragment::COMMAND,
];
