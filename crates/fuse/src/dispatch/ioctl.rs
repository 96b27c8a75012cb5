//! Control operations on files and directories.
//!
//! The kernel has checked ownership and CAP_LINUX_IMMUTABLE before a set by the numbers that
//! are here. A 32-bit program's numbers of a set come as these; whoever says them himself was
//! asked nothing, so they are not served. Only the record whose size is in the command number
//! travels; pointers in it do not. What is not in the table here may be the file system's own
//! (`control`).

use super::Dispatcher;
use super::caller;
use super::failure::{Answer, Failure};
use super::reply::Out;
use super::request::Request;
use crate::abi::Wire;
use crate::abi::record::*;
use vfs::{Durable, Errno, Ino};

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC32_GETFLAGS: u32 = 0x8004_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_GETVERSION: u32 = 0x8008_7601;
const FS_IOC32_GETVERSION: u32 = 0x8004_7601;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
const FS_IOC_GETFSLABEL: u32 = 0x8100_9431;
const FS_IOC_SETFSLABEL: u32 = 0x4100_9432;
/// Of the whole file system, on any of its directories.
const FITRIM: u32 = 0xc018_5879;
/// Its number says that it answers with a mode, and it takes one.
const FS_IOC_SHUTDOWN: u32 = 0x8004_587d;
const LABEL_MAX: usize = 256;

/// Immutable, append-only.
const CLOSING: u32 = 0x0000_0010 | 0x0000_0020;

/// (bit of FS_IOC_GETFLAGS, bit of `fsx_xflags`).
const FLAG_PAIRS: [(u32, u32); 5] = [
    (0x0000_0008, 0x0000_0020), // synchronous
    (0x0000_0010, 0x0000_0008), // immutable
    (0x0000_0020, 0x0000_0010), // append-only
    (0x0000_0040, 0x0000_0080), // no dump
    (0x0000_0080, 0x0000_0040), // no access time
];

impl Dispatcher {
    pub(super) fn ioctl(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let arg: IoctlIn = request.arg()?;
        let input = request.payload.get(..arg.in_size as usize).unwrap_or(&[]);
        let ino = self.ino(request);
        out.put(&IoctlOut::default())?;
        match arg.cmd {
            FS_IOC_GETFLAGS | FS_IOC32_GETFLAGS => out.put(&self.fs.flags(ino)?),
            FS_IOC_SETFLAGS => {
                let flags = u32::read(input).ok_or(Failure::from(Errno::EINVAL))?;
                self.set_flags(request, ino, flags)
            }
            FS_IOC_FSGETXATTR => {
                let xflags = to_xflags(self.fs.flags(ino)?);
                out.put(&FsXattr { xflags, ..Default::default() })
            }
            FS_IOC_FSSETXATTR => {
                let wanted = FsXattr::read(input).ok_or(Failure::from(Errno::EINVAL))?;
                let flags = merge_xflags(self.fs.flags(ino)?, &wanted)?;
                self.fetch_before_closing(request, ino, flags)?;
                self.fs.set_common_flags(&request.context(0), ino, flags)?;
                self.notifier.attributes_changed_now(ino);
                Ok(())
            }
            // Four bytes each, though the first one's number says `long`: the kernel's file systems
            // write an `int` there, and programs have no more room for it.
            FS_IOC_GETVERSION | FS_IOC32_GETVERSION => out.put(&self.generation(request, ino)?),
            FS_IOC_GETFSLABEL => self.put_label(out),
            FS_IOC_SETFSLABEL => self.set_label(request, arg.cmd, input),
            FITRIM => {
                let range = TrimRange::read(input).ok_or(Failure::from(Errno::EINVAL))?;
                self.trim(request, arg.cmd, &range, out)
            }
            FS_IOC_SHUTDOWN => self.shut_down(request, arg.cmd, arg.arg),
            _ => self.control(request, ino, &arg, input, out),
        }
    }

    /// The kernel brings nothing along, since the number says that nothing is to be brought: the
    /// mode is fetched from where the caller has it.
    fn shut_down(&self, request: &Request<'_>, command: u32, at: u64) -> Answer<()> {
        if !caller::is_admin(&*self.callers, request, (command, self.ino(request))) {
            return Err(Errno::EPERM.into());
        }
        let mode = caller::shutdown_mode(&*self.callers, request, at);
        let first = match mode.ok_or(Failure::from(Errno::EFAULT))? {
            0 => Durable::Everything,
            1 => Durable::Changes,
            2 => Durable::Synced,
            _ => return Err(Errno::EINVAL.into()),
        };
        Ok(self.fs.shut_down(first)?)
    }

