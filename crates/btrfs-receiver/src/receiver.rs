//! The commands, one after the other.

use crate::encoded;
use crate::error::{Error, Failed, Result, Wrong};
use crate::inherited::{self, Inherited};
use crate::path::{RelPath, check_name};
use crate::target::{CloneFrom, Made, New, Received, Target, Times};
use btrfs_disk::items::inode_flags;
use btrfs_send::{Command, Decoder, Origin, Time};
use std::io::Read;
use vfs::{Errno, FallocateMode, FsError, Timestamp};

/// How streams are played.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Ends behind the first end; the input may go on with something else. Otherwise all streams
    /// that the input has are played.
    pub only_one: bool,
    /// Ends when so many commands have failed; 0: however many do.
    pub max_errors: u64,
    /// Compressed content is written as content, and not as it is.
    pub decompress: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { only_one: false, max_errors: 1, decompress: false }
    }
}

/// What happened on the way.
#[derive(Clone, Copy, Debug)]
// Exhaustive: a failure that a face passed over would be one that nobody hears of.
pub enum Event<'e> {
    /// A subvolume is there, empty or as a snapshot.
    Begun {
        /// In the directory where they are received.
        name: &'e [u8],
        /// It began as what another is.
        snapshot: bool,
    },
    /// A command failed, and the next one comes all the same.
    Failed(&'e Error),
}

/// Plays what `input` has, and tells what happens. All that came before an error stays, and what was
/// not complete stays incomplete: so does a subvolume of which one command failed. Returns how many
/// did. Damage of the stream itself ends it, however many errors it may have.
pub fn receive(
    input: &mut dyn Read,
    target: &mut dyn Target,
    options: Options,
    told: &mut dyn FnMut(Event<'_>),
) -> Result<u64> {
    let mut decoder = Decoder::new(input);
    let inherited = Inherited::default();
    let (open, room, decompress) = (None, Vec::new(), options.decompress);
    let mut receiver = Receiver { target, told, open, damaged: false, inherited, room, decompress };
    let (mut some, mut errors) = (false, 0);
    loop {
        let command = match decoder.next_command() {
            Err(error) => return Err(Error::Stream(error)),
            Ok(None) => return Ok(errors),
            Ok(Some(command)) => command,
        };
        some |= command != Command::End;
        let played = match command {
            Command::End if !some => Err(Failed::Wrong(Wrong::NoSubvolume)),
            command => receiver.play(&command),
        };
        let is_end = command == Command::End;
        if let Err(failed) = played {
            let what = name_of(&command);
            let error = failed.at(decoder.command_offset(), what);
            errors += 1;
            if errors == options.max_errors {
                return Err(error);
            }
            receiver.damaged = true;
            (receiver.told)(Event::Failed(&error));
        }
        if is_end && options.only_one {
            return Ok(errors);
        }
    }
}

impl Failed {
    fn at(self, offset: u64, what: String) -> Error {
        match self {
            Failed::Wrong(why) => Error::Refused { offset, what, why },
            Failed::Target(error) => Error::Target { offset, what, error },
        }
    }
}

type Step = std::result::Result<(), Failed>;

struct Receiver<'t> {
    target: &'t mut dyn Target,
    told: &'t mut dyn FnMut(Event<'_>),
    /// What is being received.
    open: Option<Origin>,
    /// A command of it failed.
    damaged: bool,
    inherited: Inherited,
    room: Vec<u8>,
    decompress: bool,
}

