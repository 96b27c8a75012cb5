//! Items of one tree by their keys, for who looks at some of them after the walk.
//!
//! What cannot be read was reported by the walk, and is left out here.

use crate::refs::TreeStart;
use crate::source::Context;
use btrfs_disk::{Expect, Key};

type See<'v> = dyn FnMut(&Context<'_>, Key, &[u8]) + 'v;

/// Shows those from `first` to `last`, in order, and where the leaf has one, the item in front of
/// them; false if some could not be read.
pub(crate) fn items(
    cx: &mut Context<'_>,
    start: &TreeStart,
    (first, last): (Key, Key),
    see: &mut See<'_>,
) -> bool {
    below(cx, start, &start.expect(), (first, last), see)
}

fn below(
    cx: &mut Context<'_>,
    start: &TreeStart,
    expect: &Expect,
    (first, last): (Key, Key),
    see: &mut See<'_>,
) -> bool {
    let Some(node) = cx.read_node(start.id, expect, false) else { return false };
    let from = if node.is_leaf() {
        node.search(&first).unwrap_or_else(|slot| slot.saturating_sub(1))
    } else {
        node.child_slot(&first)
    };
    let mut complete = true;
    for slot in from..node.len() {
        if node.key(slot) > last {
            break;
        }
        if node.is_leaf() {
            see(cx, node.key(slot), node.data(slot));
        } else {
            let child = Expect::of_child(&node.child(slot), node.level() - 1, start.id);
            complete &= below(cx, start, &child, (first, last), see);
        }
    }
    complete
}
