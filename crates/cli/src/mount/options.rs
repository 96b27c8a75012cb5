//! The list after `-o`: ours, FUSE's, mount(8)'s, and what an fstab written for the
//! kernel's btrfs may have.
//!
//! Nothing is ignored silently: what has no effect here and might be missed gives a
//! warning, what is unknown an error (unless mount(8) asks for leniency).

use crate::args::size;
use crate::error::{Error, Result};
use crate::image::{ImageFile, Part, named};
use crate::mount::machine::Limits;
use crate::rescue_options::RescueOptions;
use crate::sys;
use crate::words;
use btrfs_disk::TreeId;
use btrfs_fs::{Atime, Compress, Method, Options, Rescue, Subvol};
use fuse::{Config, Map, Owners};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    pub fs: Options,
    pub config: Config,
    pub log: Option<PathBuf>,
    /// As root, do not attach a loop device to an image.
    pub plain: bool,
    /// The server keeps what it does not need.
    pub no_sandbox: bool,
    /// What the kernel keeps for the mount, where the user says so.
    pub limits: Limits,
    /// What of the image is the volume.
    pub slice: Slice,
    /// The mounting user has what is the top directory's owner's.
    pub map_owner: bool,
    /// The mount is there already, and gets other flags.
    pub remount: bool,
    /// The list is mount(8)'s, not a person's.
    pub by_mount8: bool,
    /// These were asked for by name.
    with_suid: bool,
    with_dev: bool,
    /// What lists the options, to tell which one was meant.
    help: &'static str,
    /// Options without effect.
    ignored: Vec<String>,
    /// All of them, as they were written.
    named: Vec<String>,
}

/// As `offset=` and `sizelimit=` say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slice {
    offset: Option<u64>,
    limit: Option<u64>,
}

impl Slice {
    /// The name of that part of `image`.
    pub fn of(self, image: &Path) -> Result<PathBuf> {
        if self.offset.is_none() && self.limit.is_none() {
            return Ok(image.to_owned());
        }
        let place = ImageFile::of(image);
        if place.part != Part::All {
            return Err(Error::usage("an image's part has no offset= or sizelimit="));
        }
        // 0 is no limit, as for losetup(8).
        let most = self.limit.filter(|limit| *limit > 0);
        Ok(named(&place.file, Part::Bytes { start: self.offset.unwrap_or(0), most }))
    }
}

/// For mount(8), systemd and people, not for the file system.
const OTHERS: &[&str] = &[
    "defaults",
    "rw",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "fail",
    "_netdev",
    "nolazytime",
    "loud",
    "silent",
    "noiversion",
    "nomand",
    "default_permissions",
    // From the mount table, when mount(8) remounts.
    "user_id",
    "group_id",
    "blksize",
    "loop",
    "comment",
    "uhelper",
    "helper",
];

/// For the FUSE transport.
const TRANSPORT: &[&str] = &[
    "suid",
    "dev",
    "exec",
    "nosuid",
    "nodev",
    "noexec",
    "symfollow",
    "nosymfollow",
    "sync",
    "async",
    "allow_other",
    "writeback",
    "open-errors",
    "open_errors",
    "fsname",
    "subtype",
    "max_read",
    "max_write",
    "threads",
    "transport",
    "no_spread_large_reads",
    "poll",
];

/// Of the kernel's btrfs: what they ask for is the case. No device is missing of a volume of one, and others are
/// refused by themselves.
const HOLDS: &[&str] = &[
    "acl",
    "barrier",
    "datacow",
    "datasum",
    "degraded",
    "noautodefrag",
    "nodiscard",
    "noflushoncommit",
];

/// Of the kernel: what they ask for is not done here.
const WITHOUT_EFFECT: &[&str] = &[
    "autodefrag",
    "flushoncommit",
    "lazytime",
    "ssd",
    "nossd",
    "ssd_spread",
    "nossd_spread",
    "max_inline",
    "metadata_ratio",
];

impl MountOptions {
    /// `help` lists the options.
    pub fn listed_in(help: &'static str) -> MountOptions {
        let mut options = MountOptions { help, ..MountOptions::default() };
        options.fs.memory_bytes = sys::usual_budget();
        options
    }

    /// Takes a list; `lenient` turns unknown options into warnings.
    pub fn apply(&mut self, list: &str, lenient: bool) -> Result<()> {
        for option in list.split(',').filter(|option| !option.is_empty()) {
            self.one(option, lenient)?;
            self.named.push(option.into());
        }
        Ok(())
    }

