//! Something new in a directory of a volume, until it is whole: if it does not become so it goes again, and
//! what had its name stays.
//!
//! Invariant: a name that something has already is given to the new thing by a rename, in one step; until
//! then that is made beside it, under a name that nothing has, or without a name: what a killed process
//! was at is then no more there. Giving it the name is no change of its own: its ctime stays. It does not know
//! what is made.

use super::beside::next_name;
use super::node::Node;
use crate::volume::Volume;
use vfs::attributes::{APPEND, IMMUTABLE};
use vfs::{Context, Errno, FileKind, Ino, RenameMode, Result, SetAttr};

/// What is made and may still go wrong. Dropped before [`keep`](Draft::keep) it is gone.
#[must_use = "who drops it takes away what was made"]
pub struct Draft<'a> {
    volume: &'a Volume,
    parent: &'a Node,
    /// The name that it is to have.
    name: &'a [u8],
    /// The name that it has meanwhile, where the other one is taken.
    beside: Option<Vec<u8>>,
    /// It has no name at all meanwhile.
    nameless: Option<Ino>,
    /// What has the name now is ours, and nobody is to keep it.
    at_stake: bool,
}

impl<'a> Draft<'a> {
    /// To be `name` in `parent`, which something else has already if `taken`.
    pub fn new(
        volume: &'a Volume,
        parent: &'a Node,
        name: &'a [u8],
        taken: bool,
    ) -> Result<Draft<'a>> {
        let beside = match taken {
            true => {
                may_be_replaced(volume, parent, name)?;
                Some(free_name(parent)?)
            }
            false => None,
        };
        // Nobody else makes anything by such a name.
        Ok(Draft { volume, parent, name, at_stake: beside.is_some(), beside, nameless: None })
    }

    /// Makes it, under the name that it is given.
    pub fn make<T, E>(
        &mut self,
        make: impl FnOnce(&[u8]) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let made = make(self.beside.as_deref().unwrap_or(self.name))?;
        self.at_stake = true;
        Ok(made)
    }

    /// Makes a regular file, which the caller holds until it is kept. Where the name is taken it has none until then.
    pub fn make_file(&mut self, cx: &Context, perm: u16) -> Result<Node> {
        let (fs, parent) = (self.volume.fs(), self.parent.ino());
        if self.beside.is_none() {
            let made = self.make(|name| fs.mknod(cx, parent, name, FileKind::File, perm, 0))?;
            return Ok(Node::held(fs, made));
        }
        let made = Node::held(fs, fs.tmpfile(cx, parent, perm)?);
        self.nameless = Some(made.ino());
        Ok(made)
    }

    /// What is lacking from here on is no reason for it to go, unless something else would go for it.
    pub fn is_good(&mut self) {
        self.at_stake = self.beside.is_some();
    }

    /// It stays, and has its name.
    pub fn keep(mut self) -> Result<()> {
        let Some(beside) = self.beside.clone() else {
            self.at_stake = false;
            return Ok(());
        };
        let made = self.named(&beside)?;
        self.put(&made, &beside)?;
        self.at_stake = false;
        // As it was before the rename.
        let set = SetAttr { ctime: Some(made.attr.ctime), ..SetAttr::default() };
        self.volume.fs().setattr(&Context::default(), made.ino(), &set).map(drop)
    }

    /// What was made, under the name `beside`, and as it was before it got that.
    fn named(&self, beside: &[u8]) -> Result<Node> {
        let Some(ino) = self.nameless else { return self.parent.child(beside) };
        let fs = self.volume.fs();
        let ctime = fs.getattr(ino)?.ctime;
        let named = fs.link(&Context::default(), ino, self.parent.ino(), beside)?;
        let mut named = Node::held(fs, named);
        named.attr.ctime = ctime;
        Ok(named)
    }

    fn put(&self, made: &Node, beside: &[u8]) -> Result<()> {
        let (fs, cx, parent) = (self.volume.fs(), Context::default(), self.parent.ino());
        let old = self.parent.child_if_any(self.name)?;
        // Between two names of one file a rename does nothing.
        if old.as_ref().is_some_and(|old| old.ino() == made.ino()) {
            return fs.unlink(&cx, parent, beside);
        }
        // No rename replaces a file by a directory.
        if made.is_dir() && old.is_some_and(|old| !old.is_dir()) {
            fs.rename(&cx, parent, beside, parent, self.name, RenameMode::Exchange)?;
            return fs.unlink(&cx, parent, beside);
        }
        fs.rename(&cx, parent, beside, parent, self.name, RenameMode::Replace)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.at_stake {
            return;
        }
        let (fs, cx, parent) = (self.volume.fs(), Context::default(), self.parent.ino());
        let name = self.beside.as_deref().unwrap_or(self.name);
        let gone = match self.parent.child_if_any(name) {
            Ok(None) => Ok(()),
            Ok(Some(made)) if made.is_dir() => fs.rmdir(&cx, parent, name),
            _ => fs.unlink(&cx, parent, name),
        };
        if let Err(error) = gone {
            let name = name.escape_ascii();
            tracing::warn!("{}: {name} is left over: {error}", self.volume.name().display());
        }
    }
}

/// Names of such a directory, and such files, are not taken away: what was made beside them would stay.
fn may_be_replaced(volume: &Volume, parent: &Node, name: &[u8]) -> Result<()> {
    let dir = volume.fs().getattr(parent.ino())?;
    let old = parent.child_if_any(name)?.map_or(0, |old| old.attr.attributes);
    match (dir.attributes | old) & (APPEND | IMMUTABLE) {
        0 => Ok(()),
        _ => Err(Errno::EPERM.into()),
    }
}

/// One that nothing in this directory has.
fn free_name(parent: &Node) -> Result<Vec<u8>> {
    loop {
        let name = next_name();
        if parent.child_if_any(&name)?.is_none() {
            return Ok(name);
        }
    }
}
