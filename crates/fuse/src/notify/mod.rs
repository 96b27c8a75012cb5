//! Telling the kernel that something it remembers is no longer true.
//!
//! `*_now` methods return when the kernel has forgotten; handlers use them before they
//! reply, and only for attributes and listings (see `dispatch/mod.rs`). The others queue: an engine
//! may call them under its own locks, and threads of the session send, of each inode in order (`lines`): those of inodes
//! (`inodes`), and beside them those of names, which wait for whoever lists a directory (`names`). Messages about
//! things that the kernel does not remember are harmless.

mod inodes;
mod lines;
mod names;

pub(crate) use inodes::Ticket;

use crate::abi::record::{NotifyInvalEntry, NotifyInvalInode, NotifyStore, OutHeader};
use crate::abi::{Wire, notify};
use crate::device::Device;
use crate::nodeid::NodeIds;
use crate::sys;
use inodes::{Inodes, Message};
use names::Names;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use vfs::{Ino, Observer};

/// How long somebody waits for a message to be acted upon.
/// Chosen, not measured.
const PATIENCE: Duration = Duration::from_millis(20);
/// The same, where nobody waits for the one who waits.
/// Chosen, not measured.
const LONG_PATIENCE: Duration = Duration::from_secs(5);

/// What a thread tells of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject {
    Inodes,
    Names,
}

impl Subject {
    /// What it is called.
    pub(crate) fn thread(self) -> &'static str {
        match self {
            Subject::Inodes => "fuse-notify",
            Subject::Names => "fuse-names",
        }
    }
}

impl Observer for Notifier {
    fn attributes_changed(&self, ino: Ino) {
        self.inner.inodes.say(ino, Message::Attributes);
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
    inodes: Inodes,
    names: Names,
}

impl Notifier {
    pub(crate) fn new(device: Device, root: Ino) -> Notifier {
        let nodes = NodeIds::new(root);
        let (inodes, names) = (Inodes::new(), Names::new());
        Notifier { inner: Arc::new(Inner { device, nodes, inodes, names }) }
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
        self.inner.names.forget(parent, name);
    }

    /// Returns when the kernel has heard of all names that changed in these directories, or somebody is in its way.
    /// Not inside an operation that has the lock of one of them in the kernel.
    pub(crate) fn names_sent(&self, dirs: &[Ino]) {
        self.inner.names.wait_for(dirs, PATIENCE);
    }

    /// Somebody keeps many names of the directory from being heard of: there shall not be more.
    pub(crate) fn has_many_names(&self, dir: Ino) -> bool {
        self.inner.names.are_too_many(dir)
    }

    pub(crate) fn attributes_changed_now(&self, ino: Ino) {
        self.send(ino, &Message::Attributes);
    }

    /// The kernel has no page of the directory's listing any more. Not where one may be locked: by who lists it.
    pub(crate) fn listing_changed_now(&self, dir: Ino) {
        self.send(dir, &Message::Data { offset: 0, len: 0 });
    }

    /// As `data_changed`, for who may `wait` for it.
    pub(crate) fn drop_pages(&self, ino: Ino, offset: u64, len: u64) -> Ticket {
        let clip = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.inner.inodes.say(ino, Message::Data { offset: clip(offset), len: clip(len) })
    }

    /// Zeros are in the kernel's page of the range from then on, which is less than a page; its size of the file is that
    /// of their end at least. To be taken back if they come too late.
    pub(crate) fn zeros(&self, ino: Ino, range: Range<u64>) -> Ticket {
        self.inner.inodes.say(ino, Message::Zeros(range))
    }

    /// A message is not sent any more. False: it was, or is being sent.
    pub(crate) fn take_back(&self, ticket: Ticket) -> bool {
        self.inner.inodes.take_back(ticket)
    }

