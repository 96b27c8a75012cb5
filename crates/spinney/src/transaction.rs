//! Many changes that appear at once.
//!
//! The engine commits when somebody asks it to, or when it must. A transaction is the time
//! between two commits in which nobody may ask ([`crate::guard`]) and in which changes are
//! refused before there are so many that the engine would commit by itself. The other reason
//! it has, a volume so full that only a commit gives room back, cannot be refused from here:
//! it is noticed and told ([`Committed::InSteps`]).

use crate::error::{Error, Result};
use crate::guard::Written;
use crate::volume::{At, Volume};
use std::fmt;

/// How the changes of a transaction came to the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[must_use = "a transaction may have been committed in steps"]
pub enum Committed {
    /// All at once.
    AtOnce,
    /// In several commits: the volume was so full that it had to be committed on the way. All
    /// of it is there now, but a crash in between would have shown a part.
    InSteps,
}

/// The time from [`Volume::transaction`] to [`commit`](Transaction::commit), whose changes
/// appear at once on the medium.
///
/// Changes are made by the volume and its files as always, and are seen by everybody who has
/// them open. After a crash either all of them are there or none; so it is after
/// [`abort`](Transaction::abort), and if the transaction is dropped without a commit, as by a
/// `?` half way.
///
/// What it is not: isolation. What other threads change meanwhile belongs to it as well. The
/// engine cannot take single changes back, so a transaction that is given up takes the open
/// volume with it: all its handles answer errors from then on. Open it again, and it is as it
/// was before. And the content of files without copy-on-write (`chattr +C`) is written in its
/// place at once.
///
/// Bounds: changes of [`VolumeOptions::transaction_limit`](crate::VolumeOptions::transaction_limit)
/// bytes (192 MiB) of names and attributes, beyond which they are refused as not supported; the
/// content of files needs room on the volume, but counts in these only with what describes
/// it. On a volume that is nearly full see [`Committed::InSteps`].
pub struct Transaction {
    volume: Volume,
    begun: Written,
    ended: bool,
}

impl Volume {
    /// Begins a transaction. What was changed before is committed first. There can be one at a
    /// time, and while it is open [`sync`](Volume::sync), [`close`](Volume::close) and
    /// [`File::sync_all`](crate::File::sync_all) are refused.
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
    /// let _how = transaction.commit()?;
    /// # volume.close() }
    /// ```
    pub fn transaction(&self) -> Result<Transaction> {
        if let Some(why) = self.read_only_reason() {
            return Err(Error::refused(self.name().display(), format!("can only be read: {why}")));
        }
        let begun = self.guard().begin().at(self, b"")?;
        Ok(Transaction { volume: self.clone(), begun, ended: false })
    }
}

impl Transaction {
    /// Makes all changes durable, at once.
    ///
    /// An error of the medium leaves none of them there and ends the volume; one of no room
    /// leaves them in memory, to be committed when something was removed.
    pub fn commit(mut self) -> Result<Committed> {
        self.ended = true;
        let whole = self.is_whole();
        self.volume.guard().commit().at(&self.volume, b"")?;
        Ok(if whole { Committed::AtOnce } else { Committed::InSteps })
    }

    /// Gives all changes up, and the open volume with them: open it again to go on.
    pub fn abort(mut self) -> Result<()> {
        self.ended = true;
        let whole = self.is_whole();
        self.volume.guard().give_up().at(&self.volume, b"")?;
        match whole {
            true => Ok(()),
            false => {
                let why = "the volume was so full that a part of the transaction is on it already";
                Err(Error::refused(self.volume.name().display(), why))
            }
        }
    }

    /// Nothing of it is on the medium yet.
    fn is_whole(&self) -> bool {
        self.volume.guard().written() == self.begun
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let (volume, whole) = (self.volume.name().display(), self.is_whole());
        tracing::error!(%volume, whole, "a transaction was dropped without a commit: its changes \
            are given up, and the volume must be opened again");
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
