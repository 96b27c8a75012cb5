//! The items of every tree of a fresh volume.
//!
//! The extent tree, the free-space tree and the block groups tell where all nodes lie,
//! their own included: the plan is repeated until the number of nodes stands still.

use super::error::{MkfsError, Result};
use super::ids::Identities;
use super::layout::{Layout, PlannedChunk};
use super::options::{Quotas, SECTOR, Settled};
use super::pack::{self, Items, Shape};
use btrfs_disk::checksum::name_hash;
use btrfs_disk::ids::{
    DEV_ITEMS_OBJECTID, FIRST_CHUNK_TREE_OBJECTID, FIRST_FREE_OBJECTID, STRIPE_LEN, block_group,
};
use btrfs_disk::items::mode::S_IFDIR;
use btrfs_disk::items::{
    BlockGroupItem, Chunk, ChunkFields, DevExtent, DevItem, DirItem, ExtentItem, ExtentItemFields,
    FreeSpaceInfo, InlineRef, InodeItem, InodeRef, QgroupInfo, QgroupLimit, QgroupStatus, RootItem,
    Stripe, dir_type, extent_flags, qgroup_status,
};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Generation, Geometry, Key, Logical, Node, TreeId};

/// Every node of a fresh volume is of this transaction.
pub(super) const GENERATION: Generation = Generation(1);
pub(super) const DEVID: u64 = 1;

/// A tree with the addresses of its nodes, leaves first.
pub(super) struct PlannedTree {
    pub id: TreeId,
    pub shape: Shape,
    pub places: Vec<u64>,
}

impl PlannedTree {
    pub(super) fn root(&self) -> Logical {
        Logical(*self.places.last().expect("a tree has a root"))
    }

    pub(super) fn level(&self) -> u8 {
        (self.shape.len() - 1) as u8
    }

    /// (address, level) of each node.
    fn nodes(&self) -> impl Iterator<Item = (u64, u8)> + '_ {
        let levels = self
            .shape
            .iter()
            .enumerate()
            .flat_map(|(level, n)| std::iter::repeat_n(level as u8, *n));
        self.places.iter().copied().zip(levels)
    }
}

pub(super) struct PlannedVolume {
    pub geometry: Geometry,
    pub trees: Vec<PlannedTree>,
    pub nodes: Vec<Node>,
}

impl PlannedVolume {
    pub(super) fn bytes_used(&self, node_size: u32) -> u64 {
        self.nodes.len() as u64 * u64::from(node_size)
    }

    pub(super) fn tree(&self, id: TreeId) -> Option<&PlannedTree> {
        self.trees.iter().find(|t| t.id == id)
    }
}

pub(super) fn plan(settled: &Settled, layout: &Layout, ids: &Identities) -> Result<PlannedVolume> {
    let geometry = Geometry {
        sector_size: SECTOR,
        node_size: settled.node_size,
        csum: settled.csum,
        metadata_uuid: ids.fsid,
        chunk_tree_uuid: ids.chunk_tree,
    };
    let mut shapes: Vec<(TreeId, Shape)> =
        tree_ids(settled).into_iter().map(|id| (id, vec![1])).collect();
    for _ in 0..16 {
        let trees = place(layout, u64::from(settled.node_size), &shapes);
        let view = View { settled, layout, ids, trees: &trees };
        let items: Vec<Items> = trees.iter().map(|tree| view.items(tree.id)).collect();
        let next: Vec<(TreeId, Shape)> = trees
            .iter()
            .zip(&items)
            .map(|(tree, items)| (tree.id, pack::shape(&geometry, items)))
            .collect();
        if next == shapes {
            let nodes = trees
                .iter()
                .zip(&items)
                .flat_map(|(t, items)| pack::nodes(&geometry, t.id, GENERATION, items, &t.places))
                .collect();
            return Ok(PlannedVolume { geometry, trees, nodes });
        }
        shapes = next;
    }
    Err(MkfsError::Invalid("the trees of this layout find no size".into()))
}

