//! What the program prints as btrfs-progs does, under the name `btrfs`: `inspect-internal dump-tree`
//! and `dump-super`, line for line; `check` with its options and what it counts; `rescue`; and `device scan` and
//! `ready`, which only its scripts need.
//!
//! Invariants: standard output on the same image is that of btrfs-progs 6.2, but for the line that
//! tells the version. Names are bytes and go out as they are, up to their first NUL.
//!
//! It does not know our own formats (`dump_tree`, `dump_super`), which share nothing with these.

mod check;
mod device;
mod extents;
mod fields;
mod files;
mod items;
mod keys;
mod layout;
mod rescue;
mod superblock;
mod text;
mod tree;
mod walk;

use super::Command;

/// The commands that exist under that name alone.
const COMMANDS: &[&Command] = &[
    &tree::COMMAND,
    &superblock::COMMAND,
    &check::COMMAND,
    &device::SCAN,
    &device::READY,
    &rescue::ZERO_LOG,
    &rescue::SUPER_RECOVER,
    &rescue::FIX_DEVICE_SIZE,
    &rescue::CLEAR_SPACE_CACHE,
    &rescue::CLEAR_UUID_TREE,
    &rescue::CLEAR_INO_CACHE,
];

/// The one of this name.
pub fn named(name: &str) -> Option<&'static Command> {
    COMMANDS.iter().copied().find(|command| command.name == name)
}
