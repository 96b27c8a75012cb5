//! Runs every workload on every side, round by round.
//!
//! All sides take part in one run and take turns within a round, in the opposite order
//! in every second one, so that whatever changes on the machine meets them alike. A
//! failure costs one sample: the side is set up anew and the run goes on.

use crate::counters::{self, Counters};
use crate::side::Side;
use crate::sys;
use crate::target::{OpenDir, Target, remove_children};
use crate::watchdog;
use crate::workload::{Cache, Detail, Env, Info, Material, Sizes, Workload};
use std::ffi::CStr;
use std::io;
use std::time::{Duration, Instant};

/// The workloads' own directory in the root of every side.
const WORK_DIR: &CStr = c"spinney-bench.work";

pub struct Plan {
    pub workloads: Vec<Box<dyn Workload>>,
    pub rounds: usize,
    pub sizes: Sizes,
    /// For one sample.
    pub limit: Duration,
    /// Check every image at the end of every round.
    pub verify: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    pub rate: f64,
    /// How many units of work were done, where they were counted.
    pub units: Option<f64>,
    /// How long a sync took right after the work: what the work left for later.
    pub settle_seconds: f64,
    pub details: Vec<Detail>,
    /// The longest that anything took, in milliseconds, where the workload tells.
    pub worst_ms: Option<f64>,
    /// What the side counted over the timed run alone.
    pub counters: Counters,
}

/// One workload on one side.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Cell {
    /// One per round that was run; `None` where it failed.
    pub samples: Vec<Option<Sample>>,
    pub failures: Vec<String>,
    /// Why the workload does not apply to this side.
    pub not_here: Option<String>,
}

impl Cell {
    pub fn rates(&self) -> Vec<Option<f64>> {
        self.samples.iter().map(|sample| sample.as_ref().map(|s| s.rate)).collect()
    }
}

/// One workload on all sides, the baseline first.
pub struct Row {
    pub info: Info,
    pub cells: Vec<Cell>,
}

pub struct Outcome {
    pub rows: Vec<Row>,
    /// Stopped by a signal before the end.
    pub interrupted: bool,
    /// What the check of an image found.
    pub damage: Vec<String>,
}

impl Outcome {
    pub fn failures(&self) -> usize {
        self.rows.iter().flat_map(|row| &row.cells).map(|cell| cell.failures.len()).sum()
    }
}

/// Runs the plan; `progress` hears of every sample.
pub fn run(
    plan: &Plan,
    sides: &mut [Box<dyn Side>],
    material: &Material,
    progress: &mut dyn FnMut(&str),
) -> Outcome {
    let cells = vec![Cell::default(); sides.len()];
    let rows =
        plan.workloads.iter().map(|w| Row { info: w.info(), cells: cells.clone() }).collect();
    let mut outcome = Outcome { rows, interrupted: false, damage: Vec::new() };
    for round in 0..plan.rounds {
        for side in sides.iter_mut() {
            if let Err(error) = side.reset() {
                progress(&format!("{}: {error}", side.label()));
            }
            // A run that was killed may have left its directory in one that is not ours.
            tidy(&mut **side);
            if let Err(error) = side.pause() {
                progress(&format!("{}: {error}", side.label()));
            }
        }
        for (workload, row) in plan.workloads.iter().zip(&mut outcome.rows) {
            for turn in 0..sides.len() {
                if sys::interrupted() {
                    outcome.interrupted = true;
                    return outcome;
                }
                let at = if round % 2 == 0 { turn } else { sides.len() - 1 - turn };
                let said =
                    take(plan, workload.as_ref(), &mut *sides[at], material, &mut row.cells[at]);
                progress(&format!(
                    "round {}/{} {:<20} {:<16} {said}",
                    round + 1,
                    plan.rounds,
                    row.info.name,
                    sides[at].label()
                ));
            }
        }
        if plan.verify {
            outcome.damage.extend(sides.iter_mut().filter_map(|side| verify(&mut **side)));
        }
    }
    outcome
}

fn verify(side: &mut dyn Side) -> Option<String> {
    let error = side.verify().err()?;
    Some(format!("{}: {error}", side.label()))
}

