//! Commits made by hand: consistent edits of inodes and extents, settled and written.

use super::Opened;
use btrfs_disk::checksum::name_hash;
use btrfs_disk::ids::{EXTENT_CSUM_OBJECTID, ORPHAN_OBJECTID};
use btrfs_disk::items::{
    DirItem, FileExtent, FileExtentFields, FileExtentKind, InodeItem, QgroupStatus, RootItem,
    RootRef, dir_type, inode_flags, qgroup_status,
};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Generation, Key, Logical, Result, TreeId};
use btrfs_space::{
    DataReservation, DropState, Extent, ExtentKind, MovedNodes, Priority, RefOwner, Settle,
    Settled, Space,
};
use btrfs_tree::{Edit, NodeReader, NodeStore, TreeRoot, get, scan};

/// A commit in the making.
pub struct Commit<'a> {
    pub opened: &'a Opened,
    pub space: &'a Space,
    pub settle: Settle<'a, NodeStore>,
    new_sums: Vec<(Logical, Vec<u8>)>,
}

fn put(data: Vec<u8>) -> Edit {
    Edit::Put(data.into_boxed_slice())
}

impl<'a> Commit<'a> {
    pub fn new(opened: &'a Opened, space: &'a Space) -> Commit<'a> {
        let sb = (*opened.volume.superblock()).clone();
        let generation = Generation(sb.fields.generation.0 + 1);
        let reservation = space.reserve_metadata(8 << 20, Priority::Delete).ok();
        let settle =
            Settle::new(space, &opened.store, sb, generation, reservation).expect("begins");
        Commit { opened, space, settle, new_sums: Vec::new() }
    }

    pub fn root(&mut self, tree: TreeId) -> TreeRoot {
        self.settle.root(tree).expect("tree")
    }

    pub fn inode(&mut self, tree: TreeId, ino: u64) -> InodeItem {
        let root = self.root(tree);
        let key = Key::new(ino, kind::INODE_ITEM, 0);
        let item = get(&self.settle.reader(), &root, &key).expect("reads").expect("inode");
        InodeItem::read(item.data()).expect("inode item")
    }

    pub fn apply(&mut self, tree: TreeId, mut edits: Vec<(Key, Edit)>) {
        edits.sort_by_key(|(key, _)| *key);
        self.settle.apply_tree(tree, edits).expect("applies");
    }

    fn put_inode(&mut self, tree: TreeId, ino: u64, mut inode: InodeItem) -> (Key, Edit) {
        let _ = tree;
        inode.transid = self.settle.generation().0;
        inode.sequence += 1;
        (Key::new(ino, kind::INODE_ITEM, 0), put(inode.to_vec()))
    }

    pub fn touch(&mut self, tree: TreeId, ino: u64, time: i64) {
        let mut inode = self.inode(tree, ino);
        inode.atime.sec = time;
        let edit = self.put_inode(tree, ino, inode);
        self.apply(tree, vec![edit]);
    }

    /// Regular files: (inode, has checksums).
    pub fn files(&mut self, tree: TreeId) -> Vec<(u64, bool)> {
        let root = self.root(tree);
        let reader = self.settle.reader();
        let mut out = Vec::new();
        for item in scan(&reader, &root, Key::MIN..=Key::MAX) {
            let item = item.expect("fs tree");
            if item.key().kind == kind::INODE_ITEM {
                let inode = InodeItem::read(item.data()).expect("inode");
                if inode.mode & 0o170000 == 0o100000 && inode.nlink > 0 {
                    out.push((item.key().objectid, inode.flags & inode_flags::NODATASUM == 0));
                }
            }
        }
        out
    }

    /// The extents of a file that have space behind them, and whether it has inline content.
    pub fn extents(&mut self, tree: TreeId, ino: u64) -> (Vec<(Key, FileExtentFields)>, bool) {
        let root = self.root(tree);
        let reader = self.settle.reader();
        let (mut out, mut inline) = (Vec::new(), false);
        let range =
            Key::new(ino, kind::EXTENT_DATA, 0)..=Key::new(ino, kind::EXTENT_DATA, u64::MAX);
        for item in scan(&reader, &root, range) {
            let item = item.expect("fs tree");
            match FileExtent::parse(item.data()).expect("file extent") {
                FileExtent::Inline { .. } => inline = true,
                FileExtent::Extent { fields, .. } => out.push((item.key(), fields)),
            }
        }
        (out, inline)
    }

    fn data_ref(&mut self, tree: TreeId, key: Key, fields: &FileExtentFields, count: i64) {
        if fields.disk_bytenr.0 == 0 {
            return;
        }
        let offset = key.offset.wrapping_sub(fields.offset);
        let owner = RefOwner::Data { root: tree, ino: key.objectid, offset };
        let (extent, len) = (fields.disk_bytenr, fields.disk_num_bytes);
        self.settle.deltas().add(extent, len, ExtentKind::Data, owner, count);
    }

    /// Empties a file.
    pub fn truncate(&mut self, tree: TreeId, ino: u64) {
        let (extents, inline) = self.extents(tree, ino);
        let mut inode = self.inode(tree, ino);
        (inode.size, inode.nbytes) = (0, 0);
        let mut edits = vec![self.put_inode(tree, ino, inode)];
        edits.extend(extents.iter().map(|(key, _)| (*key, Edit::Delete)));
        if inline {
            edits.push((Key::new(ino, kind::EXTENT_DATA, 0), Edit::Delete));
        }
        self.apply(tree, edits);
        for (key, fields) in extents {
            self.data_ref(tree, key, &fields, -1);
        }
    }

    /// Where a new extent of the file may begin.
    fn end_of(&mut self, tree: TreeId, ino: u64) -> Option<u64> {
        let (extents, inline) = self.extents(tree, ino);
        let last = extents.last().map_or(0, |(key, fields)| key.offset + fields.num_bytes);
        let size = self.inode(tree, ino).size.next_multiple_of(4096);
        (!inline).then_some(last.max(size))
    }

    /// Puts a range of an extent behind all that the file has.
    fn append(&mut self, tree: TreeId, ino: u64, fields: FileExtentFields) -> bool {
        let Some(at) = self.end_of(tree, ino) else { return false };
        let key = Key::new(ino, kind::EXTENT_DATA, at);
        let mut inode = self.inode(tree, ino);
        inode.nbytes += fields.num_bytes;
        if fields.kind == FileExtentKind::Regular as u8 {
            inode.size = at + fields.num_bytes;
        }
        let inode = self.put_inode(tree, ino, inode);
        self.apply(tree, vec![inode, (key, put(fields.to_vec()))]);
        self.data_ref(tree, key, &fields, 1);
        true
    }

    fn new_extent(&mut self, len: u64, reservation: &mut DataReservation) -> Result<Extent> {
        let extent = reservation.alloc(self.space, len, 4096, None)?;
        self.settle.deltas().born(extent.logical, extent.len, ExtentKind::Data, TreeId::FS);
        Ok(extent)
    }

    fn fields(&self, extent: Extent, kind: FileExtentKind) -> FileExtentFields {
        FileExtentFields {
            generation: self.settle.generation().0,
            ram_bytes: extent.len,
            kind: kind as u8,
            disk_bytenr: extent.logical,
            disk_num_bytes: extent.len,
            num_bytes: extent.len,
            ..FileExtentFields::default()
        }
    }

    /// Preallocates behind the file's end; false if the file has inline content.
    pub fn prealloc(&mut self, tree: TreeId, ino: u64, len: u64) -> Result<bool> {
        if self.end_of(tree, ino).is_none() {
            return Ok(false);
        }
        let mut reservation = self.space.reserve_data(len)?;
        while reservation.bytes() > 0 {
            let extent = self.new_extent(reservation.bytes(), &mut reservation)?;
            let fields = self.fields(extent, FileExtentKind::Prealloc);
            let mut inode = self.inode(tree, ino);
            inode.flags |= inode_flags::PREALLOC;
            let edit = self.put_inode(tree, ino, inode);
            self.apply(tree, vec![edit]);
            self.append(tree, ino, fields);
        }
        Ok(true)
    }

    /// Appends real bytes, with checksums if the file wants them.
    pub fn write(&mut self, tree: TreeId, ino: u64, sums: bool, data: &[u8]) -> Result<bool> {
        if self.end_of(tree, ino).is_none() {
            return Ok(false);
        }
        let mut reservation = self.space.reserve_data(data.len() as u64)?;
        let mut rest = data;
        while !rest.is_empty() {
            let extent = self.new_extent(rest.len() as u64, &mut reservation)?;
            let (now, later) = rest.split_at(extent.len as usize);
            self.opened.volume.write(extent.logical, &[now])?;
            let fields = self.fields(extent, FileExtentKind::Regular);
            self.append(tree, ino, fields);
            if sums {
                let geometry = self.opened.store.geometry();
                let size = geometry.csum.size();
                let sum = |sector: &[u8]| geometry.csum.digest(sector)[..size].to_vec();
                self.new_sums.push((extent.logical, now.chunks(4096).flat_map(sum).collect()));
            }
            rest = later;
        }
        Ok(true)
    }

    /// Appends a part of another file's extent.
    pub fn clone_extent(&mut self, from: (TreeId, u64), to: (TreeId, u64), pick: usize) -> bool {
        let (extents, _) = self.extents(from.0, from.1);
        let real: Vec<_> = extents.iter().filter(|(_, f)| f.disk_bytenr.0 != 0).collect();
        let Some((_, fields)) = real.get(pick % real.len().max(1)) else { return false };
        let mut fields = *fields;
        if fields.num_bytes > 8192 && fields.compression == 0 {
            fields.offset += 4096;
            fields.num_bytes -= 8192;
        }
        if fields.kind == FileExtentKind::Prealloc as u8 {
            let mut inode = self.inode(to.0, to.1);
            inode.flags |= inode_flags::PREALLOC;
            let edit = self.put_inode(to.0, to.1, inode);
            self.apply(to.0, vec![edit]);
        }
        self.append(to.0, to.1, fields)
    }

    /// Cuts the middle out of the file's extent number `pick`.
    pub fn punch(&mut self, tree: TreeId, ino: u64, pick: usize) -> bool {
        let (extents, _) = self.extents(tree, ino);
        let Some((key, fields)) = extents.get(pick % extents.len().max(1)).copied() else {
            return false;
        };
        if fields.num_bytes < 3 * 4096 {
            return false;
        }
        let hole = (fields.num_bytes / 4096 / 3 * 4096, fields.num_bytes / 4096 * 2 / 3 * 4096);
        let mut front = fields;
        front.num_bytes = hole.0;
        let mut back = fields;
        back.offset += hole.1;
        back.num_bytes -= hole.1;
        if fields.disk_bytenr.0 == 0 {
            back.offset = 0;
        }
        let back_key = Key { offset: key.offset + hole.1, ..key };
        let mut inode = self.inode(tree, ino);
        if fields.disk_bytenr.0 != 0 {
            inode.nbytes -= hole.1 - hole.0;
        }
        let inode = self.put_inode(tree, ino, inode);
        self.apply(tree, vec![inode, (key, put(front.to_vec())), (back_key, put(back.to_vec()))]);
        self.data_ref(tree, back_key, &back, 1);
        true
    }

    /// A snapshot of `source`, named in the top level's root directory.
    pub fn snapshot(&mut self, source: TreeId, to: TreeId, name: &[u8]) {
        self.name_snapshot(to, name);
        self.plant_snapshot(source, to);
    }

    /// The name of a subvolume that the same commit makes.
    pub fn name_snapshot(&mut self, to: TreeId, name: &[u8]) {
        let generation = self.settle.generation();
        let index = 1_000_000 + to.0;
        let location = Key::new(to.0, kind::ROOT_ITEM, u64::MAX);
        let entry =
            DirItem { location, transid: generation.0, kind: dir_type::DIR, name, value: &[] }
                .to_vec();
        let mut dir = self.inode(TreeId::FS, 256);
        dir.size += 2 * name.len() as u64;
        let dir = self.put_inode(TreeId::FS, 256, dir);
        let edits = vec![
            dir,
            (Key::new(256, kind::DIR_ITEM, name_hash(name)), put(entry.clone())),
            (Key::new(256, kind::DIR_INDEX, index), put(entry)),
        ];
        self.apply(TreeId::FS, edits);
        let root_ref = RootRef { dirid: 256, sequence: index, name }.to_vec();
        self.apply(
            TreeId::ROOT,
            vec![
                (Key::new(5, kind::ROOT_REF, to.0), put(root_ref.clone())),
                (Key::new(to.0, kind::ROOT_BACKREF, 5), put(root_ref)),
            ],
        );
    }

    pub fn plant_snapshot(&mut self, source: TreeId, to: TreeId) {
        let generation = self.settle.generation();
        let mut item: RootItem = *self.settle.root_item(source).expect("source");
        item.uuid = [to.0 as u8 ^ 0x5a; 16];
        (item.otransid, item.ctransid) = (generation.0, generation.0);
        item.refs = 1;
        let key = Key::new(to.0, kind::ROOT_ITEM, generation.0);
        self.settle.snapshot(source, to, key, item).expect("snapshot");
    }

    /// Whatever the numbers say, they are counted anew.
    pub fn begin_rescan(&mut self) {
        let root = self.root(TreeId::QUOTA);
        let key = Key::new(0, kind::QGROUP_STATUS, 0);
        let item = get(&self.settle.reader(), &root, &key).expect("reads").expect("a status");
        let mut data = item.data().to_vec();
        let mut status = QgroupStatus::read(&data).expect("status");
        status.flags |= qgroup_status::RESCAN | qgroup_status::INCONSISTENT;
        status.rescan = 0;
        status.write(&mut data);
        self.apply(TreeId::QUOTA, vec![(key, put(data))]);
    }

    /// Takes a subvolume's names away: an orphan from now on.
    pub fn orphan(&mut self, id: TreeId) {
        let root = self.root(TreeId::ROOT);
        let range =
            Key::new(id.0, kind::ROOT_BACKREF, 0)..=Key::new(id.0, kind::ROOT_BACKREF, u64::MAX);
        let item = scan(&self.settle.reader(), &root, range).next().expect("named").expect("reads");
        let (back, link) = (item.key(), RootRef::parse(item.data()).expect("root ref"));
        let (parent, dirid) = (TreeId(back.offset), link.dirid);
        let mut dir = self.inode(parent, dirid);
        dir.size -= 2 * link.name.len() as u64;
        let dir = self.put_inode(parent, dirid, dir);
        let edits = vec![
            dir,
            (Key::new(dirid, kind::DIR_ITEM, name_hash(link.name)), Edit::Delete),
            (Key::new(dirid, kind::DIR_INDEX, link.sequence), Edit::Delete),
        ];
        self.apply(parent, edits);
        let orphan = Key::new(ORPHAN_OBJECTID, kind::ORPHAN_ITEM, id.0);
        let edits = vec![
            (back, Edit::Delete),
            (Key::new(parent.0, kind::ROOT_REF, id.0), Edit::Delete),
            (orphan, put(vec![])),
        ];
        self.apply(TreeId::ROOT, edits);
        let item = self.settle.root_item(id).expect("root item");
        item.refs = 0;
        item.drop_progress = Key::MIN;
        item.drop_level = 0;
    }

    /// Goes on dropping an orphaned tree; true at its end.
    pub fn drop_tree(&mut self, id: TreeId, state: &mut DropState, budget: usize) -> bool {
        let done = self.settle.drop_tree(id, state, budget).expect("drops");
        if done {
            let orphan = Key::new(ORPHAN_OBJECTID, kind::ORPHAN_ITEM, id.0);
            self.apply(TreeId::ROOT, vec![(orphan, Edit::Delete)]);
        }
        done
    }

    fn drop_sums(&mut self, dead: &[Extent]) {
        let size = self.opened.store.geometry().csum.size() as u64;
        for extent in dead {
            let root = self.root(TreeId::CSUM);
            let reader = self.settle.reader();
            let first = Key::new(EXTENT_CSUM_OBJECTID, kind::EXTENT_CSUM, 0);
            let last = Key { offset: extent.end() - 1, ..first };
            let mut edits: Vec<(Key, Edit)> = Vec::new();
            for item in scan(&reader, &root, first..=last) {
                let item = item.expect("csum tree");
                let (start, data) = (item.key().offset, item.data());
                let end = start + data.len() as u64 / size * 4096;
                if end <= extent.logical.0 {
                    continue;
                }
                edits.push((item.key(), Edit::Delete));
                if start < extent.logical.0 {
                    let keep = (extent.logical.0 - start) / 4096 * size;
                    edits.pop();
                    edits.push((item.key(), put(data[..keep as usize].to_vec())));
                }
                if end > extent.end() {
                    let from = (extent.end() - start) / 4096 * size;
                    let key = Key { offset: extent.end(), ..first };
                    edits.push((key, put(data[from as usize..].to_vec())));
                }
            }
            self.apply(TreeId::CSUM, edits);
        }
    }

    /// Settles; answers what is to be written.
    pub fn settle(self) -> Settled {
        self.settle_moves().0
    }

    fn settle_moves(mut self) -> (Settled, Vec<MovedNodes>) {
        let fate = self.settle.drain_data().expect("drains");
        self.drop_sums(&fate.freed);
        let alive = |logical: &Logical| {
            !fate.stillborn.iter().any(|e| (e.logical.0..e.end()).contains(&logical.0))
        };
        let sums = std::mem::take(&mut self.new_sums);
        let edits =
            sums.into_iter().filter(|(logical, _)| alive(logical)).map(|(logical, sums)| {
                (Key::new(EXTENT_CSUM_OBJECTID, kind::EXTENT_CSUM, logical.0), put(sums))
            });
        let edits = edits.collect();
        self.apply(TreeId::CSUM, edits);
        let moved = self.settle.moved_nodes().cloned().collect();
        (self.settle.finish().expect("settles"), moved)
    }

    /// Settles and writes; answers what became of moves.
    pub fn finish(self) -> Vec<MovedNodes> {
        let (opened, space) = (self.opened, self.space);
        let (mut settled, moved) = self.settle_moves();
        settled.dirty.write_all(&opened.store).expect("nodes");
        opened.volume.flush().expect("flush");
        opened.volume.commit_superblock(settled.superblock).expect("superblock");
        opened.volume.flush().expect("flush");
        space.unpin(&settled.pinned).expect("unpins");
        moved
    }
}

/// A small generator of numbers (xorshift), for seeds that can be told.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides.max(1)
    }
}