impl Receiver<'_> {
    fn play(&mut self, command: &Command<'_>) -> Step {
        match *command {
            Command::Subvol { path, origin } => self.begin(path, origin, None),
            Command::Snapshot { path, origin, parent } => self.begin(path, origin, Some(parent)),
            Command::End => self.complete(),
            _ if self.open.is_none() => Err(Wrong::NoSubvolume.into()),
            Command::Rename { .. }
            | Command::Link { .. }
            | Command::Unlink { .. }
            | Command::RmDir { .. } => self.change_names(command),
            Command::MkFile { path, .. } => self.make(path, &New::File),
            Command::MkDir { path, .. } => self.make(path, &New::Dir),
            Command::Symlink { path, target, .. } => self.make(path, &New::Symlink(target)),
            Command::MkSpecial { kind, path, mode, rdev, .. } => {
                let mode = u32::try_from(mode).map_err(|_| Wrong::Number("mode"))?;
                self.make(path, &New::Special { kind, mode, rdev })
            }
            Command::SetXattr { .. }
            | Command::RemoveXattr { .. }
            | Command::Chmod { .. }
            | Command::Chown { .. }
            | Command::Utimes { .. }
            | Command::FileAttr { .. } => self.change_metadata(command),
            _ => self.change_content(command),
        }
    }

    fn begin(&mut self, name: &[u8], origin: Origin, parent: Option<Origin>) -> Step {
        // What came before is complete where the next one begins.
        self.complete()?;
        check_name(name)?;
        self.inherited.forget();
        match parent {
            None => self.target.begin(name)?,
            Some(parent) => match self.target.begin_from(name, &parent)? {
                Made::Yes => {}
                Made::UnknownParent => return Err(Wrong::Unknown(parent.uuid).into()),
            },
        }
        self.open = Some(origin);
        self.damaged = false;
        (self.told)(Event::Begun { name, snapshot: parent.is_some() });
        if parent.is_none() {
            inherited::strip(RelPath::new(b"")?, self.target)?;
        }
        Ok(())
    }

    fn complete(&mut self) -> Step {
        if let Some(origin) = self.open.take()
            && !self.damaged
        {
            self.target.complete(&Received { origin })?;
        }
        Ok(())
    }

    fn make(&mut self, path: &[u8], new: &New<'_>) -> Step {
        let path = RelPath::named(path)?;
        self.target.make(path, new)?;
        if !matches!(new, New::Symlink(_)) {
            self.inherited.take_back(path, self.target)?;
        }
        Ok(())
    }

    fn change_names(&mut self, command: &Command<'_>) -> Step {
        match *command {
            Command::Rename { path, to } => {
                let (path, to) = (RelPath::named(path)?, RelPath::named(to)?);
                self.inherited.moved(path);
                self.inherited.moved(to);
                self.target.rename(path, to)?;
            }
            Command::Link { path, old } => {
                self.target.link(RelPath::named(old)?, RelPath::named(path)?)?;
            }
            Command::Unlink { path } => self.target.unlink(RelPath::named(path)?)?,
            Command::RmDir { path } => {
                let path = RelPath::named(path)?;
                self.inherited.moved(path);
                self.target.rmdir(path)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn change_content(&mut self, command: &Command<'_>) -> Step {
        match *command {
            Command::Write { path, offset, data } => {
                self.target.write(RelPath::named(path)?, offset, data)?;
            }
            Command::EncodedWrite { path, offset, ref piece } => {
                let path = RelPath::named(path)?;
                let encoded = encoded::decode(piece, &mut self.room)?;
                match self.decompress {
                    true => self.target.write(path, offset, encoded.content())?,
                    false => self.target.write_encoded(path, offset, &encoded)?,
                }
            }
            Command::Clone { path, offset, len, from, from_path, from_offset } => {
                let origin = (self.open.map(|open| open.uuid) != Some(from.uuid)).then_some(from);
                let (path, from_path) = (RelPath::named(path)?, RelPath::named(from_path)?);
                let source = CloneFrom { origin, path: from_path, offset: from_offset };
                self.target.clone(&source, path, offset, len)?;
            }
            Command::Truncate { path, size } => {
                self.target.truncate(RelPath::named(path)?, size)?;
            }
            Command::Fallocate { path, mode, offset, len } => {
                let mode = fallocate_mode(mode).ok_or(FsError::Posix(Errno::EOPNOTSUPP))?;
                self.target.allocate(RelPath::named(path)?, mode, offset, len)?;
            }
            Command::EnableVerity { path, ref verity } => {
                self.target.enable_verity(RelPath::named(path)?, verity)?;
            }
            Command::UpdateExtent { .. } => return Err(Wrong::WithoutContent.into()),
            _ => {}
        }
        Ok(())
    }

    /// How content is compressed is refused beside the flag that it is written in place, and a source has one of both. The
    /// kernel's streams say the property first, and of what is new in a directory with the flag nothing.
    fn set_xattr(&mut self, path: RelPath<'_>, name: &[u8], value: &[u8]) -> vfs::Result<()> {
        match self.target.set_xattr(path, name, value) {
            Err(FsError::Posix(Errno::EINVAL)) if name == COMPRESSION => {
                self.target.set_flags(path, NOCOW, 0)?;
                self.target.set_xattr(path, name, value)
            }
            done => done,
        }
    }

    fn change_metadata(&mut self, command: &Command<'_>) -> Step {
        match *command {
            Command::SetXattr { path, name, value } => {
                self.inherited.changed(name);
                self.set_xattr(RelPath::new(path)?, name, value)?;
            }
            Command::RemoveXattr { path, name } => {
                self.inherited.changed(name);
                self.target.remove_xattr(RelPath::new(path)?, name)?;
            }
            Command::Chmod { path, mode } => {
                self.target.chmod(RelPath::new(path)?, (mode & 0o7777) as u16)?;
            }
            Command::Chown { path, uid, gid } => {
                let number = |id: u64| u32::try_from(id).map_err(|_| Wrong::Number("owner"));
                self.target.chown(RelPath::new(path)?, number(uid)?, number(gid)?)?;
            }
            Command::Utimes { path, atime, mtime, otime, .. } => {
                let (atime, mtime) = (time(atime)?, time(mtime)?);
                let times = Times { atime, mtime, otime: otime.map(time).transpose()? };
                self.target.set_times(RelPath::new(path)?, &times)?;
            }
            Command::FileAttr { path, flags } => {
                let told = SETTABLE.iter().filter(|(bit, _)| flags & bit != 0);
                let flags = told.fold(0, |all, (_, flag)| all | flag);
                let which = SETTABLE.iter().fold(0, |all, (_, flag)| all | flag);
                self.target.set_flags(RelPath::new(path)?, which, flags)?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Flags of inodes that are set here, as the volume and as `FS_IOC_SETFLAGS` have them. How content
/// is compressed properties say; what forbids changes is left to who owns the copy, since the next
/// difference is received over it.
const SETTABLE: [(u64, u32); 5] = [
    (inode_flags::SYNC, 0x8),
    (inode_flags::NODUMP, 0x40),
    (inode_flags::NOATIME, 0x80),
    (inode_flags::DIRSYNC, 0x1_0000),
    (inode_flags::NODATACOW, NOCOW),
];

const NOCOW: u32 = 0x80_0000;
const COMPRESSION: &[u8] = b"btrfs.compression";

/// fallocate(2): 1 keeps the size, 2 punches a hole, 0x10 makes zeros.
fn fallocate_mode(mode: u32) -> Option<FallocateMode> {
    match mode {
        0 => Some(FallocateMode::Allocate),
        1 => Some(FallocateMode::KeepSize),
        3 => Some(FallocateMode::PunchHole),
        0x10 => Some(FallocateMode::ZeroRange { keep_size: false }),
        0x11 => Some(FallocateMode::ZeroRange { keep_size: true }),
        _ => None,
    }
}

fn time((secs, nanos): Time) -> std::result::Result<Timestamp, Wrong> {
    match nanos {
        0..1_000_000_000 => Ok(Timestamp { secs, nanos }),
        _ => Err(Wrong::Time((secs, nanos))),
    }
}

/// What a user is told that failed.
fn name_of(command: &Command<'_>) -> String {
    let (what, path) = match *command {
        Command::Subvol { path, .. } => ("beginning subvolume", path),
        Command::Snapshot { path, .. } => ("beginning snapshot", path),
        Command::MkFile { path, .. } => ("making file", path),
        Command::MkDir { path, .. } => ("making directory", path),
        Command::MkSpecial { path, .. } => ("making special file", path),
        Command::Symlink { path, .. } => ("making symbolic link", path),
        Command::Rename { path, .. } => ("renaming", path),
        Command::Link { path, .. } => ("linking", path),
        Command::Unlink { path } => ("removing", path),
        Command::RmDir { path } => ("removing directory", path),
        Command::SetXattr { path, .. } => ("setting an attribute of", path),
        Command::RemoveXattr { path, .. } => ("removing an attribute of", path),
        Command::Write { path, .. } | Command::EncodedWrite { path, .. } => ("writing to", path),
        Command::Clone { path, .. } => ("cloning to", path),
        Command::Truncate { path, .. } => ("setting the size of", path),
        Command::Chmod { path, .. } => ("setting the mode of", path),
        Command::Chown { path, .. } => ("setting the owner of", path),
        Command::Utimes { path, .. } => ("setting times of", path),
        Command::UpdateExtent { path, .. } => ("changing", path),
        Command::Fallocate { path, .. } => ("allocating room for", path),
        Command::FileAttr { path, .. } => ("setting flags of", path),
        Command::EnableVerity { path, .. } => ("having reads verified of", path),
        Command::End => return "completing the subvolume".into(),
    };
    format!("{what} {}", String::from_utf8_lossy(path).escape_debug())
}