/// Takes one sample into `cell` and says how it went. The side is at work for so long.
fn take(
    plan: &Plan,
    workload: &dyn Workload,
    side: &mut dyn Side,
    material: &Material,
    cell: &mut Cell,
) -> String {
    if let Some(why) = &cell.not_here {
        return format!("not here: {why}");
    }
    if let Err(error) = side.resume() {
        cell.samples.push(None);
        cell.failures.push(error.to_string());
        return format!("FAILED: {error}");
    }
    let said = take_awake(plan, workload, side, material, cell);
    match side.pause() {
        Ok(()) => said,
        Err(error) => format!("{said}, and then: {error}"),
    }
}

fn take_awake(
    plan: &Plan,
    workload: &dyn Workload,
    side: &mut dyn Side,
    material: &Material,
    cell: &mut Cell,
) -> String {
    let switch = side.abort_switch();
    let label = side.label().to_string();
    let abort = || {
        let (name, seconds) = (workload.info().name, plan.limit.as_secs());
        eprintln!("{name} on {label}: no end after {seconds} s");
        if let Some(switch) = switch {
            switch();
        }
    };
    let started = Instant::now();
    let result = watchdog::guard(plan.limit, abort, || measure(plan, workload, side, material));
    match result {
        Ok(sample) => {
            let (rate, unit) = (sample.rate, workload.info().unit);
            cell.samples.push(Some(sample));
            format!("{rate:>12.0} {unit:<8} {:5.1} s in all", started.elapsed().as_secs_f64())
        }
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            cell.not_here = Some(error.to_string());
            tidy(side);
            format!("not here: {error}")
        }
        Err(error) => {
            cell.samples.push(None);
            cell.failures.push(error.to_string());
            if let Err(error) = side.reset() {
                return format!("FAILED: {error}; and it does not come back");
            }
            tidy(side);
            format!("FAILED: {error}")
        }
    }
}

/// Setup, sync, cold start if one is due, the timed run, sync, teardown.
fn measure(
    plan: &Plan,
    workload: &dyn Workload,
    side: &mut dyn Side,
    material: &Material,
) -> io::Result<Sample> {
    let at = |step: &'static str| {
        move |e: io::Error| match e.kind() {
            io::ErrorKind::Unsupported => e,
            kind => io::Error::new(kind, format!("{step}: {e}")),
        }
    };
    let target = side.target()?;
    with_env(plan, &*target, material, true, |env| workload.setup(env)).map_err(at("setup"))?;
    target.sync().map_err(at("sync after setup"))?;
    drop(target);
    if workload.info().cache == Cache::Cold {
        side.make_cold().map_err(at("cold start"))?;
    }
    let target = side.target()?;
    let before = counters_of(side);
    let (done, counters, settle_seconds) = with_env(plan, &*target, material, false, |env| {
        let done = workload.run(env)?;
        if !(done.rate() > 0.0 && done.rate().is_finite()) {
            return Err(io::Error::other("nothing was measured"));
        }
        let counters = counters::difference(&before, &counters_of(side));
        let start = Instant::now();
        target.sync()?;
        Ok((done, counters, start.elapsed().as_secs_f64()))
    })
    .map_err(at("run"))?;
    with_env(plan, &*target, material, false, |env| workload.teardown(env))
        .map_err(at("teardown"))?;
    target.rmdir(target.root(), WORK_DIR).map_err(at("teardown"))?;
    target.sync().map_err(at("teardown"))?;
    let (rate, units, worst_ms) = (done.rate(), done.units(), done.worst_ms);
    Ok(Sample { rate, units, settle_seconds, details: done.details, worst_ms, counters })
}

/// None where the side does not count. Numbers beside the measurement are no reason to
/// give it up.
fn counters_of(side: &mut dyn Side) -> Counters {
    side.counters()
        .unwrap_or_else(|error| {
            eprintln!("{}: {error}", side.label());
            None
        })
        .unwrap_or_default()
}

