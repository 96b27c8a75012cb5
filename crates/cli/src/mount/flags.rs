//! The kernel's flags of a mount, as its table tells them and as mount(2) takes them.
//!
//! Invariant: a remount begins with what the mount has, for mount(2) takes away each flag that it
//! is not told. Only what is named changes: whoever has a mount turn read-only does not allow
//! set-user-ID programs by that.
//!
//! Access times are not changed here: the server keeps them, and the flags only say how.

use crate::mounts::MountEntry;
use libc::c_ulong;

/// Of one mount.
const OF_MOUNT: &[(&str, c_ulong)] = &[
    ("ro", libc::MS_RDONLY),
    ("nosuid", libc::MS_NOSUID),
    ("nodev", libc::MS_NODEV),
    ("noexec", libc::MS_NOEXEC),
    ("nosymfollow", libc::MS_NOSYMFOLLOW),
];
const ACCESS_TIMES: &[(&str, c_ulong)] = &[
    ("noatime", libc::MS_NOATIME),
    ("nodiratime", libc::MS_NODIRATIME),
    ("relatime", libc::MS_RELATIME),
];
/// Of the file system, for all its mounts.
const OF_FS: &[(&str, c_ulong)] =
    &[("ro", libc::MS_RDONLY), ("sync", libc::MS_SYNCHRONOUS), ("lazytime", libc::MS_LAZYTIME)];
/// What takes a flag away.
const WITHOUT: &[(&str, c_ulong)] = &[
    ("rw", libc::MS_RDONLY),
    ("suid", libc::MS_NOSUID),
    ("dev", libc::MS_NODEV),
    ("exec", libc::MS_NOEXEC),
    ("symfollow", libc::MS_NOSYMFOLLOW),
    ("async", libc::MS_SYNCHRONOUS),
    ("nolazytime", libc::MS_LAZYTIME),
];
/// What a remount changes of the file system.
const CHANGED_OF_FS: c_ulong = libc::MS_RDONLY | libc::MS_SYNCHRONOUS;
/// And what it takes from it, but does not give: the server would not do as it says.
const TAKEN_FROM_FS: c_ulong = CHANGED_OF_FS | libc::MS_LAZYTIME;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flags {
    pub mount: c_ulong,
    pub fs: c_ulong,
}

impl Flags {
    pub fn of(entry: &MountEntry) -> Flags {
        let strict = libc::MS_STRICTATIME;
        let times = flags_in(&entry.options, ACCESS_TIMES);
        let is_strict = times & (libc::MS_NOATIME | libc::MS_RELATIME) == 0;
        let mount = flags_in(&entry.options, OF_MOUNT) | times | if is_strict { strict } else { 0 };
        Flags { mount, fs: flags_in(&entry.fs_options, OF_FS) }
    }

    /// None but how access times are kept, and what no remount by us changes.
    pub fn without_what_can_be_named(self) -> Flags {
        let named = OF_MOUNT.iter().fold(0, |all, (_, flag)| all | flag);
        Flags { mount: self.mount & !named, fs: self.fs & !CHANGED_OF_FS }
    }

    /// As `words` change it; the last one counts.
    pub fn with<'a>(mut self, words: impl Iterator<Item = &'a str>) -> Flags {
        for word in words {
            let (set, clear) = change(word);
            self.mount = self.mount & !clear | set & !libc::MS_SYNCHRONOUS;
            self.fs = self.fs & !(clear & TAKEN_FROM_FS) | set & CHANGED_OF_FS;
        }
        self
    }
}

/// Whether a remount with this word is one of the file system, not only of the mount.
pub fn is_of_fs(word: &str) -> bool {
    let (set, clear) = change(word);
    (set | clear) & TAKEN_FROM_FS != 0
}

/// How the mount's access times are kept, by the table.
pub fn access_times(entry: &MountEntry) -> c_ulong {
    let all = ACCESS_TIMES.iter().fold(libc::MS_STRICTATIME, |all, (_, flag)| all | flag);
    Flags::of(entry).mount & all
}

/// Whether that is how access times are kept.
pub fn is_access_time(word: &str) -> bool {
    ACCESS_TIMES.iter().any(|(name, _)| *name == word)
}

/// Set and taken away.
fn change(word: &str) -> (c_ulong, c_ulong) {
    let is_it = |(name, _): &&(&str, c_ulong)| *name == word;
    let set = OF_MOUNT.iter().chain(OF_FS).find(is_it).map_or(0, |(_, flag)| *flag);
    (set & !libc::MS_LAZYTIME, WITHOUT.iter().find(is_it).map_or(0, |(_, flag)| *flag))
}

fn flags_in(list: &str, known: &[(&str, c_ulong)]) -> c_ulong {
    let named = |name: &str| list.split(',').any(|word| word == name);
    known.iter().filter(|(name, _)| named(name)).fold(0, |all, (_, flag)| all | flag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::*;

    fn entry(options: &str, fs_options: &str) -> MountEntry {
        MountEntry {
            id: 1,
            device: "0:1".into(),
            root: "/".into(),
            point: "/mnt".into(),
            options: options.into(),
            kind: "fuse.spinney".into(),
            source: "/img".into(),
            fs_options: fs_options.into(),
        }
    }

    #[test]
    fn only_what_is_named_changes() {
        let has = Flags::of(&entry("rw,nosuid,nodev,nosymfollow,noatime,nodiratime", "rw,sync"));
        let kept = MS_NOSUID | MS_NODEV | MS_NOSYMFOLLOW | MS_NOATIME | MS_NODIRATIME;
        assert_eq!(has, Flags { mount: kept, fs: MS_SYNCHRONOUS });
        let with = |list: &str| has.with(list.split(','));
        let fs = MS_RDONLY | MS_SYNCHRONOUS;
        assert_eq!(with("remount,ro,noatime"), Flags { mount: kept | MS_RDONLY, fs });
        assert_eq!(with("ro,rw,commit=5"), has);
        assert_eq!(with("async,suid,noexec").mount, kept & !MS_NOSUID | MS_NOEXEC);
        assert_eq!(with("async,suid,noexec").fs, 0);
        let none = has.without_what_can_be_named();
        assert_eq!(none, Flags { mount: MS_NOATIME | MS_NODIRATIME, fs: 0 });
    }

    #[test]
    fn how_access_times_are_kept_is_told_again() {
        let of = |options| Flags::of(&entry(options, "ro,lazytime"));
        assert_eq!(of("ro,relatime").mount, MS_RDONLY | MS_RELATIME);
        assert_eq!(of("rw,nodiratime").mount, MS_NODIRATIME | MS_STRICTATIME);
        assert_eq!(of("rw").with(["rw", "lazytime"].into_iter()).fs, MS_LAZYTIME);
        assert_eq!(of("rw").with(["rw", "nolazytime"].into_iter()).fs, 0);
        assert!(is_of_fs("nolazytime") && !is_of_fs("lazytime"));
    }
}
