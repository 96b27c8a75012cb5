//! What a subvolume's tree says of an inode.

use crate::error::Result;
use crate::source::{Source, Subvolume};
use btrfs_disk::checksum::name_hash;
use btrfs_disk::items::{
    Compression, DirItem, FileExtent, FileExtentFields, FileExtentKind, InodeExtRef, InodeItem,
    InodeRef, mode,
};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key};
use btrfs_tree::{NodeReader, TreeRoot, get, scan};

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Name {
    pub(crate) dir: u64,
    pub(crate) name: Vec<u8>,
}

/// One extent item of a file.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Where in the file it begins and ends.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) kind: PieceKind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PieceKind {
    /// Nothing, or room without content.
    Zeros,
    Inline {
        compression: Compression,
        ram_bytes: u64,
        content: Vec<u8>,
    },
    Extent {
        compression: Compression,
        fields: FileExtentFields,
    },
}

pub(crate) struct Tree<'s> {
    reader: &'s dyn NodeReader,
    pub(crate) root: TreeRoot,
    pub(crate) sector: u64,
}

impl<'s> Tree<'s> {
    pub(crate) fn new(source: &'s dyn Source, subvolume: &Subvolume) -> Tree<'s> {
        let reader = source.reader();
        let sector = u64::from(reader.geometry().sector_size);
        Tree { reader, root: subvolume.root, sector }
    }

    pub(crate) fn reader(&self) -> &'s dyn NodeReader {
        self.reader
    }

    /// `None` also for one whose last name is gone.
    pub(crate) fn inode(&self, ino: u64) -> Result<Option<InodeItem>> {
        let key = Key::new(ino, kind::INODE_ITEM, 0);
        let Some(item) = get(self.reader, &self.root, &key)? else { return Ok(None) };
        alive(key, item.data())
    }

    /// All names of an inode; the root directory has none.
    pub(crate) fn names(&self, ino: u64) -> Result<Vec<Name>> {
        let mut all = Vec::new();
        self.for_each(ino, kind::INODE_REF..=kind::INODE_EXTREF, |key, data| {
            names_of(key, data, &mut all)
        })?;
        Ok(all)
    }

    /// A name of an inode.
    pub(crate) fn any_name(&self, ino: u64) -> Result<Option<Name>> {
        let range = Key::new(ino, kind::INODE_REF, 0)..=Key::new(ino, kind::INODE_EXTREF, u64::MAX);
        let mut some = Vec::new();
        for item in scan(self.reader, &self.root, range) {
            let item = item?;
            names_of(item.key(), item.data(), &mut some)?;
            if !some.is_empty() {
                break;
            }
        }
        Ok(some.into_iter().next())
    }

