//! Every read, write and flush of a workload failing, one after the other, once or from then
//! on: the caller hears of it, the volume is read-only afterwards or goes on whole, and after
//! a reboot everything is there that was acknowledged. What the device refused is told before the
//! volume is closed. A refused write of content, and nothing else, leaves the volume as it is: the
//! content is kept, and what says later that it is durable is right. Any other refused write or
//! flush makes it read-only, with the device's reason.

#![allow(dead_code)]

use crate::harness;
use base::base;
use blocksim::{Access, Counts, Fault, Image, SimDevice, Span};
use btrfs_fs::{BtrfsFs, Options};
use harness::{base, hold, ops, state};
use hold::{Gate, Hold, work_here};
use ops::*;
use state::Extra;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use testkit::durability::{Applied, History, Rules, Witness};
use testkit::ops::{Code, Op, Outcome, Target};
use vfs::{Context, FallocateMode, FileKind, FileSystem, SetAttr, WriteFlags, XattrMode};

/// So little that nodes are read again all the time.
const CACHE: u64 = 64 << 10;

fn read(path: &str) -> Op {
    let target = Target::Path(testkit::ops::Path::new(path));
    Op::Read { target, offset: 0, len: 1 << 20 }
}

/// A little of everything, and each kind of sync.
fn workload() -> Vec<Op> {
    vec![
        read("B/big"),
        create("A/new"),
        write("A/new", 0, 300_000, 1),
        append("A/bar", 100, 2),
        fsync("A/new"),
        rename("A/foo", "B/foo"),
        link("A/bar", "B/bar"),
        fsync("B"),
        write("B/big", 4096, 140_000, 3),
        punch("B/big", 65_536, 16_384),
        fdatasync("B/big"),
        clone("B/big", "A/new"),
        truncate("B/foo", 5000),
        read("A/new"),
        sync(),
        set_xattr("B/foo", "user.y", 2000, 4),
        remove_xattr("B/foo", "user.x"),
        mkdir("A/D"),
        create("A/D/x"),
        write("A/D/x", 0, 10_000, 5),
        prealloc("A/D/x", 20_000, 200_000),
        fsync("A/D/x"),
        unlink("A/new"),
        rmdir("A/C"),
        exchange("A/D/x", "B/big"),
        write("A/D/x", 30_000, 3000, 6),
        fsync("A/D/x"),
        read("B/big"),
        symlink("D", "A/sym"),
        read("A/bar"),
        sync(),
    ]
}

/// What came of one run.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// No error was seen.
    Fine,
    NotMounted,
    /// An error was seen, and the volume takes changes still.
    GoesOn,
    /// An error was seen, and the volume is read-only.
    ReadOnly,
    /// Nothing but copies of the superblock, not the first one, was refused: the volume does without.
    WithoutCopies,
}

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };

/// Runs the workload on a failing device. The error is a broken promise.
fn run(number: u64, faults: &[Fault]) -> Result<(End, Counts), String> {
    run_with(number, faults, 0..0).map(|(end, counts, _)| (end, counts))
}

/// As `run`, with allocations failing, counted from the mount's end on; tells how many there
/// were, too.
fn run_with(
    number: u64,
    faults: &[Fault],
    allocations: Range<u64>,
) -> Result<(End, Counts, u64), String> {
    let mut allocated = 0;
    let base = base(number);
    let device = Arc::new(SimDevice::new(base.image.clone()).failing(faults));
    let history = History::new();
    let options = Options { cache_bytes: CACHE, ..base::options() };
    let end = match BtrfsFs::open_device(device.clone(), options) {
        Err(_) => End::NotMounted,
        Ok(fs) => {
            let position = || device.position();
            let model = base.model();
            let quiet = device.counts();
            device.set_faults(&[]);
            let mut witness = Witness::new(&history, (&fs, fs.root()), &model, &position)?;
            // What the witness looked at does not count.
            device.set_faults(&moved(faults, quiet, device.counts()));
            let mounted = fs.space().allocations();
            let Range { start, end } = allocations;
            fs.space().fail_allocations(mounted + start..mounted + end);
            let end = work(&fs, &device, &mut witness, refuses(faults))?;
            allocated = fs.space().allocations() - mounted;
            drop(witness);
            end
        }
    };
    let counts = device.counts();
    if end == End::NotMounted {
        // Nothing was acknowledged; it must mount without the fault.
        let fs = base::mount(Arc::new(SimDevice::new(device.image())));
        fs.map_err(|error| format!("the mount after a failed one: {error}"))?;
        return state::check(&device.image()).map(|()| (end, counts, allocated));
    }
    judge(number, &device, &history, &end)?;
    Ok((end, counts, allocated))
}

