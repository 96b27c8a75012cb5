//! `spinney balance start` and `resume`: begin, or go on, and wait.

use super::filters;
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::target::{Target, reason};
use crate::error::{Error, Exit, Result, say_error};
use crate::image::Access;
use crate::output::Out;
use crate::progress::Progress;
use crate::size::count;
use btrfs_disk::ids::block_group::{DATA, METADATA, SYSTEM};
use btrfs_disk::items::{BalanceFilter, BalanceItem, balance_flags};
use btrfs_fs::{BalanceState, BalanceStatus};
use std::ffi::OsString;
use std::thread::sleep;
use std::time::Duration;

pub const COMMAND: Command = Command {
    name: "balance start",
    summary: "move chunks elsewhere, or to another profile",
    usage: "\
[-d[FILTERS]] [-m[FILTERS]] [-s[FILTERS]] [-fvq] [--bg] VOLUME
--full-balance [-fvq] [--bg] VOLUME",
    help: "\
Moves what lies in chunks elsewhere, and gives the chunks back: those that the filters
choose, of data (-d), of metadata (-m, and with it the system's) or of the system (-s).
VOLUME is a directory of a mount, or an image that is not mounted. What fails its checksum
is mended from another copy; a chunk with content that has no good copy stays, and the
others move. It can be stopped at any time, also by a crash: `balance resume` goes on,
`balance cancel` gives it up, here or with `btrfs`, and so does the next mount.

Options
    -d[=FILTERS]      chunks of data
    -m[=FILTERS]      chunks of metadata and of the system
    -s[=FILTERS]      chunks of the system; only with -f
    -f, --force       even if there are fewer copies of metadata afterwards
    --full-balance    without filters, without a warning
    --bg, --background  do not wait for the end (in a mount)
    --enqueue         taken, and without effect: one beside another is refused
    -v, --verbose     tell the filters, and what was moved
    -q, --quiet       errors alone

Filters, with commas between them, or in several options of the same kind
    usage=N, usage=A..B       chunks that are filled to less than N percent
    limit=N, limit=A..B       so many at most
    vrange=A..B, drange=A..B  in a range of logical addresses, of the device (with devid)
    devid=N, stripes=A..B     on a device; of so many stripes
    profiles=A|B              single or dup
    convert=PROFILE[,soft]    to single or dup; soft: not those that are

Examples
    spinney balance start -dusage=50 /mnt
    spinney balance start -mconvert=dup,soft -v disk.img

Exit codes
    0  done
    1  not all could be moved, or it was paused or cancelled
    2  the command line is wrong
",
    run,
};

pub const RESUME: Command = Command {
    name: "balance resume",
    summary: "go on with a balance that was interrupted",
    usage: "[-q] VOLUME",
    help: "\
Goes on with a balance that was paused or interrupted, by Spinney or by the kernel, and
waits for its end.

Options
    -q, --quiet       errors alone

Examples
    spinney balance resume /mnt

Exit codes
    0  done
    1  not all could be moved
    2  there is none, or the command line is wrong
",
    run: resume,
};

/// What is told, but for errors.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Said {
    Nothing,
    #[default]
    Result,
    All,
}

#[derive(Default)]
struct Words {
    item: BalanceItem,
    full: bool,
    background: bool,
    said: Said,
    operands: Vec<OsString>,
}

fn words(mut args: Args) -> Result<Words> {
    let mut words = Words::default();
    while let Some(arg) = args.next()? {
        let mut kind = None;
        match arg {
            Arg::Short('d') => kind = Some(DATA),
            Arg::Short('m') => kind = Some(METADATA),
            Arg::Short('s') => kind = Some(SYSTEM),
            Arg::Short('f') | Arg::Long("force") => words.item.flags |= balance_flags::FORCE,
            Arg::Short('v') | Arg::Long("verbose") => words.said = Said::All,
            Arg::Short('q') | Arg::Long("quiet") => words.said = Said::Nothing,
            Arg::Long("enqueue") => {}
            Arg::Long("full-balance") => words.full = true,
            Arg::Long("bg" | "background") => words.background = true,
            Arg::Value(value) => words.operands.push(value),
            other => return Err(args::unexpected(other)),
        }
        let Some(kind) = kind else { continue };
        let text = args.optional_value().map_or(Ok(String::new()), args::text)?;
        words.item.flags |= kind;
        let mut all = words.item.filters_mut().into_iter();
        if let Some((_, filter)) = all.find(|(of, _)| *of == kind) {
            filters::add(filter, &text)?;
        }
    }
    words.item.filters().into_iter().try_for_each(|(_, filter)| filters::check(filter))?;
    Ok(words)
}

