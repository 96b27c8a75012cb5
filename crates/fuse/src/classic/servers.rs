//! Which of the threads that serve `/dev/fuse` wait for its requests.
//!
//! Some wait *at the door*: each request wakes one of them, on any processor. While pollers look
//! for requests (`polling`) nobody shall be there, for the kernel would wake him: then all are
//! *at home*, asleep, each pinned to a processor, and are called by the poller that finds a
//! request there.
//!
//! Invariants: while polling is off, somebody is at the door unless every thread is serving. Who
//! leaves the door last sends another; who ends polling does, under the same lock; who has
//! served looks where to go under it, too. Pollers take no lock: at their priority they
//! would keep everybody waiting for it (for a tenth of a second, measured). It does not know
//! what is served.

use crate::device::Device;
use crate::polling::Polling;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};

/// So many wait at the door; the others are called when all of these serve.
const AT_DOOR: usize = 8;

pub(crate) struct Servers {
    polling: Arc<Polling>,
    /// Tells whether a request waits.
    device: Device,
    seats: Box<[Seat]>,
    /// A bit for each seat with a sleeper. Who clears one calls him.
    at_home: AtomicU64,
    /// Bits come under it (and go without).
    places: Mutex<Places>,
    looks: AtomicU64,
}

#[derive(Default)]
struct Places {
    at_door: usize,
    ended: bool,
}

/// Where one of the threads sleeps when it is at home.
struct Seat {
    processor: usize,
    thread: OnceLock<Thread>,
    called: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Wait for a request; then `took`.
    Door,
    /// `sleep` until called; then serve what is there.
    Home,
    /// The mount is gone.
    End,
}

impl Servers {
    /// So many threads at most.
    pub(crate) const MOST: usize = u64::BITS as usize;

    /// One thread for each of `homes`: the processor to which it is pinned at home.
    pub(crate) fn new(polling: &Arc<Polling>, device: &Device, homes: &[usize]) -> Servers {
        assert!(homes.len() <= Servers::MOST, "a bit for each");
        let seat = |processor: &usize| Seat {
            processor: *processor,
            thread: OnceLock::new(),
            called: AtomicBool::new(false),
        };
        Servers {
            polling: polling.clone(),
            device: device.clone(),
            seats: homes.iter().map(seat).collect(),
            at_home: AtomicU64::new(0),
            places: Mutex::default(),
            looks: AtomicU64::new(0),
        }
    }

    /// Where that thread is at home.
    pub(crate) fn home(&self, number: usize) -> usize {
        self.seats[number].processor
    }

    /// Where to go, for the thread of that number, which has nothing to serve.
    pub(crate) fn place(&self, number: usize) -> Place {
        let seat = &self.seats[number];
        seat.thread.get_or_init(thread::current);
        let mut places = self.places.lock();
        if places.ended {
            return Place::End;
        }
        if !self.polling.is_on() && places.at_door < AT_DOOR {
            places.at_door += 1;
            return Place::Door;
        }
        self.at_home.fetch_or(1 << number, Ordering::SeqCst);
        Place::Home
    }

    /// At home, until called.
    pub(crate) fn sleep(&self, number: usize) {
        while !self.seats[number].called.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }

    /// A request was taken at the door.
    pub(crate) fn took(&self) {
        let mut places = self.places.lock();
        places.at_door -= 1;
        self.guard_door(&places);
    }

    /// A poller looks, and has what waits served on its processor, or where somebody is at
    /// home. True if somebody comes. Takes no lock.
    pub(crate) fn look(&self, processor: usize) -> bool {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.is_ready() && (self.call(|seat| seat.processor == processor) || self.call(|_| true))
    }

    /// How often pollers looked.
    pub(crate) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// True if a request waits, or the mount is gone.
    pub(crate) fn is_ready(&self) -> bool {
        self.device.is_ready()
    }

    /// Polling ends: somebody listens from now on. Not for pollers.
    pub(crate) fn end_polling(&self) {
        let places = self.places.lock();
        self.polling.end();
        self.guard_door(&places);
    }

    /// The mount is gone: everybody returns.
    pub(crate) fn end(&self) {
        self.places.lock().ended = true;
        // Nobody comes home any more.
        while self.call(|_| true) {}
    }

    /// Somebody is at the door, or nobody is at home, or pollers look.
    fn guard_door(&self, places: &Places) {
        if !self.polling.is_on() && places.at_door == 0 {
            self.call(|_| true);
        }
    }

    /// Calls the first of those at home (his memory is in the cache); false if there is none.
    fn call(&self, which: impl Fn(&Seat) -> bool) -> bool {
        let at_home = self.at_home.load(Ordering::SeqCst);
        for (number, seat) in self.seats.iter().enumerate() {
            let bit = 1 << number;
            if at_home & bit != 0
                && which(seat)
                && self.at_home.fetch_and(!bit, Ordering::SeqCst) & bit != 0
            {
                seat.called.store(true, Ordering::Release);
                seat.thread.get().inspect(|thread| thread.unpark());
                return true;
            }
        }
        false
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
        fn serve(&self, number: usize) {
            let mut byte = [0];
            loop {
                match self.servers.place(number) {
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
                        self.servers.sleep(number);
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
        let stage = Stage {
            servers: Servers::new(&polling, &device, &[0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]),
            requests,
            answers,
        };
        let mut to_servers = File::from(OwnedFd::from(to_servers));
        let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let stage = &stage;
            (0..AT_DOOR + 3).for_each(|n| drop(scope.spawn(move || stage.serve(n))));
            let (stop, count, polling) = (&stop, &count, &polling);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    polling.begin();
                    for n in 0..20 {
                        stage.servers.look(n % 2);
                    }
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
        let polling = Arc::new(Polling::new(Duration::ZERO, 1));
        let (requests, _to_servers) = std::io::pipe().unwrap();
        let device = Device::from_fd(OwnedFd::from(requests));
        let servers = Servers::new(&polling, &device, &[0, 1, 0, 1]);
        polling.begin();
        (0..4).for_each(|number| assert_eq!(servers.place(number), Place::Home));
        let calls = |processor| {
            let before = servers.at_home.load(Ordering::Relaxed);
            let own = servers.call(|seat| seat.processor == processor);
            assert!(own || servers.call(|_| true));
            (before & !servers.at_home.load(Ordering::Relaxed)).trailing_zeros()
        };
        assert_eq!([calls(1), calls(1), calls(1), calls(1)], [1, 3, 0, 2]);
        assert!(!servers.call(|_| true));
    }
}
