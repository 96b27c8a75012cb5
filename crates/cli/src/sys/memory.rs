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

use libmimalloc_sys::{mi_collect, mi_option_set, mi_option_t, mi_thread_done, mi_thread_init};
use std::ffi::c_long;
use std::fs::File;
use std::os::unix::fs::FileExt;

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

/// What the calling thread keeps of the allocator's pages, whether somebody uses parts of them or not, is for
/// whoever asks next. Costs about as much as a thread that ends and one that begins.
pub fn leave_memory_to_others() {
    // SAFETY: what the allocator does for a thread that ends, and for one that begins. Blocks stay as they are. Both, since
    // the thread's real end is told of with what was made last: mimalloc 3 does not forget it in between, and would
    // go on with what it has freed.
    unsafe {
        mi_thread_done();
        mi_thread_init();
    }
}

fn page_size() -> usize {
    // SAFETY: asks for a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(65536)
}

/// Gives back the pages of a buffer, which is the allocator's as before and all zeros from here on. False: it has
/// all its memory still.
pub fn give_back_buffer(bytes: &mut [u8]) -> bool {
    if cfg!(target_os = "linux") {
        let page = page_size();
        let before = bytes.as_ptr().align_offset(page).min(bytes.len());
        let (before, rest) = bytes.split_at_mut(before);
        let (pages, behind) = rest.split_at_mut(rest.len() / page * page);
        let (at, len) = (pages.as_mut_ptr(), pages.len());
        // SAFETY: whole pages that nobody else has, in memory that is this process's alone, as all of the
        // allocator's: it reads as zeros behind this, which are bytes.
        if len == 0 || unsafe { libc::madvise(at.cast(), len, libc::MADV_DONTNEED) } == 0 {
            before.fill(0);
            behind.fill(0);
            return len > 0;
        }
    }
    bytes.fill(0);
    false
}

/// How much memory this process has, also when it can open no file any more.
pub struct Resident(File);

impl Resident {
    /// Of a kernel that tells.
    pub fn of_this_process() -> Option<Resident> {
        File::open("/proc/self/statm").ok().map(Resident)
    }

    /// Bytes, as of now.
    pub fn bytes(&self) -> Option<u64> {
        let mut text = [0; 128];
        let len = self.0.read_at(&mut text, 0).ok()?;
        let pages = std::str::from_utf8(text.get(..len)?).ok()?.split(' ').nth(1)?;
        Some(pages.parse::<u64>().ok()? * page_size() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All but its edges is gone from memory, and what is beside it is not touched.
    #[test]
    fn a_buffer_is_given_back_and_stays_a_buffer() {
        const LEN: usize = 64 << 20;
        let resident = Resident::of_this_process().unwrap();
        let mut bytes = vec![7u8; LEN];
        assert!(resident.bytes().unwrap() >= LEN as u64);
        assert!(give_back_buffer(&mut bytes[100..LEN - 100]));
        assert!(bytes[..100].iter().chain(&bytes[LEN - 100..]).all(|byte| *byte == 7));
        assert!(bytes[100..LEN - 100].iter().all(|byte| *byte == 0));
        bytes.fill(8);
        assert!(!give_back_buffer(&mut bytes[5..9]), "no page lies in it");
        assert_eq!(bytes[3..11], [8, 8, 0, 0, 0, 0, 8, 8]);
    }

    #[test]
    fn pages_of_a_buffer_that_was_given_back_are_not_in_memory() {
        const PAGES: usize = 256;
        let page = page_size();
        let mut bytes = vec![7u8; (PAGES + 1) * page];
        let here = |bytes: &[u8]| {
            let from = bytes.as_ptr().align_offset(page);
            let mut map = [0u8; PAGES];
            let at = bytes[from..].as_ptr().cast_mut().cast();
            // SAFETY: whole pages of ours, and a byte for each of them.
            assert_eq!(unsafe { libc::mincore(at, PAGES * page, map.as_mut_ptr()) }, 0);
            map.iter().filter(|byte| **byte & 1 == 1).count()
        };
        assert_eq!(here(&bytes), PAGES);
        give_back_buffer(&mut bytes);
        // The page at each edge may be another's, too.
        assert!(here(&bytes) <= 1, "{}", here(&bytes));
    }
}
