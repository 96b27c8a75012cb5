//! `/dev/fuse`: one open file per connection, and clones of it for more readers.
//!
//! A read delivers one whole request, a write takes one whole reply.

use crate::sys;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

#[derive(Clone)]
pub(crate) struct Device {
    file: Arc<File>,
}

fn open_device() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open("/dev/fuse")
}

impl Device {
    pub fn open() -> io::Result<Device> {
        Ok(Device { file: Arc::new(open_device()?) })
    }

    /// Wraps the descriptor that `fusermount3` made.
    pub fn from_fd(fd: OwnedFd) -> Device {
        Device { file: Arc::new(File::from(fd)) }
    }

    /// Another reader of the same connection with its own queue of requests in work.
    pub fn another(&self) -> io::Result<Device> {
        let file = open_device()?;
        sys::clone_fuse_connection(&file, self.as_raw_fd())?;
        Ok(Device { file: Arc::new(file) })
    }

    /// Waits for a request; `None` when the mount is gone.
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match (&*self.file).read(buf) {
                Ok(0) => return Ok(None),
                Ok(len) => return Ok(Some(len)),
                Err(error) => match error.raw_os_error() {
                    // ENOENT: the request was interrupted before we got it.
                    Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => continue,
                    Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                    _ => return Err(error),
                },
            }
        }
    }

    pub fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        loop {
            match (&*self.file).write_vectored(parts) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
