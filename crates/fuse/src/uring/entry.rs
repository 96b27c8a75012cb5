//! One entry of a queue: its buffers, and the request or reply in them.
//!
//! Held by whichever thread serves it. Between a ring's completion and the next commit
//! no command is under way, which is when the methods here run: `Ring` takes the entry
//! by `&mut` for as long as a command is.

use super::buffers::Buffers;
use crate::abi::record::{InHeader, OutHeader, ReadIn, UringEntInOut};
use crate::abi::{Opcode, Wire, uring_header};
use crate::dispatch::{Dispatcher, Origin, Outcome, Request};
use std::io;

/// Replies that cannot be built in the payload buffer, where the request's names lie:
/// the longest is an extended attribute of 64 KiB.
const SCRATCH: usize = 72 << 10;
/// READs from this size on are worth a wake-up on another processor.
/// Chosen, not measured.
const LARGE_READ: u32 = 64 << 10;

pub(super) struct Entry {
    pub qid: u16,
    pub commit_id: u64,
    pub buffers: Buffers,
    scratch: Vec<u8>,
}

impl Entry {
    pub(super) fn new(qid: u16, payload_len: usize) -> io::Result<Entry> {
        let buffers = Buffers::new(payload_len)?;
        Ok(Entry { qid, commit_id: 0, buffers, scratch: vec![0; SCRATCH] })
    }

    /// True if the request in the buffers is a READ of much.
    pub(super) fn holds_large_read(&mut self) -> bool {
        // SAFETY: no command is under way (see the module's first lines).
        let (headers, _) = unsafe { self.buffers.slices() };
        InHeader::load(headers).opcode == Opcode::Read.number()
            && ReadIn::load(&headers[uring_header::OP..]).size >= LARGE_READ
    }

    /// Serves the request in the buffers and leaves the reply there.
    pub(super) fn answer(&mut self, dispatcher: &Dispatcher) {
        // SAFETY: no command is under way (see the module's first lines).
        let (headers, payload) = unsafe { self.buffers.slices() };
        let header = InHeader::load(headers);
        let mut state = UringEntInOut::load(&headers[uring_header::ENT..]);
        let filled = (state.payload_sz as usize).min(payload.len());
        let origin = Origin::Ring(self.qid);
        let outcome = {
            let op = &headers[uring_header::OP..uring_header::OP + uring_header::OP_LEN];
            let arg_len = Opcode::from_number(header.opcode).map_or(0, Opcode::arg_len);
            let arg = &op[..arg_len.min(op.len())];
            if Dispatcher::replies_in_place(header.opcode) {
                let request = Request { header, arg, payload: &[], origin };
                dispatcher.dispatch_from_ring(&request, payload)
            } else {
                let request = Request { header, arg, payload: &payload[..filled], origin };
                let outcome = dispatcher.dispatch_from_ring(&request, &mut self.scratch);
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
        state.payload_sz = len as u32;
        state.store(&mut headers[uring_header::ENT..]);
        self.commit_id = state.commit_id;
    }
}
