//! In which mounted file system a path lies, by the kernel's table alone: no path is walked, so nobody is waited for.
//!
//! Relies on paths without symbolic links, as the kernel tells them of open files. Does not know what is there.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

struct Mount {
    id: u64,
    parent: u64,
    /// `major:minor` of the file system; subvolumes and bind mounts have that of theirs.
    device: Vec<u8>,
    point: PathBuf,
}

pub(super) struct MountTable(Vec<Mount>);

impl MountTable {
    /// `None` where the kernel has no such table.
    pub(super) fn read() -> Option<MountTable> {
        fs::read("/proc/self/mountinfo").ok().map(|text| MountTable::parse(&text))
    }

    fn parse(text: &[u8]) -> MountTable {
        MountTable(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
    }

    /// False: they lie in two file systems.
    pub(super) fn may_be_together(&self, a: &Path, b: &Path) -> bool {
        match (self.device_around(a), self.device_around(b)) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        }
    }

    /// As one comes to `path` from the root, from each mount to the next that is not covered.
    fn device_around(&self, path: &Path) -> Option<&[u8]> {
        let leads_to =
            |mount: &Mount, other: &Mount| other.id == mount.parent && other.id != mount.id;
        let is_top = |mount: &&Mount| !self.0.iter().any(|other| leads_to(mount, other));
        let mut here = self.0.iter().find(|m| m.point == Path::new("/") && is_top(m))?;
        // None is come to twice.
        for _ in 0..self.0.len() {
            let next = |m: &&Mount| m.parent == here.id && m.id != here.id;
            let on_way = self.0.iter().filter(next).filter(|m| path.starts_with(&m.point));
            match on_way.min_by_key(|mount| mount.point.components().count()) {
                Some(mount) => here = mount,
                None => return Some(&here.device),
            }
        }
        None
    }
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let device = fields.next()?.to_vec();
    Some(Mount { id, parent, device, point: unescape(fields.nth(1)?) })
}

/// Blanks and the like stand as `\040`.
fn unescape(text: &[u8]) -> PathBuf {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &behind[3..] } else { behind };
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 0:30 / /nas rw - nfs4 host:/ rw
22 20 0:31 / /a\\040b rw - tmpfs t rw
23 22 0:32 / /a\\040b/hidden rw - tmpfs t rw
24 22 0:33 / /a\\040b rw - tmpfs over rw
25 20 8:1 /images /bind rw - ext4 /dev/sda1 rw
broken line
";

    #[test]
    fn paths_lie_in_the_mount_that_one_comes_to() {
        let table = MountTable::parse(TABLE);
        let around = |path: &str| table.device_around(Path::new(path)).map(String::from_utf8_lossy);
        for (path, device) in [
            ("/images/x", "8:1"),
            ("/bind/x", "8:1"),
            ("/nas/x", "0:30"),
            ("/nasty", "8:1"),
            ("/a b/x", "0:33"),
            ("/a b/hidden/x", "0:33"),
            ("/", "8:1"),
        ] {
            assert_eq!(around(path).as_deref(), Some(device), "{path}");
        }
        let together = |a, b| table.may_be_together(Path::new(a), Path::new(b));
        assert!(together("/images/x", "/bind/x") && !together("/nas/x", "/images/x"));
        assert!(MountTable::parse(b"").may_be_together(Path::new("/a"), Path::new("/b")));
    }

    #[test]
    fn the_root_of_this_machine_is_in_the_table() {
        let Some(table) = MountTable::read() else { return };
        assert!(table.device_around(Path::new("/")).is_some());
    }
}
