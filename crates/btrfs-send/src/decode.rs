//! Bytes to commands.
//!
//! Invariants: nothing is believed before its checksum was found right; no more is held than one
//! command of the longest kind; after an error nothing more is read.

use crate::command::{Command, CompressedPiece, Origin, Special, Time, Verity};
use crate::error::{Error, Problem};
use crate::wire::{self, Attr, MAGIC, Number, Protocol};
use std::io::{ErrorKind, Read};

/// Reads a stream, or several one behind the other.
pub struct Decoder<R> {
    from: R,
    protocol: Option<Protocol>,
    offset: u64,
    /// Of the command that was given out last.
    at: u64,
    buffer: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// A header must come.
    Header,
    /// A header may come, or the end.
    Between,
    /// A command must come.
    Inside,
    Failed,
}

impl<R: Read> Decoder<R> {
    /// Reads nothing yet.
    pub fn new(from: R) -> Decoder<R> {
        let (buffer, state) = (Vec::new(), State::Header);
        Decoder { from, protocol: None, offset: 0, at: 0, buffer, state }
    }

    /// The next command; `None`: the input ended behind an `End`.
    pub fn next_command(&mut self) -> Result<Option<Command<'_>>, Error> {
        self.at = self.offset;
        let (state, at) = (std::mem::replace(&mut self.state, State::Failed), self.at);
        let found = match state {
            State::Failed => return Ok(None),
            State::Header => self.header(false).map_err(Error::at(at))?,
            State::Between => self.header(true).map_err(Error::at(at))?,
            State::Inside => self.protocol,
        };
        let Some(protocol) = found else { return Ok(None) };
        let at = self.offset;
        self.at = at;
        let number = self.command(protocol).map_err(Error::at(at))?;
        let attributes = Attributes::parse(&self.buffer, protocol).map_err(Error::at(at))?;
        let command = read(number, &attributes).map_err(Error::at(at))?;
        self.state = if number == Number::End { State::Between } else { State::Inside };
        Ok(Some(command))
    }

    /// Where the command begins that was given out last, or that an error is about.
    pub fn command_offset(&self) -> u64 {
        self.at
    }

    /// Which commands the stream may have; before the first of them 1.
    pub fn protocol(&self) -> Protocol {
        self.protocol.unwrap_or(Protocol::V1)
    }

    fn header(&mut self, may_end: bool) -> Result<Option<Protocol>, Problem> {
        let mut header = [0; wire::STREAM_HEADER];
        let got = read_up_to(&mut self.from, &mut header)?;
        if got == 0 && may_end {
            return Ok(None);
        }
        let magic = got.min(MAGIC.len());
        if got == 0 || header[..magic] != MAGIC[..magic] {
            return Err(if got == 0 { Problem::Truncated } else { Problem::NotAStream });
        }
        if got < header.len() {
            return Err(Problem::Truncated);
        }
        self.offset += wire::wide(header.len());
        let version = u32::from_le_bytes([header[13], header[14], header[15], header[16]]);
        self.protocol = Some(Protocol::of(version)?);
        Ok(self.protocol)
    }

    /// Fills the buffer with the attributes of the next command.
    fn command(&mut self, protocol: Protocol) -> Result<Number, Problem> {
        let mut header = [0; wire::COMMAND_HEADER];
        self.from.read_exact(&mut header)?;
        let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let number = u16::from_le_bytes([header[4], header[5]]);
        let said = u32::from_le_bytes([header[6], header[7], header[8], header[9]]);
        let bytes = wire::index(len);
        if bytes > protocol.longest() {
            return Err(Problem::TooLong(len));
        }
        self.buffer.resize(bytes, 0);
        self.from.read_exact(&mut self.buffer)?;
        let found = wire::checksum(len, number, &self.buffer);
        if found != said {
            return Err(Problem::Checksum(found, said));
        }
        self.offset += wire::wide(wire::COMMAND_HEADER + bytes);
        let known = Number::of(number).filter(|number| protocol.has(*number));
        known.ok_or(Problem::UnknownCommand(number))
    }
}

/// Fewer bytes only where the input ends.
fn read_up_to(from: &mut impl Read, buffer: &mut [u8]) -> Result<usize, Problem> {
    let mut got = 0;
    while got < buffer.len() {
        match from.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Problem::Io(error)),
        }
    }
    Ok(got)
}

const KINDS: usize = Attr::VeritySignature.slot() + 1;

struct Attributes<'a> {
    found: [Option<&'a [u8]>; KINDS],
}

