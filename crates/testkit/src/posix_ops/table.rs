//! Which inodes callers hold references on, and the descriptor of each.
//!
//! Invariant: one `Ino` stands for one (device, inode number) for ever, and so does the
//! hold on the root.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vfs::{Attr, Entry, Errno, Ino, Result};

use super::sys;

type Device = (u32, u32);

struct Held {
    fd: Arc<OwnedFd>,
    count: u64,
}

#[derive(Default)]
struct Inner {
    held: HashMap<Ino, Held>,
    /// Every device (with btrfs: subvolume) seen so far; the root's comes first.
    devices: Vec<Device>,
}

impl Inner {
    /// The number by which callers know an inode. On the root's device it is the
    /// inode's own; elsewhere the device's place in the list stands above it.
    fn number(&mut self, device: Device, ino: u64) -> Ino {
        let place = match self.devices.iter().position(|known| *known == device) {
            Some(place) => place,
            None => {
                self.devices.push(device);
                self.devices.len() - 1
            }
        };
        Ino(ino ^ ((place as u64) << 44))
    }
}

pub(super) struct Table {
    inner: Mutex<Inner>,
    pub root: Ino,
}

impl Table {
    pub fn new(root: OwnedFd) -> Result<Table> {
        let table = Table { inner: Mutex::default(), root: Ino(0) };
        let entry = table.enter(root)?;
        Ok(Table { root: entry.attr.ino, ..table })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more reference on the inode of `fd`.
    pub fn enter(&self, fd: OwnedFd) -> Result<Entry> {
        let (device, attr) = sys::statx(&fd)?;
        let mut inner = self.inner();
        let ino = inner.number(device, attr.ino.0);
        let new = || Held { fd: Arc::new(fd), count: 0 };
        inner.held.entry(ino).or_insert_with(new).count += 1;
        Ok(Entry { attr: Attr { ino, ..attr }, generation: 1 })
    }

    /// The number of the inode of `fd`, without a reference.
    pub fn number(&self, fd: &OwnedFd) -> Result<Ino> {
        let (device, attr) = sys::statx(fd)?;
        Ok(self.inner().number(device, attr.ino.0))
    }

    /// The number of an inode that lies on the same device as `sibling`.
    pub fn number_beside(&self, sibling: &OwnedFd, ino: Ino) -> Result<Ino> {
        let (device, _) = sys::statx(sibling)?;
        Ok(self.inner().number(device, ino.0))
    }

    pub fn fd(&self, ino: Ino) -> Result<Arc<OwnedFd>> {
        let inner = self.inner();
        let held = inner.held.get(&ino).ok_or(Errno::ESTALE)?;
        Ok(Arc::clone(&held.fd))
    }

    /// Attributes with the number that callers know.
    pub fn attr(&self, ino: Ino) -> Result<Attr> {
        let (_, attr) = sys::statx(&*self.fd(ino)?)?;
        Ok(Attr { ino, ..attr })
    }

    pub fn forget(&self, ino: Ino, count: u64) {
        let mut inner = self.inner();
        let Some(held) = inner.held.get_mut(&ino) else { return };
        assert!(held.count >= count, "{ino:?}: more references given back than taken");
        held.count -= count;
        if held.count == 0 && ino != self.root {
            inner.held.remove(&ino);
        }
    }
}
