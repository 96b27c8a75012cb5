//! Which bytes of an item, a node or a superblock are which field, by name.
//!
//! What it does not know: the inside of names, attributes' values, checksums and bitmaps;
//! each is one field.

use btrfs_disk::FixedSize;
use btrfs_disk::items::{
    BlockGroupItem, ChunkFields, DevExtent, DevItem, DirFields, ExtentDataRef, ExtentItemFields,
    FileExtentFields, FreeSpaceInfo, InodeItem, RootItem, SharedDataRef, Stripe, Timespec,
};
use btrfs_disk::key::{KEY_SIZE, kind};
use btrfs_disk::superblock::{BACKUP_ROOTS, RootBackup, SYS_CHUNK_ARRAY_SIZE, SuperFields};

/// A field: its name, where it begins and how long it is.
pub type Field = (String, usize, usize);

/// The members of a struct at `at`; structs in it by their own members.
fn members<T: FixedSize>(prefix: &str, at: usize, out: &mut Vec<Field>) {
    let mut at = at;
    for (name, size) in T::MEMBERS {
        let name = format!("{prefix}{name}");
        match (*size, name.rsplit('.').next()) {
            (KEY_SIZE, _) => key(&format!("{name}."), at, out),
            (Timespec::SIZE, Some("atime" | "ctime" | "mtime" | "otime")) => {
                members::<Timespec>(&format!("{name}."), at, out);
            }
            (InodeItem::SIZE, Some("inode")) => members::<InodeItem>("inode.", at, out),
            (DevItem::SIZE, Some("dev_item")) => members::<DevItem>("dev_item.", at, out),
            _ => out.push((name, at, *size)),
        }
        at += size;
    }
}

pub fn key(prefix: &str, at: usize, out: &mut Vec<Field>) {
    out.push((format!("{prefix}objectid"), at, 8));
    out.push((format!("{prefix}type"), at + 8, 1));
    out.push((format!("{prefix}offset"), at + 9, 8));
}

/// The superblock's fields, those of its backup roots and of its system chunks.
pub fn superblock(array_used: usize) -> Vec<Field> {
    let mut out = Vec::new();
    members::<SuperFields>("", 0, &mut out);
    out.retain(|(name, ..)| name != "csum");
    let mut at = SuperFields::SIZE;
    let end = at + array_used;
    if at < end {
        key("sys_chunk.key.", at, &mut out);
        at += KEY_SIZE;
        chunk("sys_chunk.", at, end - at, &mut out);
    }
    let backups = SuperFields::SIZE + SYS_CHUNK_ARRAY_SIZE;
    for i in 0..BACKUP_ROOTS {
        members::<RootBackup>("backup.", backups + i * RootBackup::SIZE, &mut out);
    }
    out
}

fn chunk(prefix: &str, at: usize, len: usize, out: &mut Vec<Field>) {
    members::<ChunkFields>(prefix, at, out);
    let first = at + ChunkFields::SIZE;
    if ChunkFields::SIZE + Stripe::SIZE <= len {
        members::<Stripe>(&format!("{prefix}stripe."), first, out);
    }
}

