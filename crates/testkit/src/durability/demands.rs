//! What must hold after a crash at one place: for each thing, since when its values count.

use std::collections::HashMap;

use vfs::Ino;

use super::history::{History, Inner, Slot, Synced, Version, Versions};
use std::sync::MutexGuard;

/// The history as a crash at one place sees it.
pub struct Demands<'a> {
    pub(super) history: MutexGuard<'a, Inner>,
    /// The crash comes after so many events.
    pub(super) crash: usize,
    /// Tick of the last `sync` that counts.
    all: u64,
    content: HashMap<Ino, u64>,
    meta: HashMap<Ino, u64>,
    entries: HashMap<Ino, u64>,
    slots: HashMap<Slot, u64>,
    /// Names that an inode had lost by then must not come back.
    lost: HashMap<Ino, u64>,
    exists: HashMap<Ino, u64>,
}

impl History {
    /// What a crash after `crash` events of the device must leave.
    pub fn demands(&self, crash: usize) -> Demands<'_> {
        let history = self.lock();
        let mut counted: Vec<(u64, Synced)> = history
            .syncs
            .iter()
            .filter(|sync| sync.done <= crash)
            .map(|sync| (sync.begin, sync.what))
            .collect();
        counted.sort_by_key(|(begin, _)| *begin);
        let mut demands = Demands {
            history,
            crash,
            all: 0,
            content: HashMap::new(),
            meta: HashMap::new(),
            entries: HashMap::new(),
            slots: HashMap::new(),
            lost: HashMap::new(),
            exists: HashMap::new(),
        };
        for (begin, what) in counted {
            demands.count(begin, what);
        }
        demands
    }
}

/// The value that was there at a tick.
fn value_at<T>(versions: &Versions<T>, tick: u64) -> Option<&T> {
    versions.iter().rev().find(|version| version.begin.tick < tick).map(|version| &version.value)
}

impl Demands<'_> {
    fn count(&mut self, tick: u64, what: Synced) {
        match what {
            Synced::All => self.all = self.all.max(tick),
            Synced::Data(ino) => {
                if !self.known_to_last(ino) {
                    self.names(ino, tick);
                }
                self.content.insert(ino, tick);
                self.exists.insert(ino, tick);
            }
            Synced::Full(ino) => {
                self.names(ino, tick);
                for map in [
                    &mut self.content,
                    &mut self.meta,
                    &mut self.entries,
                    &mut self.lost,
                    &mut self.exists,
                ] {
                    map.insert(ino, tick);
                }
                self.children(ino, tick);
            }
        }
    }

    /// The names that an inode has at a tick.
    fn names(&mut self, ino: Ino, tick: u64) {
        for (slot, versions) in &self.history.slots {
            if value_at(versions, tick) == Some(&Some(ino)) {
                self.slots.insert(slot.clone(), tick);
            }
        }
    }

    fn children(&mut self, dir: Ino, tick: u64) {
        for (_, versions) in self.history.slots.iter().filter(|((parent, _), _)| *parent == dir) {
            if let Some(Some(child)) = value_at(versions, tick) {
                self.exists.insert(*child, tick);
            }
        }
    }

    /// Something made the inode durable already.
    fn known_to_last(&self, ino: Ino) -> bool {
        let born = self.history.inodes.get(&ino).map_or(u64::MAX, |inode| inode.born);
        self.exists.contains_key(&ino) || born <= self.all
    }

    /// It was durable and has had a name ever since.
    pub(super) fn must_exist(&self, ino: Ino) -> bool {
        let died = self.history.inodes.get(&ino).and_then(|inode| inode.died);
        self.known_to_last(ino) && died.is_none_or(|died| died.at > self.crash)
    }

    fn since(&self, map: &HashMap<Ino, u64>, ino: Ino) -> u64 {
        map.get(&ino).copied().unwrap_or(0).max(self.all)
    }

    /// Whether a value may be found whose last durable time is `since`.
    fn counts<T>(&self, version: &Version<T>, since: u64) -> bool {
        version.begin.at <= self.crash && version.end.is_none_or(|end| end > since)
    }

    pub(super) fn content_counts<T>(&self, ino: Ino, version: &Version<T>) -> bool {
        self.counts(version, self.since(&self.content, ino))
    }

    pub(super) fn meta_counts<T>(&self, ino: Ino, version: &Version<T>) -> bool {
        self.counts(version, self.since(&self.meta, ino))
    }

    pub(super) fn slot_counts(&self, slot: &Slot, version: &Version<Option<Ino>>) -> bool {
        let own = self.slots.get(slot).copied().unwrap_or(0);
        let since = own.max(self.since(&self.entries, slot.0));
        let back = version.value.and_then(|ino| self.lost.get(&ino)).copied().unwrap_or(0);
        self.counts(version, since) && version.end.is_none_or(|end| end > back)
    }
}
