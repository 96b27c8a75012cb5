//! `spinney scrub start` and `resume`.

use super::record::{Kept, OFTEN, Record};
use super::report::How;
use super::{UNCORRECTABLE, report};
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::filesystem::units::Units;
use crate::commands::offline::uuid;
use crate::commands::target::{Refused, Target, reason};
use crate::error::{Error, Exit, Result, say_error};
use crate::image::Access;
use crate::output::{Out, human};
use crate::progress::Progress;
use crate::size::count;
use btrfs_fs::{ScrubState, ScrubStatus};
use std::ffi::OsString;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub const COMMAND: Command = Command {
    name: "scrub start",
    summary: "read all copies of everything, and mend what is bad",
    usage: "[-BdrRq] [--limit SIZE] [--json] VOLUME",
    help: "\
Reads every copy of what the volume has, and holds it against its checksums. What is bad is
written anew from a good copy. VOLUME is a path of a mount (or the image or device that it
is of), where the scrub goes on behind everybody's back, or an image that is not mounted,
where the command waits for its end.

What a scrub of a mount has done is kept for `status` and `resume` after an unmount: root's
in /var/lib/btrfs, as by `btrfs scrub`, others' in $XDG_STATE_HOME/spinney; or all in
$SPINNEY_SCRUB_RECORDS, where that is a directory's whole path.

Options
    -B                wait for the end, in a mount, too
    -d                tell by device (there is one), with -B
    -r                write nothing: only look
    -R                all numbers, by name
    -q, --quiet       errors alone
        --limit SIZE  so many bytes in a second at most, this time: see `scrub limit`
        --json        as a JSON object (waits for the end)
    -f, -c CLASS, -n DATA
                      taken, and without effect: nothing could be left of another scrub, and
                      no priority is changed

Examples
    spinney scrub start -B /mnt
    spinney scrub start -r disk.img

Exit codes
    0  begun, or done: all that is bad was mended (or, with -r, could be)
    1  the scrub could not be performed, or not of everything: it goes on behind what is
       lost of the trees, and tells what it passed over (a mount's log: each range)
    3  there is something bad without a good copy
",
    run: |args| run(args, false),
};

pub const RESUME: Command = Command {
    name: "scrub resume",
    summary: "go on with a scrub that was cancelled",
    usage: "[-BdRq] [--json] MOUNT",
    help: "\
Goes on where `scrub cancel` stopped one, or where one was when the volume was unmounted or
the machine stopped: up to five seconds before that. A scrub that `btrfs scrub` left
unfinished is begun anew.

Options
    -B                wait for the end
    -d                tell by device (there is one), with -B
    -R                all numbers, by name
    -q, --quiet       errors alone
        --json        as a JSON object (waits for the end)
    -r                write nothing: only look; in the same mount it goes on as it began
    -c CLASS, -n DATA
                      taken, and without effect, as by `scrub start`

Examples
    spinney scrub resume -B /mnt

Exit codes
    0  begun, or done
    1  the scrub could not be performed, or not of everything: it goes on behind what is
       lost of the trees, and tells what it passed over (a mount's log: each range)
    2  there is nothing to go on with
    3  there is something bad without a good copy
",
    run: |args| run(args, true),
};

#[derive(Default)]
struct Words {
    wait: bool,
    read_only: bool,
    by_device: bool,
    raw: bool,
    quiet: bool,
    json: bool,
    limit: Option<u64>,
}

fn words(mut args: Args) -> Result<(Words, OsString)> {
    let (mut words, mut operands) = (Words::default(), Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('B') => words.wait = true,
            Arg::Short('r') => words.read_only = true,
            Arg::Short('R') => words.raw = true,
            Arg::Short('q') | Arg::Long("quiet") => words.quiet = true,
            Arg::Long("json") => (words.json, words.wait) = (true, true),
            Arg::Short('d') => words.by_device = true,
            Arg::Long("limit") => words.limit = Some(args.size()?),
            Arg::Short('f') => {}
            Arg::Short('c' | 'n') => _ = args.text()?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    Ok((words, args::one(operands, "an image or a path of a mount")?))
}

fn run(args: Args, again: bool) -> Result<Exit> {
    let (words, volume) = words(args)?;
    let access = if words.read_only { Access::Read } else { Access::Write };
    let target = Target::open_mounted(&volume, access)?;
    let record = if target.is_mounted() { Some(Record::of(&target)?) } else { None };
    // A scrub that comes behind it finds nothing there.
    let mended = target.mended();
    let begun = match again {
        true => resume(&target, record.as_ref(), words.read_only),
        false => target.start_scrub(words.read_only, words.limit),
    };
    if let Err(refused) = begun {
        return not_begun(&target, refused);
    }
    if !words.quiet && !words.json {
        begun_of(&target, record.is_some() && !words.wait)?;
    }
    if let Some(record) = record.as_ref().filter(|_| !words.wait) {
        let mut lost = false;
        record.note(&target, &mut lost)?;
        if !lost {
            record.follow(target.path());
        }
        return Ok(Exit::Done);
    }
    let status = wait(&target, record.as_ref())?;
    tell(&target, &status, &words)?;
    if mended > 0 {
        say_error(&format!(
            "spinney: {}: {} mended before the scrub, when the volume was opened",
            target.show(),
            count(mended, "bad copy")
        ));
    }
    target.close()?;
    Ok(exit_of(&status))
}

/// Says that it has begun; `behind`: nobody waits for its end.
fn begun_of(target: &Target, behind: bool) -> Result<()> {
    let mut out = Out::new();
    if behind {
        out.line(format!("scrub started on {}, fsid {}", target.show(), uuid(&target.fsid()?)))?;
    }
    let limit = report::behind(target.scrub_limit()?, Units::HUMAN);
    out.line(format!("Starting scrub on devid {}{limit}", target.devid()?))?;
    out.finish()
}

/// One of this mount, else the last one that was written down.
fn resume(
    target: &Target,
    record: Option<&Record>,
    read_only: bool,
) -> std::result::Result<(), Refused> {
    let kept = match target.scrub_status()?.state {
        ScrubState::None => record.and_then(Record::read),
        _ => None,
    };
    let goes_on =
        |kept: &Kept| kept.status.state != ScrubState::Finished && kept.next != Some(u64::MAX);
    match kept.filter(goes_on) {
        Some(kept) => match kept.next {
            Some(next) => target.continue_scrub(&ScrubStatus { next, read_only, ..kept.status }),
            None => target.start_scrub(read_only, None),
        },
        None => target.resume_scrub(),
    }
}

fn not_begun(target: &Target, refused: Refused) -> Result<Exit> {
    let what = |why: &str| format!("scrub on '{}': {why}", target.show());
    match refused.errno {
        libc::ESRCH => {
            Error::new(what("nothing to resume")).print();
            Ok(Exit::Code(2))
        }
        libc::EINPROGRESS => {
            let error = Error::new(what("Scrub is already running"));
            Err(error.remedy("`spinney scrub cancel` stops it, `scrub status` tells"))
        }
        _ => Err(refused.into()),
    }
}

/// Waits for the end, with progress.
fn wait(target: &Target, record: Option<&Record>) -> Result<ScrubStatus> {
    let progress = Progress::new();
    let mut rest = Duration::from_millis(2);
    let (mut lost, mut written) = (false, Instant::now());
    loop {
        let status = target.scrub_status()?;
        let ended = status.state != ScrubState::Running;
        if let Some(record) = record.filter(|_| ended || written.elapsed() >= OFTEN) {
            record.note(target, &mut lost)?;
            written = Instant::now();
        }
        if ended {
            return Ok(status);
        }
        let bad = status.done.corrected_errors + status.done.uncorrectable_errors;
        progress.show(|| {
            format!(
                "{} of {} scrubbed, {}",
                human(status.done.bytes()),
                human(status.total),
                count(bad, "error")
            )
        });
        sleep(rest);
        rest = (rest * 2).min(Duration::from_millis(50));
    }
}

fn tell(target: &Target, status: &ScrubStatus, words: &Words) -> Result<()> {
    let mut out = Out::new();
    if words.json {
        out.line(report::json(status))?;
    } else if !words.quiet {
        out.line(match words.by_device {
            true => report::device(target, "done")?,
            false => format!("scrub done for {}", uuid(&target.fsid()?)),
        })?;
        report::text(
            &mut out,
            status,
            &How { raw: words.raw, limit: words.limit.unwrap_or(0), ..How::default() },
        )?;
    }
    out.finish()?;
    match status.state {
        ScrubState::Cancelled => say_error("scrub was cancelled"),
        ScrubState::Failed => {
            Error::new(unfinished(target, status))
                .remedy("`spinney check` tells which tree cannot be read")
                .print();
        }
        _ if status.done.uncorrectable_errors > 0 => {
            let what = "there are uncorrectable errors";
            let remedy = match target.is_mounted() {
                true => {
                    "the log of the mount names addresses, `inspect-internal logical-resolve` the files"
                }
                false => {
                    "`spinney check --data` names the addresses, `inspect-internal logical-resolve` the files"
                }
            };
            Error::new(what).remedy(remedy).print();
        }
        _ => {}
    }
    Ok(())
}

/// What a scrub has not looked at, and why.
fn unfinished(target: &Target, status: &ScrubStatus) -> String {
    let (why, show) = (reason(status.errno), target.show());
    match status.next {
        u64::MAX => format!(
            "scrub on '{show}' passed over {} of addresses, from {} on, since the node that tells what lies there \
             cannot be read: {why}",
            human(status.unseen),
            status.unseen_from
        ),
        next => format!("scrub on '{show}' ended at address {next}, before its end: {why}"),
    }
}

fn exit_of(status: &ScrubStatus) -> Exit {
    match status.state {
        ScrubState::Finished if status.done.uncorrectable_errors > 0 => Exit::Code(UNCORRECTABLE),
        ScrubState::Finished => Exit::Done,
        _ => Exit::Failed,
    }
}
