//! Commits: when they happen, what they take along, who waits for them, and what a panic or an end in their midst leaves.

#[path = "../common/mod.rs"]
mod common;

mod commits;
mod easy;
mod landed;
mod no_threads;
mod observer;
mod panics;
mod shutdown;
mod slice;
mod steps;
mod threads;
mod world;
