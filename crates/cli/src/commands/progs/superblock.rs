//! `btrfs inspect-internal dump-super`.
//!
//! Members are told as they are on the device: what is wrong with a copy is part of what is told.

use super::keys::key as key_of;
use super::layout;
use super::text::{Text, Wishes, line};
use super::tree::number;
use crate::args::{Arg, Args, show, some, unexpected};
use crate::commands::Command;
use crate::commands::offline::uuid;
use crate::error::{Error, Exit, Result};
use crate::image::{self, Access};
use crate::output::{Out, hex};
use btrfs_disk::checksum::CSUM_FIELD;
use btrfs_disk::ids::{compat_ro, incompat};
use btrfs_disk::items::{Chunk, DevItem};
use btrfs_disk::key::{KEY_SIZE, Key, kind};
use btrfs_disk::superblock::{
    BACKUP_ROOTS, COPIES, MAGIC, MAGIC_AT, RootBackup, SUPER_SIZE, SYS_CHUNK_ARRAY_SIZE,
    SuperFields,
};
use btrfs_disk::{ChecksumType, FixedSize};
use std::ffi::OsString;
use std::path::Path;

pub const COMMAND: Command = Command {
    name: "inspect-internal dump-super",
    summary: "print superblocks as btrfs-progs does",
    usage: "[OPTIONS] DEVICE...",
    help: "\
Under the name `btrfs` alone. Prints what btrfs-progs 6.2 prints, line for line;
`spinney dump-super` has a format of our own.

Options
    -f, --full         the array of system chunks and the backups of roots as well
    -a, --all          every copy that the device reaches
    -s, --super N      copy 0, 1 or 2; another number is taken for --bytenr
    -i N               the same, as it was once called
    -F, --force        also what has no magic
        --bytenr OFFSET  what is at this offset

Examples
    btrfs inspect-internal dump-super -fa disk.img
    spinney btrfs inspect-internal dump-super --bytenr 67108864 disk.img

Exit codes
    0  done
    1  a device or a copy could not be read, has no magic, or the command line is wrong
",
    run,
};

#[derive(Default)]
struct Wanted {
    devices: Vec<OsString>,
    full: bool,
    all: bool,
    force: bool,
    at: Option<u64>,
}

fn parse(mut args: Args) -> Result<Wanted> {
    let mut wanted = Wanted::default();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('f') | Arg::Long("full") => wanted.full = true,
            Arg::Short('F') | Arg::Long("force") => wanted.force = true,
            Arg::Short('a') | Arg::Long("all") => wanted.all = true,
            Arg::Short('s' | 'i') | Arg::Long("super") => {
                let which = number(&args.text()?)?;
                let copy = usize::try_from(which).ok().and_then(|copy| COPIES.get(copy));
                (wanted.at, wanted.all) = (Some(copy.copied().unwrap_or(which)), false);
            }
            Arg::Long("bytenr") => {
                (wanted.at, wanted.all) = (Some(number(&args.text()?)?), false);
            }
            Arg::Value(value) => wanted.devices.push(value),
            other => return Err(unexpected(other)),
        }
    }
    wanted.devices = some(wanted.devices, "a device")?;
    Ok(wanted)
}

