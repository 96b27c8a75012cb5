//! The kernel's btrfs ioctls on a mount.
//!
//! Judge: the kernel. The same program asks the kernel's mount of an image and Spinney's, and
//! hears the same.

use crate::common;
use common::mount::Mount;
use common::{Image, KernelMount, sh, text};
use std::path::Path;
use std::process::Command;
use testkit::require;

/// Asks all there is to ask of the mount on `sys.argv[1]`; what is told goes out line by line.
const PROGRAM: &str = r#"
import errno, fcntl, hashlib, os, struct, sys
READ, WRITE = 2, 1
fd = None
def ask(name, direction, number, size, data=b''):
    record = bytearray(data.ljust(size, b'\0'))
    try:
        fcntl.ioctl(fd, direction << 30 | size << 16 | 0x94 << 8 | number, record)
        return bytes(record)
    except OSError as e:
        print(name, errno.errorcode[e.errno])
def tell(name, *args):
    record = ask(name, *args)
    if record is not None:
        print(name, record.hex().rstrip('0'))
def look(name, tree, inode):
    # The kernel leaves of its own what stands behind the name's end.
    record = ask(name, READ | WRITE, 18, 4096, struct.pack('<QQ', tree, inode))
    if record is not None:
        print(name, struct.unpack_from('<QQ', record), record[16:].split(b'\0')[0])
def search(tree, low=0, types=(0, 255)):
    at, all = (low, types[0], 0), []
    while True:
        key = struct.pack('<7QIII36x', tree, at[0], 2**64 - 1, at[2], 2**64 - 1, 0, 2**64 - 1,
                          at[1], types[1], 4096)
        record = ask('search %d' % tree, READ | WRITE, 17, 4096, key)
        count = struct.unpack_from('<I', record, 64)[0] if record else 0
        if not count:
            break
        offset = 104
        for _ in range(count):
            transid, objectid, off, kind, size = struct.unpack_from('<QQQII', record, offset)
            data = record[offset + 32:offset + 32 + size]
            all.append((transid, objectid, kind, off, hashlib.md5(data).hexdigest()))
            offset += 32 + size
        at = (objectid, kind, off + 1)
    print('tree', tree, len(all), hashlib.md5(repr(all).encode()).hexdigest())
for path in ['', 'a', 'd/e', 'd/e/c', 'plain']:
    fd = os.open(os.path.join(sys.argv[1], path), os.O_RDONLY)
    print('at', path)
    tell('info', READ, 31, 1024, bytes(48) + struct.pack('<Q', 7))
    tell('subvolume', READ, 60, 504)
    tell('below', READ | WRITE, 61, 4096)
    tell('flags', READ, 25, 8)
    tell('features', READ, 57, 24)
    for tree, inode in [(0, 256), (0, 257), (5, 258), (256, 256), (999, 257)]:
        look('lookup %d %d' % (tree, inode), tree, inode)
for device in [1, 2]:
    record = ask('device', READ | WRITE, 30, 4096, struct.pack('<Q', device))
    if record:
        print('device', record[:40].hex())
    tell('errors', READ | WRITE, 52, 1032, struct.pack('<QQ', device, 5))
for tree in [0, 1, 3, 4, 5, 7, 9, 10, 256, 258, 999]:
    search(tree)
search(5, 257, (12, 12))
os.setgroups([])
os.setuid(65534)
search(5)
look('lookup', 5, 258)
look('own', 0, 256)
"#;

/// Asks for what cannot be, and says what each is refused with.
const REFUSED: &str = r#"
import errno, fcntl, os, struct, sys
point = sys.argv[1]
def call(name, what):
    try:
        what()
        print(name, 'ok')
    except OSError as e:
        print(name, errno.errorcode[e.errno])
def ask(path, number, size, record):
    fd = os.open(os.path.join(point, path), os.O_RDONLY)
    try:
        fcntl.ioctl(fd, 1 << 30 | size << 16 | 0x94 << 8 | number, bytearray(record.ljust(size, b'\0')))
    finally:
        os.close(fd)
def named(name):
    return bytes(8) + name
def numbered(id):
    return bytes(16) + struct.pack('<Q', 16) + bytes(32) + struct.pack('<Q', id)
