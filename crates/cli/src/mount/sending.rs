//! Subvolumes that the server holds while a stream is made of them, since another process makes it: as the
//! kernel's, they are neither deleted nor made writable meanwhile.
//!
//! Who sends asks the subvolume's door (`SEND`), which knows who asks, and gets a word. He brings it to the control
//! socket, which does not: `send` and the word, answered by `held`. He holds it until he says `sent`, or is gone.

use super::receive::{hex, word_of};
use btrfs_fs::{BtrfsFs, Sending};
use std::sync::Weak;

/// What a line begins with that asks for it.
const SEND: &str = "send ";
/// The answer.
pub const HELD: &str = "held";
/// Nothing is held any more; answered by the same.
pub const SENT: &str = "sent";

/// The line that brings a word.
pub fn line(word: &[u8]) -> String {
    format!("{SEND}{}", hex(word))
}

/// What one caller has the server hold.
pub struct Holds<'f> {
    fs: &'f Weak<BtrfsFs>,
    all: Vec<Sending>,
}

impl<'f> Holds<'f> {
    pub fn new(fs: &'f Weak<BtrfsFs>) -> Holds<'f> {
        Holds { fs, all: Vec::new() }
    }

    /// The answer, if the line is about that.
    pub fn hear(&mut self, line: &str) -> Option<&'static str> {
        if line == SENT {
            self.all.clear();
            return Some(SENT);
        }
        let word = line.strip_prefix(SEND)?;
        let held = self.fs.upgrade().and_then(|fs| hold(&fs, &word_of(word)?));
        let answer = if held.is_some() { HELD } else { "ask the subvolume first" };
        self.all.extend(held);
        Some(answer)
    }
}

fn hold(fs: &BtrfsFs, word: &[u8]) -> Option<Sending> {
    let (id, _) = fs.subvolume_of(fs.take_ticket(word)?).ok()?;
    fs.hold_for_send(id).ok()
}
