//! `btrfs check`: the check of `spinney check` by btrfs-progs' command lines, with what that prints.
//!
//! Invariants: nothing is ever written; an option that would write is refused by name.
//!
//! Standard output is that of btrfs-progs 6.14; findings go to standard error, in words of ours.

use super::tree::number;
use crate::args::{Arg, Args, one, unexpected};
use crate::commands::offline::{Offline, disk_error, uuid};
use crate::commands::{Command, check};
use crate::error::{Error, Exit, Result, say_error};
use crate::image::Access;
use crate::output::Out;
use crate::size::count;
use btrfs_check::{CheckOptions, QuotaBytes, QuotaCount, Report, Severity};
use btrfs_disk::superblock::COPIES;
use btrfs_disk::{Logical, TreeId};
use btrfs_volume::Start;
use std::ffi::OsString;
use std::path::Path;

pub const COMMAND: Command = Command {
    name: "check",
    summary: "look for damage in a volume",
    usage: "[OPTIONS] DEVICE",
    help: "\
Reads every tree of the volume and compares all that one says of another, as `spinney check`
does. Nothing is ever written. What is found is told on standard error, and how much there is
on standard output, as btrfs-progs 6.14 counts it.

Options
    -s, --super N          begin by this copy of the superblock, from 0 on
    -b, --backup           by the newest backup of roots that is not the last commit's
    -r, --tree-root LOGICAL  by a root tree that begins there
        --chunk-root LOGICAL  by a chunk tree that begins there
        --readonly         change nothing; it never does
        --force            also where the volume is in use
        --mode MODE        original or lowmem; all the same here
        --check-data-csum  verify content, too
    -Q, --qgroup-report    tell what quota groups hold and should, and nothing else
    -E, --subvol-extents ID  tell extents of a subvolume and who shares them, and nothing else
    -p, --progress         taken; a terminal is always told
        --repair           refused: see what the message says
        --init-csum-tree   refused
        --init-extent-tree  refused
        --clear-space-cache VERSION  refused: see `btrfs rescue`
        --clear-ino-cache  refused: see `btrfs rescue`

Examples
    btrfs check --readonly disk.img
    btrfs check -s 1 disk.img

Exit codes
    0  no errors and no warnings
    1  errors or warnings were found, what -Q or -E asks for is not known, or the volume
       cannot be opened
",
    run,
};

#[derive(Default)]
struct Wanted {
    image: OsString,
    start: Start,
    force: bool,
    data: bool,
    quotas: bool,
    sharing_of: Option<TreeId>,
}

fn parse(mut args: Args) -> Result<Wanted> {
    let (mut operands, mut wanted) = (Vec::new(), Wanted::default());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('s') | Arg::Long("super") => wanted.start.copy = Some(copy(&args.text()?)?),
            Arg::Short('b') | Arg::Long("backup") => wanted.start.backup = true,
            Arg::Short('r') | Arg::Long("tree-root") => {
                wanted.start.root = address(&args.text()?)?;
            }
            Arg::Long("chunk-root") => wanted.start.chunk_root = address(&args.text()?)?,
            Arg::Long("readonly" | "progress") | Arg::Short('p') => {}
            Arg::Long("force") => wanted.force = true,
            Arg::Long("mode") => mode(&args.text()?)?,
            Arg::Long("check-data-csum") => wanted.data = true,
            Arg::Short('Q') | Arg::Long("qgroup-report") => wanted.quotas = true,
            Arg::Short('E') | Arg::Long("subvol-extents") => {
                wanted.sharing_of = Some(TreeId(number(&args.text()?)?));
            }
            Arg::Long(
                option @ ("repair" | "init-csum-tree" | "init-extent-tree" | "clear-space-cache"
                | "clear-ino-cache"),
            ) => return Err(refused(option)),
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    Ok(Wanted { image: one(operands, "a device")?, ..wanted })
}

