//! `setattr`: mode, owner, size and times in one step.

use vfs::{Attr, Context, Errno, FileKind, Ino, Result, SetAttr, SetTime, Timestamp};

use super::acl::{ACCESS, Acl};
use super::state::{Inode, State};
use super::xattrs::CAPABILITY;

/// Clears set-user-ID, and set-group-ID where it means execution.
pub(super) fn kill_suid_sgid(inode: &mut Inode, sgid: bool) {
    if inode.kind == FileKind::Dir {
        return;
    }
    inode.perm &= !(libc::S_ISUID as u16);
    if sgid || inode.perm & libc::S_IXGRP as u16 != 0 {
        inode.perm &= !(libc::S_ISGID as u16);
    }
}

/// File capabilities do not survive a change of content or owner, whoever made it.
pub(super) fn drop_capability(inode: &mut Inode) {
    inode.xattrs.remove(CAPABILITY);
}

fn check_allowed(inode: &Inode, set: &SetAttr) -> Result<()> {
    let frozen = inode.immutable() || inode.append_only();
    let touch = set.atime == Some(SetTime::Now) && set.mtime == Some(SetTime::Now);
    let times = set.atime.is_some() || set.mtime.is_some();
    let owner = set.uid.is_some() || set.gid.is_some();
    let refused = set.perm.is_some() || owner || set.size.is_some() || (times && !touch);
    if (frozen && refused) || (inode.immutable() && times) {
        return Err(Errno::EPERM.into());
    }
    Ok(())
}

fn chmod(inode: &mut Inode, perm: u16) -> Result<()> {
    inode.perm = perm & 0o7777;
    if let Some(bytes) = inode.xattrs.get(ACCESS)
        && let Some(mut acl) = Acl::parse(bytes)?
    {
        acl.set_mode(perm);
        inode.xattrs.insert(ACCESS.to_vec(), acl.to_bytes());
    }
    Ok(())
}

fn set_times(inode: &mut Inode, set: &SetAttr, now: Timestamp) {
    let pick = |time| match time {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    inode.atime = set.atime.map_or(inode.atime, pick);
    inode.mtime = set.mtime.map_or(inode.mtime, pick);
    inode.ctime = set.ctime.unwrap_or(now);
    inode.btime = set.btime.unwrap_or(inode.btime);
}

impl State {
    pub(super) fn setattr(&mut self, _cx: &Context, ino: Ino, set: &SetAttr) -> Result<Attr> {
        check_allowed(self.get(ino)?, set)?;
        if *set == SetAttr::default() {
            return self.attr(ino);
        }
        if let Some(size) = set.size {
            self.resize(ino, size)?;
        }
        let now = self.now();
        let inode = self.get_mut(ino)?;
        if set.kill_priv {
            kill_suid_sgid(inode, set.kill_sgid);
        }
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        if (set.uid.is_some() || set.gid.is_some()) && inode.kind != FileKind::Dir {
            drop_capability(inode);
        }
        if let Some(perm) = set.perm {
            chmod(inode, perm)?;
        }
        let only_size = SetAttr { size: None, ..*set } == SetAttr::default();
        if !only_size {
            set_times(inode, set, now);
        }
        self.attr(ino)
    }

    /// Truncation to the same size sets the times, as an open with O_TRUNC must.
    fn resize(&mut self, ino: Ino, size: u64) -> Result<()> {
        let now = self.now();
        if size > i64::MAX as u64 {
            return Err(Errno::EFBIG.into());
        }
        self.file_mut(ino)?.truncate(size);
        let inode = self.get_mut(ino)?;
        drop_capability(inode);
        inode.touch(now);
        Ok(())
    }
}
