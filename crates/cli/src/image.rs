//! Images and devices on the command line: `disk.img`, `disk.img@2`, `disk.img:/path`; opening them by
//! the library, and what to say when that fails.

mod kernel;

use crate::error::{Error, Result, say_error};
use crate::mounts::{self, MountEntry};
use crate::rescue_options::RescueOptions;
use crate::sys;
use blockdev::BlockDevice;
use btrfs_fs::{Compress, Subvol};
use btrfs_volume::OpenOptions;
use spinney::{Cause, Span, Volume, VolumeOptions};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vfs::{Context, Errno, FsError};

pub use crate::partitions::{ImageFile, Part, is_image, named};
pub use kernel::{is_part_of_source, is_source, point_of, written_by_kernel};
pub use spinney::{Access, Medium, is_block_device as is_block};

/// Bytes of memory for nodes, of which a command may see all.
const CACHE: u64 = 512 << 20;

/// `disk.img:/path`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImagePath {
    pub image: PathBuf,
    /// Starts with `/`.
    pub path: Vec<u8>,
}

impl ImagePath {
    /// `None` if the word names nothing in an image, that is, has no `:/` and no colon at
    /// its end. Where there are several, the first behind the name of an existing file
    /// counts. A path of this machine with `:/` in it can be written with `./` or `//`.
    pub fn parse(word: &OsStr) -> Option<ImagePath> {
        let bytes = word.as_bytes();
        let colons = (1..bytes.len())
            .filter(|&at| bytes[at] == b':' && matches!(bytes.get(at + 1), None | Some(b'/')));
        let candidates: Vec<ImagePath> = colons.map(|at| ImagePath::split(bytes, at)).collect();
        let existing = candidates.iter().position(|c| is_image(&c.image));
        candidates.into_iter().nth(existing.unwrap_or(0))
    }

    fn split(bytes: &[u8], at: usize) -> ImagePath {
        let image = PathBuf::from(OsString::from_vec(bytes[..at].to_vec()));
        let path = if at + 1 == bytes.len() { b"/".to_vec() } else { bytes[at + 1..].to_vec() };
        ImagePath { image, path }
    }

    /// As `parse`, for words that must be in an image.
    pub fn expect(word: &OsStr) -> Result<ImagePath> {
        ImagePath::parse(word).ok_or_else(|| {
            let word = word.to_string_lossy();
            Error::usage(format!("{word} is not a path in an image; write {word}:/PATH"))
        })
    }

    pub fn show(&self) -> String {
        format!("{}:{}", self.image.display(), String::from_utf8_lossy(&self.path))
    }

    /// The same as the bytes that it is, for what others read.
    pub fn bytes(&self) -> Vec<u8> {
        [self.image.as_os_str().as_bytes(), b":", &self.path].concat()
    }
}

/// Spinney itself has it mounted, here.
fn in_use_by_us(path: &Path) -> Option<Error> {
    let ours = |entry: &MountEntry| {
        entry.kind.ends_with(".spinney") && is_part_of_source(path, &entry.source)
    };
    let entry = mounts::all().unwrap_or_default().into_iter().find(ours)?;
    let (image, place) = (path.display(), entry.point.display());
    let told = Error::about(image, format!("in use: Spinney has it mounted on {place}"));
    Some(told.remedy(format!("use that, or `spinney umount {place}` first")))
}

fn in_use_by_other(path: &Path) -> Error {
    if let Some(error) = in_use_by_us(path) {
        return error;
    }
    let image = path.display();
    Error::about(&image, "in use by another program").remedy(format!(
        "if Spinney has it mounted, use the mount or `spinney umount` it; `fuser -v {image}` \
         names the program"
    ))
}

/// Which bytes of this machine `image` is; `None` in it for all of the file.
pub fn identity(image: &Path) -> Result<(PathBuf, Option<Span>)> {
    let place = ImageFile::of(image);
    let real = place.file.canonicalize().map_err(|e| Error::io(image, &e))?;
    Ok((real, place.span(false)?))
}

/// Opens an image or a device of this machine, alone.
pub fn open(path: &Path, access: Access) -> Result<Medium> {
    let place = ImageFile::of(path);
    let part = place.span(matches!(access, Access::Write | Access::Mount))?;
    let opened = match part {
        None => Medium::open(&place.file, access),
        Some(part) => Medium::open_part(&place.file, path, part, access),
    };
    opened.map_err(|e| opening(path, e))
}

