//! The kernel and the engine take turns on one volume, for many rounds, with all that quotas have to
//! follow: files, reflinks, snapshots, deletions of subvolumes, quotas on and off, groups and limits,
//! balances (conversions, too) and resizes.
//!
//! After each turn of the engine `btrfs check` counts the same numbers, the kernel reads what the model
//! has, a rescan by it changes no number, and scrub finds nothing. After each of the kernel's the engine
//! reads what the model has.
//!
//! `SPINNEY_ROUNDS` makes it longer (50 are what was asked for), `SPINNEY_SEED` and `SPINNEY_SEEDS` choose others.

#[path = "../common/mod.rs"]
mod common;
#[path = "../histories/mod.rs"]
mod histories;

use btrfs_fs::{BtrfsFs, Options};
use common::Image;
use common::kernel::kernel_but;
use histories::{side, world};
use side::{Ours, Side, Theirs};
use std::collections::BTreeMap;
use std::path::Path;
use testkit::oracle::{self, KernelMount, run, sh};
use vfs::FileSystem;
use world::{Files, History};

/// What the kernel says, and no more: that what it had reserved in a group is not given back by another one's
/// when a member comes or goes meanwhile; that it has counted wrong, when it drops a subvolume whose nodes a balance
/// has moved, its own balance as well (a rescan follows); and that a snapshot which comes into a group makes
/// its numbers doubtful.
const MISCOUNTS: &[&str] = &[
    "has unreleased space, type",
    "qgroup reserved space leaked",
    "has non-zero numbers, rfer",
    "qgroup inherit needs a rescan",
];

struct Turns {
    image: Image,
    mount: &'static str,
    history: History,
    /// How often the kernel left numbers behind that a rescan had to mend.
    miscounted: u64,
    /// And relations of groups that are not there.
    begun_anew: u64,
    rescanned: u64,
    judged: u64,
}

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

/// What the kernel says of all groups.
fn numbers(mount: &KernelMount) -> String {
    let path = mount.path().to_string_lossy();
    sh("btrfs", &["qgroup", "show", "--raw", "--sync", "-rep", &path]).expect("numbers")
}

impl Turns {
    fn files(&self) -> BTreeMap<&str, &Files> {
        let subs = self.history.world.subs.iter();
        subs.map(|(name, sub)| (name.as_str(), &sub.files)).collect()
    }

    /// All names and contents are the model's.
    fn compare(&self, when: &str, side: &dyn Side) {
        for (sub, files) in self.files() {
            let mut there = side.names(sub);
            there.sort();
            assert_eq!(there, files.keys().cloned().collect::<Vec<_>>(), "{when}: {sub:?}");
            for (name, content) in files {
                let read = side.read(sub, name).expect("a file");
                let differs = (0..content.len()).find(|i| read.get(*i) != content.get(*i));
                let lens = (content.len(), read.len());
                assert!(read == **content, "{when}: {sub}/{name} {lens:?}: {differs:?}");
            }
        }
    }

    /// Answers whether trees of deleted subvolumes are left for the kernel to drop.
    fn engine_turn(&mut self, steps: usize) -> bool {
        let fs = self.image.open_checked(options());
        assert_eq!(fs.read_only_reason(), None);
        let side = Ours(&fs);
        self.compare("the kernel's, to us", &side);
        self.assert_limits(&fs);
        self.history.tally.ended_for_others += u64::from(side.end_balance());
        self.history.turn(&side, steps);
        self.compare("ours", &side);
        self.assert_limits(&fs);
        let leaves = self.history.below(3) == 0;
        if !leaves {
            assert!(fs.sync_deleted(&[], None).expect("dropped"));
        }
        if self.history.below(4) == 0 {
            side.leave_balance();
        }
        assert_eq!(common::stat(&fs, "commit.over_promise"), 0);
        fs.destroy().expect("close");
        leaves
    }

    fn assert_limits(&self, fs: &BtrfsFs) {
        assert!(fs.limits_are_right().expect("a quota tree"));
        if self.history.world.quotas {
            let there = Ours(fs).limits();
            for (group, most) in self.history.world.limits(&Ours(fs)) {
                assert_eq!(there.get(&group), Some(&most), "the limit of {group}");
            }
        }
    }

    /// What `btrfs check` has to say of the numbers; `true`: they are right, or there are none.
    fn counts(&self) -> bool {
        let report = run("btrfs", &["check", "-Q", &self.image.path.to_string_lossy()]);
        let counted = report.stdout.contains("Counts for qgroup id: 0/5");
        assert!(counted || !self.history.world.quotas, "it was to count: {}", report.text());
        !report.stdout.contains("different")
    }

    /// The engine's numbers, before anybody mends them.
    fn judge_numbers(&mut self, round: u64) {
        let fs = common::open_image(&self.image.path, Options { read_only: true, ..options() });
        let status = fs.quota_status().expect("status");
        drop(fs);
        assert_eq!(status.is_some(), self.history.world.quotas);
        let Some(status) = status else { return };
        if !status.inconsistent && status.rescan.is_none() {
            self.judged += 1;
            let report = run("btrfs", &["check", "-Q", &self.image.path.to_string_lossy()]);
            assert!(
                self.counts(),
                "round {round}: btrfs check counts otherwise: {}",
                report.text()
            );
        }
    }

