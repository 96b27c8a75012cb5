//! What tests of streams share: random histories of a subvolume that the kernel made, and what must
//! agree of a subvolume and its copy: every file, and what both say of where they come from.

use super::mount::{Mount, lacks_fuse};
use super::origins::{assert_received, content_map, origins};
use super::{Image, assert_clean, fine, sh, text};
use std::path::Path;
use testkit::PosixFs;
use testkit::compare::{Difference, Rules, TreeSnapshot, diff};
use testkit::ops::{Config, Generator, OpKind, Session};
use testkit::oracle::{KernelMount, TempDir, capabilities, record_skip};

pub fn ready(place: &str) -> bool {
    match capabilities().lacking_kernel_btrfs() {
        Some(why) => {
            record_skip(place, why);
            false
        }
        None => true,
    }
}

pub fn shell(script: &str) -> String {
    let done = sh(&format!("set -e\n{script}"));
    assert!(done.status.success(), "{script}\n{}{}", text(&done.stdout), text(&done.stderr));
    text(&done.stdout)
}

/// A subvolume `v`, and `rounds` snapshots `s0`, `s1`, ... of it with `steps` random operations
/// before each.
pub fn history(image: &Image, options: &str, seed: u64, rounds: usize, steps: usize) {
    let mount = KernelMount::new(&image.path, options).unwrap();
    let (top, v) = (mount.path().display().to_string(), mount.join("v"));
    shell(&format!("btrfs -q subvolume create {}", v.display()));
    {
        let fs = PosixFs::open(&v).unwrap();
        let mut session = Session::new(&fs);
        let mut generator = changes(seed);
        for round in 0..rounds {
            for op in generator.by_ref().take(steps) {
                session.apply(&op);
            }
            shell(&format!("btrfs -q subvolume snapshot -r {top}/v {top}/s{round}"));
        }
        session.close_all();
    }
    mount.unmount().unwrap();
}

/// Random operations, many of them on names.
pub fn changes(seed: u64) -> Generator {
    let mut config = Config::all();
    (config.names, config.max_size) = (5, 300_000);
    for (kind, weight) in &mut config.weights {
        match kind {
            OpKind::Rename => *weight *= 8,
            OpKind::RenameFlags | OpKind::Mkdir | OpKind::Link => *weight *= 4,
            _ => {}
        }
    }
    Generator::new(seed, config)
}

/// What a receiver keeps: flags are not in protocol 1, and the kernel's tools leave out those of
/// protocol 2.
pub fn rules() -> Rules {
    Rules { flags: false, attributes: false, ..Rules::default() }
}

pub fn differences(left: &Path, right: &Path, what: &str) -> Vec<Difference> {
    let [left, right] = [left, right].map(|dir| TreeSnapshot::of_dir(dir).unwrap());
    println!("{what}: {} nodes", left.nodes.len());
    assert!(left.nodes.len() > 1, "{what}: an empty subvolume shows nothing");
    diff(&left, &right, &rules())
}

pub fn assert_same(left: &Path, right: &Path, what: &str) {
    assert_none(&differences(left, right, what), what);
}

pub fn assert_none(found: &[Difference], what: &str) {
    let told: Vec<String> = found.iter().take(20).map(|found| found.to_string()).collect();
    assert!(found.is_empty(), "{what}: {} differences\n{}", found.len(), told.join("\n"));
}

/// Who makes the streams of a chain, with which options.
#[derive(Clone, Copy)]
pub enum Sender {
    Ours(&'static [&'static str]),
    Kernels(&'static str),
}

/// How a chain is made.
#[derive(Clone, Copy)]
pub struct Chain {
    pub name: &'static str,
    pub rounds: usize,
    pub mkfs: &'static [&'static str],
    pub mount: &'static str,
    pub sender: Sender,
    /// We receive into a mount with these options, not into the image.
    pub into_mount: Option<&'static str>,
    /// With `-C`.
    pub confined: bool,
}

/// `SPINNEY_SEEDS` many, from `SPINNEY_SEED` on, of `SPINNEY_ROUNDS` rounds; a soak has more of them.
pub fn chains(kind: Chain, seeds: u64) {
    if !ready(kind.name) || kind.into_mount.is_some() && lacks_fuse("fuse") {
        return;
    }
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |n| n.parse().unwrap());
    let (first, seeds) = (number("SPINNEY_SEED", 1), number("SPINNEY_SEEDS", seeds));
    let rounds = number("SPINNEY_ROUNDS", kind.rounds as u64) as usize;
    let kind = Chain { rounds, ..kind };
    (first..first + seeds).for_each(|seed| chain(kind, seed));
}

