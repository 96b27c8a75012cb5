//! What is claimed to be written over, where others have other parts of the same disk.

use spinney::{Access, Medium, Span, claim};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::oracle::TempDir;
use testkit::require;

const MIB: u64 = 1 << 20;
const ONE: Span = Span { start: 16 * MIB, len: 16 * MIB };
const TWO: Span = Span { start: 32 * MIB, len: 16 * MIB };

fn sh(script: &str) -> String {
    let done = Command::new("sh").args(["-c", script]).output().unwrap();
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// Let go with the value.
struct Loop(String);

impl Loop {
    fn over(disk: &Path, words: &str) -> Loop {
        Loop(sh(&format!("losetup {words} -f --show {}", disk.display())))
    }

    fn claim(&self, behind: &str) -> spinney::Result<spinney::Claim> {
        let node = PathBuf::from(format!("{}{behind}", self.0));
        claim(&File::options().write(true).open(&node).unwrap(), &node)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // The device would have its partitions still when it is another disk's.
        let _ = Command::new("partx").args(["-d", &self.0]).output();
        let _ = Command::new("losetup").args(["-d", &self.0]).output();
    }
}

/// A disk of 64 MiB, with both as partitions.
fn disk(dir: &TempDir) -> PathBuf {
    let path = dir.join("disk.img");
    File::create(&path).unwrap().set_len(64 * MIB).unwrap();
    let layout = "label: dos\\nstart=16MiB,size=16MiB\\nstart=32MiB,size=16MiB\\n";
    sh(&format!("printf '{layout}' | sfdisk -q --wipe never {}", path.display()));
    path
}

fn needs() -> bool {
    Command::new("sfdisk").arg("-v").output().is_ok()
}

/// A loop device over all of `disk`, with the kernel's partitions.
fn with_partitions(disk: &Path) -> Loop {
    let whole = Loop::over(disk, "");
    sh(&format!("partx -d {0}; partx -a {0}", whole.0));
    whole
}

#[test]
fn who_has_another_part_of_the_disk_is_not_in_the_way() {
    require!(root);
    require!(needs(), "sfdisk is not installed");
    let dir = TempDir::new("claims").unwrap();
    let path = disk(&dir);
    let bytes = Loop::over(&path, "-o 32M --sizelimit 16M");
    let whole = with_partitions(&path);
    let devices = [(&bytes, ""), (&whole, "p2")];
    for access in [Access::Write, Access::Read] {
        let other = Medium::open_part(&path, &path, ONE, access).unwrap();
        for (device, behind) in devices {
            let claimed = device.claim(behind);
            assert!(claimed.is_ok(), "{access:?}, {}{behind}: {claimed:?}", device.0);
        }
        drop(other);
        let same = Medium::open_part(&path, &path, TWO, access).unwrap();
        for (device, behind) in devices {
            assert!(device.claim(behind).is_err(), "{access:?}, {}{behind}", device.0);
        }
        drop(same);
    }
    // By way of a device.
    let reader = |part| Medium::open_part(&whole.0, &whole.0, part, Access::Read).unwrap();
    let other = reader(ONE);
    for (device, behind) in devices {
        let claimed = device.claim(behind);
        assert!(claimed.is_ok(), "{}{behind}: {claimed:?}", device.0);
    }
    drop(other);
    let _same = reader(TWO);
    for (device, behind) in devices {
        assert!(device.claim(behind).is_err(), "{}{behind}", device.0);
    }
}

/// Whoever came first had all of the disk.
#[test]
fn two_partitions_are_claimed_at_once() {
    require!(root);
    require!(needs(), "sfdisk is not installed");
    let dir = TempDir::new("claims-two").unwrap();
    let path = disk(&dir);
    let whole = with_partitions(&path);
    let (one, two) = (whole.claim("p1").unwrap(), whole.claim("p2").unwrap());
    for part in [ONE, TWO] {
        for access in [Access::Read, Access::Write] {
            for at in [path.as_path(), Path::new(&whole.0)] {
                let late = Medium::open_part(at, at, part, access);
                assert!(late.is_err(), "{access:?}, {part:?} of {} was opened", at.display());
            }
        }
    }
    assert!(whole.claim("p1").is_err() && whole.claim("").is_err());
    drop(one);
    drop(Medium::open_part(&path, &path, ONE, Access::Write).unwrap());
    assert!(whole.claim("p2").is_err());
    drop(two);
    drop(whole.claim("").unwrap());
}

/// Who else has the image was asked of what had the name by then.
#[test]
fn what_has_the_name_by_now_is_not_claimed_for_what_is_open() {
    let dir = TempDir::new("claims-swapped").unwrap();
    let (path, away) = (dir.join("disk.img"), dir.join("away"));
    let make = || File::create(&path).unwrap().set_len(4 * MIB).unwrap();
    make();
    let file = File::options().write(true).open(&path).unwrap();
    drop(claim(&file, &path).unwrap());
    std::fs::rename(&path, &away).unwrap();
    assert!(claim(&file, &path).is_err());
    make();
    assert!(claim(&file, &path).is_err());
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&away, &path).unwrap();
    drop(claim(&file, &path).unwrap());
}

