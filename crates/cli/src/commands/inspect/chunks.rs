//! `spinney inspect-internal list-chunks`.

use crate::args::{Arg, Args, one, unexpected};
use crate::commands::Command;
use crate::commands::offline::{chunk_profile, chunk_type};
use crate::commands::subvolume::place::VolumePath;
use crate::commands::trees::Trees;
use crate::error::Exit;
use crate::error::Result;
use crate::output::{Json, Out, human};
use btrfs_disk::items::{BlockGroupItem, Chunk};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use std::collections::HashMap;

pub const COMMAND: Command = Command {
    name: "inspect-internal list-chunks",
    summary: "list the chunks of a volume by their places",
    usage: "[--json] [--raw] VOLUME",
    help: "\
Lists each copy of each chunk by its place on the device: what it is for, where it begins
on the device and in the volume, how long it is, and how much of it is in use. VOLUME is an
image or a path of a mount.

Options
    -b, --raw       sizes in bytes
        --json      as a JSON object, sizes in bytes

Examples
    spinney inspect-internal list-chunks disk.img
",
    run,
};

struct Copy {
    device: u64,
    at: u64,
    logical: u64,
    len: u64,
    flags: u64,
    used: u64,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut json, mut raw) = (Vec::new(), false, false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Short('b') | Arg::Long("raw") => raw = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let trees = Trees::open(&VolumePath::parse(&one(operands, "an image or a path of a mount")?))?;
    let copies = copies(&trees)?;
    let mut out = Out::new();
    match json {
        true => out.line(as_json(&copies))?,
        false => as_text(&mut out, &copies, raw)?,
    }
    out.finish()?;
    Ok(Exit::Done)
}

/// In the order of their places.
fn copies(trees: &Trees) -> Result<Vec<Copy>> {
    let mut used = HashMap::new();
    let groups = match trees.root(TreeId::BLOCK_GROUP)? {
        Some(_) => TreeId::BLOCK_GROUP,
        None => TreeId::EXTENT,
    };
    trees.each(groups, Key::MIN..=Key::MAX, |key, data| {
        if key.kind == kind::BLOCK_GROUP_ITEM {
            let item = BlockGroupItem::read(data).map_err(|c| c.key(key))?;
            used.insert(key.objectid, item.used);
        }
        Ok(())
    })?;
    let mut copies = Vec::new();
    trees.each(TreeId::CHUNK, Key::MIN..=Key::MAX, |key, data| {
        if key.kind != kind::CHUNK_ITEM {
            return Ok(());
        }
        let chunk = Chunk::parse(data).map_err(|c| c.key(key))?;
        for stripe in &chunk.stripes {
            copies.push(Copy {
                device: stripe.devid,
                at: stripe.offset,
                logical: key.offset,
                len: chunk.fields.length,
                flags: chunk.fields.kind,
                used: used.get(&key.offset).copied().unwrap_or(0),
            });
        }
        Ok(())
    })?;
    copies.sort_by_key(|copy| (copy.device, copy.at));
    Ok(copies)
}

fn kind_of(copy: &Copy) -> String {
    format!("{}/{}", chunk_type(copy.flags), chunk_profile(copy.flags))
}

fn as_text(out: &mut Out, copies: &[Copy], raw: bool) -> Result<()> {
    let size = |bytes: u64| if raw { bytes.to_string() } else { human(bytes) };
    let heads = ["Devid", "Number", "Type/profile", "PStart", "Length", "LStart", "Usage%"];
    let mut rows = vec![heads.map(String::from)];
    for (number, copy) in copies.iter().enumerate() {
        let percent = copy.used as f64 * 100.0 / copy.len.max(1) as f64;
        rows.push([
            copy.device.to_string(),
            (number + 1).to_string(),
            kind_of(copy),
            size(copy.at),
            size(copy.len),
            size(copy.logical),
            format!("{percent:.2}"),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    for row in &rows {
        let cells =
            row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                2 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
        out.line(cells.collect::<Vec<_>>().join(" "))?;
    }
    Ok(())
}

fn as_json(copies: &[Copy]) -> String {
    Json::object(|o| {
        o.array("chunks", |all| {
            for copy in copies {
                all.object(|o| {
                    o.number("devid", copy.device)
                        .text("type", &chunk_type(copy.flags))
                        .text("profile", &chunk_profile(copy.flags))
                        .number("physical", copy.at)
                        .number("logical", copy.logical)
                        .number("length", copy.len)
                        .number("used", copy.used);
                });
            }
        });
    })
}
