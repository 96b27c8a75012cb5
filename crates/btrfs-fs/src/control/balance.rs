//! Balances and the size of a device, through a mount: for administrators.

use super::{administrator, some, wire};
use crate::fs::BtrfsFs;
use crate::{BalanceReport, BalanceState, BalanceStatus, NewSize};
use btrfs_disk::FixedSize;
use btrfs_disk::items::BalanceItem;
use std::time::Duration;
use vfs::{Asker, Controlled, Errno, Result};

pub(super) fn start(fs: &BtrfsFs, asker: &dyn Asker, input: &[u8]) -> Result<Controlled> {
    administrator(asker)?;
    fs.start_balance(some(BalanceItem::read(input).ok())?)?;
    Ok(Controlled::default())
}

pub(super) fn status(fs: &BtrfsFs, asker: &dyn Asker) -> Result<Controlled> {
    administrator(asker)?;
    Ok(Controlled::answer(write_status(&fs.balance_status()?)))
}

pub(super) fn act(fs: &BtrfsFs, asker: &dyn Asker, what: u64) -> Result<Controlled> {
    administrator(asker)?;
    match what {
        wire::BALANCE_PAUSE => fs.pause_balance()?,
        wire::BALANCE_RESUME => fs.resume_balance()?,
        wire::BALANCE_CANCEL => fs.cancel_balance()?,
        _ => return Err(Errno::EINVAL.into()),
    }
    Ok(Controlled::default())
}

/// Answers the old size and the new one.
pub(super) fn resize(fs: &BtrfsFs, asker: &dyn Asker, input: &[u8]) -> Result<Controlled> {
    administrator(asker)?;
    let numbers = [0, 8, 16].map(|at| wire::number(input, at));
    let [Some(devid), Some(how), Some(bytes)] = numbers else {
        return Err(Errno::EINVAL.into());
    };
    let size = match how {
        0 => NewSize::Bytes(bytes),
        1 => NewSize::Plus(bytes),
        2 => NewSize::Minus(bytes),
        3 => NewSize::Max,
        _ => return Err(Errno::EINVAL.into()),
    };
    let (old, new) = fs.sizes(devid, size)?;
    super::kernels::wait_for_resize(fs, asker, new)?;
    Ok(Controlled::answer([old, new].map(u64::to_le_bytes).concat()))
}

/// A question of [`wire::RESIZE`].
pub fn write_resize(devid: u64, size: NewSize) -> Vec<u8> {
    let (how, bytes) = match size {
        NewSize::Bytes(bytes) => (0, bytes),
        NewSize::Plus(bytes) => (1, bytes),
        NewSize::Minus(bytes) => (2, bytes),
        NewSize::Max => (3, 0),
    };
    [devid, how, bytes].map(u64::to_le_bytes).concat()
}

const STATES: [BalanceState; 5] = [
    BalanceState::None,
    BalanceState::Running,
    BalanceState::Paused,
    BalanceState::Done,
    BalanceState::Cancelled,
];

fn write_status(status: &BalanceStatus) -> Vec<u8> {
    let state = wire::position(&STATES, &status.state);
    let (report, errno) = (&status.report, i64::from(status.errno).cast_unsigned());
    let numbers = [
        state,
        u64::from(status.stopping),
        status.expected,
        status.considered,
        status.completed,
        status.failed,
        errno,
        report.groups,
        report.relocated_extents,
        report.rewritten_nodes,
        wire::nanoseconds(report.time),
    ];
    let mut out = numbers.map(u64::to_le_bytes).concat();
    out.extend(status.item.to_vec());
    out
}

/// An answer of [`wire::BALANCE_STATUS`].
pub fn read_status(answer: &[u8]) -> Option<BalanceStatus> {
    let number = |n: usize| wire::number(answer, 8 * n);
    Some(BalanceStatus {
        state: *STATES.get(usize::try_from(number(0)?).ok()?)?,
        stopping: number(1)? != 0,
        expected: number(2)?,
        considered: number(3)?,
        completed: number(4)?,
        failed: number(5)?,
        errno: i32::try_from(number(6)?).ok()?,
        report: BalanceReport {
            groups: number(7)?,
            relocated_extents: number(8)?,
            rewritten_nodes: number(9)?,
            time: Duration::from_nanos(number(10)?),
        },
        item: BalanceItem::read(answer.get(88..)?).ok()?,
    })
}
