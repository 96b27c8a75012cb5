//! `spinney balance status`.

use super::start::{filters, words_of};
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::target::Target;
use crate::error::{Exit, Result};
use crate::image::Access;
use crate::output::{Json, Out};
use btrfs_fs::{BalanceState, BalanceStatus};

pub const COMMAND: Command = Command {
    name: "balance status",
    summary: "tell how far a balance is",
    usage: "[-v | --json] VOLUME",
    help: "\
Tells whether a balance is at work or paused, and how far it is.

Options
    -v, --verbose    tell its filters as well
    --json           as a JSON object, filters included; chunks are counts

Examples
    spinney balance status /mnt

Exit codes
    0  there is none
    1  there is one
    2  the command line is wrong, or something failed
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut verbose, mut json, mut operands) = (false, false, Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('v') | Arg::Long("verbose") => verbose = true,
            Arg::Long("json") => json = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let volume = args::one(operands, "an image or a directory of a mount")?;
    match tell(&volume, verbose, json) {
        Ok(exit) => Ok(exit),
        Err(error) => {
            error.print();
            Ok(Exit::Code(2))
        }
    }
}

fn tell(volume: &std::ffi::OsStr, verbose: bool, json: bool) -> Result<Exit> {
    let target = Target::open(volume, Access::Read)?;
    let (status, place) = (target.status()?, target.show());
    target.close()?;
    let mut out = Out::new();
    if json {
        out.line(as_json(&status))?;
        out.finish()?;
        let is_one = state_name(&status).is_some();
        return Ok(if is_one { Exit::Failed } else { Exit::Done });
    }
    let running = match status.state {
        BalanceState::Running => true,
        BalanceState::Paused => false,
        _ => {
            out.line(format!("No balance found on '{place}'"))?;
            out.finish()?;
            return Ok(Exit::Done);
        }
    };
    let stops = if status.stopping { ", stop requested" } else { "" };
    let state = if running { "running" } else { "paused" };
    out.line(format!("Balance on '{place}' is {state}{stops}"))?;
    let (done, all) = (status.completed, status.expected);
    let left = (100 * (all - done.min(all))).checked_div(all).unwrap_or(100);
    let seen = status.considered;
    out.line(format!(
        "{done} out of about {all} chunks balanced ({seen} considered), {left:3}% left"
    ))?;
    if verbose {
        filters(&status.item, &mut out)?;
    }
    out.finish()?;
    Ok(Exit::Failed)
}

/// `None`: there is no balance.
fn state_name(status: &BalanceStatus) -> Option<&'static str> {
    match status.state {
        BalanceState::Running => Some("running"),
        BalanceState::Paused => Some("paused"),
        _ => None,
    }
}

fn as_json(status: &BalanceStatus) -> String {
    Json::object(|o| {
        o.text("state", state_name(status).unwrap_or("none"));
        if state_name(status).is_none() {
            return;
        }
        o.bool("stop-requested", status.stopping);
        let counts = [
            ("expected", status.expected),
            ("considered", status.considered),
            ("completed", status.completed),
            ("failed", status.failed),
        ];
        o.object("chunks", |o| {
            for (name, count) in counts {
                o.number(name, count);
            }
        });
        let names = ["data", "metadata", "system"];
        o.object("filters", |o| {
            for ((kind, filter), name) in status.item.filters().into_iter().zip(names) {
                if status.item.flags & kind != 0 {
                    o.text(name, &words_of(filter));
                }
            }
        });
    })
}
