//! The loop over `/dev/fuse`: read a request, serve it, write the reply.
//!
//! The fallback transport is several of these, each on its own clone of the
//! connection. What still comes through the device beside io_uring is `gather`'s.

use crate::abi::record::OutHeader;
use crate::abi::{MIN_READ_BUFFER, Wire};
use crate::device::Device;
use crate::dispatch::{Dispatcher, Outcome, Request};
use std::io::{self, IoSlice};

/// Room for the request's headers in front of its data.
const HEADERS: usize = 4096;

/// Memory for a request, and for its reply.
pub(crate) fn buffers(payload_len: usize) -> (Vec<u8>, Vec<u8>) {
    let input = vec![0u8; (payload_len + HEADERS).max(MIN_READ_BUFFER)];
    (input, vec![0u8; payload_len.max(MIN_READ_BUFFER)])
}

pub(crate) fn serve(
    device: &Device,
    dispatcher: &Dispatcher,
    payload_len: usize,
) -> io::Result<()> {
    let (mut input, mut output) = buffers(payload_len);
    while let Some(len) = device.receive(&mut input)? {
        let Some(request) = Request::parse(&input[..len]) else {
            tracing::error!(len, "request without a header");
            continue;
        };
        let outcome = dispatcher.dispatch(&request, &mut output);
        reply(device, request.header.unique, outcome, &output)?;
    }
    Ok(())
}

pub(crate) fn reply(
    device: &Device,
    unique: u64,
    outcome: Outcome,
    output: &[u8],
) -> io::Result<()> {
    let (error, body) = match outcome {
        Outcome::Silent => return Ok(()),
        Outcome::Refuse(errno) => (-errno, &output[..0]),
        Outcome::Reply(len) => (0, &output[..len]),
    };
    let mut head = [0u8; OutHeader::SIZE];
    OutHeader { len: (head.len() + body.len()) as u32, error, unique }.store(&mut head);
    match device.send(&[IoSlice::new(&head), IoSlice::new(body)]) {
        // ENOENT: the caller was killed and nobody waits for this reply any more.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => Ok(()),
        other => other,
    }
}
