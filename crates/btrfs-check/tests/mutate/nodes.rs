//! The nodes of an image as raw bytes, all fields in them, and writing them back damaged.

use super::fields::{self, Field};
use crate::common;
use blockdev::{BlockDevice, FileDevice};
use btrfs_disk::key::{KEY_SIZE, kind, kind_name};
use btrfs_disk::node::{HEADER_SIZE, Header, ITEM_SIZE, KEY_PTR_SIZE};
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use btrfs_disk::{ChecksumType, FixedSize, Key, Logical, TreeId};
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

/// One place that can be changed.
#[derive(Clone)]
pub struct FieldAt {
    /// Tree, item type and field, as the table names them.
    pub class: String,
    /// `None`: in the superblock.
    pub node: Option<usize>,
    pub at: usize,
    pub len: usize,
}

/// A block of bytes with everywhere that it lies.
struct Block {
    homes: Vec<u64>,
    bytes: Vec<u8>,
}

pub struct Image {
    path: PathBuf,
    csum: ChecksumType,
    nodes: Vec<Block>,
    supers: Block,
    pub places: Vec<FieldAt>,
    /// Types of the items that there are, and of the references in them.
    pub kinds: BTreeSet<u8>,
    pub inline: BTreeSet<u8>,
}

/// The item is away; a copy of it is there as well.
const GONE: &str = "gone";
const AGAIN: &str = "again";

/// How trees are named in the table.
fn tree_name(tree: TreeId) -> &'static str {
    match tree {
        TreeId::ROOT => "root",
        TreeId::EXTENT => "extent",
        TreeId::CHUNK => "chunk",
        TreeId::DEV => "dev",
        TreeId::CSUM => "csum",
        TreeId::QUOTA => "quota",
        TreeId::UUID => "uuid",
        TreeId::FREE_SPACE => "free space",
        TreeId::BLOCK_GROUP => "block group",
        TreeId::DATA_RELOC => "data reloc",
        TreeId::LOG => "log",
        tree if tree.is_subvolume() => "fs",
        _ => "other",
    }
}

impl Image {
    pub fn read(path: &Path) -> Image {
        let volume = common::open(path);
        let sb = volume.superblock().fields;
        let device = FileDevice::open(path, true, true).expect("image opens");
        let homes: Vec<u64> = COPIES.into_iter().filter(|at| at + 4096 <= device.len()).collect();
        let mut bytes = vec![0; SUPER_SIZE];
        device.read_at(COPIES[0], &mut bytes).expect("image is read");
        let mut image = Image {
            path: path.to_owned(),
            csum: volume.geometry().csum,
            nodes: Vec::new(),
            supers: Block { homes, bytes },
            places: Vec::new(),
            kinds: BTreeSet::new(),
            inline: BTreeSet::new(),
        };
        let add = |(name, at, len): Field| FieldAt {
            class: format!("superblock/{name}"),
            node: None,
            at,
            len,
        };
        let fields = fields::superblock(sb.sys_chunk_array_size as usize);
        image.places.extend(fields.into_iter().map(add));
        let mut queue = vec![(TreeId::ROOT, sb.root), (TreeId::CHUNK, sb.chunk_root)];
        if sb.log_root.0 != 0 {
            queue.push((TreeId::LOG, sb.log_root));
        }
        let mut seen = HashSet::new();
        while let Some((tree, at)) = queue.pop() {
            if seen.insert(at) {
                image.node(&volume, tree, at, &mut queue);
            }
        }
        image
    }

    fn node(
        &mut self,
        volume: &btrfs_volume::Volume,
        tree: TreeId,
        at: Logical,
        queue: &mut Vec<(TreeId, Logical)>,
    ) {
        let mut bytes = vec![0; volume.geometry().node_size as usize];
        volume.read_mirror(at, 0, &mut bytes).expect("node is read");
        let chunk = volume.chunk(at).expect("mapped");
        let homes = chunk.stripes.iter().map(|(_, start)| start.0 + (at.0 - chunk.logical.0));
        let header = Header::read(&bytes).expect("header");
        let place = self.nodes.len();
        let name = tree_name(tree);
        let (mut out, mut from) = (Vec::new(), 0);
        for (field, len) in Header::MEMBERS {
            let sort = if header.level == 0 { "leaf" } else { "node" };
            out.push((format!("{name}/{sort}/{field}"), from, *len));
            from += len;
        }
        out.remove(0);
        let items = header.nritems as usize;
        let stride = if header.level == 0 { ITEM_SIZE } else { KEY_PTR_SIZE };
        for entry in (0..items).map(|i| HEADER_SIZE + i * stride) {
            let key = Key::read(bytes[entry..entry + KEY_SIZE].try_into().expect("sized"));
            let number = |at: usize, len: usize| {
                let mut word = [0; 8];
                word[..len].copy_from_slice(&bytes[at..at + len]);
                u64::from_le_bytes(word)
            };
            let rest = entry + KEY_SIZE;
            let mut found = Vec::new();
            fields::key("key.", entry, &mut found);
            if header.level > 0 {
                found.push(("pointer".into(), rest, 8));
                found.push(("generation".into(), rest + 8, 8));
                let named = |(f, at, len)| (format!("{name}/pointer/{f}"), at, len);
                out.extend(found.into_iter().map(named));
                queue.push((tree, Logical(number(rest, 8))));
                continue;
            }
            found.extend([("data.offset".into(), rest, 4), ("data.size".into(), rest + 4, 4)]);
            found.extend([(GONE.into(), entry, 0), (AGAIN.into(), entry, 0)]);
            self.kinds.insert(key.kind);
            let start = HEADER_SIZE + number(rest, 4) as usize;
            let data = &bytes[start..start + number(rest + 4, 4) as usize];
            let (sort, inside) = fields::item(key.kind, data, start);
            let inline = inside.iter().filter(|(field, ..)| field == "inline.type");
            self.inline.extend(inline.map(|(_, at, _)| bytes[*at]));
            found.extend(inside);
            let what = kind_name(key.kind).unwrap_or("0");
            let named = |(f, at, len)| (format!("{name}/{what}{sort}/{f}"), at, len);
            out.extend(found.into_iter().map(named));
            if key.kind == kind::ROOT_ITEM && (tree == TreeId::ROOT || tree == TreeId::LOG) {
                let root = btrfs_disk::items::RootItem::parse(data).expect("root item");
                let id = if tree == TreeId::LOG { TreeId::LOG } else { TreeId(key.objectid) };
                queue.push((id, root.bytenr));
            }
        }
        let places = out.into_iter();
        self.places.extend(places.map(|(class, at, len)| FieldAt {
            class,
            node: Some(place),
            at,
            len,
        }));
        self.nodes.push(Block { homes: homes.collect(), bytes });
    }

