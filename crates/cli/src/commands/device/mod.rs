//! `spinney device ...`: what there is to tell of the one device of a volume.

mod stats;
mod usage;

use super::Command;

pub const COMMANDS: &[&Command] = &[&usage::COMMAND, &stats::COMMAND];
