//! Tests on attributes and names, joined by "and", "or" and "not", with the meaning that they
//! have in find(1).
//!
//! It knows no volume: what a test needs beside attributes (whether a directory is empty) it
//! asks for. Nor does it know how a test is written.

use crate::sys;
use vfs::{Attr, FileKind, Timestamp};

/// What is judged.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'s> {
    /// What it is.
    pub attr: &'s Attr,
    /// Where it is.
    pub path: &'s [u8],
    /// The times that `Newer` compares with.
    pub times: &'s [Timestamp],
    /// What time it is.
    pub now: Timestamp,
}

/// What a number is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Number {
    /// It must be less.
    Less(u64),
    /// It must be the same.
    Exactly(u64),
    /// It must be more.
    More(u64),
}

/// One test.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Test {
    /// The last name is of a shell's pattern.
    Name {
        /// With `*`, `?` and `[...]`.
        pattern: Vec<u8>,
        /// Upper and lower case are the same.
        any_case: bool,
    },
    /// The whole path is of a shell's pattern.
    Path(Vec<u8>),
    /// It is of one of these kinds.
    Kind(Vec<FileKind>),
    /// Its size in units of so many bytes, rounded up.
    Size(Number, u64),
    /// It is a file or directory without content.
    Empty,
    /// Its content changed after the time of this number.
    Newer(usize),
    /// The time since its content changed, in units of so many seconds, rounded down.
    Age(Number, u64),
    /// It has these permissions.
    Exact(u16),
    /// It has all of these permissions.
    All(u16),
    /// It has one of these permissions.
    Any(u16),
    /// The user's number.
    Uid(Number),
    /// The group's number.
    Gid(Number),
    /// The number of names.
    Links(Number),
    /// The inode's number.
    Inode(Number),
}

/// A test is missing: in front of an "or", or at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unfinished;

/// Tests of which all must pass, in groups of which one must.
#[derive(Clone, Debug, Default)]
pub struct Clause {
    groups: Vec<Vec<(bool, Test)>>,
    group: Vec<(bool, Test)>,
    negate: bool,
}

impl Clause {
    /// One test more that must pass.
    pub fn push(&mut self, test: Test) {
        self.group.push((!std::mem::take(&mut self.negate), test));
    }

    /// The next test must fail.
    pub fn negate(&mut self) {
        self.negate = !self.negate;
    }

    /// What follows is another group.
    pub fn or(&mut self) -> Result<(), Unfinished> {
        if self.negate || self.group.is_empty() {
            return Err(Unfinished);
        }
        self.groups.push(std::mem::take(&mut self.group));
        Ok(())
    }

    /// Nothing follows.
    pub fn finish(&mut self) -> Result<(), Unfinished> {
        if self.negate || (self.group.is_empty() && !self.groups.is_empty()) {
            return Err(Unfinished);
        }
        self.groups.push(std::mem::take(&mut self.group));
        Ok(())
    }

    /// Whether one group passes; `is_empty` is only asked where that matters. What it cannot tell is told where no group
    /// passes without it.
    pub fn passes<E>(
        &self,
        seen: &Seen<'_>,
        is_empty: &dyn Fn() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let mut unknown = None;
        for group in &self.groups {
            let mut passes = group.iter().map(|(wanted, test)| {
                let passes = test.passes(seen, is_empty)?;
                Ok(passes == *wanted)
            });
            match passes.find(|passed| !matches!(passed, Ok(true))) {
                None => return Ok(true),
                Some(Ok(_)) => {}
                Some(Err(error)) => unknown = unknown.or(Some(error)),
            }
        }
        unknown.map_or(Ok(false), Err)
    }
}

impl Number {
    fn is(self, value: u64) -> bool {
        match self {
            Number::Less(n) => value < n,
            Number::Exactly(n) => value == n,
            Number::More(n) => value > n,
        }
    }
}

impl Test {
    fn passes<E>(
        &self,
        seen: &Seen<'_>,
        is_empty: &dyn Fn() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let attr = seen.attr;
        Ok(match self {
            Test::Name { pattern, any_case } => sys::matches(pattern, last(seen.path), *any_case),
            Test::Path(pattern) => sys::matches(pattern, seen.path, false),
            Test::Kind(kinds) => kinds.contains(&attr.kind),
            Test::Size(number, unit) => number.is(attr.size.div_ceil(*unit)),
            Test::Empty => matches!(attr.kind, FileKind::File | FileKind::Dir) && is_empty()?,
            Test::Newer(which) => seen.times.get(*which).is_some_and(|time| attr.mtime > *time),
            Test::Age(number, unit) => match age(seen.now, attr.mtime) {
                Some(seconds) => number.is(seconds / unit),
                // Of the future: younger than anything.
                None => matches!(number, Number::Less(_)),
            },
            Test::Exact(mode) => attr.perm == *mode,
            Test::All(mode) => attr.perm & mode == *mode,
            Test::Any(mode) => *mode == 0 || attr.perm & mode != 0,
            Test::Uid(number) => number.is(attr.uid.into()),
            Test::Gid(number) => number.is(attr.gid.into()),
            Test::Links(number) => number.is(attr.nlink.into()),
            Test::Inode(number) => number.is(attr.ino.0),
        })
    }
}

fn age(now: Timestamp, then: Timestamp) -> Option<u64> {
    let begun = i64::from(now.nanos < then.nanos);
    u64::try_from(now.secs.checked_sub(then.secs)?.checked_sub(begun)?).ok()
}

fn last(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    let path = &path[..end];
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => &path[at + 1..],
        // The top itself, as find(1) calls it.
        None if path.is_empty() => b"/",
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_names() {
        let at = |secs, nanos| Timestamp { secs, nanos };
        assert_eq!(age(at(10, 0), at(5, 1)), Some(4));
        assert_eq!(age(at(10, 0), at(11, 0)), None);
        assert_eq!(age(at(i64::MAX, 0), at(i64::MIN, 0)), None);
        assert_eq!((last(b"/a/b"), last(b"/a/"), last(b"/")), (&b"b"[..], &b"a"[..], &b"/"[..]));
    }
}
