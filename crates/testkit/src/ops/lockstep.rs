//! Two file systems, one sequence of operations: they must answer alike at each step
//! and hold the same tree in the end.

use std::fmt;

use vfs::{FallocateMode, FileSystem, Ino, SeekWhence, SetTime};

use super::op::{Op, Target};
use super::outcome::{Outcome, Step};
use super::session::Session;
use crate::Profile;
use crate::compare::{Difference, Rules, TreeSnapshot, diff};

/// How exactly the answers must match.
#[derive(Clone, Debug)]
pub struct Tolerance {
    /// Holes exactly as in the model; else only never a hole where the model has data.
    pub exact_holes: bool,
    /// Which of mtime and ctime each operation moved must match.
    pub times: bool,
    /// Compare whole trees after every so many steps, and at the end; 0: only then.
    pub tree_every: usize,
    pub rules: Rules,
    /// What models that are made for a run are like.
    pub profile: Profile,
}

impl Default for Tolerance {
    fn default() -> Tolerance {
        Tolerance {
            exact_holes: false,
            times: false,
            tree_every: 0,
            rules: Rules::default().ignoring_clock(),
            profile: Profile::BTRFS,
        }
    }
}

#[derive(Debug)]
pub enum Divergence {
    Answer { step: usize, op: Box<Op>, model: Box<Step>, tested: Box<Step> },
    Tree { step: usize, differences: Vec<Difference> },
}

impl Divergence {
    /// What kind of failure it is, so that shrinking does not slip into another one.
    pub fn signature(&self) -> String {
        match self {
            Divergence::Tree { differences, .. } => {
                let mut whats: Vec<_> =
                    differences.iter().map(|difference| difference.what.clone()).collect();
                whats.sort();
                whats.dedup();
                format!("tree {whats:?}")
            }
            Divergence::Answer { op, model, tested, .. } => {
                let op = format!("{op:?}");
                let name = op.split(' ').next().unwrap_or_default();
                format!("{name} {}", model.outcome == tested.outcome)
            }
        }
    }

    /// Operations that were applied up to and with the one that failed.
    pub fn steps(&self) -> usize {
        match self {
            Divergence::Answer { step, .. } | Divergence::Tree { step, .. } => *step,
        }
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Divergence::Answer { step, op, model, tested } => {
                writeln!(f, "step {step}: {op:?}")?;
                writeln!(f, "  model:  {:?} {:?}", model.outcome, model.moved)?;
                write!(f, "  tested: {:?} {:?}", tested.outcome, tested.moved)
            }
            Divergence::Tree { step, differences } => {
                writeln!(f, "after step {step} the trees differ (model, tested):")?;
                for difference in differences.iter().take(20) {
                    writeln!(f, "  {difference}")?;
                }
                Ok(())
            }
        }
    }
}

/// The kernel treats a position as data or hole by what it stored; an implementation
/// that stores zeros for a hole is right as well.
fn sound_seek(op: &Op, model: &Outcome, tested: &Outcome) -> bool {
    let Op::Seek { offset, whence, .. } = op else { return false };
    match (whence, model, tested) {
        (SeekWhence::Data, Outcome::Position(model), Outcome::Position(tested)) => {
            (*offset..=*model).contains(tested)
        }
        // No more data, says the model; anything behind the offset may be zeros.
        (SeekWhence::Data, Outcome::Error(code), Outcome::Position(tested)) => {
            code.0 == libc::ENXIO && tested >= offset
        }
        (SeekWhence::Hole, Outcome::Position(model), Outcome::Position(tested)) => tested >= model,
        _ => false,
    }
}

/// The target of a punch. Whether one that frees nothing changes the times depends in
/// the kernel on what it has cached.
fn may_free_nothing(op: &Op) -> Option<&Target> {
    match op {
        Op::Fallocate { target, mode: FallocateMode::PunchHole, .. } => Some(target),
        _ => None,
    }
}

impl Tolerance {
    fn accepts(&self, op: &Op, model: &Step, tested: &Step) -> bool {
        let times = !self.times || model.moved == tested.moved || may_free_nothing(op).is_some();
        let same = model.outcome == tested.outcome
            || (!self.exact_holes && sound_seek(op, &model.outcome, &tested.outcome));
        times && same
    }
}

/// A file system, or the part of it below a directory.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub fs: &'a dyn FileSystem,
    pub root: Ino,
}

impl<'a> Subject<'a> {
    pub fn whole(fs: &'a dyn FileSystem) -> Subject<'a> {
        Subject { fs, root: fs.root() }
    }

    fn session(self, tolerance: &Tolerance) -> Session<'a> {
        let session = Session::below(self.fs, self.root);
        if tolerance.times { session.watching_times() } else { session }
    }

    fn tree(self) -> Result<TreeSnapshot, vfs::FsError> {
        TreeSnapshot::below(self.fs, self.root)
    }
}

fn trees(
    step: usize,
    model: Subject<'_>,
    tested: Subject<'_>,
    rules: &Rules,
) -> Result<(), Divergence> {
    let failed = |what: &str, error: vfs::FsError| {
        let differences = vec![Difference::whole(format!("{what} cannot be read: {error}"))];
        Divergence::Tree { step, differences }
    };
    let a = model.tree().map_err(|error| failed("the model", error))?;
    let b = tested.tree().map_err(|error| failed("the tested tree", error))?;
    let differences = diff(&a, &b, rules);
    if differences.is_empty() { Ok(()) } else { Err(Divergence::Tree { step, differences }) }
}

/// Applies `ops` to both and returns the first divergence.
pub fn lockstep(
    model: &dyn FileSystem,
    tested: &dyn FileSystem,
    ops: &[Op],
    tolerance: &Tolerance,
) -> Result<(), Divergence> {
    lockstep_below(Subject::whole(model), Subject::whole(tested), ops, tolerance)
}

/// As `lockstep`, on parts of file systems.
pub fn lockstep_below(
    model: Subject<'_>,
    tested: Subject<'_>,
    ops: &[Op],
    tolerance: &Tolerance,
) -> Result<(), Divergence> {
    lockstep_answers(model, tested, ops, tolerance)?;
    trees(ops.len(), model, tested, &tolerance.rules)
}

/// As `lockstep_below`, but leaves the comparison of trees at the end to the caller.
pub fn lockstep_answers(
    model: Subject<'_>,
    tested: Subject<'_>,
    ops: &[Op],
    tolerance: &Tolerance,
) -> Result<(), Divergence> {
    let (mut a, mut b) = (model.session(tolerance), tested.session(tolerance));
    for (step, op) in ops.iter().enumerate() {
        let (model_step, tested_step) = (a.step(op), b.step(op));
        if !tolerance.accepts(op, &model_step, &tested_step) {
            let op = Box::new(op.clone());
            let (step, model, tested) = (step + 1, Box::new(model_step), Box::new(tested_step));
            return Err(Divergence::Answer { step, op, model, tested });
        }
        if let Some(target) = may_free_nothing(op) {
            let (target, atime, mtime) = (target.clone(), None, Some(SetTime::Now));
            let align = Op::Utimes { target, atime, mtime };
            a.apply(&align);
            b.apply(&align);
        }
        if tolerance.tree_every > 0 && (step + 1) % tolerance.tree_every == 0 {
            trees(step + 1, model, tested, &tolerance.rules)?;
        }
    }
    Ok(())
}
