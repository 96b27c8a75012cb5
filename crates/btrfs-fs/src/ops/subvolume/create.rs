//! A new, empty subvolume.

use super::permission::may_change_names;
use super::uuids::{Note, notable};
use super::{ParentLink, put_refs};
use crate::acl::{self, Inherited};
use crate::engine::Engine;
use crate::ino::InodeId;
use crate::inode::{Inode, Reserved, State, change};
use crate::names::{self, Target};
use crate::ops::create::{
    check_parent, free_name, insert_born, look_index_up, put_inherited, touch_dir, writable_dir,
};
use crate::ops::lookup::entry;
use crate::ops::quota::groups;
use crate::options::compression::PROPERTY;
use crate::reserve::{QuotaReservation, cost};
use crate::subvol::{Caller, NewSubvolume};
use crate::xattrs;
use btrfs_disk::ids::FIRST_FREE_OBJECTID;
use btrfs_disk::items::{InodeItem, RootItem, Timespec, dir_type, inode_flags};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_txn::Op;
use btrfs_txn::delta::TreeAction;
use inode_index::Ref;
use vfs::{Entry, Errno, FsError, Result};

/// Items of the subvolume that its name comes into which change: the directory, and its entry by hash and by index.
const ITEMS: u64 = 3;

/// EDQUOT: a limit of the subvolume that the name comes into forbids it. It may commit.
pub(super) fn name_within_limits(engine: &Engine, dir: InodeId) -> Result<QuotaReservation<'_>> {
    engine.reserver.name_within_limits(dir.tree, ITEMS)
}

/// Checks what names and room any new subvolume needs in its directory, which is locked.
pub(super) fn check_place(
    engine: &Engine,
    caller: &Caller,
    dir: InodeId,
    dir_state: &mut State,
    name: &[u8],
) -> Result<()> {
    let view = engine.core.view();
    free_name(engine, &view, dir, dir_state, name)?;
    if caller.unknown {
        // As who makes a file through an idmapped mount that has no number for him.
        return Err(Errno::EOVERFLOW.into());
    }
    may_change_names(engine, caller, dir, dir_state)?;
    check_parent(dir_state)?;
    look_index_up(engine, &view, dir, dir_state)
}

/// The name of a subvolume comes into its directory, with all that refers to it; answers its index.
pub(super) fn put_name(
    op: &Op<'_>,
    dir: InodeId,
    dir_state: &mut State,
    name: &[u8],
    location: Key,
) -> Result<u64> {
    let at = ParentLink { dir, name, index: dir_state.dir.take_index(name) };
    names::add(op, dir, name, Target { location, kind: dir_type::DIR }, at.index)?;
    put_refs(op, TreeId(location.objectid), &at);
    touch_dir(op, dir, dir_state, name.len() as i64);
    Ok(at.index)
}

/// The root item of a tree that is new; the commit says where it is.
fn root_item(uuid: [u8; 16], time: Timespec, node_size: u32) -> RootItem {
    RootItem {
        inode: InodeItem {
            generation: 1,
            size: 3,
            nlink: 1,
            nbytes: u64::from(node_size),
            mode: vfs::mode::S_IFDIR | 0o755,
            flags: inode_flags::ROOT_ITEM_INIT,
            ..InodeItem::default()
        },
        root_dirid: FIRST_FREE_OBJECTID,
        refs: 1,
        uuid,
        ctime: time,
        otime: time,
        ..RootItem::default()
    }
}

/// What the root directory has.
struct Prepared {
    item: InodeItem,
    inherited: Inherited,
    property: Option<Vec<u8>>,
}

/// No file is stored as nobody's.
fn or_the_directorys(number: u32, dir: u32) -> u32 {
    if number == vfs::NOBODY { dir } else { number }
}

