//! Headers, promises, layout, child pointers; and random damage.

use super::*;
use crate::node::ChildPtr;

fn good_leaf() -> Node {
    leaf(SUBVOL, &[inode_row(257), inode_row(258), inode_row(300)])
}

fn good_interior() -> Node {
    let child = |i: u64| ChildPtr {
        key: key(i, kind::INODE_ITEM, 0),
        logical: Logical(i << 14),
        generation: Generation(i),
    };
    build::interior(&GEOMETRY, &identity(SUBVOL), 1, &[child(1), child(50), child(100)])
}

/// The node with some of its bytes replaced and a right checksum.
fn altered(node: &Node, at: usize, bytes: &[u8]) -> Node {
    let mut all = node.bytes().to_vec();
    all[at..at + bytes.len()].copy_from_slice(bytes);
    Node::trusted(all.into_boxed_slice())
}

fn judged(node: &Node, expect: &Expect) -> Result<(), Corrupt> {
    let bytes = build::seal(&GEOMETRY, node).into_boxed_slice();
    node_within(bytes, &GEOMETRY, expect, &limits()).map(drop)
}

fn says(verdict: Result<(), Corrupt>, reason: &str) {
    let corrupt = verdict.expect_err(reason);
    assert!(corrupt.to_string().contains(reason), "{corrupt} is not: {reason}");
    assert!(corrupt.logical.is_some(), "{corrupt} says where");
}

#[test]
fn good_nodes_pass() {
    for node in [good_leaf(), good_interior(), leaf(SUBVOL, &[]), leaf(TreeId::CSUM, &[])] {
        verdict(&node).expect("no false alarm");
    }
}

#[test]
fn broken_promises_are_refused() {
    let node = good_leaf();
    let good = expect(SUBVOL, 0);
    let first_key = |k| Expect { first_key: Some(k), ..good };
    let owner = |o| Expect { owner: Some(o), ..good };
    judged(&node, &first_key(node.key(0))).expect("the right first key");
    judged(&node, &owner(TreeId::FS)).expect("shared between subvolumes");
    judged(&node, &owner(TreeId(999))).expect("shared between subvolumes");
    judged(&node, &owner(TreeId::RELOC)).expect("under relocation");
    judged(&node, &Expect { owner: None, generation: None, ..good }).expect("nothing is said");
    says(judged(&node, &Expect { logical: Logical(4096), ..good }), "belongs at 1048576");
    says(judged(&node, &Expect { level: 1, ..good }), "level 0, its pointer says 1");
    says(judged(&node, &Expect { generation: Some(Generation(9)), ..good }), "its pointer says 9");
    says(judged(&node, &first_key(Key::MIN)), "node begins with");
    says(judged(&leaf(SUBVOL, &[]), &first_key(Key::MIN)), "empty node");
    for other in
        [TreeId::ROOT, TreeId::CSUM, TreeId::DATA_RELOC, TreeId::LOG, TreeId(258 | 1 << 48)]
    {
        says(judged(&node, &owner(other)), "reached through tree");
    }
    says(judged(&leaf(TreeId::CSUM, &[]), &owner(SUBVOL)), "node of tree 7");
    says(judged(&leaf(TreeId::DATA_RELOC, &[inode_row(256)]), &owner(SUBVOL)), "node of tree");
}

const FSID: usize = 32;
const BYTENR: usize = 48;
const FLAGS: usize = 56;
const GENERATION: usize = 80;
const NRITEMS: usize = 96;
const LEVEL: usize = 100;

#[test]
fn bad_headers_are_refused() {
    let node = good_leaf();
    says(verdict(&altered(&node, FSID, &[9])), "another volume");
    says(verdict(&altered(&node, FLAGS, &0u64.to_le_bytes())), "never written");
    let open = Expect { generation: None, ..expect(SUBVOL, 0) };
    let young = altered(&node, GENERATION, &101u64.to_le_bytes());
    says(judged(&young, &open), "node of generation 101, the volume is at 100");
    let deep = altered(&good_interior(), LEVEL, &[8]);
    says(judged(&deep, &expect(SUBVOL, 8)), "node of level 8");
    let odd = altered(&node, BYTENR, &4097u64.to_le_bytes());
    says(judged(&odd, &Expect { logical: Logical(4097), ..open }), "unaligned address");
    for owner in [TreeId(0), TreeId::ROOT, TreeId::EXTENT, TreeId::FS, TreeId::DATA_RELOC] {
        says(verdict(&leaf(owner, &[])), "is empty");
    }
    let reloc = altered(&leaf(TreeId::FS, &[]), FLAGS, &3u64.to_le_bytes());
    verdict(&reloc).expect("an empty relocation tree");
}

#[test]
fn bad_bytes_are_refused() {
    let node = good_leaf();
    let mut bytes = build::seal(&GEOMETRY, &node);
    bytes[5000] ^= 1;
    let flipped = super::super::node(bytes.clone().into(), &GEOMETRY, &expect(SUBVOL, 0));
    says(flipped.map(drop), "fails its checksum");
    bytes.truncate(8192);
    let short = super::super::node(bytes.into(), &GEOMETRY, &expect(SUBVOL, 0));
    says(short.map(drop), "cut short");
    let none = super::super::node(Box::new([]), &GEOMETRY, &expect(SUBVOL, 0));
    says(none.map(drop), "cut short");
    let tiny = Geometry { node_size: 100, ..GEOMETRY };
    let tiny = super::super::node(vec![0; 100].into(), &tiny, &expect(SUBVOL, 0));
    says(tiny.map(drop), "needs 101 bytes");
}