    pub(crate) fn has_name(&self, dir: u64, name: &[u8]) -> Result<bool> {
        let key = Key::new(dir, kind::DIR_ITEM, name_hash(name));
        let Some(item) = get(self.reader, &self.root, &key)? else { return Ok(false) };
        for entry in DirItem::iter(item.data()) {
            if entry.map_err(|c| c.key(key)).map_err(btrfs_disk::Error::from)?.name == name {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What lies in a directory, without subvolumes.
    pub(crate) fn entries(&self, dir: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut all = Vec::new();
        self.for_each(dir, kind::DIR_INDEX..=kind::DIR_INDEX, |key, data| {
            for entry in DirItem::iter(data) {
                let entry = entry.map_err(|c| c.key(key)).map_err(btrfs_disk::Error::from)?;
                if entry.location.kind == kind::INODE_ITEM {
                    all.push((entry.location.objectid, entry.name.to_vec()));
                }
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Names and values.
    pub(crate) fn xattrs(&self, ino: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut all = Vec::new();
        self.for_each(ino, kind::XATTR_ITEM..=kind::XATTR_ITEM, |key, data| {
            all.extend(xattrs_of(key, data)?);
            Ok(())
        })?;
        Ok(all)
    }

    /// What a file is verified by, as it stands in its items; `None`: it has none.
    pub(crate) fn verity(&self, ino: u64) -> Result<Option<Vec<u8>>> {
        let (mut there, mut bytes) = (false, Vec::new());
        self.for_each(ino, kind::VERITY_DESC_ITEM..=kind::VERITY_DESC_ITEM, |key, data| {
            match key.offset {
                // Only how long the others are together.
                0 => there = true,
                _ => bytes.extend_from_slice(data),
            }
            Ok(())
        })?;
        Ok(there.then_some(bytes))
    }

    /// The first `most` pieces that overlap a range, in order; what is between them reads as
    /// zeros.
    pub(crate) fn pieces(&self, ino: u64, start: u64, end: u64, most: usize) -> Result<Vec<Piece>> {
        let mut all = Vec::new();
        let at = |offset| Key::new(ino, kind::EXTENT_DATA, offset);
        let mut cursor = btrfs_tree::Cursor::new(self.reader, &self.root).below(Some(at(end)));
        cursor.seek_back(&at(start))?;
        if cursor.key().is_none_or(|key| key < at(0)) {
            cursor.seek(&at(0))?;
        }
        while let Some((key, data)) = cursor.item() {
            if key.objectid != ino || key.kind != kind::EXTENT_DATA || key.offset >= end {
                break;
            }
            let piece = piece_of(key, data, self.sector)?;
            if piece.end > start {
                all.push(piece);
            }
            if all.len() >= most {
                break;
            }
            cursor.next()?;
        }
        Ok(all)
    }

    /// What a link leads to, and of a file with content among the structures that.
    pub(crate) fn content_begins(&self, ino: u64) -> Result<Option<PieceKind>> {
        Ok(self.pieces(ino, 0, 1, 1)?.pop().map(|piece| piece.kind))
    }

    fn for_each(
        &self,
        ino: u64,
        kinds: std::ops::RangeInclusive<u8>,
        mut take: impl FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let (first, last) = (*kinds.start(), *kinds.end());
        let range = Key::new(ino, first, 0)..=Key::new(ino, last, u64::MAX);
        for item in scan(self.reader, &self.root, range) {
            let item = item?;
            take(item.key(), item.data())?;
        }
        Ok(())
    }
}

/// An inode that has a name.
pub(crate) fn alive(key: Key, data: &[u8]) -> Result<Option<InodeItem>> {
    let item = InodeItem::read(data).map_err(|c| c.key(key)).map_err(btrfs_disk::Error::from)?;
    Ok((item.nlink > 0).then_some(item))
}

pub(crate) fn is_dir(item: &InodeItem) -> bool {
    item.mode & mode::S_IFMT == mode::S_IFDIR
}

pub(crate) fn is_file(item: &InodeItem) -> bool {
    item.mode & mode::S_IFMT == mode::S_IFREG
}

/// The names that one item has, without the root directory's own.
pub(crate) fn names_of(key: Key, data: &[u8], all: &mut Vec<Name>) -> Result<()> {
    let wrong = |c: btrfs_disk::Corrupt| btrfs_disk::Error::from(c.key(key));
    let mut note = |dir: u64, name: &[u8]| {
        if dir != key.objectid {
            all.push(Name { dir, name: name.to_vec() });
        }
    };
    match key.kind {
        kind::INODE_REF => {
            for name in InodeRef::iter(data) {
                note(key.offset, name.map_err(wrong)?.name);
            }
        }
        _ => {
            for name in InodeExtRef::iter(data) {
                let found = name.map_err(wrong)?;
                note(found.parent, found.name);
            }
        }
    }
    Ok(())
}

/// The attributes that one item has.
pub(crate) fn xattrs_of(key: Key, data: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let all: std::result::Result<Vec<_>, _> = DirItem::iter(data)
        .map(|entry| entry.map(|entry| (entry.name.to_vec(), entry.value.to_vec())))
        .collect();
    Ok(all.map_err(|c| c.key(key)).map_err(btrfs_disk::Error::from)?)
}

pub(crate) fn piece_of(key: Key, data: &[u8], sector: u64) -> Result<Piece> {
    let start = key.offset;
    let extent =
        FileExtent::parse(data).map_err(|c| c.key(key)).map_err(btrfs_disk::Error::from)?;
    let end = extent.file_end(start, sector);
    let kind = match extent {
        FileExtent::Inline { ram_bytes, compression, content, .. } => {
            PieceKind::Inline { compression, ram_bytes, content: content.to_vec() }
        }
        FileExtent::Extent { kind, compression, fields } => {
            let zeros = kind == FileExtentKind::Prealloc || fields.disk_bytenr.0 == 0;
            if zeros { PieceKind::Zeros } else { PieceKind::Extent { compression, fields } }
        }
    };
    Ok(Piece { start, end, kind })
}
