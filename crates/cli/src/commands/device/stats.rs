//! `spinney device stats`.

use crate::args::{Arg, Args, one, unexpected};
use crate::commands::Command;
use crate::commands::subvolume::place::VolumePath;
use crate::commands::target::{Target, point_of};
use crate::commands::trees::Trees;
use crate::door::Door;
use crate::error::{Error, Exit, Result};
use crate::image::Access;
use crate::mounts;
use crate::output::{self, Json, Out, left, right};
use btrfs_disk::ids::DEV_STATS_OBJECTID;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

pub const COMMAND: Command = Command {
    name: "device stats",
    summary: "show the errors that a device was found to have",
    usage: "[--json] [-czT] VOLUME",
    help: "\
Shows how often the device of a volume failed, or gave wrong bytes, as the volume itself has
it written down: what the kernel's btrfs counted, and what mounts of Spinney met. VOLUME is
a path of a mount, or an image or device, mounted or not. Counted as the kernel (6.18)
counts: reads, writes and flushes that the device refuses; sectors of content that fail
their checksum; nodes of another generation than is promised, where a scrub meets them.
Other damage of nodes is in the log and in `spinney stats`.

Options
    -c, --check     exit code 64 if one of the counters is not zero
    -z, --reset     set them to zero, and show what they were
    -T              as a table
        --json      in the JSON format of btrfs-progs

Examples
    spinney device stats -c /mnt
",
    run,
};

const NAMES: [&str; 5] =
    ["write_io_errs", "read_io_errs", "flush_io_errs", "corruption_errs", "generation_errs"];

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut json, mut table) = (Vec::new(), false, false);
    let (mut check, mut reset) = (false, false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Short('c') | Arg::Long("check") => check = true,
            Arg::Short('z') | Arg::Long("reset") => reset = true,
            Arg::Short('T') => table = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let word = one(operands, "an image or a path of a mount")?;
    let point = point_of(&word).filter(|point| reset || may_ask(point));
    let word = point.map_or(word, PathBuf::into_os_string);
    let place = VolumePath::parse(&word);
    let device = device_of(&place)?;
    let mut all = read(&Trees::open(&place)?)?;
    if reset || matches!(place, VolumePath::Mount(_)) {
        ask(&word, &mut all, reset)?;
    }
    let mut out = Out::new();
    if json {
        out.line(as_json(&device, &all))?;
    } else if table {
        as_table(&mut out, &device, &all)?;
    } else {
        for (_, counters) in &all {
            for (name, count) in NAMES.iter().zip(counters) {
                let name = format!("[{device}].{name}");
                out.line(format!("{name:<width$} {count}", width = device.len() + 19))?;
            }
        }
    }
    out.finish()?;
    let some = all.iter().any(|(_, counters)| counters.iter().any(|count| *count != 0));
    Ok(if check && some { Exit::Code(64) } else { Exit::Done })
}

/// Who may not ask a mount, but may read the image, is told what the last commit has.
fn may_ask(point: &Path) -> bool {
    let asked = File::open(point)
        .and_then(|file| Door::on(file, point).committed_tree(TreeId::ROOT.0).map(drop));
    asked.map_err(|e| e.kind()) != Err(ErrorKind::PermissionDenied)
}

/// A mount knows what came since its last commit; and counters are set to zero by who has the
/// volume open.
fn ask(word: &OsStr, all: &mut [(u64, [u64; 5])], reset: bool) -> Result<()> {
    let target = Target::open(word, Access::Write)?;
    for (id, counters) in all {
        *counters = target.device_errors(*id, reset)?;
    }
    target.close()
}

/// By which the user knows it.
fn device_of(place: &VolumePath) -> Result<String> {
    match place {
        VolumePath::Image(inside) => Ok(inside.image.display().to_string()),
        VolumePath::Mount(path) => {
            let mount = mounts::around(path).map_err(|e| Error::io(path, &e))?;
            Ok(mount.map_or_else(|| place.show(), |mount| mount.source.display().to_string()))
        }
    }
}

/// Of each device by its number; one that was never counted for has zeros.
fn read(trees: &Trees) -> Result<Vec<(u64, [u64; 5])>> {
    let mut all = Vec::new();
    trees.each(TreeId::CHUNK, Key::MIN..=Key::MAX, |key, _| {
        if key.kind == kind::DEV_ITEM {
            all.push((key.offset, [0; 5]));
        }
        Ok(())
    })?;
    let range = Key::new(DEV_STATS_OBJECTID, kind::PERSISTENT_ITEM, 0)
        ..=Key::new(DEV_STATS_OBJECTID, kind::PERSISTENT_ITEM, u64::MAX);
    trees.each(TreeId::DEV, range, |key, data| {
        if let Some((_, counters)) = all.iter_mut().find(|(id, _)| *id == key.offset) {
            for (slot, bytes) in counters.iter_mut().zip(data.chunks_exact(8)) {
                *slot = u64::from_le_bytes([
                    bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
                ]);
            }
        }
        Ok(())
    })?;
    Ok(all)
}

fn as_table(out: &mut Out, device: &str, all: &[(u64, [u64; 5])]) -> Result<()> {
    let row = |id: String, path: &str, cells: [String; 5]| {
        [right(id), left(path)].into_iter().chain(cells.map(right)).collect()
    };
    let kinds = ["Write", "Read", "Flush", "Corruption", "Generation"];
    let mut rows = vec![row("Id".into(), "Path", kinds.map(|kind| format!("{kind} errors")))];
    let counters = |counters: &[u64; 5]| counters.map(|count| count.to_string());
    rows.extend(all.iter().map(|(id, found)| row(id.to_string(), device, counters(found))));
    output::table(&rows, &[1], " ").iter().try_for_each(|line| out.line(line))
}

fn as_json(device: &str, all: &[(u64, [u64; 5])]) -> String {
    Json::as_progs(|o| {
        o.array("device-stats", |stats| {
            for (id, counters) in all {
                stats.object(|o| {
                    o.text("device", device).number("devid", *id);
                    for (name, count) in NAMES.iter().zip(counters) {
                        o.number(name, *count);
                    }
                });
            }
        });
    })
}
