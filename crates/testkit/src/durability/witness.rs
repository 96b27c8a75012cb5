//! Applies operations to the system under test and to the model, and writes down what the
//! model says that they changed.

use std::collections::{BTreeMap, HashMap};

use vfs::{Context, FileSystem, Ino, Result};

use super::history::{History, Moment, Slot, Span, Sync, Synced};
use crate::compare::{NodeView, TreeSnapshot};
use crate::ops::{Op, Outcome, Path, Session, StatView, Target, TimeView};

/// Where the device's record is.
pub type Position<'a> = &'a (dyn Fn() -> usize + std::marker::Sync);

pub struct Witness<'a> {
    history: &'a History,
    position: Position<'a>,
    tested: Session<'a>,
    fs: &'a dyn FileSystem,
    root: Ino,
    model: Session<'a>,
    reference: &'a dyn FileSystem,
    tree: TreeSnapshot,
    /// The tested system's numbers of the model's inodes.
    numbers: HashMap<Ino, Ino>,
    /// What is in the sessions' slots, in the tested system's numbers.
    open: HashMap<usize, Ino>,
}

/// How a step went.
#[derive(Debug, PartialEq, Eq)]
pub enum Applied {
    Same(Outcome),
    /// The tested system failed where the model did not. It is not known what happened, and
    /// nothing must be applied after it.
    Failed(Outcome),
}

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0 };

/// Names and what they stand for, in the model's numbers.
fn bindings(tree: &TreeSnapshot) -> BTreeMap<Slot, Ino> {
    let named = tree.nodes.iter().filter(|(path, _)| **path != Path::default());
    named
        .filter_map(|(path, node)| {
            let (dir, name) = path.split();
            Some(((tree.nodes.get(&dir)?.attr.ino, name.to_vec()), node.attr.ino))
        })
        .collect()
}

fn inodes(tree: &TreeSnapshot) -> BTreeMap<Ino, (&Path, &NodeView)> {
    tree.nodes.iter().map(|(path, node)| (node.attr.ino, (path, node))).collect()
}

/// The number of what `path` below `root` leads to.
fn number(fs: &dyn FileSystem, root: Ino, path: &Path) -> Result<Ino> {
    let mut at = root;
    for name in path.components() {
        let found = fs.lookup(&CX, at, name);
        if at != root {
            fs.forget(at, 1);
        }
        at = found?.attr.ino;
    }
    if at != root {
        fs.forget(at, 1);
    }
    Ok(at)
}

impl<'a> Witness<'a> {
    /// `root` of the tested system holds the same tree as `model`. What the first witness of a
    /// history finds is durable; the others work in directories of its tree.
    pub fn new(
        history: &'a History,
        (fs, root): (&'a dyn FileSystem, Ino),
        model: &'a dyn FileSystem,
        position: Position<'a>,
    ) -> std::result::Result<Witness<'a>, String> {
        let begin = Moment { tick: history.tick(), at: 0 };
        let mut witness = Witness {
            history,
            position,
            tested: Session::below(fs, root),
            fs,
            root,
            model: Session::new(model),
            reference: model,
            tree: TreeSnapshot::default(),
            numbers: HashMap::new(),
            open: HashMap::new(),
        };
        let span = Span { begin, end: history.tick(), uncertain: false };
        witness.note(span, None)?;
        // Others may be at work already when one begins in a directory of its own.
        let all = Sync { begin: history.tick(), done: 0, what: Synced::All };
        let mut inner = history.lock();
        if inner.syncs.is_empty() {
            inner.syncs.push(all);
        }
        drop(inner);
        Ok(witness)
    }

    /// Applies `op` to both. An error is a difference that no crash explains.
    pub fn apply(&mut self, op: &Op) -> std::result::Result<Applied, String> {
        let begin = Moment { tick: self.history.tick(), at: (self.position)() };
        let synced = self.synced(op);
        let outcome = self.tested.apply(op);
        let done = (self.position)();
        let end = self.history.tick();
        let expected = self.model.apply(op);
        let failed = without_times(&outcome) != without_times(&expected);
        if failed && !matches!(outcome, Outcome::Error(_)) {
            return Err(format!("{op:?}: the model says {expected:?}, tested {outcome:?}"));
        }
        self.note(Span { begin, end, uncertain: failed }, Some(op))?;
        if failed {
            return Ok(Applied::Failed(outcome));
        }
        if let (Some(what), Outcome::Done) = (synced, &outcome) {
            self.history.lock().syncs.push(Sync { begin: begin.tick, done, what });
        }
        self.follow_slots(op);
        Ok(Applied::Same(outcome))
    }

