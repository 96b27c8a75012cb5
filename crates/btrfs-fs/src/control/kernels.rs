//! What the kernel's programs ask that waits: scrubs, balances, sizes, rescans, deleted subvolumes. For sizes ours wait
//! here as well.
//!
//! Invariant: the work is done in threads of the engine's, and goes on where the caller is called away; so
//! whoever serves him only looks whether it has ended (`Asker::wait`). Errors are the kernel's.
//!
//! What it does not know: how many may wait.

use super::wire::{VolArgs, halves, kernels as wire, number};
use super::{administrator, some};
use crate::fs::BtrfsFs;
use crate::subvol::SubvolId;
use crate::{BalanceState, BalanceStatus, NewSize, ScrubState, ScrubStatus};
use btrfs_disk::FixedSize;
use btrfs_disk::ids::{FIRST_FREE_OBJECTID, LAST_FREE_OBJECTID};
use btrfs_disk::items::BalanceItem;
use std::sync::mpsc::TryRecvError;
use vfs::{Asker, Controlled, Errno, FsError, Result};

/// `None`: it is none of these operations.
pub(super) fn control(
    fs: &BtrfsFs,
    asker: &dyn Asker,
    command: u32,
    input: &[u8],
) -> Option<Result<Controlled>> {
    let work: fn(&BtrfsFs, &dyn Asker, &[u8]) -> Result<Controlled> = match command {
        wire::SUBVOL_SYNC_WAIT => return Some(wait_for_deleted(fs, asker, input)),
        wire::RESIZE => resize,
        wire::SCRUB => scrub,
        wire::SCRUB_CANCEL => |fs, _, _| fs.cancel_scrub().map(|()| Controlled::default()),
        wire::SCRUB_PROGRESS => |fs, _, input| scrub_progress(fs, input),
        wire::BALANCE => balance,
        wire::BALANCE_PROGRESS => |fs, _, _| balance_progress(fs),
        wire::RESCAN_WAIT => |fs, asker, _| wait_for_rescan(fs, asker),
        wire::SET_FEATURES => |fs, _, input| set_features(fs, input),
        _ => return None,
    };
    Some(administrator(asker).and_then(|()| work(fs, asker, input)))
}

/// Begins something, and returns when `is_over`.
fn work_off(
    asker: &dyn Asker,
    begin: impl Fn() -> Result<()>,
    mut is_over: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let mut begun = false;
    asker.wait(&mut || {
        if !begun {
            begin()?;
            begun = true;
        }
        is_over()
    })
}

fn device(fs: &BtrfsFs, id: u64) -> Result<()> {
    fs.sizes(id, NewSize::Plus(0)).map(drop)
}

/// Of the whole device: where on it things lie a scrub of ours does not go by.
fn scrub(fs: &BtrfsFs, asker: &dyn Asker, input: &[u8]) -> Result<Controlled> {
    let numbers = [0, 8, 16, 24].map(|at| number(input, at));
    let [Some(devid), Some(from), Some(to), Some(flags)] = numbers else {
        return Err(Errno::EINVAL.into());
    };
    if flags & !wire::SCRUB_READ_ONLY != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    device(fs, devid)?;
    if from != 0 || to < fs.sizes(devid, NewSize::Plus(0))?.0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let begin = || fs.start_scrub(flags & wire::SCRUB_READ_ONLY != 0);
    work_off(asker, begin, || Ok(fs.scrub_status()?.state != ScrubState::Running))?;
    let status = fs.scrub_status()?;
    let result = match status.state {
        ScrubState::Failed => -status.errno,
        ScrubState::Cancelled => -libc::ECANCELED,
        _ => 0,
    };
    Ok(Controlled { result, ..Controlled::answer(scrubbed(input, &status)) })
}

fn scrub_progress(fs: &BtrfsFs, input: &[u8]) -> Result<Controlled> {
    device(fs, some(number(input, 0))?)?;
    let status = fs.scrub_status()?;
    match status.state {
        ScrubState::Running => Ok(Controlled::answer(scrubbed(input, &status))),
        _ => Err(Errno::ENOTCONN.into()),
    }
}

/// The record with its numbers. Where on the device it has come is 0: the kernel, should it go on, reads all.
fn scrubbed(input: &[u8], status: &ScrubStatus) -> Vec<u8> {
    const NUMBERS: usize = 32;
    let (done, none) = (&status.done, 0);
    let numbers = [
        done.data_extents_scrubbed,
        done.tree_extents_scrubbed,
        done.data_bytes_scrubbed,
        done.tree_bytes_scrubbed,
        done.read_errors,
        done.csum_errors,
        done.verify_errors,
        done.no_csum,
        none,
        done.super_errors,
        none,
        done.uncorrectable_errors,
        done.corrected_errors,
        none,
        none,
    ];
    let mut record = input.to_vec();
    record.resize(super::wire::len(wire::SCRUB), 0);
    for (place, number) in record[NUMBERS..].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    record
}

/// Where the filters stand in the record; on the volume they stand behind the flags.
const FILTERS: std::ops::Range<usize> = 16..424;

