//! The UUID tree as a whole: a mount that writes and works in the background makes one where the volume
//! has none (so does the kernel), and who rescues a volume takes it away.
//!
//! Programs look subvolumes up in it by what they were received as. The engine itself does not: what it
//! knows of UUIDs is in the root items, of which the tree is made here.
//!
//! Invariant: who makes it or takes it away holds `Engine::subvolume_lock` until the commit that has that,
//! so no UUID is noted meanwhile in a tree that is not there.
//!
//! What it does not know: entries that come and go one by one (`ops/subvolume`).

use crate::engine::Engine;
use crate::fs::BtrfsFs;
use crate::reserve::{Reservation, cost};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_txn::delta::{ActionCost, TreeAction};
use btrfs_txn::{Root, Roots};
use std::collections::BTreeMap;
use vfs::Result;

/// Where there is none it comes with a commit of its own. A volume without room for it does without.
pub(crate) fn make(engine: &Engine) -> Result<()> {
    let _one_at_a_time = engine.lock_subvolumes()?;
    let roots = engine.core.roots();
    if roots.get(TreeId::UUID).is_some() {
        return Ok(());
    }
    let entries = entries(&roots, engine.core.geometry.max_item_size());
    let bytes = entries.iter().map(|(_, ids)| ids.len() as u64).sum();
    let action = cost::uuid_tree(&engine.core.geometry, entries.len() as u64, bytes);
    match commit_new(engine, TreeAction::MakeUuidTree(entries.into()), action) {
        Err(error) if error.errno() == libc::ENOSPC => {}
        committed => committed?,
    }
    match engine.core.roots().get(TreeId::UUID) {
        Some(_) => tracing::info!("made a UUID tree; the volume had none"),
        // Nor does a later commit try it: what was noted until then would not be in the tree.
        None => tracing::warn!("no room for a UUID tree; the next mount tries again"),
    }
    Ok(())
}

fn commit_new(engine: &Engine, tree: TreeAction, cost: ActionCost) -> Result<()> {
    let room = reserve(engine, cost)?;
    engine.core.begin().act(tree, cost);
    drop(room);
    engine.committer.commit()
}

fn reserve(engine: &Engine, action: ActionCost) -> Result<Reservation<'_>> {
    engine.reserver.reserve(cost::with(cost::Cost::default(), action))
}

/// Subvolumes that have a name, by their own UUIDs and by what they were received as. An item takes no
/// more than `room` bytes of them: the oldest.
fn entries(roots: &Roots, room: usize) -> Vec<(Key, Box<[u8]>)> {
    let mut found: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    let live = |(id, root): &(TreeId, &Root)| id.is_subvolume() && !root.item.is_deleted();
    for (id, root) in roots.trees.iter().filter(live) {
        let item = &root.item;
        let both = [
            (&item.uuid, kind::UUID_KEY_SUBVOL),
            (&item.received_uuid, kind::UUID_KEY_RECEIVED_SUBVOL),
        ];
        for (uuid, kind) in both.into_iter().filter(|(uuid, _)| **uuid != [0; 16]) {
            let ids = found.entry(Key::of_uuid(uuid, kind)).or_default();
            if ids.len() + 8 <= room {
                ids.extend_from_slice(&id.0.to_le_bytes());
            }
        }
    }
    found.into_iter().map(|(key, ids)| (key, ids.into())).collect()
}

impl BtrfsFs {
    /// Takes the UUID tree away, whatever is in it, and gives its space back; durable when this returns.
    /// The next mount makes another. False: there is none. Not beside a balance.
    ///
    /// Nothing of the tree is read, so it may be damaged. What the extent tree says of it is believed,
    /// which is read as a whole.
    pub fn clear_uuid_tree(&self) -> Result<bool> {
        let engine = self.open()?;
        let _one_at_a_time = engine.lock_subvolumes()?;
        // No change of it is in the epoch that takes it away.
        engine.committer.commit()?;
        let Some(nodes) =
            engine.core.roots().get(TreeId::UUID).map(|root| engine.nodes_at_most(root))
        else {
            return Ok(false);
        };
        let action = cost::forget_tree(nodes);
        let room = reserve(engine, action)?;
        engine.core.begin().act(TreeAction::ForgetUuidTree, action);
        drop(room);
        engine.committer.commit()?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Caller;
    use crate::reserve::tests::volume;
    use vfs::FileSystem;

    /// And so do later commits, which would have a tree without what came meanwhile.
    #[test]
    fn a_mount_whose_commit_finds_no_room_does_without() {
        let fs = volume(128, 4096);
        let create = |name: &[u8]| {
            let made = fs.create_subvolume(&Caller::root(), fs.root(), name).expect("create");
            fs.forget(made.1.attr.ino, 1);
        };
        create(b"before");
        assert!(fs.clear_uuid_tree().expect("it is cleared"));
        let (engine, space) = (&fs.engine, fs.space());
        let has_one = || engine.core.roots().get(TreeId::UUID).is_some();
        space.fail_allocations(space.allocations()..u64::MAX);
        make(engine).expect("a mount goes on");
        space.fail_allocations(0..0);
        create(b"meanwhile");
        fs.sync().expect("sync");
        assert!(!has_one(), "the next mount makes it");
        make(engine).expect("there is room");
        let (roots, view) = (engine.core.roots(), engine.core.view());
        let all = entries(&roots, engine.core.geometry.max_item_size());
        assert!(has_one() && all.len() >= 2);
        for (key, ids) in all {
            assert_eq!(view.get(TreeId::UUID, &key).expect("read").as_deref(), Some(&*ids));
        }
        fs.destroy().expect("close");
    }
}
