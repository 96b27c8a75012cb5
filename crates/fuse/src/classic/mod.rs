//! The loop over `/dev/fuse`: read a request, serve it, write the reply.
//!
//! The fallback transport is several of these, each on its own clone of the
//! connection. What still comes through the device beside io_uring is `gather`'s.

mod servers;

pub(crate) use servers::Servers;

use crate::abi::record::OutHeader;
use crate::abi::{MIN_READ_BUFFER, Wire};
use crate::device::Device;
use crate::dispatch::{Dispatcher, Outcome, Request};
use crate::polling::Polling;
use crate::sys;
use servers::Seat;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Room for the request's headers in front of its data.
const HEADERS: usize = 4096;

/// Memory for a request, and for its reply.
pub(crate) fn buffers(payload_len: usize) -> (Vec<u8>, Vec<u8>) {
    let input = vec![0u8; (payload_len + HEADERS).max(MIN_READ_BUFFER)];
    (input, vec![0u8; payload_len.max(MIN_READ_BUFFER)])
}

/// Serves by itself until the mount ends, whoever else does.
pub(crate) fn serve(
    device: &Device,
    dispatcher: &Dispatcher,
    payload_len: usize,
) -> io::Result<()> {
    let (mut input, mut output) = buffers(payload_len);
    while let Some(len) = device.receive(&mut input)? {
        answer(device, dispatcher, &input[..len], &mut output)?;
    }
    Ok(())
}

/// One thread of several that serve a connection.
pub(crate) struct Server {
    pub(crate) servers: Arc<Servers>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) polling: Arc<Polling>,
    /// Its own clone of the connection.
    pub(crate) device: Device,
    pub(crate) payload_len: usize,
}

impl Server {
    /// Serves until the mount ends. Whoever comes to an end, if by a panic, ends all.
    pub(crate) fn run(self) -> io::Result<()> {
        let _all = EndsAll(&self.servers);
        self.serve()
    }

    fn serve(&self) -> io::Result<()> {
        let (mut input, mut output) = buffers(self.payload_len);
        let seat = Seat::new();
        let tidying = self.dispatcher.tidying();
        let (mut home, mut has_place) = (None, false);
        while has_place || self.servers.to_door(&seat, tidying) {
            self.follow(&mut home);
            let received = self.device.receive(&mut input);
            self.servers.took();
            let Some(len) = received? else { break };
            let (unique, outcome) = dispatch(&self.dispatcher, &input[..len], &mut output);
            // Before the reply: the caller whom it wakes may well keep this processor, and his
            // next request is not to call somebody who has long been at home.
            has_place = self.servers.take_place();
            reply(&self.device, unique, outcome, &output)?;
            tidying.before_a_wait(|| {});
        }
        Ok(())
    }

    /// To where callers are, while that is known.
    fn follow(&self, home: &mut Option<usize>) {
        let now = self.polling.home();
        if std::mem::replace(home, now) == now {
            return;
        }
        match now {
            // What cannot be pinned serves all the same.
            Some(processor) => drop(sys::pin_to(processor)),
            None => sys::unpin(),
        }
    }
}

struct EndsAll<'a>(&'a Servers);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Serves one message, and replies if it wants a reply.
pub(crate) fn answer(
    device: &Device,
    dispatcher: &Dispatcher,
    message: &[u8],
    output: &mut [u8],
) -> io::Result<()> {
    let (unique, outcome) = dispatch(dispatcher, message, output);
    reply(device, unique, outcome, output)
}

/// Serves one message: the number of the request, and what is to be replied.
fn dispatch(dispatcher: &Dispatcher, message: &[u8], output: &mut [u8]) -> (u64, Outcome) {
    let Some(request) = Request::parse(message) else {
        tracing::error!(len = message.len(), "request without a header");
        return (0, Outcome::Silent);
    };
    (request.header.unique, dispatcher.dispatch(&request, output))
}

fn reply(device: &Device, unique: u64, outcome: Outcome, output: &[u8]) -> io::Result<()> {
    let (error, body) = match outcome {
        Outcome::Silent => return Ok(()),
        Outcome::Refuse(errno) => (-errno, &output[..0]),
        Outcome::Reply(len) => (0, &output[..len]),
    };
    match send(device, unique, error, body) {
        // The kernel does not take this reply: a fault of it, and not of the connection, by
        // which all others are served. (Mostly it has ended the request then: ENOENT.)
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            tracing::error!(unique, error, len = body.len(), "the kernel refuses a reply");
            match send(device, unique, -libc::EIO, &[]) {
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
                other => other,
            }
        }
        other => other,
    }
}

fn send(device: &Device, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
    let mut head = [0u8; OutHeader::SIZE];
    OutHeader { len: (head.len() + body.len()) as u32, error, unique }.store(&mut head);
    match device.send(&[IoSlice::new(&head), IoSlice::new(body)]) {
        // ENOENT: the caller was killed and nobody waits for this reply any more.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writing there fails with EINVAL, as replies to the kernel do that it cannot make sense of.
    #[test]
    fn a_reply_that_the_kernel_refuses_ends_nothing() {
        let file = std::fs::OpenOptions::new().write(true).open("/proc/self/oom_score_adj");
        let device = Device::from_fd(file.unwrap().into());
        let refused = device.send(&[IoSlice::new(b"no number")]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        for outcome in [Outcome::Reply(84), Outcome::Refuse(libc::ENOENT), Outcome::Silent] {
            reply(&device, 7, outcome, &[0; 128]).unwrap();
        }
    }
}
