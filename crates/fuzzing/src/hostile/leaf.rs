//! A leaf taken apart and put together again without any of the builder's rules.

use btrfs_disk::node::{HEADER_SIZE, ITEM_SIZE};
use btrfs_disk::{FixedSize, Header, Key};

#[derive(Clone)]
pub struct Leaf {
    pub header: Header,
    pub items: Vec<(Key, Vec<u8>)>,
    size: usize,
}

impl Leaf {
    /// Of a node that passed the gate.
    pub fn of(bytes: &[u8]) -> Leaf {
        let header = Header::read(bytes).expect("a node");
        let word =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4")) as usize;
        let item = |slot: usize| {
            let at = HEADER_SIZE + slot * ITEM_SIZE;
            let key = Key::read(bytes[at..at + 17].try_into().expect("17"));
            let start = HEADER_SIZE + word(at + 17);
            (key, bytes[start..start + word(at + 21)].to_vec())
        };
        let items = (0..header.nritems as usize).map(item).collect();
        Leaf { header, items, size: bytes.len() }
    }

    /// What does not fit is left out from the end; keys stay in the order they are in.
    pub fn bytes(mut self) -> Vec<u8> {
        let mut bytes = vec![0; self.size];
        let cost = |items: &[(Key, Vec<u8>)]| -> usize {
            items.iter().map(|(_, data)| ITEM_SIZE + data.len()).sum()
        };
        while cost(&self.items) > self.size - HEADER_SIZE {
            self.items.pop();
        }
        self.header.nritems = self.items.len() as u32;
        self.header.write(&mut bytes);
        let mut end = self.size - HEADER_SIZE;
        for (slot, (key, data)) in self.items.iter().enumerate() {
            end -= data.len();
            let at = HEADER_SIZE + slot * ITEM_SIZE;
            bytes[at..at + 17].copy_from_slice(&key.to_bytes());
            bytes[at + 17..at + 21].copy_from_slice(&(end as u32).to_le_bytes());
            bytes[at + 21..at + 25].copy_from_slice(&(data.len() as u32).to_le_bytes());
            bytes[HEADER_SIZE + end..][..data.len()].copy_from_slice(data);
        }
        bytes
    }

    pub fn sort(&mut self) {
        self.items.sort_by_key(|(key, _)| *key);
        self.items.dedup_by_key(|(key, _)| *key);
    }
}

pub fn is_leaf(bytes: &[u8]) -> bool {
    Header::read(bytes).expect("a node").level == 0
}

/// True where every item lies inside the leaf.
pub fn is_whole(bytes: &[u8]) -> bool {
    let count = Header::read(bytes).expect("a node").nritems as usize;
    if count > (bytes.len() - HEADER_SIZE) / ITEM_SIZE {
        return false;
    }
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4")) as usize;
    (0..count).all(|slot| {
        let at = HEADER_SIZE + slot * ITEM_SIZE;
        HEADER_SIZE.saturating_add(word(at + 17)).saturating_add(word(at + 21)) <= bytes.len()
    })
}
