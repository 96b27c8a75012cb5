//! Telling the kernel that something it remembers is no longer true.
//!
//! `*_now` methods return when the kernel has forgotten; handlers use them before they
//! reply, and only for attributes and listings (see `dispatch/mod.rs`). The others queue: an engine
//! may call them under its own locks, and threads of the session send: one of inodes, in order
//! (`inodes`), and beside it those of names, which wait for whoever lists a directory (`names`). Messages about
//! things that the kernel does not remember are harmless.

mod inodes;
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

/// What a thread is called that tells of names.
pub(crate) const NAMES_THREAD: &str = "fuse-names";

impl Observer for Notifier {
    fn attributes_changed(&self, ino: Ino) {
        self.inner.inodes.push(Message::Attributes(ino));
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
        self.inner.names.push(parent, name);
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
        self.send(&Message::Attributes(ino));
    }

    /// The kernel has no page of the directory's listing any more. Not where one may be locked: by who lists it.
    pub(crate) fn listing_changed_now(&self, dir: Ino) {
        self.send(&Message::Data { ino: dir, offset: 0, len: 0 });
    }

    /// As `data_changed`, for who may `wait` for it.
    pub(crate) fn drop_pages(&self, ino: Ino, offset: u64, len: u64) -> Ticket {
        let clip = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.inner.inodes.push(Message::Data { ino, offset: clip(offset), len: clip(len) })
    }

    /// Zeros are in the kernel's page of the range from then on, which is less than a page; its size of the file is that
    /// of their end at least. To be taken back if they come too late.
    pub(crate) fn zeros(&self, ino: Ino, range: Range<u64>) -> Ticket {
        self.inner.inodes.push(Message::Zeros { ino, range })
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

    /// The last of the messages about inodes that the kernel has not acted upon yet.
    pub(crate) fn last(&self) -> Option<Ticket> {
        self.inner.inodes.last()
    }

    /// Returns when the kernel has acted upon all that was queued before, or does not for long. Not for
    /// who serves requests.
    pub(crate) fn catch_up(&self) {
        let Inner { inodes, names, .. } = &*self.inner;
        let heard = inodes.last().is_none_or(|last| inodes.wait(last, LONG_PATIENCE));
        if !names.catch_up(LONG_PATIENCE) || !heard && inodes.is_served() {
            tracing::warn!("the kernel has not forgotten what changed");
        }
    }

    /// Sends what is queued of inodes until `close`; the body of the session's notifier thread.
    pub(crate) fn run(&self) {
        self.inner.inodes.run(|message| self.send(message));
    }

    /// The same of names. Where one of them has to wait for somebody another thread goes on. All of them keep a
    /// copy of `kept` until they end.
    pub(crate) fn run_names<K: Clone + Send + 'static>(&self, kept: K) {
        if self.inner.names.one_more() {
            self.send_names(kept);
        }
    }

    fn send_names<K: Clone + Send + 'static>(&self, kept: K) {
        let names = &self.inner.names;
        while let Some(taken) = names.take() {
            if names.one_more() {
                self.spawn_for_names(kept.clone());
            }
            self.send_name(taken.dir, &taken.name);
            drop(taken);
            if names.is_enough() {
                return;
            }
        }
        names.one_less();
    }

    fn spawn_for_names<K: Clone + Send + 'static>(&self, kept: K) {
        let notifier = self.clone();
        let made = thread::Builder::new().name(NAMES_THREAD.into()).spawn(move || {
            sys::block_signals();
            sys::mark_io_flusher();
            notifier.send_names(kept);
        });
        if let Err(error) = made {
            self.inner.names.one_less();
            tracing::warn!("starting a thread that tells the kernel of names: {error}");
        }
    }

    pub(crate) fn close(&self) {
        self.inner.inodes.close();
        self.inner.names.close();
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