impl<'a> Attributes<'a> {
    fn parse(mut rest: &'a [u8], protocol: Protocol) -> Result<Attributes<'a>, Problem> {
        let mut found = [None; KINDS];
        while !rest.is_empty() {
            let cut = Problem::AttributeLength("an attribute");
            let (number, behind) = rest.split_first_chunk::<2>().ok_or(cut)?;
            let number = u16::from_le_bytes(*number);
            let attr = Attr::of(number).ok_or(Problem::UnknownAttribute(number))?;
            let value = if attr == Attr::Data && protocol >= Protocol::V2 {
                rest = &[];
                behind
            } else {
                let cut = || Problem::AttributeLength("an attribute");
                let (len, behind) = behind.split_first_chunk::<2>().ok_or_else(cut)?;
                let len = usize::from(u16::from_le_bytes(*len));
                let (value, behind) = behind.split_at_checked(len).ok_or_else(cut)?;
                rest = behind;
                value
            };
            if found[attr.slot()].replace(value).is_some() {
                return Err(Problem::Twice("an attribute"));
            }
        }
        Ok(Attributes { found })
    }

    fn bytes(&self, attr: Attr, what: &'static str) -> Result<&'a [u8], Problem> {
        self.found[attr.slot()].ok_or(Problem::Missing(what))
    }

    fn fixed<const N: usize>(&self, attr: Attr, what: &'static str) -> Result<[u8; N], Problem> {
        self.bytes(attr, what)?.try_into().map_err(|_| Problem::AttributeLength(what))
    }

    fn number(&self, attr: Attr, what: &'static str) -> Result<u64, Problem> {
        self.fixed(attr, what).map(u64::from_le_bytes)
    }

    fn short(&self, attr: Attr, what: &'static str) -> Result<u32, Problem> {
        self.fixed(attr, what).map(u32::from_le_bytes)
    }

    fn time(&self, attr: Attr, what: &'static str) -> Result<Time, Problem> {
        let bytes: [u8; 12] = self.fixed(attr, what)?;
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        let time = (i64::from_le_bytes([a, b, c, d, e, f, g, h]), u32::from_le_bytes([i, j, k, l]));
        match time.1 {
            0..1_000_000_000 => Ok(time),
            _ => Err(Problem::Senseless("a time has more than a second of nanoseconds")),
        }
    }

    fn path_of(&self, attr: Attr, what: &'static str) -> Result<&'a [u8], Problem> {
        path(self.bytes(attr, what)?, what)
    }

    /// What a symbolic link leads to. The kernel sends the NUL that `btrfs-convert` stored behind it.
    fn target(&self) -> Result<&'a [u8], Problem> {
        let what = "a link's target";
        let target = self.bytes(Attr::PathLink, what)?;
        path(target.strip_suffix(&[0]).unwrap_or(target), what)
    }

    fn path(&self) -> Result<&'a [u8], Problem> {
        self.path_of(Attr::Path, "a path")
    }

    fn offset(&self) -> Result<u64, Problem> {
        self.number(Attr::FileOffset, "an offset")
    }

    fn ino(&self) -> u64 {
        self.number(Attr::Ino, "").unwrap_or(0)
    }

    fn origin(&self, uuid: Attr, ctransid: Attr) -> Result<Origin, Problem> {
        Ok(Origin {
            uuid: self.fixed(uuid, "a UUID")?,
            ctransid: self.number(ctransid, "a generation")?,
        })
    }
}

fn path<'a>(path: &'a [u8], what: &'static str) -> Result<&'a [u8], Problem> {
    match path.len() {
        0..wire::MAX_PATH if !path.contains(&0) => Ok(path),
        0..wire::MAX_PATH => Err(Problem::Senseless("a path with a NUL in it")),
        _ => Err(Problem::AttributeLength(what)),
    }
}

fn read<'a>(number: Number, from: &Attributes<'a>) -> Result<Command<'a>, Problem> {
    use Number as N;
    match number {
        N::Subvol => {
            let origin = from.origin(Attr::Uuid, Attr::Ctransid)?;
            Ok(Command::Subvol { path: from.path()?, origin })
        }
        N::Snapshot => {
            let origin = from.origin(Attr::Uuid, Attr::Ctransid)?;
            let parent = from.origin(Attr::CloneUuid, Attr::CloneCtransid)?;
            Ok(Command::Snapshot { path: from.path()?, origin, parent })
        }
        N::End => Ok(Command::End),
        N::MkFile
        | N::MkDir
        | N::MkNod
        | N::MkFifo
        | N::MkSock
        | N::Symlink
        | N::Rename
        | N::Link
        | N::Unlink
        | N::RmDir => read_name(number, from),
        N::Write | N::Clone | N::Truncate | N::UpdateExtent | N::Fallocate | N::EncodedWrite => {
            read_content(number, from)
        }
        N::SetXattr | N::RemoveXattr | N::Chmod | N::Chown | N::Utimes | N::FileAttr => {
            read_metadata(number, from)
        }
        N::EnableVerity => Ok(Command::EnableVerity { path: from.path()?, verity: verity(from)? }),
    }
}

