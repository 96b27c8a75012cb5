//! The free-space tree: what it must say after extents came and went.
//!
//! Two ways lead to one answer: near the changed extents ([`update`]), or through the
//! whole group ([`rewrite`]), which a change of form needs.
//!
//! Invariant: whatever [`update`] answers with turns the group's items into exactly the
//! rendering of its new free ranges. Taking what is not free or freeing what is not
//! taken is damage and changes nothing.
//!
//! What it does not know: pinned or reserved space, who applies the changes.

mod extents;
mod form;
mod local;
mod ranges;

pub(crate) use extents::{extent_of, last_before};
pub use form::{GroupFree, GroupSpan, Stored};
pub use ranges::{Contradiction, Ranges};

use crate::Extent;
use crate::items::{Changes, Items};
use btrfs_disk::{Corrupt, Error, Result};

/// Changes that take `created` out of the group's free space and put `freed` into it.
/// Touches only what is near them, unless the group goes over to its other form.
pub fn update(
    items: &mut dyn Items,
    span: &GroupSpan,
    created: &[Extent],
    freed: &[Extent],
) -> Result<Changes> {
    match local::update(items, span, created, freed)? {
        Some(changes) => Ok(changes),
        None => rewrite(items, span, created, freed).map(|(changes, _)| changes),
    }
}

/// What [`update`] does, by reading the whole group and rendering it anew. Also answers
/// the bytes that are free then.
pub fn rewrite(
    items: &mut dyn Items,
    span: &GroupSpan,
    created: &[Extent],
    freed: &[Extent],
) -> Result<(Changes, u64)> {
    let (mut space, stored) = span.read(items)?;
    for extent in freed {
        span.holds(extent)?;
        let put = space.free.insert(extent.logical.0, extent.len);
        put.map_err(|_| clash(extent, FREE_ALREADY))?;
    }
    for extent in created {
        let taken = space.free.remove(extent.logical.0, extent.len);
        taken.map_err(|_| clash(extent, NOT_FREE))?;
    }
    space.bitmaps = span.wants_bitmaps(space.bitmaps, space.free.len() as u64);
    Ok((difference(stored, span.items_of(&space)), space.free.bytes()))
}

const FREE_ALREADY: &str = "a freed extent is free already";
const NOT_FREE: &str = "a new extent is not free";

/// Changes that forget a group.
pub fn remove_group(items: &mut dyn Items, span: &GroupSpan) -> Result<Changes> {
    let mut changes = Changes::new();
    span.scan(items, &mut |key, _| {
        changes.push((key, None));
        Ok(())
    })?;
    Ok(changes)
}

/// Changes that make a new group known, all of it free.
pub fn add_group(items: &mut dyn Items, span: &GroupSpan) -> Result<Changes> {
    let mut stale = Vec::new();
    // Removed groups may have left items behind (old mkfs did).
    span.scan(items, &mut |key, data| {
        stale.push((key, data.to_vec()));
        Ok(())
    })?;
    let mut free = Ranges::new();
    let whole = Extent { logical: btrfs_disk::Logical(span.start), len: span.len };
    free.insert(span.start, span.len).map_err(|_| clash(&whole, "empty block group"))?;
    Ok(difference(stale, span.items_of(&GroupFree { bitmaps: false, free })))
}

impl GroupSpan {
    /// `Err` unless the extent lies in the group, in whole sectors.
    fn holds(&self, extent: &Extent) -> Result<()> {
        let inside = extent.logical.0 >= self.start && extent.end() <= self.end();
        let whole = extent.logical.0.is_multiple_of(self.sector)
            && extent.len.is_multiple_of(self.sector)
            && extent.len > 0;
        if inside && whole {
            return Ok(());
        }
        Err(clash(extent, "an extent lies outside its block group"))
    }
}

fn clash(extent: &Extent, what: &str) -> Error {
    Corrupt::new(format!("{what} (free-space tree, {} bytes)", extent.len))
        .at(extent.logical)
        .into()
}

/// What turns `old` into `new`, both sorted by key.
fn difference(old: Stored, new: Stored) -> Changes {
    let mut out = Changes::new();
    let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
    loop {
        match (old.peek(), new.peek()) {
            (None, None) => return out,
            (Some((was, _)), Some((is, _))) if was == is => {
                let ((_, before), (key, now)) =
                    (old.next().expect("some"), new.next().expect("some"));
                if before != now {
                    out.push((key, Some(now.into())));
                }
            }
            (Some((was, _)), is) if is.is_none_or(|(is, _)| was < is) => {
                out.push((*was, None));
                old.next();
            }
            _ => out.extend(new.next().map(|(key, data)| (key, Some(data.into())))),
        }
    }
}
