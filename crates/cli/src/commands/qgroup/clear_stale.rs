//! `spinney qgroup clear-stale`.

use crate::args::{self, Args};
use crate::commands::Command;
use crate::commands::quota::on;
use crate::commands::subvolume::place::VolumePath;
use crate::error::{Exit, Result};
use std::collections::BTreeSet;

pub const COMMAND: Command = Command {
    name: "qgroup clear-stale",
    summary: "take quota groups of deleted subvolumes away",
    usage: "VOLUME",
    help: "\
Takes those quota groups of level 0 away whose subvolumes are gone; of subvolumes that are
still being deleted they stay, and with simple quotas of those that own extents still.
VOLUME is an image, or a directory of a mount, where root and who mounted it may do so.

Examples
    spinney qgroup clear-stale /mnt
",
    run,
};

fn run(args: Args) -> Result<Exit> {
    let place = VolumePath::parse(&args::only(args, "an image or a directory of a mount")?);
    on(&place, true, |open| {
        let there: BTreeSet<u64> = open.all(&place)?.iter().map(|info| info.id.0).collect();
        let stale = |id: u64, level: u64| level == 0 && !there.contains(&id);
        let simple = open.quota_status(&place)?.is_some_and(|status| status.simple);
        for group in open.qgroups(&place)?.iter().filter(|g| stale(g.id.0, g.id.level())) {
            if simple && group.referenced != 0 {
                continue;
            }
            open.destroy_qgroup(&place, group.id)?;
        }
        Ok(())
    })
}