    /// Writes the image with one place changed, asks, and writes it back.
    pub fn changed<T>(
        &self,
        place: &FieldAt,
        change: super::Change,
        ask: impl FnOnce() -> T,
    ) -> Option<T> {
        let block = place.node.map_or(&self.supers, |node| &self.nodes[node]);
        let mut bytes = block.bytes.clone();
        if place.len == 0 {
            let again = place.class.ends_with(AGAIN);
            let changed = if again { twice(&bytes, place.at) } else { without(&bytes, place.at) };
            bytes = changed?;
        } else if !change.apply(&mut bytes[place.at..place.at + place.len]) {
            return None;
        }
        self.write(block, &bytes, place.node.is_none());
        let answer = ask();
        self.write(block, &block.bytes, place.node.is_none());
        Some(answer)
    }

    fn write(&self, block: &Block, bytes: &[u8], superblock: bool) {
        let device = FileDevice::open(&self.path, false, true).expect("image opens");
        for home in &block.homes {
            let mut bytes = bytes.to_vec();
            if superblock && *home != COPIES[0] {
                // Each copy knows its own place, and errs as the first.
                let wrong = u64_at(&bytes, 48).wrapping_sub(COPIES[0]);
                bytes[48..56].copy_from_slice(&home.wrapping_add(wrong).to_le_bytes());
            }
            self.csum.seal(&mut bytes);
            device.write_at(*home, &bytes).expect("image is written");
        }
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("sized"))
}

type Items = Vec<(Key, Vec<u8>)>;

/// A leaf's items, and which of them has its header at `entry`.
fn items(bytes: &[u8], entry: usize) -> (Items, usize) {
    let word =
        |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("sized")) as usize;
    let item = |entry: usize| {
        let key = Key::read(bytes[entry..entry + KEY_SIZE].try_into().expect("sized"));
        let (start, len) = (HEADER_SIZE + word(entry + KEY_SIZE), word(entry + KEY_SIZE + 4));
        (key, bytes[start..start + len].to_vec())
    };
    let all = (0..word(96)).map(|i| item(HEADER_SIZE + i * ITEM_SIZE)).collect();
    (all, (entry - HEADER_SIZE) / ITEM_SIZE)
}

/// A leaf packed anew; `None` if it is full.
fn packed(bytes: &[u8], items: &Items) -> Option<Vec<u8>> {
    let mut out = vec![0; bytes.len()];
    out[..HEADER_SIZE].copy_from_slice(&bytes[..HEADER_SIZE]);
    out[96..100].copy_from_slice(&(items.len() as u32).to_le_bytes());
    let (mut to, mut end) = (HEADER_SIZE, bytes.len());
    for (key, data) in items {
        end = end
            .checked_sub(data.len())
            .filter(|end| *end >= HEADER_SIZE + items.len() * ITEM_SIZE)?;
        out[end..end + data.len()].copy_from_slice(data);
        out[to..to + KEY_SIZE].copy_from_slice(&key.to_bytes());
        let rest = to + KEY_SIZE;
        out[rest..rest + 4].copy_from_slice(&((end - HEADER_SIZE) as u32).to_le_bytes());
        out[rest + 4..rest + 8].copy_from_slice(&(data.len() as u32).to_le_bytes());
        to += ITEM_SIZE;
    }
    Some(out)
}

/// Without the item.
fn without(bytes: &[u8], entry: usize) -> Option<Vec<u8>> {
    let (mut all, at) = items(bytes, entry);
    all.remove(at);
    packed(bytes, &all)
}

/// With a copy of the item at the next key, if there is none.
fn twice(bytes: &[u8], entry: usize) -> Option<Vec<u8>> {
    let (mut all, at) = items(bytes, entry);
    let (mut key, data) = all[at].clone();
    key.offset = key.offset.checked_add(1)?;
    if all.get(at + 1).is_some_and(|(next, _)| *next == key) {
        return None;
    }
    all.insert(at + 1, (key, data));
    packed(bytes, &all)
}
