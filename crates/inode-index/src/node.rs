//! The radix tree below the slots: nodes that come with the first number under them and go with
//! the last.
//!
//! Numbers of as many digits (of [`BITS`] bits) are under one root, so the tree does not grow
//! upwards, and a number takes as many loads as it has digits.
//!
//! Invariants:
//! * a node counts its slots that are in use, and who is about to use one. Who takes the last
//!   off marks it dead, if nobody counted himself again; nobody counts himself in a dead node;
//! * a dead node is unlinked by the first who meets it, and given up by who marked it, behind
//!   that. The roots never die;
//! * as long as a slot in a leaf is counted, all nodes above it live.
//!
//! [unsafe] Nodes are reached by addresses that a pin keeps valid.
//!
//! What it does not know: what stands in the slots of leaves.

use super::epochs::Pin;
use super::memory;
use super::sync::{AtomicPtr, AtomicU32, BITS, Ordering};
use std::ops::ControlFlow;
use std::ptr::null_mut;

/// The allocator refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMemory;

const WAYS: usize = 1 << BITS;
const LEVELS: usize = u64::BITS.div_ceil(BITS) as usize;
const DEAD: u32 = 1 << 31;

pub(crate) type Slot = AtomicPtr<()>;

pub(crate) struct Node {
    slots: [Slot; WAYS],
    used: AtomicU32,
}

impl Node {
    fn try_new() -> Option<Box<Node>> {
        let slots = std::array::from_fn(|_| AtomicPtr::new(null_mut()));
        memory::try_box(Node { slots, used: AtomicU32::new(0) })
    }

    pub(crate) fn slot(&self, number: u64) -> &Slot {
        self.slot_at(number, 0)
    }

    fn slot_at(&self, number: u64, level: usize) -> &Slot {
        &self.slots[(number >> (level as u32 * BITS)) as usize & (WAYS - 1)]
    }

    /// Counts the caller; false if it is dead.
    fn enter(&self) -> bool {
        let one_more = |used: u32| (used != DEAD).then_some(used + 1);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok()
    }

    /// Takes the caller off; true if that has killed it.
    fn leave(&self, may_die: bool) -> bool {
        let before = self.used.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before != 0 && before != DEAD, "what is taken off was counted");
        let die = || self.used.compare_exchange(0, DEAD, Ordering::AcqRel, Ordering::Relaxed);
        before == 1 && may_die && die().is_ok()
    }
}

/// Nodes on the way to a number, by level; the leaf's is 0.
struct Way<'p> {
    nodes: [Option<&'p Node>; LEVELS],
    top: usize,
}

impl<'p> Way<'p> {
    fn node(&self, level: usize) -> &'p Node {
        self.nodes[level].expect("the way was gone down to here")
    }
}

fn top_of(number: u64) -> usize {
    ((u64::BITS - (number | 1).leading_zeros()).div_ceil(BITS) - 1) as usize
}

pub(crate) struct Tree {
    /// By the level of what stands there.
    roots: [AtomicPtr<()>; LEVELS],
}

/// # Safety
/// `at` is null, or a node that is not freed in `'p`.
unsafe fn node_at<'p>(_: &'p Pin<'_>, at: *mut ()) -> Option<&'p Node> {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<Node>().as_ref() }
}

/// # Safety
/// A node that nobody looks at any more.
unsafe fn free_node(node: *mut ()) {
    // SAFETY: made by `Box::into_raw` in `find_or_make`; the caller's promise.
    drop(unsafe { Box::from_raw(node.cast::<Node>()) });
}

impl Tree {
    pub(crate) fn new() -> Tree {
        Tree { roots: std::array::from_fn(|_| AtomicPtr::new(null_mut())) }
    }

    /// The leaf in which `number` has its slot.
    pub(crate) fn leaf<'p>(&self, pin: &'p Pin<'_>, number: u64) -> Option<&'p Node> {
        let mut level = top_of(number);
        let mut at = self.roots[level].load(Ordering::SeqCst);
        loop {
            // SAFETY: a root lives as long as the tree, another node is given up behind its
            // unlinking, and the caller was pinned before it was loaded.
            let node = unsafe { node_at(pin, at) }?;
            if level == 0 {
                return Some(node);
            }
            at = node.slot_at(number, level).load(Ordering::SeqCst);
            level -= 1;
        }
    }

    /// The leaf, made if it is missing, in which the caller is counted from now on.
    pub(crate) fn enter<'p>(&self, pin: &'p Pin<'_>, number: u64) -> Result<&'p Node, NoMemory> {
        loop {
            let mut way = Way { nodes: [None; LEVELS], top: top_of(number) };
            if !self.go_down(pin, &mut way, number)? {
                continue;
            }
            let leaf = way.node(0);
            if leaf.enter() {
                return Ok(leaf);
            }
            self.unlink(pin, &way, number, 0);
        }
    }

