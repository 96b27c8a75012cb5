//! Items of chunks, devices, free space, checksums, quotas, and what is under way.

use super::fields::{ItemContext, word};
use super::keys::{group, key as key_of, object};
use super::text::{Text, line};
use crate::commands::offline::uuid;
use crate::output::hex;
use btrfs_disk::ids::{BALANCE_OBJECTID, DEV_STATS_OBJECTID};
use btrfs_disk::items::{
    BalanceItem, BlockGroupItem, Chunk, DevExtent, DevItem, FreeSpaceInfo, QgroupInfo, QgroupLimit,
    QgroupStatus, qgroup_status,
};
use btrfs_disk::key::{KEY_SIZE, Key, kind};
use btrfs_disk::{Corrupt, FixedSize};

type Printed = Result<(), Corrupt>;

pub fn tell(text: &mut Text, place: &ItemContext<'_>, data: &[u8]) -> Printed {
    let key = place.key;
    match key.kind {
        kind::EXTENT_CSUM => csums(text, place, data),
        kind::BLOCK_GROUP_ITEM => {
            let g = BlockGroupItem::read(data)?;
            let (used, object, flags) = (g.used, g.chunk_objectid, group(g.flags));
            line!(text, "\t\tblock group used {used} chunk_objectid {object} flags {flags}");
        }
        kind::FREE_SPACE_INFO => {
            let f = FreeSpaceInfo::read(data)?;
            line!(text, "\t\tfree space info extent count {} flags {}", f.extent_count, f.flags);
        }
        kind::FREE_SPACE_EXTENT => line!(text, "\t\tfree space extent"),
        kind::FREE_SPACE_BITMAP => line!(text, "\t\tfree space bitmap"),
        kind::DEV_EXTENT => device_extent(text, &DevExtent::read(data)?),
        kind::DEV_ITEM => device(text, &DevItem::read(data)?),
        kind::CHUNK_ITEM => chunk(text, &Chunk::parse(data)?),
        kind::QGROUP_STATUS | kind::QGROUP_INFO | kind::QGROUP_LIMIT => quota(text, key, data)?,
        kind::PERSISTENT_ITEM => persistent(text, key, data)?,
        kind::TEMPORARY_ITEM => temporary(text, key, data)?,
        kind::UUID_KEY_SUBVOL | kind::UUID_KEY_RECEIVED_SUBVOL => {
            for at in (0..data.len() / 8 * 8).step_by(8) {
                line!(text, "\t\tsubvol_id {}", word(data, at)?);
            }
        }
        kind::STRING_ITEM => {
            // Not a name, nor hidden as one.
            let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
            text.put(format_args!("\t\titem data "));
            text.bytes.extend_from_slice(&data[..end]);
            text.bytes.push(b'\n');
        }
        _ => {}
    }
    Ok(())
}

/// The header of a free space cache of the first version.
pub fn cache(text: &mut Text, data: &[u8]) -> Printed {
    let location = data.first_chunk::<KEY_SIZE>();
    let location = location.ok_or_else(|| Corrupt::new("item is cut short"))?;
    line!(text, "\t\tlocation key {}", key_of(&Key::read(location)));
    let (generation, entries) = (word(data, KEY_SIZE)?, word(data, KEY_SIZE + 8)?);
    let bitmaps = word(data, KEY_SIZE + 16)?;
    line!(text, "\t\tcache generation {generation} entries {entries} bitmaps {bitmaps}");
    Ok(())
}

/// Columns are as many as are readable in one line, by the length of a checksum.
fn csums(text: &mut Text, place: &ItemContext<'_>, data: &[u8]) {
    let (size, sector) = (place.geometry.csum.size(), u64::from(place.geometry.sector_size));
    let count = (data.len() / size) as u64;
    let (start, len) = (place.key.offset, count * sector);
    line!(text, "\t\trange start {start} end {} length {len}", start.wrapping_add(len));
    if !text.wishes.csum_items {
        return;
    }
    let columns = match size {
        4 => 4,
        8 => 2,
        _ => 1,
    };
    let sums: Vec<&[u8]> = data.chunks_exact(size).collect();
    for (row, sums) in sums.chunks(columns).enumerate() {
        let first = start.wrapping_add((row * columns) as u64 * sector);
        let told = sums.iter().enumerate().map(|(column, sum)| {
            let at = first.wrapping_add(column as u64 * sector);
            format!("[{at}] 0x{}", hex(sum))
        });
        line!(text, "\t\t{}", told.collect::<Vec<_>>().join(" "));
    }
}

fn device_extent(text: &mut Text, e: &DevExtent) {
    line!(text, "\t\tdev extent chunk_tree {}", e.chunk_tree);
    let (objectid, offset) = (e.chunk_objectid, e.chunk_offset);
    line!(text, "\t\tchunk_objectid {objectid} chunk_offset {offset} length {}", e.length);
    line!(text, "\t\tchunk_tree_uuid {}", uuid(&e.chunk_tree_uuid));
}

