//! An image of its own, made by mkfs.btrfs and mounted by somebody.

use super::{Abort, Side, command, with_context};
use crate::counters::Counters;
use crate::sys;
use crate::target::{PosixDir, Target};
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What all images of a run have in common.
#[derive(Clone, Debug)]
pub struct ImageSpec {
    /// A directory of this run, on the backing file system (a tmpfs, as a rule).
    pub scratch: PathBuf,
    pub size: u64,
    pub mkfs_options: Vec<String>,
    /// For one mount, unmount or mkfs.
    pub limit: Duration,
}

impl ImageSpec {
    /// Makes a new sparse file.
    pub(super) fn make_empty(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        with_context(File::create(path).and_then(|f| f.set_len(self.size)), path.display())
    }

    /// The same with an empty btrfs in it.
    pub(super) fn make(&self, path: &Path) -> io::Result<()> {
        self.make_empty(path)?;
        let mut mkfs = Command::new("mkfs.btrfs");
        mkfs.args(["-q", "-f"]).args(&self.mkfs_options).arg(path);
        self.run(&mut mkfs)
    }

    /// The file system below has nothing to do any more with images that are closed or gone.
    pub(super) fn settle_below(&self) -> io::Result<()> {
        let scratch = File::open(&self.scratch)?;
        with_context(sys::syncfs(scratch.as_raw_fd()), self.scratch.display())
    }

    /// To be called while the image is closed: whoever opens it next finds nothing of it in
    /// memory (but for a backing that is memory). Not by the switch for all caches of the
    /// machine: it would also drop the programs' own pages, and it waits for every mount
    /// of the machine, one that hangs included.
    pub(super) fn make_cold(&self, path: &Path) -> io::Result<()> {
        let image = File::open(path)?;
        with_context(image.sync_all().and_then(|()| sys::drop_pages(&image)), path.display())
    }

    pub(super) fn check(&self, path: &Path) -> io::Result<()> {
        self.run(Command::new("btrfs").args(["check", "--check-data-csum"]).arg(path))
    }

    pub(super) fn run(&self, command: &mut Command) -> io::Result<()> {
        command::run(command, &self.scratch, self.limit)
    }
}

/// How an image is mounted.
pub trait Mounter {
    /// A new image for it.
    fn make(&mut self, spec: &ImageSpec, image: &Path) -> io::Result<()> {
        spec.make(image)
    }
    /// What the judge of its format says of a closed image.
    fn check(&mut self, spec: &ImageSpec, image: &Path) -> io::Result<()> {
        spec.check(image)
    }
    fn mount(&mut self, spec: &ImageSpec, image: &Path, at: &Path) -> io::Result<()>;
    /// Returns when the image is closed.
    fn unmount(&mut self, spec: &ImageSpec, at: &Path) -> io::Result<()>;
    /// See `Side::is_reference`.
    fn is_reference(&self) -> bool {
        false
    }
    /// See `Side::counters`.
    fn counters(&self, _at: &Path) -> io::Result<Option<Counters>> {
        Ok(None)
    }
    /// A forced unmount ends what hangs in it.
    fn can_be_aborted(&self) -> bool {
        false
    }
}

pub struct ImageSide {
    label: String,
    spec: ImageSpec,
    mounter: Box<dyn Mounter>,
    image: PathBuf,
    at: PathBuf,
    mounted: bool,
}

impl ImageSide {
    pub fn new(label: &str, spec: ImageSpec, mounter: Box<dyn Mounter>) -> ImageSide {
        let image = spec.scratch.join(format!("{label}.img"));
        let at = spec.scratch.join(format!("{label}.mnt"));
        ImageSide { label: label.to_string(), spec, mounter, image, at, mounted: false }
    }

    fn mount(&mut self) -> io::Result<()> {
        fs::create_dir_all(&self.at)?;
        self.mounter.mount(&self.spec, &self.image, &self.at)?;
        self.mounted = true;
        if is_mount_point(&self.at)? {
            return Ok(());
        }
        self.mounted = false;
        Err(io::Error::other(format!("{} is not mounted although mount said so", self.label)))
    }

    fn unmount(&mut self) -> io::Result<()> {
        if !self.mounted {
            return Ok(());
        }
        self.mounter.unmount(&self.spec, &self.at)?;
        self.mounted = false;
        Ok(())
    }

    /// Unmounts by force after a failure: what matters is that the next round can start.
    fn tear_off(&mut self) {
        if self.unmount().is_ok() {
            return;
        }
        // An aborted mount may be gone although its unmounting failed.
        if !is_mount_point(&self.at).unwrap_or(true) {
            self.mounted = false;
            return;
        }
        if let Some(abort) = self.abort_switch() {
            abort();
        }
        let lazily = self.spec.run(Command::new("umount").arg("-l").arg(&self.at));
        if let Err(error) = lazily {
            eprintln!("{}: {error}", self.label);
        }
        self.mounted = false;
    }
}

fn is_mount_point(at: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let parent = at.parent().unwrap_or(Path::new("/"));
    Ok(fs::metadata(at)?.dev() != fs::metadata(parent)?.dev())
}

impl Side for ImageSide {
    fn label(&self) -> &str {
        &self.label
    }

    fn is_reference(&self) -> bool {
        self.mounter.is_reference()
    }

    fn reset(&mut self) -> io::Result<()> {
        self.tear_off();
        self.mounter.make(&self.spec, &self.image)?;
        self.mount()
    }

    fn target(&mut self) -> io::Result<Box<dyn Target>> {
        if !self.mounted {
            return Err(io::Error::other(format!("{} is not mounted", self.label)));
        }
        Ok(Box::new(with_context(PosixDir::open(&self.at), self.at.display())?))
    }

    fn pause(&mut self) -> io::Result<()> {
        self.unmount()?;
        self.spec.settle_below()
    }

    fn resume(&mut self) -> io::Result<()> {
        if self.mounted { Ok(()) } else { self.mount() }
    }

    fn make_cold(&mut self) -> io::Result<()> {
        self.unmount()?;
        self.spec.make_cold(&self.image)?;
        self.mount()
    }

    fn abort_switch(&self) -> Option<Abort> {
        if !self.mounted || !self.mounter.can_be_aborted() {
            return None;
        }
        let at = CString::new(self.at.as_os_str().as_bytes()).ok()?;
        Some(Box::new(move || match sys::abort_mount(&at) {
            // Busy, of course: somebody hangs in it. It is aborted all the same.
            Err(e) if e.raw_os_error() != Some(libc::EBUSY) => eprintln!("abort: {e}"),
            _ => {}
        }))
    }

    fn counters(&mut self) -> io::Result<Option<Counters>> {
        if self.mounted { self.mounter.counters(&self.at) } else { Ok(None) }
    }

    fn verify(&mut self) -> io::Result<()> {
        self.unmount()?;
        self.mounter.check(&self.spec, &self.image)
    }

    fn close(&mut self) -> io::Result<()> {
        let result = self.unmount();
        self.tear_off();
        for removed in [fs::remove_file(&self.image), fs::remove_dir(&self.at)] {
            match removed {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        result
    }
}

impl Drop for ImageSide {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            eprintln!("{}: {error}", self.label);
        }
    }
}
