//! Leave to do something by another way than the one on which it was asked for: who was found to be
//! allowed gets a word that nobody guesses, and whoever brings it is let in, once and soon.
//!
//! What it does not know: what is done then.

use locks::{Mutex, Rank};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};
use vfs::Ino;

/// How many are kept of one user, and of all: of his own the first one goes then, of all of them only
/// where many users ask.
/// Chosen, not measured.
const MOST: usize = 16;
const MOST_OF_ALL: usize = 1024;
const LASTS: Duration = Duration::from_secs(30);

pub(crate) struct Tickets {
    seed: RandomState,
    given: Mutex<Given>,
}

#[derive(Default)]
struct Given {
    count: u64,
    all: Vec<Ticket>,
}

struct Ticket {
    word: [u8; 16],
    dir: Ino,
    uid: u32,
    when: Instant,
}

impl Default for Tickets {
    fn default() -> Tickets {
        let given = Mutex::new(Rank::Leaf, Given::default());
        Tickets { seed: RandomState::new(), given }
    }
}

impl Tickets {
    /// For something in `dir`, which `uid` asks for.
    pub(crate) fn give(&self, dir: Ino, uid: u32) -> [u8; 16] {
        let mut given = self.given.lock();
        given.count += 1;
        let halves = [0_u64, 1].map(|half| self.seed.hash_one((given.count, half)).to_le_bytes());
        let mut word = [0; 16];
        word[..8].copy_from_slice(&halves[0]);
        word[8..].copy_from_slice(&halves[1]);
        given.make_room(uid);
        given.all.push(Ticket { word, dir, uid, when: Instant::now() });
        word
    }

    /// Where the bearer may do it.
    pub(crate) fn take(&self, word: &[u8]) -> Option<Ino> {
        let mut given = self.given.lock();
        given.all.retain(|ticket| ticket.when.elapsed() < LASTS);
        let at = given.all.iter().position(|ticket| ticket.word == word)?;
        Some(given.all.remove(at).dir)
    }
}

impl Given {
    /// For one more of this user.
    fn make_room(&mut self, uid: u32) {
        let of_user = |ticket: &&Ticket| ticket.uid == uid;
        let first = match self.all.iter().filter(of_user).count() >= MOST {
            true => self.all.iter().position(|ticket| ticket.uid == uid),
            false => (self.all.len() >= MOST_OF_ALL).then_some(0),
        };
        if let Some(first) = first {
            self.all.remove(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_lets_in_once() {
        let tickets = Tickets::default();
        let (one, other) = (tickets.give(Ino(7), 0), tickets.give(Ino(8), 0));
        assert_ne!(one, other);
        assert_eq!(tickets.take(&[0; 16]), None);
        assert_eq!(tickets.take(&other), Some(Ino(8)));
        assert_eq!(tickets.take(&other), None);
        assert_eq!(tickets.take(&one), Some(Ino(7)));
        let (first, others) = (tickets.give(Ino(1), 0), tickets.give(Ino(2), 1000));
        (0..MOST as u64).for_each(|ino| _ = tickets.give(Ino(ino), 0));
        assert_eq!(tickets.take(&first), None, "too many came since");
        assert_eq!(tickets.take(&others), Some(Ino(2)), "whose are his own");
        let first = tickets.give(Ino(1), 0);
        (1..=MOST_OF_ALL as u32).for_each(|uid| _ = tickets.give(Ino(2), uid));
        assert_eq!(tickets.take(&first), None, "too many users came since");
        assert_eq!(tickets.given.lock().all.len(), MOST_OF_ALL);
    }
}