/// What is there after a reboot, and after a crash.
fn judge(number: u64, device: &SimDevice, history: &History, end: &End) -> Result<(), String> {
    let demands = history.demands(device.position());
    let mut extra = Extra { empty: true, ..Extra::default() };
    state::judge(&device.image(), &demands, Rules::default(), extra)
        .map_err(|why| format!("{end:?}, after a reboot: {why}"))?;
    extra.empty = false;
    if let Some(epoch) = device.recording().epochs().last() {
        for choice in epoch.choices(4, number) {
            let image = epoch.image(&choice);
            state::judge(&image, &demands, Rules::default(), extra)
                .map_err(|why| format!("{end:?}, after a crash: {why}"))?;
        }
    }
    Ok(())
}

/// The same accesses, numbered as if those between two counts had not been.
fn moved(faults: &[Fault], before: Counts, after: Counts) -> Vec<Fault> {
    let by = |fault: &Fault| match fault.access {
        Access::Read => (before.reads, after.reads - before.reads),
        Access::Write => (before.writes, after.writes - before.writes),
        Access::Flush => (before.flushes, after.flushes - before.flushes),
    };
    let shift = |fault: &Fault| {
        let (from, skipped) = by(fault);
        let late = fault.nth >= from;
        Fault { nth: if late { fault.nth + skipped } else { fault.nth }, ..*fault }
    };
    // A fault that hit during the mount is over, or goes on if it is one that does.
    faults.iter().filter(|f| f.span == Span::FromThenOn || f.nth >= by(f).0).map(shift).collect()
}

/// Whether the faults are refused writes or flushes. A read may be made up for by another copy,
/// or be tried again.
fn refuses(faults: &[Fault]) -> bool {
    faults.iter().any(|fault| fault.access != Access::Read)
}

fn work(
    fs: &BtrfsFs,
    device: &SimDevice,
    witness: &mut Witness<'_>,
    refuses: bool,
) -> Result<End, String> {
    let mut told = false;
    for op in workload() {
        let Applied::Failed(outcome) = witness.apply(&op)? else { continue };
        println!("  {op:?}: {outcome:?}");
        let syncs = matches!(op, Op::Sync | Op::Fsync { .. });
        // What was refused is kept: the same call writes it if it can be written.
        if syncs && kept(fs, &outcome) && matches!(witness.apply(&op)?, Applied::Same(_)) {
            told = true;
            continue;
        }
        return aftermath(fs, device, witness, (&op, refuses));
    }
    close(fs, device, witness, (refuses, told))
}

/// How often the device refused content.
fn refused_content(fs: &BtrfsFs) -> u64 {
    counter(fs, "data.refused")
}

/// How often it refused copies of the superblock but the first.
fn refused_copies(fs: &BtrfsFs) -> u64 {
    counter(fs, "device.superblock_refusals")
}

/// The error is that of refused content, and the volume goes on.
fn kept(fs: &BtrfsFs, outcome: &Outcome) -> bool {
    let eio = matches!(outcome, Outcome::Error(Code(libc::EIO)));
    eio && refused_content(fs) > 0 && fs.read_only_reason().is_none()
}

