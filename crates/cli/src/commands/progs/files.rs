//! Items of trees of files, and those of the root tree that name trees.

use super::fields::word;
use super::keys::{key as key_of, names_or_none};
use super::text::{Text, line};
use crate::commands::offline::uuid;
use crate::sys;
use btrfs_disk::items::{
    DirItem, FILE_EXTENT_INLINE_HEADER, FileExtentFields, InodeExtRef, InodeItem, InodeRef,
    ROOT_SUBVOL_RDONLY, RootItem, RootRef, Timespec, dir_type, inode_flags,
};
use btrfs_disk::key::{Key, kind};
use btrfs_disk::{Corrupt, FixedSize};

type Printed = Result<(), Corrupt>;

pub fn tell(text: &mut Text, key: Key, data: &[u8]) -> Printed {
    match key.kind {
        kind::INODE_ITEM => inode(text, &InodeItem::read(data)?),
        kind::INODE_REF => {
            for name in InodeRef::iter(data) {
                let InodeRef { index, name } = name?;
                let words = format_args!("\t\tindex {index} namelen {} name: ", name.len());
                text.named(words, name);
            }
        }
        kind::INODE_EXTREF => {
            for name in InodeExtRef::iter(data) {
                let InodeExtRef { parent, index, name } = name?;
                let len = name.len();
                let words = format_args!("\t\tindex {index} parent {parent} namelen {len} name: ");
                text.named(words, name);
            }
        }
        kind::XATTR_ITEM | kind::DIR_ITEM | kind::DIR_INDEX => {
            for entry in DirItem::iter(data) {
                directory_entry(text, &entry?);
            }
        }
        kind::ORPHAN_ITEM => line!(text, "\t\torphan item"),
        kind::DIR_LOG_ITEM | kind::DIR_LOG_INDEX => {
            line!(text, "\t\tdir log end {}", word(data, 0)?);
        }
        kind::EXTENT_DATA => file_extent(text, data)?,
        _ => {}
    }
    Ok(())
}

const INODE_FLAGS: &[(u64, &str)] = &[
    (inode_flags::NODATASUM, "NODATASUM"),
    (inode_flags::NODATACOW, "NODATACOW"),
    (inode_flags::READONLY, "READONLY"),
    (inode_flags::NOCOMPRESS, "NOCOMPRESS"),
    (inode_flags::PREALLOC, "PREALLOC"),
    (inode_flags::SYNC, "SYNC"),
    (inode_flags::IMMUTABLE, "IMMUTABLE"),
    (inode_flags::APPEND, "APPEND"),
    (inode_flags::NODUMP, "NODUMP"),
    (inode_flags::NOATIME, "NOATIME"),
    (inode_flags::DIRSYNC, "DIRSYNC"),
    (inode_flags::COMPRESS, "COMPRESS"),
];

fn inode(text: &mut Text, i: &InodeItem) {
    let (generation, transid) = (i.generation, i.transid);
    line!(
        text,
        "\t\tgeneration {generation} transid {transid} size {} nbytes {}",
        i.size,
        i.nbytes
    );
    line!(
        text,
        "\t\tblock group {} mode {:o} links {} uid {} gid {} rdev {}",
        i.block_group,
        i.mode,
        i.nlink,
        i.uid,
        i.gid,
        i.rdev
    );
    let flags = names_or_none(i.flags, INODE_FLAGS);
    line!(text, "\t\tsequence {} flags 0x{:x}({flags})", i.sequence, i.flags);
    for (name, at) in
        [("atime", &i.atime), ("ctime", &i.ctime), ("mtime", &i.mtime), ("otime", &i.otime)]
    {
        time(text, name, at);
    }
}

/// A time that no calendar has is told without one.
fn time(text: &mut Text, name: &str, at: &Timespec) {
    let (secs, nsec) = (at.sec.cast_unsigned(), at.nsec);
    match sys::to_local(at.sec) {
        Some(t) => line!(
            text,
            "\t\t{name} {secs}.{nsec} ({:04}-{:02}-{:02} {:02}:{:02}:{:02})",
            t.year,
            t.month,
            t.day,
            t.hour,
            t.minute,
            t.second
        ),
        None => line!(text, "\t\t{name} {secs}.{nsec}"),
    }
}

fn type_word(kind: u8) -> String {
    match kind {
        dir_type::REG_FILE => "FILE".into(),
        dir_type::DIR => "DIR".into(),
        dir_type::CHRDEV => "CHRDEV".into(),
        dir_type::BLKDEV => "BLKDEV".into(),
        dir_type::FIFO => "FIFO".into(),
        dir_type::SOCK => "SOCK".into(),
        dir_type::SYMLINK => "SYMLINK".into(),
        dir_type::XATTR => "XATTR".into(),
        other => format!("DIR_ITEM.{other}"),
    }
}

