//! A loop device over an image file, so that the image can be the source of a
//! `fuseblk` mount.
//!
//! Only the kernel's bookkeeping needs the device; the server may do its I/O on the
//! file itself, since nothing goes through the device's own cache. The device detaches
//! by itself when its last user (this handle or the mount) is gone.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// Somebody else may take the free device that we were told of.
const ATTEMPTS: usize = 64;

#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

/// A loop device that stays while this is held, or anybody uses it.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    /// Open, so that the device does not detach before the mount holds it.
    _file: File,
}

impl LoopDevice {
    /// Makes one over `image`, as root; fails with the kernel's error, also where none is free.
    pub fn attach(image: &Path, read_only: bool) -> io::Result<LoopDevice> {
        LoopDevice::attach_part(image, None, read_only)
    }

    /// The same over some bytes of it.
    pub fn attach_part(
        image: &Path,
        part: Option<&Range<u64>>,
        read_only: bool,
    ) -> io::Result<LoopDevice> {
        let backing = OpenOptions::new().read(true).write(!read_only).open(image)?;
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        for _ in 0..ATTEMPTS {
            // SAFETY: an ioctl without argument.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let file = OpenOptions::new().read(true).write(!read_only).open(&path)?;
            match configure(&file, &backing, image, part, read_only) {
                Ok(()) => return Ok(LoopDevice { path, _file: file }),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => continue,
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Its node in `/dev`.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn configure(
    device: &File,
    backing: &File,
    image: &Path,
    part: Option<&Range<u64>>,
    read_only: bool,
) -> io::Result<()> {
    // SAFETY: the structure is plain data, for which all zeros is a valid value.
    let mut config: LoopConfig = unsafe { mem::zeroed() };
    config.fd = backing.as_raw_fd() as u32;
    config.info.flags = LO_FLAGS_AUTOCLEAR | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
    if let Some(part) = part {
        (config.info.offset, config.info.size_limit) = (part.start, part.end - part.start);
    }
    let name = image.as_os_str().as_bytes();
    let len = name.len().min(config.info.file_name.len() - 1);
    config.info.file_name[..len].copy_from_slice(&name[..len]);
    // SAFETY: the kernel reads a loop_config, whose layout LoopConfig has.
    let rc = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &config) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_the_kernels() {
        assert_eq!(mem::size_of::<LoopInfo64>(), 232);
        assert_eq!(mem::size_of::<LoopConfig>(), 304);
    }
}
