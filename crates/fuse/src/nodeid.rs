//! Kernel node ids and engine inode numbers.
//!
//! The kernel calls the root 1 and everything else as it was told. The engine's root
//! has a number of its own, so the two swap: 1 <-> root. The map is its own inverse,
//! and an engine inode that happens to be number 1 becomes the root's number.

use crate::abi::ROOT_ID;
use vfs::Ino;

#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeIds {
    root: u64,
}

impl NodeIds {
    pub(crate) fn new(root: Ino) -> NodeIds {
        NodeIds { root: root.0 }
    }

    pub(crate) fn to_node(self, ino: Ino) -> u64 {
        self.swap(ino.0)
    }

    pub(crate) fn to_ino(self, nodeid: u64) -> Ino {
        Ino(self.swap(nodeid))
    }

    fn swap(self, number: u64) -> u64 {
        match number {
            ROOT_ID => self.root,
            n if n == self.root => ROOT_ID,
            n => n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_one_and_nothing_collides() {
        for root in [1u64, 2, 5, 256] {
            let nodes = NodeIds::new(Ino(root));
            assert_eq!(nodes.to_node(Ino(root)), ROOT_ID);
            let all: std::collections::BTreeSet<u64> =
                (1..300).map(|ino| nodes.to_node(Ino(ino))).collect();
            assert_eq!(all.len(), 299);
            for ino in 1..300 {
                assert_eq!(nodes.to_ino(nodes.to_node(Ino(ino))), Ino(ino));
            }
        }
    }
}
