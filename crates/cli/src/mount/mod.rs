//! Mounting: from the words after `spinney mount` to a closed volume.
//!
//! `options` understands `-o`, `background` splits the process, `guard` watches over the
//! start, `serve` opens, mounts, waits and closes, `control` tells `spinney umount` how
//! that ended, `log` keeps what the server has to say. `fault` makes starts fail, in tests.

pub mod again;
pub mod background;
pub mod control;
mod fault;
pub mod guard;
pub mod log;
pub mod machine;
pub mod options;
pub mod remount;
pub mod serve;
