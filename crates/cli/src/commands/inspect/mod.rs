//! `spinney inspect-internal ...`: what `btrfs inspect-internal` tells, of images and mounts.

mod chunks;
mod inode;
mod logical;
mod min_dev_size;
mod rootid;
mod seeks;
mod subvolid;
mod tree_stats;

use super::Command;

pub const COMMANDS: &[&Command] = &[
    &rootid::COMMAND,
    &inode::COMMAND,
    &subvolid::COMMAND,
    &logical::COMMAND,
    &min_dev_size::COMMAND,
    &chunks::COMMAND,
    &tree_stats::COMMAND,
];
