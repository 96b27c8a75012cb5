//! What the kernel is to hear of inodes, in the order in which it was said.
//!
//! None of it takes a lock that somebody can hold for as long as he likes: of attributes none at all,
//! of content those of pages, which are held by who waits for us. One thread sends.
//!
//! Invariants: of what says the same of an inode one message is queued, of its content not many. One
//! that is queued stands for what changes until it begins to be sent, but not for what is
//! to come behind zeros.

use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};
use vfs::Ino;

/// Ranges of a file that are queued before all of it is.
/// Chosen, not measured.
const RANGES: usize = 64;
/// All of a file, as the kernel hears it.
const WHOLE: (i64, i64) = (0, 0);

/// The place of a message in the queue's history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Ticket(u64);

#[derive(PartialEq, Eq, Debug)]
pub(super) enum Message {
    Attributes(Ino),
    Data {
        ino: Ino,
        offset: i64,
        len: i64,
    },
    /// Less than a page.
    Zeros {
        ino: Ino,
        range: Range<u64>,
    },
    /// One that was taken back.
    Nothing,
}

/// What of an inode is queued.
#[derive(Default)]
struct Pending {
    attributes: Option<Ticket>,
    /// By range, where nothing else must come between.
    data: Vec<((i64, i64), Ticket)>,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    pending: HashMap<Ino, Pending>,
    /// Messages ever queued, and those of them that the kernel has acted upon.
    queued: u64,
    sent: u64,
    /// There is a thread that sends; nobody waits without.
    running: bool,
    closed: bool,
}

impl Queue {
    fn add(&mut self, message: Message) -> Ticket {
        self.queued += 1;
        self.messages.push_back(message);
        Ticket(self.queued)
    }

    fn push(&mut self, message: Message) -> Ticket {
        match message {
            Message::Attributes(ino) => {
                if let Some(ticket) = self.pending.entry(ino).or_default().attributes {
                    return ticket;
                }
                let ticket = self.add(message);
                self.pending.entry(ino).or_default().attributes = Some(ticket);
                ticket
            }
            Message::Data { ino, offset, len } => self.push_data(ino, (offset, len)),
            Message::Zeros { ino, .. } => {
                if let Some(pending) = self.pending.get_mut(&ino) {
                    pending.data.clear();
                }
                self.add(message)
            }
            Message::Nothing => self.add(message),
        }
    }

    fn push_data(&mut self, ino: Ino, range: (i64, i64)) -> Ticket {
        let data = &mut self.pending.entry(ino).or_default().data;
        let covers = |queued: &&((i64, i64), Ticket)| queued.0 == range || queued.0 == WHOLE;
        if let Some((_, ticket)) = data.iter().find(covers) {
            return *ticket;
        }
        let range = if data.len() < RANGES { range } else { WHOLE };
        let (offset, len) = range;
        let ticket = self.add(Message::Data { ino, offset, len });
        self.pending.entry(ino).or_default().data.push((range, ticket));
        ticket
    }

    /// The next one, which stands for nothing more from now on.
    fn pop(&mut self) -> Option<Message> {
        let message = self.messages.pop_front()?;
        let ticket = Ticket(self.queued - self.messages.len() as u64);
        if let Message::Attributes(ino) | Message::Data { ino, .. } = message
            && let Some(pending) = self.pending.get_mut(&ino)
        {
            pending.attributes.take_if(|queued| *queued == ticket);
            pending.data.retain(|(_, queued)| *queued != ticket);
            if pending.attributes.is_none() && pending.data.is_empty() {
                self.pending.remove(&ino);
            }
        }
        Some(message)
    }
}

pub(super) struct Inodes {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Somebody in `wait` may go on.
    sent: Condvar,
}

impl Inodes {
    pub(super) fn new() -> Inodes {
        Inodes { queue: Mutex::default(), wake: Condvar::new(), sent: Condvar::new() }
    }

    pub(super) fn push(&self, message: Message) -> Ticket {
        let mut queue = self.queue.lock();
        if queue.closed {
            return Ticket(queue.queued);
        }
        let ticket = queue.push(message);
        self.wake.notify_one();
        ticket
    }