fn balance(fs: &BtrfsFs, asker: &dyn Asker, input: &[u8]) -> Result<Controlled> {
    let flags = some(number(input, 0))?;
    let begin = || match flags & wire::BALANCE_RESUME != 0 {
        true => fs.resume_balance().map_err(|error| instead(error, Errno::ESRCH, Errno::ENOTCONN)),
        false => fs.start_balance(item(input)?).map_err(|error| {
            // One that is paused is in the way as well.
            let paused = fs.balance_status().is_ok_and(|s| s.state == BalanceState::Paused);
            if paused { instead(error, Errno::EINVAL, Errno::EINPROGRESS) } else { error }
        }),
    };
    work_off(asker, begin, || Ok(fs.balance_status()?.state != BalanceState::Running))?;
    let status = fs.balance_status()?;
    let result = match status.state {
        _ if status.errno != 0 => -status.errno,
        BalanceState::Done => 0,
        _ => -libc::ECANCELED,
    };
    Ok(Controlled { result, ..Controlled::answer(balanced(&status)) })
}

fn item(input: &[u8]) -> Result<BalanceItem> {
    let mut stored = vec![0; BalanceItem::SIZE];
    stored[..8].copy_from_slice(&input[..8]);
    stored[8..8 + FILTERS.len()].copy_from_slice(some(input.get(FILTERS))?);
    some(BalanceItem::read(&stored).ok())
}

fn instead(error: FsError, this: Errno, other: Errno) -> FsError {
    if error.errno() == FsError::from(this).errno() { other.into() } else { error }
}

fn balance_progress(fs: &BtrfsFs) -> Result<Controlled> {
    let status = fs.balance_status()?;
    match status.state {
        BalanceState::Running | BalanceState::Paused => Ok(Controlled::answer(balanced(&status))),
        _ => Err(Errno::ENOTCONN.into()),
    }
}

fn balanced(status: &BalanceStatus) -> Vec<u8> {
    let running = match status.state {
        BalanceState::Running => wire::STATE_RUNNING,
        _ => 0,
    };
    let state = if status.stopping { running | wire::STATE_PAUSING } else { running };
    let stored = status.item.to_vec();
    let mut record = [&stored[..8], &state.to_le_bytes(), &stored[8..8 + FILTERS.len()]].concat();
    for number in [status.expected, status.considered, status.completed] {
        record.extend_from_slice(&number.to_le_bytes());
    }
    record.resize(1024, 0);
    record
}

fn resize(fs: &BtrfsFs, asker: &dyn Asker, input: &[u8]) -> Result<Controlled> {
    let (devid, size) = asked_size(some(VolArgs::name(input))?)?;
    let (_, new) = fs.sizes(devid, size)?;
    wait_for_resize(fs, asker, new)?;
    Ok(Controlled::default())
}

/// Resizes to `new` bytes.
pub(super) fn wait_for_resize(fs: &BtrfsFs, asker: &dyn Asker, new: u64) -> Result<()> {
    let mut answer = None;
    asker.wait(&mut || {
        let told = match &answer {
            Some(told) => told,
            None => answer.insert(fs.resize_beside(new)?),
        };
        match told.try_recv() {
            Ok(done) => done.map(|()| true),
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => Err(Errno::EIO.into()),
        }
    })
}

/// `[DEVICE:][+|-]BYTES`, with the kernel's letters for powers of 1024, or `max`.
fn asked_size(text: &[u8]) -> Result<(u64, NewSize)> {
    let text = some(std::str::from_utf8(text).ok())?;
    // None of ours can be.
    if text == "cancel" {
        return Err(Errno::ENOTCONN.into());
    }
    let (devid, size) = match text.split_once(':') {
        Some((devid, size)) => (some(devid.parse().ok().filter(|id| *id != 0))?, size),
        None => (1, text),
    };
    let how: fn(u64) -> NewSize = match size.as_bytes().first() {
        _ if size == "max" => return Ok((devid, NewSize::Max)),
        Some(b'+') => NewSize::Plus,
        Some(b'-') => NewSize::Minus,
        _ => NewSize::Bytes,
    };
    let digits = size.trim_start_matches(['+', '-']);
    let least = size.len() - digits.len() < 2;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let (digits, unit) = digits.split_at(end);
    let power = match unit {
        "" => Some(0),
        _ => ["k", "m", "g", "t", "p", "e"].iter().position(|u| unit.eq_ignore_ascii_case(u)),
    };
    let shift = power.map(|at| if unit.is_empty() { 0 } else { 10 * (at + 1) });
    let bytes = digits.parse::<u64>().ok().filter(|bytes| least && *bytes != 0);
    let bytes = bytes.zip(shift).and_then(|(bytes, shift)| bytes.checked_mul(1 << shift));
    Ok((devid, how(some(bytes)?)))
}