for name in [b'', b'.', b'..', b'a/b', b'plain', b'd', b's', b'..x']:
    call(('create', name), lambda: ask('', 14, 4096, named(name)))
for name in [b'', b'.', b'..', b'd/e', b'/', b'plain', b'link', b'd', b'nope', b'..x']:
    call(('destroy', name), lambda: ask('', 15, 4096, named(name)))
    call(('destroy2', name), lambda: ask('', 63, 4096, bytes(56) + name))
for id in [0, 2, 5, 6, 255, 9999]:
    call(('destroy', id), lambda: ask('', 63, 4096, numbered(id)))
for size in [b'+18446744073709551615', b'1:cancel', b'cancel', b'-18446744073709551615', b'x']:
    call(('resize', size), lambda: ask('', 3, 4096, named(size)))
for path in ['', 'd', 's', 'ro', 'plain']:
    call(('defragment', path), lambda: ask(path, 16, 48, struct.pack('<QQ', 0, 2**64 - 1)))
for generation in [0, 1, 99999, 2**64 - 1]:
    call(('wait', generation), lambda: ask('', 22, 8, struct.pack('<Q', generation)))
os.setgroups([])
os.setuid(65534)
for path in ['', 'd']:
    call(('user', path), lambda: ask(path, 16, 48, struct.pack('<QQ', 0, 2**64 - 1)))
for id in [5, 255]:
    call(('user', id), lambda: ask('', 63, 4096, numbered(id)))
"#;

fn asked(point: &Path) -> String {
    told(PROGRAM, point)
}

fn told(program: &str, point: &Path) -> String {
    let told = Command::new("python3").args(["-c", program]).arg(point).output().expect("python3");
    assert!(told.status.success(), "{}", text(&told.stderr));
    text(&told.stdout)
}

#[test]
fn questions_are_answered_as_the_kernel_answers_them() {
    require!(kernel_btrfs);
    require!(fuse);
    let image = Image::new("ioctls");
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    let made = sh(&format!(
        "cd {} && btrfs -q subvolume create a && btrfs -q subvolume create a/b && \
         mkdir -p d/e && btrfs -q subvolume create d/e/c && echo one >a/file && echo x >plain && \
         head -c 300000 /dev/urandom >d/data && for i in $(seq 200); do echo $i >d/$i; done && \
         btrfs -q subvolume snapshot -r a d/s2",
        mount.path().display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    mount.unmount().unwrap();
    let mount = KernelMount::new(&image.path, "ro,noatime").unwrap();
    let expected = asked(mount.path());
    mount.unmount().unwrap();
    assert!(expected.lines().count() > 60, "{expected}");

    let mount = Mount::new(&image, "ro");
    let told = asked(&mount.point);
    for (ours, theirs) in told.lines().zip(expected.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(told, expected);
}

#[test]
fn what_is_not_committed_is_found() {
    require!(fuse);
    let image = Image::new("ioctls-live");
    let mount = Mount::new(&image, "");
    let count = |told: String| -> u64 {
        let line = told.lines().find(|line| line.starts_with("tree 5 ")).unwrap().to_owned();
        line.split(' ').nth(2).unwrap().parse().unwrap()
    };
    let made = sh(&format!(
        "cd {0} && mkdir -p d/e a plain && {1} subvolume create d/e/c",
        mount.word(),
        common::PROGRAM
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let before = count(asked(&mount.point));
    std::fs::write(mount.join("new"), "content").unwrap();
    // Inode, reference, two entries, content.
    assert_eq!(count(asked(&mount.point)), before + 5);
}

#[test]
fn what_cannot_be_is_refused_as_the_kernel_refuses_it() {
    require!(kernel_btrfs);
    require!(fuse);
    let image = Image::new("ioctls-refused");
    let mount = KernelMount::new(&image.path, "").unwrap();
    let made = sh(&format!(
        "cd {} && btrfs -q subvolume create s && mkdir -p d/e && echo x >plain && ln -s s link && \
         btrfs -q subvolume snapshot -r s ro && chmod 777 . d",
        mount.path().display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let expected = told(REFUSED, mount.path());
    mount.unmount().unwrap();
    let mount = Mount::new(&image, "");
    let told = told(REFUSED, &mount.point);
    for (ours, theirs) in told.lines().zip(expected.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(told, expected);
}