fn copy(word: &str) -> Result<usize> {
    let copy = number(word)?;
    let known = usize::try_from(copy).ok().filter(|copy| *copy < COPIES.len());
    known.ok_or_else(|| Error::usage(format!("super mirror should be less than {}", COPIES.len())))
}

/// 0 is nowhere.
fn address(word: &str) -> Result<Option<Logical>> {
    Ok(Some(Logical(number(word)?)).filter(|at| at.0 != 0))
}

fn mode(word: &str) -> Result<()> {
    match word {
        "original" | "lowmem" => Ok(()),
        _ => Err(Error::usage(format!("unknown mode: {word}"))),
    }
}

fn refused(option: &str) -> Error {
    let error = Error::new(format!("`btrfs check --{option}` is not there yet"));
    match option {
        "clear-space-cache" | "clear-ino-cache" => {
            error.remedy(format!("use `btrfs rescue {option}`"))
        }
        _ => error.remedy(
            "`spinney scrub start` mends bad copies by good ones, `btrfs rescue` some more; \
             `btrfs restore` and `spinney cp` take out what is left",
        ),
    }
}

fn run(args: Args) -> Result<Exit> {
    let wanted = parse(args)?;
    let (path, mut out) = (Path::new(&wanted.image), Out::new());
    let opened = open(&mut out, &wanted);
    if opened.is_err() {
        out.finish()?;
    }
    let offline = opened?;
    let shown = path.display();
    let id = uuid(&offline.volume.superblock().fields.fsid);
    out.line(format!("Checking filesystem on {shown}\nUUID: {id}"))?;
    let options = CheckOptions {
        verify_data: wanted.data,
        quota_report: true,
        sharing_of: wanted.sharing_of,
        ..CheckOptions::default()
    };
    let report = check::with_progress(&offline, options).map_err(|e| disk_error(path, &e))?;
    let asked = match (wanted.quotas, wanted.sharing_of) {
        (true, _) => {
            out.line(format!("Print quota groups report for {shown}\nUUID: {id}"))?;
            groups(&mut out, &report, true)?;
            report.quotas.is_some() || was_counted(&report)
        }
        (false, Some(tree)) => {
            out.line(format!("Print extent state for subvolume {tree} on {shown}\nUUID: {id}"))?;
            sharing(&mut out, &report)?;
            was_counted(&report)
        }
        (false, None) => judge(&mut out, &offline, &report, &wanted.start)?,
    };
    out.finish()?;
    Ok(Exit::failed_if(!asked))
}

fn open(out: &mut Out, wanted: &Wanted) -> Result<Offline> {
    if let Some(copy) = wanted.start.copy {
        out.line(format!("using SB copy {copy}, bytenr {}", COPIES[copy]))?;
    }
    out.line("Opening filesystem to check...")?;
    let access = if wanted.force { Access::Peek } else { Access::Read };
    Offline::open_at(Path::new(&wanted.image), access, &wanted.start).and_then(with_root)
}

/// Whether it is clean.
fn judge(out: &mut Out, offline: &Offline, report: &Report, start: &Start) -> Result<bool> {
    let clean = is_clean(offline, report, start);
    tell(report);
    groups(out, report, false)?;
    totals(out, offline, report, clean)?;
    Ok(clean)
}

/// Without its root tree there is nothing to check.
fn with_root(offline: Offline) -> Result<Offline> {
    let root = offline.root(TreeId::ROOT)?.expect("the superblock names it");
    offline.explain(offline.volume.read_node(&root.expect()))?;
    Ok(offline)
}

/// A root that is of another commit than the superblock is damage, unless a backup was asked for.
fn is_clean(offline: &Offline, report: &Report, start: &Start) -> bool {
    let (root, last) = (offline.volume.root_generation(), offline.volume.superblock().generation());
    let agrees = root == last || start.backup;
    if !agrees {
        say_error(&format!("the root tree is of generation {root}, the superblock of {last}"));
    }
    report.is_clean() && agrees
}

