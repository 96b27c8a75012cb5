//! The words of find(1)'s tests.

use crate::error::{Error, Result};
use crate::mode::Change;
use spinney::tree::search::{Number, Test};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use vfs::FileKind;

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
}