    /// A message is not sent any more. False: it was, or is being sent.
    pub(super) fn take_back(&self, ticket: Ticket) -> bool {
        let mut queue = self.queue.lock();
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

    /// Returns when the kernel has acted upon the message, nobody sends it any more, or after `patience`. Whether
    /// it has acted.
    pub(super) fn wait(&self, ticket: Ticket, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut queue = self.queue.lock();
        while queue.running && !queue.closed && queue.sent < ticket.0 {
            if self.sent.wait_until(&mut queue, until).timed_out() {
                break;
            }
        }
        queue.sent >= ticket.0
    }

    /// Somebody sends.
    pub(super) fn is_served(&self) -> bool {
        let queue = self.queue.lock();
        queue.running && !queue.closed
    }

    /// The last of the messages that the kernel has not acted upon yet.
    pub(super) fn last(&self) -> Option<Ticket> {
        let queue = self.queue.lock();
        (queue.sent < queue.queued).then_some(Ticket(queue.queued))
    }

    /// Sends what is queued until `close`.
    pub(super) fn run(&self, send: impl Fn(&Message)) {
        let mut queue = self.queue.lock();
        queue.running = true;
        while !queue.closed {
            let Some(message) = queue.pop() else {
                self.wake.wait(&mut queue);
                continue;
            };
            drop(queue);
            send(&message);
            queue = self.queue.lock();
            queue.sent += 1;
            self.sent.notify_all();
        }
    }

    pub(super) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        queue.messages.clear();
        queue.pending.clear();
        self.wake.notify_all();
        self.sent.notify_all();
    }

    /// Messages that were queued where nobody sends them: of zeros, taken back or not, and of content that changed.
    #[cfg(test)]
    pub(super) fn queued(&self) -> (usize, usize) {
        let queue = self.queue.lock();
        let count = |is: fn(&Message) -> bool| queue.messages.iter().filter(|m| is(m)).count();
        (
            count(|message| matches!(message, Message::Zeros { .. } | Message::Nothing)),
            count(|message| matches!(message, Message::Data { .. })),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(offset: i64, len: i64) -> Message {
        Message::Data { ino: Ino(1), offset, len }
    }

    fn all(queue: &mut Queue) -> Vec<Message> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn the_same_is_queued_once_until_it_is_sent() {
        let mut queue = Queue::default();
        let first = queue.push(Message::Attributes(Ino(1)));
        assert_eq!(queue.push(Message::Attributes(Ino(1))), first);
        let range = queue.push(data(0, 4096));
        assert!(range > first && queue.push(data(0, 4096)) == range);
        assert!(queue.push(Message::Attributes(Ino(2))) > range);
        assert_eq!(queue.pop(), Some(Message::Attributes(Ino(1))));
        // What changes while it is being sent is told behind it.
        assert!(queue.push(Message::Attributes(Ino(1))) > range);
        let (one, two) = (Message::Attributes(Ino(1)), Message::Attributes(Ino(2)));
        assert_eq!(all(&mut queue), [data(0, 4096), two, one]);
        assert!(queue.pending.is_empty());
    }

    #[test]
    fn many_ranges_become_the_whole_file() {
        let mut queue = Queue::default();
        let tickets: Vec<Ticket> = (0..1000).map(|n| queue.push(data(n << 17, 1 << 17))).collect();
        assert!(tickets[RANGES..].iter().all(|ticket| *ticket == tickets[RANGES]));
        let all = all(&mut queue);
        assert_eq!((all.len(), &all[RANGES]), (RANGES + 1, &data(0, 0)));
        assert!(queue.pending.is_empty());
    }

    #[test]
    fn what_comes_behind_zeros_stays_there() {
        let mut queue = Queue::default();
        let zeros = || Message::Zeros { ino: Ino(1), range: 5..9 };
        let before = queue.push(data(0, 0));
        let ticket = queue.push(zeros());
        assert!(before < ticket && queue.push(data(0, 0)) > ticket);
        assert_eq!(all(&mut queue), [data(0, 0), zeros(), data(0, 0)]);
        assert!(queue.pending.is_empty());
    }
}
