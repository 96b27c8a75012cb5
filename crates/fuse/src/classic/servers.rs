//! Which of the threads that serve `/dev/fuse` wait for its requests.
//!
//! Some wait *at the door*: each request wakes one of them. The others are at home, asleep, and
//! are sent to the door when few are left there: few have to follow callers to
//! another processor (`polling`).
//!
//! Invariant: somebody is at the door, or on his way, unless every thread is serving. Who leaves
//! few behind sends another; who has served looks where to go, under one lock, *before* he replies.
//! It does not know what is served.

use crate::tidying::{REST, Tidying};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

/// So many wait at the door: each takes one request on the old processor when callers move.
/// Not measured apart from polling as a whole.
const AT_DOOR: usize = 4;
/// With fewer there another is sent, before nobody is left for the next request.
const FEW: usize = AT_DOOR / 2;

#[derive(Default)]
pub(crate) struct Servers {
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    at_door: usize,
    /// Whoever came last is sent first: his memory is in the cache.
    at_home: Vec<Arc<Seat>>,
    ended: bool,
}

/// Where a thread sleeps when it is at home.
pub(crate) struct Seat {
    thread: Thread,
    called: AtomicBool,
}

impl Seat {
    /// Of the calling thread.
    pub(crate) fn new() -> Arc<Seat> {
        Arc::new(Seat { thread: thread::current(), called: AtomicBool::new(false) })
    }

    fn call(&self) {
        self.called.store(true, Ordering::Release);
        self.thread.unpark();
    }

    fn sleep(&self, tidying: Tidying) {
        let mut rests = tidying.before_a_wait(|| {});
        while !self.called.swap(false, Ordering::Acquire) {
            match rests {
                true => thread::park_timeout(REST),
                false => thread::park(),
            }
            // Who was called has no time for it.
            if std::mem::take(&mut rests) && !self.called.load(Ordering::Relaxed) {
                (tidying.tidy)();
            }
        }
    }
}

impl Servers {
    /// Waits for a place at the door, for who has nothing to serve; false at the end. Then wait
    /// for a request, and `took`.
    pub(crate) fn to_door(&self, seat: &Arc<Seat>, tidying: Tidying) -> bool {
        loop {
            let mut places = self.places.lock();
            if places.ended {
                return false;
            }
            if places.at_door < AT_DOOR {
                places.at_door += 1;
                return true;
            }
            places.at_home.push(seat.clone());
            drop(places);
            seat.sleep(tidying);
        }
    }

    /// A place at the door for who is about to reply, and goes there at once; false if there are
    /// enough. Whom a reply wakes often gets the processor first, and who has replied stays
    /// runnable behind him for milliseconds: if he were not counted, the next request would send
    /// another, and a caller alone would come by all threads in turn, each with cold memory.
    pub(crate) fn take_place(&self) -> bool {
        let mut places = self.places.lock();
        let free = places.at_door < AT_DOOR && !places.ended;
        places.at_door += usize::from(free);
        free
    }

    /// A request was taken at the door.
    pub(crate) fn took(&self) {
        let mut places = self.places.lock();
        places.at_door -= 1;
        let next = if places.at_door < FEW { places.at_home.pop() } else { None };
        drop(places);
        next.inspect(|seat| seat.call());
    }

    /// The mount is gone: everybody returns.
    pub(crate) fn end(&self) {
        let mut places = self.places.lock();
        places.ended = true;
        let all = std::mem::take(&mut places.at_home);
        drop(places);
        all.iter().for_each(|seat| seat.call());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidying::Tidy;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    const SERVERS: usize = AT_DOOR * 3;

    /// However late those who have replied come back to the door: they are counted there, so a
    /// caller alone is served by few.
    #[test]
    fn who_replies_is_at_the_door() {
        let servers = Servers::default();
        let seats: Vec<_> = (0..SERVERS).map(|_| Seat::new()).collect();
        seats[..AT_DOOR].iter().for_each(|seat| assert!(servers.to_door(seat, Tidying::default())));
        servers.places.lock().at_home.extend_from_slice(&seats[AT_DOOR..]);
        for _ in 0..100 {
            servers.took();
            assert!(servers.take_place(), "the place that was left is free");
        }
        assert!(!servers.take_place(), "all others have theirs");
        assert_eq!(servers.places.lock().at_home.len(), SERVERS - AT_DOOR, "nobody was called");
    }

    /// Who is called before has no time for it, and who is not does it once.
    #[test]
    fn who_is_at_rest_lets_go_memory() {
        static TIDIED: AtomicUsize = AtomicUsize::new(0);
        let at_rest =
            Tidying { wanted: || Tidy::AtRest, tidy: || _ = TIDIED.fetch_add(1, Ordering::SeqCst) };
        let seat = Seat::new();
        seat.call();
        seat.sleep(at_rest);
        assert_eq!(TIDIED.load(Ordering::SeqCst), 0);
        thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            scope.spawn(move || {
                let seat = Seat::new();
                tell.send(seat.clone()).unwrap();
                seat.sleep(at_rest);
            });
            let seat = told.recv().unwrap();
            while TIDIED.load(Ordering::SeqCst) == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            seat.call();
        });
        assert_eq!(TIDIED.load(Ordering::SeqCst), 1);
    }

    /// A pipe stands in for `/dev/fuse`: a byte is a request, and serving it waits until all
    /// servers have one. Without `took` sending another this waits for ever.
    #[test]
    fn all_serve_at_once() {
        let (requests, to_servers) = std::io::pipe().unwrap();
        let mut to_servers = File::from(OwnedFd::from(to_servers));
        let requests = File::from(OwnedFd::from(requests));
        let servers = Servers::default();
        let together = std::sync::Barrier::new(SERVERS);
        let (answers, answered) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..SERVERS {
                let answers = answers.clone();
                let (servers, mut requests, together) = (&servers, &requests, &together);
                scope.spawn(move || {
                    let seat = Seat::new();
                    while servers.to_door(&seat, Tidying::default()) {
                        let got = requests.read(&mut [0]).unwrap();
                        servers.took();
                        if got == 0 {
                            return servers.end();
                        }
                        together.wait();
                        answers.send(()).unwrap();
                    }
                });
            }
            for round in 0..200 {
                to_servers.write_all(&[0; SERVERS]).unwrap();
                for _ in 0..SERVERS {
                    if answered.recv_timeout(Duration::from_secs(20)).is_err() {
                        // The threads would wait for ever, and this one for them.
                        eprintln!("round {round}: somebody is not served");
                        std::process::abort();
                    }
                }
            }
            drop(to_servers);
        });
    }
}
