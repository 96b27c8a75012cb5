//! The kernel's table of mounts, as far as the numbers of a mount go, and whether it shows other owners.
//!
//! Paths are bytes there: whoever may mount can have one in it that is no text.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// `major:minor` of the topmost mount on `mountpoint`. Asks nobody who serves it.
pub(crate) fn number_on(mountpoint: &Path) -> Option<String> {
    device_number(&fs::read("/proc/self/mountinfo").ok()?, mountpoint)
}

/// `major:minor` of the last (topmost) mount on `mountpoint`.
fn device_number(mountinfo: &[u8], mountpoint: &Path) -> Option<String> {
    let number_on = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let number = fields.next()?;
        let target = fields.nth(1)?;
        (unescape(target) == mountpoint).then(|| String::from_utf8(number.to_vec()).ok())?
    };
    mountinfo.split(|byte| *byte == b'\n').filter_map(number_on).next_back()
}

/// The device of the mount with that number, and whether it is idmapped; `None`: the line is another's.
pub(crate) fn mount_of(line: &[u8], mount: &str) -> Option<(String, bool)> {
    let mut fields = line.split(|byte| *byte == b' ');
    if fields.next()? != mount.as_bytes() {
        return None;
    }
    let device = String::from_utf8(fields.nth(1)?.to_vec()).ok()?;
    let is_mapped = fields.nth(2)?.split(|byte| *byte == b',').any(|option| option == b"idmapped");
    Some((device, is_mapped))
}

/// mountinfo writes blanks and the like as `\ooo`.
fn unescape(text: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| byte == b'\\');
        let digits = digits.and_then(|digits| str::from_utf8(digits).ok());
        match digits.and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(escaped) => {
                out.push(escaped);
                rest = &behind[3..];
            }
            None => {
                out.push(byte);
                rest = behind;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn the_topmost_mount_is_found() {
        let info =
            b"29 1 0:26 / /a\\040b rw - tmpfs t rw\n30 1 0:27 / /x rw - fuse f rw\n31 1 0:30 / \
                     /a\\040b rw - fuse f rw\n";
        assert_eq!(device_number(info, Path::new("/a b")), Some("0:30".into()));
        assert_eq!(device_number(info, Path::new("/nowhere")), None);
        assert_eq!(unescape(b"a\\134b\\"), Path::new("a\\b\\"));
    }

    #[test]
    fn paths_need_not_be_text() {
        let info = b"29 1 0:26 / /\xff rw - tmpfs t rw\n30 1 0:27 / /x\\040\xe4 rw - fuse f rw\n";
        assert_eq!(
            device_number(info, Path::new(OsStr::from_bytes(b"/x \xe4"))),
            Some("0:27".into())
        );
        assert_eq!(
            device_number(info, Path::new(OsStr::from_bytes(b"/\xff"))),
            Some("0:26".into())
        );
    }
}