fn tell(report: &Report) {
    let mut left = report.count(Severity::Error) + report.count(Severity::Warning);
    for finding in report.findings.iter().filter(|f| f.severity != Severity::Note) {
        say_error(&format!("{}: {finding}", finding.severity.name()));
        left -= 1;
    }
    if left > 0 {
        say_error(&format!("... and {} more", count(left, "finding")));
    }
}

/// Whether it is known who reaches what; where it is not that is told.
fn was_counted(report: &Report) -> bool {
    if report.uncounted {
        say_error(
            "error: subvolumes share in more ways than are counted: nothing is known of them",
        );
    }
    !report.uncounted
}

/// Groups whose numbers are wrong, or all of them.
fn groups(out: &mut Out, report: &Report, all: bool) -> Result<()> {
    let Some(quotas) = &report.quotas else { return Ok(()) };
    match (quotas.rescanning, quotas.inconsistent) {
        (true, _) if !all => {
            return out.line("Qgroup rescan is running, qgroups will not be printed.");
        }
        (true, _) => {
            out.line("Qgroup rescan is running, a difference in qgroup counts is expected")?
        }
        // As it is spelt there.
        (false, true) => out.line(
            "Rescan hasn't been initialzied, a difference in qgroup accounting is expected",
        )?,
        (false, false) => {}
    }
    for group in &quotas.groups {
        let differs = group.stored != group.counted;
        if !all && !differs {
            continue;
        }
        let (level, id) = (group.id >> 48, group.id & ((1 << 48) - 1));
        let differs_word = if differs { "are different" } else { "" };
        out.line(format!("Counts for qgroup id: {level}/{id} {differs_word}"))?;
        numbers(out, group, "referenced", |bytes| bytes.referenced)?;
        numbers(out, group, "exclusive", |bytes| bytes.exclusive)?;
    }
    Ok(())
}

fn numbers(
    out: &mut Out,
    group: &QuotaCount,
    what: &str,
    of: impl Fn(&QuotaBytes) -> u64,
) -> Result<()> {
    let (counted, stored) = (of(&group.counted), of(&group.stored));
    let line = |whose: &str, n: i128| format!("{whose}:\t\t{what} {n} {what} compressed {n}");
    out.line(line("our", counted.into()))?;
    out.line(line("disk", stored.into()))?;
    match i128::from(counted) - i128::from(stored) {
        0 => Ok(()),
        differs => out.line(line("diff", differs)),
    }
}

fn sharing(out: &mut Out, report: &Report) -> Result<()> {
    out.line("Offset\t\tLen\tRoot Refs\tRoots")?;
    for extent in &report.sharing {
        let roots: String = extent.roots.iter().map(|root| format!("{root} ")).collect();
        let (start, len, refs) = (extent.start, extent.len, extent.roots.len());
        out.line(format!("{start}\t{len}\t{refs}\t{roots}"))?;
    }
    Ok(())
}

fn totals(out: &mut Out, offline: &Offline, report: &Report, clean: bool) -> Result<()> {
    let (t, geometry) = (&report.totals, offline.volume.geometry());
    let used = t.tree_bytes + t.data_bytes;
    let found = if clean { "no error found" } else { "error(s) found" };
    out.line(format!("found {used} bytes used, {found}"))?;
    let sums = t.csum_bytes / u64::from(geometry.sector_size) * geometry.csum.size() as u64;
    for (what, bytes) in [
        ("total csum bytes", sums),
        ("total tree bytes", t.tree_bytes),
        ("total fs tree bytes", t.fs_tree_bytes),
        ("total extent tree bytes", t.extent_tree_bytes),
        ("btree space waste bytes", t.waste_bytes),
        ("file data blocks allocated", t.allocated_bytes),
    ] {
        out.line(format!("{what}: {bytes}"))?;
    }
    out.line(format!(" referenced {}", t.referenced_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who asks for it alone would take nothing for all.
    #[test]
    fn what_is_not_counted_is_no_success() {
        let mut report = Report::default();
        assert!(was_counted(&report));
        report.uncounted = true;
        assert!(!was_counted(&report));
    }
}
