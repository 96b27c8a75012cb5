//! `spinney receive`.

use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::error::{Error, Exit, Result};
use crate::output::Out;
use crate::sys::to_local;
use btrfs_send::{Decoder, Dump};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

pub const COMMAND: Command = Command {
    name: "receive",
    summary: "tell what a stream of `send` has",
    usage: "--dump [-f FILE]",
    help: "\
Reads a stream that `btrfs send` wrote, of protocol 1 or 2.

Options
    --dump            print what the stream says, a line for each command; nothing is changed
    -f FILE           read from FILE, not from standard input

Examples
    spinney receive --dump -f home.stream
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut dumps, mut file) = (false, None::<PathBuf>);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("dump") => dumps = true,
            Arg::Short('f') => file = Some(args.path()?),
            other => return Err(args::unexpected(other)),
        }
    }
    if !dumps {
        return Err(Error::usage(
            "receive knows only --dump yet: what streams say is told, and not yet played",
        ));
    }
    let (name, input) = open(file.as_deref())?;
    dump(&name, input)
}

/// Where a stream comes from, and its name.
fn open(file: Option<&Path>) -> Result<(String, Box<dyn Read>)> {
    match file {
        None => Ok(("standard input".into(), Box::new(io::stdin().lock()))),
        Some(path) => {
            let file = File::open(path).map_err(|e| Error::io(path, &e))?;
            Ok((path.display().to_string(), Box::new(file)))
        }
    }
}

fn dump(name: &str, input: impl Read) -> Result<Exit> {
    let mut decoder = Decoder::new(BufReader::with_capacity(1 << 18, input));
    let mut dump = Dump::new(&time);
    let mut out = Out::new();
    loop {
        match decoder.next_command() {
            Ok(Some(command)) => {
                if let Some(line) = dump.line(&command) {
                    out.line(line)?;
                }
            }
            Ok(None) => break,
            Err(error) => {
                out.finish()?;
                return Err(Error::about(name, error));
            }
        }
    }
    out.finish()?;
    Ok(Exit::Done)
}

/// In local time, as `btrfs receive --dump` has it.
fn time((secs, _): btrfs_send::Time) -> String {
    let Some(t) = to_local(secs) else { return format!("@{secs}") };
    let sign = if t.offset < 0 { '-' } else { '+' };
    let minutes = t.offset.abs() / 60;
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{sign}{:02}{:02}",
        t.year,
        t.month,
        t.day,
        t.hour,
        t.minute,
        t.second,
        minutes / 60,
        minutes % 60
    )
}
