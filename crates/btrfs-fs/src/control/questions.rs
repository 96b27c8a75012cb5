//! Questions about the volume that change nothing of it.
//!
//! Decodes, calls, encodes. Who may ask is what the kernel has for the same question.

use super::wire::{self, Record};
use crate::fs::BtrfsFs;
use vfs::{Controlled, Errno, Result};

/// ENOTTY: it is none of them.
pub(super) fn answer(fs: &BtrfsFs, command: u32) -> Result<Controlled> {
    match command {
        wire::USAGE => usage(fs),
        _ => Err(Errno::ENOTTY.into()),
    }
}

fn usage(fs: &BtrfsFs) -> Result<Controlled> {
    let mut answer = Vec::new();
    fs.usage()?.write(&mut answer);
    match answer.len() <= wire::len(wire::USAGE) {
        true => Ok(Controlled::answer(answer)),
        false => Err(Errno::EOVERFLOW.into()),
    }
}
