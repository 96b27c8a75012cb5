//! What a crash leaves: the writes that a flush covered, and any of the others.
//!
//! Invariants: a choice of one epoch is a function of the record, the budget and the seed.
//! Two writes of one sector never arrive in the wrong order, since the device took the
//! second one after the first (that only the first arrives is a choice like any other).

use crate::event::Event;
use crate::image::{Blocks, Image, SECTOR, put};
use crate::rng::Rng;
use std::collections::HashSet;

/// Everything that a device took and has not forgotten, in order.
#[derive(Clone)]
pub struct Recording {
    /// What was there, and what was durable before `events`.
    pub(crate) base: Image,
    pub(crate) forgotten: Forgotten,
    pub(crate) events: Vec<Event>,
}

/// How much came before the first event of a record.
#[derive(Clone, Copy, Default)]
pub(crate) struct Forgotten {
    pub(crate) events: usize,
    pub(crate) flushes: usize,
}

impl Recording {
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Those from `position` on, as `SimDevice::position` counts.
    pub fn since(&self, position: usize) -> &[Event] {
        &self.events[position.saturating_sub(self.forgotten.events).min(self.events.len())..]
    }

    /// One for each flush, and the last one, which no flush ended. In order; what is durable
    /// is built on the way, so they cost little only if they are taken one by one.
    pub fn epochs(&self) -> impl Iterator<Item = Epoch> {
        let mut durable = Blocks::new();
        let mut start = 0;
        let mut index = self.forgotten.flushes;
        std::iter::from_fn(move || {
            if start > self.events.len() {
                return None;
            }
            let rest = &self.events[start..];
            let len = rest.iter().position(|event| matches!(event, Event::Flush));
            let len = len.unwrap_or(rest.len());
            let pending = rest[..len].to_vec();
            let base = Image::over(&self.base, durable.clone());
            let end = self.forgotten.events + start + len;
            let epoch = Epoch { index, end, durable: base, pending };
            for event in &epoch.pending {
                apply(&mut durable, &self.base, event, WriteFate::Arrived);
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
pub enum WriteFate {
    Lost,
    Arrived,
    /// Some of its sectors arrive: the first ones if the number is even, else any.
    Torn(u64),
}

/// What becomes of each pending write of an epoch, in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Choice(pub Vec<WriteFate>);

impl Epoch {
    /// At least the one where nothing arrives and the one where everything does; every subset
    /// if there are not more than `budget`; torn ones up to `budget`.
    pub fn choices(&self, budget: usize, seed: u64) -> Vec<Choice> {
        let count = self.pending.len();
        let mut list = Choices { seen: HashSet::new(), list: Vec::new() };
        list.add(vec![WriteFate::Lost; count]);
        list.add(vec![WriteFate::Arrived; count]);
        if count < 20 && 1usize << count <= budget {
            for subset in 0..1u64 << count {
                let fate =
                    |bit| [WriteFate::Lost, WriteFate::Arrived][(subset >> bit & 1) as usize];
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

    fn sample(&self, rng: &mut Rng) -> Vec<WriteFate> {
        let count = self.pending.len() as u64;
        if count == 0 {
            return Vec::new();
        }
        let one = rng.below(count);
        let way = rng.below(6);
        let mut fate = |i: u64| match way {
            // All but one, only one, the first ones, the last ones, any.
            0 => [WriteFate::Arrived, WriteFate::Lost][(i == one) as usize],
            1 => [WriteFate::Lost, WriteFate::Arrived][(i == one) as usize],
            2 => [WriteFate::Lost, WriteFate::Arrived][(i < one) as usize],
            3 => [WriteFate::Lost, WriteFate::Arrived][(i > one) as usize],
            // All but one, which is torn.
            4 if i != one => WriteFate::Arrived,
            4 => WriteFate::Torn(rng.next_u64()),
            _ => match rng.below(5) {
                0 | 1 => WriteFate::Lost,
                2 | 3 => WriteFate::Arrived,
                _ => WriteFate::Torn(rng.next_u64()),
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
    seen: HashSet<Vec<WriteFate>>,
    list: Vec<Choice>,
}

impl Choices {
    fn add(&mut self, fates: Vec<WriteFate>) {
        if self.seen.insert(fates.clone()) {
            self.list.push(Choice(fates));
        }
    }
}

pub(crate) fn apply(blocks: &mut Blocks, below: &Image, event: &Event, fate: WriteFate) {
    match (event, fate) {
        (Event::Flush, _) | (_, WriteFate::Lost) => {}
        (Event::Write { offset, data }, WriteFate::Arrived) => put(blocks, below, *offset, data),
        (Event::Write { offset, data }, WriteFate::Torn(seed)) => {
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
