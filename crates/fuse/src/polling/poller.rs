//! The thread that keeps one processor awake.
//!
//! Everybody who wants the processor has it before this thread, which offers it in each pass
//! (sched_yield: others of lowest priority have it, too). When it notices that it did not run
//! for a moment, somebody has been here and sleeps now. If that happens as often as requests
//! are served elsewhere, it is their caller: servers that follow come here.
//!
//! It leaves a processor that serves requests. It takes no lock: at its priority it might stop in
//! the middle.

use super::Polling;
use crate::sys;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

/// A pass takes a third of this if nobody else wants to run; a switch to another thread and
/// back takes longer.
const GAP: Duration = Duration::from_nanos(900);
/// Passes between two looks at what was served, whose cache lines servers write to.
/// Not measured apart from polling as a whole.
const SELDOM: u64 = 16;
/// Requests after which it judges where they come from.
/// Not measured apart from polling as a whole.
const SOME: u64 = 16;

/// `coming` goes when it has its place: from then on it asks the kernel for nothing.
pub(super) fn run(polling: &Polling, processor: usize, coming: Sender<()>) {
    if let Err(error) = sys::pin_to(processor).and_then(|()| sys::lowest_priority()) {
        // One that may wander, or that takes time from others, is worse than none.
        return tracing::debug!(processor, "no polling there: {error}");
    }
    drop(coming);
    while polling.wait(Some(processor)) {
        poll(polling, processor);
    }
}

/// Until it is over, or requests are served here.
fn poll(polling: &Polling, processor: usize) {
    let this = &polling.processors[processor].0;
    let (gap, limit) = (GAP.as_nanos() as u64, polling.limit.as_nanos() as u64);
    // When it ran, and heard of a request.
    let mut ran = polling.nanos();
    let (mut heard, mut served) = (ran, polling.served_anywhere());
    let mut judged = Sample::take(polling, processor, 0);
    let mut gaps = 0;
    let mut pass = this.passes.load(Ordering::Relaxed);
    while polling.is_on() && !polling.is_busy(processor) {
        thread::yield_now();
        pass += 1;
        this.passes.store(pass, Ordering::Relaxed);
        let now = polling.nanos();
        let others_ran = now - std::mem::replace(&mut ran, now) > gap;
        gaps += u64::from(others_ran);
        if others_ran || pass.is_multiple_of(SELDOM) {
            let sample = Sample::take(polling, processor, gaps);
            if std::mem::replace(&mut served, sample.anywhere) != sample.anywhere {
                heard = now;
            }
            if sample.anywhere - judged.anywhere >= SOME {
                match judged.until(sample) {
                    Verdict::ServesHere => return this.busy.store(true, Ordering::SeqCst),
                    Verdict::CallersHere if polling.follows() => {
                        return polling.moves_to(processor);
                    }
                    _ => judged = sample,
                }
            }
        }
        if now - heard > limit {
            polling.ask_end();
        }
    }
}

/// Requests that were served anywhere and here, and how often others ran here.
#[derive(Clone, Copy, Debug)]
struct Sample {
    anywhere: u64,
    here: u64,
    gaps: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// A quarter of the requests or more.
    ServesHere,
    /// Somebody comes and goes at least for every second one.
    CallersHere,
    Neither,
}

impl Sample {
    fn take(polling: &Polling, processor: usize, gaps: u64) -> Sample {
        let here = polling.processors[processor].0.served.load(Ordering::Relaxed);
        Sample { anywhere: polling.served_anywhere(), here, gaps }
    }

    fn until(self, now: Sample) -> Verdict {
        let requests = now.anywhere - self.anywhere;
        if (now.here - self.here) * 4 >= requests {
            Verdict::ServesHere
        } else if (now.gaps - self.gaps) * 2 >= requests {
            Verdict::CallersHere
        } else {
            Verdict::Neither
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_where_callers_are() {
        let before = Sample { anywhere: 100, here: 10, gaps: 5 };
        let after = |anywhere, here, gaps| before.until(Sample { anywhere, here, gaps });
        assert_eq!(after(116, 10, 6), Verdict::Neither);
        assert_eq!(after(116, 10, 13), Verdict::CallersHere);
        assert_eq!(after(116, 14, 13), Verdict::ServesHere);
        assert_eq!(after(200, 11, 50), Verdict::Neither);
    }
}
