//! Real mounts of a model file system, over both transports.
//!
//! Needs root, `/dev/fuse` and, for `fuseblk`, loop devices; what is missing is said
//! with `SKIPPED`. Mount points are made under the temporary directory and go away with
//! each test, also when it fails.

mod attributes;
mod broken;
mod files;
mod fixture;
mod held;
mod lifecycle;
mod listings;
mod lockstep;
mod names;
mod protocol;
mod spy;
mod stale;
mod starts;
mod sys;

/// Makes a test of a function of `&Mount` for each transport.
macro_rules! over_both_transports {
    ($($(#[$meta:meta])* $name:ident),* $(,)?) => {
        mod classic {
            $($(#[$meta])* #[test] fn $name() {
                crate::fixture::run(fuse::Transport::Classic, super::$name);
            })*
        }
        mod io_uring {
            $($(#[$meta])* #[test] fn $name() {
                crate::fixture::run(fuse::Transport::Uring, super::$name);
            })*
        }
    };
}
use over_both_transports;
