//! `spinney inspect-internal inode-resolve`.

use super::subvolid::number_and_place;
use crate::args::{Arg, Args, unexpected};
use crate::commands::Command;
use crate::commands::trees::{TreeInode, Trees, inode_paths};
use crate::error::{Error, Exit, Result};
use crate::output::{Json, Out};
use std::ffi::OsString;

pub const COMMAND: Command = Command {
    name: "inspect-internal inode-resolve",
    summary: "tell the paths of an inode of a subvolume",
    usage: "[--json] INODE SUBVOLUME",
    help: "\
Prints the paths of the inode of that number in the subvolume, one for each of its names.
SUBVOLUME is one of a mount, or IMAGE:/PATH from the top level on. The number is that in the
subvolume; in a mount of Spinney `stat` shows it in the lower 40 bits.

Options
    -v              as `btrfs` has it, to no effect
        --json      as a JSON object

Examples
    spinney inspect-internal inode-resolve 258 /mnt/home
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut json) = (Vec::<OsString>::new(), false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Short('v') => {}
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let (ino, place) = number_and_place(operands)?;
    let trees = Trees::open(&place)?;
    let spot = TreeInode { ino, ..trees.spot()? };
    let paths = inode_paths(&trees, spot)?;
    if paths.is_empty() {
        return Err(Error::about(place.show(), format!("no path leads to inode {ino}")));
    }
    let paths: Vec<Vec<u8>> = paths.iter().map(|path| place.join(path).bytes()).collect();
    let mut out = Out::new();
    if json {
        out.line(Json::object(|o| {
            o.number("inode", ino).number("rootid", spot.tree.0).each_bytes("paths", &paths);
        }))?;
    } else {
        paths.iter().try_for_each(|path| out.line(path))?;
    }
    out.finish()?;
    Ok(Exit::Done)
}
