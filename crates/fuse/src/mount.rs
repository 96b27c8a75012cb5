//! Getting a connection from the kernel, and giving it back.
//!
//! Root mounts by mount(2): type `fuseblk` over a block device, else `fuse`. Everybody
//! else asks the set-uid helper `fusermount3`, which sends the connection over a socket
//! whose number it finds in `_FUSE_COMMFD`.

use crate::config::{Config, Source};
use crate::device::Device;
use crate::mount_table;
use crate::sys::{self, How, LoopDevice};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use vfs::{FsError, Result};

const FUSERMOUNT: &str = "fusermount3";
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// Block size that a `fuseblk` mount gives its device.
const DEVICE_BLOCK: u32 = 4096;

pub(crate) struct Mounted {
    pub device: Device,
    /// The block device that the mount holds, if any.
    pub block_device: Option<PathBuf>,
}

pub(crate) fn failed(context: impl Into<String>, source: io::Error) -> FsError {
    FsError::Io { context: context.into(), source }
}

pub(crate) fn mount(mountpoint: &Path, config: &Config) -> Result<Mounted> {
    config.step("attach")?;
    if !sys::is_root() {
        let device = by_helper(mountpoint, config)?;
        return Ok(Mounted { device, block_device: None });
    }
    match &config.source {
        Source::Nothing => by_system_call(mountpoint, config, None)
            .map(|device| Mounted { device, block_device: None }),
        Source::BlockDevice(path) => over_block_device(mountpoint, config, path),
        Source::Image(image) => over_loop_device_or_nothing(mountpoint, config, image, None),
        Source::Part(image, part) => {
            over_loop_device_or_nothing(mountpoint, config, image, Some(part))
        }
    }
}

fn over_loop_device_or_nothing(
    mountpoint: &Path,
    config: &Config,
    image: &Path,
    part: Option<&Range<u64>>,
) -> Result<Mounted> {
    over_loop_device(mountpoint, config, image, part).or_else(|error| {
        if !is_denied(&error) {
            return Err(error);
        }
        let device = by_system_call(mountpoint, config, None)?;
        tracing::warn!(
            "{error}: sync(2) and syncfs(2) are not passed on, and umount(8) does not wait for \
             the last commit; fsync(2) and `spinney umount` are as ever"
        );
        Ok(Mounted { device, block_device: None })
    })
}

/// The kernel has no loop devices, or not for the root of a container, or no `fuseblk` for that of a user namespace.
fn is_denied(error: &FsError) -> bool {
    let FsError::Io { source, .. } = error else { return false };
    matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound)
}

fn over_loop_device(
    mountpoint: &Path,
    config: &Config,
    image: &Path,
    part: Option<&Range<u64>>,
) -> Result<Mounted> {
    let attached = LoopDevice::attach_part(image, part, config.read_only).map_err(|error| {
        failed(format!("attaching a loop device to {}", image.display()), error)
    })?;
    // The mount holds the device from here on; it detaches with the mount.
    over_block_device(mountpoint, config, attached.path())
}

fn over_block_device(mountpoint: &Path, config: &Config, path: &Path) -> Result<Mounted> {
    let device = by_system_call(mountpoint, config, Some(path))?;
    Ok(Mounted { device, block_device: Some(path.to_path_buf()) })
}

fn by_system_call(mountpoint: &Path, config: &Config, block: Option<&Path>) -> Result<Device> {
    config.step("open-device")?;
    let device = Device::open().map_err(|error| failed("opening /dev/fuse", error))?;
    let base = if block.is_some() { "fuseblk" } else { "fuse" };
    let kind = match config.subtype.as_str() {
        "" => base.to_string(),
        subtype => format!("{base}.{subtype}"),
    };
    let source = block.map_or(config.fsname.as_bytes(), |path| path.as_os_str().as_bytes());
    let data = mount_data(config, device.as_raw_fd(), block.is_some());
    sys::mount(source, mountpoint, &kind, mount_flags(config), &data)
        .map_err(|error| failed(format!("mounting {kind} on {}", mountpoint.display()), error))?;
    Ok(device)
}

fn mount_flags(config: &Config) -> libc::c_ulong {
    [
        (config.read_only, libc::MS_RDONLY),
        (config.nosuid, libc::MS_NOSUID),
        (config.nodev, libc::MS_NODEV),
        (config.noexec, libc::MS_NOEXEC),
        (config.nosymfollow, libc::MS_NOSYMFOLLOW),
        (config.noatime, libc::MS_NOATIME),
        (config.strictatime, libc::MS_STRICTATIME),
        (config.nodiratime, libc::MS_NODIRATIME),
        (config.sync, libc::MS_SYNCHRONOUS),
    ]
    .into_iter()
    .filter(|(on, _)| *on)
    .fold(0, |flags, (_, flag)| flags | flag)
}

fn mount_data(config: &Config, fd: i32, over_device: bool) -> String {
    let (uid, gid) = sys::user_and_group();
    let mut data =
        format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid},default_permissions");
    if config.allow_other {
        data.push_str(",allow_other");
    }
    if let Some(max_read) = config.max_read {
        data.push_str(&format!(",max_read={max_read}"));
    }
    if over_device {
        data.push_str(&format!(",blksize={DEVICE_BLOCK}"));
    }
    for option in &config.options {
        data.push(',');
        data.push_str(option);
    }
    data
}

