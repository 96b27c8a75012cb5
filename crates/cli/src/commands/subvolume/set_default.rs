//! `spinney subvolume set-default`.

use super::place::{self, VolumePath};
use super::words;
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::error::{Exit, Result};
use crate::mount::options::{subvol_id, subvol_path};
use btrfs_fs::Subvol;
use std::ffi::OsString;

pub const COMMAND: Command = Command {
    name: "subvolume set-default",
    summary: "let mounts begin at a subvolume",
    usage: "\
SUBVOLUME
ID VOLUME",
    help: "\
Makes a subvolume the default one: there begins a mount that asks for nothing else, ours
and the kernel's, and there paths in an image start from then on. 5 is the number of the
volume's top. In a mount, root and who mounted it may do so.

Options
    --subvol PATH, --subvolid ID
                      paths in an image start from this subvolume, not the default one

Examples
    spinney subvolume set-default disk.img:/root
    spinney subvolume set-default 5 disk.img
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut subvol) = (Vec::<OsString>::new(), Subvol::Default);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let id = match operands.len() {
        2 => Some(words::id(&args::text(operands.remove(0))?)?),
        _ => None,
    };
    let place = VolumePath::parse(&args::one(operands, "a subvolume, or a number and a volume")?);
    place::at(std::slice::from_ref(&place), subvol, true, |open, _| {
        let id = match id {
            Some(id) => id,
            None => open.rooted(&place)?.id,
        };
        open.set_default(&place, id)
    })
}
