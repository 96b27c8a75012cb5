//! One thread's ring, with room for one command at a time.

use super::End;
use super::entry::Entry;
use crate::abi::record::UringCmdReq;
use crate::abi::{Wire, uring_cmd};
use crate::device::Device;
use crate::tidying::{REST, Tidying};
use io_uring::register::Restriction;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use std::io;
use std::os::fd::AsRawFd;

/// Offset of the `len` member in a submission entry.
const SQE_LEN: usize = 24;
/// `IOSQE_FIXED_FILE`: the file is one of those that were registered.
const FIXED_FILE: u8 = 1;

pub(super) struct Ring {
    uring: IoUring<Entry128, cqueue::Entry>,
    tidying: Tidying,
}

impl Ring {
    /// It takes nothing before `begin`, and then FUSE's commands on this device alone, whoever
    /// gets hold of it: a ring can do what a process may be forbidden.
    pub(super) fn new(device: &Device, tidying: Tidying) -> io::Result<Ring> {
        // A child that has the ring mapped would keep the connection open (`sys::unmount`).
        let uring: IoUring<Entry128, cqueue::Entry> = IoUring::builder()
            .dontfork()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(2)?;
        uring.submitter().register_files(&[device.as_raw_fd()])?;
        uring.submitter().register_restrictions(&mut [
            Restriction::sqe_op(opcode::UringCmd80::CODE),
            Restriction::sqe_flags_allowed(FIXED_FILE),
        ])?;
        Ok(Ring { uring, tidying })
    }

    /// To be called on the thread that will use it.
    pub(super) fn begin(&self) -> io::Result<()> {
        self.uring.submitter().register_enable_rings()
    }

    /// Gives the entry to the kernel for the first time. Like `commit` it returns when
    /// a request is in the entry's buffers.
    pub(super) fn register(&mut self, entry: &mut Entry) -> Result<(), End> {
        self.turn(entry, register).map_err(|error| match is_disconnect(&error) {
            true => End::Disconnected,
            false => End::NotRegistered(error),
        })
    }

    /// Hands the reply in the entry's buffers to the kernel and sleeps until the next
    /// request is there.
    pub(super) fn commit(&mut self, entry: &mut Entry) -> Result<(), End> {
        match self.turn(entry, commit) {
            Ok(()) => Ok(()),
            Err(error) if is_disconnect(&error) => Err(End::Disconnected),
            Err(error) => {
                // The request is lost to us, but the entry must come back.
                tracing::error!(qid = entry.qid, "committing a reply: {error}");
                self.register(entry).map_err(|end| match end {
                    End::NotRegistered(error) => End::Failed(error),
                    end => end,
                })
            }
        }
    }

    /// Submits a command on the entry and waits for its completion.
    fn turn(&mut self, entry: &mut Entry, command: fn(&Entry) -> Entry128) -> io::Result<()> {
        let command = command(entry);
        // SAFETY: the buffers and iovecs that the command names belong to `entry`, which
        // is borrowed until the completion. If this returns without one (the ring is
        // broken), the session's threads drop the ring, and with it the command, first.
        unsafe { self.uring.submission().push(&command) }.map_err(io::Error::other)?;
        // What is not submitted here is so by the wait.
        let first = || drop(self.uring.submit());
        let mut rests = self.tidying.before_a_wait(first);
        loop {
            match self.submit_and_wait(rests) {
                Ok(_) => {}
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
            if std::mem::take(&mut rests) && self.uring.completion().is_empty() {
                (self.tidying.tidy)();
            }
            if let Some(done) = self.uring.completion().next() {
                return match done.result() {
                    result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
                    _ => Ok(()),
                };
            }
        }
    }

    /// For as long as it takes, or until the thread is at rest.
    fn submit_and_wait(&self, until_rest: bool) -> io::Result<usize> {
        if !until_rest {
            return self.uring.submit_and_wait(1);
        }
        let time = types::Timespec::from(REST);
        let args = types::SubmitArgs::new().timespec(&time);
        self.uring.submitter().submit_with_args(1, &args)
    }
}

fn register(entry: &Entry) -> Entry128 {
    let parts = entry.buffers.parts();
    let record = UringCmdReq { qid: entry.qid, ..Default::default() };
    let mut command = opcode::UringCmd80::new(types::Fixed(0), uring_cmd::REGISTER)
        .cmd(command_area(&record))
        .addr(Some(parts.as_ptr() as u64))
        .build();
    // SAFETY: a submission entry is 128 bytes; its `len` (here the number of iovecs,
    // which the crate has no setter for) is the u32 at offset 24.
    unsafe {
        let len = (&raw mut command).cast::<u8>().add(SQE_LEN).cast::<u32>();
        len.write_unaligned(parts.len() as u32);
    }
    command
}

fn commit(entry: &Entry) -> Entry128 {
    let record = UringCmdReq { qid: entry.qid, commit_id: entry.commit_id, ..Default::default() };
    opcode::UringCmd80::new(types::Fixed(0), uring_cmd::COMMIT_AND_FETCH)
        .cmd(command_area(&record))
        .build()
}

fn command_area(record: &UringCmdReq) -> [u8; 80] {
    let mut area = [0u8; 80];
    record.store(&mut area);
    area
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME))
}

fn is_disconnect(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the ring answers to `command`.
    fn answer(ring: &mut Ring, command: Entry128) -> i32 {
        // SAFETY: the commands of this test point at static memory or at none.
        unsafe { ring.uring.submission().push(&command) }.unwrap();
        ring.uring.submit_and_wait(1).unwrap();
        ring.uring.completion().next().unwrap().result()
    }

    #[test]
    fn a_ring_takes_no_other_command() {
        let made = Device::open().and_then(|device| Ring::new(&device, Tidying::default()));
        let mut ring = match made {
            Ok(ring) => ring,
            Err(error) => return println!("SKIPPED: no ring over /dev/fuse: {error}"),
        };
        ring.begin().unwrap();
        let path = c"/etc/passwd".as_ptr();
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path).build();
        let socket = opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).build();
        for command in [open, socket, opcode::Nop::new().build()] {
            assert_eq!(answer(&mut ring, command.into()), -libc::EACCES);
        }
        let other = opcode::UringCmd80::new(types::Fd(0), uring_cmd::REGISTER).build();
        assert_ne!(answer(&mut ring, other), -libc::EACCES, "FUSE's kind of command passes");
        assert!(ring.uring.submitter().unregister_files().is_err());
    }
}
