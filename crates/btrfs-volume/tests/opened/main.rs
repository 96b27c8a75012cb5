//! What can be opened, and by what.

#[path = "../common/mod.rs"]
mod common;

mod elsewhere;
mod hostile;
mod older;
mod open;
mod superblocks;