/// As in the kernel nothing comes from a set-group-ID bit of the directory.
fn prepare(engine: &Engine, caller: &Caller, dir: InodeId, dir_state: &State) -> Result<Prepared> {
    let view = engine.core.view();
    let default = xattrs::get(&view, dir, acl::DEFAULT)?;
    let inherited = acl::inherit(default.as_deref(), 0o777, caller.umask, true)?;
    // Subvolumes inherit from the subvolume that they are made in, not from the directory, and
    // only what asks for compression.
    let property = match engine.subvols.get(dir.tree) {
        Some(above) => xattrs::get(&view, InodeId::new(dir.tree, above.root_dir), PROPERTY)?,
        None => None,
    };
    let property = property.filter(|value| !value.starts_with(b"no"));
    let time = engine.core.now();
    let item = InodeItem {
        flags: if property.is_some() { inode_flags::COMPRESS } else { 0 },
        nlink: 1,
        uid: or_the_directorys(caller.uid, dir_state.item.uid),
        gid: or_the_directorys(caller.gid, dir_state.item.gid),
        mode: vfs::mode::S_IFDIR | inherited.mode,
        atime: time,
        ctime: time,
        mtime: time,
        otime: time,
        ..InodeItem::default()
    };
    Ok(Prepared { item, inherited, property })
}

pub(crate) fn create(
    engine: &Engine,
    caller: &Caller,
    new: &NewSubvolume<'_>,
) -> Result<(TreeId, Entry)> {
    let name = new.name;
    names::check_name(name)?;
    let dir = writable_dir(engine, new.parent)?;
    let geometry = &engine.core.geometry;
    let made = cost::create(geometry, name.len(), 0, true) + cost::subvolume_name(name.len());
    let _promise = name_within_limits(engine, dir.id)?;
    let _one_at_a_time = engine.lock_subvolumes()?;
    let above = groups::inherited(engine, dir.id.tree, new.groups)?;
    let made = made + cost::quota_relations(above.len() as u64);
    let _room = engine.reserver.reserve(cost::with(made, cost::plant(geometry)))?;
    let mut dir_state = engine.write(&dir)?;
    check_place(engine, caller, dir.id, &mut dir_state, name)?;
    let prepared = prepare(engine, caller, dir.id, &dir_state)?;
    let (tree, uuid) = engine.subvols.new_tree(prepared.item.otime)?;
    let place = engine.inodes.reserve(InodeId::new(tree, FIRST_FREE_OBJECTID))?;
    let place = place.ok_or(FsError::Posix(Errno::ESTALE))?;
    let item = root_item(uuid, prepared.item.otime, geometry.node_size);
    // Before anybody can find its name.
    engine.subvols.add(tree, uuid);
    engine.reservations.limits.joins(tree, above.iter().map(|group| group.0), None);
    let made = change(&engine.core, |op| {
        let notable = notable(op, &[Note::own(uuid, tree, true)])?;
        op.act(TreeAction::Create { id: tree, item: Box::new(item) }, cost::plant(geometry));
        let inode = insert_root(op, place, &prepared)?;
        put_name(op, dir.id, &mut dir_state, name, Key::new(tree.0, kind::ROOT_ITEM, 0))?;
        notable.put(op)?;
        groups::put_inherited(op, tree, &above)?;
        Ok(inode)
    });
    drop(dir_state);
    let inode = made.inspect_err(|_| forget(engine, tree))?;
    Ok((tree, entry(engine, &inode)?))
}

/// It does not come after all.
pub(super) fn forget(engine: &Engine, tree: TreeId) {
    engine.subvols.forget(tree);
    engine.reservations.limits.forget(tree);
}

fn insert_root(op: &Op<'_>, place: Reserved<'_>, prepared: &Prepared) -> Result<Ref<Inode>> {
    let id = place.id;
    let item = InodeItem { generation: op.generation().0, ..prepared.item };
    let state = State { item, inline_end: Some(0), capability: Some(false), ..State::default() };
    let inode = insert_born(op, place, state, 1, Some(names::first_ref(id, b"..", 0)));
    put_inherited(op, id, &prepared.inherited, prepared.property.as_deref())?;
    Ok(inode)
}
