//! Logged extents of files take the place of what the subvolume has there.
//!
//! An extent that the extent tree does not have is allocated by this replay, any other
//! gets one reference more. A volume that is not written allocates nothing: nobody else
//! does either.

use super::sums::Wanted;
use super::{Replay, claim};
use crate::error::IntoFs;
use crate::extents::{AT_A_TIME, drop_range, map_step, put_extent};
use crate::ino::InodeId;
use crate::inode::State;
use crate::options::compression::incompat_of;
use btrfs_disk::Key;
use btrfs_disk::items::{Compression, FileExtent, FileExtentFields, FileExtentKind, inode_flags};
use btrfs_disk::key::kind::EXTENT_DATA;
use btrfs_space::{Extent, Kind};
use vfs::Result;

impl Replay<'_> {
    pub(super) fn extent(&mut self, id: InodeId, key: &Key, data: &[u8]) -> Result<()> {
        let start = key.offset;
        let mut state = self.state(id)?;
        let kind = state.item.mode & vfs::mode::S_IFMT;
        if kind != vfs::mode::S_IFREG && kind != vfs::mode::S_IFLNK {
            return Err(self.damage(id, "the log gives content to what has none"));
        }
        let old = self.op.view.get(id.tree, key).fs()?;
        let data = &self.of_this_commit(data);
        let logged = FileExtent::parse(data).fs()?;
        if let FileExtent::Extent { .. } = logged
            && old.is_some_and(|old| *old == **data)
        {
            return Ok(());
        }
        let sector = self.core.sector();
        // What is inline takes the place of all that the first sector had, be it empty.
        let end = start.saturating_add(logged.file_len(sector).max(sector));
        self.drop_extents(id, &mut state, start, end)?;
        self.done.extents += 1;
        match logged {
            FileExtent::Inline { ram_bytes, compression, .. } => {
                self.announce(compression);
                self.op.put(id, EXTENT_DATA, start, data.clone());
                state.item.nbytes = state.item.nbytes.saturating_add(ram_bytes);
            }
            FileExtent::Extent { fields, .. } if fields.disk_bytenr.0 == 0 => {
                if !self.core.features.no_holes {
                    self.op.put(id, EXTENT_DATA, start, data.clone());
                }
            }
            FileExtent::Extent { kind, compression, fields } => {
                let written = kind == FileExtentKind::Regular;
                // What was written behind content that had not landed when something else
                // was synced: the size ends before it, so nobody has been promised it.
                if written && start >= state.item.size.next_multiple_of(sector) {
                    self.put(id, state);
                    return Ok(());
                }
                self.announce(compression);
                put_extent(&self.op, id, &mut state, start, &fields);
                self.refer(id, start, &fields)?;
                if written && state.item.flags & inode_flags::NODATASUM == 0 {
                    self.want_sums(id, compression, &fields);
                }
            }
        }
        self.put(id, state);
        Ok(())
    }

    /// The log's own superblock may not know of it: who compresses so first says it in the next commit's.
    fn announce(&self, compression: Compression) {
        if !self.core.health.is_read_only() {
            self.core.volume.announce(incompat_of(compression));
        }
    }

    /// What the file has in [start, end) goes, a part at a time. True if there was anything.
    pub(super) fn drop_extents(
        &self,
        id: InodeId,
        state: &mut State,
        start: u64,
        end: u64,
    ) -> Result<bool> {
        let (mut at, mut any, sector) = (start, false, self.core.sector());
        while at < end {
            let (mapped, next) = map_step(&self.op.view, id, sector, (at, end), AT_A_TIME).fs()?;
            any |= !mapped.is_empty();
            drop_range(&self.op, id, state, &mapped, start, end)?;
            at = next;
        }
        Ok(any)
    }

    /// Nobody reads by the generation, but a check complains of one to come: that of a crafted log
    /// becomes this replay's.
    fn of_this_commit(&self, data: &[u8]) -> Box<[u8]> {
        let mut data: Box<[u8]> = data.into();
        let now = self.op.generation().0;
        if let Some(generation) = data.first_chunk_mut::<8>()
            && u64::from_le_bytes(*generation) > now
        {
            *generation = now.to_le_bytes();
        }
        data
    }

    /// The file refers to an extent.
    fn refer(&mut self, id: InodeId, start: u64, fields: &FileExtentFields) -> Result<()> {
        let (extent, len) = (fields.disk_bytenr, fields.disk_num_bytes);
        let chunk = self.core.volume.chunk(extent);
        if chunk.is_none_or(|chunk| extent.0.saturating_add(len) > chunk.end()) {
            return Err(self.damage(id, "the log has an extent that lies in no chunk"));
        }
        let who = (id.tree, id.objectid, start.wrapping_sub(fields.offset));
        let known = self.core.health.is_read_only()
            || self.op.view.layers.current.extents.change(extent).is_some()
            || self.extent_is_stored(extent, len)?;
        if known {
            return self.op.reference(extent, len, who, 1).fs();
        }
        let extent = Extent { logical: extent, len };
        claim(self.core, extent, Kind::Data)?;
        self.op.allocate(extent, who).fs()
    }

    /// The checksums of the part that the file uses; of a compressed extent all of it.
    fn want_sums(&mut self, id: InodeId, compression: Compression, fields: &FileExtentFields) {
        let (extent, len) = (fields.disk_bytenr, fields.disk_num_bytes);
        let range = match compression {
            Compression::None => {
                let from = extent.0 + fields.offset;
                (from, from + fields.num_bytes)
            }
            _ => (extent.0, extent.0 + len),
        };
        let log = self.log().root;
        self.sums.want(Wanted { log, id, extent, len, range });
    }
}