    /// Returns when the kernel has acted upon the message, nobody sends it any more, or
    /// `PATIENCE` is over: the kernel may wait for requests that it does not hand out before
    /// the caller's is answered (`dispatch/pages.rs`). Whether it has acted.
    pub(crate) fn wait(&self, ticket: Ticket) -> bool {
        let acted = self.inner.inodes.wait(ticket, PATIENCE);
        if !acted {
            tracing::debug!("the kernel has not forgotten yet; replying before it has");
        }
        acted
    }

    /// The last of the messages about an inode that the kernel has not acted upon yet.
    pub(crate) fn last(&self, ino: Ino) -> Option<Ticket> {
        self.inner.inodes.last(ino)
    }

    /// Returns when the kernel has acted upon all that was queued before, or does not for long. Not for
    /// who serves requests.
    pub(crate) fn catch_up(&self) {
        let Inner { inodes, names, .. } = &*self.inner;
        let heard = inodes.catch_up(LONG_PATIENCE);
        if !names.catch_up(LONG_PATIENCE) || !heard {
            tracing::warn!("the kernel has not forgotten what changed");
        }
    }

    /// Sends what is queued until `close`; the body of one of the session's threads. Where one message has to wait
    /// another thread goes on. All of them keep a copy of `kept` until they end.
    pub(crate) fn run<K: Clone + Send + 'static>(&self, subject: Subject, kept: K) {
        let begins = match subject {
            Subject::Inodes => self.inner.inodes.one_more(),
            Subject::Names => self.inner.names.one_more(),
        };
        if begins {
            self.serve(subject, &kept);
        }
    }

    fn serve<K: Clone + Send + 'static>(&self, subject: Subject, kept: &K) {
        let more = || self.spawn(subject, kept.clone());
        match subject {
            Subject::Inodes => self.inner.inodes.serve(more, |ino, said| self.send(ino, said)),
            Subject::Names => self.inner.names.serve(more, |dir, name| self.send_name(dir, name)),
        }
    }

    fn spawn<K: Clone + Send + 'static>(&self, subject: Subject, kept: K) {
        let (notifier, name) = (self.clone(), subject.thread());
        let made = thread::Builder::new().name(name.into()).spawn(move || {
            sys::block_signals();
            sys::mark_io_flusher();
            notifier.serve(subject, &kept);
        });
        if let Err(error) = made {
            let is_new = match subject {
                Subject::Inodes => self.inner.inodes.one_less(),
                Subject::Names => self.inner.names.one_less(),
            };
            // Each message tries again.
            if is_new {
                tracing::warn!("starting {name}, which tells the kernel what changed: {error}");
            }
        }
    }

    pub(crate) fn close(&self) {
        self.inner.inodes.close();
        self.inner.names.close();
    }

    fn send(&self, ino: Ino, message: &Message) {
        let nodeid = self.inner.nodes.to_node(ino);
        match message {
            Message::Attributes => self.inval_inode(nodeid, -1, 0),
            Message::Data { offset, len } => self.inval_inode(nodeid, *offset, *len),
            Message::Zeros(range) => {
                let size = (range.end - range.start) as u32;
                let record = NotifyStore { nodeid, offset: range.start, size, padding: 0 };
                self.transmit(notify::STORE, &record, &[&vec![0; size as usize]]);
            }
            Message::Nothing => {}
        }
    }

    fn send_name(&self, parent: Ino, name: &[u8]) {
        let parent = self.inner.nodes.to_node(parent);
        let record = NotifyInvalEntry { parent, namelen: name.len() as u32, flags: 0 };
        self.transmit(notify::INVAL_ENTRY, &record, &[name, b"\0"]);
        // The directory's own attributes and its cached listing.
        self.inval_inode(parent, 0, 0);
    }

    /// Messages that were queued where nobody sends them: of zeros, taken back or not, and of content that changed.
    #[cfg(test)]
    pub(crate) fn queued(&self) -> (usize, usize) {
        self.inner.inodes.queued()
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
