//! What tells two trees apart, as sentences.

use std::fmt;

use vfs::Timestamp;

use super::snapshot::{NodeView, TreeSnapshot};
use crate::ops::{Bytes, Path, TimeView};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeRule {
    Ignore,
    /// Times set on purpose must agree; a time from the clock equals any other such.
    Set,
    Exact,
}

impl TimeRule {
    fn equal(self, a: Timestamp, b: Timestamp) -> bool {
        match self {
            TimeRule::Ignore => true,
            TimeRule::Set => TimeView::of(a) == TimeView::of(b),
            TimeRule::Exact => a == b,
        }
    }
}

/// What must agree. The default is what a copy of a volume must keep: everything but
/// atime, ctime, birth time and block counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    pub mtime: TimeRule,
    pub ctime: TimeRule,
    pub atime: TimeRule,
    pub btime: TimeRule,
    pub blocks: bool,
    /// Size and link count of directories (formats disagree on them).
    pub dir_size: bool,
    pub owner: bool,
    pub xattrs: bool,
    pub flags: bool,
    /// Those of `statx`, which do not come through FUSE.
    pub attributes: bool,
    pub root: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            mtime: TimeRule::Exact,
            ctime: TimeRule::Ignore,
            atime: TimeRule::Ignore,
            btime: TimeRule::Ignore,
            blocks: false,
            dir_size: true,
            owner: true,
            xattrs: true,
            flags: true,
            attributes: true,
            root: true,
        }
    }
}

impl Rules {
    /// Everything, as between two reads of one volume that nothing changed.
    pub fn strict() -> Rules {
        Rules {
            ctime: TimeRule::Exact,
            atime: TimeRule::Exact,
            btime: TimeRule::Exact,
            blocks: true,
            ..Rules::default()
        }
    }

    /// Times that came from the clock may differ: two systems did the same at
    /// different times.
    pub fn ignoring_clock(self) -> Rules {
        Rules { mtime: TimeRule::Set, atime: TimeRule::Set, ..self }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    pub path: Path,
    /// The member that differs, e.g. `size`.
    pub what: String,
    pub left: String,
    pub right: String,
}

impl Difference {
    /// Something wrong with the whole tree.
    pub fn whole(what: String) -> Difference {
        let (left, right) = Default::default();
        Difference { path: Path::default(), what, left, right }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}: {} | {}", self.path, self.what, self.left, self.right)
    }
}

/// What differs, by path. `left` and `right` of a difference are of `a` and `b`.
pub fn diff(a: &TreeSnapshot, b: &TreeSnapshot, rules: &Rules) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut missing = |path: &Path, left: &str, right: &str| {
        let (left, right) = (left.to_owned(), right.to_owned());
        found.push(Difference { path: path.clone(), what: "exists".to_owned(), left, right });
    };
    for path in a.nodes.keys().filter(|path| !b.nodes.contains_key(path)) {
        missing(path, "yes", "no");
    }
    for path in b.nodes.keys().filter(|path| !a.nodes.contains_key(path)) {
        missing(path, "no", "yes");
    }
    for (path, left) in &a.nodes {
        if let Some(right) = b.nodes.get(path)
            && (rules.root || *path != Path::default())
        {
            Pair { path, left, right, rules, found: &mut found }.compare();
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

struct Pair<'a> {
    path: &'a Path,
    left: &'a NodeView,
    right: &'a NodeView,
    rules: &'a Rules,
    found: &'a mut Vec<Difference>,
}

impl Pair<'_> {
    fn equal(&mut self, what: &str, left: impl fmt::Debug, right: impl fmt::Debug) -> bool {
        let (left, right) = (format!("{left:?}"), format!("{right:?}"));
        let same = left == right;
        if !same {
            let (path, what) = (self.path.clone(), what.to_owned());
            self.found.push(Difference { path, what, left, right });
        }
        same
    }

    fn compare(&mut self) {
        let (a, b) = (self.left, self.right);
        if !self.equal("kind", a.attr.kind, b.attr.kind) {
            return;
        }
        self.equal("perm", Octal(a.attr.perm), Octal(b.attr.perm));
        self.equal("rdev", a.attr.rdev, b.attr.rdev);
        self.equal("hard link of", &a.first_path, &b.first_path);
        if self.rules.attributes {
            self.equal("attributes", a.stat().attributes, b.stat().attributes);
        }
        if self.rules.owner {
            self.equal("uid", a.attr.uid, b.attr.uid);
            self.equal("gid", a.attr.gid, b.attr.gid);
        }
        if self.rules.dir_size || a.attr.kind != vfs::FileKind::Dir {
            self.equal("nlink", a.attr.nlink, b.attr.nlink);
            self.equal("size", a.attr.size, b.attr.size);
        }
        if self.rules.blocks {
            self.equal("blocks", a.attr.blocks, b.attr.blocks);
        }
        if self.rules.flags {
            self.equal("flags", a.flags, b.flags);
        }
        let bytes = |target: &Option<Vec<u8>>| target.clone().map(Bytes);
        self.equal("target", bytes(&a.target), bytes(&b.target));
        self.times();
        self.xattrs();
        self.content();
    }

    fn times(&mut self) {
        let (a, b) = (self.left.attr, self.right.attr);
        let times = [
            ("mtime", self.rules.mtime, a.mtime, b.mtime),
            ("ctime", self.rules.ctime, a.ctime, b.ctime),
            ("atime", self.rules.atime, a.atime, b.atime),
            ("btime", self.rules.btime, a.btime, b.btime),
        ];
        for (what, rule, left, right) in times {
            if !rule.equal(left, right) {
                self.equal(what, left, right);
            }
        }
    }

    fn xattrs(&mut self) {
        if !self.rules.xattrs {
            return;
        }
        let (a, b) = (&self.left.xattrs, &self.right.xattrs);
        let names: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
        for name in names {
            let value = |map: &std::collections::BTreeMap<Vec<u8>, Vec<u8>>| {
                map.get(name).cloned().map(Bytes)
            };
            let what = format!("xattr {}", String::from_utf8_lossy(name));
            self.equal(&what, value(a), value(b));
        }
    }

    fn content(&mut self) {
        let (Some(a), Some(b)) = (&self.left.content, &self.right.content) else { return };
        if let Some(at) = a.first_difference(b) {
            let block = |content: &super::Content| {
                let hash = content.blocks.get((at / 4096) as usize);
                format!("block {:x?} of {} bytes", hash, content.len)
            };
            self.equal(&format!("content at {at}"), block(a), block(b));
        }
    }
}

struct Octal(u16);

impl fmt::Debug for Octal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}
