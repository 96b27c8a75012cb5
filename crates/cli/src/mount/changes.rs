//! What a remount changes of what the server goes by, and what it cannot change.
//!
//! mount(8) names in a remount what the line of fstab has, so what is named is compared with what
//! holds: an option that says what is the case anyhow is fine.

use super::flags;
use super::options::MountOptions;
use crate::mounts::MountEntry;
use btrfs_fs::Compress;

/// Hold for as long as the volume is mounted.
const FIXED: &[&str] = &[
    "subvol",
    "subvolid",
    "commit",
    "memory",
    "cache-size",
    "cache_size",
    "delta-size",
    "delta_size",
    "dirty-size",
    "dirty_size",
    "inode-cache",
    "inode_cache",
    "discard",
    "nodiscard",
    "user_subvol_rm_allowed",
    "skip_balance",
    "nologreplay",
    "norecovery",
    "rescue",
    "usebackuproot",
    "treelog",
    "notreelog",
    "fsync",
    "log",
    "uid",
    "gid",
    "map-owner",
    "map_owner",
    "offset",
    "sizelimit",
    "plain",
    "no-sandbox",
    "no_sandbox",
    "read-ahead",
    "read_ahead",
    "max-ratio",
    "max_ratio",
    "strict-limit",
    "strict_limit",
    "transport",
    "threads",
    "poll",
    "writeback",
    "open-errors",
    "open_errors",
    "no_spread_large_reads",
    "allow_other",
    "fsname",
    "subtype",
    "max_read",
    "max_write",
    "atime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "noatime",
    "nodiratime",
    "diratime",
];

/// What may change.
const COMPRESSION: &[&str] = &["compress", "compress-force"];

/// Who mounted it, as the kernel tells it.
const TOLD: &[&str] = &["user_id", "group_id"];

fn name(option: &str) -> &str {
    option.split('=').next().unwrap_or(option)
}

/// Those of the options that the server has to be asked about, as a list. What the mount table,
/// `entry`, says of access times anyhow is no change, if mount(8) repeats it from there.
pub fn of_the_server(options: &MountOptions, entry: &MountEntry) -> String {
    let holds = |option: &&str| {
        options.by_mount8
            && flags::is_access_time(option)
            && entry.options.split(',').any(|held| held == *option)
    };
    let named = options.named().filter(|option| !holds(option));
    let asked = |option: &&str| [FIXED, COMPRESSION].iter().any(|all| all.contains(&name(option)));
    named.filter(asked).collect::<Vec<_>>().join(",")
}

/// What mount(8) repeats from the table, where that says something else: a remount changes none of it.
pub fn unlike_the_table(options: &MountOptions, entry: &MountEntry) -> Option<String> {
    let of_the_table = |option: &&str| TOLD.contains(&name(option));
    let mut named = options.named().filter(of_the_table);
    let held = |option: &str| entry.fs_options.split(',').any(|held| held == option);
    named.find(|option| !held(option)).map(str::to_owned)
}

/// Whether the kernel has nothing to do with what is to change.
pub fn is_of_the_server_alone(options: &MountOptions) -> bool {
    let mut rest = options.named().filter(|option| name(option) != "remount");
    rest.all(|option| COMPRESSION.contains(&name(option))) && !options.fs.read_only
}

