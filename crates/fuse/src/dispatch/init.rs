//! The first exchange: what the kernel offers, what we take.
//!
//! Not taken on purpose: ATOMIC_O_TRUNC (with opens that send no message the kernel
//! would then silently not truncate), POSIX_LOCKS and FLOCK_LOCKS (the kernel keeps
//! locks for nothing), SPLICE, AUTO_INVAL_DATA (only we change files), SECURITY_CTX
//! and CREATE_SUPP_GROUP (extensions to every create).

use crate::abi::record::{InitIn, InitOut};
use crate::abi::{self, Wire, init};

/// Bytes of one request's data. The kernel counts in its own pages, and allows 256 of them unless an administrator
/// raised that: with pages of 4 KiB it is as much.
const MOST: u32 = 1 << 20;
/// Asynchronous requests in flight, and where readahead begins to hold back.
pub(super) const MAX_BACKGROUND: u16 = 64;
const CONGESTION: u16 = 48;

const WANTED: u64 = init::ASYNC_READ
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::HAS_IOCTL_DIR
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::NO_OPEN_SUPPORT
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::NO_OPENDIR_SUPPORT
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    // From then on only what makes a file says who asks: see `caller`.
    | init::ALLOW_IDMAP;

/// Without these the dispatcher's answers would mean something else.
const NEEDED: u64 = init::BIG_WRITES
    | init::DONT_MASK
    | init::NO_OPEN_SUPPORT
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT;

/// What both sides agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreement {
    pub offered: u64,
    pub flags: u64,
    pub max_write: u32,
    pub max_readahead: u32,
    max_pages: u16,
}

impl Agreement {
    pub(crate) fn offers_uring(&self) -> bool {
        self.offered & init::OVER_IO_URING != 0
    }

    /// Bytes that a request's data or a reply can have.
    pub(crate) fn payload_len(&self) -> usize {
        self.max_write.max(MOST) as usize
    }

    /// The reply, with or without the io_uring transport.
    pub(crate) fn reply(&self, uring: bool) -> InitOut {
        let flags = self.flags | if uring { init::OVER_IO_URING } else { 0 };
        InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR,
            max_readahead: self.max_readahead,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            max_background: MAX_BACKGROUND,
            congestion_threshold: CONGESTION,
            max_write: self.max_write,
            time_gran: 1,
            max_pages: self.max_pages,
            ..Default::default()
        }
    }
}

/// Reads the kernel's INIT, whose pages have `page` bytes. The error is a sentence for the administrator.
pub(crate) fn negotiate(
    arg: &[u8],
    page: u32,
    max_write: u32,
    writeback: bool,
) -> Result<Agreement, String> {
    // Kernels before 7.36 send a shorter record.
    let mut full = [0u8; InitIn::SIZE];
    let len = arg.len().min(full.len());
    full[..len].copy_from_slice(&arg[..len]);
    let offer = InitIn::load(&full);
    if len < 16 || offer.major != abi::MAJOR {
        return Err(format!("the kernel speaks FUSE {}.{}", offer.major, offer.minor));
    }
    let mut offered = u64::from(offer.flags);
    if offered & init::INIT_EXT != 0 {
        offered |= u64::from(offer.flags2) << 32;
    }
    let missing = NEEDED & !offered;
    if missing != 0 {
        return Err(format!(
            "the kernel's FUSE {}.{} lacks features (flags {missing:#x}); Linux 5.13 is the oldest that has them",
            offer.major, offer.minor
        ));
    }
    let max_pages = (MOST / page).max(1);
    let wanted = WANTED | if writeback { init::WRITEBACK_CACHE } else { 0 };
    Ok(Agreement {
        offered,
        flags: wanted & offered,
        max_write: (max_write / page).clamp(1, max_pages) * page,
        max_readahead: offer.max_readahead.max(MOST),
        max_pages: max_pages as u16,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(flags: u64) -> Vec<u8> {
        let arg = InitIn {
            major: 7,
            minor: 45,
            max_readahead: 131072,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            ..Default::default()
        };
        let mut bytes = vec![0; InitIn::SIZE];
        arg.write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn takes_only_what_is_offered() {
        let agreed = negotiate(&offer(NEEDED | init::POSIX_ACL), 4096, 1 << 20, true).unwrap();
        assert_eq!(agreed.flags, NEEDED | init::POSIX_ACL);
        assert!(!agreed.offers_uring());
        let all = negotiate(&offer(u64::MAX), 4096, 1 << 30, false).unwrap();
        assert_eq!(all.flags, WANTED);
        assert_eq!(all.max_write, 1 << 20);
        assert!(all.offers_uring());
        assert_eq!(all.reply(true).flags2, 1 << 9 | 1 << 8);
        assert_eq!(all.reply(false).flags2, 1 << 8, "idmapped mounts");
    }

    /// No request has more than the buffers, whatever the kernel's pages are.
    #[test]
    fn counts_in_the_kernels_pages() {
        for page in [4096, 16_384, 65_536] {
            let agreed = negotiate(&offer(u64::MAX), page, 1 << 20, false).unwrap();
            let told = agreed.reply(true);
            assert_eq!(u32::from(told.max_pages) * page, 1 << 20);
            assert_eq!((agreed.max_write, agreed.payload_len()), (1 << 20, 1 << 20));
            let small = negotiate(&offer(u64::MAX), page, 4096, false).unwrap();
            assert_eq!(small.max_write, page);
        }
    }

    #[test]
    fn refuses_kernels_that_are_too_old() {
        assert!(negotiate(&offer(0), 4096, 4096, false).unwrap_err().contains("lacks"));
        assert!(negotiate(&[0; 4], 4096, 4096, false).is_err());
    }
}
