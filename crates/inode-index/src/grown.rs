//! An index that only grows, so what it holds can be borrowed as long as the index itself.

use super::entry::Ref;
use super::epochs::{Epochs, Pin};
use super::index::{Index, NoMemory, Refused};
use std::sync::Arc;

/// Values by number, of which none ever goes.
pub struct Grown<T: Send + Sync + 'static>(Index<T>);

impl<T: Send + Sync + 'static> Grown<T> {
    /// An empty one.
    pub fn new(epochs: Arc<Epochs>) -> Grown<T> {
        Grown(Index::new(epochs))
    }

    /// What has this number.
    pub fn get(&self, pin: &Pin<'_>, number: u64) -> Option<&T> {
        self.0.borrow_kept(pin, number)
    }

    /// What has this number, which `make` makes if nothing has.
    pub fn get_or_make(
        &self,
        pin: &Pin<'_>,
        number: u64,
        make: impl FnOnce() -> T,
    ) -> Result<&T, NoMemory> {
        if let Some(found) = self.get(pin, number) {
            return Ok(found);
        }
        let new = Ref::try_new(make()).ok_or(NoMemory)?;
        match self.0.insert(pin, number, &new, 0) {
            Err(Refused::NoMemory) => Err(NoMemory),
            // Whoever was first: nothing else is refused where nothing is reserved.
            put @ (Ok(()) | Err(Refused::Taken(_) | Refused::Reserved)) => {
                // No entry that anybody counts: it never goes.
                pin.epochs().count(-i64::from(put.is_ok()));
                Ok(self.get(pin, number).expect("nothing goes"))
            }
        }
    }

    /// The first value from the number `from` on.
    pub fn next(&self, pin: &Pin<'_>, from: u64) -> Option<(u64, &T)> {
        let number = self.0.next_number(pin, from)?;
        Some((number, self.get(pin, number).expect("nothing goes")))
    }
}
