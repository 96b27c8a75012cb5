//! `spinney rescue`: ways out where a mount is not possible.

use super::Command;
use crate::args::{Arg, Args, unexpected};
use crate::error::{Error, Exit, Result};
use crate::image::{self, Access};
use crate::output::{Json, Out};
use spinney::rescue::{clear_free_space_tree, clear_uuid_tree, zero_log};
use std::path::Path;

pub const COMMAND: Command = Command {
    name: "rescue",
    summary: "give up the log, free-space tree or UUID tree of a volume",
    usage: "zero-log|clear-space-cache|clear-uuid-tree [--json] IMAGE",
    help: "\
What fsync wrote after the last commit is in the volume's log, which the next mount replays.
Where the log is damaged the mount fails, and changes nothing.

zero-log makes the volume forget its log: the next mount shows the last commit, at most
some 30 seconds older than the crash, and what was fsynced after it is lost. Before that,
`spinney mount -o ro,nologreplay` shows the same state, and `spinney dump-tree -t log` what
is in the log.

The free-space tree says what is free. Where a part of it cannot be read nobody can mount the
volume to write.

clear-space-cache makes another, of what the extents say, also where the old one cannot be
read: nothing of the volume is lost with it. A log is replayed.

The UUID tree says of UUIDs whose subvolumes they are. Where it is damaged the kernel may
refuse the volume, and nobody can make or delete subvolumes.

clear-uuid-tree takes it away, also where it cannot be read: the next mount that writes
makes another, of what the subvolumes say themselves (the kernel's mount, too). A log is
replayed first.

Options
    --json    tell whether there was such a thing as a JSON object

Examples
    spinney rescue zero-log disk.img
    spinney rescue clear-space-cache disk.img
    spinney rescue clear-uuid-tree disk.img

Exit codes
    0  the volume has no log, another free-space tree, or no UUID tree, now
    1  it could not be changed; the message says why
    2  the command line is wrong
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut json, mut words) = (false, Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Value(value) => words.push(value),
            other => return Err(unexpected(other)),
        }
    }
    match &words[..] {
        [verb, image] if verb == "zero-log" => forget_log(Path::new(image), json),
        [verb, image] if verb == "clear-space-cache" => free_space_anew(Path::new(image), json),
        [verb, image] if verb == "clear-uuid-tree" => forget_uuids(Path::new(image), json),
        _ => Err(Error::usage("what to do, and to which image? `spinney rescue zero-log IMAGE`")),
    }
}

fn forget_log(path: &Path, json: bool) -> Result<Exit> {
    let there = zero_log(image::open(path, Access::Write)?.device())?.root != 0;
    let said = match there {
        true => "the log is given up; the volume is as of its last commit",
        false => "the volume has no log",
    };
    tell(path, json.then_some(("had_log", there)), said)
}

fn free_space_anew(path: &Path, json: bool) -> Result<Exit> {
    let there = clear_free_space_tree(image::open(path, Access::Write)?.device())?;
    let said = match there {
        true => "the free-space tree is made anew",
        false => "the volume has no free-space tree; the next mount that writes makes one",
    };
    tell(path, json.then_some(("had_free_space_tree", there)), said)
}

fn forget_uuids(path: &Path, json: bool) -> Result<Exit> {
    let there = clear_uuid_tree(image::open(path, Access::Write)?.device())?;
    let said = match there {
        true => "the UUID tree is gone; the next mount that writes makes another",
        false => "the volume has no UUID tree",
    };
    tell(path, json.then_some(("had_uuid_tree", there)), said)
}

fn tell(path: &Path, json: Option<(&str, bool)>, said: &str) -> Result<Exit> {
    let mut out = Out::new();
    out.line(match json {
        Some((name, there)) => Json::object(|o| {
            o.bytes("image", path.as_os_str().as_encoded_bytes()).bool(name, there);
        }),
        None => said.into(),
    })?;
    out.finish()?;
    Ok(Exit::Done)
}
