//! The items of a tree, one by one, also where parts of it are lost.
//!
//! Invariant: each item once, by ascending key. What it does not know: what items mean.

use btrfs_disk::Key;
use btrfs_tree::{Cursor, NodeStore, TreeRoot, behind_lost};

/// What takes an item, or says what is wrong with it.
type Visit<'v> = &'v mut dyn FnMut(Key, &[u8]) -> btrfs_disk::Result<()>;

/// Every item of a tree; whether nothing of it is lost. What is, is an error, unless `lossy` tells what that means:
/// then it is passed over.
pub(crate) fn each_item(
    store: &NodeStore,
    root: &TreeRoot,
    lossy: Option<&str>,
    visit: Visit<'_>,
) -> btrfs_disk::Result<bool> {
    let (mut from, mut whole) = (Some(Key::MIN), true);
    while let Some(at) = from.take() {
        let Err((reached, error)) = items_from(store, root, at, visit) else { break };
        let Some(meaning) = lossy else { return Err(error) };
        tracing::warn!(%error, "{meaning}");
        whole = false;
        from = behind_lost(store, root, &reached)?.filter(|next| *next > reached);
    }
    Ok(whole)
}

/// Those from `at` on; an error with the key up to which they are.
fn items_from(
    store: &NodeStore,
    root: &TreeRoot,
    at: Key,
    visit: Visit<'_>,
) -> std::result::Result<(), (Key, btrfs_disk::Error)> {
    let mut cursor = Cursor::new(store, root);
    cursor.seek(&at).map_err(|error| (at, error))?;
    while let Some((key, data)) = cursor.item() {
        let reached = key.successor().unwrap_or(key);
        visit(key, data).map_err(|error| (reached, error))?;
        cursor.next().map_err(|error| (reached, error))?;
    }
    Ok(())
}
