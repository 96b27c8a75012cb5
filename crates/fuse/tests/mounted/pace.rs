//! The scheduling class of ring threads (`pace.rs` in the crate).

use crate::fixture::{Mount, run};
use crate::{spy, sys};
use fuse::Transport;
use std::fs;
use std::time::{Duration, Instant};

/// More than twice the processors of any machine whose ring threads are watched over.
const CROWD: usize = 40;

/// True if the threads that served so far are in the idle class, all of them.
fn in_the_idle_class(mount: &Mount) -> bool {
    let threads = mount.spy.looked_up_by.lock().unwrap();
    !threads.is_empty() && threads.iter().all(|thread| sys::is_in_idle_class(*thread))
}

/// One caller after the other, with pauses, until the ring threads are in the idle class.
/// False if that does not come: other work keeps the machine busy.
fn comes_to_idle_class(mount: &Mount) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut names = 0..;
    while Instant::now() < deadline {
        let name = format!("nothing-{}", names.next().unwrap());
        assert!(fs::metadata(mount.path(&name)).is_err());
        std::thread::sleep(Duration::from_millis(5));
        if in_the_idle_class(mount) {
            return true;
        }
    }
    false
}

/// A crowd that waits uses no time of the processors: only its number tells of it.
#[test]
fn a_crowd_ends_the_idle_class_at_once() {
    run(Transport::Uring, ends_the_idle_class);
}

fn ends_the_idle_class(mount: &Mount) {
    for directory in 0..CROWD {
        fs::create_dir(mount.path(&directory.to_string())).unwrap();
    }
    if !comes_to_idle_class(mount) {
        return println!("SKIPPED: no right to the idle class, too many processors, or too busy");
    }
    let slow = std::str::from_utf8(spy::SLOW).unwrap();
    std::thread::scope(|scope| {
        for directory in 0..CROWD {
            let path = mount.path(&format!("{directory}/{slow}"));
            scope.spawn(move || assert!(fs::metadata(path).is_err()));
        }
        let begin = Instant::now();
        while in_the_idle_class(mount) {
            // The crowd is there for so long; without it nothing ends the class then.
            assert!(begin.elapsed() < spy::SLOWNESS, "still in the idle class");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}
