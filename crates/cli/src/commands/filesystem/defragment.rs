//! `spinney filesystem defragment`.

use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::subvolume::place::{self, Open, VolumePath};
use crate::error::{Error, Exit, Result};
use crate::inside::Failures;
use crate::mount::options::{method, subvol_id, subvol_path};
use crate::output::Out;
use btrfs_fs::{Defragment, Method, Subvol};
use std::ffi::OsString;

pub const COMMAND: Command = Command {
    name: "filesystem defragment",
    summary: "write files anew in fewer, longer extents, or compressed",
    usage: "[-rvf] [-c[TYPE]] [-s START] [-l LENGTH] [-t SIZE] PATH...",
    help: "\
Writes content that lies in several short extents side by side anew, in longer ones. Nothing
else of a file changes. What a reflink or a snapshot has, too, stays as it is, so nothing is
stored twice; `btrfs filesystem defragment` of the kernel's does not care. PATH is in a mount
or in an image; directories are passed over, unless -r says otherwise.

Options
    -r                all files below directories of the same subvolume
    -c[=TYPE]         compress it all: zlib (also without TYPE), lzo or zstd, with :LEVEL
                      behind
    -L, --level N     the level of -c, where that has none; 0: the usual one
    -s START, -l LENGTH
                      that part of each file
    -t SIZE           leave extents of this size as they are (32M; above 8M it is 8M, as
                      much as is written at a time)
        --unshare     also what somebody else has: it is stored twice then
    -f                wait until it is on the medium
    -v                tell the names of the files
    --step SIZE       taken, and without effect: 8M are written at a time
    --subvol PATH, --subvolid ID
                      paths in an image start from this subvolume, not the default one

Examples
    spinney filesystem defragment -r -czstd /mnt/logs
    spinney filesystem defragment -v disk.img:/database
",
    run,
};

/// Where none is given, as btrfs-progs has it.
const TARGET: u64 = 32 << 20;

#[derive(Default)]
struct Words {
    /// What -c and -L say.
    method: Option<String>,
    level: Option<String>,
    wish: Defragment,
    recursive: bool,
    verbose: bool,
    flush: bool,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut words, mut subvol) = (Words::default(), Subvol::Default);
    words.wish.target = TARGET;
    let mut operands = Vec::<OsString>::new();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('r') => words.recursive = true,
            Arg::Short('v') | Arg::Long("verbose") => words.verbose = true,
            Arg::Short('f') => words.flush = true,
            Arg::Short('c') => {
                words.method = Some(args.optional_value().map_or(Ok(String::new()), args::text)?)
            }
            Arg::Short('L') | Arg::Long("level") => words.level = Some(args.text()?),
            Arg::Short('s') => words.wish.start = args.size()?,
            Arg::Short('l') => words.wish.len = len(args.size()?),
            Arg::Short('t') => words.wish.target = args.size()?,
            Arg::Long("step") => _ = args.size()?,
            Arg::Long("unshare") => words.wish.unshare = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    if operands.is_empty() {
        return Err(Error::usage("the path is missing"));
    }
    words.wish.compress = compression(&words)?;
    let places: Vec<VolumePath> =
        operands.iter().map(|word| VolumePath::of_any_file(word)).collect();
    place::at(&places, subvol, true, |open, failures| {
        let mut out = Out::new();
        for place in &places {
            failures.keep(one(open, place, &words, &mut out, failures));
        }
        out.finish()
    })
}

/// As with btrfs-progs.
fn len(said: u64) -> u64 {
    if said == 0 { u64::MAX } else { said }
}

fn compression(words: &Words) -> Result<Option<Method>> {
    let Some(named) = words.method.as_deref() else { return Ok(None) };
    let named = if named.is_empty() && words.level.is_some() { "zlib" } else { named };
    let level = words.level.as_deref().filter(|level| *level != "0" && !named.contains(':'));
    Ok(Some(match (named, level) {
        ("", _) => Method::DEFAULT,
        (named, None) => method("-c", named)?,
        (named, Some(level)) if is_level(named, level) => {
            method("-c", &format!("{named}:{level}"))?
        }
        (named, Some(level)) => {
            return Err(Error::usage(format!("-L: {named} has no level {level}")));
        }
    }))
}

/// What a mount option would round is refused here.
fn is_level(named: &str, level: &str) -> bool {
    let levels = if named == "zstd" { -15..=15 } else { 1..=9 };
    level.parse::<i32>().is_ok_and(|level| levels.contains(&level))
}

/// A file, or the files below a directory.
fn one(
    open: &Open<'_>,
    place: &VolumePath,
    words: &Words,
    out: &mut Out,
    failures: &Failures,
) -> Result<()> {
    if !open.is_dir(place)? {
        return file(open, place, words, out);
    }
    if !words.recursive {
        return Ok(());
    }
    open.files_below(place, failures, &mut |found| {
        match file(open, found, words, out) {
            // Somebody removed it meanwhile.
            Err(_) if !open.is_there(found) => {}
            done => _ = failures.keep(done),
        }
        Ok(())
    })
}

fn file(open: &Open<'_>, place: &VolumePath, words: &Words, out: &mut Out) -> Result<()> {
    if words.verbose {
        out.line(place.bytes())?;
    }
    open.defragment(place, &words.wish)?;
    match words.flush {
        true => open.sync(place),
        false => Ok(()),
    }
}
