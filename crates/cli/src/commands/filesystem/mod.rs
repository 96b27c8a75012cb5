//! `spinney filesystem ...`: what is about a volume as a whole, in images and in mounts.

mod resize;

use super::Command;

pub const COMMANDS: &[&Command] = &[&resize::COMMAND];
