//! Numbers of threads: for what is in parts, so that threads do not meet.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of the calling thread, always the same: 0 for the first thread that asks, and so on.
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) });
    let mut number = NUMBER.get();
    if number == usize::MAX {
        number = NEXT.fetch_add(1, Ordering::Relaxed);
        NUMBER.set(number);
    }
    number
}

#[cfg(test)]
mod tests {
    use super::thread_number;

    #[test]
    fn a_number_is_its_threads_own() {
        let mine = thread_number();
        let other = std::thread::spawn(|| (thread_number(), thread_number()));
        let (first, second) = other.join().expect("a thread");
        assert_eq!(first, second);
        assert_ne!(first, mine);
        assert_eq!(thread_number(), mine);
    }
}
