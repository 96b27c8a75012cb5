//! Runs workloads on the simulated device, and judges what each crash would leave.

use super::base::{self, Base, options};
use super::hold::{Gate, work_here};
use super::inside::{self, Commits};
use super::outside;
use super::shared;
use super::state::{self, Extra};
use blocksim::{Epoch, Image, Lie, SimDevice};
use btrfs_fs::{BtrfsFs, Compress, Defect, Injection, Method, Options};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use testkit::durability::{Applied, History, Rules, Witness};
use testkit::ops::{Op, Outcome, hash, listing};
use vfs::{Context, FileSystem};

/// One workload: a list of operations for each thread. Several threads work in `t0`, `t1`...
#[derive(Clone)]
pub struct Case {
    pub name: String,
    pub seed: u64,
    pub threads: Vec<Vec<Op>>,
    pub commits: Commits,
    /// On a volume of `shared::base`.
    pub shared: bool,
}

impl Case {
    pub fn new(name: String, seed: u64, threads: Vec<Vec<Op>>) -> Case {
        Case { name, seed, threads, commits: Commits::Nobody, shared: false }
    }

    pub fn base(&self) -> &'static Base {
        if self.shared { shared::base(self.seed) } else { base::base(self.seed) }
    }
}

/// How hard to look.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Crash states for each flush.
    pub per_flush: usize,
    /// One state of so many is also judged from outside (0: none), crashed again in
    /// recovery, and emptied.
    pub outside: u64,
    pub again: u64,
    pub empty: u64,
}

/// What a test of the tests breaks.
pub type Breaker = fn(Box<dyn FileSystem>) -> Box<dyn FileSystem>;

#[derive(Clone, Copy, Default)]
pub struct Broken {
    pub device: Option<Lie>,
    pub file_system: Option<Breaker>,
    pub engine: Option<Defect>,
}

#[derive(Default)]
pub struct Tally {
    pub cases: AtomicUsize,
    pub states: AtomicUsize,
    pub outside: AtomicUsize,
    pub logs: AtomicUsize,
    /// Commits that were held, and fsyncs that returned while one was, or while one ran.
    pub held: AtomicUsize,
    pub inside: AtomicUsize,
    turn: AtomicU64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let get = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        write!(
            f,
            "{} workloads, {} crash states, {} of them with a log tree, {} judged from outside; \
             {} commits held, {} fsyncs inside a commit",
            get(&self.cases),
            get(&self.states),
            get(&self.logs),
            get(&self.outside),
            get(&self.held),
            get(&self.inside),
        )
    }
}

pub struct Rig {
    pub effort: Effort,
    pub broken: Broken,
    pub tally: Tally,
}

/// What a workload's threads share.
#[derive(Clone, Copy)]
pub struct Beside<'a> {
    pub fs: &'a dyn FileSystem,
    pub history: &'a History,
    pub gate: &'a Gate,
    pub device: &'a SimDevice,
}

/// The device after a workload, and what it was promised.
struct Run {
    device: Arc<SimDevice>,
    history: History,
}

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0 };

/// Three volumes of eight compress whatever they can, each by another method.
fn compressed(seed: u64) -> Option<Compress> {
    let method = match seed % 8 {
        3 => "zlib",
        5 => "zstd:1",
        6 => "lzo",
        _ => return None,
    };
    Some(Compress { method: Method::parse(method)?, force: true })
}

impl Rig {
    pub fn new(effort: Effort) -> Rig {
        Rig { effort, broken: Broken::default(), tally: Tally::default() }
    }

    pub fn breaking(mut self, broken: Broken) -> Rig {
        self.broken = broken;
        self
    }

    /// The error tells everything that is needed to see it again.
    pub fn run(&self, case: &Case) -> Result<(), String> {
        self.tally.cases.fetch_add(1, Ordering::Relaxed);
        let result = self.work(case).and_then(|run| self.crash(case, &run));
        result.map_err(|why| {
            let lists: Vec<String> = case.threads.iter().map(|ops| listing(ops)).collect();
            format!(
                "{why}\nworkload {}:\n{}\nagain: SPINNEY_CRASH='{}' cargo test -p spinney-btrfs-fs \
                 --test crash -- one_case --ignored --nocapture",
                case.name,
                lists.join("\n--- next thread\n"),
                case.name,
            )
        })
    }

    fn work(&self, case: &Case) -> Result<Run, String> {
        let base = case.base();
        let slow = match case.commits {
            Commits::Nobody | Commits::Held(_) => Duration::ZERO,
            Commits::Always | Commits::Background => Duration::from_micros(100),
        };
        let gate = Gate::new(slow);
        let device = SimDevice::new(base.image.clone()).lying(self.broken.device);
        let device = Arc::new(device.hooked(Some(gate.hook())));
        let mut fs = self.open(case, &device)?;
        if let Some(breaker) = self.broken.file_system {
            fs = breaker(fs);
        }
        let history = History::new();
        let beside = Beside { fs: &*fs, history: &history, gate: &gate, device: &device };
        if case.threads.len() > 1 {
            self.threads(case, beside)?;
        } else {
            self.one_thread(case, beside)?;
        }
        drop(fs);
        Ok(Run { device, history })
    }