fn tree_ids(settled: &Settled) -> Vec<TreeId> {
    let mut ids = vec![
        TreeId::ROOT,
        TreeId::EXTENT,
        TreeId::CHUNK,
        TreeId::DEV,
        TreeId::FS,
        TreeId::CSUM,
        TreeId::UUID,
        TreeId::DATA_RELOC,
    ];
    if settled.features.free_space_tree {
        ids.push(TreeId::FREE_SPACE);
    }
    if settled.features.block_group_tree {
        ids.push(TreeId::BLOCK_GROUP);
    }
    if settled.quotas.is_some() {
        ids.push(TreeId::QUOTA);
    }
    ids
}

/// Gives every node an address.
fn place(layout: &Layout, node_size: u64, shapes: &[(TreeId, Shape)]) -> Vec<PlannedTree> {
    let mut system = layout.chunk_for(block_group::SYSTEM).places(node_size);
    let mut metadata = layout.chunk_for(block_group::METADATA).places(node_size);
    let trees = shapes.iter().map(|(id, shape)| {
        let places: &mut dyn Iterator<Item = u64> =
            if *id == TreeId::CHUNK { &mut system } else { &mut metadata };
        let count = shape.iter().sum();
        PlannedTree { id: *id, shape: shape.clone(), places: places.take(count).collect() }
    });
    trees.collect()
}

/// What the items of one round are made from.
struct View<'a> {
    settled: &'a Settled,
    layout: &'a Layout,
    ids: &'a Identities,
    trees: &'a [PlannedTree],
}

