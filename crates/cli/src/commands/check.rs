//! `spinney check`: a read-only fsck.

use super::Command;
use super::offline::{Offline, disk_error};
use crate::args::{Arg, Args, one, unexpected};
use crate::error::{Error, Exit, Result};
use crate::image::Access;
use crate::output::{Json, Object, Out, human};
use crate::progress;
use crate::size::count;
use btrfs_check::{CheckOptions, Finding, Phase, Report, Severity, Totals, check};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

pub const COMMAND: Command = Command {
    name: "check",
    summary: "look for damage in a volume",
    usage: "[--data] [--json] [--force] [--max N] IMAGE",
    help: "\
Reads every tree of the volume and compares everything that one structure says of another:
extents with the references to them, free space with the gaps between extents, checksums
with the data that must have them, names with inodes, sizes and counts with what they sum.
Every copy of every tree block is read. Nothing is ever written.

The volume is judged as of its last commit. Of a log (of fsyncs since then, which the next
mount replays) the blocks are read and judged; what it says of files is not.

Options
    -d, --data      also read every checksummed block of file content from every copy, and
                    verify it, and hold files with fs-verity against their trees of hashes;
                    this reads the whole used space
        --json      one JSON object instead of text
        --max N     list at most N findings, the worst (default 10000); the rest is counted
        --force     check even though the volume is in use: what is being written while
                    the check reads looks like damage

Findings are `error` (something is lost or contradicts itself), `warning` (a spare copy or
a hint is damaged, content is not) or `note` (odd, and harmless). Each is followed by what
can be done about it. In JSON `kind` is a stable name for scripts.

Examples
    spinney check disk.img
    spinney check --data /dev/sdb1
    spinney check --json disk.img | jq -r '.findings[] | [.severity, .kind, .text] | @tsv'

Exit codes
    0  no errors and no warnings
    1  errors or warnings were found, or the volume cannot be opened
    2  the command line is wrong
",
    run,
};

struct Wanted {
    image: OsString,
    data: bool,
    json: bool,
    force: bool,
    max: usize,
}

fn parse(mut args: Args) -> Result<Wanted> {
    let mut operands = Vec::new();
    let (mut data, mut json, mut force, mut max) = (false, false, false, 10_000);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('d') | Arg::Long("data") => data = true,
            Arg::Long("json") => json = true,
            Arg::Long("force") => force = true,
            Arg::Long("max") => {
                let text = args.text()?;
                max = text.parse().map_err(|_| Error::usage(format!("{text:?} is no number")))?;
            }
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    Ok(Wanted { image: one(operands, "an image")?, data, json, force, max })
}

fn run(args: Args) -> Result<Exit> {
    let wanted = parse(args)?;
    let path = Path::new(&wanted.image);
    let access = if wanted.force { Access::Peek } else { Access::Read };
    let offline = Offline::open(path, access)?;
    let options = CheckOptions {
        verify_data: wanted.data,
        max_findings: wanted.max,
        ..CheckOptions::default()
    };
    let report = with_progress(&offline, options).map_err(|e| disk_error(path, &e))?;
    let mut out = Out::new();
    if wanted.json {
        out.line(json(path, &report))?;
    } else {
        text(&mut out, path, &report, wanted.data)?;
    }
    out.finish()?;
    Ok(Exit::failed_if(!report.is_clean()))
}

/// Checks, and tells a terminal how far it is.
pub fn with_progress(offline: &Offline, options: CheckOptions<'_>) -> btrfs_disk::Result<Report> {
    let line = progress::Progress::new();
    let show = |p: btrfs_check::Progress| line.show(|| progress_line(p));
    let report = check(offline.volume.clone(), &CheckOptions { progress: Some(&show), ..options });
    progress::wipe();
    report
}

fn progress_line(p: btrfs_check::Progress) -> String {
    let name = p.phase.name();
    match (p.phase, p.total) {
        (Phase::Data, Some(total)) => {
            format!("checking {name}: {} of {}", human(p.done), human(total))
        }
        (_, Some(total)) if total > 0 => {
            format!("checking {name}: {}%", (p.done * 100 / total).min(99))
        }
        _ => format!("checking {name}: {} blocks", p.done),
    }
}

