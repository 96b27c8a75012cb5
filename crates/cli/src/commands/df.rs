//! `spinney df`: how the space of a volume is used.

use super::Command;
use super::offline::{Offline, chunk_profile, chunk_type};
use crate::args::{Arg, Args, one, unexpected};
use crate::error::{Error, Exit, Result};
use crate::image::Access;
use crate::output::{Json, Out, human};
use btrfs_disk::ids::{block_group, compat_ro};
use btrfs_disk::items::BlockGroupItem;
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_tree::get;
use std::collections::BTreeMap;
use std::path::Path;

pub const COMMAND: Command = Command {
    name: "df",
    summary: "show how a volume's space is used",
    usage: "[--json] [-b] IMAGE",
    help: "\
btrfs gives out its device in chunks, each for one kind of content: data (files), metadata
(trees) or system (the chunk tree). A volume is full when no chunk of the needed kind has
room and the device has none left for another chunk. The table has a row for each kind:

    size       bytes in its chunks
    used       bytes of them in use, as of the last commit
    on device  what the chunks take: twice the size where there are two copies

Options
    -b, --bytes     exact bytes instead of units
        --json      one JSON object instead of text

Examples
    spinney df disk.img
    spinney df --json disk.img | jq .free_bytes

Exit codes
    0  done
    1  the volume cannot be opened, or is damaged where its chunks are described
    2  the command line is wrong
",
    run,
};

#[derive(Clone, Copy, Default)]
struct Row {
    size: u64,
    used: u64,
    on_device: u64,
    chunks: u64,
}

struct Space {
    /// By kind and profile.
    rows: BTreeMap<(String, String), Row>,
    total: u64,
    unallocated: u64,
    /// About what files can still take.
    free: u64,
}

fn run(mut args: Args) -> Result<Exit> {
    let mut operands = Vec::new();
    let (mut json, mut exact) = (false, false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Short('b') | Arg::Long("bytes") => exact = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let image = one(operands, "an image")?;
    let path = Path::new(&image);
    let space = gather(&Offline::open(path, Access::Peek)?)?;
    let mut out = Out::new();
    if json {
        out.line(as_json(path, &space))?;
    } else {
        as_text(&mut out, &space, exact)?;
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn gather(offline: &Offline) -> Result<Space> {
    let sb = offline.volume.superblock().fields;
    let by_tree = sb.compat_ro_flags & compat_ro::BLOCK_GROUP_TREE != 0;
    let tree = if by_tree { TreeId::BLOCK_GROUP } else { TreeId::EXTENT };
    let missing = || Error::about(offline.medium.path().display(), "there is no extent tree");
    let root = offline.root(tree)?.ok_or_else(missing)?;
    let mut rows: BTreeMap<(String, String), Row> = BTreeMap::new();
    let (mut data, mut data_used, mut copies) = (0, 0, 1);
    for chunk in offline.volume.chunks() {
        let key = Key::new(chunk.logical.0, kind::BLOCK_GROUP_ITEM, chunk.len);
        let item = offline.explain(get(&offline.store, &root, &key))?;
        let group = item.map(|item| BlockGroupItem::read(item.data()).map_err(Into::into));
        let used = offline.explain(group.transpose())?.map_or(0, |group| group.used);
        let row = rows.entry((chunk_type(chunk.flags), chunk_profile(chunk.flags))).or_default();
        row.size += chunk.len;
        row.used += used;
        row.on_device += chunk.len * chunk.stripes.len() as u64;
        row.chunks += 1;
        if chunk.flags & block_group::DATA != 0 {
            (data, data_used, copies) = (data + chunk.len, data_used + used, chunk.stripes.len());
        }
    }
    let allocated: u64 = rows.values().map(|row| row.on_device).sum();
    let unallocated = sb.total_bytes.saturating_sub(allocated);
    let free = data - data_used.min(data) + unallocated / copies as u64;
    Ok(Space { rows, total: sb.total_bytes, unallocated, free })
}

fn as_text(out: &mut Out, space: &Space, exact: bool) -> Result<()> {
    let size = |bytes: u64| if exact { bytes.to_string() } else { human(bytes) };
    out.line(format!("{:<24}{:>14}{:>14}{:>14}", "", "size", "used", "on device"))?;
    for ((kind, profile), row) in &space.rows {
        let (all, used, device) = (size(row.size), size(row.used), size(row.on_device));
        out.line(format!("{:<24}{all:>14}{used:>14}{device:>14}", format!("{kind}, {profile}")))?;
    }
    out.line(format!(
        "{:<24}{:>14}{:>14}{:>14}",
        "not in chunks",
        "",
        "",
        size(space.unallocated)
    ))?;
    out.line(format!("{:<24}{:>14}{:>14}{:>14}", "device", "", "", size(space.total)))?;
    out.line(format!("\nfree for files: about {}", size(space.free)))
}

fn as_json(path: &Path, space: &Space) -> String {
    Json::object(|o| {
        o.bytes("image", path.as_os_str().as_encoded_bytes());
        o.number("total_bytes", space.total).number("unallocated_bytes", space.unallocated);
        o.number("free_bytes", space.free);
        o.array("chunks", |a| {
            for ((kind, profile), row) in &space.rows {
                a.object(|o| {
                    o.text("type", kind).text("profile", profile).number("count", row.chunks);
                    o.number("bytes", row.size).number("used_bytes", row.used);
                    o.number("device_bytes", row.on_device);
                });
            }
        });
    })
}
