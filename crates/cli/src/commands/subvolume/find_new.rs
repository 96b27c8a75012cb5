//! `spinney subvolume find-new`.

use super::place::{self, VolumePath};
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::error::{Error, Exit, Result};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::{Json, Out};
use btrfs_fs::Subvol;
use spinney::NewExtent;
use std::ffi::OsString;

pub const COMMAND: Command = Command {
    name: "subvolume find-new",
    summary: "list what content came after a commit",
    usage: "[--json] SUBVOLUME GENERATION",
    help: "\
Lists the pieces of files in SUBVOLUME that came with the commit GENERATION or a later
one, and at the end the last commit that changed it: with that, plus one, the next search
begins. What was deleted or cut off is not seen. In a mount, root and who mounted it may
ask.

Options
    --json            as a JSON object
    --subvol PATH, --subvolid ID
                      paths in an image start from this subvolume, not the default one

Examples
    spinney subvolume find-new /mnt/home 1234
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut subvol) = (Vec::<OsString>::new(), Subvol::Default);
    let mut json = false;
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let [place, since] = args::exactly(operands, "a subvolume and a generation")?;
    let since = args::text(since)?;
    let wrong = || Error::usage(format!("{since:?} is no generation"));
    let since: u64 = since.parse().map_err(|_| wrong())?;
    let place = VolumePath::parse(&place);
    place::at(std::slice::from_ref(&place), subvol, false, |open, _| {
        open.rooted(&place)?;
        let (marker, found) = open.find_new(&place, since)?;
        let mut out = Out::new();
        if json {
            out.line(as_json(marker, &found))?;
            return out.finish();
        }
        for extent in &found {
            out.line(line(extent))?;
        }
        out.line(format!("transid marker was {marker}"))?;
        out.finish()
    })
}

fn line(extent: &NewExtent) -> Vec<u8> {
    let known = [
        (extent.compressed, "COMPRESS"),
        (extent.preallocated, "PREALLOC"),
        (extent.inline, "INLINE"),
    ];
    let flags: Vec<&str> = known.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
    let flags = if flags.is_empty() { "NONE".to_owned() } else { flags.join("|") };
    let NewExtent { inode, file_offset, len, disk_start, offset, generation, .. } = extent;
    let front = format!(
        "inode {inode} file offset {file_offset} len {len} disk start {disk_start} offset \
         {offset} gen {generation} flags {flags} "
    );
    [front.as_bytes(), &extent.path].concat()
}

fn as_json(marker: u64, found: &[NewExtent]) -> String {
    Json::object(|o| {
        o.number("transid_marker", marker);
        o.array("extents", |all| {
            for extent in found {
                all.object(|o| {
                    o.number("inode", extent.inode)
                        .number("file_offset", extent.file_offset)
                        .number("len", extent.len)
                        .number("disk_start", extent.disk_start)
                        .number("offset", extent.offset)
                        .number("gen", extent.generation)
                        .bool("compressed", extent.compressed)
                        .bool("preallocated", extent.preallocated)
                        .bool("inline", extent.inline)
                        .bytes("path", &extent.path);
                });
            }
        });
    })
}