/// How its numbers are then the kernel does not say here, nor that no rescan goes on in what cannot be written.
fn wait_for_rescan(fs: &BtrfsFs, asker: &dyn Asker) -> Result<Controlled> {
    let waited = asker.wait(&mut || fs.rescan_step());
    match waited {
        Err(FsError::ReadOnly(_) | FsError::Posix(Errno::EROFS | Errno::EUCLEAN)) => {
            Ok(Controlled::default())
        }
        waited => waited.map(|()| Controlled::default()),
    }
}

/// Anybody may. What the others of the kernel's words tell stands in the record, which nothing brings back.
fn wait_for_deleted(fs: &BtrfsFs, asker: &dyn Asker, input: &[u8]) -> Result<Controlled> {
    let (id, [mode, _]) = (some(number(input, 0))?, halves(some(number(input, 8))?));
    let ids = match mode {
        wire::FOR_QUEUED => Vec::new(),
        wire::FOR_ONE if id != 0 && !(FIRST_FREE_OBJECTID..=LAST_FREE_OBJECTID).contains(&id) => {
            return Err(Errno::EINVAL.into());
        }
        wire::FOR_ONE => match fs.subvolume_info(SubvolId(id))?.deleted {
            true => vec![SubvolId(id)],
            false => return Err(Errno::EEXIST.into()),
        },
        _ if mode <= wire::TELLS_LAST => return Err(Errno::ENOTTY.into()),
        _ => return Err(Errno::EINVAL.into()),
    };
    match fs.when_gone(&ids)? {
        Some(mut are_gone) => asker.wait(&mut are_gone)?,
        None => return Err(Errno::ENOENT.into()),
    }
    Ok(Controlled::default())
}

/// Nothing of it is switched on or off in a mount; what is so already may be asked for.
fn set_features(fs: &BtrfsFs, input: &[u8]) -> Result<Controlled> {
    const EXTENDED_IREF: u64 = 1 << 6;
    let mut numbers = [0; 6];
    for (at, number) in numbers.iter_mut().enumerate() {
        *number = some(super::wire::number(input, 8 * at))?;
    }
    let ([compat, compat_ro, incompat], [to_compat, to_ro, to_incompat]) =
        ([numbers[0], numbers[1], numbers[2]], [numbers[3], numbers[4], numbers[5]]);
    let supported = [0, btrfs_volume::COMPAT_RO_SUPPORTED, btrfs_volume::INCOMPAT_SUPPORTED];
    let has = fs.open()?.core.volume.superblock().fields.incompat_flags & EXTENDED_IREF;
    for (change, to, known, there) in [
        (compat, to_compat, supported[0], 0),
        (compat_ro, to_ro, supported[1], 0),
        (incompat, to_incompat, supported[2], has),
    ] {
        if change & to & !known != 0 {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if change & !(to & there) != 0 {
            return Err(Errno::EPERM.into());
        }
    }
    Ok(Controlled::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_kernel_reads_them() {
        let size = |text: &str| asked_size(text.as_bytes()).ok();
        assert_eq!(size("max"), Some((1, NewSize::Max)));
        assert_eq!(size("2:+1g"), Some((2, NewSize::Plus(1 << 30))));
        assert_eq!(size("-512M"), Some((1, NewSize::Minus(512 << 20))));
        assert_eq!(size("1:4096"), Some((1, NewSize::Bytes(4096))));
        for wrong in ["", "0", "0:max", "x:1g", "1gg", "+-1", "--1", "1:", "-max", "cancel", "99e"]
        {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn records_of_balances_hold_what_volumes_hold() {
        let mut input = vec![0; 1024];
        input[..8].copy_from_slice(&5u64.to_le_bytes());
        (FILTERS).for_each(|at| input[at] = at as u8);
        let status = BalanceStatus { item: item(&input).unwrap(), ..BalanceStatus::default() };
        let record = balanced(&BalanceStatus { expected: 7, considered: 8, ..status });
        assert_eq!((&record[..8], &record[FILTERS]), (&input[..8], &input[FILTERS]));
        assert_eq!([424, 432, 440].map(|at| number(&record, at)), [Some(7), Some(8), Some(0)]);
    }

    struct Anybody;

    impl Asker for Anybody {
        fn who(&self) -> Result<vfs::Who> {
            Err(Errno::EPERM.into())
        }
    }

    /// As the kernel says it.
    #[test]
    fn a_wait_for_a_rescan_ends_well_where_the_mount_becomes_read_only() {
        use vfs::FileSystem;
        let fs = crate::reserve::tests::volume(256, 16384);
        // More extents than a commit counts.
        let (cx, ino) = (vfs::Context::default(), crate::reserve::tests::new_file(&fs));
        for at in 0..3000 {
            fs.write(&cx, ino, at * 8192, &[7; 4096], Default::default()).expect("write");
        }
        fs.sync().expect("commit");
        fs.enable_quotas().expect("quotas");
        let status = fs.quota_status().expect("a status").expect("quotas");
        assert!(status.rescan.is_some(), "there is something to wait for");
        // As who makes the mount still, and is not done with its commits.
        fs.engine.core.health.refuse_changes(true);
        wait_for_rescan(&fs, &Anybody).expect("it waits no longer");
        fs.destroy().expect("close");
    }
}
