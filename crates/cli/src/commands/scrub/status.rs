//! `spinney scrub status` and `cancel`.

use super::record::Record;
use super::report;
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::filesystem::units::long_units;
use crate::commands::offline::uuid;
use crate::commands::target::{Target, image_of, point_of};
use crate::error::{Error, Exit, Result};
use crate::image::Access;
use crate::output::Out;
use btrfs_fs::{ScrubState, ScrubStatus};

pub const COMMAND: Command = Command {
    name: "scrub status",
    summary: "tell how far a scrub of a mount is, or how it ended",
    usage: "[-dR] [--json] [UNITS] MOUNT",
    help: concat!(
        "\
Tells of the scrub that is at work in a mount, or of the last one: also of one before it was
mounted, or by `btrfs scrub`. MOUNT is a path of it, or the image or device that it is of.
See `spinney help scrub start` for where that is written down.

Options
    -R                     all numbers, by name
    -d                     by device (there is one)
        --json             as a JSON object
    -b, --raw              bytes
",
        long_units!(),
        "
Examples
    spinney scrub status /mnt
"
    ),
    run: status,
};

pub const CANCEL: Command = Command {
    name: "scrub cancel",
    summary: "stop a scrub of a mount",
    usage: "MOUNT",
    help: "\
Stops the scrub that is at work in a mount; returns when it has stopped. `scrub resume` goes
on with it, also after an unmount.

Examples
    spinney scrub cancel /mnt

Exit codes
    0  done
    2  none is at work, or the command line is wrong
",
    run: cancel,
};

fn status(mut args: Args) -> Result<Exit> {
    let (mut how, mut by_device) = (report::How::default(), false);
    let (mut json, mut operands) = (false, Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('R') => how.raw = true,
            Arg::Short('d') => by_device = true,
            Arg::Long("json") => json = true,
            Arg::Value(value) => operands.push(value),
            other if how.units.take_raw_or_long(&other) => {}
            other => return Err(args::unexpected(other)),
        }
    }
    let target = mounted(&args::one(operands, "a path of a mount")?)?;
    let status = status_of(&target)?;
    how.limit = target.scrub_limit()?;
    let mut out = Out::new();
    match json {
        true => out.line(report::json(&status))?,
        false => {
            out.line(format!("UUID:             {}", uuid(&target.fsid()?)))?;
            if by_device {
                out.line(report::device(&target, report::told_of(&status))?)?;
            }
            report::text(&mut out, &status, &how)?;
        }
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn status_of(target: &Target) -> Result<ScrubStatus> {
    let record = Record::of(target)?;
    let status = target.scrub_status()?;
    Ok(match record.read().filter(|_| status.state == ScrubState::None) {
        Some(kept) => ScrubStatus { total: status.total, ..kept.status },
        None => status,
    })
}

fn cancel(args: Args) -> Result<Exit> {
    let target = mounted(&args::only(args, "a path of a mount")?)?;
    Ok(match target.cancel_scrub() {
        Ok(()) => {
            Record::of(&target)?.note(&target, &mut false)?;
            let mut out = Out::new();
            out.line("scrub cancelled")?;
            out.finish()?;
            Exit::Done
        }
        Err(refused) if refused.errno == libc::ENOTCONN => {
            Error::new(format!("scrub cancel failed on {}: not running", target.show())).print();
            Exit::Code(2)
        }
        Err(refused) => return Err(refused.into()),
    })
}

/// In an image no scrub goes on behind a command's back.
pub fn mounted(word: &std::ffi::OsStr) -> Result<Target> {
    match image_of(word).filter(|_| point_of(word).is_none()) {
        Some(path) => {
            let what = "it is not mounted: a scrub of it has ended with its command";
            Err(Error::about(path.display(), what))
        }
        None => Target::open_mounted(word, Access::Read),
    }
}
