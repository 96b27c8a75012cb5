//! `spinney quota enable` and `disable`.

use super::on;
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::subvolume::place::VolumePath;
use crate::door::Switch;
use crate::error::{Exit, Result};
use std::ffi::OsStr;

pub const ENABLE: Command = Command {
    name: "quota enable",
    summary: "begin to keep quotas",
    usage: "[-s] VOLUME",
    help: "\
Each subvolume gets a quota group, and what is in it is counted. VOLUME is an image, or a
directory of a mount, where the counting goes on behind the command. Nothing changes where
quotas are kept already, but in an image what could not be counted then is counted. In a
mount, root and who mounted it may do so.

Simple quotas cost less and say less: an extent counts for the subvolume that wrote it
first, as long as anybody has it, and what was written before they began does not count.
Kernels before 6.7 do not mount a volume that has had them.

Options
    -s, --simple      simple quotas

Examples
    spinney quota enable disk.img
    spinney quota enable --simple /mnt
",
    run: enable,
};

pub const DISABLE: Command = Command {
    name: "quota disable",
    summary: "keep quotas no more",
    usage: "VOLUME",
    help: "\
All quota groups go, with their limits. VOLUME is an image, or a directory of a mount, where
root and who mounted it may do so.

Examples
    spinney quota disable /mnt
",
    run: |args| switch(&args::only(args, PLACE)?, Switch::Off),
};

const PLACE: &str = "an image or a directory of a mount";

fn enable(mut args: Args) -> Result<Exit> {
    let (mut operands, mut to) = (Vec::new(), Switch::On);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('s') | Arg::Long("simple") => to = Switch::Simple,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    switch(&args::one(operands, PLACE)?, to)
}

fn switch(place: &OsStr, to: Switch) -> Result<Exit> {
    let place = VolumePath::parse(place);
    on(&place, true, |open| open.switch_quotas(&place, to))
}