    fn kernel_turn(&mut self, round: u64, steps: usize, drops: bool) {
        let (path, mount) = (self.image.path.clone(), self.mount);
        kernel_but(&path, mount, MISCOUNTS, |mount| {
            let side = Theirs(mount);
            self.history.tally.ended_for_others += u64::from(side.end_balance());
            self.compare("ours, to the kernel", &side);
            self.judge_rescan(mount, round, drops);
            oracle::scrub(mount).expect("scrub");
            self.history.turn(&side, steps);
            self.compare("the kernel's", &side);
            if self.history.below(2) == 0 {
                swept(mount);
            }
            if self.history.below(4) == 0 {
                side.leave_balance();
            }
        });
        self.mend(round);
    }

    /// A rescan by the kernel changes no number that counts.
    fn judge_rescan(&mut self, mount: &KernelMount, round: u64, drops: bool) {
        if !self.history.world.quotas {
            return;
        }
        if drops {
            swept(mount);
        }
        let path = mount.path().to_string_lossy();
        let show = run("btrfs", &["qgroup", "show", "--raw", "--sync", "-rep", &path]);
        if drops && show.stderr.contains("cannot find the qgroup") {
            // What `has_dangling` is about; `mend` comes behind this turn.
            return;
        }
        assert!(show.success(), "{}", show.text());
        let doubtful = show.stderr.contains("inconsistent") || show.stderr.contains("rescan");
        sh("btrfs", &["quota", "rescan", "-w", &path]).expect("rescan");
        let same = show.stdout.trim_end() == numbers(mount);
        if drops && !same {
            self.miscounted += 1;
        } else if !doubtful {
            self.rescanned += 1;
            let before = show.stdout.trim_end();
            assert_eq!(before, numbers(mount), "round {round}: a rescan was to change nothing");
        }
    }

    /// What the kernel's turn left wrong becomes right.
    fn mend(&mut self, round: u64) {
        if !self.history.world.quotas {
            return;
        }
        if has_dangling(&self.image.path) {
            self.begun_anew += 1;
            let fs = self.image.open();
            self.history.begin_quotas_anew(&Ours(&fs));
            fs.wait_for_rescan().expect("a rescan");
            fs.destroy().expect("close");
        }
        // It miscounts what it drops after a balance, and what is then not right stays so.
        if !self.counts() {
            self.miscounted += 1;
            self.rescan(round);
        }
    }

    /// Numbers that are right again: by us and by the kernel in turns.
    fn rescan(&self, round: u64) {
        if round.is_multiple_of(2) {
            let fs = self.image.open();
            let side = Ours(&fs);
            side.rescan();
            fs.wait_for_rescan().expect("a rescan");
            fs.destroy().expect("close");
        } else {
            kernel_but(&self.image.path, "noatime", MISCOUNTS, |mount| {
                let path = mount.path().to_string_lossy();
                sh("btrfs", &["quota", "rescan", "-w", &path]).expect("rescan");
            });
        }
        assert!(self.counts(), "round {round}: after a rescan the numbers are right");
    }
}

/// What was deleted is dropped.
fn swept(mount: &KernelMount) {
    let path = mount.path().to_string_lossy();
    // That wakes the one who drops.
    sh("btrfs", &["filesystem", "sync", &path]).expect("sync");
    sh("btrfs", &["subvolume", "sync", &path]).expect("dropped");
}

/// Some group is a member of another and is not there. The kernel leaves that behind when it takes away
/// the group of a subvolume that it drops beyond a limit, and `btrfs check -Q` does not get past it.
fn has_dangling(image: &Path) -> bool {
    let report = run("btrfs", &["check", "-Q", &image.to_string_lossy()]);
    report.stderr.contains("failed to add qgroup relation")
}

fn alternate(seed: u64, rounds: u64, mkfs: &[&str], mount: &'static str) {
    println!("SPINNEY_SEED={seed} SPINNEY_SEEDS=1 SPINNEY_ROUNDS={rounds}: {mkfs:?}, {mount}");
    let history = History::new(seed);
    let image = Image::new(1 << 30, mkfs);
    let mut turns =
        Turns { image, mount, history, miscounted: 0, begun_anew: 0, rescanned: 0, judged: 0 };
    for round in 0..rounds {
        println!("round {round}: the engine's turn, {:?}", turns.history.tally);
        let leaves = turns.engine_turn(common::steps(60));
        turns.judge_numbers(round);
        assert!(!has_dangling(&turns.image.path), "round {round}: a member that is not there");
        common::assert_sound(&turns.image.path);
        println!("round {round}: the kernel's turn");
        turns.kernel_turn(round, common::steps(60) / 2, leaves);
        common::assert_sound(&turns.image.path);
    }
    let Turns { history, miscounted, begun_anew, rescanned, judged, .. } = turns;
    let tally = &history.tally;
    println!("{tally:?}; {judged} counted, {rescanned} rescanned");
    println!(
        "by the kernel {miscounted} times wrong, {begun_anew} times with groups that are none"
    );
    assert!(judged * 3 >= rounds && rescanned * 3 >= rounds, "quotas were to be on mostly");
    assert!(tally.deleted > 0 && tally.balances > 0 && tally.resizes > 0 && tally.limits > 0);
    assert!(tally.refused > 0, "no limit was ever reached");
    assert!(tally.relations >= rounds, "groups are hardly ever in others");
}

#[test]
fn rounds_of_everything() {
    testkit::require!(kernel_btrfs);
    let rounds = common::number("SPINNEY_ROUNDS", 8);
    for seed in common::seeds(1, 2) {
        let (mkfs, mount): (&[&str], _) = match seed % 3 {
            0 => (&["-n", "4096"], "noatime"),
            1 => (&[], "noatime"),
            _ => (&["--csum", "xxhash"], "noatime,compress=zstd"),
        };
        alternate(seed, rounds, mkfs, mount);
    }
}