fn opening(path: &Path, error: spinney::Error) -> Error {
    match error.cause() {
        Cause::InUse(Some(holder)) => in_use_by_us(path).unwrap_or_else(|| {
            Error::about(path.display(), format!("in use: {holder}"))
                .remedy("unmount it first; two systems writing one volume destroy it")
        }),
        Cause::InUse(None) => in_use_by_other(path),
        Cause::Host { source, .. } => match source.kind() {
            ErrorKind::PermissionDenied => {
                Error::from(error).remedy("you must be allowed to read and write it")
            }
            ErrorKind::ReadOnlyFilesystem => {
                Error::from(error).remedy("it can only be opened read-only (-o ro)")
            }
            _ => error.into(),
        },
        _ => error.into(),
    }
}

/// The engine could not open the volume in `image`.
pub fn opening_volume(image: &Path, subvol: &Subvol, write: bool, error: &FsError) -> Error {
    let name = match subvol {
        Subvol::Path(path) => String::from_utf8_lossy(path).into_owned(),
        Subvol::Id(id) => format!("with the number {id}"),
        Subvol::Both(id, path) => {
            format!("/{} with the number {id}", String::from_utf8_lossy(path))
        }
        Subvol::Default => String::new(),
    };
    match error {
        FsError::Posix(Errno::ENOENT | Errno::ENOTDIR | Errno::EINVAL) if !name.is_empty() => {
            Error::about(image.display(), format!("there is no subvolume {name}"))
                .remedy("its path starts at the top of the volume, whatever the default is")
        }
        FsError::Corrupt(_) => {
            Error::about(image.display(), error).remedy(way_out(image, subvol, write))
        }
        // Of opening alone: later on something may have been written before.
        FsError::ReadOnly(_) => {
            Error::fs(image.display(), image, error).remedy("nothing was written")
        }
        error => Error::fs(image.display(), image, error),
    }
}

/// How content can be got out of a damaged volume that did not open: the first way that opens it, of those that give
/// up less and less.
fn way_out(image: &Path, subvol: &Subvol, write: bool) -> String {
    let name = image.display();
    let opens = |words: &str| {
        let with = RescueOptions::parse(words).unwrap_or_default();
        open(image, Access::Peek).is_ok_and(|m| damaged(subvol, with).open_medium(m).is_ok())
    };
    // To be read it needs less: nothing of the extents' owners, nor of free space.
    if write && opens("") {
        return format!(
            "it can be read: with `-o ro`, or by `spinney cp -r {name}:/ DIR`; `spinney check \
             {name}` tells what is damaged, and whether it can be made anew"
        );
    }
    if opens("nologreplay") {
        return format!(
            "its last commit can be read: with `-o ro,nologreplay`, or by `spinney cp -r --rescue \
             nologreplay {name}:/ DIR`; `spinney rescue zero-log {name}` makes it that commit. What \
             was fsynced later is in the log alone, which it gives up"
        );
    }
    if let Some(words) = EARLIER.into_iter().find(|words| opens(words)) {
        return format!(
            "an earlier commit, or a part of it, can be read: with `-o ro,rescue={words}`, or by \
             `spinney cp -r --rescue {words} {name}:/ DIR`"
        );
    }
    // `check` and `cp` would open it in the same way, and say the same.
    if !has_chunks(image) {
        return format!(
            "its chunk tree cannot be read, which says where all the rest lies, and no older one is left; \
             `btrfs restore` reads nothing without it, either. `btrfs rescue chunk-recover` may make \
             another of what it finds on a copy of {name}"
        );
    }
    format!(
        "`spinney dump-super --all {name}` shows what is left of it; `btrfs restore {name} DIR` may \
         get content out of it"
    )
}

/// Superblock and chunk tree can be read.
fn has_chunks(image: &Path) -> bool {
    let options = OpenOptions { read_only: true, ignore_log: true, ..OpenOptions::default() };
    open(image, Access::Peek)
        .is_ok_and(|medium| btrfs_volume::Volume::open(medium.device(), options).is_ok())
}

/// What opens most, and what opens all that can be opened. Content stays verified.
const EARLIER: [&str; 2] =
    ["usebackuproot:ignorebadroots", "usebackuproot:ignorebadroots:nologreplay"];

/// New things in a volume belong to the caller, as they would in a mount.
pub fn context() -> Context {
    let (uid, gid) = sys::user_and_group();
    Context { uid, gid, pid: std::process::id(), umask: sys::umask() as u16 }
}

fn options(subvol: &Subvol) -> VolumeOptions {
    let cx = context();
    let options = VolumeOptions::new().owner(cx.uid, cx.gid).umask(cx.umask.into()).cache(CACHE);
    match subvol {
        Subvol::Default => options,
        Subvol::Id(id) => options.subvolume_id(id.0),
        Subvol::Path(path) | Subvol::Both(_, path) => options.subvolume(OsStr::from_bytes(path)),
    }
}

/// A volume opened for one command. Changes are kept when `close` has returned.
pub fn open_volume(image: &Path, write: bool, subvol: &Subvol) -> Result<Volume> {
    open_with(image, subvol, options(subvol).write(write), write)
}

