//! Paths of a stream.

use crate::error::Wrong;

/// The longest name of a file.
const MAX_NAME: usize = 255;

/// A way from the root directory of the subvolume down: names with a slash between each two;
/// empty for that directory itself. No name is empty, `.` or `..`, too long, or has a NUL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RelPath<'a>(&'a [u8]);

impl<'a> RelPath<'a> {
    /// Refuses what leads out.
    pub fn new(path: &'a [u8]) -> Result<RelPath<'a>, Wrong> {
        if path.is_empty() {
            return Ok(RelPath(path));
        }
        path.split(|byte| *byte == b'/').try_for_each(check_name)?;
        Ok(RelPath(path))
    }

    /// The same of something that has a name of its own.
    pub fn named(path: &'a [u8]) -> Result<RelPath<'a>, Wrong> {
        match path.is_empty() {
            true => Err(Wrong::Path("it names the subvolume itself")),
            false => RelPath::new(path),
        }
    }

    /// All of it.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The directory, and the last name; `None` for the root directory.
    pub fn split(self) -> Option<(RelPath<'a>, &'a [u8])> {
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(at) => Some((RelPath(&self.0[..at]), &self.0[at + 1..])),
            None if self.0.is_empty() => None,
            None => Some((RelPath(&[]), self.0)),
        }
    }

    /// Whether `other` is what this path is of, or lies below it.
    pub fn leads_to(self, other: &[u8]) -> bool {
        match other.strip_prefix(self.0) {
            Some(rest) => self.0.is_empty() || rest.is_empty() || rest[0] == b'/',
            None => false,
        }
    }

    /// Its names, from the top.
    pub fn names(self) -> impl Iterator<Item = &'a [u8]> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }
}

/// One name alone.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Wrong> {
    match name {
        b"" => Err(Wrong::Path("it is absolute, or has an empty name")),
        b"." | b".." => Err(Wrong::Path("it has `.` or `..` in it")),
        name if name.len() > MAX_NAME => Err(Wrong::Path("a name in it is too long")),
        name if name.contains(&0) => Err(Wrong::Path("it has a NUL in it")),
        name if name.contains(&b'/') => Err(Wrong::Path("it has a slash in it")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_out_is_refused() {
        for path in ["/", "/a", "a/", "a//b", "..", "a/..", "../a", "a/../b", ".", "a/./b", "a\0b"]
        {
            assert!(RelPath::new(path.as_bytes()).is_err(), "{path:?}");
        }
        assert!(RelPath::new(&[b'x'; 256]).is_err());
        assert!(RelPath::named(b"").is_err());
        for path in ["", "a", "a/b", "...", "a/..b", " "] {
            assert!(RelPath::new(path.as_bytes()).is_ok(), "{path:?}");
        }
    }

    #[test]
    fn below_is_below_whole_names() {
        let leads = |path: &[u8], other: &[u8]| RelPath(path).leads_to(other);
        assert!(leads(b"a/b", b"a/b") && leads(b"a/b", b"a/b/c") && leads(b"", b"a"));
        assert!(!leads(b"a/b", b"a/bc") && !leads(b"a/b", b"a") && !leads(b"b", b"a/b"));
    }

    #[test]
    fn the_last_name_is_split_off() {
        let split = |path: &'static str| {
            let path = RelPath::new(path.as_bytes()).ok()?;
            path.split().map(|(dir, name)| (dir.as_bytes(), name))
        };
        assert_eq!(split(""), None);
        assert_eq!(split("a"), Some((&b""[..], &b"a"[..])));
        assert_eq!(split("a/b/c"), Some((&b"a/b"[..], &b"c"[..])));
    }
}
