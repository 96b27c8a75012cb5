//! `spinney qgroup create` and `destroy`.

use super::group::{self, Group};
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::subvolume::place::VolumePath;
use crate::error::{Exit, Result};
use std::ffi::OsString;

pub const CREATE: Command = Command {
    name: "qgroup create",
    summary: "make a quota group",
    usage: "QGROUP VOLUME",
    help: "\
Makes a quota group of a level from 1 on, as `1/100`, for subvolumes and groups to be put
into. Groups of level 0 come and go with their subvolumes. VOLUME is an image, or a
directory of a mount, where root and who mounted it may do so.

Examples
    spinney qgroup create 1/100 /mnt
",
    run: |args| run(args, true),
};

pub const DESTROY: Command = Command {
    name: "qgroup destroy",
    summary: "take a quota group away",
    usage: "QGROUP VOLUME",
    help: "\
Takes a quota group away, out of those that it is in as well. It must have no members, and
its subvolume must be gone. VOLUME is an image, or a directory of a mount, where root and
who mounted it may do so.

Examples
    spinney qgroup destroy 1/100 disk.img
",
    run: |args| run(args, false),
};

fn run(mut args: Args, create: bool) -> Result<Exit> {
    let mut operands = Vec::<OsString>::new();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let [id, place] = args::exactly(operands, "a group and a path")?;
    let (group, place) = (Group::named(&id)?, VolumePath::parse(&place));
    group::change(&place, &[&group], |open| match create {
        true => open.create_qgroup(&place, group.id(open, &place)?),
        false => open.destroy_qgroup(&place, group.id(open, &place)?),
    })
}
