//! Volumes that are not mounted: the verbs that look at them and change them.

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod bytes_of_names;
mod converted;
mod find;
mod inside;
mod loops;
mod marks;
mod odd_times;
mod offline;
mod partitions;
mod shells;
mod terminal;
mod tuned;
