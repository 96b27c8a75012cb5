//! `spinney qgroup assign` and `remove`.

use super::group::{self, Group};
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::subvolume::place::VolumePath;
use crate::error::{Error, Exit, Result, say_error};
use crate::output::Out;
use std::ffi::OsString;

pub const ASSIGN: Command = Command {
    name: "qgroup assign",
    summary: "put a quota group into another",
    usage: "[--no-rescan] MEMBER QGROUP VOLUME",
    help: "\
Makes MEMBER a member of QGROUP, whose level is higher. MEMBER is a group, or the path of a
subvolume. Where the numbers of QGROUP cannot be had from those of its members, since these
share content, all is counted anew. VOLUME is an image, or a directory of a mount, where
root and who mounted it may do so.

Options
    --rescan          count anew where needed (so it is anyway)
    --no-rescan       never count anew; what is shown is wrong until `spinney quota rescan`

Examples
    spinney qgroup assign 0/257 1/100 /mnt
    spinney qgroup assign /mnt/home 1/100 /mnt
",
    run: |args| run(args, true),
};

pub const REMOVE: Command = Command {
    name: "qgroup remove",
    summary: "take a quota group out of another",
    usage: "[--no-rescan] MEMBER QGROUP VOLUME",
    help: "\
MEMBER, a group or the path of a subvolume, is no member of QGROUP any more; otherwise as
`spinney qgroup assign`. It takes a relation away whose groups are gone, too.

Options
    --rescan          count anew where needed (so it is anyway)
    --no-rescan       never count anew; what is shown is wrong until `spinney quota rescan`

Examples
    spinney qgroup remove 0/257 1/100 disk.img
",
    run: |args| run(args, false),
};

fn run(mut args: Args, comes: bool) -> Result<Exit> {
    let (mut operands, mut rescan) = (Vec::<OsString>::new(), true);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("rescan") => rescan = true,
            Arg::Long("no-rescan") => rescan = false,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let [child, parent, place] = args::exactly(operands, "two groups and a path")?;
    let (child, parent) = (Group::named(&child)?, Group::named(&parent)?);
    let place = VolumePath::parse(&place);
    group::change(&place, &[&child, &parent], |open| {
        let (child, parent) = (child.id(open, &place)?, parent.id(open, &place)?);
        if comes && child.level() >= parent.level() {
            let what = format!("{child} cannot be in {parent}: levels ascend");
            return Err(Error::about(place.show(), what));
        }
        if open.relate_qgroups(&place, (child, parent), comes)? {
            return Ok(());
        }
        if !rescan {
            say_error("spinney: quotas may be inconsistent, rescan needed");
            return Ok(());
        }
        let mut out = Out::new();
        out.line("Quota data changed, rescan scheduled")?;
        open.begin_rescan(&place)?;
        out.finish()
    })
}
