//! What a file system does for programs that no other call says: control operations, by number.
//!
//! The one who serves programs (a mount) passes on what it does not know itself: which file it
//! was asked of, by whom, and the bytes that came along. It knows none of the operations; the
//! one who does them decides who may.

use crate::{Ino, Result};
use std::time::Duration;

/// The user and group of who is nobody on the volume: no file is his. What he makes belongs to whom
/// the directory belongs to.
pub const NOBODY: u32 = u32::MAX;

/// Which of the rules about files do not hold for who asks, as by the kernel's capabilities.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Exempt {
    /// All permission bits: `CAP_DAC_OVERRIDE`.
    pub bits: bool,
    /// Those that are for reading and searching: `CAP_DAC_READ_SEARCH`.
    pub reading: bool,
    /// What only owners may: `CAP_FOWNER`.
    pub owners: bool,
}

impl Exempt {
    /// As root is.
    pub const ALL: Exempt = Exempt { bits: true, reading: true, owners: true };
}

/// Who asks, at the time of the question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Who {
    /// As files of the volume have it, or `NOBODY`.
    pub uid: u32,
    /// See `uid`.
    pub gid: u32,
    /// Nobody can tell which of the volume's numbers are his, if any are: he is to get no more than all have, and
    /// what he makes could be nobody's.
    pub unknown: bool,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Which rules do not hold for him.
    pub exempt: Exempt,
    /// Permission bits that what he makes does not get.
    pub umask: u16,
    /// Administers the machine, or has mounted this himself.
    pub admin: bool,
}

/// Tells who asks. To find out takes a while, so it is asked where that decides.
pub trait Asker {
    /// Who asks.
    fn who(&self) -> Result<Who>;

    /// Asks `done` again and again until it says so. EINTR: who asks is called away. EBUSY, before it was
    /// asked at all: so many wait that too few would be left to serve others.
    fn wait(&self, done: &mut dyn FnMut() -> Result<bool>) -> Result<()> {
        while !done()? {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// What was written to the file before, and is held by who serves programs (a mount: by the kernel), comes to the
    /// file system before this returns. EINTR: who asks is called away. ETXTBSY: it has not come for long. Where nobody can
    /// be spared to wait, it is not waited for.
    fn fetch(&self, _ino: Ino) -> Result<()> {
        Ok(())
    }

    /// Asked between the steps of what is done for who asks and may take hours; a step takes some milliseconds. EINTR: he
    /// is called away. EBUSY, not before many steps: so many wait or work for so long that too few would be left
    /// to serve others.
    fn goes_on(&self) -> Result<()> {
        Ok(())
    }
}

/// What came of a control operation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Controlled {
    /// For who asked; what does not fit into what he has room for is cut off.
    pub answer: Vec<u8>,
    /// What the call returns beside that: 0, or an errno, negative.
    pub result: i32,
    /// Names that stand for something else now, or for nothing: whoever remembers them forgets
    /// them before the asker hears the answer.
    pub names: Vec<(Ino, Vec<u8>)>,
}

impl Controlled {
    /// Nothing but an answer.
    pub fn answer(answer: Vec<u8>) -> Controlled {
        Controlled { answer, ..Controlled::default() }
    }

    /// Done, and `name` in `directory` is not what it was.
    pub fn name(directory: Ino, name: &[u8]) -> Controlled {
        Controlled { names: vec![(directory, name.to_vec())], ..Controlled::default() }
    }
}

/// A file system that has control operations.
pub trait Control: Send + Sync {
    /// Does `command` on `ino` with the bytes that came along. ENOTTY: it has no such operation.
    fn control(
        &self,
        asker: &dyn Asker,
        ino: Ino,
        command: u32,
        input: &[u8],
    ) -> Result<Controlled>;
}
