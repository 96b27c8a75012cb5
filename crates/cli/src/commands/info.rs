//! `spinney info`: what a volume is.

use super::Command;
use super::offline::{Offline, chunk_profile, chunk_type, features, uuid};
use crate::args::{Arg, Args, one, unexpected};
use crate::error::{Exit, Result};
use crate::image::Access;
use crate::output::{Json, Out, human};
use btrfs_disk::Superblock;
use btrfs_disk::ids::block_group;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub const COMMAND: Command = Command {
    name: "info",
    summary: "show what a volume is",
    usage: "[--json] IMAGE",
    help: "\
Shows label, UUID, size, features and layout of a volume as of its last commit, and whether
Spinney can write it. Works on volumes in use.

Options
        --json      one JSON object instead of text; sizes are bytes

Examples
    spinney info disk.img
    spinney info --json /dev/sdb1 | jq -r .uuid

Exit codes
    0  done
    1  the volume cannot be opened; the message says why
    2  the command line is wrong
",
    run,
};

struct Facts {
    sb: Arc<Superblock>,
    subvolumes: usize,
    /// Profiles by chunk type.
    profiles: BTreeMap<String, String>,
    /// Bytes of the device that chunks occupy.
    allocated: u64,
    read_only: Option<String>,
}

fn run(mut args: Args) -> Result<Exit> {
    let mut operands = Vec::new();
    let mut json = false;
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let image = one(operands, "an image")?;
    let path = Path::new(&image);
    let facts = gather(&Offline::open(path, Access::Peek)?)?;
    let mut out = Out::new();
    if json {
        out.line(as_json(path, &facts))?;
    } else {
        as_text(&mut out, path, &facts)?;
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn gather(offline: &Offline) -> Result<Facts> {
    let chunks = offline.volume.chunks();
    let roots = offline.root_items()?;
    let alive = roots.iter().filter(|(root, item)| root.id.is_subvolume() && !item.is_deleted());
    Ok(Facts {
        sb: offline.volume.superblock(),
        subvolumes: alive.count(),
        profiles: chunks
            .iter()
            .filter(|chunk| chunk.flags & block_group::TYPE_MASK != 0)
            .map(|chunk| (chunk_type(chunk.flags), chunk_profile(chunk.flags)))
            .collect(),
        allocated: chunks.iter().map(|chunk| chunk.len * chunk.stripes.len() as u64).sum(),
        read_only: offline.volume.read_only_reason(),
    })
}

fn as_text(out: &mut Out, path: &Path, facts: &Facts) -> Result<()> {
    let f = &facts.sb.fields;
    let label = match facts.sb.label() {
        b"" => "(none)".into(),
        label => String::from_utf8_lossy(label).into_owned(),
    };
    let profiles: Vec<String> =
        facts.profiles.iter().map(|(kind, profile)| format!("{kind}: {profile}")).collect();
    let csum = facts.sb.geometry().map_or_else(|_| "unknown".into(), |g| g.csum.name().to_owned());
    let mut lines = vec![
        ("image", path.display().to_string()),
        ("label", label),
        ("uuid", uuid(&f.fsid)),
        ("size", format!("{} ({} bytes)", human(f.total_bytes), f.total_bytes)),
        ("used", format!("{} ({} bytes)", human(f.bytes_used), f.bytes_used)),
        ("in chunks", human(facts.allocated)),
        ("subvolumes", facts.subvolumes.to_string()),
        ("generation", f.generation.to_string()),
        ("checksums", csum),
        ("node size", f.nodesize.to_string()),
        ("sector size", f.sectorsize.to_string()),
        ("layout", profiles.join(", ")),
        ("features", features(&facts.sb).join(", ")),
    ];
    if f.log_root.0 != 0 {
        lines.push(("log tree", "pending: the next mount replays it".into()));
    }
    match &facts.read_only {
        Some(why) => lines.push(("writable", format!("no: {why}"))),
        None => lines.push(("writable", "yes".into())),
    }
    for (name, value) in lines {
        out.line(format!("{name:<12} {value}"))?;
    }
    Ok(())
}

fn as_json(path: &Path, facts: &Facts) -> String {
    let f = &facts.sb.fields;
    Json::object(|o| {
        o.bytes("image", path.as_os_str().as_encoded_bytes());
        o.bytes("label", facts.sb.label()).text("uuid", &uuid(&f.fsid));
        o.number("total_bytes", f.total_bytes).number("bytes_used", f.bytes_used);
        o.number("allocated_bytes", facts.allocated);
        o.number("subvolumes", facts.subvolumes as u64);
        o.number("generation", f.generation.0);
        if let Ok(geometry) = facts.sb.geometry() {
            o.text("checksum", geometry.csum.name());
        }
        o.number("node_size", f.nodesize).number("sector_size", f.sectorsize);
        o.object("profiles", |o| {
            for (kind, profile) in &facts.profiles {
                o.text(kind, profile);
            }
        });
        o.array("features", |a| {
            for feature in features(&facts.sb) {
                a.text(&feature);
            }
        });
        o.bool("log_pending", f.log_root.0 != 0).bool("writable", facts.read_only.is_none());
        if let Some(why) = &facts.read_only {
            o.text("read_only_reason", why);
        }
    })
}
