//! `spinney subvolume sync`.

use super::place::{self, Open, VolumePath};
use super::words;
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::error::{Error, Exit, Result};
use crate::output::Out;
use btrfs_disk::TreeId;
use btrfs_fs::Subvol;
use spinney::SubvolId;
use std::ffi::OsString;
use std::thread::sleep;
use std::time::Duration;

pub const COMMAND: Command = Command {
    name: "subvolume sync",
    summary: "wait until deleted subvolumes are gone",
    usage: "[-s SECONDS] VOLUME [ID]...",
    help: "\
Waits until deleted subvolumes are gone with all that they took: those with the numbers
ID, or all that are being deleted now. In an image that is not mounted it does what is
left of that work. In a mount, root and who mounted it may ask.

Options
    -s SECONDS        look every so many seconds (1)

Examples
    spinney subvolume sync /mnt
    spinney subvolume sync disk.img
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut every, mut operands) = (Duration::from_secs(1), Vec::<OsString>::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('s') => every = seconds(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let mut words = args::some(operands, "an image or a directory of a mount")?.into_iter();
    let place = VolumePath::parse(&words.next().unwrap_or_default());
    let ids = words.map(|word| words::id(&args::text(word)?)).collect::<Result<Vec<_>>>()?;
    place::at(std::slice::from_ref(&place), Subvol::Id(TreeId::FS), true, |open, _| {
        let ids = if ids.is_empty() { being_deleted(open, &place)? } else { ids };
        if ids.is_empty() {
            return Ok(());
        }
        wait(open, &place, ids, every)
    })
}

fn seconds(text: &str) -> Result<Duration> {
    let wrong = || Error::usage(format!("-s {text}: write a number of seconds from 1 on"));
    text.parse().ok().filter(|n| *n > 0).map(Duration::from_secs).ok_or_else(wrong)
}

fn being_deleted(open: &Open<'_>, place: &VolumePath) -> Result<Vec<SubvolId>> {
    let all = open.all(place)?;
    Ok(all.iter().filter(|info| info.deleted).map(|info| info.id).collect())
}

fn wait(
    open: &Open<'_>,
    place: &VolumePath,
    mut left: Vec<SubvolId>,
    every: Duration,
) -> Result<()> {
    let (count, mut out) = (left.len(), Out::new());
    let many = if count == 1 { "" } else { "s" };
    out.line(format!("Waiting for {count} subvolume{many}"))?;
    let alive = |open: &Open<'_>| -> Result<Vec<SubvolId>> {
        Ok(open.all(place)?.iter().filter(|info| !info.deleted).map(|info| info.id).collect())
    };
    if let Some(id) = alive(open)?.iter().find(|id| left.contains(id)) {
        return Err(Error::about(place.show(), format!("subvolume {} is not deleted", id.0)));
    }
    open.work_off(place, &left)?;
    loop {
        let there = open.all(place)?;
        let (still, gone): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|id| there.iter().any(|info| info.id == *id));
        for (at, id) in gone.iter().enumerate() {
            let done = count - still.len() - gone.len() + at + 1;
            out.line(format!("Subvolume id {} is gone ({done}/{count})", id.0))?;
        }
        out.finish()?;
        if still.is_empty() {
            return Ok(());
        }
        left = still;
        sleep(every);
    }
}