fn text(out: &mut Out, path: &Path, report: &Report, data: bool) -> Result<()> {
    for finding in &report.findings {
        out.line(format!("{}: {finding}", finding.severity.name()))?;
    }
    if report.left_off > 0 {
        out.line(format!("... and {} more", count(report.left_off, "finding")))?;
    }
    let remedies: BTreeSet<_> = report
        .findings
        .iter()
        .filter(|f| f.severity != Severity::Note)
        .map(|f| (std::cmp::Reverse(f.severity), f.remedy()))
        .collect();
    if !remedies.is_empty() {
        out.line("\nWhat to do:")?;
        for (_, remedy) in remedies {
            out.line(format!("  {remedy}"))?;
        }
    }
    if !report.findings.is_empty() {
        out.line("")?;
    }
    summary(out, &report.totals, data)?;
    out.line(format!("{}: {}", path.display(), verdict(report)))
}

fn summary(out: &mut Out, t: &Totals, data: bool) -> Result<()> {
    let pairs = [
        ("tree blocks", format!("{} ({})", t.tree_blocks, human(t.tree_bytes))),
        ("data extents", format!("{} ({})", t.data_extents, human(t.data_bytes))),
        ("referenced", human(t.referenced_bytes)),
        ("subvolumes", t.subvolumes.to_string()),
        ("inodes", format!("{} ({})", t.inodes, count(t.directories, "directory"))),
        ("names", t.names.to_string()),
    ];
    for (name, value) in pairs {
        out.line(format!("  {name:<14} {value}"))?;
    }
    if data {
        out.line(format!("  {:<14} {}", "verified", human(t.verified_bytes)))?;
    }
    if t.verity_bytes > 0 {
        out.line(format!("  {:<14} {}", "by fs-verity", human(t.verity_bytes)))?;
    }
    if t.orphans + t.dead_subvolumes > 0 {
        let (inodes, trees) = (count(t.orphans, "inode"), count(t.dead_subvolumes, "subvolume"));
        out.line(format!("  {:<14} {inodes}, {trees}", "to be freed"))?;
    }
    if t.pending_log {
        let (trees, blocks) = (count(t.log_trees, "subvolume"), count(t.log_blocks, "block"));
        out.line(format!("  {:<14} of {trees}, {blocks}; the next mount replays it", "log"))?;
    }
    Ok(())
}

fn verdict(report: &Report) -> String {
    let of = |severity| report.count(severity);
    match (of(Severity::Error), of(Severity::Warning), of(Severity::Note)) {
        (0, 0, 0) => "no damage found".into(),
        (0, 0, notes) => format!("no damage found ({})", count(notes, "note")),
        (errors, warnings, _) => {
            format!("{}, {}", count(errors, "error"), count(warnings, "warning"))
        }
    }
}

fn json(path: &Path, report: &Report) -> String {
    Json::object(|o| {
        o.bytes("image", path.as_os_str().as_encoded_bytes());
        o.bool("clean", report.is_clean());
        o.number("errors", report.count(Severity::Error));
        o.number("warnings", report.count(Severity::Warning));
        o.number("notes", report.count(Severity::Note));
        o.number("left_off", report.left_off);
        o.array("findings", |a| {
            for finding in &report.findings {
                a.object(|o| json_finding(o, finding));
            }
        });
        o.object("totals", |o| json_totals(o, &report.totals));
    })
}

fn json_finding(o: &mut Object<'_>, finding: &Finding) {
    o.text("severity", finding.severity.name()).text("kind", finding.kind.code());
    if let Some(tree) = finding.tree {
        o.number("tree", tree.0 as i64);
    }
    if let Some(key) = finding.key {
        o.array("key", |a| {
            a.number(key.objectid).number(key.kind).number(key.offset);
        });
    }
    if let Some(logical) = finding.logical {
        o.number("logical", logical.0);
    }
    o.text("text", &finding.to_string()).text("remedy", finding.remedy());
}

fn json_totals(o: &mut Object<'_>, t: &Totals) {
    let numbers = [
        ("tree_blocks", t.tree_blocks),
        ("tree_bytes", t.tree_bytes),
        ("data_extents", t.data_extents),
        ("data_bytes", t.data_bytes),
        ("referenced_bytes", t.referenced_bytes),
        ("subvolumes", t.subvolumes),
        ("inodes", t.inodes),
        ("directories", t.directories),
        ("names", t.names),
        ("orphans", t.orphans),
        ("dead_subvolumes", t.dead_subvolumes),
        ("chunks", t.chunks),
        ("csum_bytes", t.csum_bytes),
        ("verified_bytes", t.verified_bytes),
        ("verity_bytes", t.verity_bytes),
    ];
    for (name, value) in numbers {
        o.number(name, value);
    }
    o.bool("pending_log", t.pending_log);
    o.number("log_trees", t.log_trees).number("log_blocks", t.log_blocks);
}
