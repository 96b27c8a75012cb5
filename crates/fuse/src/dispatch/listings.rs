//! Where each listing of a directory ends: where the directory ended when it began.
//!
//! A name that moves goes to the end of its directory, so a listing that followed would never
//! end beside a storm of renames. Opening a directory sends no message here and READDIR names
//! no open directory, so it is the offset that says which listing it goes on with. Programs
//! without large files (32 bits) know none from 2^31 on, so what fits is told in a short form:
//!
//! | an offset | holds |
//! |---|---|
//! | below 2^20 | the file system's offset; a listing begins, or is rewound |
//! | below 2^30 | bits 0..20 the file system's offset, bits 20..30 the listing's number, from 1 on |
//! | from 2^47 on | bits 0..47 the file system's offset, bits 47..62 the listing's number, from 1 on |
//! | bit 62 set | the file system's offset is longer, bits 0..62 hold it, and no listing is known |
//!
//! The file system's offset alone says which form tells it, and no value is of two forms. Those of older
//! mounts, which knew no short form, are read as they were.
//!
//! A number is used again once all are taken: first that of whichever listing met its end longest ago,
//! then whichever began longest ago. Who comes with one that is another directory's by then, or
//! with one of an earlier mount (NFS), goes on in a new listing; with one of the same directory he
//! goes on as far as a later listing does.

use parking_lot::Mutex;
use std::collections::VecDeque;
use vfs::Ino;

const SHORT_BITS: u32 = 20;
const OFFSET_BITS: u32 = 47;
/// The short form has no room for more.
const NUMBERS: usize = (1 << 10) - 1;
const LONG: u64 = 1 << 62;

/// A listing under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Number {
    /// Less one than what offsets say.
    at: usize,
    /// Tells uses of the same number apart.
    birth: u64,
}

#[derive(Default)]
pub(super) struct Listings {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    all: Vec<Known>,
    births: u64,
    /// Whose turn it is where none is over.
    next: usize,
    /// Those that met their end, in that order.
    over: VecDeque<usize>,
}

struct Known {
    dir: Ino,
    end: u64,
    birth: u64,
    over: bool,
}

/// What a READDIR asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    /// The file system's offset.
    pub offset: u64,
    /// What goes on here, with its end; else one begins.
    pub known: Option<(Number, u64)>,
}

impl Listings {
    pub(super) fn asked(&self, dir: Ino, offset: u64) -> Asked {
        if offset & LONG != 0 {
            return Asked { offset: offset & (LONG - 1), known: None };
        }
        let short = offset <= (NUMBERS as u64) << SHORT_BITS | ((1 << SHORT_BITS) - 1);
        let bits = if short { SHORT_BITS } else { OFFSET_BITS };
        let plain = offset & ((1 << bits) - 1);
        let Some(at) = (offset >> bits).checked_sub(1) else {
            return Asked { offset: plain, known: None };
        };
        let inner = self.inner.lock();
        let found = inner.all.get(at as usize).filter(|known| known.dir == dir);
        let known = found.map(|known| (Number { at: at as usize, birth: known.birth }, known.end));
        Asked { offset: plain, known }
    }

    /// A new listing, whose end is not known yet.
    pub(super) fn begin(&self, dir: Ino) -> Number {
        let mut inner = self.inner.lock();
        inner.births += 1;
        let new = Known { dir, end: u64::MAX, birth: inner.births, over: false };
        let number = Number { at: inner.free(), birth: new.birth };
        match inner.all.get_mut(number.at) {
            Some(old) => *old = new,
            None => inner.all.push(new),
        }
        number
    }

    pub(super) fn ends(&self, number: Number, end: u64) {
        if let Some(known) = self.inner.lock().find(number) {
            known.end = end;
        }
    }

    /// It met its end: nobody is likely to go on with it.
    pub(super) fn over(&self, number: Number) {
        let mut inner = self.inner.lock();
        if let Some(known) = inner.find(number).filter(|known| !known.over) {
            known.over = true;
            inner.over.push_back(number.at);
        }
    }
}

impl Inner {
    fn free(&mut self) -> usize {
        if self.all.len() < NUMBERS {
            return self.all.len();
        }
        self.over.pop_front().unwrap_or_else(|| {
            let at = self.next;
            self.next = (at + 1) % NUMBERS;
            at
        })
    }