    fn set_flags(&self, request: &Request<'_>, ino: Ino, flags: u32) -> Answer<()> {
        self.fetch_before_closing(request, ino, flags)?;
        self.fs.set_flags(&request.context(0), ino, flags)?;
        // The kernel does not expect this operation to change the ctime.
        self.notifier.attributes_changed_now(ino);
        Ok(())
    }

    /// What was stored through maps, and with `-o writeback` what was written, before a file is closed to changes is to be in
    /// it, as in the kernel's btrfs. When it comes later nobody knows that it was stored before.
    fn fetch_before_closing(&self, request: &Request<'_>, ino: Ino, flags: u32) -> Answer<()> {
        // An error is for who sets them to tell.
        let closes = self.fs.flags(ino).is_ok_and(|old| flags & !old & CLOSING != 0);
        if closes {
            self.fetch_all_pages(request, ino)?;
        }
        Ok(())
    }

    /// The kernel asks no file system but the one that serves this: administrators alone, as there.
    fn trim(
        &self,
        request: &Request<'_>,
        command: u32,
        range: &TrimRange,
        out: &mut Out<'_>,
    ) -> Answer<()> {
        if !caller::is_admin(&*self.callers, request, (command, self.ino(request))) {
            return Err(Errno::EPERM.into());
        }
        let len = self.fs.trim(&request.context(0), range.start, range.len, range.minlen)?;
        out.put(&TrimRange { len, ..*range })
    }

    /// The engine tells generations only with an entry, so it must know itself as `.`.
    fn generation(&self, request: &Request<'_>, ino: Ino) -> Answer<u32> {
        let entry = self.fs.lookup(&request.context(0), ino, b".").map_err(|_| Errno::ENOTTY)?;
        self.fs.forget(entry.attr.ino, 1);
        Ok(entry.generation as u32)
    }

    /// Errors in the order of the kernel's btrfs; any byte but NUL may be in a label.
    fn set_label(&self, request: &Request<'_>, command: u32, input: &[u8]) -> Answer<()> {
        if !caller::is_admin(&*self.callers, request, (command, self.ino(request))) {
            return Err(Errno::EPERM.into());
        }
        let text = input.get(..LABEL_MAX).ok_or(Failure::from(Errno::EINVAL))?;
        let end = text.iter().position(|byte| *byte == 0).ok_or(Failure::from(Errno::EINVAL))?;
        Ok(self.fs.set_label(&request.context(0), &text[..end])?)
    }

    fn put_label(&self, out: &mut Out<'_>) -> Answer<()> {
        let label = self.fs.label()?;
        let mut text = [0u8; LABEL_MAX];
        let len = label.len().min(LABEL_MAX - 1);
        text[..len].copy_from_slice(&label[..len]);
        out.bytes(&text)
    }
}

fn to_xflags(flags: u32) -> u32 {
    FLAG_PAIRS.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, xflag)| xflag).sum()
}

fn merge_xflags(old: u32, wanted: &FsXattr) -> Answer<u32> {
    let known: u32 = FLAG_PAIRS.iter().map(|(_, xflag)| xflag).sum();
    let extent_hints = wanted.extsize | wanted.cowextsize;
    if wanted.xflags & !known != 0 || extent_hints != 0 || wanted.projid != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    Ok(FLAG_PAIRS.iter().fold(old, |flags, (flag, xflag)| {
        if wanted.xflags & xflag != 0 { flags | flag } else { flags & !flag }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xflags_translate_both_ways() {
        assert_eq!(to_xflags(0x10 | 0x80 | 0x0080_0000), 0x8 | 0x40);
        let wanted = FsXattr { xflags: 0x8, ..Default::default() };
        assert_eq!(merge_xflags(0x0080_0000 | 0x40, &wanted).unwrap(), 0x0080_0010);
        let unknown = FsXattr { xflags: 0x8000_0000, ..Default::default() };
        assert!(merge_xflags(0, &unknown).is_err());
    }
}
