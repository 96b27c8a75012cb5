//! `spinney inspect-internal subvolid-resolve`.

use crate::args::{self, Arg, Args, unexpected};
use crate::commands::Command;
use crate::commands::subvolume::place::VolumePath;
use crate::commands::trees::{Trees, subvolume_path};
use crate::error::{Error, Exit, Result};
use crate::output::{Json, Out};
use btrfs_disk::TreeId;
use std::ffi::OsString;

pub const COMMAND: Command = Command {
    name: "inspect-internal subvolid-resolve",
    summary: "tell where a subvolume of a number lies",
    usage: "[--json] NUMBER VOLUME",
    help: "\
Prints the path of the subvolume of that number, from the top level of the volume on; an
empty line for the top level itself. VOLUME is an image or a path of a mount.

Options
        --json      as a JSON object

Examples
    spinney inspect-internal subvolid-resolve 257 /mnt
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut json) = (Vec::<OsString>::new(), false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let (id, place) = number_and_place(operands)?;
    let trees = Trees::open(&place)?;
    let path = match TreeId(id).is_subvolume() {
        true => subvolume_path(&trees, TreeId(id))?,
        false => None,
    };
    let missing =
        || Error::about(place.show(), format!("there is no subvolume {id} that has a path"));
    let path = path.ok_or_else(missing)?;
    let mut out = Out::new();
    match json {
        true => out.line(Json::object(|o| {
            o.number("subvolid", id).bytes("path", &path);
        }))?,
        false => out.line(path)?,
    }
    out.finish()?;
    Ok(Exit::Done)
}

/// The two operands that several of these commands have.
pub fn number_and_place(operands: Vec<OsString>) -> Result<(u64, VolumePath)> {
    let [number, place] = args::exactly(operands, "a number and a place")?;
    let text = args::text(number)?;
    let number = text.parse().map_err(|_| Error::usage(format!("{text:?} is no number")))?;
    Ok((number, VolumePath::parse(&place)))
}
