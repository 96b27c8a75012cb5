//! Boxes whose allocation may be refused: the standard library's abort the process.
//!
//! [unsafe] for the allocator's raw interface.

use std::alloc::{Layout, alloc};
use std::mem::MaybeUninit;

/// Memory for a `T`; `None` if the allocator refuses it.
pub(crate) fn try_uninit<T>() -> Option<Box<MaybeUninit<T>>> {
    let layout = Layout::new::<T>();
    assert!(layout.size() > 0, "nothing is no reason to allocate");
    // SAFETY: the layout has a size, as was asserted.
    let memory = unsafe { alloc(layout) }.cast::<MaybeUninit<T>>();
    // SAFETY: memory from the global allocator with `T`'s layout, which nobody else has;
    // uninitialized is what its type says.
    (!memory.is_null()).then(|| unsafe { Box::from_raw(memory) })
}

/// A box of `value`; `None` if the allocator refuses it.
pub(crate) fn try_box<T>(value: T) -> Option<Box<T>> {
    Some(Box::write(try_uninit()?, value))
}
