//! `cargo xtask`: the checks of this workspace that cargo itself does not do.
//!
//! Each command reads (metadata, sources, a test log), prints what it found and
//! ends with 0 when all is well, 1 when something is not. Nothing here changes a file.

mod circles;
mod file_size;
mod fn_length;
mod layers;
mod licences;
mod lints;
mod modules;
mod released;
mod run_tests;
mod summary;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND
  layers [--picture]          hold the dependencies between crates, and between the modules of the
                              large ones, against the plan, and let no two files import each
                              other; or print the layers of both
  licences                    hold the licences and sources of all dependencies against deny.toml
  released                    hold every package against the list of features that no release has
  file-size [--strict]        list Rust files over 600 lines; with --strict they are an error
  fn-length                   functions over 40 lines may only become fewer
  lints                       every library refuses items without documentation, and `pub` ones
                              that nobody can reach; public enums say whether variants may come;
                              where bytes become numbers none is cut; what wraps a file system
                              or a block device passes on all calls
  tests                       build and run all test programs, one for each processor at a time
  ci-summary --log LOG [--status N] [--skips FILE] [--gate-passed NAME]... [--gate-failed NAME]...
                              count test results; the last line is `N passed, M failed, K skipped`";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match args.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("", &[][..]),
    };
    let result = match command {
        "layers" if rest == ["--picture"] => {
            print!("{}", layers::pictures());
            Ok(true)
        }
        "layers" => layers::run(),
        "licences" => licences::run(),
        "lints" if rest.is_empty() => lints::run(),
        "released" => released::run(),
        "file-size" => file_size::run(rest),
        "fn-length" => fn_length::run(),
        "tests" if rest.is_empty() => run_tests::run(),
        "ci-summary" => summary::run(rest),
        _ => Err(USAGE.to_string()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}