    /// Finds or makes all nodes of `way`; false: one was dead, begin again.
    fn go_down<'p>(
        &self,
        pin: &'p Pin<'_>,
        way: &mut Way<'p>,
        number: u64,
    ) -> Result<bool, NoMemory> {
        way.nodes[way.top] = Some(find_or_make(pin, &self.roots[way.top])?.0);
        for level in (1..=way.top).rev() {
            let node = way.node(level);
            let slot = node.slot_at(number, level);
            // SAFETY: as in `leaf`.
            if let Some(child) = unsafe { node_at(pin, slot.load(Ordering::SeqCst)) } {
                way.nodes[level - 1] = Some(child);
                continue;
            }
            if !node.enter() {
                self.unlink(pin, way, number, level);
                return Ok(false);
            }
            let child = find_or_make(pin, slot);
            // A new one is what the node was entered for.
            if !matches!(child, Ok((_, true))) {
                self.leave_from(pin, way, number, level);
            }
            way.nodes[level - 1] = Some(child?.0);
        }
        Ok(true)
    }

    /// Takes off who is counted in the leaf of `number`.
    pub(crate) fn leave(&self, pin: &Pin<'_>, number: u64) {
        let mut way = Way { nodes: [None; LEVELS], top: top_of(number) };
        let mut at = self.roots[way.top].load(Ordering::SeqCst);
        for level in (0..=way.top).rev() {
            // SAFETY: as in `leaf`.
            let node = unsafe { node_at(pin, at) }.expect("what is counted below keeps it");
            way.nodes[level] = Some(node);
            at = node.slot_at(number, level).load(Ordering::SeqCst);
        }
        self.leave_from(pin, &way, number, 0);
    }

    /// Takes the caller off the node at `level`, and what that kills off the one above.
    fn leave_from(&self, pin: &Pin<'_>, way: &Way<'_>, number: u64, mut level: usize) {
        while way.node(level).leave(level != way.top) {
            let dead = way.node(level);
            let unlinked = unlink_here(way, number, level);
            // SAFETY: unlinked by this thread or by who met it dead; only who marked it comes here.
            unsafe { pin.epochs().give_up(address(dead), free_node) };
            if !unlinked {
                return;
            }
            level += 1;
        }
    }

    /// Unlinks the dead node at `level`.
    fn unlink(&self, pin: &Pin<'_>, way: &Way<'_>, number: u64, level: usize) {
        if unlink_here(way, number, level) {
            self.leave_from(pin, way, number, level + 1);
        }
    }

    /// Every slot of a number from `from` on, in ascending order.
    pub(crate) fn walk<'p>(
        &self,
        pin: &'p Pin<'_>,
        from: u64,
        visit: &mut dyn FnMut(u64, &'p Slot) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for level in top_of(from)..LEVELS {
            let root = self.roots[level].load(Ordering::SeqCst);
            // SAFETY: as in `leaf`.
            if let Some(root) = unsafe { node_at(pin, root) } {
                walk_node(pin, root, level, 0, from, visit)?;
            }
        }
        ControlFlow::Continue(())
    }
}

fn walk_node<'p>(
    pin: &'p Pin<'_>,
    node: &'p Node,
    level: usize,
    base: u64,
    from: u64,
    visit: &mut dyn FnMut(u64, &'p Slot) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let shift = level as u32 * BITS;
    for (way, slot) in node.slots.iter().enumerate() {
        // The root of the longest numbers has ways that no number has.
        let Some(first) = (way as u64).checked_mul(1 << shift).map(|part| base | part) else {
            break;
        };
        if first | ((1 << shift) - 1) < from {
            continue;
        }
        if level == 0 {
            visit(first, slot)?;
            continue;
        }
        // SAFETY: as in `leaf`.
        if let Some(child) = unsafe { node_at(pin, slot.load(Ordering::SeqCst)) } {
            walk_node(pin, child, level - 1, first, from, visit)?;
        }
    }
    ControlFlow::Continue(())
}

/// What `slot` leads to, and whether that is new.
fn find_or_make<'p>(pin: &'p Pin<'_>, slot: &Slot) -> Result<(&'p Node, bool), NoMemory> {
    let found = slot.load(Ordering::SeqCst);
    // SAFETY: as in `leaf`.
    if let Some(node) = unsafe { node_at(pin, found) } {
        return Ok((node, false));
    }
    let new = Box::into_raw(Node::try_new().ok_or(NoMemory)?);
    match slot.compare_exchange(null_mut(), new.cast(), Ordering::SeqCst, Ordering::SeqCst) {
        // SAFETY: reachable from now on, so as in `leaf`.
        Ok(_) => Ok((unsafe { &*new }, true)),
        Err(found) => {
            // SAFETY: made above, and nobody has seen it.
            drop(unsafe { Box::from_raw(new) });
            // SAFETY: as in `leaf`; it is not null, or the exchange had not failed.
            Ok((unsafe { &*found.cast() }, false))
        }
    }
}

fn address(node: &Node) -> *mut () {
    std::ptr::from_ref(node).cast_mut().cast()
}

/// Takes the dead node at `level` out of the one above it; false if somebody has.
fn unlink_here(way: &Way<'_>, number: u64, level: usize) -> bool {
    let slot = way.node(level + 1).slot_at(number, level + 1);
    let dead = address(way.node(level));
    slot.compare_exchange(dead, null_mut(), Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

/// Frees a tree of nodes, and gives every slot of a leaf to `visit`.
fn free_tree(at: *mut (), level: usize, visit: &mut dyn FnMut(*mut ())) {
    if at.is_null() {
        return;
    }
    // SAFETY: whoever drops the tree has it for himself; each node has one place in it.
    let node = unsafe { Box::from_raw(at.cast::<Node>()) };
    for slot in &node.slots {
        let at = slot.load(Ordering::Relaxed);
        if level == 0 { visit(at) } else { free_tree(at, level - 1, visit) }
    }
}

impl Tree {
    /// Frees all nodes; `visit` is given what stands in the slots of leaves.
    pub(crate) fn clear(&mut self, visit: &mut dyn FnMut(*mut ())) {
        for (level, root) in self.roots.iter().enumerate() {
            free_tree(root.swap(null_mut(), Ordering::Relaxed), level, visit);
        }
    }
}
