//! Places where a thread is held until a test lets it go on.
//!
//! Invariants: a place holds nobody before it is armed, nor after it was released, and nobody for
//! ever: a test that fails while somebody is held ends.
//!
//! What it does not know: who comes by, which each test's device decides.

use blocksim::{GoOn, Hooked, Image, Request, RequestHook, SimDevice};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// Where somebody is held, and whether he is there.
#[derive(Default)]
pub struct Places {
    held: Mutex<Vec<(&'static str, bool)>>,
    changed: Condvar,
}

impl Places {
    /// From now on `place` holds who comes there.
    pub fn arm(&self, place: &'static str) {
        self.held.lock().expect("no panic").push((place, false));
    }

    pub fn pass(&self, place: &'static str) {
        let mut held = self.held.lock().expect("no panic");
        if let Some(one) = held.iter_mut().find(|one| one.0 == place) {
            one.1 = true;
            self.changed.notify_all();
            let is_held =
                |held: &mut Vec<(&'static str, bool)>| held.iter().any(|one| one.0 == place);
            drop(self.changed.wait_timeout_while(held, LIMIT, is_held).expect("no panic"));
        }
    }

    /// As `wait_until_there`, for so long; whether he came.
    pub fn comes(&self, place: &'static str, within: Duration) -> bool {
        let end = Instant::now() + within;
        let mut held = self.held.lock().expect("no panic");
        while !held.contains(&(place, true)) {
            let Some(left) = end.checked_duration_since(Instant::now()) else { return false };
            held = self.changed.wait_timeout(held, left).expect("no panic").0;
        }
        true
    }

    pub fn wait_until_there(&self, place: &'static str) {
        let mut held = self.held.lock().expect("no panic");
        while !held.contains(&(place, true)) {
            let (now, late) =
                self.changed.wait_timeout(held, Duration::from_secs(20)).expect("no panic");
            assert!(!late.timed_out(), "nobody comes to {place}");
            held = now;
        }
    }

    pub fn release(&self, place: &'static str) {
        self.held.lock().expect("no panic").retain(|one| one.0 != place);
        self.changed.notify_all();
    }
}

/// Flushes of the thread of that name pass the place "flush".
pub struct Flushes {
    pub places: Places,
    thread: &'static str,
}

impl RequestHook for Flushes {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> std::io::Result<()> {
        if matches!(request, Request::Flush) && std::thread::current().name() == Some(self.thread) {
            self.places.pass("flush");
        }
        go_on()
    }
}

/// A new volume of `len` bytes, whose flushes by `thread` can be held.
pub fn volume_with_flushes_of(thread: &'static str, len: u64) -> Arc<Hooked<SimDevice, Flushes>> {
    let below = SimDevice::new(Image::zeros(len));
    btrfs_image::mkfs::make(&below, &btrfs_image::mkfs::MkfsOptions::default()).expect("mkfs");
    Arc::new(Hooked { below, hook: Flushes { places: Places::default(), thread } })
}
