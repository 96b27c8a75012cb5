//! Which of the threads that serve `/dev/fuse` wait for its requests.
//!
//! Some wait *at the door*: each request wakes one of them, on any processor. While pollers look
//! for requests (`polling`) nobody shall be there, for the kernel would wake him: then all are
//! *at home*, asleep, each pinned to a processor, and are called by the poller that finds a
//! request there.
//!
//! Invariant: while polling is off, somebody is at the door unless every thread is serving. Who
//! leaves the door last sends another; who ends polling does, under the same lock; who has
//! served looks where to go under it, too. It does not know what is served.

use crate::device::Device;
use crate::polling::Polling;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};

/// So many wait at the door; the others are called when all of these serve.
const AT_DOOR: usize = 8;

pub(crate) struct Servers {
    polling: Arc<Polling>,
    /// Tells whether a request waits.
    device: Device,
    places: Mutex<Places>,
    looks: AtomicU64,
}

#[derive(Default)]
struct Places {
    at_door: usize,
    /// Whoever came last is called first: his memory is in the cache.
    at_home: Vec<Arc<Seat>>,
    ended: bool,
}

/// Where a thread sleeps when it is at home.
pub(crate) struct Seat {
    thread: Thread,
    processor: usize,
    called: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Wait for a request; then `took`.
    Door,
    /// Sleep until called; then serve what is there.
    Home,
    /// The mount is gone.
    End,
}

impl Seat {
    /// Of the calling thread.
    pub fn new(processor: usize) -> Arc<Seat> {
        let thread = thread::current();
        Arc::new(Seat { thread, processor, called: AtomicBool::new(false) })
    }

    pub fn wait(&self) {
        while !self.called.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }

