//! What a request does not say of who makes it: groups, capabilities, and what an ioctl points
//! at. Read from `/proc` (`Proc`), or by somebody else for a server that may not open files.
//!
//! It does not know what they decide (`dispatch/caller.rs`).

use crate::mount_table::mount_of;
use crate::sys::{self, Opened};
use std::fmt::Debug;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

/// A process's, at the time of the look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The effective capabilities, as a set of bits.
    pub capabilities: u64,
    /// Whether they are those of the user namespace that the server is in; `None` if that cannot be seen. Not looked
    /// at where there are none.
    pub ours: Option<bool>,
    /// The user that decides about files.
    pub user: u32,
    /// The group that does.
    pub group: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
    /// Permission bits that new files do not get.
    pub umask: u16,
}

/// Nobody.
impl Default for Credentials {
    fn default() -> Credentials {
        let (user, group) = (u32::MAX, u32::MAX);
        Credentials {
            capabilities: 0,
            ours: Some(false),
            user,
            group,
            groups: Vec::new(),
            umask: 0o777,
        }
    }
}

/// Where a thread is that asked by an ioctl.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: who decides by it has to know all of them.
pub enum Call {
    /// In none of that command on that file, so it is not known who asked.
    Elsewhere,
    /// In it, by a mount that shows owners as they are.
    Plain,
    /// In it, by an idmapped mount, or by one that is in no table (detached, passed on): what his numbers are on the
    /// volume is not known.
    Mapped,
}

/// Looks at the processes (or threads) that make requests.
pub trait Callers: Debug + Send + Sync {
    /// `None` if the process cannot be looked at: another process namespace, `hidepid`.
    fn credentials(&self, process: u32) -> Option<Credentials>;

    /// One who looks for this file system, by its `major:minor`: all others' mounts are elsewhere. `None`: this one does, or who
    /// has it says so himself. Several sessions may share who is asked.
    fn of_mount(&self, device: &str) -> Option<Arc<dyn Callers>>;

    /// Whether the thread waits in an ioctl of `command` on the file with the inode number `ino`, and by which kind
    /// of mount. Only then what was looked at before is of
    /// who made the request: meanwhile another thread may have made another program of the
    /// process (`execve`), with more rights than who asked (set-user-ID), which has that number
    /// from then on. `None` if nobody may see it: another user's, Yama.
    ///
    /// Another thread of the caller's may exchange what the descriptor stands for: for this file by a plain mount of
    /// this file system he has come to it there, too, and may what that lets him.
    fn call(&self, thread: u32, command: u32, ino: u64) -> Option<Call>;

    /// The mode of `FS_IOC_SHUTDOWN` at `address` of the caller's memory; `u32::MAX` stands for
    /// whatever is none, so that nobody learns more of that memory than this.
    fn shutdown_mode(&self, process: u32, address: u64) -> Option<u32>;
}

/// From `/proc`, with the rights of this process.
#[derive(Default, Debug)]
pub struct Proc {
    device: Option<String>,
}

impl Callers for Proc {
    fn credentials(&self, process: u32) -> Option<Credentials> {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let seen = from_status(&status);
        let ours =
            if seen.capabilities == 0 { Some(false) } else { is_in_our_user_namespace(process) };
        Some(Credentials { ours, ..seen })
    }

    fn of_mount(&self, device: &str) -> Option<Arc<dyn Callers>> {
        Some(Arc::new(Proc::of(device)))
    }

    fn call(&self, thread: u32, command: u32, ino: u64) -> Option<Call> {
        // Its request may be here before it sleeps.
        /// Chosen, not measured.
        const LOOKS: u32 = 200;
        for _ in 0..LOOKS {
            let call = std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
            if call.trim_end() != "running" {
                let Some(descriptor) = ioctl_of(&call, command) else { break };
                return self.call_on(thread, descriptor, ino);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Some(Call::Elsewhere)
    }

    fn shutdown_mode(&self, process: u32, address: u64) -> Option<u32> {
        const LAST: u32 = 2;
        let memory = File::open(format!("/proc/{process}/mem")).ok()?;
        let mut bytes = [0; 4];
        memory.read_exact_at(&mut bytes, address).ok()?;
        let mode = u32::from_ne_bytes(bytes);
        Some(if mode <= LAST { mode } else { u32::MAX })
    }
}

impl Proc {
    /// For the file system that is mounted as `device`.
    pub fn of(device: &str) -> Proc {
        Proc { device: Some(device.into()) }
    }

    fn call_on(&self, thread: u32, descriptor: u32, ino: u64) -> Option<Call> {
        let opened = match sys::opened(thread, descriptor) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Some(Call::Elsewhere);
            }
            opened => opened.ok()?,
        };
        Some(match opened {
            Opened { ino: other, .. } if other != ino => Call::Elsewhere,
            // A kernel that does not say it has no idmapped mounts of FUSE's.
            Opened { mount: None, .. } => Call::Plain,
            Opened { mount: Some(mount), .. } => self.kind_of(&mount.to_string(), thread),
        })
    }

    /// In our table first: all namespaces have their numbers of one source, and those of the caller's may be as many
    /// as he likes.
    fn kind_of(&self, mount: &str, thread: u32) -> Call {
        let Some(ours) = &self.device else { return Call::Mapped };
        for who in ["self", &thread.to_string()] {
            let Ok(table) = File::open(format!("/proc/{who}/mountinfo")) else { continue };
            for line in BufReader::new(table).split(b'\n').map_while(Result::ok) {
                if let Some((device, is_mapped)) = mount_of(&line, mount) {
                    return match (device == *ours, is_mapped) {
                        (false, _) => Call::Elsewhere,
                        (true, false) => Call::Plain,
                        (true, true) => Call::Mapped,
                    };
                }
            }
        }
        Call::Mapped
    }
}

