//! Directory entries: DIR_ITEM (by hash), DIR_INDEX (by order), INODE_REF and
//! INODE_EXTREF (from the inode back), always changed together.
//!
//! Invariants (the caller holds the directory exclusively for changes): each name has one
//! entry in the DIR_ITEM of its hash, one DIR_INDEX and one reference in its inode, all
//! with the same index; names with one hash share an item. `add` and `remove` read all that
//! they need before they change anything, so one that fails has changed nothing; of an
//! operation that does several of them, the caller asks `check_room` and `check_ref` first.

use crate::error::IntoFs;
use crate::ino::InodeId;
use btrfs_disk::checksum::{extref_hash, name_hash};
use btrfs_disk::items::{DirFields, DirItem, InodeExtRef, InodeItem, InodeRef, dir_type};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, FixedSize, Key};
use btrfs_txn::delta::{Base, ObjectEdit};
use btrfs_txn::view::{Bytes, Lookup};
use btrfs_txn::{Core, Op, View};
use vfs::{Damage, Errno, FileKind, FsError, Result};

/// No directory lies deeper than this: a way up that is longer is a circle of a damaged volume.
/// Nobody has made a million directories inside each other; to walk up so many takes a second.
pub(crate) const MAX_DEPTH: usize = 1 << 20;

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    /// Key of an INODE_ITEM or a ROOT_ITEM.
    pub location: Key,
    /// `dir_type` value.
    pub kind: u8,
}

impl Target {
    pub(crate) fn is_subvolume(&self) -> bool {
        self.location.kind == kind::ROOT_ITEM
    }
}

/// What an entry says of a file of `kind`.
pub(crate) fn dir_type_of(kind: FileKind) -> u8 {
    match kind {
        FileKind::File => dir_type::REG_FILE,
        FileKind::Dir => dir_type::DIR,
        FileKind::Symlink => dir_type::SYMLINK,
        FileKind::CharDevice => dir_type::CHRDEV,
        FileKind::BlockDevice => dir_type::BLKDEV,
        FileKind::Fifo => dir_type::FIFO,
        FileKind::Socket => dir_type::SOCK,
    }
}

/// Refuses what no entry may be called.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > vfs::NAME_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    check_form(name)
}

