//! What belongs to the machine and not to a mount: touched where the user asks for it by
//! name, and nowhere else.
//!
//! `-o transport=uring` switches on the `fuse` module's io_uring, which the kernel looks at when
//! a mount begins. `-o read-ahead=`, `max-ratio=` and `strict-limit=` set what the kernel
//! keeps for the mount under `/sys/class/bdi`. All of it is help: where it cannot be had the
//! mount stands without, and says so.

use crate::mounts;
use crate::sys;
use fuse::Transport;
use std::fs;
use std::path::{Path, PathBuf};

const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";
/// For whom it is not to switch on.
pub const FOR_URING: &str = "it needs Linux 6.14 or newer, and root to have said: \
     echo Y > /sys/module/fuse/parameters/enable_uring";

/// The kernel's limits of the mount. `None`: as the kernel made it.
#[derive(Clone, Copy, Default, Debug)]
pub struct Limits {
    /// How far reading ahead goes, in KiB.
    pub read_ahead: Option<u32>,
    /// Percent of the machine's unwritten pages that may be the mount's.
    pub max_ratio: Option<u32>,
    /// Whether that holds also while the machine has few of them.
    pub strict_limit: Option<bool>,
}

impl Limits {
    fn named(&self) -> impl Iterator<Item = (&'static str, u32)> {
        [
            ("read_ahead_kb", self.read_ahead),
            ("max_ratio", self.max_ratio),
            ("strict_limit", self.strict_limit.map(u32::from)),
        ]
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| (name, value)))
    }

    /// Sets them for what is mounted on `point`.
    pub fn set(&self, point: &Path) {
        if self.named().next().is_none() {
            return;
        }
        let Some(directory) = bdi_directory(point) else {
            tracing::warn!("the kernel has no limits for {}", point.display());
            return;
        };
        for (name, value) in self.named() {
            let file = directory.join(name);
            if let Err(error) = fs::write(&file, value.to_string()) {
                tracing::warn!("{} stays as it is: {error}", file.display());
            }
        }
    }
}

fn bdi_directory(point: &Path) -> Option<PathBuf> {
    let number = mounts::on(point).ok()??.device;
    [number.clone(), format!("{number}-fuseblk")]
        .iter()
        .map(|name| Path::new("/sys/class/bdi").join(name))
        // A fuseblk mount has the name of its disk's own bdi beside its own.
        .rfind(|path| path.is_dir())
}

/// The user asked for io_uring by name.
pub fn enable_uring() {
    match fs::read_to_string(ENABLE_URING) {
        Ok(value) if value.trim() == "Y" => {}
        Ok(_) => match fs::write(ENABLE_URING, "Y") {
            Ok(()) => tracing::info!("switched on {ENABLE_URING}, as transport=uring asks"),
            Err(error) => tracing::warn!("{ENABLE_URING} cannot be switched on: {error}"),
        },
        Err(error) => tracing::debug!("{ENABLE_URING}: {error}"),
    }
}

/// What would make a mount faster that took the classic transport by itself.
pub fn faster(asked: Transport, got: &str) -> Option<String> {
    let off = fs::read_to_string(ENABLE_URING).ok().map(|value| value.trim() != "Y");
    faster_where(asked, got, off, sys::is_root())
}

/// `off`: whether the parameter is; `None` where there is none.
fn faster_where(asked: Transport, got: &str, off: Option<bool>, root: bool) -> Option<String> {
    if asked != Transport::Auto || got != "classic" {
        return None;
    }
    let how = match (off, root) {
        (None, _) => "a kernel with FUSE over io_uring (Linux 6.14 or newer)".to_owned(),
        (Some(true), true) => {
            format!("-o transport=uring, which switches on {ENABLE_URING} for the machine")
        }
        (Some(true), false) => format!("root's `echo Y > {ENABLE_URING}`, before mounting"),
        (Some(false), _) => {
            "FUSE over io_uring, which does not work here (the log may say why)".into()
        }
    };
    Some(format!("it would be faster with {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fell_back_hears_what_would_help() {
        let told = |asked, got, off, root| faster_where(asked, got, off, root).unwrap_or_default();
        assert!(told(Transport::Auto, "classic", None, true).contains("6.14"));
        assert!(told(Transport::Auto, "classic", Some(true), true).contains("-o transport=uring"));
        assert!(told(Transport::Auto, "classic", Some(true), false).contains("echo Y"));
        assert!(told(Transport::Auto, "classic", Some(false), true).contains("does not work"));
        assert_eq!(told(Transport::Auto, "io_uring", Some(false), true), "");
        assert_eq!(told(Transport::Classic, "classic", Some(true), true), "");
    }

    #[test]
    fn only_what_was_named_is_set() {
        assert_eq!(Limits::default().named().count(), 0);
        let some = Limits { max_ratio: Some(50), strict_limit: Some(false), read_ahead: None };
        let expected = [("max_ratio", 50), ("strict_limit", 0)];
        assert_eq!(some.named().collect::<Vec<_>>(), expected);
    }
}
