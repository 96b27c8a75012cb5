//! Trees whose pointers lie: typed errors from every way of reading and from editing.

use crate::common;
use btrfs_disk::{
    ChildPtr, Error, Generation, Key, LeafItem, Logical, Node, NodeIdentity, TreeId, build,
};
use btrfs_tree::{
    Cursor, DirtyNodes, Edit, NodePosition, NodeSink, Step, TreeRoot, Visitor, apply, get, scan,
    verify, walk,
};
use common::{Memory, Rng, World};
use std::sync::Arc;

/// Gives out addresses and forgets.
struct Loose(u64);

impl NodeSink for Loose {
    fn detach(&mut self, _: TreeId, _: &Arc<Node>) -> btrfs_disk::Result<()> {
        Ok(())
    }
    fn alloc(&mut self, _: TreeId, _: u8, _: Key) -> btrfs_disk::Result<Logical> {
        self.0 += 4096;
        Ok(Logical(self.0))
    }
    fn free_dirty(&mut self, _: TreeId, _: Logical, _: u8) -> btrfs_disk::Result<()> {
        Ok(())
    }
}

const ITEMS: u64 = 3000;

fn key(n: u64) -> Key {
    Key::new(n, 3, 0)
}

/// A committed tree of four levels.
fn tree() -> World {
    let (mut world, mut rng) = (World::new(512), Rng(1));
    world.apply((0..ITEMS).map(|n| (key(n), Edit::Put(rng.bytes(20)))).collect());
    world.commit();
    assert_eq!(world.root.level, 3);
    world
}

fn interior(memory: &Memory, rng: &mut Rng) -> Arc<Node> {
    let mut all: Vec<_> = memory.nodes.values().filter(|n| !n.is_leaf()).collect();
    all.sort_by_key(|n| n.logical());
    Arc::clone(all[rng.below(all.len() as u64) as usize])
}

fn any(memory: &Memory, rng: &mut Rng) -> Logical {
    let mut all: Vec<Logical> = memory.nodes.keys().copied().collect();
    all.sort();
    all[rng.below(all.len() as u64) as usize]
}

fn with_children(memory: &mut Memory, node: &Node, children: &[ChildPtr]) {
    let id = NodeIdentity {
        logical: node.logical(),
        generation: node.generation(),
        owner: node.owner(),
    };
    let node = build::interior(&memory.geometry, &id, node.level(), children);
    memory.nodes.insert(node.logical(), Arc::new(node));
}

/// Changes something that a pointer says.
fn lie(memory: &mut Memory, rng: &mut Rng) {
    let node = interior(memory, rng);
    let mut children: Vec<ChildPtr> = node.children().collect();
    let slot = rng.below(children.len() as u64) as usize;
    match rng.below(5) {
        0 => children[slot].logical = any(memory, rng),
        1 => children[slot].generation.0 += rng.below(3),
        2 => {
            let other = rng.below(children.len() as u64) as usize;
            let (a, b) = (children[slot].logical, children[other].logical);
            (children[slot].logical, children[other].logical) = (b, a);
        }
        3 => drop(children.remove(slot)),
        _ => children[slot].key.offset = 1,
    }
    if !children.is_empty() {
        with_children(memory, &node, &children);
    }
}

struct Tolerant {
    nodes: u64,
    broken: u64,
}

impl Visitor for Tolerant {
    fn node(&mut self, _: &NodePosition<'_>, _: &Arc<Node>) -> Step {
        self.nodes += 1;
        Step::Into
    }
    fn broken(&mut self, _: &NodePosition<'_>, error: Error) -> Step {
        assert!(matches!(error, Error::Corrupt(_)));
        self.broken += 1;
        Step::Over
    }
}