/// As `check_name`, but leaves the length to the lookup that follows.
pub(crate) fn check_form(name: &[u8]) -> Result<()> {
    if name.is_empty() || name == b"." || name == b".." {
        return Err(Errno::EINVAL.into());
    }
    if name.iter().any(|b| *b == b'/' || *b == 0) {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

pub(crate) fn lookup(mut items: impl Lookup, dir: InodeId, name: &[u8]) -> Result<Option<Target>> {
    if name.len() > vfs::NAME_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    match items.item(dir.tree, &item_of(dir, name)).fs()? {
        Some(bytes) => target_in(&bytes, name),
        None => Ok(None),
    }
}

/// What a name of a DIR_ITEM stands for.
fn target_in(bytes: &[u8], name: &[u8]) -> Result<Option<Target>> {
    for entry in DirItem::iter(bytes) {
        let entry = entry.fs()?;
        if entry.name == name {
            return Ok(Some(Target { location: entry.location, kind: entry.kind }));
        }
    }
    Ok(None)
}

/// The DIR_ITEM that has, or would get, a name.
fn item_of(dir: InodeId, name: &[u8]) -> Key {
    Key::new(dir.objectid, kind::DIR_ITEM, name_hash(name))
}

/// A name of a directory, and what is left of its DIR_ITEM without it. It stays right as long as the
/// directory is held exclusively.
pub(crate) struct Listed {
    pub target: Target,
    rest: Vec<u8>,
}

pub(crate) fn listed(mut items: impl Lookup, dir: InodeId, name: &[u8]) -> Result<Option<Listed>> {
    let Some(bytes) = items.item(dir.tree, &item_of(dir, name)).fs()? else { return Ok(None) };
    let (mut target, mut rest) = (None, Vec::new());
    for entry in DirItem::iter(&bytes) {
        let entry = entry.fs()?;
        if entry.name == name {
            target = Some(Target { location: entry.location, kind: entry.kind });
        } else {
            entry.append_to(&mut rest);
        }
    }
    Ok(target.map(|target| Listed { target, rest }))
}

/// From here on no name gets an index: FUSE mounts have no offset for what is behind it.
const INDEXES_END: u64 = (1 << 62) - 1;
/// One operation takes two at most.
const AT_ONCE: u64 = 2;

/// ENOSPC where a directory that goes on with this index has none left for an operation.
pub(crate) fn check_next(index: u64) -> Result<()> {
    if index <= INDEXES_END - AT_ONCE { Ok(()) } else { Err(Errno::ENOSPC.into()) }
}

/// The next free DIR_INDEX of a directory. One that the last commit uses, or the one that
/// is at work, is not free even if its entry is gone: a log that takes it away and gives it
/// again is more than the kernel's replay can do.
pub(crate) fn next_index(view: &View<'_>, dir: InodeId) -> Result<u64> {
    let from = Key::new(dir.objectid, kind::DIR_INDEX, u64::MAX);
    let now = view.previous(dir.tree, &from).fs()?.map(|(key, _)| key);
    let committed = view.committed(dir.tree, &from).fs()?.map(|(key, _)| key);
    let mut next = 2;
    for key in [now, committed, view.sealed(dir.tree, &from)].into_iter().flatten() {
        if key.kind == kind::DIR_INDEX {
            check_index(dir, key.offset)?;
            next = next.max(key.offset + 1);
        }
    }
    Ok(next)
}

/// A directory is listed by offsets that callers hold as `off_t`; no directory ever had so
/// many names that an index comes near its end.
pub(crate) fn check_index(dir: InodeId, index: u64) -> Result<()> {
    if index < i64::MAX as u64 {
        return Ok(());
    }
    Err(damaged(dir, "an entry whose index is no offset"))
}

/// A name that a directory has not yet, and what the DIR_ITEM of its hash holds instead. It stays
/// right as long as the directory is held exclusively.
pub(crate) struct Free<'n> {
    name: &'n [u8],
    existing: Option<Bytes>,
}

impl<'n> Free<'n> {
    /// Of a name that no layer has, nor another of its hash.
    pub(crate) fn surely(name: &'n [u8]) -> Free<'n> {
        Free { name, existing: None }
    }

    pub(crate) fn name(&self) -> &[u8] {
        self.name
    }
}

/// Looks a new name up: EEXIST if it is there, EOVERFLOW if the DIR_ITEM of its hash has no room.
pub(crate) fn free<'n>(
    view: &View<'_>,
    dir: InodeId,
    name: &'n [u8],
    max_item: usize,
) -> Result<Free<'n>> {
    let existing = view.get(dir.tree, &item_of(dir, name)).fs()?;
    if let Some(bytes) = &existing {
        if target_in(bytes, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if !fits(bytes, name, max_item) {
            return Err(Errno::EOVERFLOW.into());
        }
    }
    Ok(Free { name, existing })
}

fn fits(bytes: &[u8], name: &[u8], max_item: usize) -> bool {
    bytes.len() + DirFields::SIZE + name.len() <= max_item
}

/// Room check before anything is reserved: the DIR_ITEM of the name's hash can grow. A name
/// that is there already is replaced, which takes no room.
pub(crate) fn check_room(
    view: &View<'_>,
    dir: InodeId,
    name: &[u8],
    max_item: usize,
) -> Result<()> {
    let Some(bytes) = view.get(dir.tree, &item_of(dir, name)).fs()? else { return Ok(()) };
    if fits(&bytes, name, max_item) || target_in(&bytes, name)?.is_some() {
        return Ok(());
    }
    Err(Errno::EOVERFLOW.into())
}

/// Room check on the other side: EMLINK if `child` cannot take a reference to `name` in
/// `parent` beside those that it has. As in the kernel, a rename asks before the old name
/// is gone.
pub(crate) fn check_ref(
    core: &Core,
    view: &View<'_>,
    child: InodeId,
    parent: u64,
    name: &[u8],
) -> Result<()> {
    new_ref(core, view, child, &InodeExtRef { parent, index: 0, name }).map(|_| ())
}

/// The item of the reference that an inode without others gets with its first name.
pub(crate) fn first_ref(dir: InodeId, name: &[u8], index: u64) -> (u64, Box<[u8]>) {
    (dir.objectid, InodeRef { index, name }.to_vec().into())
}

/// Adds the entry and its reverse reference.
pub(crate) fn add(
    op: &Op<'_>,
    dir: InodeId,
    name: &[u8],
    target: Target,
    index: u64,
) -> Result<()> {
    let existing = op.view.get(dir.tree, &item_of(dir, name)).fs()?;
    add_free(op, dir, Free { name, existing }, target, index)
}

/// As `add`, of a name that was looked up since the directory is held.
pub(crate) fn add_free(
    op: &Op<'_>,
    dir: InodeId,
    free: Free<'_>,
    target: Target,
    index: u64,
) -> Result<()> {
    if !target.is_subvolume() {
        let child = InodeId::new(dir.tree, target.location.objectid);
        let new = InodeExtRef { parent: dir.objectid, index, name: free.name };
        let (key, bytes, base) = new_ref(op.core, &op.view, child, &new)?;
        op.edit(child, |o| o.put(key.kind, key.offset, bytes.into(), base));
    }
    add_entry(op, dir, free, target, index, |_| ());
    Ok(())
}

/// Adds the entry alone, and with it what `beside` changes of the directory.
pub(crate) fn add_entry(
    op: &Op<'_>,
    dir: InodeId,
    free: Free<'_>,
    target: Target,
    index: u64,
    beside: impl FnOnce(&mut ObjectEdit<'_>),
) {
    let Free { name, existing } = free;
    let hash = name_hash(name);
    let transid = op.generation().0;
    let entry = DirItem { location: target.location, transid, kind: target.kind, name, value: &[] };
    let index_bytes = entry.to_vec();
    op.edit(dir, |o| {
        beside(o);
        match existing {
            Some(old) => {
                let mut all = old.to_vec();
                entry.append_to(&mut all);
                o.put(kind::DIR_ITEM, hash, all.into(), Base::Possible);
            }
            None => o.put(kind::DIR_ITEM, hash, index_bytes.clone().into(), Base::Absent),
        }
        o.put(kind::DIR_INDEX, index, index_bytes.into(), Base::Absent);
    });
}

/// The item that takes a new reference, and what it will hold: INODE_REF as long as that
/// has room, then INODE_EXTREF if the volume has such items.
fn new_ref(
    core: &Core,
    view: &View<'_>,
    child: InodeId,
    new: &InodeExtRef<'_>,
) -> Result<(Key, Vec<u8>, Base)> {
    let InodeExtRef { parent, index, name } = *new;
    let max = core.geometry.max_item_size();
    let key = Key::new(child.objectid, kind::INODE_REF, parent);
    let old = view.get(child.tree, &key).fs()?;
    let base = if old.is_some() { Base::Possible } else { Base::Absent };
    let mut bytes = old.as_deref().map_or(Vec::new(), <[u8]>::to_vec);
    InodeRef { index, name }.append_to(&mut bytes);
    if bytes.len() <= max {
        return Ok((key, bytes, base));
    }
    if !core.features.extended_refs {
        return Err(Errno::EMLINK.into());
    }
    let key = Key::new(child.objectid, kind::INODE_EXTREF, extref_hash(parent, name));
    let old = view.get(child.tree, &key).fs()?;
    let mut bytes = old.as_deref().map_or(Vec::new(), <[u8]>::to_vec);
    new.append_to(&mut bytes);
    if bytes.len() > max {
        return Err(Errno::EMLINK.into());
    }
    Ok((key, bytes, Base::Possible))
}

/// Whether all that a removal of the name needs can be read: for who changes something before it.
pub(crate) fn check_removal(
    view: &View<'_>,
    (dir, given): (InodeId, u64),
    name: &[u8],
    target: Target,
) -> Result<()> {
    if target.is_subvolume() {
        return Ok(());
    }
    let child = InodeId::new(dir.tree, target.location.objectid);
    without_ref(view, child, (dir.objectid, given), name).map(drop)
}

/// Removes the entry and its reverse reference.
pub(crate) fn remove(
    op: &Op<'_>,
    (dir, given): (InodeId, u64),
    name: &[u8],
    target: Target,
) -> Result<()> {
    let rest = without_entry(op, dir, name)?;
    removal(&op.view, (dir, given), name, Listed { target, rest })?.put(op);
    Ok(())
}

/// All that changes where an entry and its reverse reference go. It stays right as long as the directory
/// and the inode are held exclusively.
pub(crate) struct Removal {
    dir: InodeId,
    item: Key,
    rest: Vec<u8>,
    index: u64,
    child: InodeId,
    reference: Key,
    rest_of_refs: Vec<u8>,
}

/// Reads all that the removal of a name needs that was looked up since the directory is held.
pub(crate) fn removal(
    items: impl Lookup,
    (dir, given): (InodeId, u64),
    name: &[u8],
    listed: Listed,
) -> Result<Removal> {
    let child = InodeId::new(dir.tree, listed.target.location.objectid);
    let parent = (dir.objectid, given);
    let (reference, rest_of_refs, index) = without_ref(items, child, parent, name)?;
    let (item, rest) = (item_of(dir, name), listed.rest);
    Ok(Removal { dir, item, rest, index, child, reference, rest_of_refs })
}

impl Removal {
    pub(crate) fn put(self, op: &Op<'_>) {
        op.edit(self.child, |o| store_rest(o, &self.reference, self.rest_of_refs));
        drop_entry(op, self.dir, &self.item, self.rest, self.index);
    }
}

/// Removes the entry of a subvolume, whose reference is not in this tree.
pub(crate) fn remove_entry(op: &Op<'_>, dir: InodeId, name: &[u8], index: u64) -> Result<()> {
    let rest = without_entry(op, dir, name)?;
    can_read_index(&op.view, dir, index)?;
    drop_entry(op, dir, &item_of(dir, name), rest, index);
    Ok(())
}

/// Whether a place in the order of a directory can be read; or the commit would find that it cannot.
pub(crate) fn can_read_index(mut items: impl Lookup, dir: InodeId, index: u64) -> Result<()> {
    items.item(dir.tree, &Key::new(dir.objectid, kind::DIR_INDEX, index)).fs().map(drop)
}

fn drop_entry(op: &Op<'_>, dir: InodeId, key: &Key, rest: Vec<u8>, index: u64) {
    op.edit(dir, |o| {
        store_rest(o, key, rest);
        o.delete(kind::DIR_INDEX, index);
    });
}

/// What is left of the DIR_ITEM that has a name, which must be there.
fn without_entry(op: &Op<'_>, dir: InodeId, name: &[u8]) -> Result<Vec<u8>> {
    match listed(&op.view, dir, name)? {
        Some(listed) => Ok(listed.rest),
        None => Err(damaged(dir, "a name without its DIR_ITEM")),
    }
}

/// The index of a name, looked for among all of the directory: for entries that nothing
/// refers back from.
pub(crate) fn index_of(view: &View<'_>, dir: InodeId, name: &[u8]) -> Result<u64> {
    let at = |kind| Key::new(dir.objectid, kind, 0);
    let mut scan = view.scan_below(dir.tree, at(kind::DIR_INDEX), at(kind::DIR_INDEX + 1));
    while let Some((key, bytes)) = scan.next().fs()? {
        for entry in DirItem::iter(&bytes) {
            if entry.fs()?.name == name {
                return Ok(key.offset);
            }
        }
    }
    Err(damaged(dir, "a name without its DIR_INDEX"))
}

fn damaged(id: InodeId, what: &str) -> FsError {
    Damage::new(format!("inode {} of tree {}: {what}", id.objectid, id.tree)).into()
}

/// The item of the child's references that has a name, what is left of it without, and the
/// name's index. The leaf of that can be read as well, or the commit would be who finds that it cannot;
/// indexes from `given` on were given since the volume was opened, and need no look.
fn without_ref(
    mut items: impl Lookup,
    child: InodeId,
    (parent, given): (u64, u64),
    name: &[u8],
) -> Result<(Key, Vec<u8>, u64)> {
    let (key, rest, index) = reference(&mut items, child, parent, name)?;
    if index < given {
        can_read_index(items, InodeId::new(child.tree, parent), index)?;
    }
    Ok((key, rest, index))
}

fn reference(
    items: &mut impl Lookup,
    child: InodeId,
    parent: u64,
    name: &[u8],
) -> Result<(Key, Vec<u8>, u64)> {
    let key = Key::new(child.objectid, kind::INODE_REF, parent);
    if let Some(old) = items.item(child.tree, &key).fs()? {
        let is_it = |item: &InodeRef<'_>| (item.name == name).then_some(item.index);
        if let Some((rest, index)) = cut_out(InodeRef::iter(&old), is_it, InodeRef::append_to)? {
            return Ok((key, rest, index));
        }
    }
    let key = Key::new(child.objectid, kind::INODE_EXTREF, extref_hash(parent, name));
    if let Some(old) = items.item(child.tree, &key).fs()? {
        let is_it = |item: &InodeExtRef<'_>| {
            (item.parent == parent && item.name == name).then_some(item.index)
        };
        if let Some((rest, index)) =
            cut_out(InodeExtRef::iter(&old), is_it, InodeExtRef::append_to)?
        {
            return Ok((key, rest, index));
        }
    }
    Err(damaged(child, "a name without its reference"))
}

/// What is left of an item of references without the one that `is_it`, and that one's index; `None`:
/// there is none.
fn cut_out<T>(
    items: impl Iterator<Item = std::result::Result<T, Corrupt>>,
    is_it: impl Fn(&T) -> Option<u64>,
    append_to: impl Fn(&T, &mut Vec<u8>),
) -> Result<Option<(Vec<u8>, u64)>> {
    let (mut rest, mut found) = (Vec::new(), None);
    for item in items {
        let item = item.fs()?;
        match is_it(&item) {
            Some(index) => found = Some(index),
            None => append_to(&item, &mut rest),
        }
    }
    Ok(found.map(|index| (rest, index)))
}

fn store_rest(edit: &mut ObjectEdit<'_>, key: &Key, rest: Vec<u8>) {
    if rest.is_empty() {
        edit.delete(key.kind, key.offset);
    } else {
        edit.put(key.kind, key.offset, rest.into(), Base::Possible);
    }
}

/// Some parent of an inode, and a name there.
pub(crate) fn any_parent(view: &View<'_>, child: InodeId) -> Result<Option<(u64, Vec<u8>)>> {
    let from = Key::new(child.objectid, kind::INODE_REF, 0);
    match view.next(child.tree, &from).fs()? {
        Some((key, bytes)) if key.kind == kind::INODE_REF => match InodeRef::iter(&bytes).next() {
            Some(first) => Ok(Some((key.offset, first.fs()?.name.to_vec()))),
            None => Ok(None),
        },
        Some((key, bytes)) if key.kind == kind::INODE_EXTREF => {
            match InodeExtRef::iter(&bytes).next() {
                Some(first) => {
                    let first = first.fs()?;
                    Ok(Some((first.parent, first.name.to_vec())))
                }
                None => Ok(None),
            }
        }
        _ => Ok(None),
    }
}

/// As [`any_parent`], for who does not hold `child`: who gives it another name takes the old one away
/// first, so where it has links and no name, those who are at work are waited for.
pub(crate) fn parent(core: &Core, child: InodeId) -> Result<Option<(u64, Vec<u8>)>> {
    /// Of one that is never found a damaged volume has no name.
    /// Chosen, not measured.
    const LOOKS: u32 = 1000;
    for _ in 0..LOOKS {
        let view = core.view();
        if let Some(found) = any_parent(&view, child)? {
            return Ok(Some(found));
        }
        let key = Key::new(child.objectid, kind::INODE_ITEM, 0);
        let Some(item) = view.get(child.tree, &key).fs()? else { break };
        if InodeItem::read(&item).fs()?.nlink == 0 {
            break;
        }
        core.wait_for_operations();
    }
    Ok(None)
}

/// Some layer has a DIR_ITEM of the directory that none above it takes away.
pub(crate) fn has_any(view: &View<'_>, dir: InodeId) -> Result<bool> {
    has_kind(view, dir, kind::DIR_ITEM)
}

/// Everything in a directory has gone.
pub(crate) fn is_empty(view: &View<'_>, dir: InodeId) -> Result<bool> {
    Ok(!has_kind(view, dir, kind::DIR_INDEX)?)
}

fn has_kind(view: &View<'_>, dir: InodeId, kind: u8) -> Result<bool> {
    let from = Key::new(dir.objectid, kind, 0);
    Ok(matches!(view.next(dir.tree, &from).fs()?, Some((key, _)) if key.kind == kind))
}
