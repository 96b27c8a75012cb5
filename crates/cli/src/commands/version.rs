//! `spinney version`.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result};
use crate::output::{Json, Out};

pub const COMMAND: Command = Command {
    name: "version",
    summary: "print the version",
    usage: "[--json]",
    help: "\
Prints the program's name and version. `spinney --version` is the same.

Options
    --json    as a JSON object

Examples
    spinney version
    spinney version --json | jq -r .version
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut json, mut operands) = (false, Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    if let Some(word) = operands.first() {
        return Err(Error::usage(format!("unexpected word {}", args::show(word))));
    }
    if json { print_json() } else { print() }
}

fn print_json() -> Result<Exit> {
    let mut out = Out::new();
    out.line(Json::object(|o| {
        o.text("name", "spinney").text("version", env!("CARGO_PKG_VERSION"));
    }))?;
    out.finish()?;
    Ok(Exit::Done)
}

/// The btrfs-progs whose words and JSON `btrfs` has (of text that older ones print, too, it has theirs).
const PROGS: &str = "6.14";

/// As `btrfs version`: programs that ask which btrfs-progs is there (LXD and Incus, snapper, libstorage-ng) read
/// the first line, in exactly this form.
pub fn print_as_btrfs() -> Result<Exit> {
    let mut out = Out::new();
    out.line(format!("btrfs-progs v{PROGS}"))?;
    out.line(concat!("spinney ", env!("CARGO_PKG_VERSION")))?;
    out.finish()?;
    Ok(Exit::Done)
}

pub fn print() -> Result<Exit> {
    let mut out = Out::new();
    out.line(concat!("spinney ", env!("CARGO_PKG_VERSION")))?;
    out.finish()?;
    Ok(Exit::Done)
}
