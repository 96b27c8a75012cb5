//! What stands in a slot: one word, and how it changes.
//!
//! Two epochs are at work at most, the current one and the one that is being committed; a bit
//! tells them apart (`side`).
//!
//! * free
//! * born: claimed in the epoch of `side`, which nobody was told
//! * kept: a commit was told
//! * gone: released in the epoch of `side`, and a commit was told that it was there
//! * left: born in the epoch of `side`, released in the other, before the commit of the one
//!   came to it: it must hear of it, since to its state the release has not happened

pub(crate) const FREE: u64 = 0;
const BORN: u64 = 0;
const KEPT: u64 = 1;
const GONE: u64 = 2;
const LEFT: u64 = 3;
/// Numbers have what side and kind leave.
pub(crate) const MOST: u64 = u64::MAX >> 3;

fn word(number: u64, kind: u64, side: u64) -> u64 {
    number << 3 | kind << 1 | side
}

fn kind(word: u64) -> u64 {
    word >> 1 & 3
}

fn side(word: u64) -> u64 {
    word & 1
}

pub(crate) fn number(word: u64) -> u64 {
    word >> 3
}

/// What a claim in `epoch` puts there.
pub(crate) fn born(number: u64, epoch: u64) -> u64 {
    word(number, BORN, epoch & 1)
}

/// What stands there behind a release in `epoch`.
pub(crate) fn released(before: u64, epoch: u64) -> u64 {
    match kind(before) {
        BORN if side(before) == epoch & 1 => FREE,
        BORN => word(number(before), LEFT, side(before)),
        KEPT => word(number(before), GONE, epoch & 1),
        _ => before,
    }
}

/// What the commit of `epoch` makes of it, and what it is told: that the number is there (true)
/// or is no more. `None`: it is not for this commit.
pub(crate) fn handed_over(before: u64, epoch: u64) -> Option<(u64, bool)> {
    if before == FREE || kind(before) == KEPT || side(before) != epoch & 1 {
        return None;
    }
    Some(match kind(before) {
        BORN => (word(number(before), KEPT, 0), true),
        LEFT => (word(number(before), GONE, 1 - side(before)), true),
        _ => (FREE, false),
    })
}
