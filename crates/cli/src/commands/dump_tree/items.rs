//! Items in words.

use crate::commands::offline::{chunk_flags, tree_name, uuid};
use btrfs_disk::items::{
    BlockGroupItem, Chunk, DevExtent, DevItem, DirItem, ExtentDataRef, ExtentItem,
    FREE_SPACE_USING_BITMAPS, FileExtent, FileExtentKind, FreeSpaceInfo, InlineRef, InodeExtRef,
    InodeItem, InodeRef, RootItem, RootRef, SharedDataRef, Timespec, VerityItem, dir_type,
    extent_flags,
};
use btrfs_disk::key::{Key, kind};
use btrfs_disk::{Corrupt, FixedSize, TreeId};
use btrfs_volume::Volume;

type Lines = Result<Vec<String>, Corrupt>;

/// What an item says; what cannot be understood is said to be so.
pub fn describe(volume: &Volume, key: Key, data: &[u8]) -> Vec<String> {
    lines(volume, key, data).unwrap_or_else(|c| vec![format!("malformed: {}", c.what)])
}

fn lines(volume: &Volume, key: Key, data: &[u8]) -> Lines {
    match key.kind {
        kind::INODE_ITEM => inode(data),
        kind::INODE_REF => InodeRef::iter(data)
            .map(|r| r.map(|r| format!("index {} name {}", r.index, text(r.name))))
            .collect(),
        kind::INODE_EXTREF => InodeExtRef::iter(data)
            .map(|r| {
                r.map(|r| format!("parent {} index {} name {}", r.parent, r.index, text(r.name)))
            })
            .collect(),
        kind::DIR_ITEM | kind::DIR_INDEX | kind::XATTR_ITEM => {
            DirItem::iter(data).map(|entry| entry.map(|entry| directory_entry(&entry))).collect()
        }
        kind::EXTENT_DATA => file_extent(data),
        kind::EXTENT_CSUM => Ok(csums(volume, key, data)),
        kind::ROOT_ITEM => root(data),
        kind::ROOT_REF | kind::ROOT_BACKREF => {
            let r = RootRef::parse(data)?;
            Ok(vec![format!("directory {} index {} name {}", r.dirid, r.sequence, text(r.name))])
        }
        kind::EXTENT_ITEM | kind::METADATA_ITEM => extent(key, data),
        kind::EXTENT_DATA_REF => Ok(vec![data_ref(&ExtentDataRef::read(data)?)]),
        kind::SHARED_DATA_REF => Ok(vec![format!("count {}", SharedDataRef::read(data)?.count)]),
        _ => layout(key, data),
    }
}

fn layout(key: Key, data: &[u8]) -> Lines {
    Ok(match key.kind {
        kind::BLOCK_GROUP_ITEM => {
            let group = BlockGroupItem::read(data)?;
            vec![format!("used {} ({})", group.used, chunk_flags(group.flags))]
        }
        kind::FREE_SPACE_INFO => {
            let info = FreeSpaceInfo::read(data)?;
            let bitmaps = info.flags & FREE_SPACE_USING_BITMAPS != 0;
            vec![format!("{} extents{}", info.extent_count, if bitmaps { ", bitmaps" } else { "" })]
        }
        kind::FREE_SPACE_BITMAP => {
            let free: u32 = data.iter().map(|byte| byte.count_ones()).sum();
            vec![format!("{free} sectors free")]
        }
        kind::VERITY_DESC_ITEM if key.offset == 0 => {
            vec![format!("descriptor of {} bytes", VerityItem::read(data)?.size)]
        }
        kind::DEV_ITEM => device(data)?,
        kind::DEV_EXTENT => {
            let extent = DevExtent::read(data)?;
            vec![format!("chunk {} length {}", extent.chunk_offset, extent.length)]
        }
        kind::CHUNK_ITEM => chunk(data)?,
        kind::UUID_KEY_SUBVOL | kind::UUID_KEY_RECEIVED_SUBVOL => data
            .chunks_exact(8)
            .map(|id| format!("subvolume {}", u64::from_le_bytes(id.try_into().expect("8 bytes"))))
            .collect(),
        kind::QGROUP_INFO => {
            let names = ["generation", "referenced", "referenced_compressed", "exclusive"];
            words(&names, data)
        }
        kind::QGROUP_LIMIT => {
            words(&["flags", "max_referenced", "max_exclusive", "rsv_referenced"], data)
        }
        kind::QGROUP_STATUS => words(&["version", "generation", "flags", "rescan"], data),
        _ => Vec::new(),
    })
}

/// Named 64-bit numbers in a row.
fn words(names: &[&str], data: &[u8]) -> Vec<String> {
    let numbers = data.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("8 bytes")));
    let pairs: Vec<_> = names.iter().zip(numbers).map(|(name, n)| format!("{name} {n}")).collect();
    vec![pairs.join(" ")]
}

fn text(name: &[u8]) -> String {
    format!("\"{}\"", name.escape_ascii())
}

fn time(name: &str, t: &Timespec) -> String {
    format!("{name} {}.{:09}", t.sec, t.nsec)
}

fn inode(data: &[u8]) -> Lines {
    let i = InodeItem::read(data)?;
    let mut lines = vec![
        format!(
            "generation {} transid {} size {} nbytes {}",
            i.generation, i.transid, i.size, i.nbytes
        ),
        format!(
            "mode {:o} links {} uid {} gid {} rdev {} flags {:#x} sequence {}",
            i.mode, i.nlink, i.uid, i.gid, i.rdev, i.flags, i.sequence
        ),
    ];
    let times =
        [("atime", &i.atime), ("ctime", &i.ctime), ("mtime", &i.mtime), ("otime", &i.otime)];
    lines.push(times.map(|(name, t)| time(name, t)).join(" "));
    Ok(lines)
}

