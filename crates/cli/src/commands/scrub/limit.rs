//! `spinney scrub limit`: how fast scrubs of a mount may read.

use super::status::mounted;
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::filesystem::units::{Units, long_units};
use crate::commands::offline::uuid;
use crate::commands::target::Target;
use crate::error::{Error, Exit, Result};
use crate::output::{self, Json, Out, right};
use std::ffi::OsString;

pub const COMMAND: Command = Command {
    name: "scrub limit",
    summary: "tell or set how fast scrubs of a mount may read",
    usage: "[-a|-d DEVID] [-l SIZE] [--json] [UNITS] MOUNT",
    help: concat!(
        "\
Tells how many bytes scrubs read in a second at most, or sets that: for the scrub that is at
work and for all that come until the volume is unmounted. The output is that of `btrfs scrub
limit` (6.14).

Options
    -a, --all              all devices (there is one)
    -d, --devid DEVID      the device with this number
    -l, --limit SIZE       so many bytes, as in 50M; 0: as many as there can be
        --json             what holds, as a JSON object; 0: no limit
    -b, --raw              bytes
",
        long_units!(),
        "
Examples
    spinney scrub limit /mnt
    spinney scrub limit -a -l 50M /mnt
"
    ),
    run,
};

#[derive(Default)]
struct Words {
    all: bool,
    devid: Option<u64>,
    limit: Option<u64>,
    json: bool,
}

fn words(mut args: Args) -> Result<(Words, Units, OsString)> {
    let (mut words, mut units, mut operands) = (Words::default(), Units::HUMAN, Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('a') | Arg::Long("all") => words.all = true,
            Arg::Short('d') | Arg::Long("devid") => {
                let text = args.text()?;
                let wrong = || Error::usage(format!("{text:?} is no number of a device"));
                words.devid = Some(text.parse().map_err(|_| wrong())?);
            }
            Arg::Short('l') | Arg::Long("limit") => words.limit = Some(args.size()?),
            Arg::Long("json") => words.json = true,
            Arg::Value(value) => operands.push(value),
            other if units.take_raw_or_long(&other) => {}
            other => return Err(args::unexpected(other)),
        }
    }
    words.judge()?;
    Ok((words, units, args::one(operands, "a path of a mount")?))
}

fn run(args: Args) -> Result<Exit> {
    let (words, units, mount) = words(args)?;
    let target = mounted(&mount)?;
    let (id, mut out) = (target.devid()?, Out::new());
    if !words.json {
        out.line(format!("UUID: {}", uuid(&target.fsid()?)))?;
    }
    match words.limit {
        Some(_) if words.devid.is_some_and(|devid| devid != id) => {
            out.finish()?;
            let devid = words.devid.unwrap_or_default();
            return Err(Error::new(format!("device with devid {devid} not found")));
        }
        Some(new) => {
            let said = set(&target, id, new, units)?;
            if !words.json {
                out.line(said)?;
            }
        }
        None if words.json => {}
        None => table(&target, id, units, &mut out)?,
    }
    if words.json {
        let limit = target.scrub_limit()?;
        out.line(Json::object(|o| {
            o.number("devid", id).number("limit", limit);
        }))?;
    }
    out.finish()?;
    Ok(Exit::Done)
}

impl Words {
    fn judge(&self) -> Result<()> {
        let wrong = match (self.all, self.devid, self.limit) {
            (true, Some(_), _) => "--all and --devid cannot be used at the same time",
            (true, None, None) => "--all and --limit must be set together",
            (false, Some(_), None) => "--devid and --limit must be set together",
            (false, None, Some(_)) => "--limit must be used with either --all or --devid",
            _ => return Ok(()),
        };
        Err(Error::usage(wrong))
    }
}

/// Sets it; what is to be said of that.
fn set(target: &Target, devid: u64, new: u64, units: Units) -> Result<String> {
    let rate = |limit: u64| match limit {
        0 => "unlimited".into(),
        limit => format!("{}/s", units.show(limit)),
    };
    let old = rate(target.limit_scrub(new)?);
    Ok(format!("Set scrub limit of devid {devid} from {old} to {}", rate(new)))
}

fn table(target: &Target, devid: u64, units: Units, out: &mut Out) -> Result<()> {
    let limit = match target.scrub_limit()? {
        0 => "-".into(),
        limit => units.show(limit),
    };
    let cells = [format!("{devid:2}"), limit, target.device().display().to_string()];
    let heads = ["Id", "Limit", "Path"].map(String::from);
    let rows = [heads, cells].map(|row| row.into_iter().map(right).collect());
    output::table(&rows, &[1], "  ").iter().try_for_each(|line| out.line(line))
}
