//! `spinney subvolume snapshot`.

use super::place::{self, VolumePath};
use super::words;
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::error::{Error, Exit, Result};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::Out;
use btrfs_fs::Subvol;
use std::ffi::OsString;

pub const COMMAND: Command = Command {
    name: "subvolume snapshot",
    summary: "make a snapshot of a subvolume",
    usage: "[-r] [-q] [-i QGROUP] SUBVOLUME TARGET",
    help: "\
Makes TARGET a snapshot of SUBVOLUME, both in one image or in one mount; where TARGET is a
directory, the snapshot is made in it and has the name of SUBVOLUME. It takes no room
until one of both changes, and is on the medium when the command ends. Subvolumes that lie
in SUBVOLUME are not in it. In a mount, who owns SUBVOLUME and may write to the directory
may make one.

Options
    -r                nothing in the snapshot can be changed
    -i QGROUP         put it into this quota group, as `1/100`; may be given again
    -q, --quiet       say nothing of what was made
    --subvol PATH, --subvolid ID
                      paths in an image start from this subvolume, not the default one

Examples
    spinney subvolume snapshot -r disk.img:/home disk.img:/home.monday
    spinney subvolume snapshot /mnt/home /mnt/snapshots
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut subvol) = (Vec::<OsString>::new(), Subvol::Default);
    let (mut read_only, mut quiet, mut groups) = (false, false, Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('r') => read_only = true,
            Arg::Short('q') | Arg::Long("quiet") => quiet = true,
            Arg::Short('i') => groups.push(words::group(&args.text()?)?),
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let [source, target] = args::exactly(operands, "a subvolume, and where to")?;
    let places = [VolumePath::parse(&source), VolumePath::parse(&target)];
    place::at(&places, subvol, true, |open, _| {
        let [source, target] = &places;
        let target = match open.is_dir(target)? {
            true => {
                let name = source.name();
                let nameless = || Error::about(source.show(), "name the snapshot of this one");
                target.join(&name.ok_or_else(nameless)?)
            }
            false => target.clone(),
        };
        open.snapshot(source, &target, read_only, &groups)?;
        if quiet {
            return Ok(());
        }
        let kind = if read_only { "readonly snapshot" } else { "snapshot" };
        let mut out = Out::new();
        out.line(format!("Create a {kind} of '{}' in '{}'", source.show(), target.show()))?;
        out.finish()
    })
}
