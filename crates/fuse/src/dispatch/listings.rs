//! Where each listing of a directory ends: where the directory ended when it began.
//!
//! A name that moves goes to the end of its directory, so a listing that followed would never
//! end beside a storm of renames. Opening a directory sends no message here and READDIR names
//! no open directory, so it is the offset that says which listing it goes on with:
//!
//! | bits of an offset | hold |
//! |---|---|
//! | 0..47 | the file system's offset |
//! | 47..62 | the listing's number, from 1 on; 0 in offset 0, where a listing begins or is rewound |
//! | 62 | set: the file system's offset is longer, bits 0..62 hold it, and no listing is known |
//!
//! A number is used again for the 32,767th listing after it. Who comes with one that is another
//! directory's by then, or with one of an earlier mount (NFS), goes on in a new listing.

use parking_lot::Mutex;
use vfs::Ino;

const OFFSET_BITS: u32 = 47;
const NUMBERS: usize = (1 << 15) - 1;
const LONG: u64 = 1 << 62;

/// A listing under way, by its number less one.
pub(super) type Number = usize;

#[derive(Default)]
pub(super) struct Listings {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Directory and end of each.
    all: Vec<(Ino, u64)>,
    next: usize,
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
        let plain = offset & ((1 << OFFSET_BITS) - 1);
        let Some(number) = (offset >> OFFSET_BITS).checked_sub(1) else {
            return Asked { offset: plain, known: None };
        };
        let found = self.inner.lock().all.get(number as usize).copied();
        let known = found.filter(|(of, _)| *of == dir).map(|(_, end)| (number as usize, end));
        Asked { offset: plain, known }
    }

    /// A new listing, whose end is not known yet.
    pub(super) fn begin(&self, dir: Ino) -> Number {
        let mut inner = self.inner.lock();
        let number = inner.next;
        inner.next = (number + 1) % NUMBERS;
        match inner.all.get_mut(number) {
            Some(old) => *old = (dir, u64::MAX),
            None => inner.all.push((dir, u64::MAX)),
        }
        number
    }

    pub(super) fn ends(&self, number: Number, dir: Ino, end: u64) {
        self.inner.lock().all[number] = (dir, end);
    }
}

/// The offset to tell the kernel; `None` for what no offset can say.
pub(super) fn told(number: Number, next: u64) -> Option<u64> {
    match next {
        _ if next >> OFFSET_BITS == 0 => Some((number as u64 + 1) << OFFSET_BITS | next),
        _ if next < LONG => Some(LONG | next),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(300);

    #[test]
    fn offsets_come_back() {
        let listings = Listings::default();
        assert_eq!(listings.asked(DIR, 0), Asked { offset: 0, known: None });
        let number = listings.begin(DIR);
        for next in [1, 2, 77, (1 << OFFSET_BITS) - 1] {
            let offset = told(number, next).unwrap();
            assert!(i64::try_from(offset).is_ok());
            let known = Some((number, u64::MAX));
            assert_eq!(listings.asked(DIR, offset), Asked { offset: next, known });
        }
        listings.ends(number, DIR, 9);
        assert_eq!(listings.asked(DIR, told(number, 3).unwrap()).known, Some((number, 9)));
        assert_eq!(listings.asked(Ino(301), told(number, 3).unwrap()).known, None);
        assert_eq!(listings.asked(DIR, told(number + 1, 3).unwrap()).known, None);
        let long = told(number, 1 << OFFSET_BITS).unwrap();
        assert_eq!(listings.asked(DIR, long), Asked { offset: 1 << OFFSET_BITS, known: None });
        assert_eq!(told(number, LONG), None);
    }

    #[test]
    fn numbers_are_used_again() {
        let listings = Listings::default();
        let first = listings.begin(DIR);
        (1..NUMBERS).for_each(|_| assert_ne!(listings.begin(Ino(1)), first));
        assert_eq!(listings.begin(Ino(2)), first);
        assert!(told(NUMBERS - 1, 5).is_some_and(|offset| offset < LONG));
        assert_eq!(listings.asked(DIR, told(first, 5).unwrap()), Asked { offset: 5, known: None });
    }
}