    /// As they were written.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        self.named.iter().map(String::as_str)
    }

    /// Those that may be the kernel's flags. An owner that is forced implies some.
    pub fn flag_words(&self) -> impl Iterator<Item = &str> {
        let read_only = self.config.read_only.then_some("ro");
        let implied = [(self.config.nosuid, "nosuid"), (self.config.nodev, "nodev")];
        let implied = implied.into_iter().filter(|(on, _)| *on).map(|(_, word)| word);
        self.named().chain(read_only).chain(implied)
    }

    /// Whether a remount lists all flags that shall hold, those of before among them. mount(8) does,
    /// with `ro` or `rw`; to have `suid` it leaves `nosuid` out.
    pub fn names_all_flags(&self) -> bool {
        self.by_mount8 && self.named().any(|word| matches!(word, "ro" | "rw"))
    }

    /// All that was said of how the server works, to be compared.
    pub fn settings(&self) -> String {
        let whose = (&self.config, self.map_owner);
        let server = (&self.limits, self.plain, self.no_sandbox, &self.log);
        format!("{:?}", (&self.fs, self.slice, whose, server))
    }

    fn one(&mut self, option: &str, lenient: bool) -> Result<()> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "ro" => self.read_only(),
            "subvol" => self.subvolume(subvol_path(value)?),
            "subvolid" => self.subvolume(subvol_id(value)?),
            "commit" => self.fs.commit_interval = seconds(value)?,
            "memory" => self.fs.memory_bytes = size(value)?,
            "cache-size" | "cache_size" => self.fs.cache_bytes = size(value)?,
            "delta-size" | "delta_size" => self.fs.delta_bytes = size(value)?,
            "dirty-size" | "dirty_size" => self.fs.dirty_bytes = size(value)?,
            "inode-cache" | "inode_cache" => self.fs.inode_bytes = size(value)?,
            "discard" => self.fs.discard = one_of(option, value, &["", "sync", "async"])?,
            "compress" | "compress-force" => self.fs.compress = compress(option, name, value)?,
            "user_subvol_rm_allowed" => self.fs.user_subvol_rm_allowed = true,
            "skip_balance" => self.fs.skip_balance = true,
            "nodiscard" => self.fs.discard = false,
            "nologreplay" | "norecovery" => self.fs.ignore_log = true,
            "rescue" => self.rescue(value)?,
            "usebackuproot" => self.rescue(name)?,
            "treelog" => self.fs.tree_log = true,
            "notreelog" => self.fs.tree_log = false,
            "fsync" => self.fs.tree_log = logged(value)?,
            "offset" => self.slice.offset = Some(size(value)?),
            "sizelimit" => self.slice.limit = Some(size(value)?),
            "plain" => self.plain = true,
            "no-sandbox" | "no_sandbox" => self.no_sandbox = true,
            "read-ahead" | "read_ahead" => {
                self.limits.read_ahead = Some(in_range(option, value, 0, 1 << 20)?);
            }
            "max-ratio" | "max_ratio" => {
                self.limits.max_ratio = Some(in_range(option, value, 0, 100)?);
            }
            "strict-limit" | "strict_limit" => {
                self.limits.strict_limit = Some(in_range(option, value, 0, 1)? != 0);
            }
            "remount" => self.remount = true,
            "uid" => self.config.owners.users = Map::Forced(user(value)?),
            "gid" => self.config.owners.groups = Map::Forced(group(value)?),
            "map-owner" | "map_owner" if value.is_empty() => self.map_owner = true,
            "log" => self.log = Some(std::path::absolute(value).map_err(Error::usage)?),
            // The last word of `ro,rw` counts.
            "rw" => (self.fs.read_only, self.config.read_only) = (false, false),
            _ if TRANSPORT.contains(&name) => self.transport(option)?,
            _ if self.access_times(name) => {}
            // The free-space tree.
            "space_cache" if value == "v2" => {}
            "space_cache" => {
                one_of(option, value, &["", "v1", "v2"])?;
                self.ignored.push(option.into());
            }
            "thread_pool" => {
                in_range(option, value, 1, u32::MAX)?;
                self.ignored.push(option.into());
            }
            _ if known_to_others(name) || HOLDS.contains(&name) => {}
            _ if WITHOUT_EFFECT.contains(&name) => self.ignored.push(option.into()),
            _ if lenient => self.ignored.push(format!("{option} (unknown)")),
            _ => return Err(unknown(option, self.help)),
        }
        Ok(())
    }

    /// Path and number hold both: installers write both into fstab, and a snapshot that took the place of what was
    /// installed has the path alone.
    fn subvolume(&mut self, said: Subvol) {
        use Subvol::{Both, Default, Id, Path};
        let before = std::mem::replace(&mut self.fs.subvol, Default);
        self.fs.subvol = match (before, said) {
            (Id(id) | Both(id, _), Path(path)) | (Path(path) | Both(_, path), Id(id)) => {
                Both(id, path)
            }
            (_, said) => said,
        };
    }

    fn rescue(&mut self, words: &str) -> Result<()> {
        let (rescue, ignore_log) = (self.fs.rescue, self.fs.ignore_log);
        let mut all = RescueOptions { rescue, ignore_log };
        all.add(words)?;
        (self.fs.rescue, self.fs.ignore_log) = (all.rescue, all.ignore_log);
        Ok(())
    }

    /// A line for who wonders why nothing happens.
    pub fn warning(&self) -> Option<String> {
        match self.ignored.as_slice() {
            [] => None,
            [one] => Some(format!("option without effect: {one}")),
            all => Some(format!("options without effect: {}", all.join(", "))),
        }
    }

    /// To be called when all options are known.
    pub fn settle(&mut self) -> Result<()> {
        if self.fs.rescue != Rescue::default() && !self.fs.read_only {
            return Err(Error::usage("option rescue= is for read-only mounts: add ro"));
        }
        self.tell_access_times();
        let forced = !self.config.owners.are_as_stored();
        if forced && self.map_owner {
            return Err(Error::usage("option map-owner says whose files are: no uid=, no gid="));
        }
        if forced || self.map_owner {
            // A program that runs as its owner, a device that he may open, must not become
            // somebody else's.
            self.config.nosuid |= !self.with_suid;
            self.config.nodev |= !self.with_dev;
        }
        Ok(())
    }

    /// Whose files appear to be whose, of a volume whose top directory is `top`.
    pub fn owners(&self, top: &vfs::Attr) -> Owners {
        if !self.map_owner {
            return self.config.owners;
        }
        let (uid, gid) = sys::user_and_group();
        Owners {
            users: Map::Alias { stored: top.uid, seen: uid },
            groups: Map::Alias { stored: top.gid, seen: gid },
        }
    }

    /// The server keeps access times, and the kernel's flags say how.
    fn access_times(&mut self, name: &str) -> bool {
        match name {
            "atime" | "relatime" => self.fs.atime = Atime::Relative,
            "strictatime" => self.fs.atime = Atime::Always,
            "noatime" | "norelatime" | "nostrictatime" => self.fs.atime = Atime::Never,
            "nodiratime" => self.fs.nodiratime = true,
            "diratime" => self.fs.nodiratime = false,
            _ => return false,
        }
        self.tell_access_times();
        true
    }

    fn tell_access_times(&mut self) {
        self.config.noatime = self.fs.atime == Atime::Never;
        self.config.strictatime = self.fs.atime == Atime::Always;
        self.config.nodiratime = self.fs.nodiratime;
    }

    pub fn read_only(&mut self) {
        self.fs.read_only = true;
        self.config.read_only = true;
    }

    fn transport(&mut self, option: &str) -> Result<()> {
        match option {
            "suid" | "nosuid" => self.with_suid = option == "suid",
            "dev" | "nodev" => self.with_dev = option == "dev",
            _ => {}
        }
        let wrong = |_| Error::usage(format!("option {option}: no such value"));
        self.config.apply_options(option).map_err(wrong)
    }
}

