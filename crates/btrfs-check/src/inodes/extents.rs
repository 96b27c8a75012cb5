//! File extents of one inode: order, gaps, bytes, checksums. (Their shape is the gate's.)

use super::file_state::Rules;
use super::inode::{Inode, malformed};
use super::{Shared, Unwritten};
use crate::FindingKind;
use crate::source::Context;
use btrfs_disk::items::{
    Compression, FileExtent, FileExtentFields, FileExtentKind, InodeItem, dir_type,
};
use btrfs_disk::{Key, Logical, TreeId};

/// What neither the kernel nor this program reads by, and `btrfs check` complains of.
fn odd(extent: &FileExtent<'_>, newest: u64) -> Option<String> {
    let (FileExtent::Extent { fields: FileExtentFields { generation, .. }, .. }
    | FileExtent::Inline { generation, .. }) = extent;
    // A log is of the commit that never came.
    if *generation > newest + 1 {
        return Some(format!("of generation {generation}, the volume is at {newest}"));
    }
    let FileExtent::Extent { fields, .. } = extent else { return None };
    let end = fields.offset.saturating_add(fields.num_bytes);
    (end > fields.ram_bytes)
        .then(|| format!("ends at {end} of {} bytes in memory", fields.ram_bytes))
}

/// Which part of the file range at `start` no copy holds, because the device ends before.
fn cut(
    cx: &Context<'_>,
    start: u64,
    compression: Compression,
    fields: &FileExtentFields,
) -> Option<(u64, u64)> {
    let device_end = cx.cut?;
    let (at, len) = on_disk(compression, fields);
    let chunk = cx.volume.chunk(Logical(at))?;
    let shift = at - chunk.logical.0;
    let left = |place: u64| device_end.saturating_sub(place.saturating_add(shift)).min(len);
    let left = chunk.stripes.iter().map(|(_, place)| left(place.0)).max().unwrap_or(0);
    let whole = compression != Compression::None;
    let from = if whole { start } else { start.saturating_add(left) };
    (left < len).then_some((from, start.saturating_add(fields.num_bytes)))
}

/// The part of the disk that a file extent has its content from.
fn on_disk(compression: Compression, fields: &FileExtentFields) -> (u64, u64) {
    let extent = fields.disk_bytenr.0;
    match compression {
        Compression::None => (extent.saturating_add(fields.offset), fields.num_bytes),
        _ => (extent, fields.disk_num_bytes),
    }
}

impl Inode {
    pub(super) fn file_extent(
        &mut self,
        cx: &Context<'_>,
        tree: TreeId,
        key: Key,
        data: &[u8],
        shared: &mut Shared,
    ) -> Result<(), FindingKind> {
        let sector = u64::from(cx.geometry.sector_size);
        let extent = FileExtent::parse(data).map_err(malformed)?;
        self.file.any = true;
        if self.file.bad.is_none() {
            self.file.bad = odd(&extent, cx.newest);
        }
        match &extent {
            FileExtent::Inline { ram_bytes, content, .. } => {
                self.file.inline = Some((*ram_bytes, content.last() == Some(&0)));
                self.file.bytes = self.file.bytes.saturating_add(*ram_bytes);
            }
            FileExtent::Extent { kind, compression, fields } => {
                if fields.disk_bytenr.0 != 0 {
                    self.file.bytes = self.file.bytes.saturating_add(fields.num_bytes);
                    let (stored, len) = (fields.ram_bytes, fields.disk_num_bytes);
                    if *compression == Compression::None && stored != len {
                        self.file.ram_bytes.get_or_insert((stored, len));
                    }
                    if let Some(lost) = cut(cx, key.offset, *compression, fields) {
                        self.file.add_cut(lost);
                    }
                    self.sums(tree, *kind, *compression, fields, shared);
                    if *kind == FileExtentKind::Regular {
                        self.file.last_written = Some(key.offset);
                    }
                }
            }
        }
        self.advance(key.offset, extent.file_end(key.offset, sector))
    }

    fn advance(&mut self, start: u64, end: u64) -> Result<(), FindingKind> {
        let file = &mut self.file;
        let before = file.end;
        file.end = file.end.max(end);
        if start < before {
            return Err(FindingKind::FileExtentsOverlap { ino: self.ino, end: before });
        }
        if start > before {
            file.first_gap.get_or_insert((before, start));
        }
        Ok(())
    }

    fn sums(
        &mut self,
        tree: TreeId,
        kind: FileExtentKind,
        compression: Compression,
        fields: &FileExtentFields,
        shared: &mut Shared,
    ) {
        if tree == TreeId::DATA_RELOC || !shared.csums.complete {
            return;
        }
        let extent = fields.disk_bytenr.0;
        let (start, len) = on_disk(compression, fields);
        let covered = shared.csums.covered(start, len);
        if kind == FileExtentKind::Prealloc {
            if covered > 0 && shared.fresh {
                shared.unwritten.push(Unwritten { tree, ino: self.ino, extent });
            }
            return;
        }
        self.file.csums_found |= covered > 0;
        if !self.has_no_sums() {
            let missing = len - covered.min(len);
            self.file.csums_missing = self.file.csums_missing.saturating_add(missing);
        }
    }

    pub(super) fn judge_content(
        &self,
        item: &InodeItem,
        rules: &Rules,
        out: &mut Vec<FindingKind>,
    ) {
        let (ino, file) = (self.ino, &self.file);
        // The kernel deletes a large file over several commits, and counts at the end.
        if item.nbytes != file.bytes && item.nlink > 0 {
            let (stored, counted) = (item.nbytes, file.bytes);
            out.push(FindingKind::FileBytes { ino, stored, counted });
        }
        if rules.relocation {
            return;
        }
        if let Some((stored, len)) = file.ram_bytes {
            out.push(FindingKind::RamBytes { ino, stored, len });
        }
        for (from, to) in &file.cut {
            out.push(FindingKind::DataCut { ino, from: *from, len: to - from });
        }
        if let Some(why) = &file.bad {
            out.push(FindingKind::FileExtentBad { ino, why: why.clone() });
        }
        if file.csums_missing > 0 {
            out.push(FindingKind::CsumMissing { ino, len: file.csums_missing });
        }
        if file.csums_found && self.has_no_sums() {
            out.push(FindingKind::CsumOdd { ino });
        }
        if self.kind() == Some(dir_type::SYMLINK) {
            if !file.any && item.size == 0 {
                // As logs of kernels before 5.18 leave one.
                out.push(FindingKind::SymlinkEmpty { ino });
            } else if !file.is_target_of(item.size) {
                let why = format!("symbolic link of size {} has another target", item.size);
                out.push(FindingKind::InodeBad { ino, why });
            }
            return;
        }
        if item.nlink > 0 {
            self.judge_range(item, rules, out);
        }
    }

    fn judge_range(&self, item: &InodeItem, rules: &Rules, out: &mut Vec<FindingKind>) {
        let (ino, file) = (self.ino, &self.file);
        let tail = (file.end < item.size).then_some((file.end, item.size));
        let gap = file.first_gap.filter(|gap| gap.0 < item.size).or(tail);
        if let Some((from, to)) = gap.filter(|_| !rules.no_holes) {
            out.push(FindingKind::FileGap { ino, from, to });
        }
        let end = item.size.checked_next_multiple_of(rules.sector).unwrap_or(u64::MAX);
        if file.last_written.is_some_and(|start| start >= end) {
            out.push(FindingKind::FileExtentBeyondEnd { ino, size: item.size });
        }
    }
}
