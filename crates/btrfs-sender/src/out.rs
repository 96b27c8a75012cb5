//! What is asked of a stream, and where its commands go.

use crate::error::{Error, Result};
use crate::source::Subvolume;
use btrfs_send::{Command, Encoder, Protocol};
use std::io::Write;

/// What a stream may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Which commands.
    pub protocol: Protocol,
    /// Compressed content as it is stored; protocol 2.
    pub compressed: bool,
    /// Which ranges differ, and not what is in them.
    pub without_content: bool,
    /// One header and one end for all subvolumes; each has its own otherwise.
    pub one_end: bool,
}

/// One subvolume, and what it is sent as a difference from.
pub(crate) struct Request<'a> {
    pub(crate) subvolume: &'a Subvolume,
    pub(crate) parent: Option<&'a Subvolume>,
    pub(crate) clones: &'a [Subvolume],
}

/// Where commands go.
pub(crate) struct Out<'w>(Encoder<&'w mut dyn Write>);

impl<'w> Out<'w> {
    /// Writes the header.
    pub(crate) fn new(to: &'w mut dyn Write, protocol: Protocol) -> Result<Out<'w>> {
        Ok(Out(Encoder::new(to, protocol)?))
    }

    /// In front of a subvolume that is not the first, where each has its own.
    pub(crate) fn header(&mut self) -> Result<()> {
        Ok(self.0.header()?)
    }

    /// What no receiver can make a volume may have all the same: who sends it is to hear where.
    pub(crate) fn put(&mut self, command: &Command<'_>) -> Result<()> {
        let unsayable = |path: &[u8], what| Err(Error::Unsayable(path.to_vec(), what));
        match *command {
            Command::SetXattr { path, name, .. } if name.contains(&0) => {
                return unsayable(
                    path,
                    "an attribute with a NUL in its name, which no stream can say",
                );
            }
            Command::Symlink { path, target, .. } if target.contains(&0) => {
                return unsayable(
                    path,
                    "a link to a path with a NUL in it, which no stream can say",
                );
            }
            // Nor has a receiver what it could not make.
            Command::RemoveXattr { name, .. } if name.contains(&0) => return Ok(()),
            _ => {}
        }
        Ok(self.0.put(command)?)
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.0.protocol()
    }
}
