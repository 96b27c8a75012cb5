//! `spinney dump-super`: the superblocks as they are, also of a volume that does not open.

use super::Command;
use super::offline::{chunk_flags, flag_names, uuid};
use crate::args::{Arg, Args, one, unexpected};
use crate::error::{Error, Exit, Result};
use crate::image::{self, Access};
use crate::output::{Json, Object, Out};
use blockdev::BlockDevice;
use btrfs_disk::ids::{compat_ro, incompat};
use btrfs_disk::items::Chunk;
use btrfs_disk::key::{KEY_SIZE, Key};
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use btrfs_disk::{ChecksumType, Superblock};
use std::path::Path;

pub const COMMAND: Command = Command {
    name: "dump-super",
    summary: "print a volume's superblocks",
    usage: "[--all] [--json] IMAGE",
    help: "\
Prints every member of the first superblock that is valid, or of all copies. A volume has
copies at 64 KiB, 64 MiB and 256 GiB, as far as its device reaches. Works on volumes that
are damaged or in use.

Options
    -a, --all       every copy, and what is wrong with those that are not valid
        --json      a JSON array with an object for each copy

Examples
    spinney dump-super disk.img
    spinney dump-super --all --json disk.img | jq '.[].generation'

Exit codes
    0  done
    1  no copy is valid; with --all, some copy is not
    2  the command line is wrong
",
    run,
};

struct Copy {
    offset: u64,
    found: std::result::Result<Superblock, String>,
}

