//! What the allocator keeps of freed memory, and when it goes back to the system.
//!
//! By itself mimalloc gives memory back in whichever thread asks for some when it is time: one
//! request then took 8 ms, inside an epoch that others waited to enter, and all other
//! processors had to look up from their work for each piece. So it is told not to, and a
//! thread of its own does it.
//!
//! Huge pages are not for a server. mimalloc asks for them, and where the machine gives them to
//! whoever asks (`madvise`, the usual setting), the first byte that one of seventy threads needs
//! of a size of its own is 2 MiB that are cleared, and held from then on: 64 callers with an fsync
//! each took twice the memory, and `tar x` was a quarter slower than without.

use libmimalloc_sys::{mi_collect, mi_option_set, mi_option_t};
use std::ffi::c_long;

/// `mi_option_purge_delay` in mimalloc.h (2.x and 3.x), which the crate has no name for.
const PURGE_DELAY: mi_option_t = 15;
/// Milliseconds; never in practice, but 0 and below would end giving back as well.
const A_DAY: c_long = 24 * 3600 * 1000;

/// What a mount may take where nobody says how much: a quarter of the machine's memory, and no
/// more than it takes with most loads anyway.
pub fn usual_budget() -> u64 {
    const MOST: u64 = 512 << 20;
    // SAFETY: asks for numbers.
    let (pages, size) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    match (u64::try_from(pages), u64::try_from(size)) {
        (Ok(pages), Ok(size)) => (pages.saturating_mul(size) / 4).min(MOST),
        _ => MOST,
    }
}

/// Freed memory stays with the process until `give_back_memory`, and new memory comes in the
/// smallest pages.
pub fn keep_freed_memory() {
    use_small_pages();
    // SAFETY: sets an atomic number that mimalloc reads.
    unsafe { mi_option_set(PURGE_DELAY, A_DAY) };
}

/// Of this process alone. A kernel that refuses it is one without huge pages.
#[cfg(target_os = "linux")]
fn use_small_pages() {
    // SAFETY: a setting of this process, without pointers.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

#[cfg(not(target_os = "linux"))]
fn use_small_pages() {}

/// Gives back whole pages that nobody uses.
pub fn give_back_memory() {
    // SAFETY: may be called from any thread at any time; it touches no live allocation.
    unsafe { mi_collect(true) };
}
