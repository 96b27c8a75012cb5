//! `spinney filesystem df`.

use super::numbers::{self, Numbers, kind_name, profile_name};
use super::units::{Units, short_units};
use crate::args::{Arg, Args, one, unexpected};
use crate::commands::Command;
use crate::commands::subvolume::place::VolumePath;
use crate::error::{Exit, Result};
use crate::output::{Json, Out};

pub const COMMAND: Command = Command {
    name: "filesystem df",
    summary: "show what block groups hold, by what they are for",
    usage: "[--json] [-b|-k|-m|-g|-t|-h|-H] [--iec|--si] VOLUME",
    help: concat!(
        "\
Tells for data, system and metadata how much their block groups hold and how much of it is
in use, each byte counted once however often it is stored, and how much metadata is kept
for removals (GlobalReserve). VOLUME is an image, of which the last commit is told, or a
directory of a mount. The output is that of `btrfs filesystem df`.

Options
        --json             in the JSON format of btrfs-progs; sizes are bytes
",
        short_units!(),
        "
Examples
    spinney filesystem df /mnt
    spinney filesystem df -b disk.img
"
    ),
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut units, mut json) = (Vec::new(), Units::HUMAN, false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Value(value) => operands.push(value),
            other if units.take(&other) => {}
            other => return Err(unexpected(other)),
        }
    }
    let numbers =
        numbers::of(&VolumePath::parse(&one(operands, "an image or a directory of a mount")?))?;
    let mut out = Out::new();
    match json {
        true => out.line(as_json(&numbers))?,
        false => as_text(&mut out, &numbers, units)?,
    }
    out.finish()?;
    Ok(Exit::Done)
}

/// Kind, profile, bytes in all and in use.
fn rows(numbers: &Numbers) -> Vec<(&'static str, String, u64, u64)> {
    let groups = numbers.usage.groups.iter();
    let row = |flags| (kind_name(flags), profile_name(flags));
    let rows = groups.map(|group| {
        let (kind, profile) = row(group.flags);
        (kind, profile, group.total, group.used)
    });
    let reserve = ("GlobalReserve", "single".to_owned(), numbers.usage.global_reserve, 0);
    rows.chain([reserve]).collect()
}

fn as_text(out: &mut Out, numbers: &Numbers, units: Units) -> Result<()> {
    for (kind, profile, total, used) in rows(numbers) {
        let (total, used) = (units.show(total), units.show(used));
        out.line(format!("{kind}, {profile}: total={total}, used={used}"))?;
    }
    Ok(())
}

fn as_json(numbers: &Numbers) -> String {
    Json::as_progs(|o| {
        o.array("filesystem-df", |a| {
            for (kind, profile, total, used) in rows(numbers) {
                a.object(|o| {
                    o.text("bg-type", kind).text("bg-profile", &profile);
                    o.text("total", &total.to_string()).text("used", &used.to_string());
                });
            }
        });
    })
}
