//! `spinney subvolume delete`.

use super::place::{self, Open, Place};
use super::words;
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::error::{Exit, Result};
use crate::inside::Failures;
use crate::mount::options::subvol_path;
use crate::output::Out;
use btrfs_fs::Subvol;
use spinney::{SubvolId, SubvolumeInfo};
use std::ffi::OsString;

pub const COMMAND: Command = Command {
    name: "subvolume delete",
    summary: "delete subvolumes with all that is in them",
    usage: "\
[-c|-C] [-R] [-v|-q] SUBVOLUME...
[-c|-C] [-R] [-v|-q] -i ID VOLUME",
    help: "\
Deletes subvolumes and snapshots, by their paths or by number. Their names are gone at
once; their room comes back by and by (`spinney subvolume sync` waits for it; in an image
the next commands or mounts go on with it). What a crash undoes: a deletion in a mount
that was not committed yet. One is refused where other subvolumes lie in it, or if it is
the default one.

In a mount, root and who mounted the volume may delete; with `mount -o
user_subvol_rm_allowed` others may, as rmdir(2) would let them, if they may write to the
subvolume.

Options
    -c, --commit-after    be on the medium at the end
    -C, --commit-each     be on the medium after each of several
    -i, --subvolid ID     the subvolume with this number
    -R, --recursive       the subvolumes that lie in it first
    -v, --verbose         say what was committed
    -q, --quiet           say nothing of what was deleted
    --subvol PATH         paths in an image start from this subvolume, not the default one

Examples
    spinney subvolume delete disk.img:/home.monday
    spinney subvolume delete -c -R /mnt/machines/old
    spinney subvolume delete -i 300 /mnt
",
    run,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Commit {
    #[default]
    Never,
    After,
    Each,
}

#[derive(Default)]
struct Options {
    commit: Commit,
    recursive: bool,
    verbose: bool,
    quiet: bool,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut options, mut id, mut subvol) = (Options::default(), None, Subvol::Default);
    let mut operands = Vec::<OsString>::new();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('c') | Arg::Long("commit-after") => options.commit = Commit::After,
            Arg::Short('C') | Arg::Long("commit-each") => options.commit = Commit::Each,
            Arg::Short('i') | Arg::Long("subvolid") => id = Some(words::id(&args.text()?)?),
            Arg::Short('R') | Arg::Long("recursive") => options.recursive = true,
            Arg::Short('v') | Arg::Long("verbose") => options.verbose = true,
            Arg::Short('q') | Arg::Long("quiet") => options.quiet = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let places = match id {
        Some(_) => vec![Place::parse(&args::one(operands, "an image or a mount")?)],
        None => Place::all(&args::some(operands, "a subvolume")?),
    };
    place::at(&places, subvol, true, |open, failures| {
        let mut out = Out::new();
        for (at, place) in places.iter().enumerate() {
            let last = at + 1 == places.len();
            let commits = options.commit == Commit::Each || options.commit == Commit::After && last;
            let deleted = match id {
                Some(id) => delete_by_id(open, place, id, &options, commits, &mut out),
                None => delete(open, place, &options, commits, &mut out),
            };
            failures.keep(deleted);
        }
        commit_at_the_end(open, &places, &options, failures, &mut out)?;
        out.finish()
    })
}

fn delete(
    open: &Open<'_>,
    place: &Place,
    options: &Options,
    commits: bool,
    out: &mut Out,
) -> Result<()> {
    let info = open.rooted(place)?;
    if options.recursive {
        delete_below(open, place, info.id, options, commits, out)?;
    }
    open.delete(place)?;
    tell(out, options, commits, &format!("Delete subvolume {} ", info.id.0), &place.show())?;
    commit_each(open, place, options)
}

fn delete_by_id(
    open: &Open<'_>,
    place: &Place,
    id: SubvolId,
    options: &Options,
    commits: bool,
    out: &mut Out,
) -> Result<()> {
    if options.recursive {
        delete_below(open, place, id, options, commits, out)?;
    }
    open.delete_by_id(place, id)?;
    tell(out, options, commits, &format!("Delete subvolume {} ", id.0), &place.show())?;
    commit_each(open, place, options)
}

/// All subvolumes in subvolume `id`, the deepest first.
fn delete_below(
    open: &Open<'_>,
    place: &Place,
    id: SubvolId,
    options: &Options,
    commits: bool,
    out: &mut Out,
) -> Result<()> {
    for info in below(&open.all(place)?, id) {
        open.delete_by_id(place, info.id)?;
        let path = String::from_utf8_lossy(words::path(info)).into_owned();
        tell(out, options, commits, &format!("Delete subvolume {} ", info.id.0), &path)?;
        commit_each(open, place, options)?;
    }
    Ok(())
}

fn below(all: &[SubvolumeInfo], id: SubvolId) -> Vec<&SubvolumeInfo> {
    let (mut found, mut next) = (Vec::<&SubvolumeInfo>::new(), vec![id]);
    while let Some(above) = next.pop() {
        for info in all.iter().filter(|info| info.parent == Some(above)) {
            // In a circle of a damaged volume each comes once.
            if info.id != id && !found.iter().any(|known| known.id == info.id) {
                found.push(info);
                next.push(info.id);
            }
        }
    }
    found.reverse();
    found
}

fn tell(out: &mut Out, options: &Options, commits: bool, what: &str, path: &str) -> Result<()> {
    let how = if commits { "commit" } else { "no-commit" };
    match options.quiet {
        true => Ok(()),
        false => out.line(format!("{what}({how}): '{path}'")),
    }
}

fn commit_each(open: &Open<'_>, place: &Place, options: &Options) -> Result<()> {
    if options.commit == Commit::Each { open.sync(place) } else { Ok(()) }
}

fn commit_at_the_end(
    open: &Open<'_>,
    places: &[Place],
    options: &Options,
    failures: &Failures,
    out: &mut Out,
) -> Result<()> {
    if options.commit == Commit::After {
        for place in places {
            failures.keep(open.sync(place));
        }
    }
    match options.verbose && options.commit != Commit::Never && !options.quiet {
        true => out.line("Transaction committed"),
        false => Ok(()),
    }
}
