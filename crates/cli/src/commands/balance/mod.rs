//! `spinney balance ...`: a command for each verb of `btrfs balance`, in images and in mounts.

mod filters;
mod start;
mod status;
mod stop;

use super::Command;

pub const COMMANDS: &[&Command] =
    &[&start::COMMAND, &status::COMMAND, &stop::PAUSE, &start::RESUME, &stop::CANCEL];
