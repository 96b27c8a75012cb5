//! Attributes of a file as `ls -l`, `stat` and JSON show them.

use crate::output::Object;
use crate::sys;
use crate::when;
use std::collections::HashMap;
use vfs::{Attr, FileKind, Timestamp};

pub fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Dir => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// `drwxr-xr-x`.
pub fn mode_text(attr: &Attr) -> String {
    let kind = match attr.kind {
        FileKind::File => '-',
        FileKind::Dir => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = attr.perm >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (attr.perm & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    text
}

/// Major and minor of a device node in Linux's 32-bit encoding.
pub fn device_numbers(rdev: u32) -> (u32, u32) {
    (rdev >> 8 & 0xFFF, rdev & 0xFF | rdev >> 12 & 0xFFF00)
}

/// The inverse; `None` if there are no such numbers.
pub fn device_of(major: u32, minor: u32) -> Option<u32> {
    let fits = major <= 0xFFF && minor <= 0xF_FFFF;
    fits.then_some(minor & 0xFF | major << 8 | (minor & 0xFFF00) << 12)
}

/// Names of owners, looked up once each.
#[derive(Default)]
pub struct Owners {
    numeric: bool,
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Owners {
    /// Numbers only: the volume's users are those of another machine.
    pub fn numeric() -> Owners {
        Owners { numeric: true, ..Owners::default() }
    }

    pub fn user(&mut self, uid: u32) -> String {
        let name = || sys::user_name(uid).filter(|_| !self.numeric);
        self.users.entry(uid).or_insert_with(|| name().unwrap_or(uid.to_string())).clone()
    }

    pub fn group(&mut self, gid: u32) -> String {
        let name = || sys::group_name(gid).filter(|_| !self.numeric);
        self.groups.entry(gid).or_insert_with(|| name().unwrap_or(gid.to_string())).clone()
    }
}

/// All that is known, as members of a JSON object.
pub fn json(object: &mut Object<'_>, attr: &Attr) {
    object
        .number("ino", attr.ino.0)
        .text("type", kind_word(attr.kind))
        .text("mode", &format!("{:04o}", attr.perm))
        .number("nlink", attr.nlink)
        .number("uid", attr.uid)
        .number("gid", attr.gid)
        .number("size", attr.size)
        .number("blocks", attr.blocks)
        .number("blksize", attr.blksize);
    if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        let (major, minor) = device_numbers(attr.rdev);
        object.number("major", major).number("minor", minor);
    }
    for (name, time) in
        [("atime", attr.atime), ("mtime", attr.mtime), ("ctime", attr.ctime), ("btime", attr.btime)]
    {
        object.text(name, &utc_nanos(time));
    }
}

/// `2024-05-01T12:00:00.000000000Z`.
fn utc_nanos(time: Timestamp) -> String {
    let seconds = when::utc(time.secs);
    format!("{}.{:09}Z", seconds.trim_end_matches('Z'), time.nanos)
}

/// A name on a terminal: what could move the cursor becomes `?`.
pub fn printable(name: &[u8], terminal: bool) -> Vec<u8> {
    if !terminal {
        return name.to_vec();
    }
    let text = String::from_utf8_lossy(name);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::Ino;

    fn attr(kind: FileKind, perm: u16) -> Attr {
        let t = Timestamp { secs: 0, nanos: 5 };
        Attr {
            ino: Ino(256),
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            attributes: 0,
        }
    }

    #[test]
    fn modes() {
        for (kind, perm, text) in [
            (FileKind::File, 0o644, "-rw-r--r--"),
            (FileKind::Dir, 0o1777, "drwxrwxrwt"),
            (FileKind::Dir, 0o1770, "drwxrwx--T"),
            (FileKind::File, 0o6755, "-rwsr-sr-x"),
            (FileKind::File, 0o4644, "-rwSr--r--"),
            (FileKind::Symlink, 0o777, "lrwxrwxrwx"),
        ] {
            assert_eq!(mode_text(&attr(kind, perm)), text);
        }
    }

    #[test]
    fn json_has_everything() {
        let json = crate::output::Json::object(|o| json(o, &attr(FileKind::Fifo, 0o10)));
        assert!(json.contains(r#""type":"fifo","mode":"0010","nlink":1"#), "{json}");
        assert!(json.contains(r#""btime":"1970-01-01T00:00:00.000000005Z""#), "{json}");
        assert_eq!(device_numbers(0x1230_0145), (1, 0x12345));
        assert_eq!(device_of(1, 0x12345), Some(0x1230_0145));
        assert_eq!(device_of(1 << 12, 0), None);
        assert_eq!(printable(b"a\x1b[2J", true), b"a?[2J");
        assert_eq!(printable(b"a\x1b", false), b"a\x1b");
    }
}