fn use_it(world: &World, rng: &mut Rng) {
    let (memory, root) = (&world.memory, &world.root);
    for _ in 0..20 {
        let wanted = key(rng.below(ITEMS));
        if let Ok(Some(item)) = get(memory, root, &wanted) {
            assert_eq!(item.data(), &world.model[&wanted][..]);
        }
        let mut cursor = Cursor::new(memory, root);
        let _ = cursor.seek(&wanted);
        for _ in 0..40 {
            let _ = if rng.below(2) == 0 { cursor.next() } else { cursor.prev() };
            let _ = cursor.item();
        }
    }
    let keys: Vec<Key> = scan(memory, root, Key::MIN..=Key::MAX)
        .map_while(|item| item.ok().map(|item| item.key()))
        .collect();
    assert!(keys.windows(2).all(|w| w[0] < w[1]));
    let mut seen = Tolerant { nodes: 0, broken: 0 };
    assert!(walk(memory, root, &mut seen));
    assert!(seen.nodes <= memory.nodes.len() as u64);
    assert_eq!(verify(memory, root).is_ok(), seen.broken == 0);
}

fn edit_it(world: &World, rng: &mut Rng) {
    let mut edits: Vec<u64> = (0..rng.below(300)).map(|_| rng.below(ITEMS)).collect();
    edits.sort();
    edits.dedup();
    let edits = edits.into_iter().map(|n| match n % 3 {
        0 => (key(n), Edit::Delete),
        _ => (Key::new(n, 3, n % 2), Edit::Put(vec![1; n as usize % 50].into())),
    });
    let edits: Vec<_> = edits.collect();
    let mut dirty = DirtyNodes::new();
    let mut sink = Loose(1 << 40);
    let generation = world.generation;
    let result =
        apply(&world.memory, &mut dirty, &mut sink, generation, &world.root, edits.clone());
    if let Ok(root) = result {
        let reader = dirty.over(&world.memory);
        for (key, edit) in edits {
            if let Ok(found) = get(&reader, &root, &key) {
                let data = found.as_ref().map(|item| item.data());
                assert_eq!(
                    data,
                    match &edit {
                        Edit::Put(data) => Some(&data[..]),
                        Edit::Delete => None,
                    }
                );
            }
        }
    }
}

#[test]
fn lying_pointers_never_panic_loop_or_lead_astray() {
    let mut broken = 0;
    for seed in 0..400 {
        let mut rng = Rng(seed);
        let mut world = tree();
        for _ in 0..1 + rng.below(6) {
            lie(&mut world.memory, &mut rng);
        }
        broken += u64::from(verify(&world.memory, &world.root).is_err());
        use_it(&world, &mut rng);
        edit_it(&world, &mut rng);
    }
    assert!(broken > 300, "only {broken} of the trees were broken at all");
}

fn complaint(world: &World, n: u64) -> String {
    match get(&world.memory, &world.root, &key(n)) {
        Err(Error::Corrupt(corrupt)) => {
            assert!(corrupt.logical.is_some(), "no address: {corrupt}");
            corrupt.to_string()
        }
        other => panic!("{other:?}"),
    }
}

/// Lets the first pointer of the root lie.
fn first_child(change: impl Fn(&mut ChildPtr, &World)) -> World {
    let mut world = tree();
    let root = Arc::clone(&world.memory.nodes[&world.root.logical]);
    let mut children: Vec<ChildPtr> = root.children().collect();
    change(&mut children[0], &world);
    with_children(&mut world.memory, &root, &children);
    world
}

#[test]
fn each_broken_promise_is_named() {
    let own = first_child(|child, world| child.logical = world.root.logical);
    assert!(complaint(&own, 0).contains("of level 3, its pointer says level 2"));
    let old = first_child(|child, _| child.generation = Generation(0));
    assert!(complaint(&old, 0).contains("its pointer says 0"));
    let early = first_child(|child, _| child.key = Key::MIN);
    assert!(complaint(&early, 0).contains("begin with its pointer's key"));
}

