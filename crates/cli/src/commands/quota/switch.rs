//! `spinney quota enable` and `disable`.

use super::on;
use crate::args::{self, Args};
use crate::commands::Command;
use crate::commands::subvolume::place::Place;
use crate::error::{Exit, Result};

pub const ENABLE: Command = Command {
    name: "quota enable",
    summary: "begin to keep quotas",
    usage: "VOLUME",
    help: "\
Each subvolume gets a quota group, and what is in it is counted. VOLUME is an image, or a
directory of a mount, where the counting goes on behind the command. Nothing changes where
quotas are kept already. In a mount, root and who mounted it may do so.

Examples
    spinney quota enable disk.img
    spinney quota enable /mnt
",
    run: |args| run(args, true),
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
    run: |args| run(args, false),
};

fn run(args: Args, enable: bool) -> Result<Exit> {
    let place = Place::parse(&args::only(args, "an image or a directory of a mount")?);
    on(&place, true, |open| open.switch_quotas(&place, enable))
}
