//! `spinney filesystem usage`.

use super::numbers::{self, Numbers, kind_name, left_of, profile_name};
use super::units::{Units, short_units};
use super::usage_table;
use crate::args::{Arg, Args, some, unexpected};
use crate::commands::Command;
use crate::commands::subvolume::place::VolumePath;
use crate::error::{Exit, Result};
use crate::output::{Json, Object, Out};
use btrfs_disk::ids::block_group::{DATA, METADATA};
use spinney::GroupUsage;
use std::os::unix::ffi::OsStrExt;

pub const COMMAND: Command = Command {
    name: "filesystem usage",
    summary: "show how space is used, down to devices",
    usage: "[--json] [-T] [-b|-k|-m|-g|-t|-h|-H] [--iec|--si] VOLUME...",
    help: concat!(
        "\
Tells how much of the devices is given out to block groups, what those hold and use, and
what files can still have. VOLUME is an image, of which the last commit is told, or a
directory of a mount. The output is that of `btrfs filesystem usage`.

Options
    -T                     block groups and devices as a table
        --json             as a JSON array of objects; sizes are bytes
",
        short_units!(),
        "
Examples
    spinney filesystem usage /mnt
    spinney filesystem usage -T disk.img
"
    ),
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut units) = (Vec::new(), Units::HUMAN);
    let (mut json, mut table) = (false, false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Short('T') => table = true,
            Arg::Value(value) => operands.push(value),
            other if units.take(&other) => {}
            other => return Err(unexpected(other)),
        }
    }
    let places = VolumePath::all(&some(operands, "an image or a directory of a mount")?);
    let all = places.iter().map(numbers::of).collect::<Result<Vec<_>>>()?;
    let mut out = Out::new();
    if json {
        out.line(Json::array(|a| {
            all.iter().for_each(|numbers| {
                a.object(|o| as_json(o, numbers));
            });
        }))?;
    } else {
        for (at, numbers) in all.iter().enumerate() {
            if at > 0 {
                out.line("")?;
            }
            as_text(&mut out, numbers, units, table)?;
        }
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn as_text(out: &mut Out, numbers: &Numbers, units: Units, table: bool) -> Result<()> {
    overall(out, numbers, units)?;
    out.line("")?;
    if table {
        return usage_table::print(out, numbers, units);
    }
    let path = numbers.device.display().to_string();
    for group in numbers.by_weight() {
        let (kind, profile) = (kind_name(group.flags), profile_name(group.flags));
        let (size, used) = (units.show(group.total), units.show(group.used));
        let percent = percent(group);
        out.line(format!("{kind},{profile}: Size:{size}, Used:{used} ({percent:.2}%)"))?;
        for (_, bytes) in &group.on_devices {
            out.line(format!("   {path}\t{:>10}", units.show(*bytes)))?;
        }
        out.line("")?;
    }
    out.line("Unallocated:")?;
    for device in &numbers.usage.devices {
        let left = units.show(left_of(device));
        out.line(format!("   {path}\t{left:>10}"))?;
    }
    Ok(())
}

fn percent(group: &GroupUsage) -> f64 {
    100.0 * group.used as f64 / group.total.max(1) as f64
}

fn overall(out: &mut Out, numbers: &Numbers, units: Units) -> Result<()> {
    let width = if units.is_wide() { 18 } else { 10 };
    let (free, least) = numbers.free();
    out.line("Overall:")?;
    let sizes = [
        ("Device size:\t\t", numbers.size()),
        ("Device allocated:\t\t", numbers.allocated()),
        ("Device unallocated:\t\t", numbers.unallocated()),
        ("Device missing:\t\t", 0),
        ("Device slack:\t\t", numbers.slack),
        ("Used:\t\t\t", numbers.used_on_devices()),
    ];
    for (name, bytes) in sizes {
        out.line(format!("    {name}{:>width$}", units.show(bytes)))?;
    }
    let least = units.show(least);
    out.line(format!("    Free (estimated):\t\t{:>width$}\t(min: {least})", units.show(free)))?;
    let available = units.show(numbers.usage.available);
    out.line(format!("    Free (statfs, df):\t\t{available:>width$}"))?;
    for (name, kind) in [("Data ratio:\t\t\t", DATA), ("Metadata ratio:\t\t", METADATA)] {
        out.line(format!("    {name}{:>width$.2}", numbers.ratio(kind)))?;
    }
    let (reserve, none) = (units.show(numbers.usage.global_reserve), units.show(0));
    out.line(format!("    Global reserve:\t\t{reserve:>width$}\t(used: {none})"))?;
    let several = numbers.several_profiles().join(", ");
    out.line(match several.is_empty() {
        true => format!("    Multiple profiles:\t\t{:>width$}", "no"),
        false => format!("    Multiple profiles:\t\t{:>width$}\t({several})", "yes"),
    })
}

fn as_json(o: &mut Object<'_>, numbers: &Numbers) {
    let (free, least) = numbers.free();
    let usage = &numbers.usage;
    o.bytes("device", numbers.device.as_os_str().as_bytes());
    o.number("device_size", numbers.size()).number("device_allocated", numbers.allocated());
    o.number("device_unallocated", numbers.unallocated());
    o.number("used", numbers.used_on_devices());
    o.number("free_estimated", free).number("free_estimated_min", least);
    o.number("free_statfs", usage.available).number("global_reserve", usage.global_reserve);
    o.array("groups", |a| {
        for group in numbers.by_weight() {
            a.object(|o| {
                o.text("type", kind_name(group.flags)).text("profile", &profile_name(group.flags));
                o.number("size", group.total).number("used", group.used);
                o.array("devices", |a| {
                    for (id, bytes) in &group.on_devices {
                        a.object(|o| {
                            o.number("devid", *id).number("size", *bytes);
                        });
                    }
                });
            });
        }
    });
}
