//! The loop over io_uring: the reply to one request and the wait for the next are one
//! system call.
//!
//! Layout, from measurements: several threads per processor, each pinned to it, each
//! with a ring of its own and exactly one entry in that processor's queue. A request is
//! then served on the processor where its caller just went to sleep (a third of the
//! time of a wake-up across processors), and a handler that blocks holds up nobody
//! else's entry.
//!
//! An entry's two buffers (headers, payload) belong to the kernel from the submission
//! of a command until its completion, and to the thread in between. `Ring` keeps to
//! that by handing slices out only inside `serve`'s turn.
//!
//! Any processor's queue without an entry would block its requests for ever, so all
//! rings are made before the kernel is told that this transport is wanted.

use crate::abi::record::{InHeader, OutHeader, UringCmdReq, UringEntInOut};
use crate::abi::{Opcode, Wire, uring_cmd, uring_header};
use crate::device::Device;
use crate::dispatch::{Dispatcher, Outcome, Request};
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::slice;

type Uring = IoUring<Entry128, cqueue::Entry>;

/// The headers take a page of their own, so that the payload is page-aligned.
const HEADER_SPACE: usize = 4096;
/// Replies that cannot be built in the payload buffer, where the request's names lie:
/// the longest is an extended attribute of 64 KiB.
const SCRATCH: usize = 72 << 10;
/// Offset of the `len` member in a submission entry.
const SQE_LEN: usize = 24;

/// Why a loop ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The mount is gone.
    Disconnected,
    /// The kernel refused to take the entry; requests come through the device instead.
    NotRegistered(io::Error),
}

pub(crate) struct Ring {
    uring: Uring,
    buffers: Buffers,
    scratch: Vec<u8>,
    /// `iovec`s of the two buffers, which the registering entry points at.
    parts: Box<[libc::iovec; 2]>,
}

impl Ring {
    /// Makes ring and buffers. Must run on the thread that will serve.
    pub fn new(device: &Device, payload_len: usize) -> io::Result<Ring> {
        let uring: Uring =
            IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(2)?;
        uring.submitter().register_files(&[device.as_raw_fd()])?;
        let buffers = Buffers::new(payload_len)?;
        let parts = Box::new([
            libc::iovec { iov_base: buffers.base.as_ptr().cast(), iov_len: HEADER_SPACE },
            libc::iovec { iov_base: buffers.payload_ptr().cast(), iov_len: payload_len },
        ]);
        Ok(Ring { uring, buffers, scratch: vec![0; SCRATCH], parts })
    }

    /// Registers this thread's entry in queue `qid` and serves it until the mount ends.
    pub fn serve(mut self, dispatcher: &Dispatcher, qid: u16) -> End {
        let mut command = self.register(qid);
        let mut registered = false;
        loop {
            match self.turn(command) {
                Ok(()) => registered = true,
                Err(error) if is_disconnect(&error) => return End::Disconnected,
                Err(error) if !registered => return End::NotRegistered(error),
                Err(error) => {
                    // The request is lost to us, but the entry must come back.
                    tracing::error!(qid, "committing a reply: {error}");
                    registered = false;
                    command = self.register(qid);
                    continue;
                }
            }
            let commit_id = self.answer(dispatcher);
            command = commit(qid, commit_id);
        }
    }

