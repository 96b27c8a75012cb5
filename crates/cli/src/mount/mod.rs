//! Mounting: from the words after `spinney mount` to a closed volume.
//!
//! `options` understands `-o`, `background` splits the process, `guard` watches over the
//! start, `serve` opens, mounts, waits and closes, `signals` has it end, `control` tells `spinney umount` how
//! that ended (where they meet `meeting` knows), `log` keeps what the server has to say. `remount` follows the kernel's `flags`, and
//! `changes` knows which other options may change. `sandbox` takes from the server what it does
//! not need to serve, `receive` plays streams on the volume that is served, `sending` holds what is
//! sent, and `monitor` is a process that does the rest for it. `begin` has a mount begin at its
//! subvolume, `again` mounts what is mounted, and `within` finds the subvolume there. `fault` makes
//! starts fail, in tests.

pub mod again;
pub mod background;
mod begin;
mod changes;
mod clock;
pub mod control;
mod fault;
mod flags;
pub mod guard;
pub mod log;
pub mod machine;
mod meeting;
mod memory;
mod monitor;
pub mod options;
pub mod receive;
pub mod remount;
pub mod request;
mod sandbox;
pub mod sending;
pub mod serve;
mod signals;
mod within;
