//! What goes wrong, as the person at the terminal needs it: which file, what happened,
//! what to do about it. And how the program ends.

use crate::partitions;
use spinney::Cause;
use std::fmt::{self, Display};
use std::io::{self, Write as _};
use std::path::Path;
use vfs::{DamageKind, Errno, FsError};

pub type Result<T> = std::result::Result<T, Error>;

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    Done,
    /// Something failed and was told, or a check found damage.
    Failed,
    /// The command line makes no sense.
    Usage,
    /// As the caller's own conventions want it.
    Code(u8),
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Code(code) => code,
        }
    }

    pub fn failed_if(failed: bool) -> Exit {
        if failed { Exit::Failed } else { Exit::Done }
    }
}

impl Exit {
    /// As a shell tells of who was ended by SIGPIPE: not all of it was taken.
    pub const CUT: Exit = Exit::Code(141);
}

impl From<&Error> for Exit {
    fn from(error: &Error) -> Exit {
        match error {
            Error { cut: true, .. } => Exit::CUT,
            Error { usage: true, .. } => Exit::Usage,
            _ => Exit::Failed,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Error {
    /// The image, device or path that it is about.
    file: Option<String>,
    what: String,
    remedy: Option<String>,
    usage: bool,
    /// Nobody reads what it writes any more: no more is to be done, and nothing to be told.
    cut: bool,
    /// What the program was called, if that was not `spinney`.
    called: Option<String>,
}

impl Error {
    /// The command line is wrong.
    pub fn usage(what: impl Display) -> Error {
        Error { usage: true, ..Error::new(what) }
    }

    pub fn new(what: impl Display) -> Error {
        let (file, remedy, called, what) = (None, None, None, what.to_string());
        Error { file, what, remedy, usage: false, cut: false, called }
    }

    /// Standard output has no reader any more.
    pub fn cut() -> Error {
        Error { cut: true, ..Error::about("standard output", "nobody reads it any more") }
    }

    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Something about a file of this machine, or a path in an image.
    pub fn about(file: impl Display, what: impl Display) -> Error {
        Error { file: Some(file.to_string()), ..Error::new(what) }
    }

    pub fn io(file: &Path, error: &io::Error) -> Error {
        Error::about(file.display(), io_text(error))
    }

    /// An error of the engine. `image` names the volume for the remedy; `subject` what
    /// the operation was about.
    pub fn fs(subject: impl Display, image: &Path, error: &FsError) -> Error {
        let remedy = fs_remedy(image, error);
        Error { remedy, ..Error::about(subject, error) }
    }

    pub fn remedy(mut self, remedy: impl Display) -> Error {
        self.remedy = Some(remedy.to_string());
        self
    }

    /// A wrong command line of `called` in the words of who was called so.
    pub fn called(self, called: &str) -> Error {
        Error { called: Some(called.to_owned()).filter(|_| self.usage), ..self }
    }

    /// In one line, without the program's name: for a log.
    pub fn text(&self) -> String {
        let file = self.file.as_ref().map(|file| format!("{file}: ")).unwrap_or_default();
        format!("{file}{}", self.what)
    }

    /// On standard error, if there is something to be told.
    pub fn print(&self) {
        if !self.cut {
            say_error(&self.to_string());
        }
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.called.as_deref().unwrap_or("spinney"))?;
        if let Some(file) = &self.file {
            write!(f, "{file}: ")?;
        }
        write!(f, "{}", self.what)?;
        if let Some(remedy) = &self.remedy {
            write!(f, "\n  {remedy}")?;
        }
        match &self.called {
            Some(called) => write!(f, "\n  see `{called} --help`"),
            None if self.usage => write!(f, "\n  see `spinney --help` and `spinney help COMMAND`"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl From<spinney::Error> for Error {
    fn from(error: spinney::Error) -> Error {
        let (subject, volume) = (error.subject(), error.volume().unwrap_or(Path::new("")));
        match error.cause() {
            Cause::Volume(said) => Error::fs(subject, volume, said),
            Cause::Host { action: None, source, .. } => Error::about(subject, io_text(source)),
            Cause::Host { action: Some(action), source, .. } => {
                let told = Error::about(subject, format!("{action}: {}", io_text(source)));
                match *action {
                    "set owner" => told.remedy("--no-preserve copies without owners"),
                    _ => told,
                }
            }
            Cause::Refused { why, remedy, .. } => {
                Error { remedy: remedy.map(str::to_owned), ..Error::about(subject, why) }
            }
            cause => Error::about(subject, cause),
        }
    }
}

impl From<lexopt::Error> for Error {
    fn from(error: lexopt::Error) -> Error {
        Error::usage(error)
    }
}

/// A line on standard error, which may be closed.
pub fn say_error(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The system's text without Rust's ` (os error N)`.
pub fn io_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = match text.rfind(" (os error ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    };
    let mut letters = text.chars();
    letters.next().map(|c| c.to_lowercase().to_string() + letters.as_str()).unwrap_or_default()
}

/// What the operator can do about an error of the engine, where there is something.
fn fs_remedy(path: &Path, error: &FsError) -> Option<String> {
    let image = path.display();
    Some(match error {
        FsError::Corrupt(damage) if damage.kind == DamageKind::Content => format!(
            "this content is lost unless a backup has it; `spinney check --data {image}` finds \
             all such files, and `spinney cp --rescue ignoredatacsums` gives out what is there"
        ),
        FsError::Corrupt(_) => format!(
            "run `spinney check {image}` to see the extent of it; save what can be read with \
             `spinney cp -r {image}:/ DIR`"
        ),
        FsError::Io { source, .. } => match source.raw_os_error() {
            // Of a sparse image the host has room for what was written, no more.
            Some(libc::ENOSPC | libc::EDQUOT) => format!(
                "the file system that {image} lies on has no room for what the image is to hold: make \
                 some there, and try again"
            ),
            Some(libc::EFBIG) => format!(
                "{image} may not become so large: see `ulimit -f`, and the limits of the file system \
                 that it lies on"
            ),
            _ => {
                "the device below failed: look at `dmesg`, and copy the volume before anything else"
                    .into()
            }
        },
        FsError::NotAVolume(_) => partitions::remedy(path),
        FsError::Unsupported(_) => {
            "nothing was changed; the kernel's btrfs may be able to use it".into()
        }
        FsError::Posix(Errno::ENOSPC) => {
            format!("remove something, or make a larger image; `spinney df {image}` tells more")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_file_and_remedy() {
        let corrupt = FsError::from(vfs::Damage::new("node at 4096"));
        let text = Error::fs("d.img:/a", Path::new("d.img"), &corrupt).to_string();
        assert!(
            text.starts_with("spinney: d.img:/a: damaged volume: node at 4096\n  run"),
            "{text}"
        );
        assert_eq!(Exit::from(&Error::usage("x")).code(), 2);
        assert_eq!(Exit::from(&Error::new("x")).code(), 1);
    }

    #[test]
    fn system_errors_read_like_ours() {
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(io_text(&error), "no such file or directory");
    }
}