/// The option list in `fusermount3`'s own words; commas in values are escaped.
fn helper_options(config: &Config) -> String {
    let escape = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut options = vec!["default_permissions".to_string()];
    let flags = [
        (config.read_only, "ro"),
        (config.nosuid, "nosuid"),
        (config.nodev, "nodev"),
        (config.noexec, "noexec"),
        (config.nosymfollow, "nosymfollow"),
        (config.noatime, "noatime"),
        (config.sync, "sync"),
        (config.allow_other, "allow_other"),
    ];
    options.extend(flags.iter().filter(|(on, _)| *on).map(|(_, name)| name.to_string()));
    if !config.fsname.is_empty() {
        options.push(format!("fsname={}", escape(&config.fsname)));
    }
    if !config.subtype.is_empty() {
        options.push(format!("subtype={}", escape(&config.subtype)));
    }
    if let Some(max_read) = config.max_read {
        options.push(format!("max_read={max_read}"));
    }
    options.extend(config.options.iter().cloned());
    options.join(",")
}

fn by_helper(mountpoint: &Path, config: &Config) -> Result<Device> {
    let context = |error| failed(format!("mounting with {FUSERMOUNT}"), error);
    let (ours, theirs) = UnixStream::pair().map_err(context)?;
    sys::mark_inheritable(theirs.as_raw_fd()).map_err(context)?;
    let child = Command::new(FUSERMOUNT)
        .arg("-o")
        .arg(helper_options(config))
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(context)?;
    drop(theirs);
    let received = sys::receive_fd(&ours);
    let output = child.wait_with_output().map_err(context)?;
    let said = String::from_utf8_lossy(&output.stderr);
    match received.map_err(context)? {
        Some(fd) => Ok(Device::from_fd(fd)),
        None => Err(context(io::Error::other(said.trim().to_string()))),
    }
}

/// Unmounts. `lazy` detaches the tree at once; else EBUSY while something is open.
pub(crate) fn unmount(mountpoint: &Path, lazy: bool) -> io::Result<()> {
    if sys::is_root() {
        return sys::unmount(mountpoint, if lazy { How::Lazily } else { How::Now });
    }
    by_helper_away(mountpoint, lazy)
}

fn by_helper_away(mountpoint: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { "-uz" } else { "-u" };
    let arguments = [OsString::from(flags), "--".into(), mountpoint.into()];
    let output = Command::new(FUSERMOUNT).args(arguments).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if text.contains("busy") {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    Err(io::Error::other(text))
}

/// Takes a mount away that is not served (yet): the connection is ended first, so that
/// neither this nor anybody's sync(2) waits for an answer that will not come.
pub(crate) fn give_up(
    mountpoint: &Path,
    number: Option<&str>,
    breaker: &Breaker,
) -> io::Result<()> {
    let there = mount_table::number_on(mountpoint);
    let ours = number.is_some() && there.as_deref() == number;
    match number {
        Some(_) if !ours => {
            breaker.end();
            Ok(())
        }
        _ if sys::is_root() => sys::unmount(mountpoint, How::ByForce),
        _ => {
            breaker.end();
            by_helper_away(mountpoint, true)
        }
    }
}

/// What ends the connection of the mount `number` (`major:minor`) when something is written to it. Where nobody has mounted the kernel's
/// control files (containers, small systems) root does so for himself, out of everybody's sight.
fn abort_file(number: Option<&str>) -> io::Result<File> {
    let connection = number.and_then(connection).ok_or(io::ErrorKind::NotFound)?;
    let name = format!("{connection}/abort");
    let open = |place: &Path| OpenOptions::new().write(true).open(place.join(&name));
    open(Path::new(CONNECTIONS)).or_else(|error| {
        let files = sys::control_files().map_err(|_| error)?;
        open(Path::new(&format!("/proc/self/fd/{}", files.as_raw_fd())))
    })
}

/// Ends a connection whose mount may be there still. Opened early: a server that serves may not be
/// allowed to open files, and the number can be another mount's once this one is gone.
#[derive(Clone, Default, Debug)]
pub(crate) struct Breaker(Option<Arc<File>>);

impl Breaker {
    /// Of the mount `number`; of none where the kernel's control files are out of reach.
    pub(crate) fn of(number: Option<&str>) -> Breaker {
        let file = abort_file(number);
        if let Err(error) = &file {
            tracing::warn!("no way to end the connection where a thread fails: {error}");
        }
        Breaker(file.ok().map(Arc::new))
    }

    /// Whoever waits for an answer has an error for one. Nothing happens where the mount is gone.
    pub(crate) fn end(&self) {
        if let Some(abort) = &self.0
            && let Err(error) = (&**abort).write_all(b"1")
        {
            tracing::warn!("ending the connection: {error}");
        }
    }
}

/// The kernel's name of a connection is its device number, as one number.
fn connection(number: &str) -> Option<u64> {
    let (major, minor) = number.split_once(':')?;
    Some(major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_their_devices_number() {
        assert_eq!(connection("0:39"), Some(39));
        assert_eq!(connection("7:3"), Some((7 << 20) + 3));
        assert_eq!(connection("x"), None);
    }

    #[test]
    fn options_become_data() {
        let config = Config {
            allow_other: true,
            max_read: Some(4096),
            fsname: "a,b\\c".into(),
            options: vec!["context=x".into()],
            read_only: true,
            ..Config::default()
        };
        let data = mount_data(&config, 7, true);
        assert!(data.starts_with("fd=7,rootmode=40000,user_id="));
        assert!(data.ends_with(",allow_other,max_read=4096,blksize=4096,context=x"));
        assert_eq!(mount_flags(&config), libc::MS_RDONLY);
        let helper = helper_options(&config);
        assert!(helper.contains("fsname=a\\,b\\\\c,subtype=spinney"), "{helper}");
    }
}
