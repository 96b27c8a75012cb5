//! Space: what operations ask for, what full volumes refuse, and the structures that say what is free.

#[path = "../common/mod.rs"]
mod common;
#[path = "../harness/mod.rs"]
mod harness;

mod cache;
mod erasing;
mod freeing;
mod owned;
mod short;
mod takes_nothing;
