//! Which bytes of this machine an image's name means: all of a file or device, or a part of it.
//! `disk.img@2` is partition 2 of a whole disk, `disk.img@@1M` what lies behind the first MiB, and
//! `disk.img@@1M+512M` so much of it. And what to do with a whole disk that was taken for a volume.
//!
//! Invariant: a file or device that is called so is that, and nothing else. Everybody else goes by
//! the name, so what a part lies in is asked here alone.

use crate::size;
use btrfs_disk::superblock::{COPIES, MAGIC, MAGIC_AT};
use spinney::{Disk, Span, is_block_device as is_block};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    All,
    Partition(u32),
    /// Bytes from `start` on, so many at most.
    Bytes {
        start: u64,
        most: Option<u64>,
    },
}

/// What a name stands for; nothing of it needs to exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageFile {
    pub file: PathBuf,
    pub part: Part,
}

impl ImageFile {
    pub fn of(name: &Path) -> ImageFile {
        let all = ImageFile { file: name.to_owned(), part: Part::All };
        if name.exists() {
            return all;
        }
        let Some((file, part)) = split(name.as_os_str()).filter(|(file, _)| exists(file)) else {
            return all;
        };
        match part {
            // The kernel's own device keeps others away better.
            Part::Partition(number) => match node_of(&file, number) {
                Some(node) => ImageFile { file: node, part: Part::All },
                None => ImageFile { file, part },
            },
            _ => ImageFile { file, part },
        }
    }

    /// The name of the same by which everybody finds it.
    pub fn real(&self) -> io::Result<PathBuf> {
        Ok(named(&self.file.canonicalize()?, self.part))
    }

    /// The bytes of the part, to be read or written; `None` for all.
    pub fn span(&self, write: bool) -> spinney::Result<Option<Span>> {
        match self.part {
            Part::All => Ok(None),
            Part::Partition(number) => Disk::open(&self.file)?.span(number, write).map(Some),
            Part::Bytes { start, most } => spinney::part_of(&self.file, start, most).map(Some),
        }
    }
}

/// A file or device, or a part of one: an image, and no path of a mount.
pub fn is_image(name: &Path) -> bool {
    let place = ImageFile::of(name);
    match place.part {
        Part::Partition(_) => has_table(&place.file),
        _ => exists(&place.file),
    }
}

/// The name of a part of `file`.
pub fn named(file: &Path, part: Part) -> PathBuf {
    let behind = match part {
        Part::All => String::new(),
        Part::Partition(number) => format!("@{number}"),
        Part::Bytes { start, most: None } => format!("@@{start}"),
        Part::Bytes { start, most: Some(most) } => format!("@@{start}+{most}"),
    };
    let mut name = file.as_os_str().to_owned();
    name.push(behind);
    name.into()
}

fn exists(file: &Path) -> bool {
    file.is_file() || is_block(file)
}

fn split(name: &OsStr) -> Option<(PathBuf, Part)> {
    let bytes = name.as_bytes();
    let at = bytes.iter().rposition(|b| *b == b'@')?;
    let behind = std::str::from_utf8(&bytes[at + 1..]).ok()?;
    let file = |end: usize| PathBuf::from(OsString::from_vec(bytes[..end].to_vec()));
    if bytes[..at].ends_with(b"@") {
        let (start, most) = match behind.split_once('+') {
            Some((start, most)) => (start, Some(size::parse(most)?)),
            None => (behind, None),
        };
        return Some((file(at - 1), Part::Bytes { start: size::parse(start)?, most }));
    }
    let digits = behind.bytes().all(|b| b.is_ascii_digit()) && behind.len() <= 3;
    let number = behind.parse().ok().filter(|number| digits && *number > 0)?;
    Some((file(at), Part::Partition(number)))
}

fn has_table(file: &Path) -> bool {
    // A pipe would keep the opener waiting, and other devices do something when they are opened.
    if !exists(file) {
        return false;
    }
    let mut mark = [0; 2];
    let read = File::open(file).and_then(|file| file.read_exact_at(&mut mark, 510));
    read.is_ok() && mark == [0x55, 0xaa]
}

