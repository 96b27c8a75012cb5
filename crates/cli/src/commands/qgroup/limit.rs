//! `spinney qgroup limit`.

use super::group::{self, Group};
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::subvolume::place::VolumePath;
use crate::error::{Error, Exit, Result};
use spinney::LimitChange;
use std::ffi::OsString;

pub const COMMAND: Command = Command {
    name: "qgroup limit",
    summary: "limit what a quota group may hold",
    usage: "[-e] SIZE|none [QGROUP] PATH",
    help: "\
What would take the group beyond SIZE is refused (\"quota exceeded\"); what is there already
stays, and can always be deleted. `none` takes the limit away. Without QGROUP it is the group
of the subvolume PATH. QGROUP is LEVEL/NUMBER, a number of level 0, or the path of a
subvolume. PATH is in an image or in a mount, where root and who mounted it may do so.

Options
    -c                count what content takes when it is compressed (so it is anyway)
    -e                limit what the group has for itself, not what it references

Examples
    spinney qgroup limit 10G /mnt/home
    spinney qgroup limit -e 512M 1/100 disk.img
    spinney qgroup limit none disk.img:/home
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut exclusive) = (Vec::<OsString>::new(), false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('c') => {}
            Arg::Short('e') => exclusive = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let place = operands.pop().ok_or_else(|| Error::usage("size and path are missing"))?;
    let (size, group) = match operands.as_slice() {
        [size] => (size, None),
        [size, group] => (size, Some(Group::named(group)?)),
        all => return Err(Error::usage(format!("expected 2 or 3 words, got {}", all.len() + 1))),
    };
    let most = match size.to_str() {
        Some("none") => None,
        _ => Some(args::size(&args::text(size.clone())?)?),
    };
    let change = match exclusive {
        true => LimitChange { exclusive: Some(most), ..LimitChange::default() },
        false => LimitChange { referenced: Some(most), ..LimitChange::default() },
    };
    let place = VolumePath::parse(&place);
    let group = group.unwrap_or_else(|| Group::Of(place.clone()));
    group::change(&place, &[&group], |open| {
        open.limit_qgroup(&place, group.id(open, &place)?, &change)
    })
}
