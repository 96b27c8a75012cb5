//! The stream format of `btrfs send`: commands to bytes and back.
//!
//! A stream is a header and commands; a command is a header with length, number and checksum, and
//! attributes. Protocol 2 has more commands, and content longer than a length of 16 bits can say; protocol
//! 3 files that are verified.
//! What comes in is a stranger's: lengths are bounded before anything is read, and every error
//! says at which offset of the stream it lies.
//!
//! It knows no volume: what a path leads to, and whether a receiver may go there, is not its
//! business.
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(unreachable_pub))]
// Where bytes become numbers a cut one is a wrong answer.
#![cfg_attr(not(test), deny(clippy::as_conversions))]
#![forbid(unsafe_code)]

mod alone;
mod command;
mod decode;
mod dump;
mod encode;
mod error;
mod wire;

pub use alone::Alone;
pub use command::{Command, CompressedPiece, Origin, Special, Time, Verity};
pub use decode::Decoder;
pub use dump::Dump;
pub use encode::Encoder;
pub use error::{Error, Problem};
pub use wire::{MAX_COMMAND, MAX_DATA, MAX_PATH, Protocol, mend};

/// What may go wrong with a stream.
pub type Result<T> = std::result::Result<T, Error>;