    fn synced(&self, op: &Op) -> Option<Synced> {
        match op {
            Op::Sync => Some(Synced::All),
            Op::Fsync { target, datasync } => {
                let ino = match target {
                    Target::Path(path) => number(self.fs, self.root, path).ok()?,
                    Target::Slot(slot) => *self.open.get(slot)?,
                };
                Some(if *datasync { Synced::Data(ino) } else { Synced::Full(ino) })
            }
            _ => None,
        }
    }

    fn follow_slots(&mut self, op: &Op) {
        match op {
            Op::Open { path, slot } => {
                self.open.remove(slot);
                if let Ok(ino) = number(self.fs, self.root, path) {
                    self.open.insert(*slot, ino);
                }
            }
            Op::Tmpfile { slot, .. } | Op::Close { slot } => {
                self.open.remove(slot);
            }
            _ => {}
        }
    }

    /// Writes down how the model's tree differs from what it was.
    fn note(&mut self, span: Span, op: Option<&Op>) -> std::result::Result<(), String> {
        if op.is_some_and(changes_nothing) {
            return Ok(());
        }
        let text = |what: &str, error: vfs::FsError| format!("{op:?}: {what}: {error}");
        let tree = TreeSnapshot::of(self.reference).map_err(|e| text("reading the model", e))?;
        let old = std::mem::replace(&mut self.tree, tree);
        let (was, is) = (inodes(&old), inodes(&self.tree));
        for (ino, (path, _)) in &is {
            if self.numbers.contains_key(ino) {
                continue;
            }
            let found = number(self.fs, self.root, path);
            match found {
                Ok(number) => self.numbers.insert(*ino, number),
                // It may never have been made; then nobody will find it either.
                Err(_) if span.uncertain => continue,
                Err(error) => return Err(text("looking for what was made", error)),
            };
        }
        let mut history = self.history.lock();
        let numbers = &self.numbers;
        for (ino, (_, node)) in &is {
            if was.get(ino).is_none_or(|(_, old)| old != node)
                && let Some(number) = numbers.get(ino)
            {
                history.set_inode(*number, node, span);
            }
        }
        for ino in was.keys().filter(|ino| !is.contains_key(ino)) {
            if let Some(number) = numbers.get(ino) {
                history.bury(*number, span);
            }
        }
        let (had, has) = (bindings(&old), bindings(&self.tree));
        let known = |(dir, name): &Slot| Some((*numbers.get(dir)?, name.clone()));
        for (slot, ino) in &has {
            if had.get(slot) != Some(ino)
                && let (Some(slot), Some(number)) = (known(slot), numbers.get(ino))
            {
                history.set_slot(slot, Some(*number), span);
            }
        }
        for slot in had.keys().filter(|slot| !has.contains_key(slot)) {
            if let Some(slot) = known(slot) {
                history.set_slot(slot, None, span);
            }
        }
        if let Some(Op::Rename { from, to, .. }) = op
            && had != has
        {
            let slot = |path: &Path| {
                let (dir, name) = path.split();
                known(&(old.nodes.get(&dir)?.attr.ino, name.to_vec()))
            };
            if let (Some(from), Some(to)) = (slot(from), slot(to)) {
                let Moment { tick, at } = span.begin;
                history.renames.push(super::history::Rename { tick, at, from, to });
            }
        }
        Ok(())
    }
}

/// Times are not demanded; whether a punch that frees nothing moves them is open even between
/// two kernels.
fn without_times(outcome: &Outcome) -> Outcome {
    match outcome {
        Outcome::Stat(stat) => {
            Outcome::Stat(StatView { atime: TimeView::Recent, mtime: TimeView::Recent, ..*stat })
        }
        other => other.clone(),
    }
}

fn changes_nothing(op: &Op) -> bool {
    matches!(
        op,
        Op::Fsync { .. }
            | Op::Sync
            | Op::Stat { .. }
            | Op::Read { .. }
            | Op::Readdir { .. }
            | Op::Readlink { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::Seek { .. }
            | Op::GetFlags { .. }
            | Op::Open { .. }
    )
}