/// As `btrfs`: the system goes with metadata, and alone for who insists.
fn complete(words: &mut Words) -> Result<()> {
    let item = &mut words.item;
    if item.flags & SYSTEM != 0 && item.flags & balance_flags::FORCE == 0 {
        let what = "Refusing to explicitly operate on system chunks.";
        return Err(Error::new(what).remedy("Pass --force if you really want to do that."));
    }
    if item.flags & METADATA != 0 && item.flags & SYSTEM == 0 {
        item.flags |= SYSTEM;
        item.system = item.metadata;
    }
    if item.flags & balance_flags::TYPES == 0 {
        item.flags |= balance_flags::TYPES;
        return if words.full { Ok(()) } else { warn() };
    }
    Ok(())
}

fn warn() -> Result<()> {
    say_error(
        "WARNING:\n\n\tFull balance without filters requested. This operation is very\n\tintense and takes \
         potentially very long. It is recommended to\n\tuse the balance filters to narrow down the scope of \
         balance.\n\tUse 'spinney balance start --full-balance' option to skip this\n\twarning. The operation \
         will start in 10 seconds.\n\tUse Ctrl-C to stop it.",
    );
    sleep(Duration::from_secs(10));
    say_error("\nStarting balance without any filters.");
    Ok(())
}

fn run(args: Args) -> Result<Exit> {
    let mut words = words(args)?;
    let volume =
        args::one(std::mem::take(&mut words.operands), "an image or a directory of a mount")?;
    complete(&mut words)?;
    let target = Target::open(&volume, Access::Write)?;
    target.tell_errors();
    if words.background && !target.is_mounted() {
        return Err(Error::usage("--bg: an image that is not mounted is balanced while you wait"));
    }
    if words.said == Said::All {
        let mut out = Out::new();
        filters(&words.item, &mut out)?;
        out.finish()?;
    }
    target.start(&words.item).map_err(|refused| match refused.errno {
        libc::EINPROGRESS => {
            let what = format!("error during balancing '{}': Operation in progress", target.show());
            Error::new(what).remedy("`spinney balance status` tells how far it is")
        }
        libc::EINVAL => {
            let what = format!("error during balancing '{}': Invalid argument", target.show());
            Error::new(what).remedy(
                "the profile cannot be had on one device, there would be fewer copies of metadata (-f), or a \
                 paused balance is to be resumed or cancelled first",
            )
        }
        _ => refused.into(),
    })?;
    if words.background {
        return Ok(Exit::Done);
    }
    wait(target, words.said)
}

