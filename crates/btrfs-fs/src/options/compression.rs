//! How content is to be compressed: what a mount, a property or a flag says.
//!
//! It does not know content, nor where it goes.

use btrfs_disk::compress::levels;
use btrfs_disk::ids::incompat;
use btrfs_disk::items::{Compression, inode_flags};
use std::sync::atomic::{AtomicU32, Ordering};

/// The attribute that says it for a file, or for what is made in a directory.
pub(crate) const PROPERTY: &[u8] = b"btrfs.compression";
/// Files whose content stays as it is: content without checksums cannot be judged when it is
/// decompressed.
const NEVER: u64 = inode_flags::NODATACOW | inode_flags::NODATASUM;

/// A way to compress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Method {
    pub(crate) kind: Compression,
    pub(crate) level: i32,
}

/// What a mount compresses by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compress {
    /// How.
    pub method: Method,
    /// All content, also of files that did not get smaller before.
    pub force: bool,
}

impl Method {
    /// What the kernel takes where nobody names one.
    pub const DEFAULT: Method = Method { kind: Compression::Zlib, level: 3 };
    /// Content is stored as it is.
    pub(crate) const PLAIN: Method = Method { kind: Compression::None, level: 0 };

    /// `TYPE[:LEVEL]`: zlib, lzo or zstd. A level that there is not becomes the nearest one, as in
    /// the kernel; 0 is the default one. LZO has no levels.
    pub fn parse(text: &str) -> Option<Method> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, level.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let kind = match name {
            "zlib" => Compression::Zlib,
            "lzo" => Compression::Lzo,
            "zstd" => Compression::Zstd,
            _ => return None,
        };
        let (least, default, most) = levels(kind);
        let level = if level == 0 { default } else { level.clamp(least, most) };
        Some(Method { kind, level })
    }

    /// Without its level, as the property has it.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Compression::Zlib | Compression::None => "zlib",
            Compression::Lzo => "lzo",
            Compression::Zstd => "zstd",
        }
    }

    /// The bits that a superblock has where there are such extents.
    pub(crate) fn incompat(&self) -> u64 {
        incompat_of(self.kind)
    }
}

/// The bits that a superblock has where there are extents of that kind.
pub(crate) fn incompat_of(kind: Compression) -> u64 {
    match kind {
        Compression::None | Compression::Zlib => 0,
        Compression::Lzo => incompat::COMPRESS_LZO,
        Compression::Zstd => incompat::COMPRESS_ZSTD,
    }
}

/// What the mount compresses at the moment: a remount changes it while files are written. Whoever
/// decides about content reads it once, and goes by that.
pub(crate) struct Setting(AtomicU32);

/// The kind, whether by force, and the level, a byte each. Levels are -15 to 15.
fn in_bits(compress: Option<Compress>) -> u32 {
    let Some(Compress { method, force }) = compress else { return 0 };
    let [level, ..] = method.level.to_le_bytes();
    u32::from_le_bytes([method.kind as u8, force.into(), level, 0])
}

impl Setting {
    pub(crate) fn new(compress: Option<Compress>) -> Setting {
        Setting(AtomicU32::new(in_bits(compress)))
    }

    pub(crate) fn get(&self) -> Option<Compress> {
        let [kind, force, level, _] = self.0.load(Ordering::Relaxed).to_le_bytes();
        let kind = Compression::from_disk(kind).ok().filter(|kind| *kind != Compression::None)?;
        let level = i32::from(level.cast_signed());
        Some(Compress { method: Method { kind, level }, force: force != 0 })
    }

    pub(crate) fn set(&self, compress: Option<Compress>) {
        self.0.store(in_bits(compress), Ordering::Relaxed);
    }
}

/// What is done with one file's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub method: Method,
    /// Without a look at a sample.
    pub force: bool,
    /// A file that does not get smaller is marked as one.
    pub marks: bool,
}

/// Whether content of a file with these flags may be compressed; cheap.
pub(crate) fn may_compress(mount: Option<Compress>, flags: u64) -> bool {
    let force = mount.is_some_and(|mount| mount.force);
    let wanted = mount.is_some() || flags & inode_flags::COMPRESS != 0;
    let marked = flags & inode_flags::NOCOMPRESS != 0;
    // Extents that are there already are filled as they are.
    let preallocated = flags & inode_flags::PREALLOC != 0;
    wanted && !is_never_compressed(flags) && !preallocated && (force || !marked)
}

/// Whether content of a file with these flags stays as it is, whoever asks for something else.
pub(crate) fn is_never_compressed(flags: u64) -> bool {
    flags & NEVER != 0
}

/// What is to be done where `may_compress`. `property` is the file's own.
pub(crate) fn plan(mount: Option<Compress>, property: Option<&[u8]>) -> Plan {
    let property = property.and_then(|value| std::str::from_utf8(value).ok());
    let property = property.and_then(Method::parse);
    let method = property.or(mount.map(|mount| mount.method)).unwrap_or(Method::DEFAULT);
    let force = mount.is_some_and(|mount| mount.force);
    Plan { method, force, marks: !force && property.is_none() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_named_as_in_the_kernel() {
        let parsed = |text| Method::parse(text).map(|m| (m.name(), m.level));
        assert_eq!(parsed("zlib"), Some(("zlib", 3)));
        assert_eq!(parsed("zlib:9"), Some(("zlib", 9)));
        assert_eq!(parsed("zlib:12"), Some(("zlib", 9)));
        assert_eq!(parsed("lzo"), Some(("lzo", 0)));
        assert_eq!(parsed("lzo:7"), Some(("lzo", 0)));
        assert_eq!(parsed("zstd:-15"), Some(("zstd", -15)));
        assert_eq!(parsed("zstd:0"), Some(("zstd", 3)));
        for bad in ["", "zstd:", "zstd:x", "gzip", "no", "zlib:1:2"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_setting_is_what_was_set() {
        let setting = Setting::new(None);
        assert_eq!(setting.get(), None);
        for text in ["zlib", "zlib:9", "lzo", "zstd:-15", "zstd:15"] {
            for force in [false, true] {
                let wanted = Method::parse(text).map(|method| Compress { method, force });
                assert_eq!(Setting::new(wanted).get(), wanted);
                setting.set(wanted);
                assert_eq!(setting.get(), wanted);
            }
        }
        setting.set(None);
        assert_eq!(setting.get(), None);
    }

    #[test]
    fn flags_and_options_decide_together() {
        let mount = |force| Some(Compress { method: Method::DEFAULT, force });
        assert!(!may_compress(None, 0) && may_compress(None, inode_flags::COMPRESS));
        assert!(may_compress(mount(false), 0));
        assert!(!may_compress(mount(false), inode_flags::NOCOMPRESS));
        assert!(may_compress(mount(true), inode_flags::NOCOMPRESS));
        assert!(!may_compress(mount(true), inode_flags::NODATASUM));
        assert!(!may_compress(mount(true), inode_flags::PREALLOC));
        assert_eq!(plan(mount(false), Some(b"zstd")).method.name(), "zstd");
        assert!(plan(mount(false), None).marks && !plan(mount(false), Some(b"lzo")).marks);
    }
}
