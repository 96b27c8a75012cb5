//! The stream of one subvolume after the other.

use crate::changes::changes;
use crate::clones::Clones;
use crate::error::{Error, Result};
use crate::inodes::Inodes;
use crate::moves::Moves;
use crate::namespace::Namespace;
use crate::out::{Options, Out, Request};
use crate::plan::good_parent;
use crate::source::{Source, Subvolume};
use crate::tree::Tree;
use btrfs_disk::items::ROOT_SUBVOL_RDONLY;
use btrfs_send::{Command, Protocol};
use std::io::Write;

/// What the receiver has already, all of it read-only.
#[derive(Clone, Default, Debug)]
pub struct Has {
    /// What it makes the subvolumes from.
    pub parent: Option<Subvolume>,
    /// What else content can be taken from. Without a `parent` the best of these becomes it.
    pub clones: Vec<Subvolume>,
}

/// Writes a stream.
pub struct Sender<'w> {
    out: Out<'w>,
    options: Options,
    parent: Option<Subvolume>,
    /// The parent is one of these.
    has: Vec<Subvolume>,
    /// Nothing is there to be taken from: everything is sent.
    whole: bool,
    /// A subvolume was sent.
    begun: bool,
}

impl<'w> Sender<'w> {
    /// Writes the header.
    pub fn new(to: &'w mut dyn Write, options: Options, has: Has) -> Result<Sender<'w>> {
        if options.compressed && options.protocol < Protocol::V2 {
            return Err(Error::Refused("compressed content needs protocol 2".into()));
        }
        let Has { parent, clones: mut has } = has;
        let whole = parent.is_none() && has.is_empty();
        has.extend(parent.clone());
        has.iter().try_for_each(is_read_only)?;
        let out = Out::new(to, options.protocol)?;
        Ok(Sender { out, options, parent, has, whole, begun: false })
    }

    /// Writes a read-only subvolume; `last`: none comes behind it. Unless all are sent whole, it
    /// is one that content of those behind it can be taken from.
    pub fn send(&mut self, source: &dyn Source, subvolume: &Subvolume, last: bool) -> Result<()> {
        is_read_only(subvolume)?;
        if subvolume.name.is_empty() {
            return Err(Error::Refused(
                "the top level of a volume has no name to be sent by".into(),
            ));
        }
        let has = std::mem::take(&mut self.has);
        let parent = match &self.parent {
            Some(parent) => Some(parent.clone()),
            None if self.whole => None,
            None => Some(good_parent(subvolume, &has).cloned().ok_or_else(no_parent)?),
        };
        if std::mem::replace(&mut self.begun, true) && !self.options.one_end {
            self.out.header()?;
        }
        let parent = parent.as_ref();
        self.play(source, &Request { subvolume, parent, clones: &has })?;
        if !source.is_unchanged(subvolume)? {
            let why = "was made writable, changed or deleted while it was sent";
            return Err(Error::Refused(why.into()));
        }
        if last || !self.options.one_end {
            self.out.put(&Command::End)?;
        }
        self.has = has;
        if !self.whole {
            self.has.push(subvolume.clone());
        }
        Ok(())
    }

    fn play(&mut self, source: &dyn Source, request: &Request<'_>) -> Result<()> {
        self.begin(request)?;
        let tree = |subvolume: &Subvolume| Tree::new(source, subvolume);
        let space = Namespace::new(request.parent.map(tree), tree(request.subvolume));
        let mut moves = Moves::new(space);
        if let Some(parent) = request.parent {
            let (left, right) = (tree(parent), tree(request.subvolume));
            changes(Some(&left), &right, &mut |change| moves.collect(&change))?;
            moves.play(&mut self.out)?;
        }
        let clones = Clones::new(source, request);
        let mut inodes = Inodes::new(source, self.options, moves, clones);
        let left = request.parent.map(tree);
        changes(left.as_ref(), &tree(request.subvolume), &mut |change| {
            inodes.send(&change, &mut self.out)
        })?;
        inodes.finish(&mut self.out)
    }

    fn begin(&mut self, request: &Request<'_>) -> Result<()> {
        let (path, origin) = (&*request.subvolume.name, request.subvolume.origin());
        self.out.put(&match request.parent {
            None => Command::Subvol { path, origin },
            Some(parent) => Command::Snapshot { path, origin, parent: parent.origin() },
        })
    }
}

fn is_read_only(subvolume: &Subvolume) -> Result<()> {
    if subvolume.item.flags & ROOT_SUBVOL_RDONLY != 0 {
        return Ok(());
    }
    let what = match String::from_utf8_lossy(&subvolume.name) {
        name if name.is_empty() => "the top level".to_owned(),
        name => format!("subvolume {name}"),
    };
    Err(Error::Refused(format!("{what} is not read-only")))
}

fn no_parent() -> Error {
    Error::Refused("is not related to any of the clone sources".into())
}
