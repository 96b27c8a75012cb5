//! The memory of one ring entry, shared with the kernel.
//!
//! It belongs to the kernel from the submission of a command that names it until that
//! command's completion, and to the server in between.

use crate::abi::uring_header;
use std::io;
use std::ptr::NonNull;
use std::slice;

/// The headers take a page of their own, so that the payload is page-aligned.
const HEADER_SPACE: usize = 4096;

/// Page-aligned memory that the kernel writes requests to and reads replies from.
pub(super) struct Buffers {
    base: NonNull<u8>,
    payload_len: usize,
    /// What the registering command points at.
    parts: Box<[libc::iovec; 2]>,
}

// SAFETY: the mapping has one owner and is reached only through it.
unsafe impl Send for Buffers {}

impl Buffers {
    pub(super) fn new(payload_len: usize) -> io::Result<Buffers> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                HEADER_SPACE + payload_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let base = match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => base,
            _ => return Err(io::Error::last_os_error()),
        };
        let payload = payload_of(base);
        let parts = Box::new([
            libc::iovec { iov_base: base.as_ptr().cast(), iov_len: HEADER_SPACE },
            libc::iovec { iov_base: payload.cast(), iov_len: payload_len },
        ]);
        Ok(Buffers { base, payload_len, parts })
    }

    /// The two `iovec`s, at an address that stays.
    pub(super) fn parts(&self) -> &[libc::iovec; 2] {
        &self.parts
    }

    /// Headers and payload.
    ///
    /// # Safety
    /// No command on these buffers may be under way while the slices live.
    pub(super) unsafe fn slices(&mut self) -> (&mut [u8], &mut [u8]) {
        // SAFETY: both parts lie in the mapping, do not overlap and are initialised
        // (zeros at first); exclusive by the caller's promise and `&mut self`.
        unsafe {
            (
                slice::from_raw_parts_mut(self.base.as_ptr(), uring_header::LEN),
                slice::from_raw_parts_mut(payload_of(self.base), self.payload_len),
            )
        }
    }
}

fn payload_of(base: NonNull<u8>) -> *mut u8 {
    // SAFETY: the mapping is longer than the header space.
    unsafe { base.as_ptr().add(HEADER_SPACE) }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this length. An entry is dropped
        // after the ring on which its last command was, and with it that command.
        unsafe { libc::munmap(self.base.as_ptr().cast(), HEADER_SPACE + self.payload_len) };
    }
}