/// But for `ours`. What is not told is none, and no group.
fn from_status(status: &str) -> Credentials {
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
    let numbers =
        |name: &str| -> Vec<u32> { line(name).split_whitespace().flat_map(str::parse).collect() };
    // Real, effective, saved, and that for file systems.
    let own = |name: &str| -> Option<u32> { numbers(name).get(3).copied() };
    Credentials {
        capabilities: u64::from_str_radix(line("CapEff:").trim(), 16).unwrap_or(0),
        ours: Some(false),
        user: own("Uid:").unwrap_or(u32::MAX),
        group: own("Gid:").unwrap_or(u32::MAX),
        groups: numbers("Groups:"),
        umask: u16::from_str_radix(line("Umask:").trim(), 8).unwrap_or(0o777),
    }
}

/// The descriptor of an ioctl of `command`. A line of `/proc/TID/syscall` is the number, then the arguments. The
/// numbers are not looked at, as they differ by the caller's kind of program: no other call that asks a file has such
/// a second argument.
fn ioctl_of(call: &str, command: u32) -> Option<u32> {
    let mut words = call.split_whitespace().skip(1);
    // A number's upper half is whatever was in the register.
    let mut number =
        || Some(u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()? as u32);
    let descriptor = number()?;
    (number()? == command).then_some(descriptor)
}

fn is_in_our_user_namespace(process: u32) -> Option<bool> {
    let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/user")).ok();
    Some(of(&process.to_string())? == of("self")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn who_is_elsewhere_by_now_did_not_ask() {
        let call = "16 0x3 0x5000940e 0x7ffd1 0x0 0x0 0x0 0x7ffd0 0x7f01\n";
        assert_eq!(ioctl_of(call, 0x5000_940e), Some(3));
        let call = "16 0xffffffff00000007 0xffffffff9000940e 0x1 0x0 0x0 0x0 0x1 0x1";
        assert_eq!(ioctl_of(call, 0x9000_940e), Some(7));
        for other in ["-1 0x7ffd1 0x7f01", "0 0x3 0x7ffd1 0x10", "", "59"] {
            assert_eq!(ioctl_of(other, 0x5000_940e), None, "{other}");
        }
        // A thread that waits for something else.
        let (id, known) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            id.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
            let _ = wait.recv();
        });
        let thread = known.recv().unwrap();
        let thread = thread.file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert_eq!(Proc::default().call(thread, 0x5000_940e, 5), Some(Call::Elsewhere));
        drop(end);
        other.join().unwrap();
        assert_eq!(Proc::default().call(u32::MAX, 0x5000_940e, 5), None);
    }

    #[test]
    fn the_mount_of_a_descriptor_is_found() {
        let line = b"77 29 0:50 /sub /mnt rw,nosuid,idmapped shared:1 - fuse.spinney a rw";
        assert_eq!(mount_of(line, "77"), Some(("0:50".into(), true)));
        let line =
            b"77 29 0:50 /idmapped /a\\040idmapped rw shared:1 - fuse.spinney idmapped rw,idmapped";
        assert_eq!(mount_of(line, "77"), Some(("0:50".into(), false)));
        assert_eq!(
            [mount_of(line, "7"), mount_of(b"77 29", "77"), mount_of(b"", "")],
            [None, None, None]
        );
        // What is open here, on another file system and on the one that is served.
        let file = File::open("/").unwrap();
        let fd = file.as_raw_fd() as u32;
        let (me, ino) = (std::process::id(), file.metadata().unwrap().ino());
        let untold = Proc::default().call_on(me, fd, ino);
        assert_eq!(untold, Some(Call::Mapped), "nobody has told what is served");
        let proc = Proc::of(&crate::mount_table::number_on(std::path::Path::new("/")).unwrap());
        let on = |ino| proc.call_on(me, fd, ino);
        assert_eq!((on(ino), on(ino + 1)), (Some(Call::Plain), Some(Call::Elsewhere)));
        assert_eq!(proc.call_on(me, u32::MAX, ino), Some(Call::Elsewhere));
        assert_eq!(proc.kind_of("0", me), Call::Mapped);
        assert_eq!(Proc::of("0:0").call_on(me, fd, ino), Some(Call::Elsewhere));
    }

    #[test]
    fn groups_and_capabilities_are_read() {
        let status = "Name:\tx\nUmask:\t0027\nUid:\t5\t6\t7\t8\nGid:\t1\t2\t3\t4\nGroups:\t7 20 \nCapEff:\t0000000000000010\n";
        let (user, group, groups, umask) = (8, 4, vec![7, 20], 0o27);
        let expected =
            Credentials { capabilities: 16, ours: Some(false), user, group, groups, umask };
        assert_eq!(from_status(status), expected);
        assert_eq!(from_status("CapEff:\tffffffef\n").capabilities, 0xffff_ffef);
        assert_eq!(from_status(""), Credentials::default());
        assert_eq!(is_in_our_user_namespace(std::process::id()), Some(true));
        let me = Proc::default().credentials(std::process::id()).unwrap();
        assert_eq!(me.ours, Some(me.capabilities != 0));
    }

    #[test]
    fn no_more_than_a_mode_is_told_of_memory() {
        let (proc, me) = (Proc::default(), std::process::id());
        let here = |number: &u32| proc.shutdown_mode(me, &raw const *number as u64);
        assert_eq!((here(&0), here(&2)), (Some(0), Some(2)));
        assert_eq!((here(&3), here(&0x1234_5678)), (Some(u32::MAX), Some(u32::MAX)));
        assert_eq!(proc.shutdown_mode(me, 8), None);
    }
}
