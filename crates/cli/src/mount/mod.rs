//! Mounting: from the words after `spinney mount` to a closed volume.
//!
//! `options` understands `-o`, `background` splits the process, `serve` opens, mounts,
//! waits and closes, `control` tells `spinney umount` how that ended, `log` keeps what
//! the server has to say.

pub mod background;
pub mod control;
pub mod log;
pub mod options;
pub mod serve;
