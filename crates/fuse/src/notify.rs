//! Telling the kernel that something it remembers is no longer true.
//!
//! `*_now` methods return when the kernel has forgotten; handlers use them before they
//! reply, and only for attributes and listings (see `dispatch/mod.rs`). The others queue: an engine
//! may call them under its own locks, and a thread of the session sends. Messages about
//! things that the kernel does not remember are harmless.

use crate::abi::record::{NotifyInvalEntry, NotifyInvalInode, NotifyStore, OutHeader};
use crate::abi::{Wire, notify};
use crate::device::Device;
use crate::nodeid::NodeIds;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::{Ino, Observer};

/// How long somebody waits for a message to be acted upon.
/// Chosen, not measured.
const PATIENCE: Duration = Duration::from_millis(20);
/// The same, where nobody waits for the one who waits.
/// Chosen, not measured.
const LONG_PATIENCE: Duration = Duration::from_secs(5);

impl Observer for Notifier {
    fn attributes_changed(&self, ino: Ino) {
        self.push(Message::Attributes(ino));
    }
}

/// A handle for the engine and its background workers; cheap to clone.
#[derive(Clone)]
pub struct Notifier {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    nodes: NodeIds,
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Somebody in `wait` may go on.
    sent: Condvar,
}

/// The place of a message in the queue's history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Ticket(u64);

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    /// Messages ever queued, and those of them that the kernel has acted upon.
    queued: u64,
    sent: u64,
    /// There is a thread that sends; nobody waits without.
    running: bool,
    closed: bool,
}

enum Message {
    Attributes(Ino),
    Data {
        ino: Ino,
        offset: i64,
        len: i64,
    },
    Name {
        parent: Ino,
        name: Vec<u8>,
    },
    /// Less than a page.
    Zeros {
        ino: Ino,
        range: Range<u64>,
    },
    /// One that was taken back.
    Nothing,
}

impl Notifier {
    pub(crate) fn new(device: Device, root: Ino) -> Notifier {
        let nodes = NodeIds::new(root);
        let (wake, sent) = (Condvar::new(), Condvar::new());
        Notifier { inner: Arc::new(Inner { device, nodes, queue: Mutex::default(), wake, sent }) }
    }

    pub(crate) fn nodes(&self) -> NodeIds {
        self.inner.nodes
    }

    /// Data in the range changed under the kernel's page cache; `len` 0 means to the end.
    pub fn data_changed(&self, ino: Ino, offset: u64, len: u64) {
        self.drop_pages(ino, offset, len);
    }

    /// `name` appeared, vanished or now stands for something else in `parent`.
    pub fn name_changed(&self, parent: Ino, name: &[u8]) {
        self.drop_name(parent, name);
    }

    /// As `name_changed`, for who may `wait` for it: not inside an operation that has the
    /// directory's lock in the kernel.
    pub(crate) fn drop_name(&self, parent: Ino, name: &[u8]) -> Ticket {
        self.push(Message::Name { parent, name: name.to_vec() })
    }

    pub(crate) fn attributes_changed_now(&self, ino: Ino) {
        self.send(&Message::Attributes(ino));
    }

    /// The kernel has no page of the directory's listing any more. Not where one may be locked: by who lists it.
    pub(crate) fn listing_changed_now(&self, dir: Ino) {
        self.send(&Message::Data { ino: dir, offset: 0, len: 0 });
    }

    /// As `data_changed`, for who may `wait` for it.
    pub(crate) fn drop_pages(&self, ino: Ino, offset: u64, len: u64) -> Ticket {
        let clip = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.push(Message::Data { ino, offset: clip(offset), len: clip(len) })
    }

    /// Zeros are in the kernel's page of the range from then on, which is less than a page; its size of the file is that
    /// of their end at least. To be taken back if they come too late.
    pub(crate) fn zeros(&self, ino: Ino, range: Range<u64>) -> Ticket {
        self.push(Message::Zeros { ino, range })
    }

    /// A message is not sent any more. False: it was, or is being sent.
    pub(crate) fn take_back(&self, ticket: Ticket) -> bool {
        let mut queue = self.inner.queue.lock();
        let first = queue.queued - queue.messages.len() as u64 + 1;
        let place = ticket.0.checked_sub(first).and_then(|place| usize::try_from(place).ok());
        match place.and_then(|place| queue.messages.get_mut(place)) {
            Some(message) => {
                *message = Message::Nothing;
                true
            }
            None => false,
        }
    }

