//! `spinney inspect-internal list-chunks`.

use crate::args::{Arg, Args, one, unexpected};
use crate::commands::Command;
use crate::commands::filesystem::numbers::{kind_name, profile_name};
use crate::commands::filesystem::units::{Units, long_units};
use crate::commands::offline::{chunk_profile, chunk_type};
use crate::commands::subvolume::place::VolumePath;
use crate::commands::trees::Trees;
use crate::error::{Error, Exit, Result};
use crate::output::{Cell, Json, Out, right, table};
use btrfs_disk::items::{BlockGroupItem, Chunk};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use std::cmp::Ordering;
use std::collections::HashMap;

pub const COMMAND: Command = Command {
    name: "inspect-internal list-chunks",
    summary: "list the chunks of a volume by their places",
    usage: "[--json] [--sort KEYS] [UNITS] VOLUME",
    help: concat!(
        "\
Lists each copy of each chunk by its place on the device: what it is for, where it begins
and ends on the device, where it begins in the volume, its number by either, and how much
of it is in use. VOLUME is an image or a path of a mount. The output is that of `btrfs
inspect-internal list-chunks` (6.14).

Options
        --sort KEYS        by devid, pstart, lstart, usage or length, or several of
                           these with commas between them (devid,pstart)
        --json             as a JSON object, sizes in bytes
    -b, --raw              bytes
",
        long_units!(),
        "
Examples
    spinney inspect-internal list-chunks --sort lstart disk.img
"
    ),
    run,
};

struct Copy {
    device: u64,
    at: u64,
    logical: u64,
    len: u64,
    flags: u64,
    used: u64,
    /// Its number by the place on the device, and by that in the volume.
    numbers: (usize, usize),
}

impl Copy {
    fn percent(&self) -> f64 {
        self.used as f64 * 100.0 / self.len.max(1) as f64
    }
}

/// What copies are told in the order of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Device,
    Physical,
    Logical,
    Usage,
    Length,
}

fn keys(text: &str) -> Result<Vec<By>> {
    let key = |word: &str| match word {
        "devid" => Ok(By::Device),
        "pstart" => Ok(By::Physical),
        "lstart" => Ok(By::Logical),
        "usage" => Ok(By::Usage),
        "length" => Ok(By::Length),
        _ => Err(Error::usage(format!("unknown sort key: {word}"))),
    };
    text.split(',').map(key).collect()
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut json, mut units) = (Vec::new(), false, Units::HUMAN);
    let mut by = Vec::new();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Long("sort") => by = keys(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other if units.take_raw_or_long(&other) => {}
            other => return Err(unexpected(other)),
        }
    }
    let trees = Trees::open(&VolumePath::parse(&one(operands, "an image or a path of a mount")?))?;
    let mut copies = copies(&trees)?;
    sort(&mut copies, &by);
    let mut out = Out::new();
    match json {
        true => out.line(as_json(&copies))?,
        false => as_text(&mut out, &copies, units)?,
    }
    out.finish()?;
    Ok(Exit::Done)
}

/// Those that are alike stay in the order of their places.
fn sort(copies: &mut [Copy], by: &[By]) {
    copies.sort_by(|one, other| {
        let compared = by.iter().map(|by| match by {
            By::Device => one.device.cmp(&other.device),
            By::Physical => one.at.cmp(&other.at),
            By::Logical => one.logical.cmp(&other.logical),
            By::Usage => one.percent().total_cmp(&other.percent()),
            By::Length => one.len.cmp(&other.len),
        });
        compared.fold(Ordering::Equal, Ordering::then)
    });
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
                numbers: (0, 0),
            });
        }
        Ok(())
    })?;
    copies.sort_by_key(|copy| (copy.device, copy.logical, copy.at));
    (1..).zip(&mut copies).for_each(|(number, copy)| copy.numbers.1 = number);
    copies.sort_by_key(|copy| (copy.device, copy.at));
    (1..).zip(&mut copies).for_each(|(number, copy)| copy.numbers.0 = number);
    Ok(copies)
}

/// Columns in the widths of btrfs-progs, which has types end where profiles begin.
fn as_text(out: &mut Out, copies: &[Copy], units: Units) -> Result<()> {
    const LEAST: (usize, usize) = (10, 6);
    let names = |copy: &Copy| (kind_name(copy.flags), profile_name(copy.flags));
    let of_kind = copies.iter().map(|copy| names(copy).0.len()).fold(LEAST.0, usize::max);
    let of_profile = copies.iter().map(|copy| names(copy).1.len()).fold(LEAST.1, usize::max);
    let heads =
        ["Devid", "PNumber", "Type/profile", "PStart", "Length", "PEnd", "LNumber", "LStart"];
    let mut rows: Vec<Vec<Cell>> = vec![heads.into_iter().chain(["Usage%"]).map(right).collect()];
    for copy in copies {
        let (kind, profile) = names(copy);
        let row = [
            copy.device.to_string(),
            copy.numbers.0.to_string(),
            format!("{kind:>of_kind$}/{profile:<of_profile$}"),
            units.show(copy.at),
            units.show(copy.len),
            units.show(copy.at + copy.len),
            copy.numbers.1.to_string(),
            units.show(copy.logical),
            format!("{:.2}", copy.percent()),
        ];
        rows.push(row.into_iter().map(right).collect());
    }
    table(&rows, &[1], " ").iter().try_for_each(|line| out.line(line))
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
