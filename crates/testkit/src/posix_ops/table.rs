//! Which inodes callers hold references on, and the descriptor of each.
//!
//! Invariant: one `Ino` stands for one (device, inode number) as long as it is held.
//! The root is held for ever.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vfs::{Attr, Entry, Errno, Ino, Result};

use super::sys;

type Identity = ((u32, u32), u64);

struct Held {
    fd: Arc<OwnedFd>,
    identity: Identity,
    count: u64,
}

#[derive(Default)]
struct Inner {
    held: HashMap<Ino, Held>,
    by_identity: HashMap<Identity, Ino>,
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

    /// Counts one more reference on the inode of `fd`. Inode numbers of other devices
    /// (subvolumes) get the device mixed in.
    pub fn enter(&self, fd: OwnedFd) -> Result<Entry> {
        let (device, mut attr) = sys::statx(&fd)?;
        let identity = (device, attr.ino.0);
        let mut inner = self.inner();
        let ino = match inner.by_identity.get(&identity) {
            Some(ino) => *ino,
            None => {
                let mut ino = attr.ino;
                while inner.held.contains_key(&ino) {
                    ino = Ino(ino.0 ^ (u64::from(device.1) << 40) ^ (1 << 63));
                }
                inner.by_identity.insert(identity, ino);
                inner.held.insert(ino, Held { fd: Arc::new(fd), identity, count: 0 });
                ino
            }
        };
        if let Some(held) = inner.held.get_mut(&ino) {
            held.count += 1;
        }
        attr.ino = ino;
        Ok(Entry { attr, generation: 1 })
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
            let identity = held.identity;
            inner.held.remove(&ino);
            inner.by_identity.remove(&identity);
        }
    }
}
