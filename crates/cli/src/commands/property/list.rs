//! `spinney property list`.

use super::{ALL, kind_named, kinds_of};
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::subvolume::place::{self, Place};
use crate::error::{Exit, Result};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::{Json, Out};
use btrfs_fs::Subvol;

pub const COMMAND: Command = Command {
    name: "property list",
    summary: "tell which properties something has",
    usage: "[--json] [-t subvol|filesystem|inode] PATH",
    help: "\
Prints the properties that PATH has, each with what it is about.

Options
    --json            as a JSON array of names
    -t TYPE           those of that kind, whatever PATH is: subvol, filesystem (or device),
                      inode
    --subvol PATH, --subvolid ID
                      paths in an image start from this subvolume, not the default one

Examples
    spinney property list /mnt
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut subvol) = (Vec::new(), Subvol::Default);
    let (mut json, mut kind) = (false, None);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('t') => kind = Some(kind_named(&args.text()?)?),
            Arg::Long("json") => json = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let place = Place::of_any_file(&args::one(operands, "a path")?);
    place::at(std::slice::from_ref(&place), subvol, false, |open, _| {
        let kinds = kinds_of(open, &place)?;
        let has = |of| kind.map_or_else(|| kinds.contains(&of), |kind| kind == of);
        let found = ALL.into_iter().filter(|property| has(property.kind()));
        let mut out = Out::new();
        match json {
            true => out.line(Json::array(|all| {
                found.for_each(|property| _ = all.text(property.name()));
            }))?,
            false => {
                for property in found {
                    out.line(format!("{:<19} {}", property.name(), property.about()))?;
                }
            }
        }
        out.finish()
    })
}