/// The fields of an item's data, which begins at `at`; and a word for what sort of item it is.
pub fn item(kind: u8, data: &[u8], at: usize) -> (&'static str, Vec<Field>) {
    let mut out = Vec::new();
    let mut sort = "";
    let all = |name: &str| (name.to_owned(), at, data.len());
    match kind {
        kind::INODE_ITEM => {
            sort = of_mode(data);
            members::<InodeItem>("", at, &mut out);
        }
        kind::INODE_REF => {
            out.extend([field("index", at, 8), field("name_len", at + 8, 2)]);
            out.push(field("name", at + 10, data.len() - 10));
        }
        kind::INODE_EXTREF => {
            out.extend([field("parent", at, 8), field("index", at + 8, 8)]);
            out.push(field("name_len", at + 16, 2));
            out.push(field("name", at + 18, data.len() - 18));
        }
        kind::DIR_ITEM | kind::DIR_INDEX | kind::XATTR_ITEM => {
            if kind != kind::XATTR_ITEM && data[8] == kind::ROOT_ITEM {
                sort = " to subvolume";
            }
            members::<DirFields>("", at, &mut out);
            out.push(field("name", at + DirFields::SIZE, data.len() - DirFields::SIZE));
        }
        kind::EXTENT_DATA => sort = file_extent(data, at, &mut out),
        kind::ROOT_ITEM => members::<RootItem>("", at, &mut out),
        kind::ROOT_REF | kind::ROOT_BACKREF => {
            out.extend([field("dirid", at, 8), field("sequence", at + 8, 8)]);
            out.push(field("name_len", at + 16, 2));
            out.push(field("name", at + 18, data.len() - 18));
        }
        kind::EXTENT_ITEM | kind::METADATA_ITEM => sort = extent(kind, data, at, &mut out),
        kind::EXTENT_DATA_REF => members::<ExtentDataRef>("", at, &mut out),
        kind::SHARED_DATA_REF => members::<SharedDataRef>("", at, &mut out),
        kind::BLOCK_GROUP_ITEM => members::<BlockGroupItem>("", at, &mut out),
        kind::CHUNK_ITEM => chunk("", at, data.len(), &mut out),
        kind::DEV_ITEM => members::<DevItem>("", at, &mut out),
        kind::DEV_EXTENT => members::<DevExtent>("", at, &mut out),
        kind::FREE_SPACE_INFO => members::<FreeSpaceInfo>("", at, &mut out),
        kind::QGROUP_STATUS => words(&["version", "generation", "flags", "rescan"], at, &mut out),
        kind::QGROUP_INFO => words(
            &["generation", "referenced", "ref_compressed", "exclusive", "excl_compressed"],
            at,
            &mut out,
        ),
        kind::QGROUP_LIMIT => words(
            &["flags", "max_referenced", "max_exclusive", "rsv_referenced", "rsv_exclusive"],
            at,
            &mut out,
        ),
        _ if data.is_empty() => {}
        _ => out.push(all("data")),
    }
    out.retain(|(_, start, len)| *len > 0 && start + len <= at + data.len());
    (sort, out)
}

fn field(name: &str, at: usize, len: usize) -> Field {
    (name.to_owned(), at, len)
}

fn words(names: &[&str], at: usize, out: &mut Vec<Field>) {
    out.extend(names.iter().enumerate().map(|(i, name)| field(name, at + i * 8, 8)));
}

fn of_mode(data: &[u8]) -> &'static str {
    match u32::from_le_bytes(data[52..56].try_into().expect("sized")) & 0o170000 {
        0o040000 => " of directory",
        0o100000 => " of file",
        0o120000 => " of link",
        _ => " of special",
    }
}

fn file_extent(data: &[u8], at: usize, out: &mut Vec<Field>) -> &'static str {
    members::<FileExtentFields>("", at, out);
    let packed = data[16] != 0;
    match (data[20], packed) {
        (0, _) => {
            out.retain(|(_, start, _)| *start < at + 21);
            out.push(field("content", at + 21, data.len() - 21));
            if packed { " inline compressed" } else { " inline" }
        }
        (2, _) => " preallocated",
        (_, true) => " compressed",
        _ if data[21..29] == [0; 8] => " hole",
        _ => "",
    }
}

fn extent(kind: u8, data: &[u8], at: usize, out: &mut Vec<Field>) -> &'static str {
    members::<ExtentItemFields>("", at, out);
    let block = data[16] & 2 != 0;
    let mut next = ExtentItemFields::SIZE;
    if block && kind == kind::EXTENT_ITEM {
        key("key.", at + next, out);
        out.push(field("level", at + next + 17, 1));
        next += 18;
    }
    while next < data.len() {
        out.push(field("inline.type", at + next, 1));
        let rest = at + next + 1;
        next += 1 + match data[next] {
            kind::EXTENT_DATA_REF => {
                members::<ExtentDataRef>("inline.", rest, out);
                ExtentDataRef::SIZE
            }
            kind::SHARED_DATA_REF => {
                out.push(field("inline.parent", rest, 8));
                members::<SharedDataRef>("inline.", rest + 8, out);
                8 + SharedDataRef::SIZE
            }
            _ => {
                out.push(field("inline.offset", rest, 8));
                8
            }
        };
    }
    if block { " of block" } else { " of data" }
}
