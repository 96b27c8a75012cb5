//! What a snapshot is made of through the door of a mount: what the caller has come to, and nothing
//! that he can only name.

use crate::common;
use common::mount::Mount;
use common::{Image, fine, sh, text};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use testkit::require;

/// An ordinary user, in his directory: what he asks for, and how that ends. The numbers of subvolumes
/// behind a closed directory and of his own one are told to him.
const STRANGER: &str = r#"
import errno, fcntl, os, socket, struct, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
hidden, own = (struct.pack('<Q', int(number)) for number in sys.argv[2:4])
here = os.open(sys.argv[1], os.O_RDONLY)
def ask(what, fd, direction, number, record):
    record = bytearray(record)
    try:
        fcntl.ioctl(fd, direction << 30 | len(record) << 16 | 0xdc << 8 | number, record)
        print(what, 'ok')
        return bytes(record)
    except OSError as e:
        print(what, errno.errorcode[e.errno])
BY_NUMBER = struct.pack('<Q', 16)
def snapshot(what, source, flags, name):
    ask(what, here, 1, 7, (source.ljust(16, b'\0') + flags + name).ljust(4096, b'\0'))
def in_groups(what, source, flags, name):
    head = struct.pack('<Q', flags) + source.ljust(16, b'\0') + struct.pack('<Q', 0)
    ask(what, here, 1, 37, (head + name).ljust(4096, b'\0'))
ask('as it was', here, 1, 1, (hidden + bytes(8) + b'a').ljust(4096, b'\0'))
ask('in groups as it was', here, 1, 36, (struct.pack('<Q', 1) + hidden + bytes(8) + b'b').ljust(4096, b'\0'))
snapshot('number', hidden, BY_NUMBER, b'c')
snapshot('own number', own, BY_NUMBER, b'd')
in_groups('number in groups', hidden, 1 | 16, b'e')
snapshot('no word', hidden, bytes(8), b'f')
def word(what, path):
    return ask(what, os.open(path, os.O_RDONLY), 2, 90, bytes(16))
word('no subvolume', sys.argv[1])
word('of root', os.path.join(sys.argv[1], '..', 'open'))
given = word('own', 'own')
snapshot('snapshot', given, bytes(8), b'g')
snapshot('once more', given, bytes(8), b'h')
in_groups('in groups', word('own', 'own'), 1 | 2, b'i')
s = socket.socket(socket.AF_UNIX)
s.connect('\0spinney/mount/' + sys.argv[4])
s.settimeout(20)
s.send(b'send ' + word('own', 'own').hex().encode() + b'\n')
print(s.recv(100).decode().strip())
"#;

const ANSWERS: &str = "as it was ENOTTY
in groups as it was ENOTTY
number EPERM
own number EPERM
number in groups EPERM
no word ESTALE
no subvolume EINVAL
of root EPERM
own ok
snapshot ok
once more ESTALE
own ok
in groups ok
own ok
ask the subvolume first
";

/// His way to `path` is open.
fn open_up(path: &Path) {
    for dir in path.ancestors().filter(|dir| dir.starts_with(std::env::temp_dir())) {
        let mode = fs::metadata(dir).unwrap().mode();
        fs::set_permissions(dir, fs::Permissions::from_mode(mode | 0o711)).unwrap();
    }
}

#[test]
fn a_number_gives_nobody_what_lies_behind_a_closed_directory() {
    require!(fuse);
    let image = Image::new("snapshot-sources");
    let mount = Mount::new(&image, "");
    open_up(&mount.point);
    let at = |name: &str| mount.join(name).display().to_string();
    for dir in ["closed", "his"] {
        fs::create_dir(mount.join(dir)).unwrap();
    }
    for subvolume in ["closed/hidden", "his/own", "open"] {
        fine(&["subvolume", "create", &at(subvolume)]);
    }
    for owned in ["closed/hidden", "his", "his/own"] {
        chown(mount.join(owned), Some(65534), Some(65534)).unwrap();
    }
    fs::write(mount.join("closed/hidden/secret"), "secret").unwrap();
    fs::set_permissions(mount.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();

    let number = |name: &str| fs::metadata(mount.join(name)).unwrap().ino().to_string();
    let device = fs::metadata(&mount.point).unwrap().dev();
    let told = Command::new("python3")
        .args(["-c", STRANGER, &at("his"), &number("closed/hidden"), &number("his/own")])
        .arg(format!("{}:{}", libc::major(device), libc::minor(device)))
        .current_dir(mount.join("his"))
        .output()
        .expect("python3");
    assert_eq!(text(&told.stdout), ANSWERS, "{}", text(&told.stderr));
    let made = text(&sh(&format!("cd {} && echo *", at("his"))).stdout);
    assert_eq!(made.trim(), "g i own");
    mount.umount();
}
