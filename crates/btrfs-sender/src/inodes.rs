//! One inode after the other: what is new of it, now that all names that moved are in place.
//!
//! Content, and that it is verified, comes before owner and mode, and these before a new inode's attributes, since writing
//! and a change of the owner take privileges and capabilities away; times come last, those of directories when nothing more is made in them.

use crate::changes::Change;
use crate::clones::Clones;
use crate::content::Content;
use crate::error::{Error, Result};
use crate::inherited::{is_inherited, is_property};
use crate::metadata;
use crate::moves::Moves;
use crate::namespace::{Dir, is_verified};
use crate::out::{Options, Out};
use crate::source::Source;
use crate::take_back::take_back;
use crate::tree::{Name, PieceKind, is_dir, is_file};
use btrfs_disk::ids::FIRST_FREE_OBJECTID as ROOT;
use btrfs_disk::items::{InodeItem, mode};
use btrfs_send::{Command, Protocol, Special, Verity};
use fs_verity::Descriptor;

/// The receiver's file system takes it away whenever the file is written or its owner changes.
const CAPABILITY: &[u8] = b"security.capability";

pub(crate) struct Inodes<'s> {
    moves: Moves<'s>,
    content: Content<'s>,
    options: Options,
    /// Directories whose flags and times are still to be sent.
    dirs: Vec<u64>,
    /// Those of them that what is made in them inherits attributes of.
    late: Vec<u64>,
}

