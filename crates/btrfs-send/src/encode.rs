//! Commands to bytes, in the kernel's order of attributes.

use crate::command::{Command, Origin, Special, Time};
use crate::error::{Error, Problem};
use crate::wire::{self, Attr, MAGIC, Number, Protocol};
use std::io::Write;

/// Writes a stream.
pub struct Encoder<W> {
    to: W,
    protocol: Protocol,
    offset: u64,
    buffer: Vec<u8>,
}

impl<W: Write> Encoder<W> {
    /// Writes the header. A stream may have several subvolumes, each with its `End` or only the
    /// last; a header may come again behind an `End`.
    pub fn new(to: W, protocol: Protocol) -> Result<Encoder<W>, Error> {
        let mut encoder = Encoder { to, protocol, offset: 0, buffer: Vec::new() };
        encoder.header()?;
        Ok(encoder)
    }

    /// The header once more, behind an `End`.
    pub fn header(&mut self) -> Result<(), Error> {
        self.buffer.clear();
        self.buffer.extend_from_slice(MAGIC);
        self.buffer.extend_from_slice(&self.protocol.number().to_le_bytes());
        self.flush_buffer()
    }

    /// Which commands it may have.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Bytes so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Appends a command. One that the protocol has not, or that is too long for it, is
    /// refused, and nothing is written of it.
    pub fn put(&mut self, command: &Command<'_>) -> Result<(), Error> {
        let offset = self.offset;
        self.buffer.clear();
        self.buffer.resize(wire::COMMAND_HEADER, 0);
        let mut out = Attributes { buffer: &mut self.buffer, protocol: self.protocol, wrong: None };
        let number = write(&mut out, command);
        let wrong = out.wrong;
        if let Some(problem) = wrong {
            return Err(Error { offset, problem });
        }
        if !self.protocol.has(number) {
            return Err(Error { offset, problem: Problem::UnknownCommand(number.number()) });
        }
        let attributes = self.buffer.len() - wire::COMMAND_HEADER;
        let len = u32::try_from(attributes).unwrap_or(u32::MAX);
        if attributes > self.protocol.longest() {
            return Err(Error { offset, problem: Problem::TooLong(len) });
        }
        let sum = wire::checksum(len, number.number(), &self.buffer[wire::COMMAND_HEADER..]);
        self.buffer[..4].copy_from_slice(&len.to_le_bytes());
        self.buffer[4..6].copy_from_slice(&number.number().to_le_bytes());
        self.buffer[6..10].copy_from_slice(&sum.to_le_bytes());
        self.flush_buffer()
    }

    fn flush_buffer(&mut self) -> Result<(), Error> {
        let offset = self.offset;
        self.to.write_all(&self.buffer).map_err(|e| Error { offset, problem: Problem::Io(e) })?;
        self.offset += wire::wide(self.buffer.len());
        Ok(())
    }

    /// What it writes to.
    pub fn into_inner(self) -> W {
        self.to
    }
}

struct Attributes<'b> {
    buffer: &'b mut Vec<u8>,
    protocol: Protocol,
    wrong: Option<Problem>,
}

impl Attributes<'_> {
    fn bytes(&mut self, attr: Attr, value: &[u8]) -> &mut Self {
        let Ok(len) = u16::try_from(value.len()) else {
            self.wrong = Some(Problem::AttributeLength("an attribute"));
            return self;
        };
        self.buffer.extend_from_slice(&attr.number().to_le_bytes());
        self.buffer.extend_from_slice(&len.to_le_bytes());
        self.buffer.extend_from_slice(value);
        self
    }

    fn number(&mut self, attr: Attr, value: u64) -> &mut Self {
        self.bytes(attr, &value.to_le_bytes())
    }

    fn short(&mut self, attr: Attr, value: u32) -> &mut Self {
        self.bytes(attr, &value.to_le_bytes())
    }

    fn time(&mut self, attr: Attr, (secs, nanos): Time) -> &mut Self {
        let mut value = [0; 12];
        value[..8].copy_from_slice(&secs.to_le_bytes());
        value[8..].copy_from_slice(&nanos.to_le_bytes());
        self.bytes(attr, &value)
    }

    fn origin(&mut self, uuid: Attr, ctransid: Attr, origin: &Origin) -> &mut Self {
        self.bytes(uuid, &origin.uuid).number(ctransid, origin.ctransid)
    }

    fn path(&mut self, path: &[u8]) -> &mut Self {
        self.path_as(Attr::Path, path)
    }

    /// What no receiver would take is not sent either.
    fn path_as(&mut self, attr: Attr, path: &[u8]) -> &mut Self {
        if path.len() >= wire::MAX_PATH {
            self.wrong = Some(Problem::LongPath(path.to_vec()));
            return self;
        }
        if path.contains(&0) {
            self.wrong = Some(Problem::Senseless("a path with a NUL in it"));
        }
        self.bytes(attr, path)
    }

    /// The last one; in protocol 2 it goes to the end of the command, without a length.
    fn data(&mut self, data: &[u8]) {
        if self.protocol == Protocol::V1 {
            self.bytes(Attr::Data, data);
            return;
        }
        self.buffer.extend_from_slice(&Attr::Data.number().to_le_bytes());
        self.buffer.extend_from_slice(data);
    }
}