#[test]
fn a_child_may_not_reach_into_the_next_ones_range() {
    let mut world = tree();
    let root = Arc::clone(&world.memory.nodes[&world.root.logical]);
    let mut children: Vec<ChildPtr> = root.children().collect();
    // The second child begins earlier than the first one ends.
    children[1].key = Key { objectid: children[0].key.objectid, kind: 3, offset: 1 };
    with_children(&mut world.memory, &root, &children);
    assert!(complaint(&world, 0).contains("lies in the next node's range"));
}

/// How many nodes a walk finds whole, how many broken.
fn walked(world: &World) -> (u64, u64) {
    let mut seen = Tolerant { nodes: 0, broken: 0 };
    assert!(walk(&world.memory, &world.root, &mut seen));
    (seen.nodes, seen.broken)
}

/// Nodes of the subtree that the root's pointer number `slot` leads to.
fn below(world: &World, slot: usize) -> u64 {
    let root = &world.memory.nodes[&world.root.logical];
    let child = root.child(slot);
    let (logical, generation) = (child.logical, child.generation);
    let level = root.level() - 1;
    let sub = World { root: TreeRoot { id: world.root.id, logical, generation, level }, ..tree() };
    walked(&sub).0
}

#[test]
fn a_walk_goes_into_no_node_that_breaks_a_promise() {
    let all = walked(&tree());
    assert_eq!(all.1, 0);
    let lies: [fn(&mut ChildPtr, &World); 4] = [
        |child, world| child.logical = world.root.logical,
        |child, _| child.generation = Generation(0),
        |child, _| child.key = Key::MIN,
        |child, world| child.logical = world.memory.nodes[&world.root.logical].child(1).logical,
    ];
    for lie in lies {
        assert_eq!(walked(&first_child(lie)), (all.0 - below(&tree(), 0), 1));
    }
}

/// It begins where its pointer says, and would be met again behind its end.
#[test]
fn a_walk_goes_into_no_node_that_reaches_into_the_next_ones_range() {
    let mut world = tree();
    let all = walked(&world).0;
    let mut at = Arc::clone(&world.memory.nodes[&world.root.logical]);
    while at.level() > 1 {
        at = Arc::clone(&world.memory.nodes[&at.child(0).logical]);
    }
    let leaf = Arc::clone(&world.memory.nodes[&at.child(0).logical]);
    let behind = Key { offset: 1, ..at.key(1) };
    let mut items: Vec<_> = leaf.items().map(|(key, data)| LeafItem { key, data }).collect();
    items.last_mut().expect("an item").key = behind;
    let (logical, generation, owner) = (leaf.logical(), leaf.generation(), leaf.owner());
    let id = NodeIdentity { logical, generation, owner };
    let longer = build::leaf(&world.memory.geometry, &id, &items);
    world.memory.nodes.insert(logical, Arc::new(longer));
    assert_eq!(walked(&world), (all - 1, 1));
    // The same of a node above leaves.
    let mut world = tree();
    let mut children: Vec<ChildPtr> = at.children().collect();
    children.last_mut().expect("a child").key = Key::MAX;
    with_children(&mut world.memory, &at, &children);
    assert_eq!(walked(&world), (all - 1 - at.len() as u64, 1));
}

#[test]
fn a_node_of_another_tree_is_refused() {
    let world = tree();
    let foreign = TreeRoot { id: TreeId::EXTENT, ..world.root };
    let error = get(&world.memory, &foreign, &key(0)).unwrap_err();
    assert!(error.to_string().contains("node of tree 300 in tree 2"), "{error}");
    let snapshot = TreeRoot { id: TreeId(301), ..world.root };
    assert!(get(&world.memory, &snapshot, &key(0)).unwrap().is_some());
}

#[test]
fn a_root_from_the_future_is_refused() {
    let world = tree();
    let root = TreeRoot { generation: Generation(99), ..world.root };
    let mut dirty = DirtyNodes::new();
    let edits = vec![(key(0), Edit::Delete)];
    let result = apply(&world.memory, &mut dirty, &mut Loose(0), Generation(5), &root, edits);
    assert!(matches!(result, Err(Error::Corrupt(_))), "{result:?}");
}
