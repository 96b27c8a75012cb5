//! `spinney subvolume get-default`.

use super::place::{self, VolumePath};
use super::words;
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::error::{Error, Exit, Result};
use crate::output::{Json, Out};
use btrfs_fs::Subvol;
use spinney::{SubvolId, SubvolumeInfo};
use std::ffi::OsString;

pub const COMMAND: Command = Command {
    name: "subvolume get-default",
    summary: "tell which subvolume mounts begin at",
    usage: "[--json] VOLUME",
    help: "\
Tells the default subvolume: where a mount begins that asks for nothing else, and paths in
an image start. VOLUME is an image or a directory of a mount.

Options
    --json    as a JSON object

Examples
    spinney subvolume get-default disk.img
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut json, mut operands) = (false, Vec::<OsString>::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let place = VolumePath::parse(&args::one(operands, "an image or a directory of a mount")?);
    place::at(std::slice::from_ref(&place), Subvol::Id(btrfs_disk::TreeId::FS), false, |open, _| {
        let id = open.default(&place)?;
        let mut out = Out::new();
        if id == SubvolId::TOP_LEVEL && !json {
            out.line("ID 5 (FS_TREE)")?;
            return out.finish();
        }
        let info = open.all(&place)?.into_iter().find(|info| info.id == id);
        let info = info.ok_or_else(|| {
            Error::about(place.show(), format!("its default subvolume {} is not there", id.0))
        })?;
        out.line(tell(&info, json))?;
        out.finish()
    })
}

fn tell(info: &SubvolumeInfo, json: bool) -> Vec<u8> {
    if json {
        return Json::object(|o| words::json(o, info, words::path(info))).into_bytes();
    }
    let (id, parent) = (info.id.0, words::parent(info));
    let front = format!("ID {id} gen {} top level {parent} path ", info.generation);
    [front.as_bytes(), words::path(info)].concat()
}
