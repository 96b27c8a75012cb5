//! `spinney-bench`: the command line, and the engine that its library side opens;
//! everything else is in the library, which knows no format.

mod engine;

use std::process::ExitCode;

/// The program's allocator: the library's side is what the mount's server does without FUSE, and a
/// commit frees what other threads took, which glibc's does at a price.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("send") => spinney_bench::send::main(&words[1..]),
        Some("inode-memory") => spinney_bench::inode_memory::main(&words[1..], engine::ENGINE),
        Some("balance") => spinney_bench::balance::main(&words[1..]),
        Some("subvolumes") => spinney_bench::subvolumes::main(&words[1..]),
        #[cfg(feature = "count-contention")]
        Some("contention") => spinney_bench::contention::main(&words[1..], engine::ENGINE),
        _ => spinney_bench::cli::main(words, Some(engine::ENGINE)),
    }
}
