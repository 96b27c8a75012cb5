//! What programs stored through maps behind the end of a file, in its last page, before it grows.
//!
//! It is no content: the kernel's own file systems clear the rest of the page when they move the end. FUSE does not,
//! and the page, sent later, is content by then, in the file for good. So before the kernel hears that a file has
//! grown, it is given zeros for what lies between the old end and what was written, as far as the page goes.
//!
//! Invariants: a page that can be stored into behind the end was READ while the end was in it (what a write fills of a last
//! page leaves the page to be READ first), or the end was set into it when the kernel had it. So such pages are noted, and
//! an end in any other costs nothing: a page of which a write brings a part is locked meanwhile where it was not READ, and
//! zeros for it would be waited for in vain. A page that is locked is waited for, by who can be spared
//! and not for long; zeros that have not gone by then are taken back, since they must not come behind what is
//! written after the reply. Where they are on their way already, the page goes behind them, so that it is READ again.
//!
//! With `-o writeback` the kernel knows of ends that are not known here, and content behind the one that is: nothing is
//! cleared. Does not know what is in the files.

use super::Dispatcher;
use super::request::Request;
use std::ops::Range;
use vfs::Ino;

/// From the first page behind whose end something may be stored to the last. The READs of a file come in any order, so
/// one that ended before does not take the place of a later one.
#[derive(Clone, Copy, Default)]
pub(super) struct EndPages {
    first: u64,
    last: u64,
}

impl EndPages {
    fn with(before: Option<EndPages>, page: u64) -> EndPages {
        let before = before.unwrap_or(EndPages { first: page, last: page });
        EndPages { first: before.first.min(page), last: before.last.max(page) }
    }
}

impl Dispatcher {
    /// A READ for the page cache has met the end of the file.
    pub(super) fn end_is_read(&self, ino: Ino, end: u64) {
        if !self.writeback && !end.is_multiple_of(self.page) {
            self.ends.change(ino, |before| EndPages::with(before, end / self.page));
        }
    }

    /// A file that ended at `before` ends at `end`. If the kernel has the page of that it READs it no more.
    pub(super) fn end_is_set(&self, ino: Ino, before: Option<u64>, end: u64) {
        if before.is_some_and(|before| end < before) && self.pages.may_have(ino, end) {
            self.end_is_read(ino, end);
        }
    }

    /// Where a file ends that is about to be changed, if something may be stored behind that.
    pub(super) fn known_end(&self, ino: Ino) -> Option<u64> {
        let EndPages { first, last } = self.ends.of(ino)?;
        let end = self.fs.getattr(ino).ok()?.size;
        let is_noted = (first..=last).contains(&(end / self.page));
        (is_noted && !end.is_multiple_of(self.page)).then_some(end)
    }

    /// The file ended at `end`; now it has content, or an end, from `from` on, and ends at `new` at least. Not where
    /// nothing came of a change: the kernel would take the file for as long. Whether it was to hear of that, and so perhaps of
    /// other changes meanwhile.
    pub(super) fn grown(
        &self,
        request: &Request<'_>,
        ino: Ino,
        end: Option<u64>,
        from: u64,
        new: u64,
    ) -> bool {
        let range = end.and_then(|end| uncovered(end, from, new, self.page));
        let Some(range) = range else { return false };
        let ticket = self.notifier.zeros(ino, range.clone());
        if self.waiters.wait(request.origin, ticket, &self.notifier) {
            return true;
        }
        tracing::debug!(ino = ino.0, "what is stored behind the end of a file may stay");
        if !self.notifier.take_back(ticket) {
            self.notifier.data_changed(ino, range.start, range.end - range.start);
        }
        true
    }
}

fn uncovered(end: u64, from: u64, new: u64, page: u64) -> Option<Range<u64>> {
    let last = end.next_multiple_of(page).min(from);
    (new > end && last > end).then_some(end..last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_growth_uncovers_ends_with_the_page() {
        let of = |end, from, new| uncovered(end, from, new, 4096);
        assert_eq!(of(100, 105, 105), Some(100..105));
        assert_eq!(of(100, 9000, 9001), Some(100..4096));
        assert_eq!(of(100, 100, 200), None, "appended");
        assert_eq!(of(100, 50, 200), None, "written over the end");
        assert_eq!(of(100, 50, 50), None, "cut");
        assert_eq!(of(100, 200, 200), Some(100..200));
        assert_eq!(of(100, 200, 100), None, "nothing was written");
    }
}