fn run(args: Args) -> Result<Exit> {
    let wanted = parse(args)?;
    let mut out = Out::new();
    for device in &wanted.devices {
        let medium = image::open(Path::new(device), Access::Peek)?;
        let medium = medium.device();
        let places = match wanted.all {
            true => COPIES.to_vec(),
            false => vec![wanted.at.unwrap_or(COPIES[0])],
        };
        for at in places {
            // Behind the end there is none, which is no error.
            if at < medium.len() {
                let mut bytes = [0; SUPER_SIZE];
                let read = medium.read_at(at, &mut bytes);
                read.map_err(|e| {
                    let what = format!("the superblock at {at} cannot be read: {e}");
                    Error::about(show(device), what)
                })?;
                copy(&mut out, &wanted, device, at, &bytes)?;
            }
            out.line("")?;
        }
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn copy(
    out: &mut Out,
    wanted: &Wanted,
    device: &OsString,
    at: u64,
    bytes: &[u8; SUPER_SIZE],
) -> Result<()> {
    let mut text = Text::new(Wishes::default());
    text.put(format_args!("superblock: bytenr={at}, device="));
    text.bytes.extend_from_slice(device.as_encoded_bytes());
    line!(text, "\n{}", "-".repeat(57));
    let magic = bytes[MAGIC_AT..MAGIC_AT + 8] == MAGIC.to_le_bytes();
    if !magic && !wanted.force {
        out.bytes(&text.bytes)?;
        out.finish()?;
        let what = format!("bad magic on superblock at {at} (--force dumps it anyway)");
        return Err(Error::about(show(device), what));
    }
    let fields = SuperFields::read(bytes).map_err(|c| Error::about(show(device), c.what))?;
    members(&mut text, &fields, bytes, magic);
    dev_item(&mut text, &fields);
    if wanted.full {
        line!(text, "sys_chunk_array[{SYS_CHUNK_ARRAY_SIZE}]:");
        if let Err(why) = system_chunks(&mut text, &fields, bytes) {
            Error::about(show(device), why).print();
        }
        backups(&mut text, &fields, bytes);
    }
    out.bytes(&text.bytes)
}

fn agrees(same: bool) -> &'static str {
    if same { "[match]" } else { "[DON'T MATCH]" }
}

/// Bytes as a terminal can show them.
fn printable(bytes: &[u8]) -> String {
    let shown = |byte: &u8| match byte {
        b' '..=b'~' => char::from(*byte),
        _ => '.',
    };
    bytes.iter().map(shown).collect()
}

fn checksum(text: &mut Text, f: &SuperFields, bytes: &[u8; SUPER_SIZE]) {
    let kind = ChecksumType::from_disk(f.csum_type);
    let (name, size) = match kind {
        // btrfs-progs has another name for this one than the kernel.
        Ok(ChecksumType::Blake2b) => ("blake2", CSUM_FIELD),
        Ok(kind) => (kind.name(), kind.size()),
        Err(_) => ("INVALID", CSUM_FIELD),
    };
    line!(text, "csum_type\t\t{} ({name})", f.csum_type);
    line!(text, "csum_size\t\t{size}");
    let told = match kind {
        Ok(kind) => agrees(kind.digest(&bytes[CSUM_FIELD..])[..size] == f.csum[..size]),
        Err(_) => "[UNKNOWN CSUM TYPE OR SIZE]",
    };
    line!(text, "csum\t\t\t0x{} {told}", hex(&f.csum[..size]));
}

/// What is set of `flags`, one a line; `known` is without a name to be called unknown.
fn flags(text: &mut Text, flags: u64, names: &[(u64, &str)], known: u64) {
    let set = names.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, n)| (*n).to_owned());
    let mut words: Vec<String> = set.collect();
    if flags & !known != 0 {
        words.push(format!("unknown flag: 0x{:x}", flags & !known));
    }
    if !words.is_empty() {
        line!(text, "\t\t\t( {} )", words.join(" |\n\t\t\t  "));
    }
}

const FLAGS: &[(u64, &str)] = &[
    (1 << 0, "WRITTEN"),
    (1 << 1, "RELOC"),
    (1 << 35, "CHANGING_FSID"),
    (1 << 32, "SEEDING"),
    (1 << 33, "METADUMP"),
    (1 << 34, "METADUMP_V2"),
];

/// All with a bit up to this one's are those that btrfs-progs 6.2 can write.
const INCOMPAT_KNOWN: u64 = incompat::EXTENT_TREE_V2 - 1;

/// The names of bits in capitals, as far as btrfs-progs 6.2 has them.
fn capitals(names: &[(u64, &str)], below: u64) -> Vec<(u64, String)> {
    let known = names.iter().filter(|(flag, _)| *flag <= below);
    known.map(|(flag, name)| (*flag, name.to_ascii_uppercase())).collect()
}