fn resume(mut args: Args) -> Result<Exit> {
    let (mut said, mut operands) = (Said::default(), Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('q') | Arg::Long("quiet") => said = Said::Nothing,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let volume = args::one(operands, "an image or a directory of a mount")?;
    let target = Target::open(&volume, Access::Write)?;
    target.tell_errors();
    if let Err(refused) = target.resume() {
        let why = match refused.errno {
            libc::ESRCH => "Not in progress",
            libc::EINPROGRESS => "Already running",
            _ => return Err(refused.into()),
        };
        Error::new(format!("balance resume on '{}' failed: {why}", target.show())).print();
        target.close()?;
        return Ok(Exit::Code(if refused.errno == libc::ESRCH { 2 } else { 1 }));
    }
    wait(target, said)
}

/// Waits for the end, with progress, and tells how it was.
fn wait(target: Target, said: Said) -> Result<Exit> {
    let progress = Progress::new();
    let mut rest = Duration::from_millis(2);
    let status = loop {
        let status = target.status()?;
        if status.state != BalanceState::Running {
            break status;
        }
        let (done, all) = (status.completed, status.expected);
        progress.show(|| format!("{done} of about {} balanced", count(all, "chunk")));
        sleep(rest);
        rest = (rest * 2).min(Duration::from_millis(20));
    };
    drop(progress);
    let exit = tell(&target, &status, said)?;
    target.close()?;
    Ok(exit)
}

fn tell(target: &Target, status: &BalanceStatus, said: Said) -> Result<Exit> {
    match status.state {
        BalanceState::Paused if status.errno == 0 => say_error("balance paused by user"),
        BalanceState::Cancelled => say_error("balance canceled by user"),
        _ if status.errno != 0 => {
            let why = reason(status.errno);
            let what = format!("error during balancing '{}': {why}", target.show());
            let left = match target.is_mounted() {
                true => "see the log of the mount",
                false => "see above",
            };
            let stay = match status.failed {
                1 => "1 chunk stays".into(),
                failed => format!("{failed} chunks stay"),
            };
            let goes_on = match status.state {
                BalanceState::Paused => "; it is paused: `spinney balance resume` goes on with it",
                _ => "",
            };
            Error::new(what).remedy(format!("{stay}; {left}{goes_on}")).print();
        }
        _ if said == Said::Nothing => return Ok(Exit::Done),
        _ => {
            let mut out = Out::new();
            let (done, seen) = (status.completed, status.considered);
            out.line(format!("Done, had to relocate {done} out of {seen} chunks"))?;
            if said == Said::All {
                let (report, time) = (&status.report, status.report.time.as_secs_f64());
                out.line(format!(
                    "{} moved, {} written anew, {time:.3} s",
                    count(report.relocated_extents, "extent"),
                    count(report.rewritten_nodes, "node")
                ))?;
            }
            out.finish()?;
            return Ok(Exit::Done);
        }
    }
    Ok(Exit::Failed)
}

/// The filters, for who wants to see them.
pub fn filters(item: &BalanceItem, out: &mut Out) -> Result<()> {
    out.line(format!("Dumping filters: flags {:#x}, state 0x0, force is {}", item.flags, {
        if item.flags & balance_flags::FORCE != 0 { "on" } else { "off" }
    }))?;
    let names = ["DATA", "METADATA", "SYSTEM"];
    for ((kind, filter), name) in item.filters().into_iter().zip(names) {
        if item.flags & kind != 0 {
            out.line(format!("  {name} (flags {:#x}): {}", filter.flags, words_of(filter)))?;
        }
    }
    Ok(())
}

pub fn words_of(filter: &BalanceFilter) -> String {
    use btrfs_disk::items::balance_filter as f;
    let (low, high) = (filter.limit as u32, filter.limit >> 32);
    let (least, most) = (filter.usage as u32, filter.usage >> 32);
    let all = [
        (
            f::CONVERT,
            format!("converting, target={}, soft is {}", filter.target, {
                if filter.has(f::SOFT) { "on" } else { "off" }
            }),
        ),
        (f::PROFILES, format!("profiles={:#x}", filter.profiles)),
        (f::USAGE, format!("usage={}", filter.usage)),
        (f::USAGE_RANGE, format!("usage={least}..{most}")),
        (f::DEVID, format!("devid={}", filter.devid)),
        (f::DRANGE, format!("drange={}..{}", filter.pstart, filter.pend)),
        (f::VRANGE, format!("vrange={}..{}", filter.vstart, filter.vend)),
        (f::LIMIT, format!("limit={}", filter.limit)),
        (f::LIMIT_RANGE, format!("limit={low}..{high}")),
        (f::STRIPES_RANGE, format!("stripes={}..{}", filter.stripes_min, filter.stripes_max)),
    ];
    let said = all.into_iter().filter(|(flag, _)| filter.has(*flag)).map(|(_, text)| text);
    let balancing = (!filter.has(f::CONVERT)).then(|| "balancing".to_owned());
    balancing.into_iter().chain(said).collect::<Vec<String>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use btrfs_disk::items::balance_filter as f;

    fn said(all: &[&str]) -> Result<BalanceItem> {
        let all = all.iter().map(OsString::from).collect();
        words(Args::of(COMMAND.name, COMMAND.help, all)).map(|words| words.item)
    }

    /// What a later option says of the same chunks took the place of the one before: more was moved than was asked for.
    #[test]
    fn options_of_one_kind_add_to_each_other() {
        let item = said(&["-dusage=5", "-musage=7", "-dlimit=2", "-d", "volume"]).unwrap();
        assert_eq!(item.flags, DATA | METADATA);
        let (data, metadata) = (item.data, item.metadata);
        assert_eq!((data.flags, data.usage, data.limit), (f::USAGE | f::LIMIT, 5, 2));
        assert_eq!((metadata.flags, metadata.usage), (f::USAGE, 7));
        // What needs something else may come before it, and is of its own kind.
        assert!(said(&["-dsoft", "-dconvert=single", "volume"]).is_ok());
        assert!(said(&["-msoft", "-dconvert=single", "volume"]).is_err());
        assert!(said(&["-ddrange=1M..2M", "-mdevid=1", "volume"]).is_err());
    }
}
