//! `spinney rescue`: ways out where a mount is not possible.

use super::Command;
use crate::args::{Arg, Args, unexpected};
use crate::error::{Error, Exit, Result};
use crate::image::{self, Access};
use crate::output::{Json, Out};
use blockdev::BlockDevice;
use spinney::rescue::{Cleared, clear_free_space_tree, clear_quotas, clear_uuid_tree, zero_log};
use std::path::Path;
use std::sync::Arc;

pub const COMMAND: Command = Command {
    name: "rescue",
    summary: "give up a log, a free-space or UUID tree, or quotas",
    usage: "zero-log|clear-space-cache|clear-uuid-tree|clear-quotas [--json] IMAGE",
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
refuse the volume, and what comes or goes with Spinney is not noted in it.

clear-uuid-tree takes it away, also where it cannot be read: the next mount that writes
makes another, of what the subvolumes say themselves (the kernel's mount, too). A log is
replayed first.

Where a part of the quota tree cannot be read, Spinney mounts the volume read-only.

clear-quotas ends quotas, also where the tree cannot be read: groups, limits and numbers are
gone, and nothing else. `quota enable` begins them anew. A log is replayed.

Options
    --json    tell whether there was such a thing as a JSON object

Examples
    spinney rescue zero-log disk.img
    spinney rescue clear-space-cache disk.img
    spinney rescue clear-uuid-tree disk.img
    spinney rescue clear-quotas disk.img

Exit codes
    0  the volume has no log, another free-space tree, no UUID tree or no quotas, now
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
    let [verb, image] = &words[..] else { return Err(unclear()) };
    let part = GIVEN_UP.iter().find(|part| verb == part.verb).ok_or_else(unclear)?;
    give_up(part, Path::new(image), json)
}

fn unclear() -> Error {
    Error::usage("what to do, and to which image? `spinney rescue zero-log IMAGE`")
}

/// Whether it was there, and whether the volume was given a free-space tree on the way.
type GivenUp = (bool, bool);

/// What of a volume can be given up.
struct Part {
    verb: &'static str,
    give_up: fn(Arc<dyn BlockDevice>) -> spinney::Result<GivenUp>,
    /// Name of that in JSON.
    had: &'static str,
    /// Said where it was there, and where not.
    said: [&'static str; 2],
}

const GIVEN_UP: [Part; 4] = [
    Part {
        verb: "zero-log",
        give_up: |device| Ok((zero_log(device)?.root != 0, false)),
        had: "had_log",
        said: ["the log is given up; the volume is as of its last commit", "the volume has no log"],
    },
    Part {
        verb: "clear-space-cache",
        give_up: |device| Ok((clear_free_space_tree(device)?, false)),
        had: "had_free_space_tree",
        said: [
            "the free-space tree is made anew",
            "the volume has no free-space tree; the next mount that writes makes one",
        ],
    },
    Part {
        verb: "clear-uuid-tree",
        give_up: |device| clear_uuid_tree(device).map(told),
        had: "had_uuid_tree",
        said: [
            "the UUID tree is gone; the next mount that writes makes another",
            "the volume has no UUID tree",
        ],
    },
    Part {
        verb: "clear-quotas",
        give_up: |device| clear_quotas(device).map(told),
        had: "had_quotas",
        said: ["quotas have ended; `quota enable` begins them anew", "the volume has no quotas"],
    },
];

fn told(cleared: Cleared) -> GivenUp {
    (cleared.there, cleared.made_free_space_tree)
}

fn give_up(part: &Part, path: &Path, json: bool) -> Result<Exit> {
    let (there, converted) = (part.give_up)(image::open(path, Access::Write)?.device())?;
    image::tell_converted(path, converted);
    let mut out = Out::new();
    out.line(match json {
        true => Json::object(|o| {
            o.bytes("image", path.as_os_str().as_encoded_bytes()).bool(part.had, there);
        }),
        false => part.said[usize::from(!there)].into(),
    })?;
    out.finish()?;
    Ok(Exit::Done)
}
