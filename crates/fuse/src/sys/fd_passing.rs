//! Receiving a descriptor over a socket, as `fusermount3` hands over the mount.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// Lets a child process inherit `fd`.
pub(crate) fn mark_inheritable(fd: RawFd) -> io::Result<()> {
    // SAFETY: fcntl with integer arguments on a descriptor; errors are returned.
    let rc = unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits for a message with a descriptor; `None` if the other side closed without one.
pub(crate) fn receive_fd(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // Room for one descriptor, aligned as a control message must be.
    let mut control = [0u64; 8];
    // SAFETY: msghdr is plain data, for which all zeros is a valid value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(&control) as _;
    let received = loop {
        // SAFETY: `message` points at `part`, `byte` and `control`, which live on.
        let rc = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
        match rc {
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error => return Err(error),
            },
            received => break received,
        }
    };
    if received == 0 {
        return Ok(None);
    }
    // SAFETY: `message` was filled by recvmsg; CMSG_FIRSTHDR stays inside `control` or
    // is null, and a rights message carries at least one descriptor, now ours.
    unsafe {
        let head = libc::CMSG_FIRSTHDR(&message);
        if head.is_null()
            || (*head).cmsg_level != libc::SOL_SOCKET
            || (*head).cmsg_type != libc::SCM_RIGHTS
        {
            return Ok(None);
        }
        let fd = libc::CMSG_DATA(head).cast::<RawFd>().read_unaligned();
        Ok(Some(OwnedFd::from_raw_fd(fd)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_socket_gives_nothing() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(receive_fd(&ours).unwrap().is_none());
    }
}