    /// None if the number is another's by now.
    fn find(&mut self, number: Number) -> Option<&mut Known> {
        self.all.get_mut(number.at).filter(|known| known.birth == number.birth)
    }
}

/// The offset to tell the kernel; `None` for what no offset can say.
pub(super) fn told(number: Number, next: u64) -> Option<u64> {
    let number = number.at as u64 + 1;
    match next {
        _ if next >> SHORT_BITS == 0 => Some(number << SHORT_BITS | next),
        _ if next >> OFFSET_BITS == 0 => Some(number << OFFSET_BITS | next),
        _ if next < LONG => Some(LONG | next),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(300);
    const SHORT: u64 = 1 << SHORT_BITS;

    /// The listing that an offset is taken for.
    fn known(listings: &Listings, dir: Ino, offset: Option<u64>) -> Option<(Number, u64)> {
        listings.asked(dir, offset.unwrap()).known
    }

    #[test]
    fn offsets_come_back() {
        let listings = Listings::default();
        assert_eq!(listings.asked(DIR, 0), Asked { offset: 0, known: None });
        let number = listings.begin(DIR);
        for next in [1, 2, 77, SHORT - 1, SHORT, 1 << 30, (1 << OFFSET_BITS) - 1] {
            let offset = told(number, next).unwrap();
            assert!(i64::try_from(offset).is_ok());
            assert_eq!(offset < 1 << 31, next < SHORT, "{next}");
            let known = Some((number, u64::MAX));
            assert_eq!(listings.asked(DIR, offset), Asked { offset: next, known });
        }
        listings.ends(number, 9);
        let other = Number { at: number.at + 1, ..number };
        for next in [3, SHORT + 3] {
            assert_eq!(known(&listings, DIR, told(number, next)), Some((number, 9)));
            assert_eq!(known(&listings, Ino(301), told(number, next)), None);
            assert_eq!(known(&listings, DIR, told(other, next)), None);
        }
        let long = told(number, 1 << OFFSET_BITS).unwrap();
        assert_eq!(listings.asked(DIR, long), Asked { offset: 1 << OFFSET_BITS, known: None });
        assert_eq!(told(number, LONG), None);
    }

    /// Numbers in bits 47..62 whatever the offset, and more of them.
    #[test]
    fn offsets_of_older_mounts_come_back() {
        let listings = Listings::default();
        let first = listings.begin(DIR);
        for number in [1, 2, 1023, 1024, (1 << 15) - 1] {
            for offset in [1, 2, SHORT - 1, SHORT, (1 << OFFSET_BITS) - 1] {
                let known = (number == 1).then_some((first, u64::MAX));
                let told = number << OFFSET_BITS | offset;
                assert_eq!(listings.asked(DIR, told), Asked { offset, known }, "{number}");
            }
        }
        let last = Number { at: NUMBERS - 1, birth: 0 };
        assert!(told(last, SHORT - 1).unwrap() < 1 << 30);
        // What nobody was told says no number.
        for offset in [SHORT - 1, 1 << 30, (1 << OFFSET_BITS) - 1] {
            assert_eq!(listings.asked(DIR, offset), Asked { offset, known: None });
        }
    }

    #[test]
    fn numbers_are_used_again() {
        let listings = Listings::default();
        let first = listings.begin(DIR);
        let others: Vec<_> = (1..NUMBERS).map(|_| listings.begin(Ino(1))).collect();
        assert!(others.iter().all(|other| other.at != first.at));
        // Of those that are over the one that has been so for longest.
        [7, 5, 7].iter().for_each(|n| listings.over(others[*n]));
        assert_eq!(listings.begin(Ino(2)).at, others[7].at);
        assert_eq!(listings.begin(Ino(2)).at, others[5].at);
        assert_eq!(known(&listings, DIR, told(first, 5)), Some((first, u64::MAX)));
        // Else the oldest.
        let new = listings.begin(DIR);
        assert_eq!(new.at, first.at);
        assert_eq!(listings.begin(Ino(2)).at, others[0].at);
        assert_eq!(known(&listings, Ino(1), told(others[0], 5)), None);
        // What comes late is told of another by now.
        listings.ends(first, 5);
        listings.over(first);
        assert_eq!(known(&listings, DIR, told(first, 5)), Some((new, u64::MAX)));
    }
}
