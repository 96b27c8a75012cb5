//! The kernel's search of trees (`BTRFS_IOC_TREE_SEARCH`) in what the last commit published.
//!
//! A search is of a range of whole keys: an item between the bounds has been found whatever its
//! type and offset are alone. It takes items of leaves that commits of a range wrote. It does not
//! know who may search, nor what has not been committed.

use super::wire::{number, put};
use crate::engine::Engine;
use crate::error::IntoFs;
use btrfs_disk::{Key, TreeId};
use btrfs_tree::Cursor;
use std::ops::RangeInclusive;
use vfs::{Errno, Result};

/// Bytes of the record before its items.
const HEAD: usize = 104;
/// Where the record counts items: how many at most, and how many there are.
const COUNT: usize = 64;
/// Bytes before each item's own.
const ITEM_HEAD: usize = 32;

/// What is looked for.
struct Wanted {
    tree: TreeId,
    first: Key,
    last: Key,
    commits: RangeInclusive<u64>,
    most: u32,
}

impl Wanted {
    /// `own`: the tree that 0 stands for.
    fn parse(record: &[u8], own: TreeId) -> Option<Wanted> {
        let field = |at: usize| number(record, at * 8);
        let kinds = field(7)?.to_le_bytes();
        let tree = match field(0)? {
            0 => own,
            id => TreeId(id),
        };
        Some(Wanted {
            tree,
            first: Key::new(field(1)?, kinds[0], field(3)?),
            last: Key::new(field(2)?, kinds[4], field(4)?),
            commits: field(5)?..=field(6)?,
            most: u32::from_le_bytes(record.get(COUNT..COUNT + 4)?.try_into().ok()?),
        })
    }
}

/// The record with what was found. ENOENT: there is no such tree.
pub(super) fn search(engine: &Engine, own: TreeId, record: &[u8]) -> Result<Vec<u8>> {
    let wanted = Wanted::parse(record, own).ok_or(Errno::EINVAL)?;
    let roots = engine.core.roots();
    let root = roots.get(wanted.tree).ok_or(Errno::ENOENT)?;
    let mut cursor = Cursor::new(&engine.core.store, &root.root);
    let mut answer = record[..HEAD].to_vec();
    let mut found = 0u32;
    cursor.seek(&wanted.first).fs()?;
    while let Some(item) = cursor.current().filter(|item| item.key() <= wanted.last) {
        let commit = item.node().generation().0;
        if wanted.commits.contains(&commit) {
            let fits = answer.len() + ITEM_HEAD + item.data().len() <= record.len();
            if found == wanted.most || !fits && found > 0 {
                break;
            }
            // Of an item that no answer has room for the caller hears that it is there.
            let data = if fits { item.data() } else { &[] };
            push(&mut answer, commit, &item.key(), data);
            found += 1;
        }
        cursor.next().fs()?;
    }
    answer[COUNT..COUNT + 4].copy_from_slice(&found.to_le_bytes());
    answer.resize(record.len(), 0);
    Ok(answer)
}

fn push(answer: &mut Vec<u8>, commit: u64, key: &Key, data: &[u8]) {
    put(answer, &[commit, key.objectid, key.offset]);
    let len = u32::try_from(data.len()).expect("an item fits its node");
    answer.extend_from_slice(&u32::from(key.kind).to_le_bytes());
    answer.extend_from_slice(&len.to_le_bytes());
    answer.extend_from_slice(data);
}
