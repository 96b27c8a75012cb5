//! The kernel's table of mounts.

use crate::sys::{self, Umount};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    /// Of this mount among all that are there now; bind mounts have their own.
    pub id: u64,
    /// `major:minor`, which names the mounted file system in the kernel.
    pub device: String,
    /// What of that file system is mounted: `/`, or the source of a bind mount.
    pub root: PathBuf,
    pub point: PathBuf,
    /// Of this mount, as in `rw,nosuid`.
    pub options: String,
    /// E.g. `fuseblk.spinney`.
    pub kind: String,
    pub source: PathBuf,
    /// Of the file system, for all its mounts.
    pub fs_options: String,
}

impl MountEntry {
    /// The file system takes no writes, wherever it is mounted.
    pub fn is_read_only(&self) -> bool {
        self.fs_options.split(',').any(|option| option == "ro")
    }

    /// Who mounted it, of FUSE's; nobody can say that he is another.
    pub fn user(&self) -> Option<u32> {
        let number = self.fs_options.split(',').find_map(|o| o.strip_prefix("user_id="));
        number.and_then(|text| text.parse().ok()).filter(|_| self.is_fuse())
    }

    pub fn is_fuse(&self) -> bool {
        self.kind.starts_with("fuse.") || self.kind.starts_with("fuseblk")
    }
}

/// The topmost mount on `point`, which must be absolute and without symbolic links.
pub fn on(point: &Path) -> io::Result<Option<MountEntry>> {
    Ok(find(&fs::read("/proc/self/mountinfo")?, point))
}

/// The mount that `file` was opened in: `MountEntry::id`.
pub fn id_of(file: &fs::File) -> io::Result<u64> {
    let told = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = told.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| ErrorKind::InvalidData.into())
}

/// The top of that mount, and of none that covers it or a directory above by now.
pub fn reach(entry: &MountEntry) -> Option<fs::File> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_DIRECTORY;
    let top = fs::OpenOptions::new().read(true).custom_flags(flags).open(&entry.point).ok()?;
    (id_of(&top).ok()? == entry.id).then_some(top)
}

/// All mounts of all file systems that this process sees.
pub fn all() -> io::Result<Vec<MountEntry>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// A mount of `device` that a process has in a mount namespace that is not ours, as `process 7 (sh)
/// has it on /mnt`. Who is not root sees those of his own processes.
pub fn in_another_namespace(device: &str) -> Option<String> {
    let mut seen = vec![fs::read_link("/proc/self/ns/mnt").ok()?];
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Ok(namespace) = fs::read_link(entry.path().join("ns/mnt")) else { continue };
        if seen.contains(&namespace) {
            continue;
        }
        seen.push(namespace);
        let table = fs::read(entry.path().join("mountinfo")).unwrap_or_default();
        let mut mounts = table.split(|b| *b == b'\n').filter_map(parse);
        if let Some(mount) = mounts.find(|mount| mount.device == device && mount.is_fuse()) {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            let (process, name) = (entry.file_name().display().to_string(), name.trim_end());
            return Some(format!("process {process} ({name}) has it on {}", mount.point.display()));
        }
    }
    None
}

/// The mount that `path` lies in; where the kernel does not tell which, one of the same file system.
pub fn around(path: &Path) -> io::Result<Option<MountEntry>> {
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    let (id, device) = (id_of(&file).ok(), file.metadata()?.dev());
    let device = format!("{}:{}", libc::major(device), libc::minor(device));
    let mut all = all()?;
    let known = all.iter().rposition(|entry| Some(entry.id) == id);
    let known = known.or_else(|| all.iter().rposition(|entry| entry.device == device));
    Ok(known.map(|at| all.swap_remove(at)))
}

/// The device, or image, of the mount that `path` lies in; the path itself where nobody can tell.
pub fn device_below(path: &Path) -> PathBuf {
    let entry = around(path).ok().flatten();
    entry.map_or_else(|| path.to_owned(), |entry| entry.source)
}

/// The table, open: tells when it changes, and what it says.
pub struct Watch(fs::File);

impl Watch {
    pub fn new() -> io::Result<Watch> {
        fs::File::open("/proc/self/mountinfo").map(Watch)
    }