fn directory_entry(text: &mut Text, entry: &DirItem<'_>) {
    let (name_len, data_len) = (entry.name.len(), entry.value.len());
    line!(text, "\t\tlocation key {} type {}", key_of(&entry.location), type_word(entry.kind));
    line!(text, "\t\ttransid {} data_len {data_len} name_len {name_len}", entry.transid);
    text.named(format_args!("\t\tname: "), entry.name);
    if data_len > 0 {
        text.named(format_args!("\t\tdata "), entry.value);
    }
}

fn compression(kind: u8) -> String {
    match kind {
        0 => "none".into(),
        1 => "zlib".into(),
        2 => "lzo".into(),
        3 => "zstd".into(),
        other => format!("UNKNOWN.{other}"),
    }
}

fn file_extent(text: &mut Text, data: &[u8]) -> Printed {
    let [.., kind] = data.get(..FILE_EXTENT_INLINE_HEADER).unwrap_or(&[]) else {
        return Err(Corrupt::new("file extent is cut short"));
    };
    let word_of_kind = match kind {
        0 => "inline",
        1 => "regular",
        2 => "prealloc",
        _ => "unknown",
    };
    line!(text, "\t\tgeneration {} type {kind} ({word_of_kind})", word(data, 0)?);
    let packed = compression(data[16]);
    if *kind == 0 {
        let (stored, ram) = (data.len() - FILE_EXTENT_INLINE_HEADER, word(data, 8)?);
        let number = data[16];
        line!(
            text,
            "\t\tinline extent data size {stored} ram_bytes {ram} compression {number} ({packed})"
        );
        return Ok(());
    }
    let f = FileExtentFields::read(data)?;
    let (disk, len) = (f.disk_bytenr, f.disk_num_bytes);
    if *kind == 2 {
        line!(text, "\t\tprealloc data disk byte {disk} nr {len}");
        line!(text, "\t\tprealloc data offset {} nr {}", f.offset, f.num_bytes);
        return Ok(());
    }
    line!(text, "\t\textent data disk byte {disk} nr {len}");
    line!(text, "\t\textent data offset {} nr {} ram {}", f.offset, f.num_bytes, f.ram_bytes);
    line!(text, "\t\textent compression {} ({packed})", f.compression);
    Ok(())
}

/// What the root tree has of each tree.
pub fn of_root_tree(text: &mut Text, key: Key, data: &[u8]) -> Printed {
    match key.kind {
        kind::ROOT_ITEM => root(text, data)?,
        kind::ROOT_REF | kind::ROOT_BACKREF => {
            let r = RootRef::parse(data)?;
            let what = if key.kind == kind::ROOT_REF { "ref" } else { "backref" };
            let (dirid, sequence) = (r.dirid, r.sequence);
            text.named(
                format_args!("\t\troot {what} key dirid {dirid} sequence {sequence} name "),
                r.name,
            );
        }
        _ => {}
    }
    Ok(())
}

fn root(text: &mut Text, data: &[u8]) -> Printed {
    let r = RootItem::parse(data)?;
    // What is behind it counts only where this agrees, but is told always.
    let second =
        if data.len() > RootItem::LEGACY_SIZE { word(data, RootItem::LEGACY_SIZE)? } else { 0 };
    line!(
        text,
        "\t\tgeneration {} root_dirid {} bytenr {} byte_limit {} bytes_used {}",
        r.generation,
        r.root_dirid,
        r.bytenr,
        r.byte_limit,
        r.bytes_used
    );
    let flags = names_or_none(r.flags, &[(ROOT_SUBVOL_RDONLY, "RDONLY")]);
    let (snapshot, refs) = (r.last_snapshot, r.refs);
    line!(text, "\t\tlast_snapshot {snapshot} flags 0x{:x}({flags}) refs {refs}", r.flags);
    let drop_progress = key_of(&r.drop_progress);
    line!(text, "\t\tdrop_progress key {drop_progress} drop_level {}", r.drop_level);
    line!(text, "\t\tlevel {} generation_v2 {second}", r.level);
    if second == r.generation.0 {
        of_newer_kernels(text, &r);
    }
    Ok(())
}

fn of_newer_kernels(text: &mut Text, r: &RootItem) {
    line!(text, "\t\tuuid {}", uuid(&r.uuid));
    line!(text, "\t\tparent_uuid {}", uuid(&r.parent_uuid));
    line!(text, "\t\treceived_uuid {}", uuid(&r.received_uuid));
    line!(
        text,
        "\t\tctransid {} otransid {} stransid {} rtransid {}",
        r.ctransid,
        r.otransid,
        r.stransid,
        r.rtransid
    );
    for (name, at) in
        [("ctime", &r.ctime), ("otime", &r.otime), ("stime", &r.stime), ("rtime", &r.rtime)]
    {
        time(text, name, at);
    }
}