/// Sends `s0`, and each further one as a difference from the one before. We receive them, and of
/// our own streams the kernel's tools as well; each state is compared.
pub fn chain(kind: Chain, seed: u64) {
    let Chain { name, rounds, .. } = kind;
    let source = Image::with(name, kind.mkfs);
    history(&source, kind.mount, seed, rounds, 250);
    let streams = TempDir::new(name).unwrap();
    make_streams(kind, &source, streams.path());
    let places: Vec<String> = (0..rounds).map(|round| format!("s{round}")).collect();
    let sent = origins(&source, &places);
    let from = KernelMount::new(&source.path, "ro").unwrap();
    let judge = |target: &Image, options: &str, who: &str| {
        let to = KernelMount::new(&target.path, options).unwrap();
        for round in 0..rounds {
            let what = format!("seed {seed}, round {round}, received by {who}");
            if who == "theirs" {
                kernels_receive(&streams.join(&round.to_string()), to.path(), &what);
            }
            let [from, to] = [from.join(&places[round]), to.join(&places[round])];
            let mut found = differences(&from, &to, &what);
            if !found.is_empty() && matches!(kind.sender, Sender::Kernels(_)) {
                let lost = lost_by_the_stream(name, streams.path(), &from, round);
                found.retain(|one| !lost.iter().any(|lost| is_same_member(one, lost)));
            }
            assert_none(&found, &what);
            if round == 0 {
                assert_eq!(content_map(&from), content_map(&to), "{what}: where holes are");
            }
        }
        to.unmount().unwrap();
        assert_clean(&target.path);
        let got = origins(target, &places);
        for round in 0..rounds {
            let parent = round.checked_sub(1).map(|before| &got[before]);
            let what = format!("seed {seed}, round {round}, received by {who}");
            assert_received(&sent[round], &got[round], parent, &what);
        }
    };
    judge(&we_receive(kind, streams.path()), "ro", "ours");
    if matches!(kind.sender, Sender::Ours(_)) {
        judge(&Image::new(&format!("{name}-theirs")), "noatime", "theirs");
    }
    from.unmount().unwrap();
}

pub fn is_same_member(one: &Difference, other: &Difference) -> bool {
    (&one.path, &one.what) == (&other.path, &other.what)
}

/// What the kernel's own tools do not get out of a stream that the kernel made: seed 111 has one
/// without the time of its root directory.
pub fn lost_by_the_stream(
    name: &str,
    streams: &Path,
    from: &Path,
    round: usize,
) -> Vec<Difference> {
    let target = Image::new(&format!("{name}-lost"));
    let to = KernelMount::new(&target.path, "noatime").unwrap();
    for round in 0..=round {
        kernels_receive(&streams.join(round.to_string()), to.path(), "by its own tools");
    }
    differences(from, &to.join(&format!("s{round}")), "by its own tools")
}

fn we_receive(kind: Chain, streams: &Path) -> Image {
    let ours = Image::new(&format!("{}-ours", kind.name));
    let mount = kind.into_mount.map(|options| Mount::new(&ours, options));
    let place = mount.as_ref().map_or_else(|| ours.at("/"), Mount::word);
    for round in 0..kind.rounds {
        let file = streams.join(round.to_string()).display().to_string();
        let words: &[&str] = if kind.confined { &["receive", "-C"] } else { &["receive"] };
        fine(&[words, &["-q", "-f", &file, &place]].concat());
    }
    if let Some(mount) = mount {
        // Where the kernel decides on sizes by itself the server cannot.
        let caches = kind.into_mount.is_some_and(|options| options.contains("writeback"));
        let log = std::fs::read_to_string(ours.dir.join("log")).unwrap();
        assert_eq!(log.contains("a stream is received"), !caches, "{log}");
        mount.umount();
    }
    ours
}

pub fn kernels_receive(stream: &Path, into: &Path, what: &str) {
    let (stream, into) = (stream.display(), into.display());
    let done = sh(&format!("btrfs receive -q -f {stream} {into}"));
    let dump = || text(&sh(&format!("btrfs receive --dump -f {stream}")).stdout);
    assert!(done.status.success(), "{what}: {}\n{}", text(&done.stderr), dump());
}

/// A file for each round.
fn make_streams(kind: Chain, source: &Image, into: &Path) {
    for round in 0..kind.rounds {
        make_stream(kind.sender, source, into, round);
    }
}

/// The one of this round, as a difference from the one before.
pub fn make_stream(sender: Sender, source: &Image, into: &Path, round: usize) {
    let file = into.join(round.to_string()).display().to_string();
    match sender {
        Sender::Ours(options) => {
            let this = source.at(&format!("/s{round}"));
            let parent = source.at(&format!("/s{}", round.saturating_sub(1)));
            let mut words = [&["send", "-q", "-f", &file][..], options].concat();
            if round > 0 {
                words.extend_from_slice(&["-p", &parent]);
            }
            words.push(&this);
            fine(&words);
        }
        Sender::Kernels(options) => {
            let mount = KernelMount::new(&source.path, "ro").unwrap();
            let top = mount.path().display();
            let parent = match round {
                0 => String::new(),
                round => format!("-p {top}/s{}", round - 1),
            };
            shell(&format!("btrfs -q send {options} {parent} -f {file} {top}/s{round}"));
            mount.unmount().unwrap();
        }
    }
}
