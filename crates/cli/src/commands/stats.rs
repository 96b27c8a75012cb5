//! `spinney stats`: the counters of a mounted volume.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result, io_text};
use crate::output::Out;
use crate::sys;
use std::ffi::OsString;
use std::path::Path;

const ATTRIBUTE: &str = "spinney.stats";

pub const COMMAND: Command = Command {
    name: "stats",
    summary: "show the counters of a mounted volume",
    usage: "[--json] DIR",
    help: "\
Prints what the server of the volume mounted on DIR has counted since its start: operations,
commits and their times, cache hits, bytes read and written, errors found and repaired. The
same is the value of the extended attribute spinney.stats of any file in the mount. Names
that end in _ns are nanoseconds, in _bytes bytes. volume.read_only is 1 where nothing can be
written, volume.failed where that is so since something failed: see the server's log.

Options
    --json    as one JSON object

Examples
    spinney stats /mnt
    spinney stats --json /mnt
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut json, mut operands) = (false, Vec::<OsString>::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let point = args::one(operands, "the mount point")?;
    let counters = read(Path::new(&point))?;
    let mut out = Out::new();
    if json {
        out.line(&counters)?;
    } else {
        let members = members(&counters);
        let width = members.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in members {
            out.line(format!("{name:<width$}  {value}"))?;
        }
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn read(point: &Path) -> Result<String> {
    let value = sys::get_xattr(point, ATTRIBUTE).map_err(|e| match e.raw_os_error() {
        Some(libc::ENODATA | libc::EOPNOTSUPP) => {
            Error::about(point.display(), "not in a volume that Spinney has mounted")
        }
        _ => Error::about(point.display(), io_text(&e)),
    })?;
    String::from_utf8(value).map_err(|_| Error::about(point.display(), "counters are no text"))
}

/// Names and values of a flat JSON object of numbers and plain strings, as the server
/// writes it.
fn members(json: &str) -> Vec<(&str, &str)> {
    let inner = json.trim().trim_start_matches('{').trim_end_matches('}');
    inner
        .split(',')
        .filter_map(|member| member.split_once(':'))
        .map(|(name, value)| (name.trim().trim_matches('"'), value.trim().trim_matches('"')))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_taken_apart() {
        let json = r#"{"fuse.transport":"io_uring","a.b":12,"c_ns":0}"#;
        assert_eq!(members(json), [("fuse.transport", "io_uring"), ("a.b", "12"), ("c_ns", "0")]);
        assert!(members("{}").is_empty());
    }
}