/// The node that the kernel has made for a partition of a device.
fn node_of(device: &Path, number: u32) -> Option<PathBuf> {
    if !is_block(device) {
        return None;
    }
    let name = device.canonicalize().ok()?.file_name()?.to_owned();
    let parts = fs::read_dir(Path::new("/sys/class/block").join(name)).ok()?;
    let mut parts = parts.flatten().map(|entry| entry.path());
    let is_it = |path: &PathBuf| {
        let told = fs::read_to_string(path.join("partition")).unwrap_or_default();
        told.trim().parse() == Ok(number)
    };
    Some(Path::new("/dev").join(parts.find(is_it)?.file_name()?)).filter(|node| is_block(node))
}

/// What to do with `image`, which is no volume.
pub fn remedy(image: &Path) -> String {
    let name = image.display();
    let place = ImageFile::of(image);
    let volumes = match place.part {
        Part::All => volumes_in(image),
        _ => Vec::new(),
    };
    let shown = |part: &PathBuf| format!("`{}`", part.display());
    match volumes.as_slice() {
        [] => {
            let all = format!("`spinney dump-super --all {name}` looks for what is left of one");
            match place.part {
                Part::All => format!("{all}; `blkid -p {name}` tells what else it is"),
                _ => all,
            }
        }
        [one] => format!("it is a whole disk with a volume in it: write {}", shown(one)),
        all => {
            let all: Vec<String> = all.iter().map(shown).collect();
            format!("it is a whole disk with volumes in it: write {}", all.join(" or "))
        }
    }
}

/// Names of the partitions of a whole disk that are volumes.
pub fn volumes_in(disk: &Path) -> Vec<PathBuf> {
    // A pipe would keep the opener waiting.
    if !disk.is_file() && !is_block(disk) {
        return Vec::new();
    }
    let (Ok(table), Ok(file)) = (Disk::open(disk), File::open(disk)) else { return Vec::new() };
    let volumes = table.partitions().iter().filter(|found| has_superblock(&file, found.span.start));
    volumes.map(|found| named(disk, Part::Partition(found.number))).collect()
}

/// Whether a volume seems to begin there.
pub fn has_superblock(disk: &File, start: u64) -> bool {
    let mut magic = [0; 8];
    let at = start.checked_add(COPIES[0] + MAGIC_AT as u64);
    let read = at.map(|at| disk.read_exact_at(&mut magic, at));
    matches!(read, Some(Ok(()))) && u64::from_le_bytes(magic) == MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        let of = |name: &str| {
            split(OsStr::new(name)).map(|(file, part)| (file.display().to_string(), part))
        };
        let some = |file: &str, part| Some((file.to_owned(), part));
        assert_eq!(of("d.img@2"), some("d.img", Part::Partition(2)));
        assert_eq!(of("a@b/d.img@12"), some("a@b/d.img", Part::Partition(12)));
        let bytes = |start, most| Part::Bytes { start, most };
        assert_eq!(of("d.img@@1M"), some("d.img", bytes(1 << 20, None)));
        assert_eq!(of("d.img@@4096+2G"), some("d.img", bytes(4096, Some(2 << 30))));
        for none in ["d.img", "d.img@", "d.img@0", "d.img@x", "d.img@1234", "d@@", "d@@1+", "d@+1"]
        {
            assert_eq!(of(none), None, "{none}");
        }
        let part = named(Path::new("d"), bytes(512, Some(4096)));
        assert_eq!(split(part.as_os_str()), Some(("d".into(), bytes(512, Some(4096)))));
    }

    #[test]
    fn what_exists_is_no_part() {
        let me = std::env::current_exe().unwrap();
        assert_eq!(ImageFile::of(&me), ImageFile { file: me.clone(), part: Part::All });
        let part = named(&me, Part::Partition(3));
        assert_eq!(ImageFile::of(&part), ImageFile { file: me.clone(), part: Part::Partition(3) });
        // No disk, so it may be a name in a mount.
        assert!(!is_image(&part) && is_image(&named(&me, Part::Bytes { start: 512, most: None })));
        let nowhere = Path::new("/nowhere/d.img@1");
        assert_eq!(ImageFile::of(nowhere).part, Part::All);
    }
}
