//! The control door of a mount: what a verb asks the server for, through a file of the mount
//! itself, so that the kernel says who asks.
//!
//! It does not know what the operations do (`btrfs_fs::control`), nor how they are told.

mod committed;
mod quotas;

pub use committed::{CommittedTree, Token};
pub use quotas::Switch;

use crate::error::{Error, Result, io_text};
use crate::sys;
use btrfs_fs::control::verity::write_enable;
use btrfs_fs::control::wire::paths::Told;
use btrfs_fs::control::wire::{self, Record, Records, SnapshotArgs, Source, VolArgs2};
use btrfs_fs::{Defragment, VerityWish};
use fs_verity::HashAlgorithm;
use spinney::{NewExtent, QgroupId, SubvolId, SubvolumeInfo, Usage};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Every inode of a mount of ours has it.
const OURS: &str = "spinney.transport";
/// What the kernel answers where nobody serves any more, or nobody just now.
const ENDED: [i32; 3] = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED];

/// Where a new subvolume is to be in a group.
pub const NO_GROUP: &str = "there is no such quota group";
/// See [`NO_GROUP`].
pub const NOT_THAT_GROUP: &str = "a subvolume is put into quota groups of level 1 and higher";

pub struct Door {
    file: File,
    path: PathBuf,
}

/// Has reads of `file` verified, in whatever file system it is.
pub(crate) fn enable_verity(file: &File, wish: &VerityWish) -> io::Result<()> {
    let (salt, signature) = (wish.params.salt(), &wish.signature);
    let mut record = write_enable(wish, salt.as_ptr() as u64, signature.as_ptr() as u64);
    sys::control(file, wire::ENABLE_VERITY, &mut record)
}

