//! `spinney quota status`.

use super::on;
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::subvolume::place::VolumePath;
use crate::error::{Error, Exit, Result};
use crate::output::{Json, Out};
use spinney::{Qgroup, QuotaStatus};
use std::cell::Cell;
use std::collections::BTreeMap;

pub const COMMAND: Command = Command {
    name: "quota status",
    summary: "tell whether quotas are kept, and how they stand",
    usage: "[--json | --is-enabled] VOLUME",
    help: "\
Tells whether quotas are kept, whether their numbers can be trusted, and how many groups of
each level there are. VOLUME is an image, or a directory of a mount, where root and who
mounted it may ask.

Options
    --is-enabled      say nothing; the exit code tells whether quotas are kept
    --json            as a JSON object

Examples
    spinney quota status /mnt

Exit codes
    0  done; with --is-enabled: quotas are kept
    1  something failed; with --is-enabled: quotas are not kept
    2  the command line is wrong
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut json, mut ask) = (Vec::new(), false, false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Long("is-enabled") => ask = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    if json && ask {
        return Err(Error::usage("of --json and --is-enabled only one makes sense"));
    }
    let word = args::one(operands, "an image or a directory of a mount")?;
    let place = VolumePath::parse(&word);
    let enabled = Cell::new(false);
    let done = on(&place, false, |open| {
        let status = open.quota_status(&place)?;
        enabled.set(status.is_some());
        if ask {
            return Ok(());
        }
        let groups = if status.is_some() { open.qgroups(&place)? } else { Vec::new() };
        let mut out = Out::new();
        match json {
            true => out.line(as_json(status, &groups))?,
            false => {
                out.line(format!("Quotas on {}:", word.display()))?;
                for (name, value) in lines(status, &groups) {
                    out.line(format!("  {:<24} {value}", format!("{name}:")))?;
                }
            }
        }
        out.finish()
    })?;
    Ok(if done == Exit::Done && ask { Exit::failed_if(!enabled.get()) } else { done })
}

fn levels(groups: &[Qgroup]) -> BTreeMap<u64, u64> {
    let mut levels = BTreeMap::new();
    for group in groups {
        *levels.entry(group.id.level()).or_default() += 1;
    }
    levels
}

fn lines(status: Option<QuotaStatus>, groups: &[Qgroup]) -> Vec<(String, String)> {
    let Some(status) = status else { return vec![("Enabled".into(), "no".into())] };
    let inconsistent = match (status.rescan, status.inconsistent) {
        (Some(at), _) => format!("yes (rescan running, current key {at})"),
        (None, true) if status.simple => "yes".into(),
        (None, true) => "yes (rescan needed)".into(),
        (None, false) => "no".into(),
    };
    let mode = match status.simple {
        true => "squota (simple accounting)",
        false => "qgroup (full accounting)",
    };
    let mut lines = vec![
        ("Enabled".into(), "yes".into()),
        ("Mode".into(), mode.into()),
        ("Inconsistent".into(), inconsistent),
        ("Total count".into(), groups.len().to_string()),
    ];
    let of_level = |(level, count): (u64, u64)| (format!("Level {level}"), count.to_string());
    lines.extend(levels(groups).into_iter().map(of_level));
    lines
}

fn as_json(status: Option<QuotaStatus>, groups: &[Qgroup]) -> String {
    Json::object(|o| {
        o.bool("enabled", status.is_some());
        let Some(status) = status else { return };
        o.text("mode", if status.simple { "squota" } else { "qgroup" });
        o.bool("inconsistent", status.inconsistent);
        if let Some(at) = status.rescan {
            o.number("rescan", at);
        }
        o.object("levels", |o| {
            for (level, count) in levels(groups) {
                o.number(&level.to_string(), count);
            }
        });
    })
}
