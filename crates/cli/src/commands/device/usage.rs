//! `spinney device usage`.

use crate::args::{Arg, Args, some, unexpected};
use crate::commands::Command;
use crate::commands::filesystem::numbers::{self, Numbers, kind_name, left_of, profile_name};
use crate::commands::filesystem::units::{Units, short_units};
use crate::commands::subvolume::place::VolumePath;
use crate::error::{Exit, Result};
use crate::output::{Json, Object, Out};
use spinney::DeviceUsage;
use std::os::unix::ffi::OsStrExt;

pub const COMMAND: Command = Command {
    name: "device usage",
    summary: "show what of a device is in block groups",
    usage: "[--json] [-b|-k|-m|-g|-t|-h|-H] [--iec|--si] VOLUME...",
    help: concat!(
        "\
Tells of the device how much of it the volume has, how much of that each kind of block
groups takes, and what is left. VOLUME is an image, of which the last commit is told, or a
directory of a mount. The output is that of `btrfs device usage`.

Options
        --json             as a JSON array of objects; sizes are bytes
",
        short_units!(),
        "
Examples
    spinney device usage /mnt
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
    let places = VolumePath::all(&some(operands, "an image or a directory of a mount")?);
    let all = places.iter().map(numbers::of).collect::<Result<Vec<_>>>()?;
    let mut out = Out::new();
    match json {
        true => out.line(Json::array(|a| {
            for (numbers, device) in devices(&all) {
                a.object(|o| as_json(o, numbers, device));
            }
        }))?,
        false => {
            for (at, numbers) in all.iter().enumerate() {
                if at > 0 {
                    out.line("")?;
                }
                let devices = &numbers.usage.devices;
                devices.iter().try_for_each(|device| as_text(&mut out, numbers, device, units))?;
            }
        }
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn devices(all: &[Numbers]) -> impl Iterator<Item = (&Numbers, &DeviceUsage)> {
    all.iter().flat_map(|numbers| numbers.usage.devices.iter().map(move |device| (numbers, device)))
}

/// What each kind of block groups takes of the device.
fn taken(numbers: &Numbers, device: &DeviceUsage) -> impl Iterator<Item = (u64, u64)> {
    numbers.on_device(device).filter_map(|(group, here)| Some((group.flags, here?)))
}

fn as_text(out: &mut Out, numbers: &Numbers, device: &DeviceUsage, units: Units) -> Result<()> {
    out.line(format!("{}, ID: {}", numbers.device.display(), device.id))?;
    let mut line = |name: String, bytes: u64| {
        out.line(format!("   {:<22}{:>10}", name + ":", units.show(bytes)))
    };
    // Of the device itself, as btrfs-progs counts it here.
    line("Device size".into(), device.total + numbers.slack)?;
    line("Device slack".into(), numbers.slack)?;
    for (flags, bytes) in taken(numbers, device) {
        line(format!("{},{}", kind_name(flags), profile_name(flags)), bytes)?;
    }
    line("Unallocated".into(), left_of(device))?;
    out.line("")
}

fn as_json(o: &mut Object<'_>, numbers: &Numbers, device: &DeviceUsage) {
    o.bytes("device", numbers.device.as_os_str().as_bytes()).number("devid", device.id);
    o.number("device_size", device.total + numbers.slack).number("device_slack", numbers.slack);
    o.number("unallocated", left_of(device));
    o.array("groups", |a| {
        for (flags, bytes) in taken(numbers, device) {
            a.object(|o| {
                o.text("type", kind_name(flags)).text("profile", &profile_name(flags));
                o.number("size", bytes);
            });
        }
    });
}