    /// Returns when the kernel has acted upon the message, nobody sends it any more, or
    /// `PATIENCE` is over: the kernel may wait for requests that it does not hand out before
    /// the caller's is answered (`dispatch/pages.rs`). Whether it has acted.
    pub(crate) fn wait(&self, ticket: Ticket) -> bool {
        let until = Instant::now() + PATIENCE;
        let mut queue = self.inner.queue.lock();
        while queue.running && !queue.closed && queue.sent < ticket.0 {
            if self.inner.sent.wait_until(&mut queue, until).timed_out() {
                tracing::debug!("the kernel has not forgotten yet; replying before it has");
                break;
            }
        }
        queue.sent >= ticket.0
    }

    /// The last of the messages that the kernel has not acted upon yet.
    pub(crate) fn last(&self) -> Option<Ticket> {
        let queue = self.inner.queue.lock();
        (queue.sent < queue.queued).then_some(Ticket(queue.queued))
    }

    /// Returns when the kernel has acted upon all that was queued before, or does not for long. Not for
    /// who serves requests.
    pub(crate) fn catch_up(&self) {
        let until = Instant::now() + LONG_PATIENCE;
        let mut queue = self.inner.queue.lock();
        let last = queue.queued;
        while queue.running && !queue.closed && queue.sent < last {
            if self.inner.sent.wait_until(&mut queue, until).timed_out() {
                return tracing::warn!("the kernel has not forgotten what changed");
            }
        }
    }

    fn push(&self, message: Message) -> Ticket {
        let mut queue = self.inner.queue.lock();
        if !queue.closed {
            queue.messages.push_back(message);
            queue.queued += 1;
            self.inner.wake.notify_one();
        }
        Ticket(queue.queued)
    }

    /// Sends what is queued until `close`; the body of the session's notifier thread.
    pub(crate) fn run(&self) {
        let mut queue = self.inner.queue.lock();
        queue.running = true;
        loop {
            let message = loop {
                if queue.closed {
                    return;
                }
                match queue.messages.pop_front() {
                    Some(message) => break message,
                    None => self.inner.wake.wait(&mut queue),
                }
            };
            drop(queue);
            self.send(&message);
            queue = self.inner.queue.lock();
            queue.sent += 1;
            self.inner.sent.notify_all();
        }
    }

    pub(crate) fn close(&self) {
        let mut queue = self.inner.queue.lock();
        queue.closed = true;
        queue.messages.clear();
        self.inner.wake.notify_all();
        self.inner.sent.notify_all();
    }

    fn send(&self, message: &Message) {
        let node = |ino: &Ino| self.inner.nodes.to_node(*ino);
        match message {
            Message::Attributes(ino) => self.inval_inode(node(ino), -1, 0),
            Message::Data { ino, offset, len } => self.inval_inode(node(ino), *offset, *len),
            Message::Zeros { ino, range } => {
                let size = (range.end - range.start) as u32;
                let (nodeid, offset) = (node(ino), range.start);
                let record = NotifyStore { nodeid, offset, size, padding: 0 };
                self.transmit(notify::STORE, &record, &[&vec![0; size as usize]]);
            }
            Message::Nothing => {}
            Message::Name { parent, name } => {
                let parent = node(parent);
                let record = NotifyInvalEntry { parent, namelen: name.len() as u32, flags: 0 };
                self.transmit(notify::INVAL_ENTRY, &record, &[name, b"\0"]);
                // The directory's own attributes and its cached listing.
                self.inval_inode(parent, 0, 0);
            }
        }
    }

    /// Messages that were queued where nobody sends them: of zeros, taken back or not, and of content that changed.
    #[cfg(test)]
    pub(crate) fn queued(&self) -> (usize, usize) {
        let queue = self.inner.queue.lock();
        let count = |is: fn(&Message) -> bool| queue.messages.iter().filter(|m| is(m)).count();
        (
            count(|message| matches!(message, Message::Zeros { .. } | Message::Nothing)),
            count(|message| matches!(message, Message::Data { .. })),
        )
    }

    fn inval_inode(&self, nodeid: u64, off: i64, len: i64) {
        self.transmit(notify::INVAL_INODE, &NotifyInvalInode { nodeid, off, len }, &[]);
    }

    fn transmit<T: Wire>(&self, code: i32, record: &T, tail: &[&[u8]]) {
        let mut body = vec![0u8; T::SIZE];
        record.store(&mut body);
        tail.iter().for_each(|part| body.extend_from_slice(part));
        let len = (OutHeader::SIZE + body.len()) as u32;
        let mut head = [0u8; OutHeader::SIZE];
        OutHeader { len, error: code, unique: 0 }.store(&mut head);
        let sent = self.inner.device.send(&[IoSlice::new(&head), IoSlice::new(&body)]);
        if let Err(error) = sent {
            // ENOENT: not cached. The others: the mount is going away.
            tracing::trace!("notification {code}: {error}");
        }
    }
}
