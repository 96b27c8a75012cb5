//! The kernel's table of mounts, as far as the number of a mount goes.

use std::fs;
use std::path::Path;

/// `major:minor` of the topmost mount on `mountpoint`. Asks nobody who serves it.
pub(crate) fn number_on(mountpoint: &Path) -> Option<String> {
    device_number(&fs::read_to_string("/proc/self/mountinfo").ok()?, mountpoint)
}

/// `major:minor` of the last (topmost) mount on `mountpoint`.
fn device_number(mountinfo: &str, mountpoint: &Path) -> Option<String> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(2);
            let number = fields.next()?;
            let target = fields.nth(1)?;
            (Path::new(&unescape(target)) == mountpoint).then(|| number.to_string())
        })
        .next_back()
}

/// mountinfo writes blanks and the like as `\ooo`.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        match rest.get(at + 1..at + 4).and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) => {
                out.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_is_found() {
        let info = "29 1 0:26 / /a\\040b rw - tmpfs t rw\n30 1 0:27 / /x rw - fuse f rw\n31 1 0:30 / /a\\040b rw - fuse f rw\n";
        assert_eq!(device_number(info, Path::new("/a b")), Some("0:30".into()));
        assert_eq!(device_number(info, Path::new("/nowhere")), None);
        assert_eq!(unescape("a\\134b\\"), "a\\b\\");
    }
}
