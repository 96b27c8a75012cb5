//! A range of items as an iterator.

use crate::cursor::Cursor;
use crate::reader::{Item, NodeReader, TreeRoot};
use btrfs_disk::{Key, Result};
use std::ops::RangeInclusive;

/// The items of a range of keys, ascending. After an error it ends.
pub struct Scan<'r, R: ?Sized> {
    cursor: Cursor<'r, R>,
    range: RangeInclusive<Key>,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    Start,
    Running,
    Done,
}

/// The items of `root` with keys in `range`.
pub fn scan<'r, R: NodeReader + ?Sized>(
    reader: &'r R,
    root: &TreeRoot,
    range: RangeInclusive<Key>,
) -> Scan<'r, R> {
    let cursor = Cursor::new(reader, root).below(range.end().successor());
    Scan { cursor, range, state: State::Start }
}

impl<R: NodeReader + ?Sized> Iterator for Scan<'_, R> {
    type Item = Result<Item>;

    fn next(&mut self) -> Option<Result<Item>> {
        let moved = match self.state {
            State::Done => return None,
            State::Start => self.cursor.seek(self.range.start()),
            State::Running => self.cursor.next(),
        };
        self.state = State::Running;
        if let Err(error) = moved {
            self.state = State::Done;
            return Some(Err(error));
        }
        let item = self.cursor.current().filter(|item| item.key() <= *self.range.end());
        if item.is_none() {
            self.state = State::Done;
        }
        item.map(Ok)
    }
}
