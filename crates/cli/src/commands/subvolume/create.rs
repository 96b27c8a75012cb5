//! `spinney subvolume create`.

use super::place::{self, Open, VolumePath};
use super::words;
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::error::{Exit, Result};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::Out;
use btrfs_fs::Subvol;
use spinney::QgroupId;
use std::ffi::OsString;

pub const COMMAND: Command = Command {
    name: "subvolume create",
    summary: "make subvolumes",
    usage: "[-p] [-q] [-i QGROUP] SUBVOLUME...",
    help: "\
Makes empty subvolumes, in an image (IMAGE:/PATH) or in a mount. They belong to the
caller. In a mount, who may write to the directory may make one there.

Options
    -p, --parents     make the directories above as well
    -i QGROUP         put it into this quota group, as `1/100`; may be given again
    -q, --quiet       say nothing of what was made
    --subvol PATH, --subvolid ID
                      paths in an image start from this subvolume, not the default one

Examples
    spinney subvolume create disk.img:/home
    spinney subvolume create /mnt/home /mnt/srv
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut subvol) = (Vec::<OsString>::new(), Subvol::Default);
    let (mut parents, mut quiet, mut groups) = (false, false, Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('p') | Arg::Long("parents") => parents = true,
            Arg::Short('q') | Arg::Long("quiet") => quiet = true,
            Arg::Short('i') => groups.push(words::group(&args.text()?)?),
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let places = VolumePath::all(&args::some(operands, "the subvolume's name")?);
    place::at(&places, subvol, true, |open, failures| {
        let mut out = Out::new();
        for place in &places {
            if failures.keep(make(open, place, parents, &groups)).is_some() && !quiet {
                out.line(format!("Create subvolume '{}'", place.show()))?;
            }
        }
        out.finish()
    })
}

fn make(open: &Open<'_>, place: &VolumePath, parents: bool, groups: &[QgroupId]) -> Result<()> {
    if parents {
        open.make_above(place)?;
    }
    open.create(place, groups)
}
