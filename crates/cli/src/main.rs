//! The `spinney` program: it parses, wires and prints, and holds no file-system logic.
//!
//! `commands/mod.rs` has the table of commands. Every command ends with 0 (done),
//! 1 (something failed, or was found wrong) or 2 (wrong usage); errors go to standard
//! error as `spinney: FILE: what happened`, with a line on what to do.
#![deny(unsafe_code)]

mod archive;
mod args;
mod commands;
mod door;
mod error;
mod image;
mod inside;
mod marks;
mod mode;
mod mount;
mod mounts;
mod out_file;
mod output;
mod partitions;
mod progress;
mod rescue_options;
mod show;
mod size;
#[allow(unsafe_code)]
mod sys;
mod when;
mod words;

use error::Exit;
use std::ffi::OsString;
use std::process::ExitCode;

/// The engine makes and drops many small things from many threads; glibc's allocator
/// spends more on them than the engine itself (docs/perf/journal.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    sys::outlive_file_limit();
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let called = if words.is_empty() { OsString::new() } else { words.remove(0) };
    match commands::dispatch(&called, words) {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(error) => {
            error.print();
            ExitCode::from(Exit::from(&error).code())
        }
    }
}
