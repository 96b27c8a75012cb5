//! One inode, gathered from all of its items and judged when the last has been seen.

use super::file_state::{FileState, Rules};
use super::links::Links;
use super::verity::VerityState;
use crate::FindingKind;
use crate::verity::Sealed;
use btrfs_disk::ids::FIRST_FREE_OBJECTID;
use btrfs_disk::items::{DirItem, InodeExtRef, InodeItem, InodeRef, dir_type, inode_flags, mode};
use btrfs_disk::{Corrupt, FixedSize, Key};

/// The type that a directory entry must give an inode of this mode.
fn type_of(bits: u32) -> Option<u8> {
    Some(match bits & mode::S_IFMT {
        mode::S_IFREG => dir_type::REG_FILE,
        mode::S_IFDIR => dir_type::DIR,
        mode::S_IFCHR => dir_type::CHRDEV,
        mode::S_IFBLK => dir_type::BLKDEV,
        mode::S_IFIFO => dir_type::FIFO,
        mode::S_IFSOCK => dir_type::SOCK,
        mode::S_IFLNK => dir_type::SYMLINK,
        _ => return None,
    })
}

pub(super) struct Inode {
    pub ino: u64,
    pub item: Option<InodeItem>,
    names: u64,
    /// Lengths of all names in the directory's items.
    dir_size: u64,
    has_entries: bool,
    pub file: FileState,
    pub(super) verity: VerityState,
    /// Some of it was in no tree before.
    pub(super) fresh: bool,
}

pub(super) fn malformed(c: Corrupt) -> FindingKind {
    FindingKind::ItemMalformed { why: c.what }
}

impl Inode {
    pub(super) fn new(ino: u64) -> Inode {
        let (file, verity) = Default::default();
        Inode {
            ino,
            item: None,
            names: 0,
            dir_size: 0,
            has_entries: false,
            file,
            verity,
            fresh: false,
        }
    }

    pub(super) fn kind(&self) -> Option<u8> {
        self.item.and_then(|item| type_of(item.mode))
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind() == Some(dir_type::DIR)
    }

    pub(super) fn is_nameless(&self) -> bool {
        self.names == 0 && self.item.is_some_and(|item| item.nlink == 0)
    }

    pub(super) fn name_count(&self) -> u64 {
        self.names
    }

    pub(super) fn has_no_sums(&self) -> bool {
        self.item.is_some_and(|item| item.flags & inode_flags::NODATASUM != 0)
    }

    pub(super) fn set_item(&mut self, data: &[u8]) -> Result<(), FindingKind> {
        self.item = Some(InodeItem::read(data).map_err(malformed)?);
        Ok(())
    }

    pub(super) fn names(
        &mut self,
        key: Key,
        data: &[u8],
        links: &mut Links,
    ) -> Result<(), FindingKind> {
        for name in InodeRef::iter(data) {
            let name = name.map_err(malformed)?;
            self.name(key.offset, name.index, name.name, links);
            if self.is_root_of_itself(key.offset, name.name) && name.index != 0 {
                let why = format!("the root's own name has the index {}", name.index);
                return Err(FindingKind::InodeBad { ino: self.ino, why });
            }
        }
        Ok(())
    }

    pub(super) fn extended_names(
        &mut self,
        data: &[u8],
        links: &mut Links,
    ) -> Result<(), FindingKind> {
        for name in InodeExtRef::iter(data) {
            let name = name.map_err(malformed)?;
            self.name(name.parent, name.index, name.name, links);
        }
        Ok(())
    }

    fn name(&mut self, dir: u64, index: u64, name: &[u8], links: &mut Links) {
        self.names += 1;
        if !self.is_root_of_itself(dir, name) {
            links.back(dir, name, self.ino, index, self.kind());
        }
    }

    /// The root directory is its own parent, by no entry.
    fn is_root_of_itself(&self, dir: u64, name: &[u8]) -> bool {
        self.ino == FIRST_FREE_OBJECTID && dir == self.ino && name == b".."
    }

    pub(super) fn dir_item(&mut self, data: &[u8], links: &mut Links) -> Result<(), FindingKind> {
        for entry in DirItem::iter(data) {
            let entry = entry.map_err(malformed)?;
            self.entry(&entry);
            links.dir_item(self.ino, &entry);
        }
        Ok(())
    }

    pub(super) fn dir_index(
        &mut self,
        key: Key,
        data: &[u8],
        links: &mut Links,
    ) -> Result<(), FindingKind> {
        for entry in DirItem::iter(data) {
            let entry = entry.map_err(malformed)?;
            self.entry(&entry);
            links.dir_index(self.ino, key.offset, &entry);
        }
        Ok(())
    }

    fn entry(&mut self, entry: &DirItem<'_>) {
        self.has_entries = true;
        self.dir_size += entry.name.len() as u64;
    }

    /// Everything that only the sum of the items tells.
    pub(super) fn judge(&self, rules: &Rules) -> Vec<FindingKind> {
        let ino = self.ino;
        let Some(item) = self.item else {
            return vec![FindingKind::InodeMissing { ino }];
        };
        let mut out = Vec::new();
        let stored = u64::from(item.nlink);
        if stored != self.names {
            out.push(FindingKind::LinkCount { ino, stored, counted: self.names });
        }
        if self.is_dir() {
            self.judge_dir(&item, &mut out);
        } else if self.has_entries {
            let why = "directory entries in something else than a directory".into();
            out.push(FindingKind::ItemOfWrongType { ino, why });
        }
        let has_content = [Some(dir_type::REG_FILE), Some(dir_type::SYMLINK)];
        if has_content.contains(&self.kind()) {
            self.judge_content(&item, rules, &mut out);
        } else if self.file.any {
            let why = "file content in something else than a file".into();
            out.push(FindingKind::ItemOfWrongType { ino, why });
        }
        if let Err(why) = self.verity.judge(&item) {
            out.push(FindingKind::VerityBad { ino, why });
        }
        out
    }

    /// Whose content can be held against a tree of hashes.
    pub(super) fn sealed(&self) -> Option<Sealed> {
        let descriptor = self.verity.judge(self.item.as_ref()?).ok()??;
        Some(Sealed { ino: self.ino, unsummed: self.has_no_sums(), descriptor })
    }

    fn judge_dir(&self, item: &InodeItem, out: &mut Vec<FindingKind>) {
        let ino = self.ino;
        if self.names > 1 {
            out.push(FindingKind::DirLinks { ino, links: self.names });
        }
        if item.size != self.dir_size {
            let (stored, counted) = (item.size, self.dir_size);
            out.push(FindingKind::DirSize { ino, stored, counted });
        }
    }
}
