//! The tree log: what fsyncs wrote after the last commit, in the kernel's format.

mod read;
mod recover;
mod replay;

pub use recover::recover;
