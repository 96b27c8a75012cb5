//! `spinney touch`.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result};
use crate::image::ImagePath;
use crate::inside::volumes::At;
use crate::inside::{self, Node, Scope};
use crate::mount::options::{subvol_id, subvol_path};
use crate::when;
use btrfs_fs::Subvol;
use spinney::Volume;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use vfs::{Errno, FileKind, FsError, SetAttr, SetTime, Timestamp};

pub const COMMAND: Command = Command {
    name: "touch",
    summary: "set times of files in a volume, make empty files",
    usage: "[-a] [-m] [-c] [-h] [-d TIME | -r FILE] IMAGE:/PATH...",
    help: "\
Sets access and modification time of files in a volume that is not mounted; makes files that
are not there.

TIME is `now`, @SECONDS since 1970, or YYYY-MM-DD[ HH:MM[:SS[.FRACTION]]] in local time, or
with Z or +HH:MM behind it.

Options
    -a                     the access time only
    -m                     the modification time only
    -c, --no-create        do not make files
    -h, --no-dereference   set a symbolic link's own times
    -d, --date TIME        this time instead of now
    -r, --reference FILE   the times of FILE, of this machine or IMAGE:/PATH
    --subvol PATH, --subvolid ID
                           start from this subvolume instead of the volume's default one

Examples
    spinney touch disk.img:/new
    spinney touch -d '2024-05-01 12:00Z' disk.img:/etc/hosts
",
    run,
};

#[derive(Default)]
struct Options {
    access: bool,
    modification: bool,
    no_create: bool,
    no_follow: bool,
    date: Option<Timestamp>,
    reference: Option<OsString>,
}

#[derive(Clone, Copy)]
struct Times {
    atime: Option<SetTime>,
    mtime: Option<SetTime>,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut subvol) = (Vec::new(), Subvol::Default);
    let mut options = Options::default();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('a') => options.access = true,
            Arg::Short('m') => options.modification = true,
            Arg::Short('c') | Arg::Long("no-create") => options.no_create = true,
            Arg::Short('h') | Arg::Long("no-dereference") => options.no_follow = true,
            Arg::Short('d') | Arg::Long("date") => options.date = Some(date(&args.text()?)?),
            Arg::Short('r') | Arg::Long("reference") => options.reference = Some(args.value()?),
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(ImagePath::expect(&value)?),
            other => return Err(args::unexpected(other)),
        }
    }
    let operands = args::some(operands, "IMAGE:/PATH")?;
    let mut scope = Scope::of(subvol, &operands, true);
    let inside_reference = options.reference.as_ref().and_then(|word| ImagePath::parse(word));
    if let Some(reference) = &inside_reference {
        scope.add(reference, false);
    }
    scope.run(|volumes, failures| {
        let found = match (&inside_reference, &options.reference, options.date) {
            (Some(path), ..) => Some(times_inside(volumes.of(path)?, &path.path)?),
            (None, Some(host), _) => Some(times_of_host(Path::new(host))?),
            (None, None, date) => date.map(|date| (date, date)),
        };
        let times = chosen(&options, found);
        for operand in &operands {
            failures
                .keep(volumes.of(operand).and_then(|v| touch(v, &operand.path, times, &options)));
        }
        Ok(())
    })
}

fn date(text: &str) -> Result<Timestamp> {
    let wrong = || Error::usage(format!("{text:?} is no time; write '2024-05-01 12:00' or @0"));
    when::parse(text).ok_or_else(wrong)
}

fn times_inside(volume: &Volume, path: &[u8]) -> Result<(Timestamp, Timestamp)> {
    let node = volume.find(path, true).at(volume, path)?;
    Ok((node.attr.atime, node.attr.mtime))
}

fn times_of_host(path: &Path) -> Result<(Timestamp, Timestamp)> {
    let meta = path.metadata().map_err(|e| Error::io(path, &e))?;
    let time = |secs, nanos| Timestamp { secs, nanos: nanos as u32 };
    Ok((time(meta.atime(), meta.atime_nsec()), time(meta.mtime(), meta.mtime_nsec())))
}

/// Neither -a nor -m means both.
fn chosen(options: &Options, found: Option<(Timestamp, Timestamp)>) -> Times {
    let both = options.access == options.modification;
    let (atime, mtime) = match found {
        Some((atime, mtime)) => (SetTime::At(atime), SetTime::At(mtime)),
        None => (SetTime::Now, SetTime::Now),
    };
    Times {
        atime: (both || options.access).then_some(atime),
        mtime: (both || options.modification).then_some(mtime),
    }
}

fn touch(volume: &Volume, path: &[u8], times: Times, options: &Options) -> Result<()> {
    let cx = inside::context();
    let node = match volume.find(path, !options.no_follow) {
        Ok(node) => node,
        Err(FsError::Posix(Errno::ENOENT)) if options.no_create => return Ok(()),
        Err(FsError::Posix(Errno::ENOENT)) => create(volume, path)?,
        Err(error) => return Err(error).at(volume, path),
    };
    let set = SetAttr { atime: times.atime, mtime: times.mtime, ..SetAttr::default() };
    volume.fs().setattr(&cx, node.ino(), &set).at(volume, path).map(drop)
}

/// An empty file of the caller's.
pub fn create(volume: &Volume, path: &[u8]) -> Result<Node> {
    let (parent, name) = volume.find_parent_of_file(path).at(volume, path)?;
    if parent.child(&name).is_ok_and(|link| link.is_symlink()) {
        let shown = format!("{}:{}", volume.name().display(), String::from_utf8_lossy(path));
        return Err(Error::about(shown, "is a symbolic link that leads nowhere"));
    }
    let (cx, kind) = (inside::context(), FileKind::File);
    let made = volume.fs().mknod(&cx, parent.ino(), &name, kind, 0o666, 0).at(volume, path)?;
    Ok(volume.hold(made))
}