/// Whether what the device refused so far should have ended the volume.
fn check_end(fs: &BtrfsFs, device: &SimDevice, refuses: bool) -> Result<(), String> {
    let content = refused_content(fs) + refused_copies(fs);
    match fs.read_only_reason() {
        Some(why) if refuses && !why.contains("simulated failure") => {
            Err(format!("the device's reason is not told: {why}"))
        }
        Some(_) if refuses && content == device.counts().failed => {
            Err("nothing but content was refused, and the volume is read-only".to_owned())
        }
        None if refuses && content < device.counts().failed => {
            Err("more than content was refused, and the volume goes on".to_owned())
        }
        _ => Ok(()),
    }
}

/// Nobody has seen an error so far, unless it was `told`.
fn close(
    fs: &BtrfsFs,
    device: &SimDevice,
    witness: &mut Witness<'_>,
    (refuses, mut told): (bool, bool),
) -> Result<End, String> {
    check_end(fs, device, refuses)?;
    if refuses && device.counts().failed > refused_copies(fs) && !told {
        told = matches!(witness.apply(&Op::Sync)?, Applied::Failed(outcome) if kept(fs, &outcome));
        if !told {
            return Err("what the device refused was told to nobody".to_owned());
        }
    }
    match fs.destroy() {
        Ok(()) if told => Ok(End::GoesOn),
        Ok(()) if device.counts().failed > 0 && refuses => Ok(End::WithoutCopies),
        Ok(()) => Ok(End::Fine),
        Err(error) => {
            println!("  closing: {error}");
            Ok(End::ReadOnly)
        }
    }
}

fn counter(fs: &BtrfsFs, name: &str) -> u64 {
    fs.stats().iter().find(|stat| stat.name == name).expect("a counter").value
}

fn full(synced: &Applied) -> bool {
    matches!(synced, Applied::Failed(Outcome::Error(Code(libc::ENOSPC))))
}

fn dirty_bytes(fs: &BtrfsFs) -> u64 {
    counter(fs, "delta.dirty_bytes")
}

/// The volume is read-only and says so; or a sync makes everything durable that was done, once it
/// has told what was refused; or content is refused still, and closing says that it is lost.
fn aftermath(
    fs: &BtrfsFs,
    device: &SimDevice,
    witness: &mut Witness<'_>,
    (failed, refuses): (&Op, bool),
) -> Result<End, String> {
    let read_only = fs.read_only_reason();
    let mut synced = witness.apply(&Op::Sync)?;
    let told = matches!(&synced, Applied::Failed(outcome) if kept(fs, outcome));
    if told {
        synced = witness.apply(&Op::Sync)?;
    }
    // A commit that found no room is tried again with the next one.
    for _ in 0..8 {
        if fs.read_only_reason().is_none() && full(&synced) {
            synced = witness.apply(&Op::Sync)?;
        }
    }
    let failed_before = device.counts().failed;
    let outcome = fs.mkdir(&CX, fs.root(), b"later", 0o755).map(|_| ());
    let end = match (&synced, fs.read_only_reason()) {
        (Applied::Same(_), None) => {
            let dirty = dirty_bytes(fs);
            if dirty != 0 {
                return Err(format!("after {failed:?} and a sync {dirty} bytes count as dirty"));
            }
            match outcome {
                Ok(()) => fs.rmdir(&CX, fs.root(), b"later").map_err(|e| format!("rmdir: {e}"))?,
                Err(_) if device.counts().failed > failed_before => {}
                Err(error) => return Err(format!("not read-only, but mkdir: {error}")),
            }
            End::GoesOn
        }
        // The device takes no content at all, and there was nothing else to be written.
        (Applied::Failed(again), None) if told && kept(fs, again) => {
            outcome.map_err(|error| format!("not read-only, but mkdir: {error}"))?;
            match fs.destroy() {
                Err(error) if error.to_string().contains("lost") => return Ok(End::GoesOn),
                other => return Err(format!("content is lost, and closing says {other:?}")),
            }
        }
        (Applied::Failed(Outcome::Error(_)), Some(_)) => {
            match outcome {
                Err(error) if error.errno() == libc::EROFS => {}
                other => return Err(format!("the volume is read-only, but mkdir: {other:?}")),
            }
            End::ReadOnly
        }
        (synced, reason) => {
            return Err(format!("after {failed:?} sync says {synced:?}, read-only: {reason:?}"));
        }
    };
    if let (Some(why), End::GoesOn) = (&read_only, &end) {
        return Err(format!("the volume was read-only ({why}) and is no longer"));
    }
    check_end(fs, device, refuses).map_err(|why| format!("after {failed:?}: {why}"))?;
    // Whatever is said, it is said and not panicked.
    let _ = testkit::compare::TreeSnapshot::of(fs);
    let _ = fs.destroy();
    Ok(end)
}

