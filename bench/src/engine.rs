//! The engine behind the library side, and the mount options that it has a field for.
//!
//! A new field of `btrfs_fs::Options` that is worth comparing gets a line in `SETTERS`.

use btrfs_fs::{BtrfsFs, Compress, Method, Options};
use spinney_bench::side::Engine;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use vfs::FileSystem;

pub const ENGINE: Engine = Engine { open, stranger };

/// False where the value makes no sense.
type Setter = fn(&mut Options, &str) -> bool;

/// The options of `spinney mount -o` that the engine without a mount has too.
const SETTERS: &[(&str, Setter)] = &[
    ("commit", |o, value| {
        let seconds = value.parse().ok().map(Duration::from_secs);
        store(&mut o.commit_interval, seconds)
    }),
    ("memory", |o, value| store(&mut o.memory_bytes, bytes(value))),
    ("inode-cache", |o, value| store(&mut o.inode_bytes, bytes(value))),
    ("cache-size", |o, value| store(&mut o.cache_bytes, bytes(value))),
    ("delta-size", |o, value| store(&mut o.delta_bytes, bytes(value))),
    ("dirty-size", |o, value| store(&mut o.dirty_bytes, bytes(value))),
    ("compress", |o, value| {
        let compress = Method::parse(value).map(|method| Compress { method, force: false });
        store(&mut o.compress, compress.map(Some))
    }),
    ("discard", |o, value| store(&mut o.discard, value.is_empty().then_some(true))),
    ("fsync", |o, value| {
        let logged =
            [("log", true), ("commit", false)].into_iter().find(|(name, _)| *name == value);
        store(&mut o.tree_log, logged.map(|(_, logged)| logged))
    }),
    ("treelog", |o, value| store(&mut o.tree_log, value.is_empty().then_some(true))),
    ("notreelog", |o, value| store(&mut o.tree_log, value.is_empty().then_some(false))),
    ("nodiscard", |o, value| store(&mut o.discard, value.is_empty().then_some(false))),
];

fn store<T>(field: &mut T, value: Option<T>) -> bool {
    let known = value.is_some();
    if let Some(value) = value {
        *field = value;
    }
    known
}

fn bytes(text: &str) -> Option<u64> {
    spinney_bench::cli::bytes(text)
}

fn open(image: &Path, options: &str) -> io::Result<Arc<dyn FileSystem>> {
    let options = parse(options).map_err(|option| io::Error::other(format!("option {option}")))?;
    let device = blockdev::FileDevice::open(image, false, false)?;
    let opened = BtrfsFs::open_device(Arc::new(device), options);
    Ok(Arc::new(opened.map_err(|e| io::Error::other(e.to_string()))?))
}

fn stranger(options: &str) -> Option<String> {
    parse(options).err()
}

/// The rest is as a mount would have it: the engine's own choice.
fn parse(list: &str) -> Result<Options, String> {
    let mut options = Options::default();
    for option in list.split(',').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let setter = SETTERS.iter().find(|(known, _)| *known == name);
        if !setter.is_some_and(|(_, set)| set(&mut options, value)) {
            return Err(option.to_string());
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_reach_their_fields() {
        let options = parse("commit=7,cache-size=64M,discard").unwrap();
        assert_eq!(options.commit_interval, Duration::from_secs(7));
        assert_eq!((options.cache_bytes, options.discard), (64 << 20, true));
        assert!(!parse("fsync=commit").unwrap().tree_log && !parse("notreelog").unwrap().tree_log);
        assert!(parse("notreelog,fsync=log").unwrap().tree_log);
        assert_eq!(stranger("fsync=never").as_deref(), Some("fsync=never"));
        assert_eq!(parse("").unwrap().cache_bytes, Options::default().cache_bytes);
    }

    #[test]
    fn what_only_a_mount_knows_is_named() {
        assert_eq!(stranger("commit=5"), None);
        assert_eq!(stranger("commit=5,threads=4").as_deref(), Some("threads=4"));
        assert_eq!(stranger("commit=soon").as_deref(), Some("commit=soon"));
    }
}