fn write(out: &mut Attributes<'_>, command: &Command<'_>) -> Number {
    match *command {
        Command::Subvol { path, origin } => {
            out.path(path).origin(Attr::Uuid, Attr::Ctransid, &origin);
            Number::Subvol
        }
        Command::Snapshot { path, origin, parent } => {
            out.path(path).origin(Attr::Uuid, Attr::Ctransid, &origin);
            out.origin(Attr::CloneUuid, Attr::CloneCtransid, &parent);
            Number::Snapshot
        }
        Command::End => Number::End,
        Command::MkFile { .. }
        | Command::MkDir { .. }
        | Command::MkSpecial { .. }
        | Command::Symlink { .. }
        | Command::Rename { .. }
        | Command::Link { .. }
        | Command::Unlink { .. }
        | Command::RmDir { .. } => write_name(out, command),
        Command::Write { .. }
        | Command::Clone { .. }
        | Command::Truncate { .. }
        | Command::UpdateExtent { .. }
        | Command::Fallocate { .. }
        | Command::EncodedWrite { .. } => write_content(out, command),
        _ => write_metadata(out, command),
    }
}

fn write_name(out: &mut Attributes<'_>, command: &Command<'_>) -> Number {
    match *command {
        Command::MkFile { path, ino } => {
            out.path(path).number(Attr::Ino, ino);
            Number::MkFile
        }
        Command::MkDir { path, ino } => {
            out.path(path).number(Attr::Ino, ino);
            Number::MkDir
        }
        Command::MkSpecial { kind, path, ino, mode, rdev } => {
            out.path(path).number(Attr::Ino, ino).number(Attr::Rdev, rdev).number(Attr::Mode, mode);
            special(kind)
        }
        Command::Symlink { path, ino, target } => {
            out.path(path).number(Attr::Ino, ino).path_as(Attr::PathLink, target);
            Number::Symlink
        }
        Command::Rename { path, to } => {
            out.path(path).path_as(Attr::PathTo, to);
            Number::Rename
        }
        Command::Link { path, old } => {
            out.path(path).path_as(Attr::PathLink, old);
            Number::Link
        }
        Command::Unlink { path } => {
            out.path(path);
            Number::Unlink
        }
        Command::RmDir { path } => {
            out.path(path);
            Number::RmDir
        }
        _ => unreachable!("not about names"),
    }
}

fn special(kind: Special) -> Number {
    match kind {
        Special::Node => Number::MkNod,
        Special::Fifo => Number::MkFifo,
        Special::Socket => Number::MkSock,
    }
}

fn write_content(out: &mut Attributes<'_>, command: &Command<'_>) -> Number {
    match *command {
        Command::Write { path, offset, data } => {
            out.path(path).number(Attr::FileOffset, offset).data(data);
            Number::Write
        }
        Command::Clone { path, offset, len, from, from_path, from_offset } => {
            out.number(Attr::FileOffset, offset).number(Attr::CloneLen, len).path(path);
            out.origin(Attr::CloneUuid, Attr::CloneCtransid, &from);
            out.path_as(Attr::ClonePath, from_path).number(Attr::CloneOffset, from_offset);
            Number::Clone
        }
        Command::Truncate { path, size } => {
            out.path(path).number(Attr::Size, size);
            Number::Truncate
        }
        Command::UpdateExtent { path, offset, len } => {
            out.path(path).number(Attr::FileOffset, offset).number(Attr::Size, len);
            Number::UpdateExtent
        }
        Command::Fallocate { path, mode, offset, len } => {
            out.path(path).short(Attr::FallocateMode, mode);
            out.number(Attr::FileOffset, offset).number(Attr::Size, len);
            Number::Fallocate
        }
        Command::EncodedWrite { path, offset, piece } => {
            out.path(path).number(Attr::FileOffset, offset);
            out.number(Attr::UnencodedFileLen, piece.file_len);
            out.number(Attr::UnencodedLen, piece.unencoded_len);
            out.number(Attr::UnencodedOffset, piece.unencoded_offset);
            out.short(Attr::Compression, piece.compression);
            if piece.says_plain {
                out.short(Attr::Encryption, 0);
            }
            out.data(piece.data);
            Number::EncodedWrite
        }
        _ => unreachable!("not about content"),
    }
}

fn write_metadata(out: &mut Attributes<'_>, command: &Command<'_>) -> Number {
    match *command {
        Command::SetXattr { path, name, value } => {
            out.path(path).path_as(Attr::XattrName, name).bytes(Attr::XattrData, value);
            Number::SetXattr
        }
        Command::RemoveXattr { path, name } => {
            out.path(path).path_as(Attr::XattrName, name);
            Number::RemoveXattr
        }
        Command::Chmod { path, mode } => {
            out.path(path).number(Attr::Mode, mode);
            Number::Chmod
        }
        Command::Chown { path, uid, gid } => {
            out.path(path).number(Attr::Uid, uid).number(Attr::Gid, gid);
            Number::Chown
        }
        Command::Utimes { path, atime, mtime, ctime, otime } => {
            out.path(path).time(Attr::Atime, atime).time(Attr::Mtime, mtime);
            out.time(Attr::Ctime, ctime);
            if let Some(otime) = otime {
                out.time(Attr::Otime, otime);
            }
            Number::Utimes
        }
        Command::FileAttr { path, flags } => {
            out.path(path).number(Attr::InodeFlags, flags);
            Number::FileAttr
        }
        Command::EnableVerity { path, verity } => {
            out.path(path).bytes(Attr::VerityAlgorithm, &[verity.algorithm]);
            out.short(Attr::VerityBlockSize, verity.block_size);
            out.bytes(Attr::VeritySalt, verity.salt);
            out.bytes(Attr::VeritySignature, verity.signature);
            Number::EnableVerity
        }
        _ => unreachable!("not about metadata"),
    }
}
