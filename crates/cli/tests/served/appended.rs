//! Files that are closed to changes (`chattr +a`, `+i`) while the kernel has content of them that it has not sent:
//! what was written, with `-o writeback`, and what was stored through a shared map. All of it is there at the next mount.

use crate::common;
use common::mount::{Mount, TRANSPORTS, lacks_fuse};
use common::{Image, assert_clean, sh, text};
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;
use testkit::require;

/// In the directory of the mount, `$REFERENCE` beside it.
const WRITTEN: &str = r#"
set -e
touch f; chattr +a f; printf a >>f; printf b >>f; test "$(cat f)" = ab
head -c 30000000 /dev/urandom >"$REFERENCE/long"
touch long late; chattr +a long
cat "$REFERENCE/long" >>long
head -c 5000000 "$REFERENCE/long" >late
chattr +a late
tail -c +5000001 "$REFERENCE/long" >>late
touch still; chattr +i still; before=$(stat -c %y still)
if touch -m still 2>/dev/null; then echo "the times of an immutable file changed"; exit 1; fi
test "$(stat -c %y still)" = "$before"; chattr -i still
"#;

/// Stores into all pages but the first, closes the file to changes by `sys.argv[2]`, and only then has them sent. By the
/// ioctl itself: `chattr` closes the file once before, which sends them.
const STORED: &str = r#"
import fcntl, mmap, os, struct, sys
path, flag = sys.argv[1], sys.argv[2]
fd = os.open(path, os.O_RDWR | os.O_CREAT)
os.write(fd, b"w" * 5000)
os.ftruncate(fd, 3 << 20)
memory = mmap.mmap(fd, 3 << 20)
for page in range(1, 768):
    memory[page * 4096 : page * 4096 + 6] = b"stored"
os.fchmod(fd, 0o640) # its ctime is another than its mtime
fcntl.ioctl(fd, 0x40086602, struct.pack("l", {"+i": 0x10, "+a": 0x20}[flag]))
memory.flush()
memory.close()
os.close(fd)
"#;

/// Content is sent and its times are not yet: those of the kernel come into the file that is closed to changes then, and no
/// user's.
const TOUCHED: &str = r#"
import ctypes, fcntl, os, struct, sys
fd = os.open("touched", os.O_RDWR | os.O_CREAT)
os.write(fd, b"w" * 5000)
libc = ctypes.CDLL(None)
libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_uint]
assert libc.sync_file_range(fd, 0, 0, 7) == 0
fcntl.ioctl(fd, 0x40086602, struct.pack("l", 0x10))
written = os.stat(fd).st_mtime_ns
# As `touch -m`, which opens the file first, which the kernel's btrfs refuses.
class Timespec(ctypes.Structure):
    _fields_ = [("secs", ctypes.c_long), ("nanos", ctypes.c_long)]
NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2
times = (Timespec * 2)(Timespec(0, OMIT), Timespec(0, NOW))
assert libc.futimens(fd, times) == -1, "a user's times were taken"
os.close(fd)
assert os.stat("touched").st_mtime_ns == written
"#;

fn run(program: &str, args: &[&str], at: &Path, reference: &Path) {
    let output =
        Command::new(program).args(args).current_dir(at).env("REFERENCE", reference).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn stored() -> Vec<u8> {
    let mut content = vec![0; 3 << 20];
    content[..5000].fill(b'w');
    (1..768).for_each(|page| content[page * 4096..][..6].copy_from_slice(b"stored"));
    content
}

fn assert_there(mount: &Mount, reference: &Path) {
    let read = |name: &str| std::fs::read(mount.join(name)).expect("read");
    assert_eq!(read("f"), b"ab");
    let long = std::fs::read(reference.join("long")).expect("read");
    assert!(read("long") == long && read("late") == long);
    assert!(read("+i") == stored() && read("+a") == stored());
}

fn modified(mount: &Mount) -> SystemTime {
    mount.join("touched").metadata().and_then(|meta| meta.modified()).expect("stat")
}

fn on_a_mount(transport: &str, options: &str) {
    let image = Image::new(&format!("appended-{transport}{}", options.replace(',', "-")));
    let options = format!("transport={transport}{options}");
    let mount = Mount::new(&image, &options);
    run("bash", &["-c", WRITTEN], &mount.point, image.dir.path());
    for flag in ["+i", "+a"] {
        let path = format!("./{flag}");
        run("python3", &["-c", STORED, &path, flag], &mount.point, image.dir.path());
    }
    run("python3", &["-c", TOUCHED], &mount.point, image.dir.path());
    assert_there(&mount, image.dir.path());
    let written = modified(&mount);
    mount.umount();
    let mount = Mount::new(&image, &options);
    assert_there(&mount, image.dir.path());
    assert_eq!(modified(&mount), written, "{options}");
    mount.umount();
    assert_clean(&image.path);
}

#[test]
fn what_was_written_and_stored_before_is_there() {
    for transport in TRANSPORTS {
        if !lacks_fuse(transport) {
            on_a_mount(transport, "");
            on_a_mount(transport, ",writeback");
        }
    }
}

/// The kernel stamps what is written, and the server what is made: by one clock, so that `make` knows what is older.
#[test]
fn a_file_is_not_older_behind_its_first_write_than_when_it_was_made() {
    require!(btrfs_progs);
    require!(fuse);
    for transport in TRANSPORTS.into_iter().filter(|transport| !lacks_fuse(transport)) {
        let image = Image::new("one-clock");
        let mount = Mount::new(&image, &format!("transport={transport},writeback"));
        let made = sh(&format!(
            "cd {} && for n in $(seq 50); do : >source$n; echo x >object$n; \
             if [ object$n -ot source$n ]; then echo $n; fi; done; touch old; chattr +a old; touch old",
            mount.word()
        ));
        assert_eq!((text(&made.stdout), text(&made.stderr)), (String::new(), String::new()));
        mount.umount();
        assert_clean(&image.path);
    }
}
