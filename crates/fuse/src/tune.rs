//! What root can set outside the mount itself: the module's io_uring switch, and the
//! limits that the kernel keeps per mount under `/sys/class/bdi`.
//!
//! All of it is help, none of it is needed: a failure is logged and forgotten.

use std::fs;
use std::path::{Path, PathBuf};

const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Switches the transport on for mounts to come; the kernel looks when it offers.
pub(crate) fn enable_uring() {
    match fs::read_to_string(ENABLE_URING) {
        Ok(value) if value.trim() == "Y" => {}
        Ok(_) => match fs::write(ENABLE_URING, "Y") {
            Ok(()) => tracing::info!("switched on {ENABLE_URING}"),
            Err(error) => tracing::debug!("{ENABLE_URING}: {error}"),
        },
        Err(error) => tracing::debug!("{ENABLE_URING}: {error}"),
    }
}

/// Lets the mount use its share of dirty memory (FUSE mounts get 1 % by default, which
/// throttles a writeback cache) and read further ahead.
pub(crate) fn tune_mount(mountpoint: &Path, writeback: bool, read_ahead_kib: Option<u32>) {
    let Some(directory) = bdi_directory(mountpoint) else {
        tracing::debug!("no bdi directory for {}", mountpoint.display());
        return;
    };
    let set = |name: &str, value: String| {
        if let Err(error) = fs::write(directory.join(name), value) {
            tracing::debug!("{}/{name}: {error}", directory.display());
        }
    };
    if let Some(kib) = read_ahead_kib {
        set("read_ahead_kb", kib.to_string());
    }
    set("max_ratio", "100".into());
    if writeback {
        set("strict_limit", "0".into());
    }
}

/// `major:minor` of the topmost mount on `mountpoint`. Asks nobody who serves it.
pub(crate) fn number_on(mountpoint: &Path) -> Option<String> {
    device_number(&fs::read_to_string("/proc/self/mountinfo").ok()?, mountpoint)
}

fn bdi_directory(mountpoint: &Path) -> Option<PathBuf> {
    let number = number_on(mountpoint)?;
    [number.clone(), format!("{number}-fuseblk")]
        .iter()
        .map(|name| Path::new("/sys/class/bdi").join(name))
        // A fuseblk mount has the name of its disk's own bdi beside its own.
        .rfind(|path| path.is_dir())
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
