//! `spinney qgroup ...`: a command for each verb of `btrfs qgroup`, in images and in mounts.

mod clear_stale;
mod create;
mod group;
mod limit;
mod relate;
mod show;
mod table;

use super::Command;

pub const COMMANDS: &[&Command] = &[
    &create::CREATE,
    &create::DESTROY,
    &relate::ASSIGN,
    &relate::REMOVE,
    &limit::COMMAND,
    &show::COMMAND,
    &clear_stale::COMMAND,
];