fn features(text: &mut Text, f: &SuperFields) {
    let told = |text: &mut Text, bits, names: &[(u64, String)], known| {
        let names: Vec<(u64, &str)> = names.iter().map(|(f, name)| (*f, name.as_str())).collect();
        flags(text, bits, &names, known);
    };
    line!(text, "compat_flags\t\t0x{:x}", f.compat_flags);
    line!(text, "compat_ro_flags\t\t0x{:x}", f.compat_ro_flags);
    let mut names = capitals(compat_ro::NAMES, compat_ro::BLOCK_GROUP_TREE);
    // Known to it, but without a name.
    names.retain(|(flag, _)| *flag != compat_ro::VERITY);
    told(text, f.compat_ro_flags, &names, (compat_ro::BLOCK_GROUP_TREE << 1) - 1);
    line!(text, "incompat_flags\t\t0x{:x}", f.incompat_flags);
    let names = capitals(incompat::NAMES, incompat::EXTENT_TREE_V2);
    told(text, f.incompat_flags, &names, INCOMPAT_KNOWN);
}

fn members(text: &mut Text, f: &SuperFields, bytes: &[u8; SUPER_SIZE], magic: bool) {
    checksum(text, f, bytes);
    line!(text, "bytenr\t\t\t{}", f.bytenr);
    line!(text, "flags\t\t\t0x{:x}", f.flags);
    flags(text, f.flags, FLAGS, FLAGS.iter().map(|(flag, _)| flag).sum());
    let shown = printable(&bytes[MAGIC_AT..MAGIC_AT + 8]);
    line!(text, "magic\t\t\t{shown} {}", agrees(magic));
    line!(text, "fsid\t\t\t{}", uuid(&f.fsid));
    line!(text, "metadata_uuid\t\t{}", uuid(metadata_uuid(f)));
    let label = f.label.split(|byte| *byte == 0).next().unwrap_or(&[]);
    line!(text, "label\t\t\t{}", printable(label));
    line!(text, "generation\t\t{}", f.generation);
    line!(text, "root\t\t\t{}", f.root);
    line!(text, "sys_array_size\t\t{}", f.sys_chunk_array_size);
    line!(text, "chunk_root_generation\t{}", f.chunk_root_generation);
    line!(text, "root_level\t\t{}", f.root_level);
    line!(text, "chunk_root\t\t{}", f.chunk_root);
    line!(text, "chunk_root_level\t{}", f.chunk_root_level);
    line!(text, "log_root\t\t{}", f.log_root);
    line!(text, "log_root_transid (deprecated)\t{}", f.log_root_transid);
    line!(text, "log_root_level\t\t{}", f.log_root_level);
    line!(text, "total_bytes\t\t{}", f.total_bytes);
    line!(text, "bytes_used\t\t{}", f.bytes_used);
    line!(text, "sectorsize\t\t{}", f.sectorsize);
    line!(text, "nodesize\t\t{}", f.nodesize);
    line!(text, "leafsize (deprecated)\t{}", f.unused_leafsize);
    line!(text, "stripesize\t\t{}", f.stripesize);
    line!(text, "root_dir\t\t{}", f.root_dir_objectid);
    line!(text, "num_devices\t\t{}", f.num_devices);
    features(text, f);
    line!(text, "cache_generation\t{}", f.cache_generation);
    line!(text, "uuid_tree_generation\t{}", f.uuid_tree_generation);
}

/// The member counts only with its feature.
fn metadata_uuid(f: &SuperFields) -> &[u8; 16] {
    match f.incompat_flags & incompat::METADATA_UUID {
        0 => &f.fsid,
        _ => &f.metadata_uuid,
    }
}

