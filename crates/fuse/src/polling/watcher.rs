//! Ends polling when no request comes, and where others have work for a processor; and has
//! pollers return where no request is served any more.
//!
//! It is of normal priority, so it comes to run when pollers do not, and looks several
//! hundred times a second for as long as they are at it. A poller that did not run for a whole
//! tick is kept from it by others: that processor is not idle without polling either. Nor is one
//! where one of several callers is; there a poller would only be in his way at times.

use super::Polling;
use super::rests::Rests;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks. Not measured apart from polling as a whole.
const TICK: Duration = Duration::from_millis(2);
/// Moves in one tick from which on callers or servers wander: servers follow more than one
/// caller, or a poller is missing where one should be.
/// Not measured apart from polling as a whole.
const WANDERS: u64 = 3;
/// One request in so many that another caller made than the one before: there are several.
/// Not measured apart from polling as a whole.
const SEVERAL: u64 = 4;
/// Such ticks in a row, before it is sure.
/// Not measured apart from polling as a whole.
const SURE: u32 = 3;

/// What was seen of one processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sight {
    passes: u64,
    served: u64,
    busy: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    NoRequests,
    /// Others have work for a processor, or callers are on several.
    NothingToGain,
}

pub(super) fn run(polling: &Polling, processors: &[usize]) {
    let mut rests = Rests::default();
    while polling.wait(None) {
        polling.end_asked.0.store(false, Ordering::SeqCst);
        let begin = Instant::now();
        let why = watch(polling, processors);
        polling.end();
        if why == Why::NothingToGain {
            let time = rests.after(begin.elapsed());
            tracing::trace!(?time, "polling rests");
            polling.rest(time);
        }
    }
}

/// Until it should end.
fn watch(polling: &Polling, processors: &[usize]) -> Why {
    let look = || -> Vec<Sight> { processors.iter().map(|one| sight(polling, *one)).collect() };
    let moves = || polling.callers.0.moves.load(Ordering::Relaxed);
    let turns = || polling.callers.0.turns.load(Ordering::Relaxed);
    let (mut before, mut moved, mut turned) = (look(), moves(), turns());
    let mut wandering = 0;
    loop {
        let begin = Instant::now();
        // Woken early at times, for something else.
        while let Some(left) = TICK.checked_sub(begin.elapsed()) {
            if polling.end_asked.0.load(Ordering::SeqCst) || !polling.is_on() {
                return Why::NoRequests;
            }
            thread::park_timeout(left);
        }
        let now = look();
        let pairs = || processors.iter().zip(before.iter().zip(&now));
        if pairs().all(|(_, (before, now))| before.served == now.served) {
            return Why::NoRequests;
        }
        let kept_off = |before: &Sight, now: &Sight| !now.busy && before == now;
        if pairs().any(|(_, (before, now))| kept_off(before, now)) {
            return Why::NothingToGain;
        }
        let served = |(_, (before, now)): (&usize, (&Sight, &Sight))| now.served - before.served;
        let requests: u64 = pairs().map(served).sum();
        // They keep processors awake themselves.
        let everywhere = polling.follows() || pairs().all(|pair| served(pair) > 0);
        if (turns() - turned) * SEVERAL >= requests && everywhere {
            return Why::NothingToGain;
        }
        let wanders = moves() - moved >= WANDERS;
        wandering = if wanders { wandering + 1 } else { 0 };
        if polling.follows() && wandering >= SURE {
            return Why::NothingToGain;
        }
        // Where a caller wanders, a processor in which he was counted may be idle.
        let idle = |before: &Sight, now: &Sight| wanders || before.served == now.served;
        for (processor, (before, now)) in pairs() {
            if now.busy && idle(before, now) && polling.home() != Some(*processor) {
                polling.polls_again(*processor);
            }
        }
        (before, moved, turned) = (look(), moves(), turns());
    }
}

fn sight(polling: &Polling, processor: usize) -> Sight {
    let processor = &polling.processors[processor].0;
    Sight {
        passes: processor.passes.load(Ordering::Relaxed),
        served: processor.served.load(Ordering::Relaxed),
        busy: processor.busy.load(Ordering::SeqCst),
    }
}
