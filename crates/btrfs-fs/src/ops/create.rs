//! New inodes: files, directories, symlinks, devices, and files without a name.

use super::lookup::entry;
use crate::acl::{self, Inherited};
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::ino::InodeId;
use crate::inode::{Inode, Reserved, State, change, from_linux_dev, item_of_epoch};
use crate::names::{self, Target};
use crate::options::compression::PROPERTY;
use crate::reserve::cost;
use crate::xattrs;
use btrfs_disk::items::{Compression, FileExtent, InodeItem, dir_type, inode_flags};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_txn::delta::{Base, ObjectEdit};
use btrfs_txn::{Op, View};
use inode_index::Ref;
use vfs::{Context, Entry, Errno, FileKind, FsError, Ino, RenameMode, Result};

/// A new inode's own item, its name in both indexes, its reference, and its directory. A symbolic link
/// has one more.
const ITEMS: u64 = 5;

/// What is to be made.
pub(crate) struct New<'a> {
    pub kind: FileKind,
    pub perm: u16,
    pub rdev: u32,
    /// Target of a symlink.
    pub target: &'a [u8],
}

pub(crate) fn make(
    engine: &Engine,
    cx: &Context,
    parent: Ino,
    name: &[u8],
    new: &New<'_>,
) -> Result<Entry> {
    names::check_name(name)?;
    check_symlink(engine, new)?;
    let dir = writable_dir(engine, parent)?;
    let directory = new.kind == FileKind::Dir;
    let geometry = &engine.core.geometry;
    let cost = cost::create(geometry, name.len(), new.target.len(), directory);
    let items = ITEMS + u64::from(new.kind == FileKind::Symlink);
    let _promise = engine.reserver.name_within_limits(dir.id.tree, items)?;
    let _reservation = engine.reserver.reserve(cost)?;
    let mut dir_state = engine.write(&dir)?;
    let view = engine.core.view();
    let free = free_name(engine, &view, dir.id, &dir_state, name)?;
    check_parent(&dir_state)?;
    let prepared = prepare(engine, cx, &dir, &mut dir_state, new)?;
    look_index_up(engine, &view, dir.id, &mut dir_state)?;
    drop(view);
    let inode = change(&engine.core, |op| {
        let index = dir_state.dir.take_index(name);
        let reference = names::first_ref(dir.id, name, index);
        let inode = insert_inode(op, prepared, new, 1, Some(reference))?;
        let target = Target {
            location: Key::new(inode.id.objectid, kind::INODE_ITEM, 0),
            kind: names::dir_type_of(new.kind),
        };
        let item = touched(op, &mut dir_state, name.len() as i64);
        let touch = |o: &mut ObjectEdit<'_>| o.put(kind::INODE_ITEM, 0, item, Base::Possible);
        names::add_entry(op, dir.id, free, target, index, touch);
        Ok(inode)
    })?;
    drop(dir_state);
    entry(engine, &inode)
}

/// `O_TMPFILE`.
pub(crate) fn tmpfile(engine: &Engine, cx: &Context, parent: Ino, perm: u16) -> Result<Entry> {
    let dir = writable_dir(engine, parent)?;
    let _reservation = engine.reserver.reserve(cost::tmpfile(&engine.core.geometry))?;
    let mut dir_state = engine.write(&dir)?;
    // As in the kernel, also in a directory that is gone.
    check_not_immutable(&dir_state)?;
    let new = New { kind: FileKind::File, perm, rdev: 0, target: &[] };
    let mut prepared = prepare(engine, cx, &dir, &mut dir_state, &new)?;
    prepared.item.nlink = 0;
    let inode = change(&engine.core, |op| {
        let inode = insert_inode(op, prepared, &new, 1, None)?;
        let mut state = inode.write()?;
        state.linkable = true;
        engine.inodes.orphans().mark(op, inode.id, &mut state);
        drop(state);
        Ok(inode)
    })?;
    drop(dir_state);
    entry(engine, &inode)
}

pub(crate) fn writable_dir(engine: &Engine, ino: Ino) -> Result<Ref<Inode>> {
    engine.core.health.writable().fs()?;
    let dir = engine.inodes.get(ino)?;
    engine.subvol_writable(dir.id.tree)?;
    if !dir.read()?.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    Ok(dir)
}

/// A directory that may get a name: still there, not immutable.
pub(crate) fn check_parent(dir: &State) -> Result<()> {
    if dir.item.nlink == 0 {
        return Err(Errno::ENOENT.into());
    }
    check_not_immutable(dir)
}

fn check_not_immutable(dir: &State) -> Result<()> {
    if dir.item.flags & inode_flags::IMMUTABLE != 0 {
        return Err(Errno::EPERM.into());
    }
    Ok(())
}

/// Looks a new name up, as `names::free`, where the directory does not know that it lacks it.
pub(crate) fn free_name<'n>(
    engine: &Engine,
    view: &View<'_>,
    id: InodeId,
    dir: &State,
    name: &'n [u8],
) -> Result<names::Free<'n>> {
    if dir.dir.surely_lacks(name) {
        return Ok(names::Free::surely(name));
    }
    names::free(view, id, name, engine.core.geometry.max_item_size())
}