fn read_name<'a>(number: Number, from: &Attributes<'a>) -> Result<Command<'a>, Problem> {
    let (path, ino) = (from.path()?, from.ino());
    let special = |kind| -> Result<Command<'a>, Problem> {
        let rdev = from.number(Attr::Rdev, "a device number")?;
        Ok(Command::MkSpecial { kind, path, ino, mode: from.number(Attr::Mode, "a mode")?, rdev })
    };
    Ok(match number {
        Number::MkFile => Command::MkFile { path, ino },
        Number::MkDir => Command::MkDir { path, ino },
        Number::MkNod => special(Special::Node)?,
        Number::MkFifo => special(Special::Fifo)?,
        Number::MkSock => special(Special::Socket)?,
        Number::Symlink => {
            let target = from.target()?;
            Command::Symlink { path, ino, target }
        }
        Number::Rename => Command::Rename { path, to: from.path_of(Attr::PathTo, "a new path")? },
        Number::Link => Command::Link { path, old: from.path_of(Attr::PathLink, "an old path")? },
        Number::Unlink => Command::Unlink { path },
        _ => Command::RmDir { path },
    })
}

fn read_content<'a>(number: Number, from: &Attributes<'a>) -> Result<Command<'a>, Problem> {
    let path = from.path()?;
    let size = || from.number(Attr::Size, "a size");
    Ok(match number {
        Number::Write => Command::Write {
            path,
            offset: from.offset()?,
            data: from.bytes(Attr::Data, "content")?,
        },
        Number::Clone => Command::Clone {
            path,
            offset: from.offset()?,
            len: from.number(Attr::CloneLen, "a length")?,
            from: from.origin(Attr::CloneUuid, Attr::CloneCtransid)?,
            from_path: from.path_of(Attr::ClonePath, "a path to clone from")?,
            from_offset: from.number(Attr::CloneOffset, "an offset to clone from")?,
        },
        Number::Truncate => Command::Truncate { path, size: size()? },
        Number::UpdateExtent => {
            Command::UpdateExtent { path, offset: from.offset()?, len: size()? }
        }
        Number::Fallocate => {
            let mode = from.short(Attr::FallocateMode, "a mode")?;
            Command::Fallocate { path, mode, offset: from.offset()?, len: size()? }
        }
        _ => Command::EncodedWrite { path, offset: from.offset()?, piece: piece(from)? },
    })
}

fn piece<'a>(from: &Attributes<'a>) -> Result<CompressedPiece<'a>, Problem> {
    let encryption = from.found[Attr::Encryption.slot()];
    if encryption.is_some_and(|kind| kind.iter().any(|byte| *byte != 0)) {
        return Err(Problem::Senseless("content is encrypted"));
    }
    Ok(CompressedPiece {
        file_len: from.number(Attr::UnencodedFileLen, "a length in the file")?,
        unencoded_len: from.number(Attr::UnencodedLen, "a length without compression")?,
        unencoded_offset: from.number(Attr::UnencodedOffset, "an offset in what is compressed")?,
        compression: from.short(Attr::Compression, "a kind of compression")?,
        says_plain: encryption.is_some(),
        data: from.bytes(Attr::Data, "content")?,
    })
}

fn verity<'a>(from: &Attributes<'a>) -> Result<Verity<'a>, Problem> {
    let [algorithm] = from.fixed(Attr::VerityAlgorithm, "a hash algorithm")?;
    Ok(Verity {
        algorithm,
        block_size: from.short(Attr::VerityBlockSize, "a block size")?,
        salt: from.bytes(Attr::VeritySalt, "a salt")?,
        signature: from.bytes(Attr::VeritySignature, "a signature")?,
    })
}

fn read_metadata<'a>(number: Number, from: &Attributes<'a>) -> Result<Command<'a>, Problem> {
    let path = from.path()?;
    let name = || from.path_of(Attr::XattrName, "a name of an attribute");
    Ok(match number {
        Number::SetXattr => {
            let value = from.bytes(Attr::XattrData, "the value of an attribute")?;
            Command::SetXattr { path, name: name()?, value }
        }
        Number::RemoveXattr => Command::RemoveXattr { path, name: name()? },
        Number::Chmod => Command::Chmod { path, mode: from.number(Attr::Mode, "a mode")? },
        Number::Chown => {
            let uid = from.number(Attr::Uid, "an owner")?;
            Command::Chown { path, uid, gid: from.number(Attr::Gid, "a group")? }
        }
        Number::Utimes => Command::Utimes {
            path,
            atime: from.time(Attr::Atime, "an access time")?,
            mtime: from.time(Attr::Mtime, "a modification time")?,
            ctime: from.time(Attr::Ctime, "a change time")?,
            otime: match from.found[Attr::Otime.slot()] {
                Some(_) => Some(from.time(Attr::Otime, "a creation time")?),
                None => None,
            },
        },
        _ => Command::FileAttr { path, flags: from.number(Attr::InodeFlags, "flags")? },
    })
}
