//! `spinney quota rescan`.

use super::on;
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::subvolume::place::{Open, VolumePath};
use crate::error::{Error, Exit, Result};
use crate::output::Out;

pub const COMMAND: Command = Command {
    name: "quota rescan",
    summary: "count all that quota groups hold anew",
    usage: "[-w | -W | -s] [-q] VOLUME",
    help: "\
Sets the numbers of all quota groups to zero and counts what is there; limits stay. In a
mount that goes on behind the command, and root and who mounted it may ask; in an image all
is counted at once.

Options
    -s, --status          only tell whether one is under way, and where it is
    -w, --wait            wait until it is through, also where one was under way
    -W, --wait-norescan   wait for one that is under way, begin none
    -q, --quiet           say nothing but errors

Examples
    spinney quota rescan -w /mnt
    spinney quota rescan disk.img
",
    run,
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Begin,
    BeginAndWait,
    Wait,
    Tell,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut what, mut quiet) = (Vec::new(), What::Begin, false);
    while let Some(arg) = args.next()? {
        let wanted = match arg {
            Arg::Short('s') | Arg::Long("status") => What::Tell,
            Arg::Short('w') | Arg::Long("wait") => What::BeginAndWait,
            Arg::Short('W') | Arg::Long("wait-norescan") => What::Wait,
            Arg::Short('q') | Arg::Long("quiet") => {
                quiet = true;
                continue;
            }
            Arg::Value(value) => {
                operands.push(value);
                continue;
            }
            other => return Err(args::unexpected(other)),
        };
        if std::mem::replace(&mut what, wanted) != What::Begin {
            return Err(Error::usage("of -s, -w and -W only one makes sense"));
        }
    }
    let place = VolumePath::parse(&args::one(operands, "an image or a directory of a mount")?);
    on(&place, what != What::Tell, |open| work(open, &place, what, quiet))
}

fn work(open: &Open<'_>, place: &VolumePath, what: What, quiet: bool) -> Result<()> {
    let mut out = Out::new();
    let mut say = |line: String| if quiet { Ok(()) } else { out.line(line) };
    match what {
        What::Tell => say(match open.rescan(place)? {
            Some(at) => format!("rescan operation running (current key {at})"),
            None => "no rescan operation in progress".into(),
        })?,
        What::Begin | What::BeginAndWait => match open.begin_rescan(place)? {
            true => say("quota rescan started".into())?,
            false if what == What::BeginAndWait => {}
            false => return Err(Error::about(place.show(), "a rescan is under way already")),
        },
        What::Wait => {}
    }
    if matches!(what, What::Wait | What::BeginAndWait) {
        open.wait_for_rescan(place)?;
    }
    out.finish()
}
