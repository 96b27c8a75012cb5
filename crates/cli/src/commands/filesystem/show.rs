//! `spinney filesystem show`.

use super::numbers::{self, Numbers};
use super::units::{Units, long_units};
use crate::args::{Arg, Args, unexpected};
use crate::commands::Command;
use crate::commands::offline::uuid;
use crate::commands::subvolume::place::VolumePath;
use crate::error::{Error, Exit, Result};
use crate::mounts;
use crate::output::{Json, Object, Out};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub const COMMAND: Command = Command {
    name: "filesystem show",
    summary: "show what volumes are made of",
    usage: "[OPTIONS] [VOLUME]",
    help: concat!(
        "\
Tells label, UUID and devices of volumes: of an image, of the volume that a directory of a
mount lies in, or of what Spinney has mounted that has this UUID or label. Without VOLUME
all that Spinney has mounted, and all block devices with a btrfs in them. The output is that
of `btrfs filesystem show`.

Options
        --json             as a JSON array of objects; sizes are bytes
    -m, --mounted          only what Spinney has mounted
    -d, --all-devices      only block devices
        --raw              bytes
",
        long_units!(),
        "
Examples
    spinney filesystem show
    spinney filesystem show disk.img
"
    ),
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut units, mut json) = (Vec::new(), Units::HUMAN, false);
    let (mut mounted, mut devices) = (true, true);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Short('m') | Arg::Long("mounted") => (mounted, devices) = (true, false),
            Arg::Short('d') | Arg::Long("all-devices") => (mounted, devices) = (false, true),
            Arg::Value(value) => operands.push(value),
            other if units.take_long(&other) => {}
            other => return Err(unexpected(other)),
        }
    }
    let shown = match &operands[..] {
        [] => all(mounted, devices),
        [word] => vec![one(word)?],
        more => return Err(Error::usage(format!("expected one volume, got {}", more.len()))),
    };
    let mut out = Out::new();
    match json {
        true => out.line(Json::array(|a| {
            shown.iter().for_each(|numbers| {
                a.object(|o| as_json(o, numbers));
            });
        }))?,
        false => shown.iter().try_for_each(|numbers| as_text(&mut out, numbers, units))?,
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn one(word: &OsStr) -> Result<Numbers> {
    let place = VolumePath::parse(word);
    if matches!(place, VolumePath::Mount(_)) && !Path::new(word).exists() {
        let named = |numbers: &Numbers| {
            numbers.usage.label == word.as_bytes() || *word == *uuid(&numbers.usage.fsid)
        };
        let found = all(true, true).into_iter().find(named);
        return found.ok_or_else(|| {
            Error::about(word.to_string_lossy(), "no volume has this path, UUID or label")
        });
    }
    numbers::of(&place)
}

/// What can be asked, each volume once.
fn all(mounted: bool, devices: bool) -> Vec<Numbers> {
    let mut places = Vec::new();
    if mounted {
        let ours = mounts::all().unwrap_or_default();
        let ours = ours.into_iter().filter(|entry| entry.kind.ends_with(".spinney"));
        places.extend(ours.map(|entry| VolumePath::Mount(entry.point)));
    }
    if devices {
        places.extend(block_devices().iter().map(|path| VolumePath::parse(path.as_os_str())));
    }
    let mut seen = HashSet::new();
    let found = places.iter().filter_map(|place| numbers::of(place).ok());
    found.filter(|numbers| seen.insert(numbers.usage.fsid)).collect()
}

/// Those that hold something, by the kernel's table of partitions.
fn block_devices() -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/partitions").unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split_whitespace().nth(3));
    names.skip(1).map(|name| Path::new("/dev").join(name)).collect()
}

fn as_text(out: &mut Out, numbers: &Numbers, units: Units) -> Result<()> {
    let usage = &numbers.usage;
    let label = match &usage.label[..] {
        b"" => b"none".to_vec(),
        label => [b"'", label, b"'"].concat(),
    };
    out.bytes(b"Label: ")?;
    out.bytes(&label)?;
    out.line(format!("  uuid: {}", uuid(&usage.fsid)))?;
    let (count, used) = (usage.devices.len(), units.show(numbers.used()));
    out.line(format!("\tTotal devices {count} FS bytes used {used}"))?;
    for device in &usage.devices {
        let (size, used) = (units.show(device.total), units.show(device.used));
        let path = numbers.device.display();
        out.line(format!("\tdevid {:4} size {size} used {used} path {path}", device.id))?;
    }
    out.line("")
}

fn as_json(o: &mut Object<'_>, numbers: &Numbers) {
    let usage = &numbers.usage;
    o.bytes("label", &usage.label).text("uuid", &uuid(&usage.fsid));
    o.number("used_bytes", numbers.used()).number("generation", usage.generation);
    o.bool("mounted", numbers.mounted);
    o.array("devices", |a| {
        for device in &usage.devices {
            a.object(|o| {
                o.number("devid", device.id).text("uuid", &uuid(&device.uuid));
                o.number("size", device.total).number("used", device.used);
                o.bytes("path", numbers.device.as_os_str().as_bytes());
            });
        }
    });
}
