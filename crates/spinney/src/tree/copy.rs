//! Copies of trees from a volume into the same or another one.
//!
//! Directories get their attributes after their entries, also where only a part of these came. What is there already is merged
//! into (directories) or overwritten (the rest), as `cp` does; what cannot be overwritten is replaced, once what
//! takes its place is there. Of a source that cannot be read nothing new is made.
//!
//! Invariant: of each source no directory is gone into twice. In a damaged volume one may have two names, and
//! the second may lie below the first.

use super::copy_rules::CopyRules;
use super::draft::Draft;
use super::fill::{self, FileAt};
use super::node::{Listed, Node};
use super::path::join;
use super::refused::{is_elsewhere, lie_apart};
use super::target::{self, MadeInside};
use super::transfer::Transfer;
use super::walk::two_names;
use crate::error::{Error, Result};
use crate::volume::{At, Volume};
use btrfs_image::{ImportLinks, Tried};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use vfs::{Attr, Context, Errno, FileKind, FsError, Ino, SetAttr, SetTime, XattrMode};

struct Frame {
    from: Node,
    to: Node,
    /// So much of `TreeCopy::paths` is its own.
    lens: [usize; 2],
    left: Vec<Listed>,
    fresh: bool,
}

/// Of what, and which attribute.
type Skipped<'v> = dyn Fn(&[u8], &[u8]) + 'v;

/// A copy of trees from one open volume into the same or another.
pub struct TreeCopy<'v> {
    from: &'v Volume,
    to: &'v Volume,
    rules: CopyRules,
    cx: Context,
    stack: Vec<Frame>,
    /// Of the innermost directory in `from` and in `to`; those above it are in them.
    paths: [Vec<u8>; 2],
    /// Copies of files with several names, of all sources.
    links: HashMap<Ino, Node>,
    /// What was made in the target, and what copies from this machine may still be linked to.
    made_inside: MadeInside,
    imported: Option<Rc<ImportLinks<'v>>>,
    /// Directories of the source at hand that were gone into.
    entered: HashSet<Ino>,
    /// Directories that were made for the source at hand.
    made: HashSet<Ino>,
    /// A directory was to be copied into itself; the rest was copied.
    refused: Option<Error>,
    failed: Option<Box<dyn FnMut(Error) + 'v>>,
    skipped: Option<Box<Skipped<'v>>>,
}

