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

/// What a look without waiting finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Received {
    /// One of this length.
    Request(usize),
    Nothing,
    /// The mount is gone.
    End,
}

fn open_device(flags: i32) -> io::Result<File> {
    let flags = libc::O_CLOEXEC | flags;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/fuse")
}

impl Device {
    pub(crate) fn open() -> io::Result<Device> {
        Ok(Device { file: Arc::new(open_device(0)?) })
    }

    /// Wraps the descriptor that `fusermount3` made.
    pub(crate) fn from_fd(fd: OwnedFd) -> Device {
        Device { file: Arc::new(File::from(fd)) }
    }

    /// Another reader of the same connection with its own queue of requests in work.
    pub(crate) fn another(&self) -> io::Result<Device> {
        self.clone_with(0)
    }

    /// The same, for looking whether a request is there.
    pub(crate) fn another_that_never_waits(&self) -> io::Result<Device> {
        self.clone_with(libc::O_NONBLOCK)
    }

    fn clone_with(&self, flags: i32) -> io::Result<Device> {
        let file = open_device(flags)?;
        sys::clone_fuse_connection(&file, self.as_raw_fd())?;
        Ok(Device { file: Arc::new(file) })
    }

    /// Waits for a request; `None` when the mount is gone.
    pub(crate) fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
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

    /// Waits until a request is there, or the mount is gone.
    pub(crate) fn wait(&self) -> io::Result<()> {
        sys::wait_readable(self.as_raw_fd())
    }

    /// A request that is there, for devices from `another_that_never_waits`.
    pub(crate) fn receive_now(&self, buf: &mut [u8]) -> io::Result<Received> {
        loop {
            match (&*self.file).read(buf) {
                Ok(0) => return Ok(Received::End),
                Ok(len) => return Ok(Received::Request(len)),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::ENOENT) => continue,
                    Some(libc::EAGAIN) => return Ok(Received::Nothing),
                    Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(Received::End),
                    _ => return Err(error),
                },
            }
        }
    }

    pub(crate) fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
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
