//! `spinney scrub ...`: a command for each verb of `btrfs scrub`, in images and in mounts.

mod limit;
mod record;
mod report;
mod start;
mod status;

use super::Command;

pub const COMMANDS: &[&Command] =
    &[&start::COMMAND, &status::COMMAND, &start::RESUME, &status::CANCEL, &limit::COMMAND];

/// Another copy was no good either, or there was none.
const UNCORRECTABLE: u8 = 3;
