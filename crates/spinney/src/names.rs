//! Names: making, moving, linking and removing them; extended attributes of what they name.

use crate::error::{Error, Result};
use crate::tree::path::{join, split};
use crate::tree::{Node, remove};
use crate::volume::{At, Volume, bytes, is_errno};
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use vfs::{Context, Errno, FsError, RenameMode, XattrMode};

impl Volume {
    /// Makes an empty directory.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = bytes(&path);
        if path.is_empty() {
            return Err(self.error(path, Errno::ENOENT.into()));
        }
        if split(path).is_none() {
            // `/`, and what ends with `.` or `..`, is no name that could be given to anything.
            let there = self.find(path, true).and_then(|_| Err(Errno::EEXIST.into()));
            return there.at(self, path);
        }
        let (parent, name) = self.find_parent(path).at(self, path)?;
        self.make_dir(&parent, &name, path).map(drop)
    }

    /// Makes a directory and those above it that are missing.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = bytes(&path);
        let names = names_in(path);
        // The way to each is there up to the last one that is.
        let to = |count: usize| {
            names.get(count.wrapping_sub(1)).map_or(&b""[..], |name| &path[..name.end])
        };
        let mut there = names.len();
        let mut here = loop {
            match self.find(to(there), true) {
                Err(FsError::Posix(Errno::ENOENT)) if there > 0 => there -= 1,
                found => break found.at(self, path)?,
            }
        };
        if !here.is_dir() {
            let errno = if there == names.len() { Errno::EEXIST } else { Errno::ENOTDIR };
            return Err(self.error(path, errno.into()));
        }
        for count in there..names.len() {
            here = match &path[names[count].clone()] {
                b"." | b".." => self.find(to(count + 1), true).at(self, path)?,
                name => self.make_dir_or_find(&here, name, path)?,
            };
        }
        Ok(())
    }

    /// Where somebody else has made it meanwhile it is there.
    fn make_dir_or_find(&self, parent: &Node, name: &[u8], path: &[u8]) -> Result<Node> {
        match self.make_dir(parent, name, path) {
            Err(error) if is_errno(&error, Errno::EEXIST) => {
                let there = parent.child(name).ok().filter(Node::is_dir);
                there.ok_or(error)
            }
            made => made,
        }
    }

    fn make_dir(&self, parent: &Node, name: &[u8], path: &[u8]) -> Result<Node> {
        let made = self.fs().mkdir(self.context(), parent.ino(), name, 0o777).at(self, path)?;
        Ok(self.hold(made))
    }

    /// Removes anything but a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = bytes(&path);
        let (parent, name) = self.find_parent_of_file(path).at(self, path)?;
        self.fs().unlink(&Context::default(), parent.ino(), &name).at(self, path)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = bytes(&path);
        let (parent, name) = self.find_parent(path).at(self, path)?;
        self.fs().rmdir(&Context::default(), parent.ino(), &name).at(self, path)
    }

    /// Removes a directory and everything below it, or whatever else has the name. Symbolic
    /// links are removed, not followed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = bytes(&path);
        let (parent, name) = self.find_parent(path).at(self, path)?;
        let tell = remove::Tell { removed: &mut |_| Ok(()), failed: &mut Err };
        remove::tree::<Error>(self, &parent, &name, path, tell)
    }

    /// Gives `from` the name `to`, and replaces what had it.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_by(bytes(&from), bytes(&to), RenameMode::Replace)
    }

    /// As `rename`, but fails if `to` stands for something.
    pub fn rename_new(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_by(bytes(&from), bytes(&to), RenameMode::NoReplace)
    }

    /// Swaps two names, in one step.
    pub fn exchange(&self, one: impl AsRef<Path>, other: impl AsRef<Path>) -> Result<()> {
        self.rename_by(bytes(&one), bytes(&other), RenameMode::Exchange)
    }

    fn rename_by(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        let (parent, name) = self.find_parent(from).at(self, from)?;
        let (new_parent, new_name) = self.find_parent(to).at(self, to)?;
        if (from.ends_with(b"/") || to.ends_with(b"/"))
            && !parent.child(&name).at(self, from)?.is_dir()
        {
            return Err(self.error(from, Errno::ENOTDIR.into()));
        }
        let cx = self.context();
        let (old, new) = (parent.ino(), new_parent.ino());
        self.fs().rename(cx, old, &name, new, &new_name, mode).at(self, from)
    }

    /// Makes `link` another name of the file `original`, of which a symbolic link is not
    /// followed.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (original, link) = (bytes(&original), bytes(&link));
        let node = self.find(original, false).at(self, original)?;
        let (parent, name) = self.find_parent_of_file(link).at(self, link)?;
        let made = self.fs().link(self.context(), node.ino(), parent.ino(), &name);
        made.at(self, link).map(|entry| drop(self.hold(entry)))
    }

    /// Makes the symbolic link `link` with the target `target`, whatever that is.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (target, link) = (bytes(&target), bytes(&link));
        let (parent, name) = self.find_parent_of_file(link).at(self, link)?;
        let made = self.fs().symlink(self.context(), parent.ino(), &name, target);
        made.at(self, link).map(|entry| drop(self.hold(entry)))
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = bytes(&path);
        let node = self.find(path, false).at(self, path)?;
        let target = self.fs().readlink(node.ino()).at(self, path)?;
        Ok(OsString::from_vec(target).into())
    }

    /// An extended attribute; `None` if there is none of this name. Names have their class in
    /// front, as in `user.origin`.
    pub fn xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
    ) -> Result<Option<Vec<u8>>> {
        let (path, name) = (bytes(&path), name.as_ref().as_bytes());
        let node = self.find(path, true).at(self, path)?;
        match self.fs().getxattr(node.ino(), name).at(self, path) {
            Ok(value) => Ok(Some(value)),
            Err(error) if is_errno(&error, Errno::ENODATA) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets an extended attribute.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: &[u8],
    ) -> Result<()> {
        let (path, name) = (bytes(&path), name.as_ref().as_bytes());
        let node = self.find(path, true).at(self, path)?;
        let cx = self.context();
        self.fs().setxattr(cx, node.ino(), name, value, XattrMode::Set).at(self, path)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        let (path, name) = (bytes(&path), name.as_ref().as_bytes());
        let node = self.find(path, true).at(self, path)?;
        self.fs().removexattr(self.context(), node.ino(), name).at(self, path)
    }

    /// The names of all extended attributes, in byte order.
    pub fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        let path = bytes(&path);
        let node = self.find(path, true).at(self, path)?;
        let mut names = self.fs().listxattr(node.ino()).at(self, path)?;
        names.sort_unstable();
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    /// The path of `name` in the directory `path`.
    pub(crate) fn below(path: &[u8], name: &[u8]) -> PathBuf {
        match path {
            b"" => OsString::from_vec(name.to_vec()).into(),
            path => OsString::from_vec(join(path, name)).into(),
        }
    }
}

/// Where in `path` its names are.
fn names_in(path: &[u8]) -> Vec<Range<usize>> {
    let mut start = 0;
    let parts = path.split(|b| *b == b'/').map(|name| {
        let place = start..start + name.len();
        start = place.end + 1;
        place
    });
    parts.filter(|place| !place.is_empty()).collect()
}
