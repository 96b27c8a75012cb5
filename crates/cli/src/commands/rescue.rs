//! `spinney rescue`: ways out where a mount is not possible.

use super::Command;
use crate::args::{Arg, Args, unexpected};
use crate::error::{Error, Exit, Result};
use crate::image::{self, Access};
use crate::output::{Json, Out};
use spinney::rescue::zero_log;
use std::path::Path;

pub const COMMAND: Command = Command {
    name: "rescue",
    summary: "give up the log of a volume",
    usage: "zero-log [--json] IMAGE",
    help: "\
What fsync wrote after the last commit is in the volume's log, which the next mount replays.
Where the log is damaged the mount fails, and changes nothing.

zero-log makes the volume forget its log: the next mount shows the last commit, at most
some 30 seconds older than the crash, and what was fsynced after it is lost. Before that,
`spinney mount -o ro,nologreplay` shows the same state, and `spinney dump-tree -t log` what
is in the log.

Options
    --json    tell whether there was a log as a JSON object

Examples
    spinney rescue zero-log disk.img

Exit codes
    0  the volume has no log now
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
        [verb, image] if verb == "zero-log" => tell(Path::new(image), json),
        _ => Err(Error::usage("what to do, and to which image? `spinney rescue zero-log IMAGE`")),
    }
}

fn tell(path: &Path, json: bool) -> Result<Exit> {
    let had_log = zero_log(image::open(path, Access::Write)?.device())?.root != 0;
    let mut out = Out::new();
    out.line(match (json, had_log) {
        (true, _) => Json::object(|o| {
            o.bytes("image", path.as_os_str().as_encoded_bytes()).bool("had_log", had_log);
        }),
        (_, true) => "the log is given up; the volume is as of its last commit".into(),
        (_, false) => "the volume has no log".into(),
    })?;
    out.finish()?;
    Ok(Exit::Done)
}