    fn call(&self) {
        self.called.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Servers {
    pub fn new(polling: &Arc<Polling>, device: &Device) -> Servers {
        Servers {
            polling: polling.clone(),
            device: device.clone(),
            places: Mutex::default(),
            looks: AtomicU64::new(0),
        }
    }

    /// Where to go, for who has nothing to serve.
    pub fn place(&self, seat: &Arc<Seat>) -> Place {
        let mut places = self.places.lock();
        if places.ended {
            return Place::End;
        }
        if !self.polling.is_on() && places.at_door < AT_DOOR {
            places.at_door += 1;
            return Place::Door;
        }
        places.at_home.push(seat.clone());
        Place::Home
    }

    /// A request was taken at the door.
    pub fn took(&self) {
        let mut places = self.places.lock();
        places.at_door -= 1;
        let next = if self.polling.is_on() { None } else { places.for_door() };
        drop(places);
        call(next.as_ref());
    }

    /// A poller looks, and has what waits served on its processor. True if somebody comes.
    pub fn look(&self, processor: usize) -> bool {
        self.looks.fetch_add(1, Ordering::Relaxed);
        if !self.is_ready() {
            return false;
        }
        let next = self.places.lock().of(processor);
        call(next.as_ref());
        next.is_some()
    }

    /// How often pollers looked.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// True if a request waits, or the mount is gone.
    pub fn is_ready(&self) -> bool {
        self.device.is_ready()
    }

    /// Polling ends: somebody listens from now on.
    pub fn end_polling(&self) {
        let mut places = self.places.lock();
        self.polling.end();
        let next = places.for_door();
        drop(places);
        call(next.as_ref());
    }

    /// The mount is gone: everybody returns.
    pub fn end(&self) {
        let mut places = self.places.lock();
        places.ended = true;
        let all = std::mem::take(&mut places.at_home);
        drop(places);
        all.iter().for_each(|seat| seat.call());
    }
}

fn call(seat: Option<&Arc<Seat>>) {
    if let Some(seat) = seat {
        seat.call();
    }
}

impl Places {
    fn for_door(&mut self) -> Option<Arc<Seat>> {
        if self.at_door == 0 { self.at_home.pop() } else { None }
    }

    /// One of this processor, or if all of those serve, of another.
    fn of(&mut self, processor: usize) -> Option<Arc<Seat>> {
        let own = self.at_home.iter().rposition(|seat| seat.processor == processor);
        own.map(|at| self.at_home.remove(at)).or_else(|| self.at_home.pop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    /// A pipe stands in for `/dev/fuse`: a byte is a request.
    struct Stage {
        servers: Servers,
        requests: File,
        answers: std::sync::mpsc::Sender<u8>,
    }

    impl Stage {
        fn serve(&self, processor: usize) {
            let seat = Seat::new(processor);
            let mut byte = [0];
            loop {
                match self.servers.place(&seat) {
                    Place::End => return,
                    Place::Door => {
                        let got = (&self.requests).read(&mut byte).unwrap();
                        self.servers.took();
                        if got == 0 {
                            return self.servers.end();
                        }
                        self.answers.send(byte[0]).unwrap();
                    }
                    Place::Home => {
                        seat.wait();
                        // Looks without waiting; others may have been quicker.
                        while self.servers.is_ready() && self.take_now(&mut byte) {
                            self.answers.send(byte[0]).unwrap();
                        }
                    }
                }
            }
        }

        fn take_now(&self, byte: &mut [u8]) -> bool {
            static ONE_LOOKS: Mutex<()> = Mutex::new(());
            let _one = ONE_LOOKS.lock();
            // Somebody at the door may take it between look and read: then this waits for the
            // next request, as he would have.
            self.servers.is_ready() && (&self.requests).read(byte).unwrap() == 1
        }
    }

    /// Polling that begins and ends all the time loses no request: somebody listens, or
    /// a poller looks. Without the look at who is at the door in `end_polling` this hangs.
    #[test]
    fn somebody_always_listens() {
        let (requests, to_servers) = std::io::pipe().unwrap();
        let (answers, answered) = std::sync::mpsc::channel();
        let polling = Arc::new(Polling::new(Duration::ZERO, 1));
        let requests = File::from(OwnedFd::from(requests));
        let device = Device::from_fd(requests.try_clone().unwrap().into());
        let stage = Stage { servers: Servers::new(&polling, &device), requests, answers };
        let mut to_servers = File::from(OwnedFd::from(to_servers));
        let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let stage = &stage;
            (0..AT_DOOR + 3).for_each(|n| drop(scope.spawn(move || stage.serve(n % 2))));
            let (stop, count, polling) = (&stop, &count, &polling);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    polling.begin();
                    (0..20).for_each(|n| drop(stage.servers.look(n % 2)));
                    stage.servers.end_polling();
                    // From here on no poller looks: whoever is at the door has to.
                    let before = count.load(Ordering::Relaxed);
                    while count.load(Ordering::Relaxed) < before + 3
                        && !stop.load(Ordering::Relaxed)
                    {
                        thread::yield_now();
                    }
                }
            });
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(2) {
                let request = count.load(Ordering::Relaxed) as u8;
                to_servers.write_all(&[request]).unwrap();
                let answer = answered.recv_timeout(Duration::from_secs(20));
                if answer != Ok(request) {
                    // The other threads would wait for ever, and this one for them.
                    eprintln!("request {request}: {answer:?}");
                    std::process::abort();
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
            stop.store(true, Ordering::Relaxed);
            drop(to_servers);
        });
    }

    #[test]
    fn the_poller_s_own_processor_serves_first() {
        let seat = |processor| {
            Arc::new(Seat { thread: thread::current(), processor, called: AtomicBool::new(false) })
        };
        let mut places =
            Places { at_home: vec![seat(0), seat(1), seat(0), seat(1)], ..Default::default() };
        let order: Vec<_> = (0..4).map(|_| places.of(0).unwrap().processor).collect();
        assert_eq!(order, [0, 0, 1, 1]);
        assert!(places.of(0).is_none());
    }
}
