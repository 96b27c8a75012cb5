//! `spinney inspect-internal rootid`.

use crate::args::{Arg, Args, one, unexpected};
use crate::commands::Command;
use crate::commands::subvolume::place::VolumePath;
use crate::commands::trees::Trees;
use crate::error::{Exit, Result};
use crate::output::{Json, Out};

pub const COMMAND: Command = Command {
    name: "inspect-internal rootid",
    summary: "tell the number of the subvolume of a path",
    usage: "[--json] PATH",
    help: "\
Prints the number of the subvolume that PATH lies in, or is. PATH is one of a mount, or
IMAGE:/PATH from the top level on.

Options
        --json      as a JSON object

Examples
    spinney inspect-internal rootid /mnt/home
    spinney inspect-internal rootid disk.img:/home
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut json) = (Vec::new(), false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let place = VolumePath::of_any_file(&one(operands, "a path")?);
    let id = match &place {
        VolumePath::Mount(path) => crate::door::Door::open(path)?.around()?.0.id.0,
        VolumePath::Image(_) => Trees::open(&place)?.spot()?.tree.0,
    };
    let mut out = Out::new();
    match json {
        true => out.line(Json::object(|o| {
            o.number("rootid", id);
        }))?,
        false => out.line(id.to_string())?,
    }
    out.finish()?;
    Ok(Exit::Done)
}