/// What a mount with the options `now` compresses when `list` is asked for, if that says so;
/// why not, if something else would have to change.
pub fn compression(now: &MountOptions, list: &str) -> Result<Option<Option<Compress>>, String> {
    let mut changed = None;
    for option in list.split(',') {
        // A server in its sandbox would not find the users that a list names.
        let fixed = FIXED.contains(&name(option));
        if fixed && now.named().any(|named| named == option) {
            continue;
        }
        let mut with = now.clone();
        with.apply(option, false).map_err(|error| error.text())?;
        if !fixed {
            changed = Some(with.fs.compress);
        } else if with.settings() != now.settings() {
            return Err(format!("option {option} cannot be changed by a remount"));
        }
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::mount::COMMAND;
    use crate::mounts;
    use crate::words;
    use btrfs_fs::Method;

    fn parsed(list: &str) -> MountOptions {
        let mut options = MountOptions::listed_in(COMMAND.help);
        options.apply(list, false).unwrap();
        options.settle().unwrap();
        options
    }

    fn entry(options: &str) -> MountEntry {
        let line = format!("1 1 0:9 / /mnt {options} - fuse.spinney /img rw");
        mounts::parse(line.as_bytes()).unwrap()
    }

    #[test]
    fn what_holds_may_be_named_and_the_rest_is_refused_by_name() {
        let now = parsed("subvol=/a,commit=5,compress=lzo,uid=7,threads=2,noatime");
        let same = "subvol=a,commit=5,nodiscard,fsync=log,uid=7,threads=2,transport=auto";
        assert_eq!(compression(&now, same), Ok(None));
        for other in ["subvol=/b", "commit=6", "discard", "fsync=commit", "gid=7", "writeback"] {
            let why = compression(&now, &format!("compress=zstd,{other}")).unwrap_err();
            assert_eq!(why, format!("option {other} cannot be changed by a remount"));
        }
        let method = Method::parse("zstd:7").unwrap();
        let told = compression(&now, "commit=5,compress=no,compress-force=zstd:7");
        assert_eq!(told, Ok(Some(Some(Compress { method, force: true }))));
        assert_eq!(compression(&now, "compress=lzo,compress=no"), Ok(Some(None)));
        assert!(compression(&now, "compress=gzip").is_err());
    }

    /// What nobody would do was accepted, and the mount table told of it.
    #[test]
    fn fuses_options_and_access_times_do_not_change() {
        let mut now = parsed("max_read=65536,fsname=x");
        now.config.allow_other = false;
        assert_eq!(compression(&now, "max_read=65536,fsname=x,noatime,diratime"), Ok(None));
        for other in ["max_read=4096", "max_write=4096", "fsname=y", "subtype=y", "allow_other"] {
            let why = compression(&now, other).unwrap_err();
            assert_eq!(why, format!("option {other} cannot be changed by a remount"));
        }
        let times = ["noatime", "relatime", "strictatime"];
        for held in times {
            for asked in times {
                let told = compression(&parsed(held), asked);
                assert_eq!(told.is_ok(), held == asked, "{held}: {asked}");
            }
            assert!(compression(&parsed(held), "nodiratime").is_err());
        }
    }

    /// The table may show what is not so: fusermount3 knows no strictatime.
    #[test]
    fn what_mount8_repeats_from_the_table_is_no_change() {
        let mut options = parsed("remount,ro,relatime,nodiratime,threads=2");
        assert_eq!(of_the_server(&options, &entry("rw,relatime")), "relatime,nodiratime,threads=2");
        options.by_mount8 = true;
        assert_eq!(of_the_server(&options, &entry("rw,relatime")), "nodiratime,threads=2");
        assert_eq!(of_the_server(&options, &entry("rw")), "relatime,nodiratime,threads=2");
    }

    /// An option that is new belongs in one of the lists, or is the kernel's own.
    #[test]
    fn what_changes_the_server_is_known_here() {
        let before = MountOptions::listed_in(COMMAND.help).settings();
        let kernels = ["ro", "rw", "sync", "nosuid", "nodev", "noexec", "nosymfollow"];
        for option in words::list_options(COMMAND.help) {
            let option = name(&option);
            let listed = [FIXED, COMPRESSION, &kernels].iter().any(|all| all.contains(&option));
            assert!(listed, "{option}");
        }
        assert_eq!(before, MountOptions::listed_in(COMMAND.help).settings());
    }

    #[test]
    fn who_mounted_it_stays() {
        let line = b"1 1 0:9 / /mnt rw - fuse.spinney /img rw,user_id=0,group_id=0";
        let entry = mounts::parse(line).unwrap();
        let unlike = |list: &str| unlike_the_table(&parsed(list), &entry);
        assert_eq!(unlike("remount,ro,user_id=0,group_id=0,blksize=4096"), None);
        assert_eq!(unlike("remount,ro,user_id=7").as_deref(), Some("user_id=7"));
        assert_eq!(unlike("remount,group_id=10").as_deref(), Some("group_id=10"));
    }

    #[test]
    fn the_kernel_is_asked_where_its_flags_are_named() {
        let asked = |list: &str| {
            let options = parsed(list);
            (of_the_server(&options, &entry("rw")), is_of_the_server_alone(&options))
        };
        assert_eq!(asked("remount,compress=no"), ("compress=no".into(), true));
        assert_eq!(asked("remount,ro,commit=5"), ("commit=5".into(), false));
        assert_eq!(asked("remount,rw,compress"), ("compress".into(), false));
        assert_eq!(asked("remount,nosuid"), (String::new(), false));
    }
}
