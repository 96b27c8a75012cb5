//! Numbers of the format, and how long things may be.

use crate::error::Problem;

/// What a stream begins with; the version follows.
pub(crate) const MAGIC: &[u8; 13] = b"btrfs-stream\0";
pub(crate) const STREAM_HEADER: usize = 17;
/// Length of the attributes, number, checksum.
pub(crate) const COMMAND_HEADER: usize = 10;

/// Most bytes of content in a command of protocol 1, as the kernel has it; what else a command
/// has must fit into 64 KiB with it.
pub const MAX_DATA: usize = 48 << 10;

/// Longer paths than this less one nobody opens, the NUL behind them counted.
pub const MAX_PATH: usize = 4096;

/// Most bytes of attributes in a command that is read, whatever the protocol.
pub const MAX_COMMAND: usize = 1 << 20;

/// Which commands a stream may have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Protocol {
    /// What all receivers know.
    V1,
    /// With room, flags and compressed content (Linux 6.0, btrfs-progs 5.19).
    V2,
    /// With files that are verified (fs-verity); of kernels that were built for experiments.
    V3,
}

impl Protocol {
    pub(crate) fn of(number: u32) -> Result<Protocol, Problem> {
        match number {
            1 => Ok(Protocol::V1),
            2 => Ok(Protocol::V2),
            3 => Ok(Protocol::V3),
            other => Err(Problem::Version(other)),
        }
    }

    /// As the header has it.
    pub fn number(self) -> u32 {
        match self {
            Protocol::V1 => 1,
            Protocol::V2 => 2,
            Protocol::V3 => 3,
        }
    }

    /// Most bytes of attributes in a command that is read. The kernel writes 64 KiB, and
    /// 144 KiB in protocol 2.
    pub(crate) fn longest(self) -> usize {
        match self {
            Protocol::V1 => 64 << 10,
            Protocol::V2 | Protocol::V3 => MAX_COMMAND,
        }
    }

    /// Whether its streams have this command.
    pub(crate) fn has(self, number: Number) -> bool {
        let last = match self {
            Protocol::V1 => Number::UpdateExtent,
            Protocol::V2 => Number::EncodedWrite,
            Protocol::V3 => Number::EnableVerity,
        };
        number <= last
    }
}

/// Names the numbers of a kind, and finds them.
macro_rules! numbers {
    ($(#[$doc:meta])* $name:ident: $($variant:ident = $number:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u16)]
        pub(crate) enum $name {
            $($variant = $number,)*
        }

        impl $name {
            pub(crate) fn of(number: u16) -> Option<$name> {
                match number {
                    $($number => Some($name::$variant),)*
                    _ => None,
                }
            }

            /// As streams have it.
            #[allow(clippy::as_conversions, reason = "its own representation")]
            pub(crate) const fn number(self) -> u16 {
                self as u16
            }
        }
    };
}

numbers! {
    /// Commands; which protocol has them says [`Protocol::has`].
    Number:
    Subvol = 1,
    Snapshot = 2,
    MkFile = 3,
    MkDir = 4,
    MkNod = 5,
    MkFifo = 6,
    MkSock = 7,
    Symlink = 8,
    Rename = 9,
    Link = 10,
    Unlink = 11,
    RmDir = 12,
    SetXattr = 13,
    RemoveXattr = 14,
    Write = 15,
    Clone = 16,
    Truncate = 17,
    Chmod = 18,
    Chown = 19,
    Utimes = 20,
    End = 21,
    UpdateExtent = 22,
    Fallocate = 23,
    FileAttr = 24,
    EncodedWrite = 25,
    EnableVerity = 26,
}

numbers! {
    /// Attributes.
    Attr:
    Uuid = 1,
    Ctransid = 2,
    Ino = 3,
    Size = 4,
    Mode = 5,
    Uid = 6,
    Gid = 7,
    Rdev = 8,
    Ctime = 9,
    Mtime = 10,
    Atime = 11,
    Otime = 12,
    XattrName = 13,
    XattrData = 14,
    Path = 15,
    PathTo = 16,
    PathLink = 17,
    FileOffset = 18,
    Data = 19,
    CloneUuid = 20,
    CloneCtransid = 21,
    ClonePath = 22,
    CloneOffset = 23,
    CloneLen = 24,
    FallocateMode = 25,
    InodeFlags = 26,
    UnencodedFileLen = 27,
    UnencodedLen = 28,
    UnencodedOffset = 29,
    Compression = 30,
    Encryption = 31,
    VerityAlgorithm = 32,
    VerityBlockSize = 33,
    VeritySalt = 34,
    VeritySignature = 35,
}

impl Attr {
    /// Its place among all of them.
    #[allow(clippy::as_conversions, reason = "no index has fewer than 16 bits")]
    pub(crate) const fn slot(self) -> usize {
        self.number() as usize
    }
}

/// A length that a stream says. One that no memory has is longer than any command may be.
pub(crate) fn index(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// A length in memory as part of an offset in the stream.
pub(crate) fn wide(len: usize) -> u64 {
    u64::try_from(len).expect("no target has longer indices")
}

/// Makes the checksums of a stream's commands right, whatever the commands are, up to where it is
/// none any more. For tests.
#[doc(hidden)]
pub fn mend(stream: &mut [u8]) {
    let mut at = STREAM_HEADER;
    while let Some(header) = stream.get(at..at + COMMAND_HEADER) {
        let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let number = u16::from_le_bytes([header[4], header[5]]);
        let end = (at + COMMAND_HEADER).saturating_add(index(len));
        let Some(attributes) = stream.get(at + COMMAND_HEADER..end) else { return };
        let sum = checksum(len, number, attributes);
        stream[at + 6..at + COMMAND_HEADER].copy_from_slice(&sum.to_le_bytes());
        at = end;
    }
}

/// Over the header, with zeros where the checksum stands, and the attributes.
pub(crate) fn checksum(len: u32, number: u16, attributes: &[u8]) -> u32 {
    let mut header = [0; COMMAND_HEADER];
    header[..4].copy_from_slice(&len.to_le_bytes());
    header[4..6].copy_from_slice(&number.to_le_bytes());
    // Without the usual inversions, from zero.
    !crc32c::crc32c_append(crc32c::crc32c_append(!0, &header), attributes)
}
