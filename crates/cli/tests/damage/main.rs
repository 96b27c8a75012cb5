//! Damaged volumes by the command line: what is told of them, and what can be got out.

#[path = "../common/mod.rs"]
mod common;

mod damaged;
mod damaged_log;
mod passes_over;
mod remedies;
mod rescue_words;
mod rescues;
mod unreadable;
