//! Subvolumes and the whole volume, behind the guard: what commits by itself waits for no transaction, but is refused
//! while one is open.

use super::Guard;
use btrfs_disk::compress::Encoded;
use btrfs_fs::{
    Caller, Committed, Defragment, Delete, NewExtent, NewSubvolume, ReceivedFrom, Sending,
    SubvolId, SubvolumeInfo, Usage, VerityWish,
};
use std::time::Duration;
use vfs::{Entry, Ino, Result};

impl Guard {
    pub(crate) fn usage(&self) -> Result<Usage> {
        self.there()?.usage()
    }

    pub(crate) fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        self.there()?.subvolumes()
    }

    pub(crate) fn subvolume_info(&self, id: SubvolId) -> Result<SubvolumeInfo> {
        self.there()?.subvolume_info(id)
    }

    pub(crate) fn subvolume_of(&self, ino: Ino) -> Result<(SubvolId, bool)> {
        self.there()?.subvolume_of(ino)
    }

    pub(crate) fn defragment(&self, ino: Ino, wish: &Defragment) -> Result<u64> {
        self.change()?.defragment(ino, wish)
    }

    pub(crate) fn clone_some(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.change()?.clone_some(from, to, len)
    }

    pub(crate) fn enable_verity(&self, ino: Ino, wish: &VerityWish) -> Result<()> {
        self.enable_verity_while(ino, wish, &mut || Ok(()))
    }

    /// After an error of `goes_on`, which is asked on the way, the file is as before.
    pub(crate) fn enable_verity_while(
        &self,
        ino: Ino,
        wish: &VerityWish,
        goes_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.change()?.enable_verity_while(None, ino, wish, goes_on)
    }

    pub(crate) fn measure_verity(&self, ino: Ino) -> Result<fs_verity::Descriptor> {
        self.there()?.measure_verity(ino)
    }

    pub(crate) fn write_encoded(
        &self,
        ino: Ino,
        offset: u64,
        encoded: &Encoded<'_>,
    ) -> Result<bool> {
        self.change()?.write_encoded(ino, offset, encoded)
    }

    pub(crate) fn create_subvolume(
        &self,
        caller: &Caller,
        new: &NewSubvolume<'_>,
    ) -> Result<(SubvolId, Entry)> {
        let _durable = self.durable()?;
        self.change()?.create_subvolume_in(caller, new)
    }

    pub(crate) fn snapshot(
        &self,
        caller: &Caller,
        source: Ino,
        new: &NewSubvolume<'_>,
        read_only: bool,
    ) -> Result<(SubvolId, Entry)> {
        let _durable = self.durable()?;
        self.change()?.snapshot_in(caller, source, new, read_only)
    }

    pub(crate) fn delete_subvolume(&self, caller: &Caller, which: Delete<'_>) -> Result<SubvolId> {
        let _durable = self.durable()?;
        self.change()?.delete_subvolume(caller, which)
    }

    pub(crate) fn sync_deleted(&self, ids: &[SubvolId], limit: Option<Duration>) -> Result<bool> {
        // Closing, and a transaction that begins, wait for one step alone: it ends then.
        self.there()?.sync_deleted_by(ids, limit, || Ok((self.durable()?, self.change()?)))
    }

    pub(crate) fn default_subvolume(&self) -> Result<SubvolId> {
        self.there()?.default_subvolume()
    }

    pub(crate) fn set_default_subvolume(&self, caller: &Caller, id: SubvolId) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.set_default_subvolume(caller, id)
    }

    pub(crate) fn set_read_only(&self, caller: &Caller, id: SubvolId, yes: bool) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.set_read_only(caller, id, yes)
    }

    pub(crate) fn complete_received(
        &self,
        caller: &Caller,
        id: SubvolId,
        from: &ReceivedFrom,
    ) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.complete_received(caller, id, from)
    }

    pub(crate) fn hold_for_send(&self, id: SubvolId) -> Result<Sending> {
        self.there()?.hold_for_send(id)
    }

    pub(crate) fn committed(&self) -> Result<Committed<'_>> {
        self.there()?.committed()
    }

    pub(crate) fn find_new(&self, id: SubvolId, since: u64) -> Result<(u64, Vec<NewExtent>)> {
        self.there()?.find_new(id, since, None, usize::MAX)
    }
}