/// Where the indexes of a directory's next names begin, of which there are enough for one operation; and if it is empty, so is what it knows of them.
pub(crate) fn look_index_up(
    engine: &Engine,
    view: &View<'_>,
    id: InodeId,
    dir: &mut State,
) -> Result<()> {
    names::check_next(begin_indexes(engine, view, id, dir)?)
}

/// As `look_index_up`, of the directory that a rename takes a name from: only what stays in its place needs an index.
pub(crate) fn look_source_up(
    engine: &Engine,
    view: &View<'_>,
    id: InodeId,
    dir: &mut State,
    mode: RenameMode,
) -> Result<()> {
    match mode {
        RenameMode::Exchange | RenameMode::Whiteout | RenameMode::NoReplaceWhiteout => {
            look_index_up(engine, view, id, dir)
        }
        RenameMode::Replace | RenameMode::NoReplace => {
            begin_indexes(engine, view, id, dir).map(drop)
        }
    }
}

/// Answers the next one, be it one that nobody may have.
fn begin_indexes(engine: &Engine, view: &View<'_>, id: InodeId, dir: &mut State) -> Result<u64> {
    if let Some(next) = dir.dir.next_index() {
        return Ok(next);
    }
    let next = names::next_index(view, id)?;
    dir.dir.begin_at(next);
    if dir.item.size == 0 && !names::has_any(view, id)? {
        dir.dir.begin_empty(engine.inodes.name_budget());
    }
    Ok(next)
}

/// Times and size of a directory whose names changed by `name_len` bytes.
pub(crate) fn touch_dir(op: &Op<'_>, id: InodeId, dir: &mut State, name_len: i64) {
    let item = touched(op, dir, name_len);
    op.put(id, kind::INODE_ITEM, 0, item);
}

/// As `touch_dir`; the caller puts the item.
fn touched(op: &Op<'_>, dir: &mut State, name_len: i64) -> Box<[u8]> {
    dir.item.size = dir.item.size.saturating_add_signed(2 * name_len);
    let time = op.core.now();
    dir.item.mtime = time;
    dir.item.ctime = time;
    item_of_epoch(op, dir)
}

fn check_symlink(engine: &Engine, new: &New<'_>) -> Result<()> {
    if new.kind != FileKind::Symlink {
        return Ok(());
    }
    let room = engine.core.geometry.max_item_size() - btrfs_disk::items::FILE_EXTENT_INLINE_HEADER;
    if new.target.is_empty() {
        return Err(Errno::ENOENT.into());
    }
    // No path has one: the kernel would follow what is in front of it, and no stream can have it.
    if new.target.contains(&0) {
        return Err(Errno::EINVAL.into());
    }
    let sector = engine.core.geometry.sector_size as usize;
    if new.target.len() > room.min(sector - 1).min(vfs::TARGET_MAX) {
        return Err(Errno::ENAMETOOLONG.into());
    }
    Ok(())
}

/// All that is known before the epoch is entered.
struct Prepared<'e> {
    place: Reserved<'e>,
    item: InodeItem,
    inherited: Inherited,
    /// The directory's compression property, where it passes on.
    property: Option<Vec<u8>>,
}

fn prepare<'e>(
    engine: &'e Engine,
    cx: &Context,
    dir: &Ref<Inode>,
    dir_state: &mut State,
    new: &New<'_>,
) -> Result<Prepared<'e>> {
    let view = engine.core.view();
    let place = new_place(engine, &view, dir.id.tree)?;
    let is_dir = new.kind == FileKind::Dir;
    let default = match new.kind {
        FileKind::Symlink => None,
        _ => default_acl(&view, dir.id, dir_state)?,
    };
    // As the kernel's mkdir: set-ID bits come from the parent alone.
    let perm = u32::from(new.perm) & if is_dir { 0o1777 } else { 0o7777 };
    let inherited = if new.kind == FileKind::Symlink {
        Inherited { mode: 0o777, access: None, default: None }
    } else {
        acl::inherit(default.as_deref(), perm, cx.umask, is_dir)?
    };
    let sgid = dir_state.item.mode & vfs::mode::S_ISGID != 0;
    let mut mode = new.kind.mode_bits() | inherited.mode;
    if sgid && is_dir {
        mode |= vfs::mode::S_ISGID;
    }
    let time = engine.core.now();
    let item = InodeItem {
        nlink: 1,
        uid: cx.uid,
        gid: if sgid { dir_state.item.gid } else { cx.gid },
        mode,
        rdev: from_linux_dev(new.rdev),
        flags: inherited_flags(dir_state.item.flags, new.kind),
        size: new.target.len() as u64,
        nbytes: new.target.len() as u64,
        atime: time,
        ctime: time,
        mtime: time,
        otime: time,
        ..InodeItem::default()
    };
    let passes = matches!(new.kind, FileKind::File | FileKind::Dir);
    let property = match item.flags & inode_flags::COMPRESS {
        _ if !passes => None,
        0 => None,
        _ => xattrs::get(&view, dir.id, PROPERTY)?,
    };
    Ok(Prepared { place, item, inherited, property })
}