    fn open(&self, case: &Case, device: &Arc<SimDevice>) -> Result<Box<dyn FileSystem>, String> {
        // Every other pair of volumes tells the device what is free: it must not be too early.
        let (discard, injection) = (case.seed & 2 != 0, Injection::of(self.broken.engine));
        let background = matches!(case.commits, Commits::Background);
        let commit_interval = Duration::from_millis(3);
        let compress = compressed(case.seed);
        let mut options =
            Options { discard, injection, background, commit_interval, compress, ..options() };
        if matches!(case.commits, Commits::Held(_)) && inside::reads_much(case.seed) {
            options.cache_bytes = 64 << 10;
        }
        if case.seed & 4 != 0 {
            // Inodes leave memory as soon as they can.
            options.inode_bytes = 0;
        }
        let fs = BtrfsFs::open_device(device.clone(), options);
        Ok(Box::new(fs.map_err(|error| format!("mount: {error}"))?))
    }

    fn one_thread(&self, case: &Case, beside: Beside<'_>) -> Result<(), String> {
        let Beside { fs, history, device, .. } = beside;
        let model = case.base().model();
        let (ops, position) = (&case.threads[0], || device.position());
        // A thread of its own, since it is a worker for as long as it lives.
        on_a_worker(|| {
            let mut witness = Witness::new(history, (fs, fs.root()), &model, &position)?;
            match &case.commits {
                Commits::Held(parts) => {
                    inside::apply_in_parts(self, beside, &mut witness, ops, parts)
                }
                _ => apply(self, beside, &mut witness, ops),
            }
        })
    }

    fn threads(&self, case: &Case, beside: Beside<'_>) -> Result<(), String> {
        let Beside { fs, history, device, .. } = beside;
        let position = || device.position();
        // What no thread touches is in the history too.
        let model = case.base().model();
        Witness::new(history, (fs, fs.root()), &model, &position)?;
        let stop = AtomicBool::new(!matches!(case.commits, Commits::Always));
        std::thread::scope(|scope| {
            let committer = scope.spawn(|| inside::commit_always(beside, &stop));
            let run = |(number, ops): (usize, &Vec<Op>)| {
                let (ops, position) = (ops.clone(), &position);
                scope.spawn(move || {
                    work_here();
                    let name = format!("t{number}");
                    let entry = fs.lookup(&CX, fs.root(), name.as_bytes());
                    let root = entry.map_err(|error| format!("{name}: {error}"))?.attr.ino;
                    let model = testkit::RefFs::default();
                    let mut witness = Witness::new(history, (fs, root), &model, position)?;
                    apply(self, beside, &mut witness, &ops)
                })
            };
            let running: Vec<_> = case.threads.iter().enumerate().map(run).collect();
            let mut ends: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
            stop.store(true, Ordering::Relaxed);
            ends.push(committer.join());
            ends.into_iter()
                .try_for_each(|end| end.unwrap_or_else(|_| Err("a thread panicked".to_owned())))
        })
    }

    fn crash(&self, case: &Case, run: &Run) -> Result<(), String> {
        for epoch in run.device.recording().epochs() {
            let demands = run.history.demands(epoch.end);
            for choice in epoch.choices(self.effort.per_flush, case.seed) {
                let image = epoch.image(&choice);
                let extra = self.extra(case, &image, &epoch);
                state::judge(&image, &demands, Rules::default(), extra).map_err(|why| {
                    let Epoch { index, end, .. } = epoch;
                    // Tells who is wrong: the one who wrote the log or the one who replays it.
                    let kernel = outside::judge(&image, &demands, Rules::default());
                    format!(
                        "{why}\ncrash before flush {index}, after {end} events; of the writes \
                         in flight: {:?}\nthe kernel's view of the same state: {kernel:?}",
                        choice.0
                    )
                })?;
            }
        }
        Ok(())
    }

    /// What more is done with this state: a share of all states, wherever they come from.
    fn extra(&self, case: &Case, image: &Image, epoch: &Epoch) -> Extra {
        self.tally.states.fetch_add(1, Ordering::Relaxed);
        let log = outside::log_pending(image);
        if log {
            self.tally.logs.fetch_add(1, Ordering::Relaxed);
        }
        let turn = self.tally.turn.fetch_add(1, Ordering::Relaxed);
        let mixed = hash(&(turn ^ (epoch.index as u64) << 40).to_le_bytes());
        let share = |one_of: u64| one_of > 0 && mixed.is_multiple_of(one_of);
        let outside = share(self.effort.outside) && outside::fit(image);
        if outside && outside::lacking().is_none() {
            self.tally.outside.fetch_add(1, Ordering::Relaxed);
        }
        Extra {
            outside,
            // A subvolume is not removed like a directory.
            empty: share(self.effort.empty) && !case.shared,
            again: if share(self.effort.again) { 2 } else { 0 },
            defect: self.broken.engine,
        }
    }
}

fn on_a_worker<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            work_here();
            work()
        });
        worker.join().unwrap_or_else(|_| Err("the thread panicked".to_owned()))
    })
}

pub fn apply(
    rig: &Rig,
    beside: Beside<'_>,
    witness: &mut Witness<'_>,
    ops: &[Op],
) -> Result<(), String> {
    for op in ops {
        let before = beside.gate.inside();
        if let Applied::Failed(outcome) = witness.apply(op)? {
            return Err(format!("{op:?} failed, without a fault: {outcome:?}"));
        }
        if before.is_some() && before == beside.gate.inside() && matches!(op, Op::Fsync { .. }) {
            rig.tally.inside.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Whether every operation of a list does something on a volume of `base`.
pub fn all_succeed(ops: &[Op]) -> bool {
    let model = base::base(0).model();
    let mut session = testkit::ops::Session::new(&model);
    ops.iter().all(|op| !matches!(session.apply(op), Outcome::Error(_)))
}

/// A case of one thread; its seed comes from its name.
pub fn case(name: String, ops: Vec<Op>) -> Case {
    Case::new(name.clone(), hash(name.as_bytes()), vec![ops])
}
