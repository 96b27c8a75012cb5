//! `spinney property get`.

use super::{READ_ONLY, compression, known, of_subvolumes};
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::subvolume::place::{self, Place};
use crate::error::{Error, Exit, Result};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::{Json, Out};
use btrfs_fs::Subvol;
use std::ffi::OsString;

pub const COMMAND: Command = Command {
    name: "property get",
    summary: "tell a property of a subvolume or a file",
    usage: "[--json] [-t subvol|inode] PATH [ro|compression]",
    help: "\
Prints `ro=true` if nothing in the subvolume can be changed, else `ro=false`. `spinney
subvolume property get` is the same. `compression` is of a file or a directory: how its
content, or that of what is made in it, is compressed; nothing is printed where it has none.

Options
    --json            as a JSON object
    -t TYPE           the kind of what has the property: subvol or inode
    --subvol PATH, --subvolid ID
                      paths in an image start from this subvolume, not the default one

Examples
    spinney property get disk.img:/home.monday ro
    spinney property get disk.img:/home/notes compression
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut subvol) = (Vec::<OsString>::new(), Subvol::Default);
    let mut json = false;
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('t') => of_subvolumes(&args.text()?)?,
            Arg::Long("json") => json = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let place = match operands.as_slice() {
        [place] => Place::parse(place),
        [place, name] if name == compression::NAME => {
            return compression::get(&Place::of_any_file(place), subvol, json);
        }
        [place, name] => {
            known(&name.to_string_lossy())?;
            Place::parse(place)
        }
        all => return Err(Error::usage(format!("expected a subvolume, got {} words", all.len()))),
    };
    place::at(std::slice::from_ref(&place), subvol, false, |open, _| {
        let info = open.rooted(&place)?;
        let mut out = Out::new();
        out.line(match json {
            true => Json::object(|o| {
                o.bool(READ_ONLY, info.read_only);
            }),
            false => format!("{READ_ONLY}={}", info.read_only),
        })?;
        out.finish()
    })
}
