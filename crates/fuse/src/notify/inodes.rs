//! What the kernel is to hear of inodes, of each in the order in which it was said.
//!
//! None of it takes a lock that somebody can hold for as long as he likes: of attributes none at all,
//! of content those of pages, which are held by who waits for us. But while the kernel drops content it waits for each page
//! that was written through a map, one behind the other: of one file for seconds, or minutes where writers are slowed down.
//! Other inodes do not wait for that (`lines`).
//!
//! Invariants: of what says the same of an inode one message is queued, of its content not many. One
//! that is queued stands for what changes until it begins to be sent, but not for what is
//! to come behind zeros.

use super::lines::{self, Lines, State};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};
use vfs::Ino;

/// Ranges of a file that are queued before all of it is.
/// Chosen, not measured.
const RANGES: usize = 64;
/// All of a file, as the kernel hears it.
const WHOLE: (i64, i64) = (0, 0);

/// A message of an inode's, by its place in the history of all. Of one inode the greater comes later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Ticket {
    ino: Ino,
    number: u64,
}

#[derive(PartialEq, Eq, Debug)]
pub(super) enum Message {
    Attributes,
    Data {
        offset: i64,
        len: i64,
    },
    /// Less than a page.
    Zeros(Range<u64>),
    /// One that was taken back.
    Nothing,
}

/// Messages by their numbers, which grow.
#[derive(Default)]
pub(super) struct Queue {
    messages: VecDeque<(u64, Message)>,
    sending: Option<u64>,
    attributes: Option<u64>,
    /// By range, where nothing else must come between.
    data: Vec<((i64, i64), u64)>,
}

impl Queue {
    fn add(&mut self, number: u64, message: Message) -> u64 {
        self.messages.push_back((number, message));
        number
    }

    /// The number of the message that stands for this one.
    fn push(&mut self, number: u64, message: Message) -> u64 {
        match message {
            Message::Attributes => {
                if let Some(queued) = self.attributes {
                    return queued;
                }
                self.attributes = Some(number);
            }
            Message::Data { offset, len } => return self.push_data(number, (offset, len)),
            Message::Zeros { .. } => self.data.clear(),
            Message::Nothing => {}
        }
        self.add(number, message)
    }

    fn push_data(&mut self, number: u64, range: (i64, i64)) -> u64 {
        let covers = |queued: &&((i64, i64), u64)| queued.0 == range || queued.0 == WHOLE;
        if let Some((_, queued)) = self.data.iter().find(covers) {
            return *queued;
        }
        let range = if self.data.len() < RANGES { range } else { WHOLE };
        self.data.push((range, number));
        self.add(number, Message::Data { offset: range.0, len: range.1 })
    }

    /// The kernel has acted upon all up to this one.
    fn is_past(&self, number: u64) -> bool {
        let first = self.sending.or(self.messages.front().map(|(first, _)| *first));
        first.is_none_or(|first| first > number)
    }

    fn last(&self) -> Option<u64> {
        self.messages.back().map(|(last, _)| *last).or(self.sending)
    }
}

impl lines::Line for Queue {
    type Item = Message;
    /// Short: who waits does so for `PATIENCE`, and waits for another inode's moment, too.
    /// Chosen, not measured.
    const MOMENT: Duration = Duration::from_millis(2);

    /// The next one, which stands for nothing more from now on.
    fn begin(&mut self) -> Option<Message> {
        let (number, message) = self.messages.pop_front()?;
        self.attributes.take_if(|queued| *queued == number);
        self.data.retain(|(_, queued)| *queued != number);
        self.sending = Some(number);
        Some(message)
    }

    fn sent(&mut self) {
        self.sending = None;
    }

    fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

pub(super) type Inodes = Lines<Queue>;

impl State<Queue> {
    fn has_acted(&self, ticket: Ticket) -> bool {
        self.lines.get(&ticket.ino).is_none_or(|queue| queue.is_past(ticket.number))
    }
}

impl Lines<Queue> {
    pub(super) fn say(&self, ino: Ino, message: Message) -> Ticket {
        let number = self.push(ino, |queue, number| queue.push(number, message));
        Ticket { ino, number: number.unwrap_or(0) }
    }

    /// A message is not sent any more. False: it was, or is being sent.
    pub(super) fn take_back(&self, ticket: Ticket) -> bool {
        let mut state = self.lock();
        let messages = state.lines.get_mut(&ticket.ino).map(|queue| &mut queue.messages);
        let mut queued = messages.into_iter().flatten();
        match queued.find(|(number, _)| *number == ticket.number) {
            Some((_, message)) => {
                *message = Message::Nothing;
                true
            }
            None => false,
        }
    }

    /// Returns when the kernel has acted upon the message, nobody sends it any more, or after `patience`. Whether
    /// it has acted.
    pub(super) fn wait(&self, ticket: Ticket, patience: Duration) -> bool {
        self.wait_until(ticket, Instant::now() + patience)
    }

