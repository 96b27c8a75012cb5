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

#[test]
fn who_has_another_part_of_the_disk_is_not_in_the_way() {
    require!(root);
    require!(needs(), "sfdisk is not installed");
    let dir = TempDir::new("claims").unwrap();
    let path = disk(&dir);
    let bytes = Loop::over(&path, "-o 32M --sizelimit 16M");
    let whole = Loop::over(&path, "");
    sh(&format!("partx -d {0}; partx -a {0}", whole.0));
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