    /// Returns at the next change since it was made, or since the last one.
    pub fn wait(&self) -> io::Result<()> {
        sys::wait_for_change(&self.0)
    }

    /// As `all`, without opening anything.
    pub fn all(&self) -> io::Result<Vec<MountEntry>> {
        let (mut table, mut part) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match self.0.read_at(&mut part, table.len() as u64)? {
                0 => break,
                len => table.extend_from_slice(&part[..len]),
            }
        }
        Ok(table.split(|b| *b == b'\n').filter_map(parse).collect())
    }
}

/// Unmounts; EBUSY while something is open there, unless `how` says otherwise. Ordinary
/// users ask `fusermount3`, which knows no force.
pub fn unmount(point: &Path, how: Umount) -> io::Result<()> {
    if sys::is_root() {
        return sys::umount(point, how);
    }
    let flags = if how == Umount::Now { "-u" } else { "-uz" };
    let output = Command::new("fusermount3")
        .args([OsStr::new(flags), OsStr::new("--"), point.as_os_str()])
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(match text.contains("busy") {
        true => io::Error::new(ErrorKind::ResourceBusy, text),
        false => io::Error::other(text),
    })
}

fn find(table: &[u8], point: &Path) -> Option<MountEntry> {
    table.split(|b| *b == b'\n').filter_map(parse).rfind(|entry| entry.point == point)
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
pub fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|b| *b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = String::from_utf8(fields.nth(1)?.to_vec()).ok()?;
    let root = unescape(fields.next()?);
    let point = unescape(fields.next()?);
    let options = String::from_utf8_lossy(fields.next()?).into_owned();
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8(rest.next()?.to_vec()).ok()?;
    let source = unescape(rest.next()?);
    let fs_options = String::from_utf8_lossy(rest.next()?).into_owned();
    Some(MountEntry { id, device, root, point, options, kind, source, fs_options })
}

/// Blanks and the like stand as `\040`.
fn unescape(text: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let code = text.get(at + 1..at + 4).filter(|_| text[at] == b'\\');
        let code = code.and_then(|d| std::str::from_utf8(d).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(text[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// `path` without symbolic links, also where a dead mount stands at its end.
pub fn real_path(path: &Path) -> io::Result<PathBuf> {
    let failed = match path.canonicalize() {
        Ok(real) => return Ok(real),
        Err(error) => error,
    };
    let absolute = std::path::absolute(path)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) if name.as_bytes() != b".." => {
            let real = parent.canonicalize()?.join(name);
            if on(&real)?.is_some() { Ok(real) } else { Err(failed) }
        }
        _ => Err(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
29 1 0:26 / /a\\040b rw - tmpfs t rw
30 1 0:27 / /x rw,nosuid shared:1 - fuse.spinney /img\\134 rw,user_id=0
31 1 7:3 / /a\\040b rw shared:2 master:1 - fuseblk.spinney /dev/loop3 rw
broken line
";

    #[test]
    fn the_topmost_mount_is_found() {
        let entry = find(TABLE, Path::new("/a b")).unwrap();
        assert_eq!((entry.device.as_str(), entry.kind.as_str()), ("7:3", "fuseblk.spinney"));
        assert_eq!(entry.source, Path::new("/dev/loop3"));
        assert_eq!((entry.root.as_path(), entry.options.as_str()), (Path::new("/"), "rw"));
        assert_eq!(find(TABLE, Path::new("/x")).unwrap().source, Path::new("/img\\"));
        let x = find(TABLE, Path::new("/x")).unwrap();
        assert!(x.is_fuse() && !x.is_read_only());
        assert_eq!((x.user(), entry.user()), (Some(0), None));
        assert_eq!(find(TABLE, Path::new("/y")), None);
    }

    #[test]
    fn the_root_of_this_machine_is_mounted() {
        let root = on(Path::new("/")).unwrap().unwrap();
        assert_eq!(id_of(&fs::File::open("/").unwrap()).unwrap(), root.id);
        let watch = Watch::new().unwrap();
        for _ in 0..2 {
            assert!(watch.all().unwrap().iter().any(|entry| entry.point == Path::new("/")));
        }
        assert!(real_path(Path::new("/no/such/place")).is_err());
    }
}