/// What an fsync writes: the tree log, or all as a commit.
fn logged(value: &str) -> Result<bool> {
    match value {
        "log" => Ok(true),
        "commit" => Ok(false),
        _ => Err(Error::usage(format!("option fsync={value}: log or commit"))),
    }
}

fn user(value: &str) -> Result<u32> {
    let named = || sys::user_id_and_group(value).map(|(uid, _)| uid);
    let found = value.parse().ok().or_else(named).filter(|uid| *uid != u32::MAX);
    found.ok_or_else(|| Error::usage(format!("uid={value}: no such user")))
}

fn group(value: &str) -> Result<u32> {
    let found = value.parse().ok().or_else(|| sys::group_id(value)).filter(|gid| *gid != u32::MAX);
    found.ok_or_else(|| Error::usage(format!("gid={value}: no such group")))
}

fn known_to_others(name: &str) -> bool {
    OTHERS.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

fn unknown(option: &str, help: &str) -> Error {
    match option {
        "dirsync" => Error::usage(
            "option dirsync is not supported; an fsync of the directory makes its names \
             durable, -o commit=1 limits what a crash can lose to a second",
        ),
        "nodatacow" | "nodatasum" => {
            Error::usage(format!("option {option} of the kernel's btrfs is not supported"))
        }
        _ => {
            let known = words::list_options(help);
            let names = known.iter().map(|known| known.trim_end_matches('='));
            let name = option.split('=').next().unwrap_or(option);
            let hint = words::similar(name, names).map(|meant| format!(" (did you mean {meant}?)"));
            let hint = hint.unwrap_or_default();
            Error::usage(format!("unknown option {option}{hint}; `spinney help mount` lists them"))
        }
    }
}

pub fn subvol_path(value: &str) -> Result<Subvol> {
    if value.is_empty() {
        return Err(Error::usage("subvol= needs a path from the top of the volume"));
    }
    Ok(Subvol::Path(value.trim_matches('/').as_bytes().to_vec()))
}

pub fn subvol_id(value: &str) -> Result<Subvol> {
    let digits = value.strip_prefix("0x");
    let number = match digits {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => value.parse(),
    };
    match number {
        // 0 stands for the top level, as in the kernel's mount options.
        Ok(0) => Ok(Subvol::Id(TreeId::FS)),
        Ok(id) => Ok(Subvol::Id(TreeId(id))),
        Err(_) => Err(Error::usage(format!("subvolid={value}: not a number"))),
    }
}

fn in_range(option: &str, value: &str, least: u32, most: u32) -> Result<u32> {
    let wrong = || Error::usage(format!("option {option}: write a number, {least} to {most}"));
    value.parse().ok().filter(|number| (least..=most).contains(number)).ok_or_else(wrong)
}

/// True, where the value is one that there is. The first may be none.
fn one_of(option: &str, value: &str, all: &[&str]) -> Result<bool> {
    let named =
        || all.iter().filter(|one| !one.is_empty()).copied().collect::<Vec<_>>().join(" or ");
    let wrong = || Error::usage(format!("option {option}: it may be {}", named()));
    all.contains(&value).then_some(true).ok_or_else(wrong)
}

/// As the kernel reads it.
fn compress(option: &str, name: &str, value: &str) -> Result<Option<Compress>> {
    let force = name == "compress-force";
    let method = match value {
        "no" | "none" => return Ok(None),
        "" => Method::DEFAULT,
        other => method(option, other)?,
    };
    Ok(Some(Compress { method, force }))
}

/// `TYPE[:LEVEL]` of `option`.
pub fn method(option: &str, value: &str) -> Result<Method> {
    let wrong = || Error::usage(format!("{option}: write zlib[:1-9], lzo or zstd[:-15-15]"));
    Method::parse(value).ok_or_else(wrong)
}

fn seconds(value: &str) -> Result<Duration> {
    match value.parse() {
        // As in the kernel.
        Ok(0) => Ok(Options::default().commit_interval),
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err(Error::usage(format!("commit={value}: write seconds, 1 to 86400, or 0 for 30"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &str) -> MountOptions {
        let mut options = MountOptions::default();
        options.apply(list, false).unwrap();
        options
    }

    #[test]
    fn options_set_what_they_name() {
        let o = parsed("rw,subvol=/a/b,commit=5,cache-size=64M,discard,nosuid,transport=classic");
        assert_eq!(o.fs.subvol, Subvol::Path(b"a/b".to_vec()));
        assert_eq!(o.fs.commit_interval, Duration::from_secs(5));
        assert_eq!(parsed("commit=5,commit=0").fs.commit_interval, Duration::from_secs(30));
        assert!(parsed("discard=sync").fs.discard && parsed("discard=async").fs.discard);
        assert_eq!(o.fs.cache_bytes, 64 << 20);
        assert!(o.fs.discard && o.config.nosuid && !o.fs.read_only);
        assert_eq!(o.config.transport, fuse::Transport::Classic);
        assert!(o.config.options.is_empty(), "nothing unknown goes to the kernel");
        assert_eq!(parsed("subvolid=0").fs.subvol, Subvol::Id(TreeId::FS));
        for both in ["subvolid=7,subvol=a", "subvol=b,subvol=/a,subvolid=7"] {
            assert_eq!(parsed(both).fs.subvol, Subvol::Both(TreeId(7), b"a".to_vec()));
        }
        assert_eq!(parsed("subvolid=0x100").fs.subvol, Subvol::Id(TreeId(256)));
        let limits = parsed("read-ahead=512,max-ratio=50,strict-limit=0").limits;
        assert_eq!((limits.read_ahead, limits.max_ratio), (Some(512), Some(50)));
        assert_eq!(limits.strict_limit, Some(false));
        assert!(parsed("ro").fs.read_only && parsed("ro").config.read_only);
        assert!(!parsed("ro,rw").fs.read_only);
        assert!(parsed("ro,nologreplay").fs.ignore_log && !parsed("ro").fs.ignore_log);
        assert!(parsed("ro,rescue=nologreplay").fs.ignore_log);
        assert!(parsed("fsync=log").fs.tree_log && parsed("notreelog,treelog").fs.tree_log);
        assert!(!parsed("fsync=commit").fs.tree_log && !parsed("notreelog").fs.tree_log);
        assert!(MountOptions::default().apply("fsync=never", true).is_err());
    }

    #[test]
    fn owners_are_forced_or_mapped() {
        let settled = |list: &str| {
            let mut options = parsed(list);
            options.settle().map(|()| options)
        };
        let forced = settled("uid=7,gid=root").unwrap();
        let expected = Owners { users: Map::Forced(7), groups: Map::Forced(0) };
        assert_eq!(forced.config.owners, expected);
        assert!(forced.config.nosuid && forced.config.nodev);
        let asked = settled("suid,dev,map-owner").unwrap();
        assert!(asked.map_owner && !asked.config.nosuid && !asked.config.nodev);
        assert!(settled("suid,nosuid,uid=1").unwrap().config.nosuid);
        assert!(!settled("rw").unwrap().config.nosuid);
        assert!(settled("map-owner,uid=7").is_err());
        for wrong in ["uid=", "uid=nobody-here", "gid=-1", "map-owner=7", "uid=4294967295"] {
            assert!(MountOptions::default().apply(wrong, false).is_err(), "{wrong}");
        }
    }

    #[test]
    fn fstab_options_pass() {
        let o = parsed("defaults,noauto,user,_netdev,nofail,x-systemd.automount,relatime");
        assert_eq!(o.warning(), None);
        assert_eq!(parsed("acl,space_cache=v2,nodiscard").warning(), None);
        let told = "option without effect: autodefrag";
        assert_eq!(parsed("autodefrag").warning().unwrap(), told);
        let told = "options without effect: space_cache=v1, ssd, thread_pool=4";
        assert_eq!(parsed("space_cache=v1,ssd,acl,thread_pool=4").warning().unwrap(), told);
    }

    #[test]
    fn compression_is_read_as_the_kernel_reads_it() {
        let of = |list: &str| parsed(list).fs.compress.map(|c| (c.method, c.force));
        let method = |text| Method::parse(text).unwrap();
        assert_eq!(of("compress"), Some((method("zlib"), false)));
        assert_eq!(of("compress=zstd:5"), Some((method("zstd:5"), false)));
        assert_eq!(of("compress-force=lzo"), Some((method("lzo"), true)));
        assert_eq!(of("compress=zstd,compress=no"), None);
        assert!(MountOptions::default().apply("compress=gzip", false).is_err());
    }

    /// What shells complete behind -o, and the help names, is known here.
    #[test]
    fn what_the_help_lists_is_taken() {
        let help = crate::commands::mount::COMMAND.help;
        let listed = words::list_options(help);
        assert!(listed.len() > 20, "{listed:?}");
        for option in listed {
            let option = if option.ends_with('=') { format!("{option}1") } else { option };
            let taken = MountOptions::default().apply(&option, false);
            let why = taken.err().map(|error| error.text()).unwrap_or_default();
            assert!(!why.contains("unknown option"), "{option}: {why}");
        }
        let why = MountOptions::listed_in(help).apply("nosiud", false).unwrap_err().text();
        assert!(why.contains("did you mean nosuid?"), "{why}");
    }

    /// As for the kernel: nothing is missing.
    #[test]
    fn a_volume_of_one_device_may_be_degraded() {
        let mut options = MountOptions::default();
        options.apply("ro,degraded", false).unwrap();
        assert_eq!(options.warning(), None);
    }

    #[test]
    fn nonsense_is_refused() {
        for wrong in [
            "bogus",
            "commit=-10",
            "commit=x",
            "discard=invalid",
            "thread_pool=0",
            "thread_pool=-10",
            "space_cache=v3",
            "subvolid=x",
            "subvol=",
            "cache-size=big",
            "dirsync",
            "transport=pigeon",
            "rescue=everything",
            "rescue=ignoremetacsums",
            "threads=many",
            "read-ahead=far",
            "max-ratio=101",
            "strict-limit=2",
        ] {
            assert!(MountOptions::default().apply(wrong, false).is_err(), "{wrong}");
        }
        let mut writes = MountOptions::default();
        writes.apply("rescue=all", false).unwrap();
        assert!(writes.settle().is_err(), "it is for read-only mounts");
        let mut lenient = MountOptions::default();
        lenient.apply("bogus", true).unwrap();
        assert_eq!(lenient.warning().unwrap(), "option without effect: bogus (unknown)");
    }
}