/// Lets each access of a kind fail, every `step`-th of them.
fn each(access: Access, span: Span, step: usize) {
    for number in 0..2 {
        let (end, counts) = run(number, &[]).expect("without a fault");
        assert_eq!((end, counts.failed), (End::Fine, 0));
        let all = match access {
            Access::Read => counts.reads,
            Access::Write => counts.writes,
            Access::Flush => counts.flushes,
        };
        let mut ends = [0; 5];
        for nth in (0..all).step_by(step) {
            let fault = Fault { access, nth, span };
            println!("volume {number}, {fault:?}");
            let (end, counts) =
                run(number, &[fault]).unwrap_or_else(|why| panic!("{fault:?}: {why}"));
            assert!(counts.failed > 0, "{fault:?} was met");
            // A read may be made up for by the other copy; nothing else may pass in silence.
            assert!(access == Access::Read || end != End::Fine, "{fault:?}");
            assert!(access != Access::Flush || end != End::GoesOn, "{fault:?}");
            assert!(access == Access::Write || end != End::WithoutCopies, "{fault:?}");
            ends[end as usize] += 1;
        }
        let goes_on = ends[End::GoesOn as usize];
        let some = access == Access::Write && span == Span::Once;
        assert!(!some || goes_on > 3, "{goes_on}: or this shows nothing");
        println!(
            "volume {number}, {all} of {access:?}, {span:?}: {} unnoticed, {} did not mount, {} \
             went on, {} became read-only, {} did without a copy of the superblock",
            ends[0], ends[1], ends[2], ends[3], ends[4]
        );
    }
}

/// All of them with `SPINNEY_ALL_FAULTS`; else a sample of the many.
fn step(usual: usize) -> usize {
    if std::env::var_os("SPINNEY_ALL_FAULTS").is_some() { 1 } else { usual }
}

#[test]
fn each_flush_fails() {
    each(Access::Flush, Span::Once, 1);
    each(Access::Flush, Span::FromThenOn, 1);
}

#[test]
fn each_write_fails_once() {
    each(Access::Write, Span::Once, step(1));
}

#[test]
fn each_write_from_one_on_fails() {
    each(Access::Write, Span::FromThenOn, step(2));
}

#[test]
fn each_read_fails_once() {
    each(Access::Read, Span::Once, step(1));
}

#[test]
fn each_read_from_one_on_fails() {
    each(Access::Read, Span::FromThenOn, step(2));
}

/// An extent or a node that finds no room where some was promised. Nothing of it need be told,
/// where a commit takes the place of a log write; but nothing that was acknowledged is lost.
#[test]
fn each_allocation_fails_once() {
    each_allocation(1);
}

#[test]
fn some_allocations_in_a_row_fail() {
    each_allocation(5);
}

