//! `spinney-bench`: the command line; everything else is in the library.

fn main() -> std::process::ExitCode {
    spinney_bench::cli::main(std::env::args().skip(1).collect(), None)
}