fn dev_item(text: &mut Text, f: &SuperFields) {
    let d: &DevItem = &f.dev_item;
    line!(text, "dev_item.uuid\t\t{}", uuid(&d.uuid));
    let same = agrees(d.fsid == *metadata_uuid(f));
    line!(text, "dev_item.fsid\t\t{} {same}", uuid(&d.fsid));
    line!(text, "dev_item.type\t\t{}", d.kind);
    line!(text, "dev_item.total_bytes\t{}", d.total_bytes);
    line!(text, "dev_item.bytes_used\t{}", d.bytes_used);
    line!(text, "dev_item.io_align\t{}", d.io_align);
    line!(text, "dev_item.io_width\t{}", d.io_width);
    line!(text, "dev_item.sector_size\t{}", d.sector_size);
    line!(text, "dev_item.devid\t\t{}", d.devid);
    line!(text, "dev_item.dev_group\t{}", d.dev_group);
    line!(text, "dev_item.seek_speed\t{}", d.seek_speed);
    line!(text, "dev_item.bandwidth\t{}", d.bandwidth);
    line!(text, "dev_item.generation\t{}", d.generation);
}

/// Ends where the array makes no sense, with the reason.
fn system_chunks(
    text: &mut Text,
    f: &SuperFields,
    bytes: &[u8; SUPER_SIZE],
) -> std::result::Result<(), String> {
    let size = usize::try_from(f.sys_chunk_array_size).unwrap_or(usize::MAX);
    if size > SYS_CHUNK_ARRAY_SIZE {
        return Err(format!("the array of system chunks has {size} bytes"));
    }
    let array = &bytes[SuperFields::SIZE..SuperFields::SIZE + size];
    let (mut at, mut item) = (0, 0);
    while at < size {
        let short = || format!("the array of system chunks is cut short at {at}");
        let key = array[at..].first_chunk::<KEY_SIZE>().ok_or_else(short)?;
        let key = Key::read(key);
        line!(text, "\titem {item} key {}", key_of(&key));
        if key.kind != kind::CHUNK_ITEM {
            return Err(format!("a key of type {} in the array of system chunks", key.kind));
        }
        let told = Chunk::parse(&array[at + KEY_SIZE..]).map_err(|corrupt| corrupt.what)?;
        layout::chunk(text, &told);
        at += KEY_SIZE + told.size();
        item += 1;
    }
    Ok(())
}

fn backups(text: &mut Text, f: &SuperFields, bytes: &[u8; SUPER_SIZE]) {
    // With several extent trees the member names another tree.
    let extents = match f.incompat_flags & incompat::EXTENT_TREE_V2 {
        0 => "backup_extent_root:\t",
        _ => "backup_block_group_root:\t",
    };
    line!(text, "backup_roots[{BACKUP_ROOTS}]:");
    let first = SuperFields::SIZE + SYS_CHUNK_ARRAY_SIZE;
    for slot in 0..BACKUP_ROOTS {
        let b = RootBackup::read(&bytes[first + slot * RootBackup::SIZE..]).unwrap_or_default();
        line!(text, "\tbackup {slot}:");
        for (name, root, generation, level) in [
            ("backup_tree_root:\t", b.tree_root, b.tree_root_gen, b.tree_root_level),
            ("backup_chunk_root:\t", b.chunk_root, b.chunk_root_gen, b.chunk_root_level),
            (extents, b.extent_root, b.extent_root_gen, b.extent_root_level),
            ("backup_fs_root:\t\t", b.fs_root, b.fs_root_gen, b.fs_root_level),
            ("backup_dev_root:\t", b.dev_root, b.dev_root_gen, b.dev_root_level),
            ("csum_root:\t", b.csum_root, b.csum_root_gen, b.csum_root_level),
        ] {
            line!(text, "\t\t{name}{root}\tgen: {generation}\tlevel: {level}");
        }
        line!(text, "\t\tbackup_total_bytes:\t{}", b.total_bytes);
        line!(text, "\t\tbackup_bytes_used:\t{}", b.bytes_used);
        line!(text, "\t\tbackup_num_devices:\t{}\n", b.num_devices);
    }
}
