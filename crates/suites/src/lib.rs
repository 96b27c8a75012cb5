//! What the suites in `tests/` stand on: volumes mounted by the `spinney` program as a
//! user would, tools from outside, and time limits.
//!
//! Nothing here is part of the shipped program, and nothing here knows the engine: the
//! volume is judged from outside, by the kernel, btrfs-progs and `spinney check`.

mod command;
mod program;
mod volume;

pub use command::{Limited, shell};
pub use program::{Tool, spinney, tool};
pub use volume::{
    Mounted, TRANSPORTS, Volume, assert_sound, assert_sound_after_kill, lacking, transports,
};

/// A number from the environment: how long a suite goes on, and with what.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