fn damaged(subvol: &Subvol, with: RescueOptions) -> VolumeOptions {
    options(subvol).rescue(with.rescue).ignore_log(with.ignore_log)
}

/// A volume that is read, and may be damaged.
pub fn open_damaged(image: &Path, subvol: &Subvol, with: RescueOptions) -> Result<Volume> {
    let medium = open(image, Access::Read)?;
    let log = with != RescueOptions::default() && has_log(&medium);
    let volume = opened(image, subvol, damaged(subvol, with), false, medium)?;
    let earlier = |why: String| why.starts_with(EARLIER_SHOWN);
    if log && (with.ignore_log || volume.read_only_reason().is_some_and(earlier)) {
        say_error(&format!(
            "spinney: {}: its log is not read: what was fsynced after the commit that is shown is left out",
            image.display()
        ));
    }
    Ok(volume)
}

/// A crash left a log, by the superblock.
fn has_log(medium: &Medium) -> bool {
    let options = OpenOptions { read_only: true, ignore_log: true, ..OpenOptions::default() };
    let volume = btrfs_volume::Volume::open(medium.device(), options);
    volume.is_ok_and(|volume| volume.superblock().fields.log_root.0 != 0)
}

/// As the engine begins it.
const EARLIER_SHOWN: &str = "mounted read-only, with the trees of";

/// A volume that is changed; new content is compressed.
pub fn open_compressing(image: &Path, subvol: &Subvol, compress: Compress) -> Result<Volume> {
    open_with(image, subvol, options(subvol).write(true).compress(Some(compress)), true)
}

/// What is said of a volume that is another from now on.
pub const CONVERTED: &str = "the volume has a free-space tree from now on, in the place of its version 1 \
     space cache; Linux 4.5 and newer write it";

/// Tells it, if opening `image` has `made` that tree.
pub fn tell_converted(image: &Path, made: bool) {
    if made {
        say_error(&format!("spinney: {}: {CONVERTED}", image.display()));
    }
}

/// A volume that was just made on a device that is locked; new content may be compressed.
pub fn open_made(device: Arc<dyn BlockDevice>, compress: Option<Compress>) -> Result<Volume> {
    let options = options(&Subvol::Default).write(true).compress(compress);
    Ok(options.open_device(device)?)
}

fn open_with(image: &Path, subvol: &Subvol, options: VolumeOptions, write: bool) -> Result<Volume> {
    let medium = open(image, if write { Access::Write } else { Access::Read })?;
    opened(image, subvol, options, write, medium)
}

fn opened(
    image: &Path,
    subvol: &Subvol,
    options: VolumeOptions,
    write: bool,
    medium: Medium,
) -> Result<Volume> {
    let volume = options.open_medium(medium);
    let volume = volume.map_err(|error| match error.cause() {
        Cause::Volume(said) => opening_volume(image, subvol, write, said),
        _ => error.into(),
    })?;
    tell_converted(image, volume.made_free_space_tree());
    let tells = ["truncated", "a metadata", EARLIER_SHOWN];
    let not_whole = |why: &String| tells.iter().any(|what| why.starts_with(what));
    if let Some(why) = volume.read_only_reason().filter(not_whole) {
        say_error(&format!("spinney: {}: {why}", image.display()));
    }
    Ok(volume)
}

/// The last commit, to be looked at whatever others do.
pub fn look(image: &Path, subvol: &Subvol) -> Result<Volume> {
    let medium = open(image, Access::Peek)?;
    let volume = options(subvol).ignore_log(true).open_medium(medium);
    volume.map_err(|error| match error.cause() {
        Cause::Volume(said) => opening_volume(image, subvol, false, said),
        _ => error.into(),
    })
}

/// The same; `None` if it does not open.
pub fn peek(image: &Path, subvol: &Subvol) -> Option<Volume> {
    look(image, subvol).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<(String, String)> {
        let found = ImagePath::parse(OsStr::new(text))?;
        let path = String::from_utf8(found.path).unwrap();
        Some((found.image.display().to_string(), path))
    }

    #[test]
    fn words_split_at_the_colon() {
        let some = |image: &str, path: &str| Some((image.to_owned(), path.to_owned()));
        assert_eq!(parse("disk.img:/a/b"), some("disk.img", "/a/b"));
        assert_eq!(parse("disk.img:"), some("disk.img", "/"));
        assert_eq!(parse("a:b/disk.img:/x:/y"), some("a:b/disk.img", "/x:/y"));
        assert_eq!(parse("disk.img"), None);
        assert_eq!(parse(":/x"), None);
        assert_eq!(parse("/dev/disk/by-path/pci-0:1"), None);
        let me = std::env::current_exe().unwrap();
        let odd = format!("{}:/in", me.display());
        assert_eq!(parse(&odd), some(&me.display().to_string(), "/in"));
    }
}