impl Door {
    /// At a file or directory of a mount.
    pub fn open(path: &Path) -> Result<Door> {
        let file = File::open(path).map_err(|e| opening(path, &e))?;
        let door = Door { file, path: path.to_owned() };
        match sys::get_xattr(path, OURS) {
            Ok(_) => Ok(door),
            Err(_) if sys::is_kernels_btrfs(&door.file) => {
                let told = Error::about(path.display(), "the kernel's btrfs has it mounted");
                Err(told.remedy("`btrfs` does there what `spinney` does here"))
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::ENODATA | libc::EOPNOTSUPP) => {
                    let what = "not in a volume that Spinney has mounted";
                    let told = Error::about(path.display(), what);
                    Err(told.remedy("name a directory of a mount, or IMAGE:/PATH"))
                }
                _ => Err(opening(path, &error)),
            },
        }
    }

    /// At a file that is open, known to be of a mount; errors name it `path`.
    pub fn on(file: File, path: &Path) -> Door {
        Door { file, path: path.to_owned() }
    }

    /// At the directory that `path` is or would be in, and its name there.
    pub fn above(path: &Path) -> Result<(Door, Vec<u8>)> {
        let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/."));
        let name = name.ok_or_else(|| Error::about(path.display(), "has no name"))?;
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        Ok((Door::open(above.unwrap_or(Path::new(".")))?, name.as_bytes().to_vec()))
    }

    /// All files of a mount have one number of a device; `None`: nobody can tell.
    pub fn device(&self) -> Option<u64> {
        self.file.metadata().ok().map(|meta| meta.dev())
    }

    fn ask(&self, command: u32, mut record: Vec<u8>) -> io::Result<Vec<u8>> {
        record.resize(wire::len(command), 0);
        sys::control(&self.file, command, &mut record)?;
        Ok(record)
    }

    /// An error of the server's about `subject`.
    fn told(&self, subject: &str, error: &io::Error) -> Error {
        let what = match error.raw_os_error() {
            Some(libc::ENOTTY) => {
                return Error::about(
                    subject,
                    "the server of this mount is older than this program",
                )
                .remedy("unmount, and mount again");
            }
            Some(code) if ENDED.contains(&code) => return opening(&self.path, error),
            _ => io_text(error),
        };
        Error::about(subject, what)
    }

    fn of(&self, name: &[u8]) -> String {
        self.path.join(OsStr::from_bytes(name)).display().to_string()
    }

    fn named(&self, command: u32, name: &[u8]) -> io::Result<()> {
        let record = VolArgs2::named(name).ok_or(libc::ENAMETOOLONG);
        self.ask(command, record.map_err(io::Error::from_raw_os_error)?).map(drop)
    }

    pub fn create(&self, name: &[u8], groups: &[QgroupId]) -> Result<()> {
        if groups.is_empty() {
            let made = self.named(wire::SUBVOL_CREATE_V2, name);
            return made.map_err(|e| self.told(&self.of(name), &e));
        }
        self.create_in(None, name, groups).map_err(|e| self.in_groups(name, &e))
    }

    /// ENOENT is not of the directory, which is open.
    fn in_groups(&self, name: &[u8], error: &io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::ENOENT) => Error::about(self.of(name), NO_GROUP),
            Some(libc::EINVAL) => Error::about(self.of(name), NOT_THAT_GROUP),
            _ => self.told(&self.of(name), error),
        }
    }

    /// False: other subvolumes lie in it, and nothing else forbids it.
    pub fn delete(&self, name: &[u8]) -> Result<bool> {
        let gone = childless(self.named(wire::SNAP_DESTROY_V2, name));
        gone.map_err(|e| self.told(&self.of(name), &e)).map_err(|error| match () {
            () if sys::is_root() => error,
            () => error.remedy(
                "a subvolume is deleted by root, by who mounted the volume, and with `mount -o \
                 user_subvol_rm_allowed` by who may remove and write the directory",
            ),
        })
    }

    /// The same of subvolume `id`, which that name led to: nobody can give a number to another one meanwhile. `None`:
    /// the caller may delete by names alone.
    pub fn delete_numbered(&self, name: &[u8], id: SubvolId) -> Result<Option<bool>> {
        let asked = self.ask(wire::SNAP_DESTROY_V2, VolArgs2::numbered(id));
        match childless(asked.map(drop)) {
            Err(e) if e.raw_os_error() == Some(libc::EPERM) && !self.hears_of_all()? => Ok(None),
            gone => gone.map(Some).map_err(|e| self.told(&self.of(name), &e)),
        }
    }

    /// The same.
    pub fn delete_by_id(&self, id: SubvolId) -> Result<bool> {
        let asked = self.ask(wire::SNAP_DESTROY_V2, VolArgs2::numbered(id));
        childless(asked.map(drop)).map_err(|e| self.told(&format!("subvolume {}", id.0), &e))
    }

    /// Whether `name` here is the root directory of that subvolume, and nothing is mounted on it.
    pub fn leads_to(&self, name: &[u8], id: SubvolId) -> Result<bool> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let opened = match sys::open_beneath(&self.file, name, flags, 0) {
            // Linux before 5.6 does not have the call, and profiles of containers refuse it.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                sys::DirFd(&self.file).open_dir(name)
            }
            opened => opened,
        };
        match opened {
            Ok(file) => {
                let (info, is_root) = Door::on(file, &self.path).around()?;
                Ok(is_root && info.id == id)
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EXDEV | libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => Ok(false),
                _ => Err(self.told(&self.of(name), &error)),
            },
        }
    }

    /// Makes `name` here a snapshot of the subvolume that `source` is the root of. What programs
    /// have written to mapped files, or with a write-back cache, is in it as well.
    pub fn snapshot(
        &self,
        source: &Door,
        name: &[u8],
        read_only: bool,
        groups: &[QgroupId],
    ) -> Result<()> {
        let failed = |e: &io::Error| self.told(&self.of(name), e);
        let meta = |door: &Door| door.file.metadata().map_err(|e| Error::io(&door.path, &e));
        let (from, to) = (meta(source)?, meta(self)?);
        if from.dev() != to.dev() {
            let what = "a snapshot lies in the volume of its source";
            return Err(Error::about(self.of(name), what));
        }
        sys::sync_file_system(&source.file).map_err(|e| failed(&e))?;
        if !groups.is_empty() {
            let made = self.create_in(Some((source, read_only)), name, groups);
            return made.map_err(|e| self.in_groups(name, &e));
        }
        let source = source.as_source().map_err(|e| failed(&e))?;
        let args = SnapshotArgs { source, read_only, name };
        let record = args.write().ok_or(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        let asked = record.and_then(|record| self.ask(wire::SNAPSHOT, record));
        asked.map(drop).map_err(|e| failed(&e))
    }

    /// By what the server knows that the caller has come to this subvolume.
    fn as_source(&self) -> io::Result<Source> {
        let word = self.ask(wire::SNAPSHOT_SOURCE, Vec::new())?.try_into();
        word.map(Source::Word).map_err(|_| io::Error::from_raw_os_error(libc::EPROTO))
    }

    /// A question about the volume as a whole, and what the server answers; its errors are the caller's
    /// to tell.
    pub fn ask_volume(&self, command: u32, record: Vec<u8>) -> io::Result<Vec<u8>> {
        self.ask(command, record)
    }

    /// What to say of an error of `ask_volume`.
    pub fn told_of_volume(&self, error: &io::Error) -> Error {
        self.told_of_itself(error)
    }

    /// Commits everything, also what programs have written to mapped files.
    pub fn sync_all(&self) -> Result<()> {
        sys::sync_file_system(&self.file).map_err(|e| self.told_of_itself(&e))?;
        self.sync()
    }

    /// Commits.
    pub fn sync(&self) -> Result<()> {
        self.ask(wire::SYNC, Vec::new()).map(drop).map_err(|e| self.told_of_itself(&e))
    }

    fn told_of_itself(&self, error: &io::Error) -> Error {
        self.told(&self.path.display().to_string(), error)
    }

    fn odd(&self) -> Error {
        Error::about(self.path.display(), "the server's answer makes no sense")
    }

    /// The subvolume around it, and whether it is its root directory.
    pub fn around(&self) -> Result<(SubvolumeInfo, bool)> {
        let answer = self.ask(wire::INFO, Vec::new()).map_err(|e| self.told_of_itself(&e))?;
        let read = |answer: &[u8]| {
            let is_root = wire::number(answer, 0)?;
            Some((Told::read(&mut answer.get(8..)?)?, is_root != 0))
        };
        let (told, is_root) = read(&answer).ok_or_else(|| self.odd())?;
        Ok((self.whole(told)?, is_root))
    }

    /// With its path, if that did not come along.
    fn whole(&self, told: Told) -> Result<SubvolumeInfo> {
        let Told { mut info, is_long } = told;
        if is_long {
            info.path = self.path_of(info.id).map_err(|e| self.told_of_itself(&e))?;
        }
        Ok(info)
    }

    /// `None`: it has none any more.
    fn path_of(&self, id: SubvolId) -> io::Result<Option<Vec<u8>>> {
        let mut path = Vec::new();
        loop {
            let asked = [id.0.to_le_bytes(), (path.len() as u64).to_le_bytes()].concat();
            let answer = match self.ask(wire::paths::PATH, asked) {
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
                answer => answer?,
            };
            let len = wire::number(&answer, 0).and_then(|len| usize::try_from(len).ok());
            let more = len.unwrap_or(0).saturating_sub(path.len()).min(answer.len() - 8);
            if more == 0 {
                return Ok(Some(path));
            }
            path.extend_from_slice(&answer[8..8 + more]);
        }
    }

    /// Whether the caller may hear of others' subvolumes, which is for those alone who may delete any.
    fn hears_of_all(&self) -> Result<bool> {
        match self.ask(wire::LIST, u64::MAX.to_le_bytes().to_vec()) {
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => Ok(false),
            answer => answer.map(|_| true).map_err(|e| self.told_of_itself(&e)),
        }
    }

    /// All subvolumes; `None`: the caller may not hear of others' subvolumes.
    pub fn all(&self) -> Result<Option<Vec<SubvolumeInfo>>> {
        let (mut all, mut behind) = (Vec::<SubvolumeInfo>::new(), 0u64);
        loop {
            let answer = match self.ask(wire::LIST, behind.to_le_bytes().to_vec()) {
                Err(e) if e.raw_os_error() == Some(libc::EPERM) => return Ok(None),
                answer => answer.map_err(|e| self.told_of_itself(&e))?,
            };
            let more = Records::read::<Told>(&answer).ok_or_else(|| self.odd())?;
            let Some(last) = more.last().map(|told| told.info.id.0) else { return Ok(Some(all)) };
            if last <= behind {
                return Err(self.odd());
            }
            behind = last;
            for told in more {
                all.push(self.whole(told)?);
            }
        }
    }

    pub fn default_subvolume(&self) -> Result<SubvolId> {
        let answer =
            self.ask(wire::GET_DEFAULT, Vec::new()).map_err(|e| self.told_of_itself(&e))?;
        wire::number(&answer, 0).map(SubvolId).ok_or_else(|| self.odd())
    }

    pub fn set_default(&self, id: SubvolId) -> Result<()> {
        let asked = self.ask(wire::DEFAULT_SUBVOL, id.0.to_le_bytes().to_vec());
        asked.map(drop).map_err(|e| self.told(&format!("subvolume {}", id.0), &e))
    }

    /// What programs have written to mapped files, or with a write-back cache, is in what is read-only
    /// from now on: it would be refused when the kernel hands it over, and nobody would hear of that.
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        if read_only {
            sys::sync_file_system(&self.file).map_err(|e| self.told_of_itself(&e))?;
        }
        let flags = if read_only { wire::FLAG_READ_ONLY } else { 0 };
        let asked = self.ask(wire::SUBVOL_SETFLAGS, flags.to_le_bytes().to_vec());
        asked.map(drop).map_err(|e| self.told_of_itself(&e))
    }

    /// As `spinney::Volume::usage`.
    pub fn usage(&self) -> Result<Usage> {
        let answer = self.ask(wire::USAGE, Vec::new()).map_err(|e| self.told_of_itself(&e))?;
        Usage::read(&mut &answer[..]).ok_or_else(|| self.odd())
    }

    pub fn label(&self) -> Result<Vec<u8>> {
        let answer = self.ask(wire::GET_FSLABEL, Vec::new());
        let mut label = answer.map_err(|e| self.told_of_itself(&e))?;
        label.truncate(label.iter().position(|byte| *byte == 0).unwrap_or(label.len()));
        Ok(label)
    }

    /// At most 255 bytes.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        self.ask(wire::SET_FSLABEL, label.to_vec()).map(drop).map_err(|e| self.told_of_itself(&e))
    }

    /// As `spinney::Volume::defragment`, of the file that this door is.
    pub fn defragment(&self, wish: &Defragment) -> Result<()> {
        // Nothing of the file is meant, which is no error of who means many.
        if wish.start > 0 && self.file.metadata().is_ok_and(|file| file.len() <= wish.start) {
            return Ok(());
        }
        let asked = self.ask(wire::DEFRAG_RANGE, wire::write_defragment(wish));
        asked.map(drop).map_err(|e| self.told_of_itself(&e))
    }

    /// As `spinney::Volume::enable_verity`, of the file that this door is.
    pub(crate) fn enable_verity(&self, wish: &VerityWish) -> Result<()> {
        enable_verity(&self.file, wish).map_err(|e| self.told_of_itself(&e))
    }

    /// As `spinney::Volume::measure_verity`.
    pub(crate) fn measure_verity(&self) -> Result<(HashAlgorithm, Vec<u8>)> {
        let measured = sys::measure_verity(&self.file, wire::MEASURE_VERITY);
        let (number, digest) = measured.map_err(|e| self.of_verity(&e))?;
        let algorithm = HashAlgorithm::from_number(number.into()).ok_or_else(|| self.odd())?;
        Ok((algorithm, digest))
    }

    fn of_verity(&self, error: &io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::ENODATA) => Error::about(self.path.display(), "is not verified"),
            _ => self.told_of_itself(error),
        }
    }

    /// As `spinney::Volume::find_new`.
    pub fn find_new(&self, since: u64) -> Result<(u64, Vec<NewExtent>)> {
        self.sync()?;
        let (mut all, mut behind) = (Vec::<NewExtent>::new(), (0u64, 0u64));
        loop {
            let numbers = [since, behind.0, behind.1].map(u64::to_le_bytes);
            let answer =
                self.ask(wire::FIND_NEW, numbers.concat()).map_err(|e| self.told_of_itself(&e))?;
            let marker = wire::number(&answer, 0).ok_or_else(|| self.odd())?;
            let more = answer.get(8..).and_then(Records::read::<NewExtent>);
            let more = more.ok_or_else(|| self.odd())?;
            match more.last().map(|last| (last.inode, last.file_offset)) {
                Some(last) if last > behind => behind = last,
                Some(_) => return Err(self.odd()),
                None => return Ok((marker, all)),
            }
            all.extend(more);
        }
    }
}

/// False: other subvolumes lie in what was to be deleted.
fn childless(deleted: io::Result<()>) -> io::Result<bool> {
    match deleted {
        Err(error) if error.raw_os_error() == Some(libc::ENOTEMPTY) => Ok(false),
        deleted => deleted.map(|()| true),
    }
}

fn opening(path: &Path, error: &io::Error) -> Error {
    let told = Error::about(path.display(), io_text(error));
    match error.raw_os_error() {
        Some(code) if ENDED.contains(&code) => {
            Error::about(path.display(), "the server of this mount has ended")
                .remedy("`spinney umount` takes the mount away; then it can be mounted again")
        }
        Some(libc::EACCES) => told.remedy(
            "you must be allowed to read it; a mount of another user is closed to all others \
             without `-o allow_other`",
        ),
        _ => told,
    }
}
