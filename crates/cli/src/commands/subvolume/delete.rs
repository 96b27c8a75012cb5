//! `spinney subvolume delete`.

use super::doomed::Doomed;
use super::place::{self, Open, VolumePath};
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
        --dry-run         say what would be deleted, and delete nothing
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
    dry_run: bool,
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
            Arg::Long("dry-run") => options.dry_run = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let places = match id {
        Some(_) => vec![VolumePath::parse(&args::one(operands, "an image or a mount")?)],
        None => VolumePath::all(&args::some(operands, "a subvolume")?),
    };
    if options.dry_run {
        options.commit = Commit::Never;
    }
    place::at(&places, subvol, !options.dry_run, |open, failures| {
        delete_all(open, failures, (&places, id), &options)
    })
}

fn delete_all(
    open: &Open<'_>,
    failures: &Failures,
    (places, id): (&[VolumePath], Option<SubvolId>),
    options: &Options,
) -> Result<()> {
    // One for each volume that something was deleted in, with what is open of it: what was named is gone.
    let mut kept = Vec::<Doomed<'_>>::new();
    let (mut out, mut whole) = (Out::new(), true);
    for (at, place) in places.iter().enumerate() {
        let last = at + 1 == places.len();
        let commits = options.commit == Commit::Each || options.commit == Commit::After && last;
        let Some(doomed) = failures.keep(Doomed::find(open, place, id)) else { continue };
        let out = &mut out;
        let mut deletion = Deletion { open, place, options, commits, any: false, whole: true, out };
        failures.keep(deletion.run(&doomed, id.is_some()));
        whole &= deletion.whole;
        if deletion.any {
            kept.retain(|known| !known.same_volume(&doomed));
            kept.push(doomed);
        }
    }
    if options.commit == Commit::After {
        kept.iter().for_each(|doomed| whole &= failures.keep(doomed.sync()).is_some());
    }
    let committed = options.commit != Commit::Never && whole && !kept.is_empty();
    if committed && options.verbose && !options.quiet {
        out.line("Transaction committed")?;
    }
    out.finish()
}

/// What is named by one operand goes.
struct Deletion<'a, 'o> {
    open: &'a Open<'o>,
    place: &'a VolumePath,
    options: &'a Options,
    /// What is said of it.
    commits: bool,
    /// Something is gone.
    any: bool,
    /// No commit failed.
    whole: bool,
    out: &'a mut Out,
}

impl Deletion<'_, '_> {
    fn run(&mut self, doomed: &Doomed<'_>, by_number: bool) -> Result<()> {
        if self.options.recursive && self.run_inside(doomed, by_number)? {
            return self.deleted(doomed, doomed.id, &self.place.show());
        }
        if !self.options.dry_run {
            doomed.delete()?;
        }
        self.deleted(doomed, doomed.id, &self.place.show())
    }

    /// What lies in it goes, the deepest first; nothing, where it could not go itself. True: it is gone already, as
    /// nothing was in it any more.
    fn run_inside(&mut self, doomed: &Doomed<'_>, by_number: bool) -> Result<bool> {
        let all = self.open.all(self.place)?;
        let inside = below(&all, doomed.id);
        doomed.refuse_what_stays(self.open, &inside)?;
        // What lies in it is the last thing that the engine minds.
        if !inside.is_empty() && !self.options.dry_run && doomed.try_delete()? {
            return Ok(true);
        }
        let own = all.iter().find(|info| info.id == doomed.id);
        let own = own.map_or(&b""[..], |own| words::path(own));
        for info in inside {
            if !self.options.dry_run {
                doomed.delete_inside(info)?;
            }
            let path = words::path(info);
            let inside = path.strip_prefix(own).unwrap_or(path);
            let inside = inside.strip_prefix(b"/").unwrap_or(inside);
            let shown = match by_number {
                true => String::from_utf8_lossy(path).into_owned(),
                false => self.place.join(inside).show(),
            };
            self.deleted(doomed, info.id, &shown)?;
        }
        Ok(false)
    }

    /// Says so, and commits if each is to be.
    fn deleted(&mut self, doomed: &Doomed<'_>, id: SubvolId, path: &str) -> Result<()> {
        self.any = true;
        if !self.options.quiet {
            let how = if self.commits { "commit" } else { "no-commit" };
            self.out.line(format!("Delete subvolume {} ({how}): '{path}'", id.0))?;
        }
        match self.options.commit {
            Commit::Each => doomed.sync().inspect_err(|_| self.whole = false),
            _ => Ok(()),
        }
    }
}

/// All subvolumes in subvolume `id`, the deepest first.
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
