//! Many changes that appear at once.
//!
//! The engine commits when somebody asks it to, or when it must. A transaction is the time
//! between two commits in which nobody may ask ([`crate::guard`]) and the engine does not by
//! itself: where only a commit would give room or memory back, changes are refused.

use crate::error::Result;
use crate::volume::{At, Volume};
use std::fmt;
use vfs::FsError;

/// The time from [`Volume::transaction`] to [`commit`](Transaction::commit), whose changes
/// appear at once on the medium.
///
/// Changes are made by the volume and its files as always, and are seen by everybody who has
/// them open. After a crash either all of them are there or none; so it is after
/// [`abort`](Transaction::abort), after a commit that fails, and if the transaction is dropped
/// without a commit, as by a `?` half way.
///
/// What it is not: isolation. What other threads change meanwhile belongs to it as well. The
/// engine cannot take single changes back, so one that is given up takes all open handles with
/// it: they answer errors from then on, and so does [`close`](Volume::close), since what they
/// changed meanwhile is lost. `abort` returns the volume opened anew, as it was before;
/// elsewhere [`Volume::reopen`] does. And the content of files without copy-on-write
/// (`chattr +C`) is written in its place at once. What is written to files that want each write
/// durable (`chattr +S`) is durable with the commit, and not before.
///
/// Bounds: changes of [`VolumeOptions::transaction_limit`](crate::VolumeOptions::transaction_limit)
/// bytes (192 MiB) of names and attributes, beyond which they are refused as not supported; the
/// content of files needs room on the volume, but counts in these only with what describes
/// it. What is removed gives no room back before the end: on a volume that is nearly full,
/// changes are refused with ENOSPC that would fit in two transactions.
pub struct Transaction {
    volume: Volume,
    ended: bool,
}

impl Volume {
    /// Begins a transaction. What was changed before is committed first. There can be one at a
    /// time, and while it is open [`sync`](Volume::sync), [`close`](Volume::close) and
    /// [`File::sync_all`](crate::File::sync_all) are refused
    /// ([`Cause::TransactionOpen`](crate::Cause)).
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # use spinney::{FormatOptions, MemDevice, VolumeOptions};
    /// # let device = std::sync::Arc::new(MemDevice::new(256 << 20));
    /// # FormatOptions::new().format(&*device)?;
    /// # let volume = VolumeOptions::new().write(true).open_device(device)?;
    /// let transaction = volume.transaction()?;
    /// volume.create_dir("new")?;
    /// volume.write("new/config", b"a = 1\n")?;
    /// transaction.commit()?;
    /// # volume.close() }
    /// ```
    pub fn transaction(&self) -> Result<Transaction> {
        if let Some(why) = self.read_only_reason() {
            return Err(self.error(b"", FsError::ReadOnly(why)));
        }
        self.guard().begin().map_err(|e| self.not_durable(b"", e))?;
        Ok(Transaction { volume: self.clone(), ended: false })
    }
}

impl Transaction {
    /// Makes all changes durable, at once. An error ends the open volume as
    /// [`abort`](Transaction::abort) does, and leaves none of the changes where
    /// [`Volume::reopen`] can open it anew. Where that is refused, since the medium failed under the last
    /// writes, whoever opens it next finds all of them or none.
    pub fn commit(mut self) -> Result<()> {
        self.ended = true;
        self.volume.guard().commit().at(&self.volume, b"")
    }

    /// Gives all changes up. The volume that this returns is as it was before; all other
    /// handles of it answer errors from now on.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # use spinney::{FormatOptions, MemDevice, VolumeOptions};
    /// # let device = std::sync::Arc::new(MemDevice::new(256 << 20));
    /// # FormatOptions::new().format(&*device)?;
    /// # let volume = VolumeOptions::new().write(true).open_device(device)?;
    /// let transaction = volume.transaction()?;
    /// volume.create_dir("new")?;
    /// let volume = transaction.abort()?;
    /// assert!(!volume.exists("new")?);
    /// # volume.close() }
    /// ```
    pub fn abort(mut self) -> Result<Volume> {
        self.ended = true;
        self.volume.guard().give_up().at(&self.volume, b"")?;
        self.volume.reopen()
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let volume = self.volume.name().display();
        tracing::error!(%volume, "a transaction was dropped without a commit: its changes are \
            given up, and the volume must be opened again");
        if let Err(error) = self.volume.guard().give_up() {
            tracing::error!(%volume, %error, "it could not be given up");
        }
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("volume", &self.volume).finish_non_exhaustive()
    }
}
