//! Attributes of one inode, its symlink target, and the volume's figures.

use super::Dispatcher;
use super::caller::{killing, may_take_bits};
use super::failure::Answer;
use super::reply::{self, Out};
use super::request::Request;
use crate::abi::fattr;
use crate::abi::record::*;
use vfs::{Errno, FileKind, Ino, SetAttr, SetTime, TARGET_MAX, Timestamp};

impl Dispatcher {
    pub(super) fn getattr(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let (ino, moment) = (self.ino(request), self.fs.moment());
        let attr = self.attr_with_pages(request, ino)?;
        out.put(&reply::attr_out(&self.shown(&attr), self.fs.lasts(ino, moment)))
    }

    pub(super) fn statx(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let (ino, moment) = (self.ino(request), self.fs.moment());
        let attr = self.attr_with_pages(request, ino)?;
        out.put(&reply::statx_out(&self.shown(&attr), self.fs.lasts(ino, moment)))
    }

    pub(super) fn setattr(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let arg: SetattrIn = request.arg()?;
        let (ino, moment) = (self.ino(request), self.fs.moment());
        let mut set = requested(&arg);
        if self.must_kill_priv(ino, &arg)? {
            let attr = self.owners.show(&self.fs.getattr(ino)?);
            let asked = set != SetAttr::default() || arg.valid & fattr::KILL_SUIDGID != 0;
            if asked || may_take_bits(&*self.callers, request, &attr) {
                let killing = killing(&*self.callers, request, &attr);
                (set.kill_priv, set.kill_sgid) = (killing.kill_priv, killing.kill_sgid);
            }
        }
        self.owners.give(&mut set)?;
        self.stored_before(request, ino, &set);
        let before = set.size.and_then(|_| self.fs.getattr(ino).ok()).map(|attr| attr.size);
        let end = set.size.and_then(|_| self.known_end(ino));
        let done = self.fs.setattr(&request.context(0), ino, &set);
        if done.is_err() && set.size.is_some() {
            // To the end of the file, however long that is.
            self.may_have_changed(ino, 0, 0);
        }
        let mut attr = done?;
        if let Some(size) = set.size {
            if self.grown(request, ino, end, size, size) {
                // Who waited may have been overtaken by a message that these are outdated. Set they are, whatever happens.
                attr = self.fs.getattr(ino).unwrap_or(attr);
            }
            self.end_is_set(ino, before, size);
        }
        let lasts = self.fs.lasts(ino, moment) && self.blocks_last(&attr);
        out.put(&reply::attr_out(&self.shown(&attr), lasts))
    }

    /// Stores through a map change the mtime when they are sent: those from before somebody sets it are sent before. Where that
    /// cannot be waited for they change it later. With `-o writeback` the kernel sends them by itself.
    fn stored_before(&self, request: &Request<'_>, ino: Ino, set: &SetAttr) {
        let on_purpose = matches!(set.mtime, Some(SetTime::At(_))) && !set.of_content;
        // While it changes the size the kernel sends nothing.
        if on_purpose && set.size.is_none() && !self.writeback && self.read.take(ino) {
            let _ = self.fetch_all_pages(request, ino);
        }
    }

    /// A truncation carries a flag; a change of owner does on newer kernels only, but
    /// under HANDLE_KILLPRIV_V2 the server clears the bits by itself, of files. A
    /// request that changes nothing means just that: it comes before a write by someone
    /// who may not keep the bits, and for `chown(-1, -1)`.
    fn must_kill_priv(&self, ino: Ino, arg: &SetattrIn) -> Answer<bool> {
        if arg.valid & fattr::KILL_SUIDGID != 0 {
            return Ok(true);
        }
        let meant = arg.valid & !(fattr::FH | fattr::LOCKOWNER);
        let owner = meant & (fattr::UID | fattr::GID) != 0;
        if !(owner || meant == 0) || meant & fattr::MODE != 0 {
            return Ok(false);
        }
        Ok(self.fs.getattr(ino)?.kind != FileKind::Dir)
    }

    pub(super) fn readlink(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let target = self.fs.readlink(self.ino(request))?;
        // The kernel refuses the whole reply; and nobody could follow it.
        if target.len() > TARGET_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        self.accessed(request, 0);
        out.bytes(&target)
    }

    pub(super) fn statfs(&self, out: &mut Out<'_>) -> Answer<()> {
        let figures = self.fs.statfs()?;
        out.put(&KStatfs {
            blocks: figures.blocks,
            bfree: figures.blocks_free,
            bavail: figures.blocks_available,
            files: figures.files,
            ffree: figures.files_free,
            bsize: figures.block_size,
            namelen: figures.name_max,
            frsize: figures.block_size,
            ..Default::default()
        })
    }
}

fn requested(arg: &SetattrIn) -> SetAttr {
    let has = |bit| arg.valid & bit != 0;
    let time = |bit, now, secs: u64, nanos| {
        let at = SetTime::At(Timestamp { secs: secs as i64, nanos });
        has(bit).then(|| if has(now) { SetTime::Now } else { at })
    };
    SetAttr {
        perm: has(fattr::MODE).then_some((arg.mode & 0o7777) as u16),
        uid: has(fattr::UID).then_some(arg.uid),
        gid: has(fattr::GID).then_some(arg.gid),
        size: has(fattr::SIZE).then_some(arg.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, arg.atime, arg.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, arg.mtime, arg.mtimensec),
        ctime: has(fattr::CTIME)
            .then_some(Timestamp { secs: arg.ctime as i64, nanos: arg.ctimensec }),
        btime: None,
        kill_priv: false,
        kill_sgid: false,
        of_content: is_of_content(arg.valid),
    }
}

/// Times that come with a handle are the kernel's own, told for what it wrote out of its cache: of a user's it
/// knows a path alone.
fn is_of_content(valid: u32) -> bool {
    valid == fattr::FH | fattr::MTIME | fattr::CTIME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_valid_members_are_set() {
        let arg = SetattrIn {
            valid: fattr::SIZE | fattr::ATIME | fattr::ATIME_NOW | fattr::MTIME,
            size: 7,
            mtime: (-5i64) as u64,
            mtimensec: 9,
            mode: 0o777,
            ..Default::default()
        };
        let set = requested(&arg);
        assert_eq!(set.size, Some(7));
        assert_eq!(set.perm, None);
        assert_eq!(set.atime, Some(SetTime::Now));
        assert_eq!(set.mtime, Some(SetTime::At(Timestamp { secs: -5, nanos: 9 })));
    }

    #[test]
    fn times_with_a_handle_are_those_of_content() {
        let of_content = |valid| requested(&SetattrIn { valid, ..Default::default() }).of_content;
        let times = fattr::MTIME | fattr::CTIME;
        assert!(of_content(times | fattr::FH));
        for other in [0, fattr::FH | fattr::SIZE, fattr::FH | fattr::MTIME_NOW] {
            assert!(!of_content(times | other), "{other:#x}");
        }
    }
}