    fn wait_until(&self, ticket: Ticket, until: Instant) -> bool {
        let mut state = self.lock();
        while state.is_served() && !state.has_acted(ticket) {
            if self.sent.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        !state.is_closed() && state.has_acted(ticket)
    }

    /// The same of all that was said before. True where nobody sends.
    pub(super) fn catch_up(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let state = self.lock();
        let of = |(ino, queue): (&Ino, &Queue)| Some(Ticket { ino: *ino, number: queue.last()? });
        let all: Vec<Ticket> = state.lines.iter().filter_map(of).collect();
        drop(state);
        let heard = all.into_iter().all(|last| self.wait_until(last, until));
        heard || !self.lock().is_served()
    }

    /// The last of the messages about an inode that the kernel has not acted upon yet.
    pub(super) fn last(&self, ino: Ino) -> Option<Ticket> {
        let number = self.lock().lines.get(&ino)?.last()?;
        Some(Ticket { ino, number })
    }

    /// Messages that were queued where nobody sends them: of zeros, taken back or not, and of content that changed.
    #[cfg(test)]
    pub(super) fn queued(&self) -> (usize, usize) {
        let state = self.lock();
        let all = || state.lines.values().flat_map(|queue| &queue.messages);
        let count = |is: fn(&Message) -> bool| all().filter(|(_, message)| is(message)).count();
        (
            count(|message| matches!(message, Message::Zeros { .. } | Message::Nothing)),
            count(|message| matches!(message, Message::Data { .. })),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::lines::Line;
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

    fn data(offset: i64, len: i64) -> Message {
        Message::Data { offset, len }
    }

    fn all(queue: &mut Queue) -> Vec<Message> {
        std::iter::from_fn(|| queue.begin()).collect()
    }

    #[test]
    fn the_same_is_queued_once_until_it_is_sent() {
        let mut queue = Queue::default();
        assert_eq!(queue.push(1, Message::Attributes), 1);
        assert_eq!(queue.push(2, Message::Attributes), 1);
        assert_eq!((queue.push(3, data(0, 4096)), queue.push(4, data(0, 4096))), (3, 3));
        assert_eq!(queue.begin(), Some(Message::Attributes));
        // What changes while it is being sent is told behind it.
        assert_eq!(queue.push(5, Message::Attributes), 5);
        assert!(!queue.is_past(1));
        queue.sent();
        assert!(queue.is_past(2) && !queue.is_past(3) && queue.last() == Some(5));
        assert_eq!(all(&mut queue), [data(0, 4096), Message::Attributes]);
        queue.sent();
        assert!(queue.is_past(5) && queue.attributes.is_none() && queue.data.is_empty());
    }

    #[test]
    fn many_ranges_become_the_whole_file() {
        let mut queue = Queue::default();
        let numbers: Vec<u64> =
            (0..1000).map(|n| queue.push(n, data((n as i64) << 17, 1 << 17))).collect();
        assert!(numbers[RANGES..].iter().all(|number| *number == RANGES as u64));
        let all = all(&mut queue);
        assert_eq!((all.len(), &all[RANGES]), (RANGES + 1, &data(0, 0)));
        assert!(queue.data.is_empty());
    }

    #[test]
    fn what_comes_behind_zeros_stays_there() {
        let mut queue = Queue::default();
        let zeros = || Message::Zeros(5..9);
        assert_eq!([data(0, 0), zeros(), data(0, 0)].map(|message| queue.push(7, message)), [7; 3]);
        assert_eq!(all(&mut queue), [data(0, 0), zeros(), data(0, 0)]);
        assert!(queue.data.is_empty());
    }

    /// A thread that sends, and others where it is held up.
    fn serve(inodes: &Arc<Inodes>, send: impl Fn(Ino, &Message) + Clone + Send + 'static) {
        let (inodes, again) = (inodes.clone(), send.clone());
        thread::spawn(move || inodes.serve(|| serve(&inodes, again.clone()), send));
    }

    /// A file whose pages are written one by one before they go.
    #[test]
    fn one_that_takes_long_holds_up_no_other() {
        let inodes = Arc::new(Inodes::new());
        let (report, reports) = channel();
        let (go_on, wait) = channel::<()>();
        let wait = Arc::new(parking_lot::Mutex::new(wait));
        assert!(inodes.one_more());
        serve(&inodes, move |ino, message| {
            if (ino, message) == (Ino(1), &data(0, 0)) {
                let _ = wait.lock().recv();
            }
            let _ = report.send(ino);
        });
        let long = inodes.say(Ino(1), data(0, 0));
        let behind = inodes.say(Ino(1), Message::Attributes);
        for other in 2..100 {
            let zeros = inodes.say(Ino(other), Message::Zeros(5..9));
            assert!(inodes.wait(zeros, Duration::from_secs(10)), "of another inode");
            assert_eq!(reports.recv(), Ok(Ino(other)));
        }
        assert!(!inodes.wait(behind, Duration::from_millis(50)), "behind what takes long");
        assert!(!inodes.take_back(long) && !inodes.catch_up(Duration::from_millis(50)));
        assert_eq!((inodes.last(Ino(1)), inodes.last(Ino(2))), (Some(behind), None));
        drop(go_on);
        assert!(inodes.wait(behind, Duration::from_secs(10)));
        assert!(inodes.catch_up(Duration::from_secs(10)) && inodes.lock().lines.is_empty());
        assert_eq!([(); 2].map(|()| reports.recv()), [Ok(Ino(1)); 2]);
        inodes.close();
        assert!(inodes.catch_up(Duration::from_secs(10)), "nobody sends");
    }
}