fn each_allocation(many: u64) {
    for number in 0..2 {
        let (end, _, all) = run_with(number, &[], 0..0).expect("without a fault");
        assert_eq!(end, End::Fine);
        let mut ends = [0; 5];
        for nth in (0..all).step_by(step(many as usize)) {
            let (end, counts, reached) = run_with(number, &[], nth..nth + many)
                .unwrap_or_else(|why| panic!("volume {number}, allocation {nth}: {why}"));
            assert!(reached > nth && counts.failed == 0, "allocation {nth} was met");
            ends[end as usize] += 1;
        }
        println!("volume {number}, {all} allocations, {many} failing: {ends:?}");
        assert!(all > 20 && ends[End::GoesOn as usize] > 1, "or this shows nothing");
        assert_eq!(ends[End::ReadOnly as usize], 0, "a commit without room ends nothing");
    }
}

/// What is done before a commit, where that is held, and what is done meanwhile.
fn parts() -> Vec<(Vec<Op>, Hold, Vec<Op>)> {
    let inside = |path: &str, seed| {
        vec![
            write(path, 0, 9000, seed),
            fsync(path),
            append(path, 3000, seed + 1),
            fsync("A"),
            fdatasync(path),
        ]
    };
    vec![
        (vec![append("A/foo", 5000, 11)], Hold::Write(1), inside("A/bar", 20)),
        (vec![mkdir("A/D"), create("A/D/x")], Hold::Flush(0), inside("A/D/x", 30)),
        (vec![rename("A/foo", "B/foo")], Hold::Write(0), inside("B/foo", 40)),
    ]
}

/// Until one fails.
fn apply(witness: &mut Witness<'_>, ops: &[Op], failed: &mut Option<Op>) -> Result<(), String> {
    for op in ops {
        if let Applied::Failed(outcome) = witness.apply(op)? {
            println!("  {op:?}: {outcome:?}");
            *failed = Some(op.clone());
            break;
        }
    }
    Ok(())
}

/// fsyncs while commits are held, one of whose accesses, or of the commit's, fails.
fn run_inside(number: u64, fault: Option<Fault>) -> Result<(End, Counts), String> {
    let base = base(number);
    let gate = Gate::new(Duration::ZERO);
    let device = SimDevice::new(base.image.clone()).hooked(Some(gate.hook()));
    let device = Arc::new(device);
    let history = History::new();
    let options = Options { cache_bytes: CACHE, ..base::options() };
    let fs = BtrfsFs::open_device(device.clone(), options).map_err(|error| error.to_string())?;
    let worker = || {
        work_here();
        let (model, position) = (base.model(), || device.position());
        let mut witness = Witness::new(&history, (&fs, fs.root()), &model, &position)?;
        let quiet = device.counts();
        device.set_faults(&moved(fault.as_slice(), Counts::default(), quiet));
        let refuses = refuses(fault.as_slice());
        let end = work_inside(&fs, &device, (&*gate, refuses), &history, &mut witness)?;
        Ok((end, quiet, device.counts()))
    };
    let ended = std::thread::scope(|scope| scope.spawn(worker).join());
    let (end, from, to) = ended.unwrap_or_else(|_| Err("a panic".to_owned()))?;
    judge(number, &device, &history, &end)?;
    let (reads, writes) = (to.reads - from.reads, to.writes - from.writes);
    let (flushes, failed) = (to.flushes - from.flushes, to.failed);
    Ok((end, Counts { reads, writes, flushes, failed }))
}

fn work_inside(
    fs: &BtrfsFs,
    device: &SimDevice,
    (gate, refuses): (&Gate, bool),
    history: &History,
    witness: &mut Witness<'_>,
) -> Result<End, String> {
    for (before, hold, inside) in parts() {
        let mut failed = None;
        apply(witness, &before, &mut failed)?;
        if failed.is_none() {
            gate.arm(hold);
            let sync = || history.sync_beside(&|| device.position(), || fs.sync());
            let committed = std::thread::scope(|scope| {
                let committer = scope.spawn(|| gate.commit(sync));
                gate.wait_held();
                let applied = apply(witness, &inside, &mut failed);
                gate.release();
                let committed = committer.join().map_err(|_| "the commit panicked".to_owned());
                applied.and(committed)
            })?;
            if let (Err(error), None) = (committed, &failed) {
                println!("  a commit: {error}");
                failed = Some(Op::Sync);
            }
        }
        if let Some(op) = failed {
            return aftermath(fs, device, witness, (&op, refuses));
        }
    }
    close(fs, device, witness, (refuses, false))
}