impl View<'_> {
    fn items(&self, id: TreeId) -> Items {
        let mut items = match id {
            TreeId::ROOT => self.root_tree(),
            TreeId::EXTENT => self.extent_tree(),
            TreeId::CHUNK => chunk_tree(self.settled, self.layout, self.ids),
            TreeId::DEV => self.dev_tree(),
            TreeId::FS | TreeId::DATA_RELOC => self.directory_tree(id),
            TreeId::UUID => self.uuid_tree(),
            TreeId::FREE_SPACE => self.free_space_tree(),
            TreeId::BLOCK_GROUP => self.block_groups(),
            TreeId::QUOTA => self.settled.quotas.map_or_else(Items::new, |q| self.quota_tree(q)),
            _ => Items::new(),
        };
        items.sort_by_key(|(key, _)| *key);
        items
    }

    fn root_tree(&self) -> Items {
        let mut items: Items = self
            .trees
            .iter()
            .filter(|t| t.id != TreeId::ROOT && t.id != TreeId::CHUNK)
            .map(|t| (Key::new(t.id.0, kind::ROOT_ITEM, 0), self.root_item(t).to_vec()))
            .collect();
        let dir = TreeId::ROOT_DIR.0;
        let name = b"default";
        let location = Key::new(TreeId::FS.0, kind::ROOT_ITEM, u64::MAX);
        let entry = DirItem { location, transid: 0, kind: dir_type::DIR, name, value: &[] };
        items.extend([
            (Key::new(TreeId::FS.0, kind::INODE_REF, dir), inode_ref(name)),
            (Key::new(dir, kind::INODE_ITEM, 0), self.directory().to_vec()),
            (Key::new(dir, kind::INODE_REF, dir), inode_ref(b"..")),
            (Key::new(dir, kind::DIR_ITEM, name_hash(name)), entry.to_vec()),
        ]);
        items
    }

    fn root_item(&self, tree: &PlannedTree) -> RootItem {
        let node_size = u64::from(self.settled.node_size);
        let mut item = RootItem {
            generation: GENERATION,
            generation_v2: GENERATION.0,
            bytenr: tree.root(),
            level: tree.level(),
            bytes_used: node_size * tree.places.len() as u64,
            refs: 1,
            ..RootItem::default()
        };
        item.inode.generation = 1;
        item.inode.size = 3;
        item.inode.nlink = 1;
        item.inode.nbytes = node_size;
        item.inode.mode = S_IFDIR | 0o755;
        if tree.id.holds_files() {
            item.root_dirid = FIRST_FREE_OBJECTID;
        }
        if tree.id == TreeId::FS {
            item.uuid = self.ids.top_level;
            item.ctime = self.settled.time;
            item.otime = self.settled.time;
        }
        item
    }

    /// The inode of a directory that nobody has used yet.
    fn directory(&self) -> InodeItem {
        let time = self.settled.time;
        InodeItem {
            generation: GENERATION.0,
            transid: GENERATION.0,
            nlink: 1,
            mode: S_IFDIR | 0o755,
            atime: time,
            ctime: time,
            mtime: time,
            otime: time,
            ..InodeItem::default()
        }
    }

    /// A tree with nothing but its top directory.
    fn directory_tree(&self, id: TreeId) -> Items {
        let mut inode = self.directory();
        if id == TreeId::FS {
            inode.mode = S_IFDIR | u32::from(self.settled.root_perm);
            inode.uid = self.settled.root_uid;
            inode.gid = self.settled.root_gid;
        }
        let ino = FIRST_FREE_OBJECTID;
        vec![
            (Key::new(ino, kind::INODE_ITEM, 0), inode.to_vec()),
            (Key::new(ino, kind::INODE_REF, ino), inode_ref(b"..")),
        ]
    }

    /// The group of the top-level subvolume counts its nodes, and nothing is wrong or unknown.
    fn quota_tree(&self, quotas: Quotas) -> Items {
        let top = self.trees.iter().find(|tree| tree.id == TreeId::FS);
        let nodes = top.map_or(0, |tree| tree.places.len() as u64);
        let counted = nodes * u64::from(self.settled.node_size);
        let simple = quotas == Quotas::Simple;
        let flags = qgroup_status::ON | if simple { qgroup_status::SIMPLE } else { 0 };
        let generation = GENERATION.0;
        let mut status = QgroupStatus { version: 1, generation, flags, rescan: 0 }.to_vec();
        if simple {
            // When they began: nothing is older.
            status.extend_from_slice(&generation.to_le_bytes());
        }
        let info = QgroupInfo {
            generation,
            referenced: counted,
            referenced_compressed: counted,
            exclusive: counted,
            exclusive_compressed: counted,
        };
        vec![
            (Key::new(0, kind::QGROUP_STATUS, 0), status),
            (Key::new(0, kind::QGROUP_INFO, TreeId::FS.0), info.to_vec()),
            (Key::new(0, kind::QGROUP_LIMIT, TreeId::FS.0), QgroupLimit::default().to_vec()),
        ]
    }

    fn uuid_tree(&self) -> Items {
        let key = Key::of_uuid(&self.ids.top_level, kind::UUID_KEY_SUBVOL);
        vec![(key, TreeId::FS.0.to_le_bytes().to_vec())]
    }

    fn extent_tree(&self) -> Items {
        let mut items = Items::new();
        for tree in self.trees {
            for (at, level) in tree.nodes() {
                let item = ExtentItem {
                    fields: ExtentItemFields {
                        refs: 1,
                        generation: GENERATION.0,
                        flags: extent_flags::TREE_BLOCK,
                    },
                    block_info: None,
                    inline: vec![InlineRef::TreeBlock { root: tree.id }],
                };
                let key = Key::new(at, kind::METADATA_ITEM, u64::from(level));
                items.push((key, item.to_vec()));
            }
        }
        if !self.settled.features.block_group_tree {
            items.extend(self.block_groups());
        }
        items
    }

    fn block_groups(&self) -> Items {
        let item = |chunk: &PlannedChunk| {
            let item = BlockGroupItem {
                used: self.used_in(chunk).len() as u64 * u64::from(self.settled.node_size),
                chunk_objectid: FIRST_CHUNK_TREE_OBJECTID,
                flags: chunk.flags,
            };
            (Key::new(chunk.logical, kind::BLOCK_GROUP_ITEM, chunk.len), item.to_vec())
        };
        self.layout.chunks.iter().map(item).collect()
    }

    /// Addresses of the nodes in a chunk, ascending.
    fn used_in(&self, chunk: &PlannedChunk) -> Vec<u64> {
        let range = chunk.logical..chunk.logical + chunk.len;
        let all = self.trees.iter().flat_map(|t| t.places.iter().copied());
        let mut used: Vec<u64> = all.filter(|at| range.contains(at)).collect();
        used.sort_unstable();
        used
    }

    /// As the kernel and `mkfs.btrfs` do, ranges under superblock copies count as free
    /// here: who loads the tree leaves them out.
    fn free_space_tree(&self) -> Items {
        let mut items = Items::new();
        for chunk in &self.layout.chunks {
            let mut count = 0;
            let mut free = |from: u64, to: u64| {
                if to > from {
                    items.push((Key::new(from, kind::FREE_SPACE_EXTENT, to - from), Vec::new()));
                    count += 1;
                }
            };
            let mut at = chunk.logical;
            for used in self.used_in(chunk) {
                free(at, used);
                at = used + u64::from(self.settled.node_size);
            }
            free(at, chunk.logical + chunk.len);
            let info = FreeSpaceInfo { extent_count: count, flags: 0 };
            items.push((Key::new(chunk.logical, kind::FREE_SPACE_INFO, chunk.len), info.to_vec()));
        }
        items
    }

    fn dev_tree(&self) -> Items {
        let mut items = Items::new();
        for chunk in &self.layout.chunks {
            for start in &chunk.stripes {
                let extent = DevExtent {
                    chunk_tree: TreeId::CHUNK.0,
                    chunk_objectid: FIRST_CHUNK_TREE_OBJECTID,
                    chunk_offset: chunk.logical,
                    length: chunk.len,
                    chunk_tree_uuid: self.ids.chunk_tree,
                };
                items.push((Key::new(DEVID, kind::DEV_EXTENT, *start), extent.to_vec()));
            }
        }
        items
    }
}

