//! The volume that a balance, a scrub or a resize is about: in an image, which is opened for it, or mounted.

use crate::door::Door;
use crate::error::{Error, Result, io_text};
use crate::image::{self, Access, ImagePath, Medium, is_image};
use crate::mount::log;
use crate::mounts;
use btrfs_disk::FixedSize;
use btrfs_disk::items::BalanceItem;
use btrfs_fs::control::wire;
use btrfs_fs::{BalanceStatus, BtrfsFs, DeviceErrors, NewSize, Options, ScrubStatus, Subvol};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use vfs::FileSystem;

pub enum Target {
    Image { fs: BtrfsFs, path: PathBuf, _medium: Medium },
    Mount { door: Door, path: PathBuf },
}

/// Which image a word names, if one.
pub fn image_of(word: &OsStr) -> Option<PathBuf> {
    let path = Path::new(word);
    if is_image(path) {
        return Some(path.into());
    }
    ImagePath::parse(word).map(|inside| inside.image)
}

/// Where the image or device is mounted by Spinney that a word names.
pub fn point_of(word: &OsStr) -> Option<PathBuf> {
    image::point_of(&image_of(word)?)
}

/// What an asked server or engine refuses with.
#[derive(Debug)]
pub struct Refused {
    pub errno: i32,
    pub error: Error,
}

type Asked<T> = std::result::Result<T, Refused>;

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        refused.error
    }
}

impl Target {
    pub fn open(word: &OsStr, access: Access) -> Result<Target> {
        let Some(path) = image_of(word) else {
            let path = PathBuf::from(word);
            return Ok(Target::Mount { door: Door::open(&path)?, path });
        };
        let medium = image::open(&path, access)?;
        Target::on(medium, path, matches!(access, Access::Read | Access::Peek))
    }

    /// The volume of an image that is open already.
    pub fn on(medium: Medium, path: PathBuf, read_only: bool) -> Result<Target> {
        let options = Options { background: false, read_only, ..Options::default() };
        let opened = BtrfsFs::open_device(medium.device(), options);
        let fs =
            opened.map_err(|e| image::opening_volume(&path, &Subvol::Default, !read_only, &e))?;
        if let Some(why) = fs.read_only_reason().filter(|_| !read_only) {
            return Err(Error::about(path.display(), format!("can only be read: {why}")));
        }
        image::tell_converted(&path, fs.made_free_space_tree());
        Ok(Target::Image { fs, path, _medium: medium })
    }

    /// As `open`; an image or a device that Spinney has mounted is that mount, as `btrfs` takes a device for
    /// the place where it is mounted.
    pub fn open_mounted(word: &OsStr, access: Access) -> Result<Target> {
        match point_of(word) {
            Some(path) => Ok(Target::Mount { door: Door::open(&path)?, path }),
            None => Target::open(word, access),
        }
    }

    /// What an engine in this process finds wrong is told; a mount has its log.
    pub fn tell_errors(&self) {
        if !self.is_mounted() {
            log::tell_errors();
        }
    }

    /// How many bad copies were met and written anew so far; a mount has them in its log.
    pub fn mended(&self) -> u64 {
        let Target::Image { fs, .. } = self else { return 0 };
        fs.stats().iter().find(|stat| stat.name == "device.repairs").map_or(0, |stat| stat.value)
    }

    pub fn show(&self) -> String {
        self.path().display().to_string()
    }

    pub fn path(&self) -> &Path {
        match self {
            Target::Image { path, .. } | Target::Mount { path, .. } => path,
        }
    }

    pub fn is_mounted(&self) -> bool {
        matches!(self, Target::Mount { .. })
    }