fn device(text: &mut Text, d: &DevItem) {
    let (devid, total, used) = (d.devid, d.total_bytes, d.bytes_used);
    line!(text, "\t\tdevid {devid} total_bytes {total} bytes_used {used}");
    let (align, width, sector) = (d.io_align, d.io_width, d.sector_size);
    line!(text, "\t\tio_align {align} io_width {width} sector_size {sector} type {}", d.kind);
    let (generation, start) = (d.generation, d.start_offset);
    line!(text, "\t\tgeneration {generation} start_offset {start} dev_group {}", d.dev_group);
    line!(text, "\t\tseek_speed {} bandwidth {}", d.seek_speed, d.bandwidth);
    line!(text, "\t\tuuid {}", uuid(&d.uuid));
    line!(text, "\t\tfsid {}", uuid(&d.fsid));
}

/// As an item, and in the superblock.
pub fn chunk(text: &mut Text, chunk: &Chunk) {
    let f = &chunk.fields;
    let (length, owner, stripe_len) = (f.length, f.owner, f.stripe_len);
    let kind = group(f.kind);
    line!(text, "\t\tlength {length} owner {owner} stripe_len {stripe_len} type {kind}");
    let (align, width, sector) = (f.io_align, f.io_width, f.sector_size);
    line!(text, "\t\tio_align {align} io_width {width} sector_size {sector}");
    line!(text, "\t\tnum_stripes {} sub_stripes {}", f.num_stripes, f.sub_stripes);
    for (i, stripe) in chunk.stripes.iter().enumerate() {
        line!(text, "\t\t\tstripe {i} devid {} offset {}", stripe.devid, stripe.offset);
        line!(text, "\t\t\tdev_uuid {}", uuid(&stripe.dev_uuid));
    }
}

fn quota(text: &mut Text, key: Key, data: &[u8]) -> Printed {
    match key.kind {
        kind::QGROUP_STATUS => {
            let s = QgroupStatus::read(data)?;
            let mut flags = if s.flags & qgroup_status::ON != 0 { "ON" } else { "OFF" }.to_owned();
            for (flag, name) in
                [(qgroup_status::RESCAN, "SCANNING"), (qgroup_status::INCONSISTENT, "INCONSISTENT")]
            {
                if s.flags & flag != 0 {
                    flags = format!("{flags}|{name}");
                }
            }
            let (version, generation, scan) = (s.version, s.generation, s.rescan);
            line!(text, "\t\tversion {version} generation {generation} flags {flags} scan {scan}");
        }
        kind::QGROUP_INFO => {
            let i = QgroupInfo::read(data)?;
            let (referenced, exclusive) = (i.referenced, i.exclusive);
            line!(text, "\t\tgeneration {}", i.generation);
            let compressed = i.referenced_compressed;
            line!(text, "\t\treferenced {referenced} referenced_compressed {compressed}");
            let compressed = i.exclusive_compressed;
            line!(text, "\t\texclusive {exclusive} exclusive_compressed {compressed}");
        }
        _ => {
            let l = QgroupLimit::read(data)?;
            let (referenced, exclusive) = (l.max_referenced, l.max_exclusive);
            line!(text, "\t\tflags {:x}", l.flags);
            line!(text, "\t\tmax_referenced {referenced} max_exclusive {exclusive}");
            let (referenced, exclusive) = (l.reserved_referenced, l.reserved_exclusive);
            line!(text, "\t\trsv_referenced {referenced} rsv_exclusive {exclusive}");
        }
    }
    Ok(())
}

fn persistent(text: &mut Text, key: Key, data: &[u8]) -> Printed {
    let what = object(key.objectid, key.kind);
    line!(text, "\t\tpersistent item objectid {what} offset {}", key.offset);
    if key.objectid != DEV_STATS_OBJECTID {
        line!(text, "\t\tunknown persistent item objectid {}", key.objectid);
        return Ok(());
    }
    line!(text, "\t\tdevice stats");
    let counted = |at: usize| word(data, at * 8);
    let (write, read, flush) = (counted(0)?, counted(1)?, counted(2)?);
    let (corruption, generation) = (counted(3)?, counted(4)?);
    line!(
        text,
        "\t\twrite_errs {write} read_errs {read} flush_errs {flush} corruption_errs {corruption} \
         generation {generation}"
    );
    Ok(())
}

fn temporary(text: &mut Text, key: Key, data: &[u8]) -> Printed {
    let what = object(key.objectid, key.kind);
    line!(text, "\t\ttemporary item objectid {what} offset {}", key.offset);
    if key.objectid != BALANCE_OBJECTID {
        line!(text, "\t\tunknown temporary item objectid {}", key.objectid);
        return Ok(());
    }
    let balance = BalanceItem::read(data)?;
    line!(text, "\t\tbalance status flags {}", balance.flags);
    for (name, f) in
        [("DATA", &balance.data), ("METADATA", &balance.metadata), ("SYSTEM", &balance.system)]
    {
        line!(text, "\t\t{name}");
        let (devid, target, flags) = (f.devid, f.target, f.flags);
        line!(text, "\t\tprofiles {} devid {devid} target {target} flags {flags}", f.profiles);
        // `usage` and `limit` are one number, or two halves.
        let halves = |both: u64| (both & u64::from(u32::MAX), both >> 32);
        let (min, max) = halves(f.usage);
        line!(text, "\t\tusage_min {min} usage_max {max} pstart {} pend {}", f.pstart, f.pend);
        let (min, max) = halves(f.limit);
        line!(text, "\t\tvstart {} vend {} limit_min {min} limit_max {max}", f.vstart, f.vend);
        line!(text, "\t\tstripes_min {} stripes_max {}", f.stripes_min, f.stripes_max);
    }
    Ok(())
}