fn run(mut args: Args) -> Result<Exit> {
    let mut operands = Vec::new();
    let (mut json, mut all) = (false, false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Short('a') | Arg::Long("all") => all = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let image = one(operands, "an image")?;
    let path = Path::new(&image);
    let medium = image::open(path, Access::Peek)?;
    let mut copies = read(&*medium.device());
    let valid = copies.iter().filter(|copy| copy.found.is_ok()).count();
    if valid == 0 && !all {
        let why = copies.first().and_then(|c| c.found.as_ref().err().cloned());
        let why = why.unwrap_or_else(|| "too short for a volume".into());
        return Err(Error::about(path.display(), why).remedy("--all shows every copy"));
    }
    let failed = valid < copies.len() && all;
    if !all {
        copies.retain(|copy| copy.found.is_ok());
        copies.truncate(1);
    }
    let mut out = Out::new();
    if json {
        out.line(Json::array(|a| {
            for copy in &copies {
                a.object(|o| as_json(o, copy));
            }
        }))?;
    } else {
        for copy in &copies {
            as_text(&mut out, copy)?;
        }
    }
    out.finish()?;
    Ok(Exit::failed_if(failed))
}

/// All copies that belong to the volume: up to the end of the device, or of the volume
/// where one of the copies tells it.
fn read(device: &dyn BlockDevice) -> Vec<Copy> {
    let mut copies: Vec<Copy> = COPIES
        .into_iter()
        .filter(|offset| offset + SUPER_SIZE as u64 <= device.len())
        .map(|offset| {
            let mut bytes = [0; SUPER_SIZE];
            let read = device.read_at(offset, &mut bytes).map_err(|e| e.to_string());
            let found =
                read.and_then(|()| Superblock::parse(&bytes, offset).map_err(|e| e.to_string()));
            Copy { offset, found }
        })
        .collect();
    let told =
        copies.iter().find_map(|copy| copy.found.as_ref().ok()).map(|s| s.fields.total_bytes);
    if let Some(total) = told {
        copies.retain(|copy| copy.found.is_ok() || copy.offset + SUPER_SIZE as u64 <= total);
    }
    copies
}

/// Members of plain numbers, as (name, value).
fn numbers(sb: &Superblock) -> Vec<(&'static str, u64)> {
    let f = &sb.fields;
    vec![
        ("bytenr", f.bytenr),
        ("flags", f.flags),
        ("generation", f.generation.0),
        ("root", f.root.0),
        ("root_level", f.root_level.into()),
        ("chunk_root", f.chunk_root.0),
        ("chunk_root_level", f.chunk_root_level.into()),
        ("chunk_root_generation", f.chunk_root_generation.0),
        ("log_root", f.log_root.0),
        ("log_root_level", f.log_root_level.into()),
        ("log_root_transid", f.log_root_transid),
        ("total_bytes", f.total_bytes),
        ("bytes_used", f.bytes_used),
        ("root_dir_objectid", f.root_dir_objectid),
        ("num_devices", f.num_devices),
        ("sectorsize", f.sectorsize.into()),
        ("nodesize", f.nodesize.into()),
        ("stripesize", f.stripesize.into()),
        ("sys_chunk_array_size", f.sys_chunk_array_size.into()),
        ("compat_flags", f.compat_flags),
        ("compat_ro_flags", f.compat_ro_flags),
        ("incompat_flags", f.incompat_flags),
        ("csum_type", f.csum_type.into()),
        ("cache_generation", f.cache_generation),
        ("uuid_tree_generation", f.uuid_tree_generation),
        ("dev_item.devid", f.dev_item.devid),
        ("dev_item.total_bytes", f.dev_item.total_bytes),
        ("dev_item.bytes_used", f.dev_item.bytes_used),
        ("dev_item.generation", f.dev_item.generation),
        ("dev_item.sector_size", f.dev_item.sector_size.into()),
    ]
}

/// Members with words of their own.
fn texts(sb: &Superblock) -> Vec<(&'static str, String)> {
    let f = &sb.fields;
    let csum = ChecksumType::from_disk(f.csum_type).map_or("unknown", ChecksumType::name);
    vec![
        ("fsid", uuid(&f.fsid)),
        ("metadata_uuid", uuid(&f.metadata_uuid)),
        ("dev_item.uuid", uuid(&f.dev_item.uuid)),
        ("dev_item.fsid", uuid(&f.dev_item.fsid)),
        ("csum_name", csum.into()),
        ("incompat_names", flag_names(f.incompat_flags, incompat::NAMES).join(", ")),
        ("compat_ro_names", flag_names(f.compat_ro_flags, compat_ro::NAMES).join(", ")),
    ]
}

fn as_text(out: &mut Out, copy: &Copy) -> Result<()> {
    out.line(format!("superblock at offset {}", copy.offset))?;
    let sb = match &copy.found {
        Ok(sb) => sb,
        Err(why) => return out.line(format!("  not valid: {why}\n")),
    };
    let csum_size = ChecksumType::from_disk(sb.fields.csum_type).map_or(32, ChecksumType::size);
    let csum = crate::output::hex(&sb.fields.csum[..csum_size]);
    out.line(format!("  {:<24} 0x{csum} [match]", "csum"))?;
    out.line(format!("  {:<24} \"{}\"", "label", sb.label().escape_ascii()))?;
    for (name, value) in numbers(sb) {
        let hex = if name.ends_with("flags") { format!(" ({value:#x})") } else { String::new() };
        out.line(format!("  {name:<24} {value}{hex}"))?;
    }
    for (name, value) in texts(sb) {
        out.line(format!("  {name:<24} {value}"))?;
    }
    for (key, chunk) in system_chunks(sb) {
        out.line(format!(
            "  {:<24} logical {} length {} ({})",
            "sys_chunk_array",
            key.offset,
            chunk.fields.length,
            chunk_flags(chunk.fields.kind)
        ))?;
        for stripe in &chunk.stripes {
            let (devid, offset) = (stripe.devid, stripe.offset);
            out.line(format!("  {:<24}   stripe on device {devid} at {offset}", ""))?;
        }
    }
    for (slot, backup) in sb.backups.iter().enumerate() {
        out.line(format!(
            "  {:<24} {slot}: generation {} root {} chunk {} extent {} fs {} dev {} csum {}",
            "backup_root",
            backup.tree_root_gen,
            backup.tree_root,
            backup.chunk_root,
            backup.extent_root,
            backup.fs_root,
            backup.dev_root,
            backup.csum_root
        ))?;
    }
    out.line("")
}

fn system_chunks(sb: &Superblock) -> Vec<(Key, Chunk)> {
    let mut rest = &sb.sys_chunks[..];
    let mut chunks = Vec::new();
    while let Some((key, data)) = rest.split_first_chunk::<KEY_SIZE>() {
        let Ok(chunk) = Chunk::parse(data) else { break };
        rest = &data[chunk.size()..];
        chunks.push((Key::read(key), chunk));
    }
    chunks
}

fn as_json(o: &mut Object<'_>, copy: &Copy) {
    o.number("offset", copy.offset).bool("valid", copy.found.is_ok());
    let sb = match &copy.found {
        Ok(sb) => sb,
        Err(why) => {
            o.text("why", why);
            return;
        }
    };
    o.bytes("label", sb.label());
    for (name, value) in numbers(sb) {
        o.number(name, value);
    }
    for (name, value) in texts(sb) {
        o.text(name, &value);
    }
    o.array("sys_chunk_array", |a| {
        for (key, chunk) in system_chunks(sb) {
            a.object(|o| {
                o.number("logical", key.offset).number("length", chunk.fields.length);
                o.text("flags", &chunk_flags(chunk.fields.kind));
                o.array("stripes", |a| {
                    for stripe in &chunk.stripes {
                        a.object(|o| {
                            o.number("devid", stripe.devid).number("offset", stripe.offset);
                        });
                    }
                });
            });
        }
    });
    o.array("backup_roots", |a| {
        for backup in &sb.backups {
            a.object(|o| {
                o.number("generation", backup.tree_root_gen.0);
                o.number("tree_root", backup.tree_root.0).number("chunk_root", backup.chunk_root.0);
                o.number("extent_root", backup.extent_root.0).number("fs_root", backup.fs_root.0);
                o.number("dev_root", backup.dev_root.0).number("csum_root", backup.csum_root.0);
            });
        }
    });
}