fn inode_ref(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    InodeRef { index: 0, name }.append_to(&mut out);
    out
}

fn chunk_tree(settled: &Settled, layout: &Layout, ids: &Identities) -> Items {
    let device = dev_item(settled, layout, ids);
    let mut items = vec![(Key::new(DEV_ITEMS_OBJECTID, kind::DEV_ITEM, DEVID), device.to_vec())];
    items.extend(layout.chunks.iter().map(|chunk| chunk_item(chunk, ids)));
    items
}

pub(super) fn dev_item(_settled: &Settled, layout: &Layout, ids: &Identities) -> DevItem {
    DevItem {
        devid: DEVID,
        total_bytes: layout.total_bytes,
        bytes_used: layout.allocated(),
        io_align: SECTOR,
        io_width: SECTOR,
        sector_size: SECTOR,
        uuid: ids.device,
        fsid: ids.fsid,
        ..DevItem::default()
    }
}

pub(super) fn chunk_item(chunk: &PlannedChunk, ids: &Identities) -> (Key, Vec<u8>) {
    let item = Chunk {
        fields: ChunkFields {
            length: chunk.len,
            owner: TreeId::EXTENT.0,
            stripe_len: STRIPE_LEN,
            kind: chunk.flags,
            io_align: STRIPE_LEN as u32,
            io_width: STRIPE_LEN as u32,
            sector_size: SECTOR,
            num_stripes: chunk.stripes.len() as u16,
            sub_stripes: 1,
        },
        stripes: chunk
            .stripes
            .iter()
            .map(|offset| Stripe { devid: DEVID, offset: *offset, dev_uuid: ids.device })
            .collect(),
    };
    (Key::new(FIRST_CHUNK_TREE_OBJECTID, kind::CHUNK_ITEM, chunk.logical), item.to_vec())
}
