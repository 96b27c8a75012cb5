//! What a crash leaves: the writes that a flush covered, and any of the others.
//!
//! Invariants: a choice of one epoch is a function of the record, the budget and the seed.
//! Two writes of one sector never arrive in the wrong order, since the device took the
//! second one after the first (that only the first arrives is a choice like any other).

use crate::device::Event;
use crate::image::{Blocks, Image, SECTOR, put};
use crate::rng::Rng;
use std::collections::HashSet;

/// Everything that a device took, in order.
#[derive(Clone)]
pub struct Recording {
    pub(crate) base: Image,
    pub(crate) events: Vec<Event>,
}

impl Recording {
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// One for each flush, and the last one, which no flush ended. In order; what is durable
    /// is built on the way, so they cost little only if they are taken one by one.
    pub fn epochs(&self) -> impl Iterator<Item = Epoch> {
        let mut durable = Blocks::new();
        let mut start = 0;
        let mut index = 0;
        std::iter::from_fn(move || {
            if start > self.events.len() {
                return None;
            }
            let rest = &self.events[start..];
            let len = rest.iter().position(|event| matches!(event, Event::Flush));
            let len = len.unwrap_or(rest.len());
            let pending = rest[..len].to_vec();
            let base = Image::over(&self.base, durable.clone());
            let epoch = Epoch { index, end: start + len, durable: base, pending };
            for event in &epoch.pending {
                apply(&mut durable, &self.base, event, Fate::Arrived);
            }
            start += len + 1;
            index += 1;
            Some(epoch)
        })
    }
}

/// The time between two flushes.
pub struct Epoch {
    pub index: usize,
    /// The crash comes when so many events have happened: just before the next flush.
    pub end: usize,
    /// What the flushes before have made durable.
    pub durable: Image,
    /// Writes and discards that may arrive or not.
    pub pending: Vec<Event>,
}

/// What becomes of one write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fate {
    Lost,
    Arrived,
    /// Some of its sectors arrive: the first ones if the number is even, else any.
    Torn(u64),
}

/// What becomes of each pending write of an epoch, in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Choice(pub Vec<Fate>);

impl Epoch {
    /// At least the one where nothing arrives and the one where everything does; every subset
    /// if there are not more than `budget`; torn ones up to `budget`.
    pub fn choices(&self, budget: usize, seed: u64) -> Vec<Choice> {
        let count = self.pending.len();
        let mut list = Choices { seen: HashSet::new(), list: Vec::new() };
        list.add(vec![Fate::Lost; count]);
        list.add(vec![Fate::Arrived; count]);
        if count < 20 && 1usize << count <= budget {
            for subset in 0..1u64 << count {
                let fate = |bit| [Fate::Lost, Fate::Arrived][(subset >> bit & 1) as usize];
                list.add((0..count).map(fate).collect());
            }
        }
        let mut rng = Rng::new(seed ^ (self.index as u64) << 32);
        for _ in 0..4 * budget {
            if list.list.len() >= budget {
                break;
            }
            list.add(self.sample(&mut rng));
        }
        list.list
    }

    fn sample(&self, rng: &mut Rng) -> Vec<Fate> {
        let count = self.pending.len() as u64;
        if count == 0 {
            return Vec::new();
        }
        let one = rng.below(count);
        let way = rng.below(6);
        let mut fate = |i: u64| match way {
            // All but one, only one, the first ones, the last ones, any.
            0 => [Fate::Arrived, Fate::Lost][(i == one) as usize],
            1 => [Fate::Lost, Fate::Arrived][(i == one) as usize],
            2 => [Fate::Lost, Fate::Arrived][(i < one) as usize],
            3 => [Fate::Lost, Fate::Arrived][(i > one) as usize],
            // All but one, which is torn.
            4 if i != one => Fate::Arrived,
            4 => Fate::Torn(rng.next_u64()),
            _ => match rng.below(5) {
                0 | 1 => Fate::Lost,
                2 | 3 => Fate::Arrived,
                _ => Fate::Torn(rng.next_u64()),
            },
        };
        (0..count).map(&mut fate).collect()
    }

    /// What the device holds after the crash.
    pub fn image(&self, choice: &Choice) -> Image {
        let mut blocks = Blocks::new();
        for (event, fate) in self.pending.iter().zip(&choice.0) {
            apply(&mut blocks, &self.durable, event, *fate);
        }
        Image::over(&self.durable, blocks)
    }
}

struct Choices {
    seen: HashSet<Vec<Fate>>,
    list: Vec<Choice>,
}

impl Choices {
    fn add(&mut self, fates: Vec<Fate>) {
        if self.seen.insert(fates.clone()) {
            self.list.push(Choice(fates));
        }
    }
}

fn apply(blocks: &mut Blocks, below: &Image, event: &Event, fate: Fate) {
    match (event, fate) {
        (Event::Flush, _) | (_, Fate::Lost) => {}
        (Event::Write { offset, data }, Fate::Arrived) => put(blocks, below, *offset, data),
        (Event::Write { offset, data }, Fate::Torn(seed)) => {
            tear(blocks, below, *offset, data, seed)
        }
        (Event::Discard { offset, len }, _) => {
            put(blocks, below, *offset, &vec![0xd5; *len as usize]);
        }
    }
}

fn tear(blocks: &mut Blocks, below: &Image, offset: u64, data: &[u8], seed: u64) {
    let mut rng = Rng::new(seed);
    let sectors = data.len().div_ceil(SECTOR as usize) as u64;
    let first = rng.below(sectors);
    for (i, sector) in data.chunks(SECTOR as usize).enumerate() {
        let i = i as u64;
        let arrives = if seed.is_multiple_of(2) { i < first } else { rng.below(2) == 1 };
        if arrives {
            put(blocks, below, offset + i * SECTOR, sector);
        }
    }
}