impl<'v> TreeCopy<'v> {
    /// Copies nothing yet.
    pub fn new(from: &'v Volume, to: &'v Volume, rules: CopyRules) -> TreeCopy<'v> {
        TreeCopy {
            from,
            to,
            rules,
            cx: *to.context(),
            stack: Vec::new(),
            paths: Default::default(),
            links: HashMap::new(),
            made_inside: MadeInside::default(),
            imported: None,
            entered: HashSet::new(),
            made: HashSet::new(),
            refused: None,
            failed: None,
            skipped: None,
        }
    }

    /// Knows what `other`, into the same target, and those beside it made there: nothing is written through a symbolic
    /// link of theirs, nor into a file that they may still link to.
    pub fn beside(self, other: &Transfer<'v>) -> TreeCopy<'v> {
        let imported = Some(Rc::clone(&other.import_links));
        TreeCopy { made_inside: other.made_inside.clone(), imported, ..self }
    }

    /// Whether it copies from `from` to `to`.
    pub fn is_between(&self, from: &Volume, to: &Volume) -> bool {
        self.from.is(from) && self.to.is(to)
    }

    /// Goes on behind what fails of single files and directories, as
    /// [`Transfer::on_failure`](super::Transfer::on_failure).
    pub fn on_failure(self, failed: impl FnMut(Error) + 'v) -> TreeCopy<'v> {
        TreeCopy { failed: Some(Box::new(failed)), ..self }
    }

    /// Tells of attributes that were left out, by the path of what has them in the source, and their names: those
    /// with a NUL in it, which a volume may have, and nothing takes.
    pub fn on_skipped_xattr(self, skipped: impl Fn(&[u8], &[u8]) + 'v) -> TreeCopy<'v> {
        TreeCopy { skipped: Some(Box::new(skipped)), ..self }
    }

    /// `dir` is what the result is about, or what it would be in; `is_elsewhere`: that leads into another subvolume.
    /// One that takes nothing is left, and what is beside it copied.
    fn go_on<T: Default>(&mut self, result: Result<T>, dir: Ino, is_elsewhere: bool) -> Result<T> {
        let error = match result {
            Err(error) if self.failed.is_some() => error,
            result => return result,
        };
        let stays = !error.is_of_all() || is_elsewhere;
        let left = match stays {
            true => Some(Vec::new()),
            false => error.is_of_subvolume().then(|| self.leave(dir)).flatten(),
        };
        let Some(left) = left else { return Err(error) };
        self.tell(error);
        for error in self.finish_left(&left) {
            // Of the subvolume that was told already.
            if !error.is_of_all() {
                self.tell(error);
            }
        }
        Ok(T::default())
    }

    fn tell(&mut self, error: Error) {
        if let Some(failed) = &mut self.failed {
            failed(error);
        }
    }

    /// Leaves the subvolume of the target that `dir` lies in, with these directories; `None` where all that is
    /// left goes there.
    fn leave(&mut self, dir: Ino) -> Option<Vec<Frame>> {
        let is_beside = |frame: &Frame| lie_apart(self.to, frame.to.ino(), dir);
        let beside = self.stack.iter().rposition(is_beside)?;
        Some(self.stack.split_off(beside + 1))
    }

    /// Directories that not all of their entries came into get what they are due.
    fn finish_left(&self, left: &[Frame]) -> Vec<Error> {
        left.iter().rev().filter_map(|frame| self.finish_dir(frame).err()).collect()
    }

    /// Copies `node` to the name `name` in `parent`.
    pub fn entry(
        &mut self,
        node: Node,
        path: &[u8],
        parent: &Node,
        name: &[u8],
        to_path: Vec<u8>,
    ) -> Result<()> {
        self.begin();
        let top = self.one(node, path.to_vec(), parent, name, to_path)?;
        self.stack.extend(top);
        self.run()
    }

    /// Copies what is in the directory `node` into the directory `to`.
    pub fn contents(
        &mut self,
        node: Node,
        path: Vec<u8>,
        to: Node,
        to_path: Vec<u8>,
    ) -> Result<()> {
        self.begin();
        self.enter(&node, &path)?;
        let left = self.listing(&node, &path)?;
        let frame = self.frame((node, path), (to, to_path), left, false);
        self.stack.push(frame);
        self.run()
    }

    /// Another source, which may lie in the one before.
    fn begin(&mut self) {
        self.stack.clear();
        self.entered.clear();
        self.made.clear();
        self.refused = None;
    }

    fn enter(&mut self, dir: &Node, path: &[u8]) -> Result<()> {
        match self.entered.insert(dir.ino()) {
            true => Ok(()),
            false => Err(self.from.error(path, two_names())),
        }
    }

    fn run(&mut self) -> Result<()> {
        let done = self.steps();
        // Where that ended with an error: of those which the copy made. What fails there that error stands for.
        let mut left = std::mem::take(&mut self.stack);
        left.retain(|frame| frame.fresh);
        self.finish_left(&left);
        done
    }

    fn steps(&mut self) -> Result<()> {
        while let Some(mut frame) = self.stack.pop() {
            let Some(listed) = frame.left.pop() else {
                let done = self.finish_dir(&frame);
                self.go_on(done, frame.to.ino(), false)?;
                continue;
            };
            let below = self.below(&frame, &listed);
            let is_elsewhere = below.as_ref().is_err_and(|error| {
                let to_path = join(self.paths_of(&frame)[1], &listed.name);
                error.is_of_subvolume() && is_elsewhere(self.to, &frame.to, &to_path)
            });
            let dir = frame.to.ino();
            self.stack.push(frame);
            let below = self.go_on(below, dir, is_elsewhere)?;
            self.stack.extend(below);
        }
        self.refused.take().map_or(Ok(()), Err)
    }

    fn below(&mut self, frame: &Frame, listed: &Listed) -> Result<Option<Frame>> {
        let name = &listed.name;
        let [path, to_path] = self.paths_of(frame).map(|path| join(path, name));
        let node = frame.from.listed(listed).at(self.from, &path)?;
        self.one(node, path, &frame.to, name, to_path)
    }

    fn paths_of(&self, frame: &Frame) -> [&[u8]; 2] {
        [0, 1].map(|side: usize| &self.paths[side][..frame.lens[side]])
    }

    /// Copies one thing; a directory comes back to be gone through.
    fn one(
        &mut self,
        node: Node,
        path: Vec<u8>,
        parent: &Node,
        name: &[u8],
        to_path: Vec<u8>,
    ) -> Result<Option<Frame>> {
        let mut old = parent.child_if_any(name).at(self.to, &to_path)?;
        if node.attr.kind == FileKind::File {
            old = old.map(|old| self.filled(old, &to_path)).transpose()?;
        }
        if let Some(old) = &old {
            self.may_replace(&node, &path, old, &to_path)?;
            if self.rules.no_clobber && !old.is_dir() {
                return Ok(None);
            }
        }
        if node.is_dir() && self.same_volume() && self.made.contains(&node.ino()) {
            self.is_into_itself(&path);
            return Ok(None);
        }
        if node.is_dir() {
            return self.dir(node, path, old, parent, name, to_path).map(Some);
        }
        if self.rules.preserve && self.link(&node, old.is_some(), parent, name, &to_path)? {
            return Ok(None);
        }
        match old {
            Some(old) if self.overwrites(&node, &old) => {
                self.content(&node, &path, &old, &to_path)?;
                let rest = self.rest(&node, &path, &old, &to_path);
                self.remember(&node, old);
                rest?;
            }
            old => self.put(&node, &path, old.is_some(), (parent, name), &to_path)?,
        }
        Ok(None)
    }

    /// What a file's content goes to instead of `old`.
    fn filled(&self, old: Node, path: &[u8]) -> Result<Node> {
        target::inside(self.to, &self.made_inside, old, path, self.rules.no_clobber)
    }

    /// Makes it, in the place of what has the name already if `taken`.
    fn put(
        &mut self,
        node: &Node,
        path: &[u8],
        taken: bool,
        (parent, name): (&Node, &[u8]),
        to_path: &[u8],
    ) -> Result<()> {
        let mut draft = Draft::new(self.to, parent, name, taken).at(self.to, to_path)?;
        let made = match node.attr.kind {
            FileKind::File => {
                draft.make_file(&self.cx, node.attr.perm & 0o777).at(self.to, to_path)?
            }
            _ => draft.make(|name| self.make(node, path, parent, name, to_path))?,
        };
        self.content(node, path, &made, to_path)?;
        draft.is_good();
        let rest = self.rest(node, path, &made, to_path);
        if rest.is_ok() {
            draft.keep().at(self.to, to_path)?;
        }
        // What was taken away again has no name that others could be added to.
        if rest.is_ok() || !taken {
            self.remember(node, made);
        }
        rest
    }

    fn content(&self, node: &Node, path: &[u8], made: &Node, to_path: &[u8]) -> Result<()> {
        if node.attr.kind != FileKind::File {
            return Ok(());
        }
        let (from, to) = (FileAt::of(self.from, node, path), FileAt::of(self.to, made, to_path));
        fill::copy(&from, &to, self.rules.reflink)
    }

    /// What `made` has beside content.
    fn rest(&self, node: &Node, path: &[u8], made: &Node, to_path: &[u8]) -> Result<()> {
        match self.rules.preserve {
            true => self.attributes(node, path, made, to_path),
            false => Ok(()),
        }
    }

    /// Other names of `node` become names of `made`.
    fn remember(&mut self, node: &Node, made: Node) {
        if self.rules.preserve && node.attr.nlink > 1 {
            self.made_inside.add_copy(made.ino());
            self.links.insert(node.ino(), made);
        }
    }

    fn overwrites(&self, node: &Node, old: &Node) -> bool {
        let files = node.attr.kind == FileKind::File && old.attr.kind == FileKind::File;
        // Another name of the old file must not get this content.
        let is_imported = || self.imported.as_ref().is_some_and(|links| links.is_copy(old.ino()));
        let is_copy = || self.made_inside.is_copy(old.ino()) || is_imported();
        files && !(self.rules.preserve && (old.attr.nlink > 1 || is_copy()))
    }

    fn may_replace(&self, node: &Node, path: &[u8], old: &Node, to: &[u8]) -> Result<()> {
        let refused = |what: &str| Err(Error::refused(self.to.show(to), what));
        if self.same_volume() && node.ino() == old.ino() {
            return refused(&format!("is the same file as {}", self.from.show(path)));
        }
        match (node.is_dir(), old.is_dir()) {
            (true, false) => refused("is no directory, and a directory cannot replace it"),
            (false, true) => refused("is a directory, and only a directory can go there"),
            _ => Ok(()),
        }
    }

    fn same_volume(&self) -> bool {
        self.from.is(self.to)
    }

    fn dir(
        &mut self,
        node: Node,
        path: Vec<u8>,
        old: Option<Node>,
        parent: &Node,
        name: &[u8],
        to_path: Vec<u8>,
    ) -> Result<Frame> {
        self.enter(&node, &path)?;
        let left = self.listing(&node, &path)?;
        let fresh = old.is_none();
        let made = match old {
            Some(old) => old,
            None => self.make(&node, &path, parent, name, &to_path)?,
        };
        // Else it is met where the directory is listed that it was made in.
        if fresh && self.same_volume() && parent.ino() == node.ino() {
            self.is_into_itself(&path);
        }
        self.made.insert(made.ino());
        Ok(self.frame((node, path), (made, to_path), left, fresh))
    }

    fn is_into_itself(&mut self, path: &[u8]) {
        let what = "a directory cannot be copied into itself";
        self.refused = Some(Error::refused(self.from.show(path), what));
    }

    /// In reverse order.
    fn listing(&self, dir: &Node, path: &[u8]) -> Result<Vec<Listed>> {
        let (mut all, missing) = dir.listing();
        if let Some(why) = missing {
            self.from.lost(path, None, why)?;
        }
        all.reverse();
        Ok(all)
    }

    fn frame(
        &mut self,
        (from, from_path): (Node, Vec<u8>),
        (to, to_path): (Node, Vec<u8>),
        left: Vec<Listed>,
        fresh: bool,
    ) -> Frame {
        let lens = [from_path.len(), to_path.len()];
        self.paths = [from_path, to_path];
        Frame { from, to, lens, left, fresh }
    }

    fn finish_dir(&self, frame: &Frame) -> Result<()> {
        let [from_path, to_path] = self.paths_of(frame);
        if self.rules.preserve {
            return self.attributes(&frame.from, from_path, &frame.to, to_path);
        }
        // By the umask, or the ACL that its directory hands on, since it was made.
        Ok(())
    }

    fn make(
        &self,
        node: &Node,
        path: &[u8],
        parent: &Node,
        name: &[u8],
        to_path: &[u8],
    ) -> Result<Node> {
        let Attr { kind, perm, rdev, .. } = node.attr;
        let (fs, cx, perm) = (self.to.fs(), &self.cx, perm & 0o777);
        let entry = match kind {
            FileKind::Dir => fs.mkdir(cx, parent.ino(), name, perm),
            FileKind::Symlink => {
                let target = self.from.fs().readlink(node.ino()).at(self.from, path)?;
                let made = fs.symlink(cx, parent.ino(), name, &target);
                made.inspect(|entry| self.made_inside.add_link(entry.attr.ino))
            }
            kind => fs.mknod(cx, parent.ino(), name, kind, perm, rdev),
        };
        Ok(Node::held(fs, entry.at(self.to, to_path)?))
    }

    /// Makes another name of what was copied before; false if it was not.
    fn link(
        &self,
        node: &Node,
        replace: bool,
        parent: &Node,
        name: &[u8],
        to_path: &[u8],
    ) -> Result<bool> {
        let Some(first) = self.links.get(&node.ino()) else { return Ok(false) };
        // Another source may have taken its only name.
        if self.to.fs().getattr(first.ino()).at(self.to, to_path)?.nlink == 0 {
            return Ok(false);
        }
        let mut draft = Draft::new(self.to, parent, name, replace).at(self.to, to_path)?;
        let linked =
            draft.make(|name| self.to.fs().link(&self.cx, first.ino(), parent.ino(), name));
        if matches!(linked, Err(FsError::Posix(Errno::EXDEV))) {
            // In another subvolume of the target it is a file of its own.
            return Ok(false);
        }
        drop(Node::held(self.to.fs(), linked.at(self.to, to_path)?));
        let set = SetAttr { ctime: Some(node.attr.ctime), ..SetAttr::default() };
        self.set(first, &set, to_path)?;
        draft.keep().at(self.to, to_path)?;
        Ok(true)
    }

    fn set(&self, node: &Node, set: &SetAttr, path: &[u8]) -> Result<()> {
        self.to.fs().setattr(&self.cx, node.ino(), set).at(self.to, path).map(drop)
    }

    /// Owner first (it drops capabilities), then xattrs (ACLs touch permissions), then
    /// permissions and times.
    fn attributes(&self, from: &Node, path: &[u8], to: &Node, to_path: &[u8]) -> Result<()> {
        let attr = &from.attr;
        let (uid, gid) = (Some(attr.uid), Some(attr.gid));
        self.set(to, &SetAttr { uid, gid, ..SetAttr::default() }, to_path)?;
        let tried = self.xattrs(from, path, to, to_path);
        let perm = tried.perm(attr.perm.into()) as u16;
        let set = SetAttr {
            perm: (!from.is_symlink()).then_some(perm),
            atime: Some(SetTime::At(attr.atime)),
            mtime: Some(SetTime::At(attr.mtime)),
            ..SetAttr::default()
        };
        self.set(to, &set, to_path)?;
        tried.result()
    }

    fn xattrs(&self, from: &Node, path: &[u8], to: &Node, to_path: &[u8]) -> Tried<Error> {
        let (source, target) = (self.from.fs(), self.to.fs());
        let mut tried = Tried::default();
        let theirs = tried.all(source.listxattr(from.ino()).at(self.from, path));
        let there = tried.all(target.listxattr(to.ino()).at(self.to, to_path));
        let (Some(theirs), Some(there)) = (theirs, there) else { return tried };
        for name in there.iter().filter(|name| !theirs.contains(name)) {
            let gone = target.removexattr(&self.cx, to.ino(), name);
            tried.one(name, gone.at(self.to, to_path));
        }
        for name in theirs {
            if name.contains(&0) {
                self.skipped.iter().for_each(|skipped| skipped(path, &name));
                continue;
            }
            let value = source.getxattr(from.ino(), &name).at(self.from, path);
            let set = value.and_then(|value| {
                let set = target.setxattr(&self.cx, to.ino(), &name, &value, XattrMode::Set);
                set.at(self.to, to_path).map_err(Error::of_attribute)
            });
            tried.one(&name, set);
        }
        tried
    }
}
