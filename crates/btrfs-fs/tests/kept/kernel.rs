//! The kernel's btrfs: many sequences in one transaction, each in a subvolume of its own.
//!
//! Each subvolume has its own log, so one crash and one replay tell of all. Where a sync
//! commits instead, it commits all: what was done before it in the same transaction is done
//! again, among others that do not commit.

use crate::common::kernel::btrfs;
use crate::facts::{Facts, kept};
use crate::words::{self, BASE};
use btrfs_disk::Superblock;
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;
use testkit::compare::TreeSnapshot;
use testkit::ops::Session;
use testkit::oracle::{self, KernelMount, TempDir};
use testkit::posix_ops::PosixFs;
use vfs::{Context, FileSystem, Ino};

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o22 };

/// What the kernel did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All is there.
    Commit,
    Log(Facts),
    /// It cannot mount what its own log left.
    Broken,
}

/// What was done in one transaction: cases from `first` on are in no commit, and in `lasts` as
/// they were at the end.
struct Done {
    verdicts: Vec<Option<Verdict>>,
    lasts: Vec<TreeSnapshot>,
    first: usize,
}

pub struct Kernel {
    dir: TempDir,
    /// With a committed base in each of its subvolumes.
    template: PathBuf,
    width: usize,
    base: TreeSnapshot,
}

fn copy(from: &Path, to: &Path) {
    let (from, to) = (from.to_string_lossy(), to.to_string_lossy());
    oracle::sh("cp", &["--sparse=always", &*from, &*to]).expect("copy the image");
}

/// Generation and root of the log.
fn state(image: &Path) -> (u64, u64) {
    let mut bytes = [0; SUPER_SIZE];
    let file = std::fs::File::open(image).expect("open the image");
    file.read_exact_at(&mut bytes, COPIES[0]).expect("read the superblock");
    let fields = Superblock::parse(&bytes, COPIES[0]).expect("a superblock").fields;
    (fields.generation.0, fields.log_root.0)
}

fn subvolume(fs: &PosixFs, number: usize) -> Ino {
    let name = format!("s{number}");
    fs.lookup(&CX, fs.root(), name.as_bytes()).expect("a subvolume").attr.ino
}

impl Kernel {
    pub fn new(width: usize) -> Kernel {
        let dir = TempDir::new("kept").expect("temp dir");
        let template = dir.join("template.img");
        oracle::mkfs_btrfs(&template, 4 << 30, &[]).expect("mkfs.btrfs");
        let mount = KernelMount::new(&template, "noatime").expect("mount");
        for number in 0..width {
            btrfs(&mount, &["subvolume", "create", &format!("/s{number}")]);
        }
        let base = {
            let fs = PosixFs::open(mount.path()).expect("open the mount");
            for number in 0..width {
                let mut session = Session::below(&fs, subvolume(&fs, number));
                BASE.iter().for_each(|text| words::apply(&mut session, text).expect("the base"));
            }
            TreeSnapshot::below(&fs, subvolume(&fs, 0)).expect("walk")
        };
        mount.unmount().expect("unmount");
        Kernel { dir, template, width, base }
    }

    /// A verdict on each sequence.
    pub fn judge(&self, cases: &[Vec<String>]) -> Vec<Verdict> {
        let mut verdicts = vec![None; cases.len()];
        let mut todo: Vec<usize> = (0..cases.len()).collect();
        for round in 0..40 {
            let mut again = Vec::new();
            // The kernel commits by itself, too, when it is short of room for metadata.
            for batch in todo.chunks((self.width >> (round / 3)).max(1)) {
                let chosen: Vec<&[String]> = batch.iter().map(|&i| &cases[i][..]).collect();
                for (&number, verdict) in batch.iter().zip(self.parts(&chosen)) {
                    again.extend(verdict.is_none().then_some(number));
                    verdicts[number] = verdict;
                }
            }
            if again.is_empty() {
                return verdicts.into_iter().flatten().collect();
            }
            if again.len() == todo.len() {
                sleep(Duration::from_millis(20 * round));
            }
            todo = again;
        }
        let names: Vec<_> = todo.iter().map(|&i| cases[i].join("; ")).collect();
        panic!("somebody commits all the time: {names:#?}");
    }

    /// As `batch`, in halves if one of the logs cannot be replayed.
    fn parts(&self, cases: &[&[String]]) -> Vec<Option<Verdict>> {
        if let Some(verdicts) = self.batch(cases) {
            return verdicts;
        }
        if cases.len() == 1 {
            return vec![Some(Verdict::Broken)];
        }
        let (left, right) = cases.split_at(cases.len() / 2);
        [self.parts(left), self.parts(right)].concat()
    }

    /// Of one: `None` if something behind it committed. Of all: if there is no replay.
    fn batch(&self, cases: &[&[String]]) -> Option<Vec<Option<Verdict>>> {
        let (live, crashed) = (self.dir.join("live.img"), self.dir.join("crashed.img"));
        copy(&self.template, &live);
        let mount = KernelMount::new(&live, "noatime,commit=300").expect("mount");
        let done = {
            let fs = PosixFs::open(mount.path()).expect("open the mount");
            self.run(&fs, &live, &crashed, cases)
        };
        mount.unmount().expect("unmount");
        let Done { mut verdicts, lasts, first } = done;
        if lasts.is_empty() {
            return Some(verdicts);
        }
        let mount = KernelMount::new(&crashed, "noatime").inspect_err(|e| println!("{e}")).ok()?;
        {
            let fs = PosixFs::open(mount.path()).expect("open the mount");
            for (number, last) in (first..cases.len()).zip(&lasts) {
                let found = TreeSnapshot::below(&fs, subvolume(&fs, number)).expect("walk");
                verdicts[number] = Some(Verdict::Log(kept(&self.base, last, &found)));
            }
        }
        mount.unmount().expect("unmount");
        Some(verdicts)
    }

    /// All cases, each in its subvolume, and a copy of the volume as it is then.
    fn run(&self, fs: &PosixFs, live: &Path, crashed: &Path, cases: &[&[String]]) -> Done {
        let (mut verdicts, mut first) = (vec![None; cases.len()], 0);
        let dirs: Vec<Ino> = (0..cases.len()).map(|number| subvolume(fs, number)).collect();
        fs.sync().expect("sync");
        let mut seen = state(live).0;
        for (number, case) in cases.iter().enumerate() {
            let before = state(live).0;
            // Somebody on this machine called `sync`.
            first = if before == seen { first } else { number };
            let mut session = Session::below(fs, dirs[number]);
            let mut apply = |texts: &[String]| {
                for text in texts {
                    words::apply(&mut session, text).unwrap_or_else(|e| panic!("{case:?}: {e}"));
                }
                state(live).0
            };
            let (ops, sync) = case.split_at(case.len() - 1);
            let between = apply(ops);
            // A sync on the way committed: what is behind it is in the log.
            first = if between == before { first } else { number };
            seen = apply(sync);
            if seen != between {
                verdicts[number] = Some(Verdict::Commit);
                first = number + 1;
            }
        }
        let before = state(live);
        copy(live, crashed);
        if state(live) != before || before.0 != seen {
            first = cases.len();
        }
        let walk = |dir: &Ino| TreeSnapshot::below(fs, *dir).expect("walk");
        let lasts = dirs[first..].iter().map(walk).collect();
        Done { verdicts, lasts, first }
    }
}
