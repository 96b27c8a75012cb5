//! A chain of differences in which the kernel and we take turns: at changing the subvolume and snapshotting it, at
//! sending, and at receiving, all on one source and one target.
//!
//! 20 rounds, so that each of the three has each of the others behind and before it; `SPINNEY_ROUNDS` makes it
//! longer, `SPINNEY_SEED` and `SPINNEY_SEEDS` choose other changes.

use crate::common;
use common::mount::{Mount, lacks_fuse};
use common::origins::{Origin, assert_received, content_map, origins};
use common::streams::{Sender, assert_none, changes, differences, is_same_member};
use common::streams::{kernels_receive, lost_by_the_stream, make_stream, ready, shell};
use common::{Image, KernelMount, assert_clean, fine};
use std::collections::BTreeSet;
use std::path::Path;
use testkit::PosixFs;
use testkit::compare::Difference;
use testkit::ops::{Generator, Session};
use testkit::oracle::TempDir;

/// Operations before each snapshot.
const STEPS: usize = 200;

/// Snapshots that stay; older ones go, by whose turn it is.
const KEPT: usize = 20;

const NAME: &str = "send-turns";

/// Who does what in a round: `true`, we do.
#[derive(Clone, Copy, Debug)]
struct Turn {
    round: usize,
    changes: bool,
    sends: bool,
    receives: bool,
    /// Compressed content as it is stored.
    packed: bool,
}

impl Turn {
    fn of(round: usize) -> Turn {
        let bit = |n: usize| round >> n & 1 == 1;
        Turn { round, sends: bit(0), receives: bit(1), changes: bit(2), packed: round % 5 > 2 }
    }

    fn sender(self) -> Sender {
        match (self.sends, self.packed) {
            (true, false) => Sender::Ours(&[]),
            (true, true) => Sender::Ours(&["--proto", "2", "--compressed-data"]),
            (false, false) => Sender::Kernels(""),
            (false, true) => Sender::Kernels("--proto 2 --compressed-data"),
        }
    }
}

fn operate(v: &Path, generator: &mut Generator) {
    let fs = PosixFs::open(v).unwrap();
    let mut session = Session::new(&fs);
    generator.by_ref().take(STEPS).for_each(|op| _ = session.apply(&op));
    session.close_all();
}

/// The next state of `v`, as `sN`; on a mount of ours or the kernel's.
fn change(image: &Image, turn: Turn, generator: &mut Generator) {
    let Turn { round, changes, .. } = turn;
    let gone = round.checked_sub(KEPT);
    if changes {
        let mount = Mount::new(image, "compress=zstd");
        operate(&mount.join("v"), generator);
        let [v, s] =
            ["v".into(), format!("s{round}")].map(|n| mount.join(&n).display().to_string());
        fine(&["subvolume", "snapshot", "-r", &v, &s]);
        if let Some(gone) = gone {
            fine(&["subvolume", "delete", &mount.join(&format!("s{gone}")).display().to_string()]);
        }
        mount.umount();
    } else {
        let mount = KernelMount::new(&image.path, "noatime,compress=lzo").unwrap();
        operate(&mount.join("v"), generator);
        let top = mount.path().display();
        shell(&format!("btrfs -q subvolume snapshot -r {top}/v {top}/s{round}"));
        if let Some(gone) = gone {
            shell(&format!("btrfs -q subvolume delete {top}/s{gone}"));
        }
        mount.unmount().unwrap();
    }
}

fn receive(target: &Image, turn: Turn, streams: &Path) {
    let stream = streams.join(turn.round.to_string());
    if turn.receives {
        let file = stream.display().to_string();
        fine(&["receive", "-q", "-f", &file, &target.at("/")]);
    } else {
        let mount = KernelMount::new(&target.path, "noatime").unwrap();
        kernels_receive(&stream, mount.path(), &format!("{turn:?}"));
        mount.unmount().unwrap();
    }
}

/// What a file lost, without its path, which a later round may change.
type Losses = BTreeSet<[String; 3]>;

/// Each file of the round's snapshot is there as it was, but for what streams of the kernel's did not tell: its own
/// tools do not get it out of the same streams either. Ours lose nothing.
fn compare(ends: [&Image; 2], streams: &Path, turn: Turn, known: &mut Losses) {
    let (round, what) = (turn.round, &format!("{turn:?}"));
    let [from, to] = ends.map(|image| KernelMount::new(&image.path, "ro").unwrap());
    let [left, right] = [&from, &to].map(|mount| mount.join(&format!("s{round}")));
    let mut found = differences(&left, &right, what);
    if !found.is_empty() {
        let lost = lost_by_the_stream(NAME, streams, &left, round);
        let loss = |one: &Difference| [&one.what, &one.left, &one.right].map(String::clone);
        found.retain(|one| {
            let by_theirs = lost.iter().any(|lost| is_same_member(one, lost));
            let is_new = by_theirs && !turn.sends && known.insert(loss(one));
            !(is_new || by_theirs && known.contains(&loss(one)))
        });
    }
    assert_none(&found, what);
    if round == 0 {
        assert_eq!(content_map(&left), content_map(&right), "{what}: where holes are");
    }
    from.unmount().unwrap();
    to.unmount().unwrap();
}

/// One after the other; each receiver builds on what the other one received.
fn chain(seed: u64, rounds: usize) {
    println!("SPINNEY_SEED={seed} SPINNEY_SEEDS=1 SPINNEY_ROUNDS={rounds}");
    let (source, target) = (Image::with(NAME, &["-n", "4096"]), Image::new("send-turns-to"));
    let streams = TempDir::new("send-turns-streams").unwrap();
    fine(&["subvolume", "create", &source.at("/v")]);
    let (mut generator, mut parent) = (changes(seed), None::<Origin>);
    let mut known = Losses::new();
    for turn in (0..rounds).map(Turn::of) {
        let (round, place) = (turn.round, [format!("s{}", turn.round)]);
        let what = format!("seed {seed}, {turn:?}");
        change(&source, turn, &mut generator);
        make_stream(turn.sender(), &source, streams.path(), round);
        receive(&target, turn, streams.path());
        compare([&source, &target], streams.path(), turn, &mut known);
        let (sent, got) = (origins(&source, &place), origins(&target, &place));
        assert_received(&sent[0], &got[0], parent.as_ref(), &what);
        parent = got.into_iter().next();
        if let Some(gone) = round.checked_sub(KEPT) {
            fine(&["subvolume", "delete", &target.at(&format!("/s{gone}"))]);
        }
    }
    assert_clean(&source.path);
    assert_clean(&target.path);
}

#[test]
fn the_kernel_and_we_take_turns() {
    if !ready("the_kernel_and_we_take_turns") || lacks_fuse("fuse") {
        return;
    }
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |n| n.parse().unwrap());
    let (first, seeds) = (number("SPINNEY_SEED", 1), number("SPINNEY_SEEDS", 1));
    let rounds = number("SPINNEY_ROUNDS", 20) as usize;
    (first..first + seeds).for_each(|seed| chain(seed, rounds));
}
