//! The kernel's own btrfs over an image file: loop device, mount, and the way back.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::command::sh;

/// An image attached to a loop device until dropped.
pub struct LoopDevice {
    device: PathBuf,
    attached: bool,
}

impl LoopDevice {
    pub fn attach(image: &Path, read_only: bool) -> Result<LoopDevice, String> {
        let image = image.to_string_lossy();
        let mut args = vec!["-f", "--show"];
        if read_only {
            args.push("-r");
        }
        args.push(&image);
        let mut tries = 0;
        loop {
            // Between finding and taking a free device somebody else may take it.
            match sh("losetup", &args) {
                Ok(device) => return Ok(LoopDevice { device: device.into(), attached: true }),
                Err(error) if tries == 5 => return Err(error),
                Err(_) => sleep(Duration::from_millis(50 << tries)),
            }
            tries += 1;
        }
    }

    pub fn path(&self) -> &Path {
        &self.device
    }

    pub fn detach(mut self) -> Result<(), String> {
        self.release()
    }

    fn release(&mut self) -> Result<(), String> {
        if !self.attached {
            return Ok(());
        }
        self.attached = false;
        let device = self.device.to_string_lossy().into_owned();
        sh("losetup", &["-d", &device]).map(|_| ())
    }

    /// The file below it, as the kernel names it.
    fn backing(&self) -> Option<String> {
        let name = self.device.file_name()?;
        let below = Path::new("/sys/block").join(name).join("loop/backing_file");
        fs::read_to_string(below).ok()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            eprintln!("{error}");
        }
    }
}

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// How long another namespace may have a copy of a mount.
const ELSEWHERE: Duration = Duration::from_secs(30);

/// Waits until the kernel's file system has closed the device.
///
/// Whoever makes a mount namespace (any service that starts) has all mounts of the machine in
/// it until it ends or undoes them: umount(8) succeeds meanwhile, but nothing is committed, and
/// a copy of the image cannot be mounted.
fn closed(device: &LoopDevice, backing: Option<String>) -> Result<(), String> {
    let deadline = Instant::now() + ELSEWHERE;
    while backing.is_some() && device.backing() == backing {
        if Instant::now() > deadline {
            let name = device.path().display();
            return Err(format!("{name} is unmounted here, but in use for {ELSEWHERE:?} since"));
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A btrfs volume mounted by the kernel until dropped.
pub struct KernelMount {
    point: PathBuf,
    devices: Vec<LoopDevice>,
    mounted: bool,
}

impl KernelMount {
    /// Mounts an image with comma-separated options (may be empty).
    pub fn new(image: &Path, options: &str) -> Result<KernelMount, String> {
        KernelMount::of_devices(&[image], options)
    }

    /// Mounts a volume of several devices.
    pub fn of_devices(images: &[&Path], options: &str) -> Result<KernelMount, String> {
        let read_only = options.split(',').any(|option| option == "ro");
        let attach = |image: &&Path| LoopDevice::attach(image, read_only);
        let devices = images.iter().map(attach).collect::<Result<Vec<_>, _>>()?;
        KernelMount::of_attached(devices, options)
    }

    /// Mounts devices that are there already, whose end comes with the mount's.
    pub fn of_attached(devices: Vec<LoopDevice>, options: &str) -> Result<KernelMount, String> {
        let mut all = Vec::new();
        if !options.is_empty() {
            all.push(options.to_owned());
        }
        if devices.len() > 1 {
            all.extend(devices.iter().map(|device| format!("device={}", device.device.display())));
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let point = std::env::temp_dir()
            .join("spinney-mounts")
            .join(format!("{}-{number}", std::process::id()));
        fs::create_dir_all(&point).map_err(|error| format!("{}: {error}", point.display()))?;
        // From here on, Drop cleans up.
        let mut mount = KernelMount { point, devices, mounted: false };
        mount.mount(&all.join(","))?;
        Ok(mount)
    }

    fn mount(&mut self, options: &str) -> Result<(), String> {
        let Some(device) = self.devices.first() else { return Err("no device".to_owned()) };
        let (device, point) = (device.path().to_string_lossy(), self.point.to_string_lossy());
        let mut args = vec!["-t", "btrfs"];
        if !options.is_empty() {
            args.extend(["-o", options]);
        }
        args.extend([&*device, &*point]);
        let mut tries = 0;
        while let Err(error) = sh("mount", &args) {
            // A copy of the image was just unmounted, and somebody's namespace has it still.
            if tries == 6 || !error.contains("File exists") {
                return Err(error);
            }
            sleep(Duration::from_millis(50 << tries));
            tries += 1;
        }
        self.mounted = true;
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.point
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }

    /// The first device.
    pub fn device(&self) -> &Path {
        self.devices.first().map_or(Path::new(""), LoopDevice::path)
    }

    /// Changes the options of the running mount, e.g. `compress-force=zstd`.
    pub fn remount(&self, options: &str) -> Result<(), String> {
        let point = self.point.to_string_lossy();
        sh("mount", &["-o", &format!("remount,{options}"), &point]).map(|_| ())
    }

    /// Unmounts and detaches, and tells if that failed. The volume is closed then, also where
    /// other namespaces had it for a while.
    pub fn unmount(mut self) -> Result<(), String> {
        self.release()
    }

    fn release(&mut self) -> Result<(), String> {
        let mut result = Ok(());
        if std::mem::take(&mut self.mounted) {
            result = self.unmount_patiently();
        }
        let devices = std::mem::take(&mut self.devices);
        let backing: Vec<_> = devices.iter().map(LoopDevice::backing).collect();
        for (mut device, backing) in devices.into_iter().zip(backing) {
            let released = device.release();
            result = result.and(released).and_then(|()| closed(&device, backing));
        }
        // Only an empty directory goes; a mount that is still there stays.
        let removed = fs::remove_dir(&self.point);
        result.and(removed.map_err(|error| format!("{}: {error}", self.point.display())))
    }

    /// Something (an indexer, a late close) may keep a mount busy for a moment.
    fn unmount_patiently(&self) -> Result<(), String> {
        let point = self.point.to_string_lossy();
        let mut last = String::new();
        for tries in 0..6 {
            match sh("umount", &[&*point]) {
                Ok(_) => return Ok(()),
                Err(error) => last = error,
            }
            sleep(Duration::from_millis(50 << tries));
        }
        let lazy = sh("umount", &["-l", &*point]);
        Err(format!("{last}\nlazy unmount: {lazy:?}"))
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if !self.mounted && self.devices.is_empty() {
            return;
        }
        if let Err(error) = self.release() {
            eprintln!("{error}");
        }
    }
}
