//! An inode that this program refers to; the reference is given back when it is dropped.

use vfs::{Attr, Context, Entry, FileKind, FileSystem, Ino, Result};

pub struct Node<'f> {
    fs: &'f dyn FileSystem,
    pub attr: Attr,
    /// The root is there without a reference.
    held: bool,
}

impl<'f> Node<'f> {
    pub fn root(fs: &'f dyn FileSystem) -> Result<Node<'f>> {
        Ok(Node { fs, attr: fs.getattr(fs.root())?, held: false })
    }

    /// Takes over the reference that came with `entry`.
    pub fn held(fs: &'f dyn FileSystem, entry: Entry) -> Node<'f> {
        Node { fs, attr: entry.attr, held: true }
    }

    pub fn child(&self, name: &[u8]) -> Result<Node<'f>> {
        let entry = self.fs.lookup(&Context::default(), self.ino(), name)?;
        Ok(Node::held(self.fs, entry))
    }

    /// `None` if there is no such name.
    pub fn child_if_any(&self, name: &[u8]) -> Result<Option<Node<'f>>> {
        match self.child(name) {
            Ok(node) => Ok(Some(node)),
            Err(error) if error.errno() == libc::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn ino(&self) -> Ino {
        self.attr.ino
    }

    pub fn is_dir(&self) -> bool {
        self.attr.kind == FileKind::Dir
    }

    pub fn is_symlink(&self) -> bool {
        self.attr.kind == FileKind::Symlink
    }

    /// The names in this directory without `.` and `..`, in byte order.
    pub fn names(&self) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.fs.readdir(self.ino(), 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.push(entry.name.to_vec());
            }
            true
        })?;
        names.sort_unstable();
        Ok(names)
    }
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        if self.held {
            self.fs.forget(self.ino(), 1);
        }
    }
}
