//! `spinney version`.

use super::Command;
use crate::args::Args;
use crate::error::{Exit, Result};
use crate::output::Out;

pub const COMMAND: Command = Command {
    name: "version",
    summary: "print the version",
    usage: "",
    help: "\
Prints the program's name and version. `spinney --version` is the same.

Examples
    spinney version
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    args.operands()?;
    print()
}

pub fn print() -> Result<Exit> {
    let mut out = Out::new();
    out.line(concat!("spinney ", env!("CARGO_PKG_VERSION")))?;
    out.finish()?;
    Ok(Exit::Done)
}
