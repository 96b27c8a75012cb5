//! `spinney property list`.

use super::{ALL, Words, kinds_of, words};
use crate::args::{self, Args};
use crate::commands::Command;
use crate::commands::subvolume::place::{self, VolumePath};
use crate::error::{Exit, Result};
use crate::output::{Json, Out};

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

fn run(args: Args) -> Result<Exit> {
    let Words { operands, subvol, json, kind } = words(args)?;
    let place = VolumePath::of_any_file(&args::one(operands, "a path")?);
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
