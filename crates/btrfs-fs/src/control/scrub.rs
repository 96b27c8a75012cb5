//! Scrubs, through a mount: for administrators.

use super::{administrator, wire};
use crate::fs::BtrfsFs;
use crate::{ScrubState, ScrubStatus};
use btrfs_volume::Scrubbed;
use std::time::Duration;
use vfs::{Asker, Controlled, Errno, Result};

impl BtrfsFs {
    /// How many bytes scrubs read in a second at most; 0: no limit.
    pub fn scrub_limit(&self) -> Result<u64> {
        Ok(self.open()?.scrubber.limit())
    }

    /// Another one until the volume is closed, or until the scrub ends that is at work (`once`; ENOTCONN: none is);
    /// what it was.
    pub fn limit_scrub(&self, new: u64, once: bool) -> Result<u64> {
        self.open()?.scrubber.set_limit(new, once)
    }
}

/// `None`: it is none of these.
pub(super) fn control(
    fs: &BtrfsFs,
    asker: &dyn Asker,
    command: u32,
    input: &[u8],
) -> Option<Result<Controlled>> {
    match command {
        wire::SCRUB_ACT => {
            let what = wire::number(input, 0).ok_or(Errno::EINVAL.into());
            Some(what.and_then(|what| act(fs, asker, what, None)))
        }
        wire::SCRUB_BEGIN => {
            let words =
                wire::number(input, 0).zip(wire::number(input, 8)).ok_or(Errno::EINVAL.into());
            Some(words.and_then(|(what, limit)| act(fs, asker, what, Some(limit))))
        }
        wire::SCRUB_STATUS => Some(status(fs, asker)),
        wire::SCRUB_LIMIT => Some(limit(fs, asker, input)),
        wire::SCRUB_CONTINUE => Some(go_on(fs, asker, input)),
        _ => None,
    }
}

fn act(fs: &BtrfsFs, asker: &dyn Asker, what: u64, limit: Option<u64>) -> Result<Controlled> {
    administrator(asker)?;
    match what {
        wire::SCRUB_START => fs.start_scrub_at(false, limit)?,
        wire::SCRUB_START_READ_ONLY => fs.start_scrub_at(true, limit)?,
        wire::SCRUB_RESUME if limit.is_none() => fs.resume_scrub()?,
        wire::SCRUB_CANCEL if limit.is_none() => fs.cancel_scrub()?,
        _ => return Err(Errno::EINVAL.into()),
    }
    Ok(Controlled::default())
}

fn go_on(fs: &BtrfsFs, asker: &dyn Asker, input: &[u8]) -> Result<Controlled> {
    administrator(asker)?;
    fs.continue_scrub(read_status(input).ok_or(Errno::EINVAL)?)?;
    Ok(Controlled::default())
}

fn limit(fs: &BtrfsFs, asker: &dyn Asker, input: &[u8]) -> Result<Controlled> {
    administrator(asker)?;
    let word = |at| wire::number(input, at).ok_or(Errno::EINVAL);
    let (what, new) = (word(0)?, word(8)?);
    let old = match what {
        wire::LIMIT_ASKED => fs.scrub_limit()?,
        wire::LIMIT_SET | wire::LIMIT_ONCE => fs.limit_scrub(new, what == wire::LIMIT_ONCE)?,
        _ => return Err(Errno::EINVAL.into()),
    };
    let words = [what, old];
    Ok(Controlled::answer(words.map(u64::to_le_bytes).concat()))
}

const STATES: [ScrubState; 5] = [
    ScrubState::None,
    ScrubState::Running,
    ScrubState::Finished,
    ScrubState::Cancelled,
    ScrubState::Failed,
];
/// Numbers before those of `Scrubbed`.
const HEAD: usize = 7;

fn status(fs: &BtrfsFs, asker: &dyn Asker) -> Result<Controlled> {
    administrator(asker)?;
    Ok(Controlled::answer(write_status(&fs.scrub_status()?)))
}

/// An answer of [`wire::SCRUB_STATUS`], and what [`wire::SCRUB_CONTINUE`] is given.
pub fn write_status(status: &ScrubStatus) -> Vec<u8> {
    let state = wire::position(&STATES, &status.state);
    let head: [u64; HEAD] = [
        state,
        u64::from(status.read_only),
        status.started.cast_unsigned(),
        wire::nanoseconds(status.time),
        status.total,
        status.next,
        i64::from(status.errno).cast_unsigned(),
    ];
    let done = status.done.list().into_iter().map(|(_, number)| number);
    let numbers = head.into_iter().chain(done).chain([status.unseen, status.unseen_from]);
    let mut answer: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    answer.resize(wire::len(wire::SCRUB_STATUS), 0);
    answer
}

/// What [`write_status`] wrote.
pub fn read_status(answer: &[u8]) -> Option<ScrubStatus> {
    let number = |n: usize| wire::number(answer, 8 * n);
    // An older mount says nothing there.
    let behind = HEAD + Scrubbed::default().list().len();
    Some(ScrubStatus {
        state: *STATES.get(usize::try_from(number(0)?).ok()?)?,
        read_only: number(1)? != 0,
        started: number(2)?.cast_signed(),
        time: Duration::from_nanos(number(3)?),
        total: number(4)?,
        next: number(5)?,
        errno: i32::try_from(number(6)?).ok()?,
        done: Scrubbed::from_numbers((HEAD..behind).map_while(number)),
        unseen: number(behind).unwrap_or(0),
        unseen_from: number(behind + 1).unwrap_or(0),
    })
}
