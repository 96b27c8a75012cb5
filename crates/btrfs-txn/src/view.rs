//! What a reader sees: the current delta, over the sealed one, over the published trees.
//!
//! Taking a view is one atomic load. A view stays right for everything whose inode lock
//! the caller holds: sealing and publishing move items between layers, never change them.
//! It does not know what items mean.

mod trail;

use crate::delta::{Changed, Delta, before};
use crate::roots::Roots;
use btrfs_disk::{Key, Logical, Result, TreeId};
use btrfs_tree::{Cursor, Item, NodeStore, TreeRoot};
use std::sync::Arc;
use trail::Trail;
#[cfg(feature = "fault-injection")]
pub use trail::passed_over;

/// The layers at one moment.
pub struct Snapshot {
    /// What operations change.
    pub current: Arc<Delta>,
    /// Being committed.
    pub sealed: Option<Arc<Delta>>,
    /// What the last commit published.
    pub roots: Arc<Roots>,
}

/// Item bytes, borrowed from a node or owned.
// Exhaustive: an item is in a node or out of a delta.
pub enum Bytes {
    /// In a node, which stays as long as this.
    Item(Item),
    /// Out of a delta.
    Owned(Box<[u8]>),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Item(item) => item.data(),
            Bytes::Owned(bytes) => bytes,
        }
    }
}

/// All layers at one moment, as one.
pub struct View<'a> {
    /// Where nodes are read.
    pub store: &'a NodeStore,
    /// Of that moment.
    pub layers: arc_swap::Guard<Arc<Snapshot>>,
}

/// Items of an object that are looked at before its last name goes: some ten leaves. To read the thousands of a
/// file in a hundred thousand pieces would make its removal wait for the device.
const LOOKED_THROUGH: usize = 2000;

impl View<'_> {
    /// The item under `key`, of the newest layer that says anything of it.
    pub fn get(&self, tree: TreeId, key: &Key) -> Result<Option<Bytes>> {
        if let Some(value) = self.changed(tree, key) {
            return Ok(value.map(Bytes::Owned));
        }
        match self.layers.roots.get(tree) {
            Some(root) => Ok(btrfs_tree::get(self.store, &root.root, key)?.map(Bytes::Item)),
            None => Ok(None),
        }
    }

    /// What the deltas say of `key`, if they do.
    fn changed(&self, tree: TreeId, key: &Key) -> Option<Option<Box<[u8]>>> {
        let current = self.layers.current.items.get(tree, key);
        current.or_else(|| self.layers.sealed.as_ref()?.items.get(tree, key))
    }

    /// The first item of `from`'s object at or behind `from`.
    pub fn next(&self, tree: TreeId, from: &Key) -> Result<Option<(Key, Bytes)>> {
        self.scan(tree, *from).next()
    }

    /// The last item of `from`'s object at or before `from`.
    pub fn previous(&self, tree: TreeId, from: &Key) -> Result<Option<(Key, Bytes)>> {
        let (mut at, mut trail) = (*from, Trail::new(self, tree));
        let root = self.layers.roots.get(tree);
        let mut cursor = root.as_ref().map(|root| Cursor::new(self.store, &root.root));
        loop {
            let top = self.layers.current.items.previous(tree, &at);
            let mid = self.layers.sealed.as_ref().map(|s| s.items.previous(tree, &top.at));
            let below = mid.as_ref().map_or(top.at, |mid| mid.at);
            let mid = mid.and_then(|mid| mid.found);
            let low = match &mut cursor {
                Some(cursor) => at_or_before(cursor, &below)?,
                None => None,
            };
            let keys = [changed(&top.found), changed(&mid), low.as_ref().map(|e| e.0)];
            let Some(key) = keys.into_iter().flatten().max() else { break };
            if below != at {
                trail.jump();
            }
            match pick(key, top.found, mid) {
                Picked::Value(value) => {
                    trail.end();
                    return Ok(Some((key, Bytes::Owned(value))));
                }
                Picked::Below => {
                    trail.end();
                    return Ok(low);
                }
                Picked::Deleted => {
                    let before = before(&key);
                    trail.pass(&key, before);
                    let Some(before) = before else { break };
                    at = before;
                }
            }
        }
        trail.end();
        Ok(None)
    }

    /// As `previous`, in the last commit.
    pub fn committed(&self, tree: TreeId, at: &Key) -> Result<Option<(Key, Bytes)>> {
        let Some(root) = self.layers.roots.get(tree) else { return Ok(None) };
        at_or_before(&mut Cursor::new(self.store, &root.root), at)
    }

    /// Where the leaf ends in which `at` belongs, or the node above it that cannot be read; `None`
    /// if the tree ends there.
    pub fn behind_lost(&self, tree: TreeId, at: &Key) -> Result<Option<Key>> {
        let Some(root) = self.layers.roots.get(tree) else { return Ok(None) };
        btrfs_tree::behind_lost(self.store, &root.root, at)
    }

    /// An error if a leaf of the last commit that has items of this object cannot be read; the first 2,000 items
    /// are looked at.
    pub fn look_through(&self, tree: TreeId, objectid: u64) -> Result<()> {
        Finder::new(self.store).look_through(self, tree, objectid)
    }

    /// The last key at or before `at` that the commit at work changes.
    pub fn sealed(&self, tree: TreeId, at: &Key) -> Option<Key> {
        self.layers.sealed.as_ref()?.items.changed_before(tree, at)
    }

    /// All items of `from`'s object from `from` on, one at a time.
    pub fn scan(&self, tree: TreeId, from: Key) -> Scan<'_> {
        let (from, trail) = (Some(from), Trail::new(self, tree));
        Scan { view: self, tree, from, end: None, cursor: None, positioned: false, trail }
    }

    /// The same, those below `end`. What was deleted behind is not looked at, of which there can
    /// be much.
    pub fn scan_below(&self, tree: TreeId, from: Key, end: Key) -> Scan<'_> {
        Scan { end: Some(end), ..self.scan(tree, from) }
    }

    /// Checksums of the sectors of `extent` from `at` on that no tree has yet.
    pub fn pending_sums(
        &self,
        extent: Logical,
        at: Logical,
        sector: u64,
        size: usize,
        out: &mut [u8],
        known: &mut [bool],
    ) {
        self.layers.current.extents.sums(extent, at, sector, size, out, known);
        if let Some(sealed) = &self.layers.sealed {
            sealed.extents.sums(extent, at, sector, size, out, known);
        }
    }
}

