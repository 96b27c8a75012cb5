//! An inode that this program refers to; the reference is given back when it is dropped.

use std::fmt;
use std::sync::Arc;
use vfs::{Attr, Context, Entry, FileKind, FileSystem, FsError, Ino, Result, lookup_listed};

/// A name of a directory, as its listing has it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The name.
    pub name: Vec<u8>,
    /// What it stands for.
    ino: Ino,
}

/// An inode of a volume. As long as there is a `Node` of it, it can be read and written, also
/// without a name.
pub struct Node {
    fs: Arc<dyn FileSystem>,
    /// What was known of it when it was found.
    pub attr: Attr,
    /// The root is there without a reference.
    held: bool,
}

impl Node {
    /// The root of the file system.
    pub fn root(fs: &Arc<dyn FileSystem>) -> Result<Node> {
        Ok(Node { fs: fs.clone(), attr: fs.getattr(fs.root())?, held: false })
    }

    /// Takes over the reference that came with `entry`.
    pub fn held(fs: &Arc<dyn FileSystem>, entry: Entry) -> Node {
        Node { fs: fs.clone(), attr: entry.attr, held: true }
    }

    /// An inode by its number; it stays only as long as it has a name.
    pub(crate) fn at(fs: &Arc<dyn FileSystem>, ino: Ino) -> Result<Node> {
        Ok(Node { fs: fs.clone(), attr: fs.getattr(ino)?, held: false })
    }

    /// Another one of the same inode, which must have a name for as long as that is used.
    pub(crate) fn again(&self) -> Result<Node> {
        Node::at(&self.fs, self.ino())
    }

    /// What `name` stands for in this directory.
    pub fn child(&self, name: &[u8]) -> Result<Node> {
        let entry = self.fs.lookup(&Context::default(), self.ino(), name)?;
        Ok(Node::held(&self.fs, entry))
    }

    /// What a name of this directory's listing stands for. Where the name cannot be looked up for damage, it is what
    /// the listing says.
    pub fn listed(&self, listed: &Listed) -> Result<Node> {
        let (attr, held) = lookup_listed(&*self.fs, self.ino(), &listed.name, listed.ino)?;
        Ok(Node { fs: self.fs.clone(), attr, held })
    }

    /// As `child`; `None` if there is no such name.
    pub fn child_if_any(&self, name: &[u8]) -> Result<Option<Node>> {
        match self.child(name) {
            Ok(node) => Ok(Some(node)),
            Err(vfs::FsError::Posix(vfs::Errno::ENOENT)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Its number.
    pub fn ino(&self) -> Ino {
        self.attr.ino
    }

    /// It is a directory.
    pub fn is_dir(&self) -> bool {
        self.attr.kind == FileKind::Dir
    }

    /// It is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.attr.kind == FileKind::Symlink
    }

    /// The names in this directory without `.` and `..`, in byte order.
    pub fn names(&self) -> Result<Vec<Vec<u8>>> {
        match self.listing() {
            (names, None) => Ok(names.into_iter().map(|listed| listed.name).collect()),
            (_, Some(why)) => Err(why),
        }
    }

    /// As `names`, those that can be told, and why others may be missing.
    pub fn listing(&self) -> (Vec<Listed>, Option<FsError>) {
        let mut names = Vec::new();
        let listed = self.fs.readdir(self.ino(), 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.push(Listed { name: entry.name.to_vec(), ino: entry.ino });
            }
            true
        });
        names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        (names, listed.err())
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("attr", &self.attr).finish_non_exhaustive()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.held {
            self.fs.forget(self.ino(), 1);
        }
    }
}
