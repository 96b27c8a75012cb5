//! Operations on names: finding, making, removing and moving them, and giving
//! lookup references back.

use super::failure::{Answer, Failure};
use super::reply::{self, Out};
use super::request::{Request, split_nul};
use super::{Dispatcher, Outcome};
use crate::abi::record::*;
use crate::abi::{ROOT_ID, Wire, fopen};
use vfs::{Entry, Errno, FileKind, FsError, Ino, NAME_MAX, RenameMode};

impl Dispatcher {
    pub(super) fn lookup(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let (name, dir, moment) = (request.name()?, self.ino(request), self.fs.moment());
        let remembered = || self.cache_negative && self.fs.lasts(dir, moment);
        match self.fs.lookup(&request.context(0), dir, name) {
            Ok(entry) => self.put_entry(&entry, moment, out),
            Err(FsError::Posix(Errno::ENOENT)) if remembered() => {
                // Node id 0 means: there is none, and you may remember that.
                out.put(&EntryOut { entry_valid: reply::FOREVER, ..Default::default() })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What was answered since `moment`.
    fn put_entry(&self, entry: &Entry, moment: u64, out: &mut Out<'_>) -> Answer<()> {
        let lasts = self.fs.lasts(entry.attr.ino, moment);
        out.put(&self.entry_out(entry, lasts))
    }

    pub(super) fn entry_out(&self, entry: &Entry, lasts: bool) -> EntryOut {
        let attr_lasts = lasts && self.blocks_last(&entry.attr);
        let shown = Entry { attr: self.shown(&entry.attr), ..*entry };
        reply::entry_out(&shown, &self.nodes, lasts, attr_lasts)
    }

    pub(super) fn forget(&self, request: &Request<'_>) -> Outcome {
        if let Some(forget) = ForgetIn::read(request.arg) {
            self.forget_node(request.header.nodeid, forget.nlookup);
        }
        Outcome::Silent
    }

    pub(super) fn batch_forget(&self, request: &Request<'_>) -> Outcome {
        let count = BatchForgetIn::read(request.arg).map_or(0, |batch| batch.count as usize);
        for one in request.payload.chunks_exact(ForgetOne::SIZE).take(count) {
            let one = ForgetOne::load(one);
            self.forget_node(one.nodeid, one.nlookup);
        }
        Outcome::Silent
    }

    fn forget_node(&self, nodeid: u64, count: u64) {
        // The root's first reference belongs to the mount and was never counted.
        if nodeid != ROOT_ID && count != 0 && !self.is_closed() {
            let ino = self.nodes.to_ino(nodeid);
            self.fs.forget(ino, count);
            // The kernel forgets what it knew of before, and may have looked it up anew.
            if self.is_noted(ino) && !self.fs.is_held(ino) {
                self.ends.take(ino);
                self.read.take(ino);
                self.listed.take(ino);
            }
        }
    }

    /// Of most inodes nothing is, and who forgets them by the million asks no further.
    fn is_noted(&self, ino: Ino) -> bool {
        self.ends.has(ino) || self.read.has(ino) || self.listed.has(ino)
    }

    /// Names of `dir` have changed. By itself the kernel looks for that only where a listing begins: who goes on with one at a
    /// position that he kept would be told the names of before. It holds the directory's lock for who changes
    /// names, so no listing is under way, and none of its pages locked.
    fn listing_ends(&self, dir: Ino) {
        if self.listed.take(dir) {
            self.notifier.listing_changed_now(dir);
        }
    }

    /// `name` came from another directory. If it is one itself its listing has another `..`, which the kernel keeps as it keeps
    /// names. Older kernels do not lock what moves, so somebody may be listing it, with a page locked.
    fn parent_changed(&self, request: &Request<'_>, dir: Ino, name: &[u8]) {
        let Ok(Entry { attr, .. }) = self.fs.lookup(&request.context(0), dir, name) else { return };
        self.fs.forget(attr.ino, 1);
        if self.listed.take(attr.ino) {
            let ticket = self.notifier.drop_pages(attr.ino, 0, 0);
            self.waiters.wait(request.origin, ticket, &self.notifier);
        }
    }

    pub(super) fn mknod(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let arg: MknodIn = request.arg()?;
        let kind = match arg.mode & libc::S_IFMT {
            0 => FileKind::File,
            _ => FileKind::from_mode(arg.mode).ok_or(Failure::from(Errno::EINVAL))?,
        };
        let (parent, moment) = (self.ino(request), self.fs.moment());
        let cx = self.maker(request, arg.umask, parent)?;
        let perm = (arg.mode & 0o7777) as u16;
        let entry = self.fs.mknod(&cx, parent, request.name()?, kind, perm, arg.rdev)?;
        self.listing_ends(parent);
        self.put_entry(&entry, moment, out)
    }

    pub(super) fn mkdir(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let arg: MkdirIn = request.arg()?;
        let (parent, moment) = (self.ino(request), self.fs.moment());
        let cx = self.maker(request, arg.umask, parent)?;
        let perm = (arg.mode & 0o7777) as u16;
        let entry = self.fs.mkdir(&cx, parent, request.name()?, perm)?;
        self.listing_ends(parent);
        self.put_entry(&entry, moment, out)
    }

    pub(super) fn symlink(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let name = request.name()?;
        let (_, rest) = split_nul(request.payload)?;
        let (target, _) = split_nul(rest)?;
        let (parent, moment) = (self.ino(request), self.fs.moment());
        let cx = self.maker(request, 0, parent)?;
        let entry = self.fs.symlink(&cx, parent, name, target)?;
        self.listing_ends(parent);
        self.put_entry(&entry, moment, out)
    }

    pub(super) fn link(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let arg: LinkIn = request.arg()?;
        let (ino, moment) = (self.nodes.to_ino(arg.oldnodeid), self.fs.moment());
        let dir = self.ino(request);
        let entry = self.fs.link(&request.context(0), ino, dir, request.name()?)?;
        self.listing_ends(dir);
        self.put_entry(&entry, moment, out)
    }

    pub(super) fn tmpfile(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let arg: CreateIn = request.arg()?;
        let (parent, moment) = (self.ino(request), self.fs.moment());
        let cx = self.maker(request, arg.umask, parent)?;
        let perm = (arg.mode & 0o7777) as u16;
        let entry = self.fs.tmpfile(&cx, parent, perm)?;
        self.put_entry(&entry, moment, out)?;
        out.put(&self.opened(fopen::KEEP_CACHE))
    }

    pub(super) fn unlink(&self, request: &Request<'_>) -> Answer<()> {
        let dir = self.ino(request);
        self.fs.unlink(&request.context(0), dir, request.name()?)?;
        self.listing_ends(dir);
        Ok(())
    }

    pub(super) fn rmdir(&self, request: &Request<'_>) -> Answer<()> {
        let dir = self.ino(request);
        self.fs.rmdir(&request.context(0), dir, request.name()?)?;
        self.listing_ends(dir);
        Ok(())
    }

    pub(super) fn rename(&self, request: &Request<'_>) -> Answer<()> {
        let arg: RenameIn = request.arg()?;
        self.move_name(request, arg.newdir, RenameMode::Replace)
    }

    pub(super) fn rename2(&self, request: &Request<'_>) -> Answer<()> {
        let arg: Rename2In = request.arg()?;
        const REPLACE: u32 = 0;
        const NOREPLACE_WHITEOUT: u32 = libc::RENAME_NOREPLACE | libc::RENAME_WHITEOUT;
        let mode = match arg.flags {
            REPLACE => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            libc::RENAME_WHITEOUT => RenameMode::Whiteout,
            NOREPLACE_WHITEOUT => RenameMode::NoReplaceWhiteout,
            _ => return Err(Errno::EINVAL.into()),
        };
        self.move_name(request, arg.newdir, mode)
    }

    fn move_name(&self, request: &Request<'_>, newdir: u64, mode: RenameMode) -> Answer<()> {
        let (old, new) = request.two_names()?;
        debug_assert!(old.len() <= NAME_MAX && new.len() <= NAME_MAX);
        let new_parent = self.nodes.to_ino(newdir);
        // A whiteout is made in the old one's place.
        let parent = self.ino(request);
        let cx = self.maker(request, 0, parent)?;
        self.fs.rename(&cx, parent, old, new_parent, new, mode)?;
        self.listing_ends(parent);
        self.listing_ends(new_parent);
        if parent != new_parent && !self.listed.is_empty() {
            self.parent_changed(request, new_parent, new);
            if mode == RenameMode::Exchange {
                self.parent_changed(request, parent, old);
            }
        }
        Ok(())
    }
}