/// Where items are looked up.
pub trait Lookup {
    /// The item under `key`, of the newest layer that says anything of it.
    fn item(&mut self, tree: TreeId, key: &Key) -> Result<Option<Bytes>>;
}

impl Lookup for &View<'_> {
    fn item(&mut self, tree: TreeId, key: &Key) -> Result<Option<Bytes>> {
        self.get(tree, key)
    }
}

/// Finds one item after another. What of the way through a tree the last one and the next have in common is not
/// gone again.
pub struct Finder<'s> {
    store: &'s NodeStore,
    cursor: Option<Cursor<'s, NodeStore>>,
}

impl<'s> Finder<'s> {
    /// Nothing was found yet.
    pub fn new(store: &'s NodeStore) -> Finder<'s> {
        Finder { store, cursor: None }
    }

    /// To find what a view has; it may be another one each time.
    pub fn over<'f>(&'f mut self, view: &'f View<'f>) -> impl Lookup + use<'f, 's> {
        Over { finder: self, view }
    }

    /// As [`View::get`].
    pub fn get(&mut self, view: &View<'_>, tree: TreeId, key: &Key) -> Result<Option<Bytes>> {
        if let Some(value) = view.changed(tree, key) {
            return Ok(value.map(Bytes::Owned));
        }
        let Some(root) = view.layers.roots.get(tree) else { return Ok(None) };
        Ok(self.cursor(&root.root).find(key)?.map(Bytes::Item))
    }

    /// As [`View::look_through`].
    pub fn look_through(&mut self, view: &View<'_>, tree: TreeId, objectid: u64) -> Result<()> {
        let born = view.layers.current.items.is_born(tree, objectid);
        let (false, Some(root)) = (born, view.layers.roots.get(tree)) else { return Ok(()) };
        let cursor = self.cursor(&root.root);
        cursor.stay_below(behind(objectid));
        cursor.seek(&Key::new(objectid, 0, 0))?;
        for _ in 0..LOOKED_THROUGH {
            if cursor.key().is_none_or(|key| key.objectid != objectid) {
                break;
            }
            cursor.next()?;
        }
        Ok(())
    }

    fn cursor(&mut self, root: &TreeRoot) -> &mut Cursor<'s, NodeStore> {
        let known = self.cursor.take().filter(|cursor| cursor.root() == root);
        self.cursor.insert(known.unwrap_or_else(|| Cursor::new(self.store, root)))
    }
}

