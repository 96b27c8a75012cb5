//! `spinney receive`.

mod mount;

use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::subvolume::place::{self, Place};
use crate::error::{Error, Exit, Result, say_error};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::Out;
use crate::sys::to_local;
use btrfs_fs::Subvol;
use btrfs_receiver::Options;
use btrfs_send::{Decoder, Dump};
use mount::InMount;
use spinney::ReceiveOptions;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub const COMMAND: Command = Command {
    name: "receive",
    summary: "make subvolumes from a stream of `send`",
    usage: "[-eq] [-f FILE] DIRECTORY\n    spinney receive --dump [-f FILE]",
    help: "\
Makes in DIRECTORY the subvolumes that a stream of `spinney send` or `btrfs send` has, of
protocol 1 or 2. What the stream builds on must be in the same volume, received there or
sent from there, and still be read-only. Each subvolume is read-only when it is complete.
After an error the one that was not completed stays, writable; delete it to try again.

Options
    -f FILE           read from FILE, not from standard input
    -e                end behind the first end command of the stream
    -q                say nothing but errors
    --dump            print what the stream says, a line for each command; nothing is changed
    --subvol PATH, --subvolid ID
                      DIRECTORY in an image starts from this subvolume, not the default one

Examples
    spinney send disk.img:/snap | spinney receive backup.img:/snapshots
    spinney receive --dump -f home.stream
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut dumps, mut file, mut verbose) = (false, None::<PathBuf>, true);
    let (mut operands, mut subvol) = (Vec::<OsString>::new(), Subvol::Default);
    let mut only_one = false;
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("dump") => dumps = true,
            Arg::Short('f') => file = Some(args.path()?),
            Arg::Short('e') => only_one = true,
            Arg::Short('v') | Arg::Long("verbose") => verbose = true,
            Arg::Short('q') | Arg::Long("quiet") => verbose = false,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    if dumps {
        let (name, input) = open(file.as_deref())?;
        return dump(&name, input);
    }
    let place = Place::parse(&args::one(operands, "DIRECTORY")?);
    let begun = |path: &Path| {
        if verbose {
            say_error(&format!("At subvol {}", path.display()));
        }
    };
    place::at(std::slice::from_ref(&place), subvol, true, |all, _| {
        let (name, input) = open(file.as_deref())?;
        let mut input = BufReader::with_capacity(1 << 18, input);
        match &place {
            Place::Image(inside) => {
                let dir = Path::new(OsStr::from_bytes(&inside.path));
                let options = ReceiveOptions::new().only_one(only_one);
                Ok(all.volume(inside)?.receive(dir, &mut input, &options, begun)?)
            }
            Place::Mount(dir) => into_mount(dir, (&name, &mut input), only_one, begun),
        }
    })
}

fn into_mount(
    dir: &Path,
    (name, input): (&str, &mut dyn Read),
    only_one: bool,
    begun: impl Fn(&Path),
) -> Result<()> {
    let mut target = InMount::new(dir)?;
    let mut last = dir.to_owned();
    let options = Options { only_one };
    let done = btrfs_receiver::receive(input, &mut target, options, &mut |subvolume, _| {
        last = dir.join(OsStr::from_bytes(subvolume));
        begun(&last);
    });
    done.map_err(|error| match error {
        btrfs_receiver::Error::Stream(error) => Error::about(name, error),
        error => Error::about(last.display(), error),
    })
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