/// Each access fails once, while fsyncs run inside commits. Who comes first at the device is not
/// the same each time, so some faults may pass by.
#[test]
fn each_access_of_fsyncs_inside_commits_fails() {
    for number in 0..2 {
        let (end, counts) = run_inside(number, None).expect("without a fault");
        assert_eq!((end, counts.failed), (End::Fine, 0));
        let kinds = [
            (Access::Write, counts.writes),
            (Access::Flush, counts.flushes),
            (Access::Read, counts.reads),
        ];
        for (access, all) in kinds {
            let (mut ends, mut met) = ([0; 5], 0);
            for nth in 0..all {
                let fault = Fault { access, nth, span: Span::Once };
                let (end, counts) = run_inside(number, Some(fault))
                    .unwrap_or_else(|why| panic!("volume {number}, {fault:?}: {why}"));
                let told = end != End::Fine || access == Access::Read || counts.failed == 0;
                assert!(told, "volume {number}, {fault:?}: {end:?}");
                ends[end as usize] += 1;
                met += counts.failed.min(1);
            }
            println!("volume {number}, {all} of {access:?}, {met} met: {ends:?}");
            assert!(met * 10 >= all * 9, "or this shows nothing");
        }
    }
}

/// A file whose inline content and attributes lie in several leaves.
fn inline_beside_large_attributes() -> Image {
    let device = Arc::new(SimDevice::new(base(0).image.clone()));
    let fs = base::mount(device.clone()).unwrap();
    let file = fs.mknod(&CX, fs.root(), b"file", FileKind::File, 0o644, 0).unwrap().attr.ino;
    for number in 0..40 {
        let name = format!("user.{number}");
        fs.setxattr(&CX, file, name.as_bytes(), &[7; 3000], XattrMode::Create).unwrap();
    }
    fs.write(&CX, file, 0, &[1; 100], WriteFlags::default()).unwrap();
    fs.destroy().unwrap();
    device.image()
}

/// A write that moved inline content into memory and then could not go on: it is in the list
/// of what is to be written back, and does not count as dirty for ever.
#[test]
fn what_a_failed_change_began_is_written_back() {
    let image = inline_beside_large_attributes();
    let change = |fs: &BtrfsFs, ino, way| match way {
        0 => fs.write(&CX, ino, 9000, &[2; 100], WriteFlags::default()).map(drop),
        1 => fs.fallocate(&CX, ino, FallocateMode::Allocate, 9000, 9000),
        _ => fs.setattr(&CX, ino, &SetAttr { size: Some(9000), ..SetAttr::default() }).map(drop),
    };
    for way in 0..3 {
        let mut failed = 0;
        for nth in 0..6 {
            let device = Arc::new(SimDevice::new(image.clone()));
            let options = Options { cache_bytes: CACHE, ..base::options() };
            let fs = BtrfsFs::open_device(device.clone(), options).unwrap();
            let ino = fs.lookup(&CX, fs.root(), b"file").unwrap().attr.ino;
            let nth = device.counts().reads + nth;
            device.set_faults(&[Fault { access: Access::Read, nth, span: Span::FromThenOn }]);
            failed += u32::from(change(&fs, ino, way).is_err());
            device.set_faults(&[]);
            fs.sync().unwrap();
            assert_eq!(dirty_bytes(&fs), 0, "way {way}, read {nth}");
            fs.destroy().unwrap();
        }
        println!("way {way}: {failed} of 6 failed");
        assert!(failed > 0, "way {way}");
    }
}