struct Over<'f, 's> {
    finder: &'f mut Finder<'s>,
    view: &'f View<'f>,
}

impl Lookup for Over<'_, '_> {
    fn item(&mut self, tree: TreeId, key: &Key) -> Result<Option<Bytes>> {
        self.finder.get(self.view, tree, key)
    }
}

enum Picked {
    Value(Box<[u8]>),
    Deleted,
    Below,
}

/// What the topmost layer that has `key` says of it.
fn pick(key: Key, top: Option<Changed>, mid: Option<Changed>) -> Picked {
    for (k, value) in [top, mid].into_iter().flatten() {
        if k == key {
            return value.map_or(Picked::Deleted, Picked::Value);
        }
    }
    Picked::Below
}

/// Where the items of an object end.
fn behind(objectid: u64) -> Option<Key> {
    Key::new(objectid, u8::MAX, u64::MAX).successor()
}

fn changed(found: &Option<Changed>) -> Option<Key> {
    found.as_ref().map(|(key, _)| *key)
}

/// The last item of `at`'s object at or before `at`.
fn at_or_before(cursor: &mut Cursor<'_, NodeStore>, at: &Key) -> Result<Option<(Key, Bytes)>> {
    cursor.seek_back(at)?;
    let found = cursor.current().filter(|item| item.key().objectid == at.objectid);
    Ok(found.map(|item| (item.key(), Bytes::Item(item))))
}

/// Walks one object's items upwards over all layers.
pub struct Scan<'v> {
    view: &'v View<'v>,
    tree: TreeId,
    from: Option<Key>,
    end: Option<Key>,
    cursor: Option<Cursor<'v, NodeStore>>,
    positioned: bool,
    trail: Trail<'v>,
}

/// Items of the tree that a scan goes over one by one before it looks for the next one anew.
/// Chosen, not measured.
const FEW: usize = 8;

impl Scan<'_> {
    /// The next item upwards, or `None` behind the object's last.
    #[allow(clippy::should_implement_trait, reason = "it can fail, so it is no iterator")]
    pub fn next(&mut self) -> Result<Option<(Key, Bytes)>> {
        let layers = &self.view.layers;
        while let Some(from) = self.from {
            let top = layers.current.items.next(self.tree, &from);
            let mid = layers.sealed.as_ref().map(|s| s.items.next(self.tree, &top.at));
            let below = mid.as_ref().map_or(top.at, |mid| mid.at);
            if below != from {
                self.trail.jump();
            }
            let mid = mid.and_then(|mid| mid.found);
            self.position(&below)?;
            let low = self.tree_key(&below);
            let keys = [changed(&top.found), changed(&mid), low];
            let key = keys.into_iter().flatten().min();
            let Some(key) = key.filter(|key| self.end.is_none_or(|end| *key < end)) else {
                self.from = None;
                self.trail.end();
                return Ok(None);
            };
            self.from = key.successor().filter(|next| next.objectid == key.objectid);
            match pick(key, top.found, mid) {
                Picked::Value(value) => {
                    self.trail.end();
                    return Ok(Some((key, Bytes::Owned(value))));
                }
                Picked::Deleted => self.trail.pass(&key, self.from),
                Picked::Below => {
                    self.trail.end();
                    let data = self.cursor.as_ref().and_then(|c| c.item()).expect("positioned").1;
                    return Ok(Some((key, Bytes::Owned(data.into()))));
                }
            }
        }
        Ok(None)
    }

    /// Moves the tree cursor to the first item at or behind `from`.
    fn position(&mut self, from: &Key) -> Result<()> {
        if !self.positioned {
            self.positioned = true;
            let born = self.view.layers.current.items.is_born(self.tree, from.objectid);
            if let (false, Some(root)) = (born, self.view.layers.roots.get(self.tree)) {
                let end = self.end.or_else(|| behind(from.objectid));
                let mut cursor = Cursor::new(self.view.store, &root.root).below(end);
                cursor.seek(from)?;
                self.cursor = Some(cursor);
            }
        }
        if let Some(cursor) = &mut self.cursor {
            for _ in 0..FEW {
                if cursor.key().is_none_or(|key| key >= *from) {
                    return Ok(());
                }
                cursor.next()?;
            }
            if cursor.key().is_some_and(|key| key < *from) {
                cursor.seek(from)?;
            }
        }
        Ok(())
    }

    fn tree_key(&self, from: &Key) -> Option<Key> {
        let (key, _) = self.cursor.as_ref()?.item()?;
        (key.objectid == from.objectid).then_some(key)
    }
}
