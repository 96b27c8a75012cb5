//! The loop over io_uring: the reply to one request and the wait for the next are one
//! system call.
//!
//! Layout, from measurements: several threads per processor, each pinned to it, each
//! with a ring of its own and exactly one entry in that processor's queue. A request is
//! then served on the processor where its caller just went to sleep (a third of the
//! time of a wake-up across processors), and a handler that blocks holds up nobody
//! else's entry.
//!
//! One kind of request is better served elsewhere: large READs, which readahead sends
//! while their caller is busy with the data before. So each thread has a partner that
//! is not pinned, and the entry changes hands: whoever commits a reply gets the
//! entry's next request on *its* ring, so a streak of large reads stays with the
//! partner and everything else at home (`Streak`).
//!
//! Any processor's queue without an entry would block its requests for ever, so all
//! rings are made before the kernel is told that this transport is wanted.

mod buffers;
mod entry;
mod ring;

use crate::device::Device;
use crate::dispatch::Dispatcher;
use entry::Entry;
use ring::Ring;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

/// Why a loop ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The mount is gone.
    Disconnected,
    /// The kernel refused to take the entry; requests come through the device instead.
    NotRegistered(io::Error),
    /// The entry cannot be given back, and the kernel counts on it.
    Failed(io::Error),
}

/// What a thread is there for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Share {
    Everything,
    AllButLargeReads,
    LargeReads,
}

/// Two in a row of the other's kind move the entry: in a mixture of both, moving
/// it for each would cost more than serving a few in the wrong place.
/// Chosen, not measured.
const STREAK: u32 = 2;

#[derive(Default)]
struct Streak(u32);

impl Streak {
    /// True if the request that just came is the partner's to serve.
    fn hands_over(&mut self, share: Share, large_read: bool) -> bool {
        let mine = match share {
            Share::Everything => true,
            Share::AllButLargeReads => !large_read,
            Share::LargeReads => large_read,
        };
        self.0 = if mine { 0 } else { self.0 + 1 };
        self.0 >= STREAK
    }
}

/// Everything that a serving thread needs, made on that thread before the kernel is
/// told of the transport.
pub(crate) struct Server {
    entry: Entry,
    ring: Ring,
    dispatcher: Arc<Dispatcher>,
    /// The ring of a partner that is not there yet, made here because a server that serves may
    /// not be allowed to make any. `None`: there will be none.
    partners: Option<Ring>,
}

impl Server {
    pub(crate) fn new(
        device: &Device,
        dispatcher: &Arc<Dispatcher>,
        qid: u16,
        payload_len: usize,
        spread: bool,
    ) -> io::Result<Server> {
        let spread = spread && crate::sys::possible_cpus().len() > 1;
        let tidying = dispatcher.tidying();
        let ring = Ring::new(device, tidying)?;
        ring.begin()?;
        Ok(Server {
            ring,
            entry: Entry::new(qid, payload_len)?,
            dispatcher: dispatcher.clone(),
            partners: spread.then(|| Ring::new(device, tidying)).transpose()?,
        })
    }

    /// Registers the entry and serves until the mount ends.
    pub(crate) fn serve(self) -> End {
        let Server { mut entry, mut ring, dispatcher, mut partners } = self;
        let mut share = match partners {
            Some(_) => Share::AllButLargeReads,
            None => Share::Everything,
        };
        let mut partner: Option<Partner> = None;
        if let Err(end) = ring.register(&mut entry) {
            return end;
        }
        loop {
            // Declared behind it, the ring goes before the entry's buffers, which its command may be on.
            if let Err(end) = serve_streak(&mut ring, &mut entry, &dispatcher, share) {
                return end;
            }
            if let Some(ring) = partners.take() {
                partner = Partner::start(ring, &dispatcher);
            }
            match partner.as_ref() {
                Some(partner) => match partner.lend(entry) {
                    Some(returned) => entry = returned,
                    None => return End::Disconnected,
                },
                None => share = Share::Everything,
            }
        }
    }
}

/// Serves what is in the entry and what follows, until a request waits in it that is
/// the partner's.
fn serve_streak(
    ring: &mut Ring,
    entry: &mut Entry,
    dispatcher: &Dispatcher,
    share: Share,
) -> Result<(), End> {
    let mut streak = Streak::default();
    loop {
        entry.answer(dispatcher);
        ring.commit(entry)?;
        if streak.hands_over(share, entry.holds_large_read()) {
            return Ok(());
        }
    }
}

/// The thread that serves large reads for one home thread.
struct Partner {
    /// `None` only while dropping.
    to: Option<Sender<Entry>>,
    back: Receiver<Entry>,
    thread: Option<JoinHandle<()>>,
}

impl Partner {
    fn start(ring: Ring, dispatcher: &Arc<Dispatcher>) -> Option<Partner> {
        let (to, entries) = channel::<Entry>();
        let (give_back, back) = channel();
        let (report, made) = channel();
        let dispatcher = dispatcher.clone();
        let work = move || {
            crate::sys::unpin();
            if let Err(error) = ring.begin() {
                return tracing::warn!("a ring for large reads: {error}");
            }
            let _ = report.send(());
            // As at home the ring goes before the entry, however this ends.
            let mut entry;
            let mut ring = ring;
            while let Ok(lent) = entries.recv() {
                entry = lent;
                let ended = serve_streak(&mut ring, &mut entry, &dispatcher, Share::LargeReads);
                if ended.is_err() || give_back.send(entry).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("fuse-read".into()).spawn(work).ok()?;
        made.recv().ok()?;
        Some(Partner { to: Some(to), back, thread: Some(thread) })
    }

    /// Gives the entry away until it comes back; `None` if the mount ended meanwhile.
    fn lend(&self, entry: Entry) -> Option<Entry> {
        self.to.as_ref()?.send(entry).ok()?;
        self.back.recv().ok()
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        drop(self.to.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_streaks_move_the_entry() {
        let mut streak = Streak::default();
        let mut comes = |large| streak.hands_over(Share::AllButLargeReads, large);
        assert!(!comes(true));
        assert!(!comes(false));
        assert!(!comes(true));
        assert!(comes(true));
        let mut streak = Streak::default();
        assert!((0..10).all(|_| !streak.hands_over(Share::Everything, true)));
        assert!((0..10).all(|_| !streak.hands_over(Share::LargeReads, true)));
    }
}