/// The partitions are found twice: of the device, and over the file behind it.
#[test]
fn a_disk_with_partitions_is_claimed_while_nobody_has_one() {
    require!(root);
    require!(needs(), "sfdisk is not installed");
    let dir = TempDir::new("claims-whole").unwrap();
    let path = disk(&dir);
    let whole = with_partitions(&path);
    drop(whole.claim("").unwrap());
    for at in [path.as_path(), Path::new(&whole.0), Path::new(&format!("{}p1", whole.0))] {
        let is_part = at.to_str().unwrap().ends_with("p1");
        let reader = match is_part {
            true => Medium::open(at, Access::Read),
            false => Medium::open_part(at, at, ONE, Access::Read),
        };
        let _reader = reader.unwrap();
        assert!(whole.claim("").is_err(), "{}", at.display());
    }
    let claimed = whole.claim("").unwrap();
    let late = Medium::open_part(&path, &path, ONE, Access::Read);
    assert!(late.is_err(), "what is claimed was opened");
    drop(claimed);
}

/// What was closed by who could have written: there udev makes a disk's partitions anew.
#[cfg(target_os = "linux")]
mod watch {
    #![allow(unsafe_code)]

    use std::ffi::CString;
    use std::fs::File;
    use std::io::{ErrorKind, Read};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    pub struct Watch(File);

    impl Watch {
        pub fn on(node: &str) -> Watch {
            // SAFETY: no pointer is passed.
            let raw = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
            assert!(raw >= 0, "{}", std::io::Error::last_os_error());
            // SAFETY: nobody else has the new descriptor.
            let fd = unsafe { OwnedFd::from_raw_fd(raw) };
            let node = CString::new(node).unwrap();
            let (raw, events) = (fd.as_raw_fd(), libc::IN_CLOSE_WRITE);
            // SAFETY: the path ends with a NUL and outlives the call.
            let watch = unsafe { libc::inotify_add_watch(raw, node.as_ptr(), events) };
            assert!(watch >= 0, "{}", std::io::Error::last_os_error());
            Watch(File::from(fd))
        }

        /// Whether there was one since it was asked last.
        pub fn saw_one(&mut self) -> bool {
            match self.0.read(&mut [0; 4096]) {
                Ok(_) => true,
                Err(e) if e.kind() == ErrorKind::WouldBlock => false,
                Err(e) => panic!("{e}"),
            }
        }
    }
}

/// How often a step is tried that the watch saw something in.
#[cfg(target_os = "linux")]
const ROUNDS: u32 = 40;

/// Whoever looks for a free loop device finds this one free, and has it open to write when it is not any more: losetup(8)
/// of any other test. So a step is wrong only if the watch sees something in each of its rounds.
#[cfg(target_os = "linux")]
fn assert_not_closed(watch: &mut watch::Watch, what: &str, mut step: impl FnMut()) {
    for round in 0..ROUNDS {
        watch.saw_one();
        step();
        if !watch.saw_one() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(round.into()));
    }
    panic!("the disk was closed by who could have written: {what}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_claim_of_a_partition_does_not_open_the_disk_to_write() {
    require!(root);
    require!(needs(), "sfdisk is not installed");
    let dir = TempDir::new("claims-closed").unwrap();
    let path = disk(&dir);
    let whole = with_partitions(&path);
    let mut watch = watch::Watch::on(&whole.0);
    let claims = || drop(whole.claim("p2").unwrap());
    assert_not_closed(&mut watch, "nobody has another part", claims);
    let other = Medium::open_part(&whole.0, &whole.0, ONE, Access::Read).unwrap();
    assert_not_closed(&mut watch, "another part is read", claims);
    drop(other);
    // All of the disk is claimed where nobody has any of it: who comes later is kept off.
    assert_not_closed(&mut watch, "all of the disk is locked", || {
        let claimed = whole.claim("p2").unwrap();
        assert!(Medium::open_part(&whole.0, &whole.0, TWO, Access::Read).is_err());
        drop(claimed);
    });
    watch.saw_one();
    drop(File::options().write(true).open(&whole.0).unwrap());
    assert!(watch.saw_one(), "the watch sees nothing");
}