fn type_name(kind: u8) -> &'static str {
    match kind {
        dir_type::REG_FILE => "file",
        dir_type::DIR => "directory",
        dir_type::CHRDEV => "character device",
        dir_type::BLKDEV => "block device",
        dir_type::FIFO => "fifo",
        dir_type::SOCK => "socket",
        dir_type::SYMLINK => "symbolic link",
        dir_type::XATTR => "xattr",
        _ => "unknown",
    }
}

fn directory_entry(entry: &DirItem<'_>) -> String {
    let (name, kind) = (text(entry.name), type_name(entry.kind));
    if entry.kind == dir_type::XATTR {
        return format!("xattr {name} = {}", text(entry.value));
    }
    format!("{kind} {name} -> {} transid {}", entry.location, entry.transid)
}

fn file_extent(data: &[u8]) -> Lines {
    Ok(match FileExtent::parse(data)? {
        FileExtent::Inline { generation, ram_bytes, compression, content } => vec![format!(
            "inline generation {generation} ram_bytes {ram_bytes} compression {compression:?} \
             stored {}",
            content.len()
        )],
        FileExtent::Extent { kind, compression, fields: f } => {
            let what = match kind {
                FileExtentKind::Prealloc => "prealloc",
                _ if f.disk_bytenr.0 == 0 => "hole",
                _ => "regular",
            };
            let (disk, len) = (f.disk_bytenr, f.disk_num_bytes);
            vec![
                format!("{what} generation {} compression {compression:?}", f.generation),
                format!("extent {disk} length {len} ram_bytes {}", f.ram_bytes),
                format!("offset {} bytes {}", f.offset, f.num_bytes),
            ]
        }
    })
}

fn csums(volume: &Volume, key: Key, data: &[u8]) -> Vec<String> {
    let geometry = volume.geometry();
    let count = (data.len() / geometry.csum.size()) as u64;
    let end = key.offset.saturating_add(count * u64::from(geometry.sector_size));
    vec![format!("{count} checksums, {} to {end}", key.offset)]
}

fn root(data: &[u8]) -> Lines {
    let r = RootItem::parse(data)?;
    let mut lines = vec![
        format!("block {} level {} generation {}", r.bytenr, r.level, r.generation),
        format!(
            "refs {} flags {:#x} root_dirid {} last_snapshot {} bytes_used {}",
            r.refs, r.flags, r.root_dirid, r.last_snapshot, r.bytes_used
        ),
    ];
    if r.drop_progress != Key::MIN {
        lines.push(format!("drop_progress {} drop_level {}", r.drop_progress, r.drop_level));
    }
    for (name, id) in
        [("uuid", &r.uuid), ("parent_uuid", &r.parent_uuid), ("received_uuid", &r.received_uuid)]
    {
        if *id != [0; 16] {
            lines.push(format!("{name} {}", uuid(id)));
        }
    }
    if r.otransid != 0 {
        lines.push(format!(
            "ctransid {} otransid {} stransid {} rtransid {}",
            r.ctransid, r.otransid, r.stransid, r.rtransid
        ));
        lines.push(format!("{} {}", time("ctime", &r.ctime), time("otime", &r.otime)));
    }
    Ok(lines)
}

fn data_ref(r: &ExtentDataRef) -> String {
    let (root, ino, offset) = (tree_name(r.root), r.objectid, r.offset as i64);
    format!("used by tree {root} inode {ino} offset {offset} count {}", r.count)
}

fn extent(key: Key, data: &[u8]) -> Lines {
    let item = ExtentItem::parse(key.kind, data)?;
    let f = &item.fields;
    let mut what = Vec::new();
    for (flag, name) in [
        (extent_flags::DATA, "data"),
        (extent_flags::TREE_BLOCK, "tree block"),
        (extent_flags::FULL_BACKREF, "full backref"),
    ] {
        if f.flags & flag != 0 {
            what.push(name);
        }
    }
    let mut lines =
        vec![format!("refs {} generation {} {}", f.refs, f.generation, what.join(", "))];
    if let Some((key, level)) = item.block_info {
        lines.push(format!("first key {key} level {level}"));
    }
    lines.extend(item.inline.iter().map(|reference| match reference {
        InlineRef::TreeBlock { root } => format!("used by tree {}", tree_name(*root)),
        InlineRef::SharedBlock { parent } => format!("used by block {parent}"),
        InlineRef::Data(data) => data_ref(data),
        InlineRef::SharedData { parent, count } => format!("used by leaf {parent} count {count}"),
        InlineRef::Owner { root } => format!("first owned by tree {}", tree_name(TreeId(root.0))),
    }));
    Ok(lines)
}

fn device(data: &[u8]) -> Lines {
    let d = DevItem::read(data)?;
    Ok(vec![
        format!("device {} total_bytes {} bytes_used {}", d.devid, d.total_bytes, d.bytes_used),
        format!("uuid {} fsid {}", uuid(&d.uuid), uuid(&d.fsid)),
    ])
}

fn chunk(data: &[u8]) -> Lines {
    let chunk = Chunk::parse(data)?;
    let f = &chunk.fields;
    let mut lines =
        vec![format!("length {} stripe_len {} ({})", f.length, f.stripe_len, chunk_flags(f.kind))];
    for stripe in &chunk.stripes {
        lines.push(format!("stripe on device {} at {}", stripe.devid, stripe.offset));
    }
    Ok(lines)
}
