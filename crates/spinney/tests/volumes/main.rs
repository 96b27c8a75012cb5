//! A volume by the library: made, claimed, shared by threads, changed in transactions, and how it ends.

#[path = "../common/mod.rs"]
mod common;

mod claims;
mod endings;
mod files;
mod format;
mod taken;
mod threads;
mod transactions;
mod transactions_adverse;
mod volume;
