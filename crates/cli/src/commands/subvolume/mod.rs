//! `spinney subvolume ...`: a command for each verb of `btrfs subvolume`, in images and in mounts.

mod create;
mod delete;
mod doomed;
mod find_new;
mod get_default;
mod list;
pub mod place;
mod set_default;
mod show;
mod snapshot;
mod sync;
pub mod words;

use super::Command;

pub const COMMANDS: &[&Command] = &[
    &create::COMMAND,
    &snapshot::COMMAND,
    &delete::COMMAND,
    &list::COMMAND,
    &show::COMMAND,
    &get_default::COMMAND,
    &set_default::COMMAND,
    &find_new::COMMAND,
    &sync::COMMAND,
    &super::property::get::COMMAND,
    &super::property::list::COMMAND,
    &super::property::set::COMMAND,
];