impl<'s> Inodes<'s> {
    pub(crate) fn new(
        source: &'s dyn Source,
        options: Options,
        moves: Moves<'s>,
        clones: Clones<'s>,
    ) -> Inodes<'s> {
        let content = Content::new(source, options, clones);
        Inodes { moves, content, options, dirs: Vec::new(), late: Vec::new() }
    }

    pub(crate) fn send(&mut self, change: &Change, out: &mut Out<'_>) -> Result<()> {
        let ino = change.ino;
        let Some(item) = self.moves.space.right.inode(ino)? else { return Ok(()) };
        let old = self.old(ino)?;
        if is_dir(&item) {
            self.dirs.push(ino);
        }
        let path = match &old {
            None => self.create(ino, &item, out)?,
            Some(_) => self.path(ino)?,
        };
        if old.is_some() {
            self.change_xattrs(change, &path, &item, out)?;
        }
        // The same file's content is the same then, wherever it lies; and nobody may write it.
        if is_file(&item) && !old.as_ref().is_some_and(is_verified) {
            self.send_content(change, &path, (old.as_ref(), &item), out)?;
            self.send_verity(ino, &path, &item, out)?;
        }
        self.send_metadata(change, &path, (old.as_ref(), &item), out)?;
        if !is_dir(&item) {
            metadata::times(&path, &item, self.options, out)?;
        }
        Ok(())
    }

    /// Of a file that is verified from now on: all its content is there, and nobody but the receiver
    /// may change it yet.
    fn send_verity(&self, ino: u64, path: &[u8], new: &InodeItem, out: &mut Out<'_>) -> Result<()> {
        if self.options.protocol < Protocol::V3 || !is_verified(new) {
            return Ok(());
        }
        let bad = |why: String| Error::Refused(format!("{}: {why}", String::from_utf8_lossy(path)));
        let bytes = self.moves.space.right.verity(ino)?;
        let bytes = bytes.ok_or_else(|| bad("no fs-verity descriptor".into()))?;
        let descriptor = Descriptor::parse(&bytes).map_err(|why| bad(why.to_string()))?;
        let (params, signature) = (&descriptor.params, &*descriptor.signature);
        let (algorithm, salt) = (params.algorithm().number(), params.salt());
        let verity = Verity { algorithm, block_size: params.block_size(), salt, signature };
        out.put(&Command::EnableVerity { path, verity })
    }

    /// What of directories can only be said when all is made in them.
    pub(crate) fn finish(mut self, out: &mut Out<'_>) -> Result<()> {
        for ino in std::mem::take(&mut self.late) {
            let Some(item) = self.moves.space.right.inode(ino)? else { continue };
            let path = self.path(ino)?;
            let old = self.old(ino)?;
            metadata::no_longer_nocow(&path, old.as_ref(), &item, self.options, out)?;
            self.put_xattrs(ino, &path, is_inherited, out)?;
        }
        if !self.dirs.contains(&ROOT) {
            self.dirs.push(ROOT);
        }
        for ino in std::mem::take(&mut self.dirs) {
            let Some(item) = self.moves.space.right.inode(ino)? else { continue };
            let path = self.path(ino)?;
            let old = self.old(ino)?;
            metadata::last_flags(&path, old.as_ref(), &item, self.options, out)?;
            metadata::times(&path, &item, self.options, out)?;
        }
        Ok(())
    }

    /// As the parent has it, if it is the same inode.
    fn old(&mut self, ino: u64) -> Result<Option<InodeItem>> {
        let kept = self.moves.space.is_kept(ino)?;
        match &self.moves.space.left {
            Some(left) if kept => left.inode(ino),
            _ => Ok(None),
        }
    }

    fn path(&mut self, ino: u64) -> Result<Vec<u8>> {
        if ino == ROOT {
            return Ok(Vec::new());
        }
        let name = self.moves.space.right.any_name(ino)?;
        let name = name.ok_or_else(|| Error::Refused(format!("inode {ino} has no name")))?;
        let dir = self.moves.space.dir(name.dir)?;
        self.moves.space.path_in(dir, &name.name)
    }

    /// Makes it with all its names; the path of the first one.
    fn create(&mut self, ino: u64, item: &InodeItem, out: &mut Out<'_>) -> Result<Vec<u8>> {
        if ino == ROOT {
            return Ok(Vec::new());
        }
        let names = self.moves.space.right.names(ino)?;
        let mut first: Option<Vec<u8>> = None;
        for name in &names {
            let path = self.path_of_new(name, out)?;
            match &first {
                Some(old) => out.put(&Command::Link { path: &path, old })?,
                None => {
                    self.make(ino, item, (name.dir, &path), out)?;
                    first = Some(path);
                }
            }
        }
        first.ok_or_else(|| Error::Refused(format!("inode {ino} has no name")))
    }

    fn path_of_new(&mut self, name: &Name, out: &mut Out<'_>) -> Result<Vec<u8>> {
        let dir = self.moves.space.dir(name.dir)?;
        if let Dir::New(above) = dir {
            self.moves.make(above, 0, out)?;
        }
        self.moves.space.path_in(dir, &name.name)
    }

    fn make(
        &mut self,
        ino: u64,
        item: &InodeItem,
        (dir, path): (u64, &[u8]),
        out: &mut Out<'_>,
    ) -> Result<()> {
        if is_dir(item) && self.moves.space.is_made(ino) {
            return Ok(());
        }
        self.put_made(ino, item, path, out)?;
        let dir = self.moves.space.dir(dir)?;
        take_back(&mut self.moves.space, dir, item, path, out)
    }

    fn put_made(
        &mut self,
        ino: u64,
        item: &InodeItem,
        path: &[u8],
        out: &mut Out<'_>,
    ) -> Result<()> {
        let special = |kind| {
            let (mode, rdev) = (item.mode.into(), linux_dev(item.rdev));
            Command::MkSpecial { kind, path, ino, mode, rdev }
        };
        match item.mode & mode::S_IFMT {
            mode::S_IFDIR => {
                self.moves.space.note_made(ino);
                out.put(&Command::MkDir { path, ino })
            }
            mode::S_IFREG => out.put(&Command::MkFile { path, ino }),
            mode::S_IFIFO => out.put(&special(Special::Fifo)),
            mode::S_IFSOCK => out.put(&special(Special::Socket)),
            mode::S_IFCHR | mode::S_IFBLK => out.put(&special(Special::Node)),
            mode::S_IFLNK => {
                let target = self.target(ino)?;
                out.put(&Command::Symlink { path, ino, target: &target })
            }
            other => Err(Error::Refused(format!("inode {ino} has mode {other:o}"))),
        }
    }

    /// Without the NUL that `btrfs-convert` stores behind it.
    fn target(&self, ino: u64) -> Result<Vec<u8>> {
        match self.moves.space.right.content_begins(ino)? {
            Some(PieceKind::Inline { mut content, .. }) => {
                content.pop_if(|last| *last == 0);
                Ok(content)
            }
            _ => Err(Error::Refused(format!("the link of inode {ino} leads nowhere"))),
        }
    }

    fn send_content(
        &mut self,
        change: &Change,
        path: &[u8],
        (old, new): (Option<&InodeItem>, &InodeItem),
        out: &mut Out<'_>,
    ) -> Result<()> {
        if old.is_none() {
            metadata::first_flags(path, new, self.options, out)?;
            self.put_xattrs(change.ino, path, is_property, out)?;
        }
        let whole = [(0, new.size)];
        let ranges = if old.is_some() { &change.ranges[..] } else { &whole[..] };
        self.content.send(&mut self.moves.space, change.ino, path, (old, new), ranges, out)
    }

    fn send_metadata(
        &mut self,
        change: &Change,
        path: &[u8],
        (old, new): (Option<&InodeItem>, &InodeItem),
        out: &mut Out<'_>,
    ) -> Result<()> {
        let size = |old: &InodeItem| old.size != new.size;
        let written = is_file(new) && (!change.ranges.is_empty() || old.is_some_and(size));
        let chowned = metadata::owner_and_mode(path, (old, new), written, out)?;
        if old.is_none() {
            self.send_xattrs(change.ino, path, new, out)?;
        }
        if old.is_some() && !is_dir(new) && (chowned || written) {
            self.put_xattrs(change.ino, path, |name| name == CAPABILITY, out)?;
        }
        match is_dir(new) {
            // What is made in it would inherit some.
            true => Ok(()),
            false => metadata::last_flags(path, old, new, self.options, out),
        }
    }

    /// Before all else: a capability that is gone in the new tree may be gone because the file was
    /// written, and the receiver's goes in the same way.
    fn change_xattrs(
        &mut self,
        change: &Change,
        path: &[u8],
        item: &InodeItem,
        out: &mut Out<'_>,
    ) -> Result<()> {
        let is_late = |name: &[u8]| is_dir(item) && is_inherited(name);
        if metadata::changed_xattrs(path, &change.xattrs, is_late, out)? {
            self.late.push(change.ino);
        }
        Ok(())
    }

    /// Of a new inode. Properties of a file went before its content.
    fn send_xattrs(
        &mut self,
        ino: u64,
        path: &[u8],
        item: &InodeItem,
        out: &mut Out<'_>,
    ) -> Result<()> {
        if is_dir(item) {
            self.late.push(ino);
            return self.put_xattrs(ino, path, |name| !is_inherited(name), out);
        }
        let early = |name: &[u8]| is_file(item) && is_property(name);
        self.put_xattrs(ino, path, |name| !early(name), out)
    }

    /// Those that the new tree has and `wanted` says.
    fn put_xattrs(
        &self,
        ino: u64,
        path: &[u8],
        wanted: impl Fn(&[u8]) -> bool,
        out: &mut Out<'_>,
    ) -> Result<()> {
        for (name, value) in self.moves.space.right.xattrs(ino)? {
            if wanted(&name) {
                out.put(&Command::SetXattr { path, name: &name, value: &value })?;
            }
        }
        Ok(())
    }
}

/// As system calls have it.
fn linux_dev(stored: u64) -> u64 {
    let (major, minor) = (stored >> 20, stored & 0xf_ffff);
    (minor & 0xff) | major << 8 | (minor & !0xff) << 12
}