/// With a number that nobody has. The first ones of a mount may be those of orphans that it erased.
fn new_place<'e>(engine: &'e Engine, view: &View<'_>, tree: TreeId) -> Result<Reserved<'e>> {
    loop {
        let objectid = engine.subvols.allocate(&engine.core.store, view, tree)?;
        if let Some(place) = engine.inodes.reserve(InodeId::new(tree, objectid))? {
            return Ok(place);
        }
    }
}

/// The default ACL of a directory. That it has none is remembered: most have none, and all that is
/// made in them asks.
fn default_acl(view: &View<'_>, dir: InodeId, state: &mut State) -> Result<Option<Vec<u8>>> {
    if state.default_acl == Some(false) {
        return Ok(None);
    }
    let found = xattrs::get(view, dir, acl::DEFAULT)?;
    state.default_acl = Some(found.is_some());
    Ok(found)
}

/// Flags that pass from a directory to what is made in it, as the kernel's btrfs does.
fn inherited_flags(dir: u64, kind: FileKind) -> u64 {
    use inode_flags::{COMPRESS, NOCOMPRESS, NODATACOW, NODATASUM};
    let mut flags = dir & (COMPRESS | NOCOMPRESS | NODATACOW);
    if flags & NODATACOW != 0 && kind == FileKind::File {
        flags |= NODATASUM;
    }
    flags
}

fn insert_inode(
    op: &Op<'_>,
    prepared: Prepared<'_>,
    new: &New<'_>,
    lookups: u64,
    reference: Option<(u64, Box<[u8]>)>,
) -> Result<Ref<Inode>> {
    let id = prepared.place.id;
    let mut item = prepared.item;
    item.generation = op.generation().0;
    let state = State {
        item,
        // Nobody changes what a link says.
        inline_end: Some(0),
        capability: Some(false),
        clean_behind_end: true,
        ..State::default()
    };
    let inode = insert_born(op, prepared.place, state, lookups, reference);
    if new.kind == FileKind::Symlink {
        let extent = FileExtent::Inline {
            generation: item.generation,
            ram_bytes: new.target.len() as u64,
            compression: Compression::None,
            content: new.target,
        };
        op.put_new(id, kind::EXTENT_DATA, 0, extent.to_vec().into());
    }
    put_inherited(op, id, &prepared.inherited, prepared.property.as_deref())?;
    Ok(inode)
}

/// A new inode, which no tree has, in memory and in the delta; with its first reference, if it has a name.
pub(super) fn insert_born(
    op: &Op<'_>,
    place: Reserved<'_>,
    mut state: State,
    lookups: u64,
    reference: Option<(u64, Box<[u8]>)>,
) -> Ref<Inode> {
    // Before anybody can find it: its lock's place may lie before those that are held, which are of
    // other trees.
    let (id, item) = (place.id, item_of_epoch(op, &mut state));
    op.edit(id, |o| {
        o.mark_born();
        o.put(kind::INODE_ITEM, 0, item, Base::Absent);
        if let Some((parent, bytes)) = reference {
            o.put(kind::INODE_REF, parent, bytes, Base::Absent);
        }
    });
    place.fill(state, lookups)
}

/// What a new inode has from where it is made.
pub(super) fn put_inherited(
    op: &Op<'_>,
    id: InodeId,
    inherited: &Inherited,
    property: Option<&[u8]>,
) -> Result<()> {
    let all = [
        (PROPERTY, property),
        (acl::ACCESS, inherited.access.as_deref()),
        (acl::DEFAULT, inherited.default.as_deref()),
    ];
    for (name, value) in all {
        if let Some(value) = value {
            xattrs::put(op, id, name, value)?;
        }
    }
    Ok(())
}

/// The parent must be a directory and the inode not one: shared by `link`.
pub(crate) fn refuse_dir(state: &State) -> Result<()> {
    if state.is_dir() { Err(FsError::Posix(Errno::EPERM)) } else { Ok(()) }
}

const WHITEOUT: New<'static> = New { kind: FileKind::CharDevice, perm: 0, rdev: 0, target: &[] };

/// A whiteout for `rename`, prepared under the directory's lock.
pub(crate) struct Whiteout<'e>(Prepared<'e>);

pub(crate) fn make_whiteout<'e>(
    engine: &'e Engine,
    cx: &Context,
    dir: &Ref<Inode>,
    dir_state: &mut State,
) -> Result<Whiteout<'e>> {
    Ok(Whiteout(prepare(engine, cx, dir, dir_state, &WHITEOUT)?))
}

impl Whiteout<'_> {
    pub(crate) fn insert(
        self,
        op: &Op<'_>,
        dir: InodeId,
        name: &[u8],
        index: u64,
    ) -> Result<InodeId> {
        // Nobody asked for this inode: no lookup reference.
        let inode = insert_inode(op, self.0, &WHITEOUT, 0, None)?;
        let target = Target {
            location: Key::new(inode.id.objectid, kind::INODE_ITEM, 0),
            kind: dir_type::CHRDEV,
        };
        names::add(op, dir, name, target, index)?;
        Ok(inode.id)
    }
}