    fn ask<T>(
        &self,
        (command, record): (u32, Vec<u8>),
        here: impl FnOnce(&BtrfsFs) -> vfs::Result<T>,
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Asked<T> {
        match self {
            Target::Image { fs, path, .. } => here(fs).map_err(|error| Refused {
                errno: error.errno(),
                error: Error::about(path.display(), error),
            }),
            Target::Mount { door, path } => {
                let answer = door.ask_volume(command, record).map_err(|e| Refused {
                    errno: e.raw_os_error().unwrap_or(libc::EIO),
                    error: door.told_of_volume(&e),
                })?;
                let odd = "the server's answer makes no sense";
                let error = || Error::about(path.display(), odd);
                read(&answer).ok_or_else(|| Refused { errno: libc::EPROTO, error: error() })
            }
        }
    }

    pub fn start(&self, item: &BalanceItem) -> Asked<()> {
        let record = item.to_vec();
        self.ask((wire::BALANCE_START, record), |fs| fs.start_balance(*item), |_| Some(()))
    }

    pub fn status(&self) -> Asked<BalanceStatus> {
        let asked = (wire::BALANCE_STATUS, Vec::new());
        self.ask(asked, |fs| fs.balance_status(), wire::read_status)
    }

    fn act(&self, what: u64, here: impl FnOnce(&BtrfsFs) -> vfs::Result<()>) -> Asked<()> {
        self.ask((wire::BALANCE_ACT, what.to_le_bytes().to_vec()), here, |_| Some(()))
    }

    pub fn pause(&self) -> Asked<()> {
        self.act(wire::BALANCE_PAUSE, BtrfsFs::pause_balance)
    }

    pub fn resume(&self) -> Asked<()> {
        self.act(wire::BALANCE_RESUME, BtrfsFs::resume_balance)
    }

    pub fn cancel(&self) -> Asked<()> {
        self.act(wire::BALANCE_CANCEL, BtrfsFs::cancel_balance)
    }

    pub fn fsid(&self) -> Result<[u8; 16]> {
        match self {
            Target::Image { fs, path, .. } => {
                Ok(fs.usage().map_err(|e| Error::about(path.display(), e))?.fsid)
            }
            Target::Mount { door, .. } => Ok(door.usage()?.fsid),
        }
    }

    /// The number of the one device there is.
    pub fn devid(&self) -> Result<u64> {
        let usage = match self {
            Target::Image { fs, path, .. } => {
                fs.usage().map_err(|e| Error::about(path.display(), e))?
            }
            Target::Mount { door, .. } => door.usage()?,
        };
        Ok(usage.devices.first().map_or(1, |device| device.id))
    }

    /// `limit` bytes in a second at most, as long as it is at work.
    pub fn start_scrub(&self, read_only: bool, limit: Option<u64>) -> Asked<()> {
        let what = if read_only { wire::SCRUB_START_READ_ONLY } else { wire::SCRUB_START };
        let here = |fs: &BtrfsFs| fs.start_scrub_at(read_only, limit);
        let Some(limit) = limit else { return self.act_scrub(what, here) };
        let record = [what, limit].map(u64::to_le_bytes).concat();
        self.ask((wire::SCRUB_BEGIN, record), here, |_| Some(()))
    }

    pub fn resume_scrub(&self) -> Asked<()> {
        self.act_scrub(wire::SCRUB_RESUME, BtrfsFs::resume_scrub)
    }

    /// Goes on with a scrub of an earlier mount.
    pub fn continue_scrub(&self, earlier: &ScrubStatus) -> Asked<()> {
        let asked = (wire::SCRUB_CONTINUE, wire::write_scrub_status(earlier));
        self.ask(asked, |fs| fs.continue_scrub(*earlier), |_| Some(()))
    }

    pub fn cancel_scrub(&self) -> Asked<()> {
        self.act_scrub(wire::SCRUB_CANCEL, BtrfsFs::cancel_scrub)
    }

    fn act_scrub(&self, what: u64, here: impl FnOnce(&BtrfsFs) -> vfs::Result<()>) -> Asked<()> {
        self.ask((wire::SCRUB_ACT, what.to_le_bytes().to_vec()), here, |_| Some(()))
    }

    pub fn scrub_status(&self) -> Asked<ScrubStatus> {
        let asked = (wire::SCRUB_STATUS, Vec::new());
        self.ask(asked, |fs| fs.scrub_status(), wire::read_scrub_status)
    }

    /// How many bytes scrubs read in a second at most; 0: no limit.
    pub fn scrub_limit(&self) -> Asked<u64> {
        self.ask(limit(wire::LIMIT_ASKED, 0), |fs| fs.scrub_limit(), |told| wire::number(told, 8))
    }

    /// Another one until the volume is closed; what it was.
    pub fn limit_scrub(&self, new: u64) -> Asked<u64> {
        let here = |fs: &BtrfsFs| fs.limit_scrub(new, false);
        self.ask(limit(wire::LIMIT_SET, new), here, |told| wire::number(told, 8))
    }

    /// By which path the user knows the one device.
    pub fn device(&self) -> PathBuf {
        match self {
            Target::Image { path, .. } => path.clone(),
            Target::Mount { path, .. } => mounts::device_below(path),
        }
    }

    /// What errors the device had; with `reset` they count from zero again, which the volume has
    /// when this returns, or with the next commit of a mount.
    pub fn device_errors(&self, devid: u64, reset: bool) -> Asked<DeviceErrors> {
        let here = |fs: &BtrfsFs| match reset {
            true => fs.reset_device_errors(),
            false => fs.device_errors(),
        };
        let words = [devid, DeviceErrors::default().len() as u64, reset.into()];
        let record = words.map(u64::to_le_bytes).concat();
        self.ask((wire::GET_DEV_STATS, record), here, |answer| {
            let mut errors = DeviceErrors::default();
            for (slot, error) in errors.iter_mut().enumerate() {
                *error = wire::number(answer, 24 + 8 * slot)?;
            }
            Some(errors)
        })
    }

    /// Bytes that the volume in an image has of a device, and what they would become; of a mount nothing
    /// is known here.
    pub fn sizes(&self, devid: u64, size: NewSize) -> Asked<(u64, u64)> {
        match self {
            Target::Image { fs, path, .. } => fs.sizes(devid, size).map_err(|error| Refused {
                errno: error.errno(),
                error: Error::about(path.display(), error),
            }),
            Target::Mount { .. } => Ok((0, 0)),
        }
    }

    /// Answers the old size and the new one.
    pub fn resize(&self, devid: u64, size: NewSize) -> Asked<(u64, u64)> {
        let here = |fs: &BtrfsFs| {
            let sizes = fs.sizes(devid, size)?;
            fs.resize(sizes.1).map(|_| sizes)
        };
        let asked = (wire::RESIZE, wire::write_resize(devid, size));
        self.ask(asked, here, |answer| Some((wire::number(answer, 0)?, wire::number(answer, 8)?)))
    }

    /// What was done in an image is on the medium when this returns.
    pub fn close(self) -> Result<()> {
        match self {
            Target::Image { fs, path, .. } => {
                fs.destroy().map_err(|e| Error::about(path.display(), e))
            }
            Target::Mount { .. } => Ok(()),
        }
    }
}

fn limit(what: u64, new: u64) -> (u32, Vec<u8>) {
    (wire::SCRUB_LIMIT, [what, new].map(u64::to_le_bytes).concat())
}

/// As `strerror`, for messages that are worded as others'.
pub fn reason(errno: i32) -> String {
    io_text(&std::io::Error::from_raw_os_error(errno))
}