    /// Submits `command` and sleeps until it completes, which is when a request is in
    /// the buffers.
    fn turn(&mut self, command: Entry128) -> io::Result<()> {
        // SAFETY: the buffers and iovecs that the command names are members of `self`,
        // which outlives the command: the ring, the only one to complete it, is too.
        unsafe { self.uring.submission().push(&command) }.map_err(io::Error::other)?;
        loop {
            match self.uring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if retry(&error) => {}
                Err(error) => return Err(error),
            }
            if let Some(done) = self.uring.completion().next() {
                return match done.result() {
                    result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
                    _ => Ok(()),
                };
            }
        }
    }

    /// Serves the request in the buffers and leaves the reply there.
    fn answer(&mut self, dispatcher: &Dispatcher) -> u64 {
        // SAFETY: `turn` returned, so no command is under way and the kernel leaves the
        // buffers alone until the next one is submitted, after this function.
        let (headers, payload) = unsafe { self.buffers.slices() };
        let header = InHeader::load(headers);
        let mut entry = UringEntInOut::load(&headers[uring_header::ENT..]);
        let filled = (entry.payload_sz as usize).min(payload.len());
        let outcome = {
            let op = &headers[uring_header::OP..uring_header::OP + uring_header::OP_LEN];
            let arg_len = Opcode::from_number(header.opcode).map_or(0, Opcode::arg_len);
            let arg = &op[..arg_len.min(op.len())];
            if Dispatcher::replies_in_place(header.opcode) {
                dispatcher.dispatch(&Request { header, arg, payload: &[] }, payload)
            } else {
                let request = Request { header, arg, payload: &payload[..filled] };
                let outcome = dispatcher.dispatch(&request, &mut self.scratch);
                if let Outcome::Reply(len) = outcome {
                    payload[..len].copy_from_slice(&self.scratch[..len]);
                }
                outcome
            }
        };
        let (error, len) = match outcome {
            Outcome::Reply(len) => (0, len),
            Outcome::Refuse(errno) => (-errno, 0),
            Outcome::Silent => (0, 0),
        };
        let total = (OutHeader::SIZE + len) as u32;
        OutHeader { len: total, error, unique: header.unique }.store(headers);
        entry.payload_sz = len as u32;
        entry.store(&mut headers[uring_header::ENT..]);
        entry.commit_id
    }

    fn register(&self, qid: u16) -> Entry128 {
        let record = UringCmdReq { qid, ..Default::default() };
        let mut entry = opcode::UringCmd80::new(types::Fixed(0), uring_cmd::REGISTER)
            .cmd(command_area(&record))
            .addr(Some(self.parts.as_ptr() as u64))
            .build();
        // SAFETY: a submission entry is 128 bytes; its `len` (here the number of
        // iovecs, which the crate has no setter for) is the u32 at offset 24.
        unsafe {
            let len = (&raw mut entry).cast::<u8>().add(SQE_LEN).cast::<u32>();
            len.write_unaligned(self.parts.len() as u32);
        }
        entry
    }
}

fn commit(qid: u16, commit_id: u64) -> Entry128 {
    let record = UringCmdReq { qid, commit_id, ..Default::default() };
    opcode::UringCmd80::new(types::Fixed(0), uring_cmd::COMMIT_AND_FETCH)
        .cmd(command_area(&record))
        .build()
}

fn command_area(record: &UringCmdReq) -> [u8; 80] {
    let mut area = [0u8; 80];
    record.store(&mut area);
    area
}

fn retry(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

fn is_disconnect(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV)
    )
}

/// Page-aligned memory that the kernel writes requests to and reads replies from.
struct Buffers {
    base: NonNull<u8>,
    payload_len: usize,
}

impl Buffers {
    fn new(payload_len: usize) -> io::Result<Buffers> {
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
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(Buffers { base, payload_len })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn payload_ptr(&self) -> *mut u8 {
        // SAFETY: the mapping is longer than the header space.
        unsafe { self.base.as_ptr().add(HEADER_SPACE) }
    }

    /// Headers and payload.
    ///
    /// # Safety
    /// No command on these buffers may be under way while the slices live.
    unsafe fn slices(&mut self) -> (&mut [u8], &mut [u8]) {
        // SAFETY: both parts lie in the mapping, do not overlap and are initialised
        // (zeros at first); exclusive by the caller's promise and `&mut self`.
        unsafe {
            (
                slice::from_raw_parts_mut(self.base.as_ptr(), uring_header::LEN),
                slice::from_raw_parts_mut(self.payload_ptr(), self.payload_len),
            )
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this length. `Ring` drops its
        // uring first, and with it every command on the buffers.
        unsafe { libc::munmap(self.base.as_ptr().cast(), HEADER_SPACE + self.payload_len) };
    }
}
