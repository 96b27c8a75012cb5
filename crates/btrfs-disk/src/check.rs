//! The gate: every member of every node and item is judged here, once, on read and
//! before write. Behind it code asserts invariants and never disk contents.

use crate::checksum::CSUM_FIELD;
use crate::error::Corrupt;
use crate::le::FixedSize;
use crate::node::{HEADER_SIZE, Header, ITEM_SIZE, KEY_PTR_SIZE, MAX_LEVEL, Node};
use crate::{Generation, Geometry, Key, Logical, TreeId};

/// What the pointer to a node promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expect {
    pub logical: Logical,
    pub level: u8,
    /// `None` where no pointer says it (rescue walks).
    pub generation: Option<Generation>,
    /// The tree through which the node was reached; a shared node may carry another
    /// subvolume's id, never one of another kind.
    pub owner: Option<TreeId>,
    pub first_key: Option<Key>,
}

/// Verifies checksum, header, promises, layout and every item of `bytes`.
pub fn node(bytes: Box<[u8]>, geometry: &Geometry, expect: &Expect) -> Result<Node, Corrupt> {
    inspect(&bytes, geometry, expect).map_err(|c| c.at(expect.logical))?;
    Ok(Node::trusted(bytes))
}

fn inspect(bytes: &[u8], geometry: &Geometry, expect: &Expect) -> Result<(), Corrupt> {
    if bytes.len() != geometry.node_size as usize {
        return Err(Corrupt::new("node is cut short"));
    }
    let size = geometry.csum.size();
    if geometry.csum.digest(&bytes[CSUM_FIELD..])[..size] != bytes[..size] {
        return Err(Corrupt::new("node fails its checksum"));
    }
    let header = Header::read(bytes)?;
    promises(&header, geometry, expect)?;
    layout(bytes, &header)
}

fn promises(header: &Header, geometry: &Geometry, expect: &Expect) -> Result<(), Corrupt> {
    if header.bytenr != expect.logical {
        return Err(Corrupt::new(format!("node says that it belongs at {}", header.bytenr)));
    }
    if header.fsid != geometry.metadata_uuid {
        return Err(Corrupt::new("node belongs to another volume"));
    }
    if header.level >= MAX_LEVEL || header.level != expect.level {
        return Err(Corrupt::new(format!(
            "node of level {}, its pointer says {}",
            header.level, expect.level
        )));
    }
    match expect.generation {
        Some(generation) if header.generation != generation => Err(Corrupt::new(format!(
            "node of generation {}, its pointer says {generation}",
            header.generation
        ))),
        _ => Ok(()),
    }
}

fn layout(bytes: &[u8], header: &Header) -> Result<(), Corrupt> {
    let space = bytes.len() - HEADER_SIZE;
    let stride = if header.level == 0 { ITEM_SIZE } else { KEY_PTR_SIZE };
    let count = header.nritems as usize;
    if count > space / stride {
        return Err(Corrupt::new(format!("{count} entries do not fit a node")));
    }
    if header.level > 0 && count == 0 {
        return Err(Corrupt::new("interior node without children"));
    }
    let mut previous: Option<Key> = None;
    let mut end = space;
    for slot in 0..count {
        let at = HEADER_SIZE + slot * stride;
        let key = Key::read(bytes[at..at + 17].try_into().expect("sized"));
        if previous.is_some_and(|p| p >= key) {
            return Err(Corrupt::new(format!("slot {slot} is out of order")).key(key));
        }
        previous = Some(key);
        if header.level == 0 {
            let word =
                |o: usize| u32::from_le_bytes(bytes[at + o..at + o + 4].try_into().expect("4"));
            let (offset, size) = (word(17) as usize, word(21) as usize);
            if offset.checked_add(size) != Some(end) || offset < count * ITEM_SIZE {
                return Err(Corrupt::new(format!("slot {slot} lies outside its leaf")).key(key));
            }
            end = offset;
        }
    }
    Ok(())
}
