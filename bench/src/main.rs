//! `spinney-bench`: the command line, and the engine that its library side opens;
//! everything else is in the library, which knows no format.

mod engine;

use std::process::ExitCode;

fn main() -> ExitCode {
    spinney_bench::cli::main(std::env::args().skip(1).collect(), Some(engine::ENGINE))
}
