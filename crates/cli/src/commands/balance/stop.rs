//! `spinney balance pause` and `cancel`.

use crate::args::{self, Args};
use crate::commands::Command;
use crate::commands::target::Target;
use crate::error::{Error, Exit, Result};
use crate::image::Access;

pub const PAUSE: Command = Command {
    name: "balance pause",
    summary: "stop a balance, to go on later",
    usage: "VOLUME",
    help: "\
Stops the balance of a mount; `balance resume`, here or with `btrfs`, goes on with it, and so
does the next mount without -o skip_balance. Returns when it has stopped.

Examples
    spinney balance pause /mnt

Exit codes
    0  done
    2  none is at work, or the command line is wrong
",
    run: |args| run(args, "pause"),
};

pub const CANCEL: Command = Command {
    name: "balance cancel",
    summary: "stop a balance for good",
    usage: "VOLUME",
    help: "\
Stops a balance, at work or paused, also one that the kernel left in an image. What was
moved stays where it is.

Examples
    spinney balance cancel /mnt

Exit codes
    0  done
    2  there is none, or the command line is wrong
",
    run: |args| run(args, "cancel"),
};

fn run(args: Args, verb: &str) -> Result<Exit> {
    let volume = args::only(args, "an image or a directory of a mount")?;
    let target = Target::open(&volume, Access::Write)?;
    let done = if verb == "pause" { target.pause() } else { target.cancel() };
    let exit = match done {
        Ok(()) => Exit::Done,
        Err(refused) if refused.errno == libc::ESRCH => {
            let place = target.show();
            Error::new(format!("balance {verb} on '{place}' failed: Not in progress")).print();
            Exit::Code(2)
        }
        Err(refused) => return Err(refused.into()),
    };
    target.close()?;
    Ok(exit)
}