fn with_env<T>(
    plan: &Plan,
    target: &dyn Target,
    material: &Material,
    make_dir: bool,
    work: impl FnOnce(&Env<'_>) -> io::Result<T>,
) -> io::Result<T> {
    let dir = match make_dir {
        true => OpenDir::make(target, target.root(), WORK_DIR)?,
        false => OpenDir::open(target, target.root(), WORK_DIR)?,
    };
    let dir_name = WORK_DIR.to_str().map_err(io::Error::other)?;
    work(&Env { target, dir: dir.id, dir_name, sizes: &plan.sizes, material })
}

/// Removes what a sample that did not get to its end left in a directory that is not ours.
fn tidy(side: &mut dyn Side) {
    let Ok(target) = side.target() else { return };
    if let Ok(dir) = OpenDir::open(&*target, target.root(), WORK_DIR) {
        let _ = remove_children(&*target, dir.id);
        drop(dir);
        let _ = target.rmdir(target.root(), WORK_DIR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::side::DirSide;
    use crate::target::tests::Scratch;
    use crate::workload::{Aims, Done, select};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Fails on its first run, works after that, and leaves its litter to `tidy`.
    struct Flaky(AtomicU32);

    impl Workload for Flaky {
        fn info(&self) -> Info {
            let aims = Aims::NONE;
            Info { name: "flaky", about: "", unit: "x/s", cache: Cache::Warm, aims, standard: true }
        }
        fn setup(&self, env: &Env<'_>) -> io::Result<()> {
            env.target.mkdir(env.dir, c"litter")
        }
        fn run(&self, _: &Env<'_>) -> io::Result<Done> {
            match self.0.fetch_add(1, Ordering::Relaxed) {
                0 => Err(io::Error::other("first time")),
                _ => Ok(Done::from_rate(5.0)),
            }
        }
    }

    struct Elsewhere;

    impl Workload for Elsewhere {
        fn info(&self) -> Info {
            Info { name: "elsewhere", ..Flaky(AtomicU32::new(0)).info() }
        }
        fn run(&self, _: &Env<'_>) -> io::Result<Done> {
            Err(io::Error::new(io::ErrorKind::Unsupported, "no such program"))
        }
    }

    fn run_in(scratch: &Scratch, workloads: Vec<Box<dyn Workload>>, rounds: usize) -> Outcome {
        let root = scratch.0.join("root");
        std::fs::create_dir_all(&root).unwrap();
        let sizes = Sizes::scaled(0.0, 1 << 20);
        let material = Material::new(&scratch.0, &sizes, &scratch.0);
        let plan = Plan { workloads, rounds, sizes, limit: Duration::from_secs(60), verify: true };
        let mut sides: Vec<Box<dyn Side>> = vec![
            Box::new(DirSide::new("a", root.clone())),
            Box::new(DirSide::new("b", root.clone())),
        ];
        let outcome = run(&plan, &mut sides, &material, &mut |_| {});
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0, "nothing is left behind");
        outcome
    }

    #[test]
    fn every_side_gets_a_sample_in_every_round() {
        let scratch = Scratch::new("runner");
        let workloads = select(&["create-1t".into(), "small-read-hot".into()]).unwrap();
        let outcome = run_in(&scratch, workloads, 3);
        assert_eq!(outcome.rows.len(), 2);
        for cell in outcome.rows.iter().flat_map(|row| &row.cells) {
            assert_eq!(cell.samples.len(), 3);
            assert!(cell.samples.iter().all(|s| s.as_ref().is_some_and(|s| s.rate > 0.0)));
        }
        assert_eq!(outcome.failures(), 0);
    }

    #[test]
    fn a_failure_costs_one_sample() {
        let scratch = Scratch::new("runner-flaky");
        let outcome = run_in(&scratch, vec![Box::new(Flaky(AtomicU32::new(0)))], 2);
        let cells = &outcome.rows[0].cells;
        assert_eq!(cells[0].rates(), [None, Some(5.0)]);
        assert_eq!(cells[0].failures, ["run: first time"]);
        assert_eq!(cells[1].rates(), [Some(5.0), Some(5.0)]);
        assert_eq!(outcome.failures(), 1);
    }

    #[test]
    fn what_does_not_apply_is_no_failure() {
        let scratch = Scratch::new("runner-elsewhere");
        let outcome = run_in(&scratch, vec![Box::new(Elsewhere)], 2);
        assert_eq!(outcome.failures(), 0);
        assert_eq!(outcome.rows[0].cells[0].not_here.as_deref(), Some("no such program"));
        assert!(outcome.rows[0].cells[0].samples.is_empty());
    }
}