#[test]
fn bad_layouts_are_refused() {
    let node = good_leaf();
    let slot = |i: usize| HEADER_SIZE + i * ITEM_SIZE;
    let word = |value: u32| value.to_le_bytes();
    let (offset, size) = (17, 21);
    let bad = |at, bytes: &[u8], reason| says(verdict(&altered(&node, at, bytes)), reason);
    bad(NRITEMS, &word(u32::MAX), "entries do not fit");
    bad(NRITEMS, &word(652), "entries do not fit");
    bad(NRITEMS, &word(4), "slot 3 is out of order");
    bad(slot(1), &[1], "slot 1 is out of order");
    bad(slot(1), &300u64.to_le_bytes(), "slot 2 is out of order");
    bad(slot(0) + offset, &word(16000), "slot 0 lies outside");
    bad(slot(0) + size, &word(161), "slot 0 lies outside");
    bad(slot(1) + offset, &word(u32::MAX), "slot 1 lies outside");
    bad(slot(2) + size, &word(u32::MAX), "slot 2 lies outside");
    let head = altered(&node, slot(2) + offset, &word(60));
    let both = altered(&head, slot(2) + size, &word(15963 - 60));
    says(verdict(&both), "slot 2 lies outside");
    let interior = good_interior();
    says(verdict(&altered(&interior, NRITEMS, &word(0))), "without children");
    says(verdict(&altered(&interior, NRITEMS, &word(494))), "entries do not fit");
}

#[test]
fn bad_children_are_refused() {
    let node = good_interior();
    let at = |i: usize| HEADER_SIZE + i * KEY_PTR_SIZE;
    let bad =
        |at, value: u64, reason| says(verdict(&altered(&node, at, &value.to_le_bytes())), reason);
    bad(at(2) + 17, 0, "pointer to nowhere");
    bad(at(2) + 17, 16385, "unaligned address 16385");
    bad(at(1) + 17, AT.0, "its own node");
    bad(at(1) + 25, 101, "pointer to generation 101 in a node of 100");
    bad(at(1), 1, "slot 1 is out of order");
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 as usize % bound
    }
}

/// Touches everything that later code would.
fn use_up(node: &Node) -> usize {
    let mut sum = 0;
    if !node.is_leaf() {
        return node.children().count();
    }
    for (key, data) in node.items() {
        sum += data.len() + node.search(&key).expect("it is there");
    }
    sum + node.free_space()
}

/// Random damage under a right checksum: refused or harmless, and never a panic.
fn batter(node: &Node, seed: u64) {
    let mut random = Random(seed);
    let used = HEADER_SIZE + node.len() * ITEM_SIZE;
    let data = node.bytes().len() - 1200;
    let (mut passed, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = node.bytes().to_vec();
        for _ in 0..1 + random.below(3) {
            let at =
                if random.below(2) == 0 { random.below(used) } else { data + random.below(1200) };
            bytes[at] = match random.below(4) {
                0 => 0,
                1 => 0xff,
                2 => bytes[at] ^ 1 << random.below(8),
                _ => random.below(256) as u8,
            };
        }
        let header = Header::read(&bytes).expect("long enough");
        let promise = Expect { level: header.level, ..expect(header.owner, 0) };
        let sealed = build::seal(&GEOMETRY, &Node::trusted(bytes.into_boxed_slice()));
        match node_within(sealed.into_boxed_slice(), &GEOMETRY, &promise, &limits()) {
            Ok(node) => passed += usize::from(use_up(&node) > 0),
            Err(_) => refused += 1,
        }
    }
    assert!(passed > 500 && refused > 500, "{passed} passed, {refused} were refused");
}

#[test]
fn random_damage_never_panics() {
    let files = [
        inode_row(256),
        (key(256, kind::XATTR_ITEM, name_hash(b"user.x")), xattr(b"user.x", b"v").to_vec()),
        hashed(kind::DIR_ITEM, entry(b"name")),
        (key(256, kind::DIR_INDEX, 2), entry(b"name").to_vec()),
        inode_row(257),
        (key(257, kind::EXTENT_DATA, 0), regular().to_vec()),
        (key(257, kind::EXTENT_DATA, 65536), regular().to_vec()),
    ];
    batter(&leaf(SUBVOL, &files), 1);
    batter(&leaf(TreeId(0x1234), &files), 2);
    batter(&good_interior(), 3);
    let data = ExtentDataRef { root: TreeId::FS, objectid: 257, offset: 0, count: 1 };
    let extent = |inline| {
        let fields = ExtentItemFields { refs: 9, generation: 9, flags: 1 };
        ExtentItem { fields, block_info: None, inline }.to_vec()
    };
    let shared = InlineRef::SharedData { parent: 4096, count: 1 };
    let extents = [
        (key(4096, kind::EXTENT_ITEM, 4096), extent(vec![InlineRef::Data(data), shared])),
        (key(4096, kind::EXTENT_DATA_REF, 4096), data.to_vec()),
        (key(8192, kind::EXTENT_ITEM, 4096), extent(vec![InlineRef::Data(data)])),
    ];
    batter(&leaf(TreeId::EXTENT, &extents), 4);
}
