//! `spinney subvolume show`.

use super::place::{self, Open, VolumePath};
use super::words;
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::filesystem::units::Units;
use crate::error::{Error, Exit, Result, say_error};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::{Json, Out};
use btrfs_fs::Subvol;
use spinney::{Qgroup, SubvolId, SubvolumeInfo};
use std::ffi::OsString;

pub const COMMAND: Command = Command {
    name: "subvolume show",
    summary: "tell about a subvolume",
    usage: "\
[--json] [UNITS] SUBVOLUME
[--json] [UNITS] -r ID | -u UUID VOLUME",
    help: "\
Tells what is known of a subvolume: its UUIDs, commits and times, and its snapshots. In a
mount, others than root and who mounted it hear nothing of paths and snapshots.

Options
    -r, --rootid ID        the subvolume with this number, of the volume
    -u, --uuid UUID        the subvolume with this UUID
        --json             as a JSON object
    -b, --raw              bytes of its quota group
    -h, --human-readable   in units that fit, of 1024 (this is what it does anyway)
    -H                     in units that fit, of 1000
        --iec              in units of 1024
        --si               in units of 1000
    -k, --kbytes           in KiB, or kB with --si
    -m, --mbytes           in MiB, or MB with --si
    -g, --gbytes           in GiB, or GB with --si
    -t, --tbytes           in TiB, or TB with --si
    --subvol PATH, --subvolid ID
                      paths in an image start from this subvolume, not the default one

Examples
    spinney subvolume show disk.img:/home
    spinney subvolume show -r 256 /mnt
",
    run,
};

/// Scripts look for the first word, and for the name of the field in the same line.
const RECEIVED_AND_WRITABLE: &str = "\
WARNING: this subvolume has a received_uuid and can be written: it may be no longer what was sent,
  so send nothing incremental that builds on it";

enum Which {
    Here,
    Id(SubvolId),
    Uuid([u8; 16]),
}

fn warn(info: &SubvolumeInfo) {
    if info.received_uuid != [0; 16] && !info.read_only {
        say_error(RECEIVED_AND_WRITABLE);
    }
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut which, mut json, mut subvol) = (Which::Here, false, Subvol::Default);
    let (mut operands, mut units) = (Vec::<OsString>::new(), Units::HUMAN);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('r') | Arg::Long("rootid") => which = Which::Id(words::id(&args.text()?)?),
            Arg::Short('u') | Arg::Long("uuid") => {
                let text = args.text()?;
                let wrong = || Error::usage(format!("{text:?} is no UUID"));
                which = Which::Uuid(words::parse_uuid(&text).ok_or_else(wrong)?);
            }
            Arg::Long("json") => json = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other if units.take(&other) => {}
            other => return Err(args::unexpected(other)),
        }
    }
    let place = VolumePath::parse(&args::one(operands, "a subvolume")?);
    place::at(std::slice::from_ref(&place), subvol, false, |open, _| {
        let info = find(open, &place, &which)?;
        warn(&info);
        let all = open.all_if_allowed(&place)?;
        let mut out = Out::new();
        let snapshots = all.as_deref().map(|all| snapshots(all, &info));
        match json {
            true => out.line(as_json(&info, snapshots.as_deref()))?,
            false => {
                print(&mut out, &info, snapshots.as_deref())?;
                // Where there are quotas, and who asks may see them.
                let groups = open.qgroups(&place).unwrap_or_default();
                if let Some(group) = groups.iter().find(|group| group.id.0 == info.id.0) {
                    print_group(&mut out, group, units)?;
                }
            }
        }
        out.finish()
    })
}

fn find(open: &Open<'_>, place: &VolumePath, which: &Which) -> Result<SubvolumeInfo> {
    let fits = |info: &SubvolumeInfo| match which {
        Which::Here => false,
        Which::Id(id) => info.id == *id,
        Which::Uuid(uuid) => info.uuid == *uuid,
    };
    if let Which::Here = which {
        return open.rooted(place);
    }
    let found = open.all(place)?.into_iter().find(fits);
    found.ok_or_else(|| Error::about(place.show(), "there is no such subvolume"))
}

fn snapshots<'a>(all: &'a [SubvolumeInfo], of: &SubvolumeInfo) -> Vec<&'a SubvolumeInfo> {
    let is_one =
        |info: &&SubvolumeInfo| of.uuid != [0; 16] && info.parent_uuid == of.uuid && !info.deleted;
    all.iter().filter(is_one).collect()
}

fn path(info: &SubvolumeInfo) -> &[u8] {
    if info.id == SubvolId::TOP_LEVEL { b"/" } else { words::path(info) }
}

/// As `btrfs subvolume show` does, tabulators and all.
fn print(out: &mut Out, info: &SubvolumeInfo, snapshots: Option<&[&SubvolumeInfo]>) -> Result<()> {
    let is_top = info.id == SubvolId::TOP_LEVEL;
    out.line(path(info))?;
    let name: &[u8] = if is_top { b"<FS_TREE>" } else { &info.name };
    out.line([b"\tName: \t\t\t", name].concat())?;
    let flags = if info.read_only { "readonly" } else { "-" };
    let parent = words::parent(info);
    for (title, value) in [
        ("UUID: \t\t\t", words::uuid(&info.uuid)),
        ("Parent UUID: \t\t", words::uuid(&info.parent_uuid)),
        ("Received UUID: \t\t", words::uuid(&info.received_uuid)),
        ("Creation time: \t\t", words::time_and_zone(info.otime)),
        ("Subvolume ID: \t\t", info.id.0.to_string()),
        ("Generation: \t\t", info.generation.to_string()),
        ("Gen at creation: \t", info.otransid.to_string()),
        ("Parent ID: \t\t", parent.to_string()),
        ("Top level ID: \t\t", parent.to_string()),
        ("Flags: \t\t\t", flags.to_owned()),
        ("Send transid: \t\t", info.stransid.to_string()),
        ("Send time: \t\t", words::time_and_zone(info.stime)),
        ("Receive transid: \t", info.rtransid.to_string()),
        ("Receive time: \t\t", words::time_and_zone(info.rtime)),
    ] {
        out.line(format!("\t{title}{value}"))?;
    }
    let Some(snapshots) = snapshots else { return Ok(()) };
    out.line("\tSnapshot(s):")?;
    for snapshot in snapshots {
        out.line([b"\t\t\t\t", path(snapshot)].concat())?;
    }
    Ok(())
}

fn print_group(out: &mut Out, group: &Qgroup, units: Units) -> Result<()> {
    let size = |bytes| units.show(bytes);
    let limit = |most: Option<u64>| most.map_or("-".into(), size);
    for (title, value) in [
        ("Quota group:\t\t", group.id.to_string()),
        ("  Limit referenced:\t", limit(group.max_referenced)),
        ("  Limit exclusive:\t", limit(group.max_exclusive)),
        ("  Usage referenced:\t", size(group.referenced)),
        ("  Usage exclusive:\t", size(group.exclusive)),
    ] {
        out.line(format!("\t{title}{value}"))?;
    }
    Ok(())
}

fn as_json(info: &SubvolumeInfo, snapshots: Option<&[&SubvolumeInfo]>) -> String {
    Json::object(|o| {
        o.bytes("name", &info.name);
        words::json(o, info, path(info));
        if let Some(snapshots) = snapshots {
            o.array("snapshots", |all| {
                for snapshot in snapshots {
                    all.object(|o| {
                        o.number("id", snapshot.id.0).bytes("path", path(snapshot));
                    });
                }
            });
        }
    })
}
