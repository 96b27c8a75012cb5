//! Leave to do something by another way than the one on which it was asked for: who was found to be
//! allowed gets a word that nobody guesses, and whoever brings it is let in, once and soon.
//!
//! What it does not know: what is done then.

use locks::{Mutex, Rank};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};
use vfs::Ino;

/// How many are kept; who comes after so many others asks again.
/// Chosen, not measured.
const MOST: usize = 16;
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
    when: Instant,
}

impl Default for Tickets {
    fn default() -> Tickets {
        let given = Mutex::new(Rank::Leaf, Given::default());
        Tickets { seed: RandomState::new(), given }
    }
}

impl Tickets {
    /// For something in `dir`.
    pub(crate) fn give(&self, dir: Ino) -> [u8; 16] {
        let mut given = self.given.lock();
        given.count += 1;
        let halves = [0_u64, 1].map(|half| self.seed.hash_one((given.count, half)).to_le_bytes());
        let mut word = [0; 16];
        word[..8].copy_from_slice(&halves[0]);
        word[8..].copy_from_slice(&halves[1]);
        if given.all.len() >= MOST {
            given.all.remove(0);
        }
        given.all.push(Ticket { word, dir, when: Instant::now() });
        word
    }

    /// Where the bearer may do it.
    pub(crate) fn take(&self, word: &[u8]) -> Option<Ino> {
        let mut given = self.given.lock();
        given.all.retain(|ticket| ticket.when.elapsed() < LASTS);
        let at = given.all.iter().position(|ticket| ticket.word == word)?;
        Some(given.all.swap_remove(at).dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_lets_in_once() {
        let tickets = Tickets::default();
        let (one, other) = (tickets.give(Ino(7)), tickets.give(Ino(8)));
        assert_ne!(one, other);
        assert_eq!(tickets.take(&[0; 16]), None);
        assert_eq!(tickets.take(&other), Some(Ino(8)));
        assert_eq!(tickets.take(&other), None);
        assert_eq!(tickets.take(&one), Some(Ino(7)));
        let first = tickets.give(Ino(1));
        (0..MOST as u64).for_each(|ino| _ = tickets.give(Ino(ino)));
        assert_eq!(tickets.take(&first), None, "too many came since");
    }
}
