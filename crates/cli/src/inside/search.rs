//! The tests of `find`: on attributes and names, joined by "and", "or" and "not".
//!
//! It knows no volume: what a test needs beside attributes (whether a directory is empty) it
//! asks for.

use crate::error::{Error, Result};
use crate::mode::Change;
use crate::sys;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use vfs::{Attr, FileKind, Timestamp};

/// What is judged.
pub struct Seen<'s> {
    pub attr: &'s Attr,
    pub path: &'s [u8],
    /// Of the files that `Newer` compares with.
    pub times: &'s [Timestamp],
    pub now: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Number {
    Less(u64),
    Exactly(u64),
    More(u64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Test {
    Name {
        pattern: Vec<u8>,
        any_case: bool,
    },
    Path(Vec<u8>),
    Kind(Vec<FileKind>),
    /// In units of so many bytes, rounded up.
    Size(Number, u64),
    Empty,
    /// Than the file of this number.
    Newer(usize),
    /// In units of so many seconds, rounded down.
    Age(Number, u64),
    Exact(u16),
    All(u16),
    Any(u16),
    Uid(Number),
    Gid(Number),
    Links(Number),
    Inode(Number),
}

/// Tests of which all must pass, in groups of which one must.
#[derive(Default)]
pub struct Clause {
    groups: Vec<Vec<(bool, Test)>>,
    group: Vec<(bool, Test)>,
    negate: bool,
}

impl Clause {
    pub fn push(&mut self, test: Test) {
        self.group.push((!std::mem::take(&mut self.negate), test));
    }

    /// The next test must fail.
    pub fn negate(&mut self) {
        self.negate = !self.negate;
    }

    pub fn or(&mut self) -> Result<()> {
        if self.negate || self.group.is_empty() {
            return Err(Error::usage("a test is missing before -o"));
        }
        self.groups.push(std::mem::take(&mut self.group));
        Ok(())
    }

    pub fn finish(&mut self) -> Result<()> {
        if self.negate || (self.group.is_empty() && !self.groups.is_empty()) {
            return Err(Error::usage("a test is missing at the end"));
        }
        self.groups.push(std::mem::take(&mut self.group));
        Ok(())
    }

    pub fn passes(&self, seen: &Seen<'_>, is_empty: &dyn Fn() -> Result<bool>) -> Result<bool> {
        for group in &self.groups {
            let mut all = true;
            for (wanted, test) in group {
                if all {
                    all = test.passes(seen, is_empty)? == *wanted;
                }
            }
            if all {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A test that has a value.
pub fn parse(name: &str, value: &OsStr) -> Result<Test> {
    let pattern = value.as_bytes().to_vec();
    let text = || {
        let wrong = || Error::usage(format!("--{name}: {} is no text", value.to_string_lossy()));
        value.to_str().ok_or_else(wrong)
    };
    Ok(match name {
        "name" => Test::Name { pattern, any_case: false },
        "iname" => Test::Name { pattern, any_case: true },
        "path" => Test::Path(pattern),
        "type" => Test::Kind(text()?.split(',').map(kind).collect::<Result<_>>()?),
        "size" => size(text()?)?,
        "mtime" => Test::Age(number(text()?)?, 86_400),
        "mmin" => Test::Age(number(text()?)?, 60),
        "perm" => perm(text()?)?,
        "uid" => Test::Uid(number(text()?)?),
        "gid" => Test::Gid(number(text()?)?),
        "links" => Test::Links(number(text()?)?),
        "inum" => Test::Inode(number(text()?)?),
        _ => return Err(Error::usage(format!("find has no option --{name}"))),
    })
}

fn kind(letter: &str) -> Result<FileKind> {
    Ok(match letter {
        "f" => FileKind::File,
        "d" => FileKind::Dir,
        "l" => FileKind::Symlink,
        "p" => FileKind::Fifo,
        "s" => FileKind::Socket,
        "c" => FileKind::CharDevice,
        "b" => FileKind::BlockDevice,
        _ => return Err(Error::usage(format!("no type {letter:?}: f, d, l, p, s, c or b"))),
    })
}

fn number(text: &str) -> Result<Number> {
    let wrong = || Error::usage(format!("{text:?} is no number; +N is more, -N less"));
    let (make, digits): (fn(u64) -> Number, &str) = match text.as_bytes().first() {
        Some(b'+') => (Number::More, &text[1..]),
        Some(b'-') => (Number::Less, &text[1..]),
        _ => (Number::Exactly, text),
    };
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| plain).map(make).ok_or_else(wrong)
}

fn size(text: &str) -> Result<Test> {
    let (digits, unit) = match text.chars().last() {
        Some('c') => (&text[..text.len() - 1], 1),
        Some('w') => (&text[..text.len() - 1], 2),
        Some('b') => (&text[..text.len() - 1], 512),
        Some('k') => (&text[..text.len() - 1], 1 << 10),
        Some('M') => (&text[..text.len() - 1], 1 << 20),
        Some('G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 512),
    };
    Ok(Test::Size(number(digits)?, unit))
}

fn perm(text: &str) -> Result<Test> {
    let (make, mode): (fn(u16) -> Test, &str) = match text.as_bytes().first() {
        Some(b'-') => (Test::All, &text[1..]),
        Some(b'/') => (Test::Any, &text[1..]),
        _ => (Test::Exact, text),
    };
    let wrong = || Error::usage(format!("{text} is no mode; write 644, -4000, /u+s"));
    let change = Change::parse(mode).ok_or_else(wrong)?;
    Ok(make(change.apply(0, false, 0)))
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
    fn passes(&self, seen: &Seen<'_>, is_empty: &dyn Fn() -> Result<bool>) -> Result<bool> {
        let attr = seen.attr;
        Ok(match self {
            Test::Name { pattern, any_case } => sys::matches(pattern, last(seen.path), *any_case),
            Test::Path(pattern) => sys::matches(pattern, seen.path, false),
            Test::Kind(kinds) => kinds.contains(&attr.kind),
            Test::Size(number, unit) => number.is(attr.size.div_ceil(*unit)),
            Test::Empty => matches!(attr.kind, FileKind::File | FileKind::Dir) && is_empty()?,
            Test::Newer(which) => attr.mtime > seen.times[*which],
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

    fn test(name: &str, value: &str) -> Option<Test> {
        parse(name, OsStr::new(value)).ok()
    }

    #[test]
    fn values_of_tests() {
        assert_eq!(test("size", "+4k"), Some(Test::Size(Number::More(4), 1024)));
        assert_eq!(test("size", "-3"), Some(Test::Size(Number::Less(3), 512)));
        assert_eq!(test("type", "f,l"), Some(Test::Kind(vec![FileKind::File, FileKind::Symlink])));
        assert_eq!(test("perm", "-u+s"), Some(Test::All(0o4000)));
        assert_eq!(test("perm", "/022"), Some(Test::Any(0o22)));
        assert_eq!(test("perm", "644"), Some(Test::Exact(0o644)));
        for (name, value) in [
            ("size", "k"),
            ("size", "+"),
            ("type", "x"),
            ("type", ""),
            ("perm", "9"),
            ("mtime", "+-1"),
        ] {
            assert_eq!(test(name, value), None, "{name} {value}");
        }
    }

    #[test]
    fn ages_and_names() {
        let at = |secs, nanos| Timestamp { secs, nanos };
        assert_eq!(age(at(10, 0), at(5, 1)), Some(4));
        assert_eq!(age(at(10, 0), at(11, 0)), None);
        assert_eq!(age(at(i64::MAX, 0), at(i64::MIN, 0)), None);
        assert_eq!((last(b"/a/b"), last(b"/a/"), last(b"/")), (&b"b"[..], &b"a"[..], &b"/"[..]));
    }
}
