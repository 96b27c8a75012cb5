//! The kernel's ioctls that wait, and those beside them, on a mount: scrubs, balances, sizes, rescans,
//! deleted subvolumes, features, ways to subvolumes.
//!
//! Judge: the kernel. The same program asks the kernel's mount of an image and Spinney's, and hears the
//! same. What is not the same is left out: where on the device the kernel's scrub has come, how many chunks
//! a balance looked at.

use crate::common;
use common::mount::{Mount, TRANSPORTS, lacks_fuse};
use common::{Image, KernelMount, PROGRAM, sh, text};
use std::path::Path;
use std::process::Command;
use testkit::require;

/// What both programs begin with.
const ASK: &str = r#"
import errno, fcntl, os, signal, struct, subprocess, sys, threading, time
READ, WRITE = 2, 1
ALL = 2**64 - 1
fd = None
def call(direction, number, size, data=b''):
    record = bytearray(data.ljust(size, b'\0'))
    try:
        fcntl.ioctl(fd, direction << 30 | size << 16 | 0x94 << 8 | number, record)
        return 'done', bytes(record)
    except OSError as e:
        return errno.errorcode[e.errno], bytes(record)
def ask(name, direction, number, size, data=b'', keep=lambda record: ''):
    said, record = call(direction, number, size, data)
    print(name, said, keep(record) if said == 'done' else '')
def at(path):
    global fd
    fd = os.open(os.path.join(sys.argv[1], path), os.O_RDONLY)
def wait(id, mode):
    return call(WRITE, 65, 16, struct.pack('<QII', id, mode, 0))[0]
def scrub(flags, number=27):
    return call(READ | WRITE, number, 1024, struct.pack('<4Q', 1, 0, ALL, flags))
"#;

const ALIKE: &str = r#"
def size(text):
    ask('size ' + text, WRITE, 3, 4096, bytes(8) + text.encode())
def features(*six):
    ask('features %s' % (six,), WRITE, 57, 48, struct.pack('<6Q', *six))
def scrubs(device, end, flags, number=27):
    data = struct.pack('<4Q', device, 0, end, flags)
    keep = lambda r: (struct.unpack_from('<4Q', r), struct.unpack_from('<13Q', r, 32))
    ask('scrub %d %d %d' % (number, device, flags), READ | WRITE, number, 1024, data, keep)
def balance(flags, data=b''):
    keep = lambda r: (r[:432].hex(), struct.unpack_from('<Q', r, 440))
    ask('balance %x' % flags, READ | WRITE, 32, 1024, struct.pack('<QQ', flags, 0) + data, keep)
def look(dir, id):
    keep = lambda r: (r[:16].hex(), r[16:272].split(b'\0')[0], r[272:].split(b'\0')[0])
    ask('look %d %d' % (dir, id), READ | WRITE, 62, 4096, struct.pack('<QQ', dir, id), keep)
def everything():
    at('')
    scrubs(1, ALL, 0, 29); scrubs(2, ALL, 0, 29)
    ask('cancel', 0, 28, 0)
    scrubs(1, ALL, 4); scrubs(9, ALL, 1); scrubs(1, ALL, 1)
    ask('progress', READ, 34, 1024)
    for flags in [1 << 4, 1 << 40, 1 << 12 | 1]:
        balance(flags)
    # Content, of groups that have none.
    balance(1, struct.pack('<9Q', 0, 0, 0, 0, 0, 0, 0, 0, 2))
    ask('progress', READ, 34, 1024)
    ask('rescan', 0, 46, 0)
    for six in [(0, 0, 0, 0, 0, 0), (1, 0, 0, 1, 0, 0), (1, 0, 0, 0, 0, 0), (0, 1 << 50, 0, 0, 1 << 50, 0),
                (0, 1, 0, 0, 1, 0), (0, 1, 0, 0, 0, 0), (0, 0, 1 << 40, 0, 0, 1 << 40),
                (0, 0, 64, 0, 0, 64), (0, 0, 64, 0, 0, 0), (0, 0, 32, 0, 0, 32), (0, 0, 0, 9, 9, 9)]:
        features(*six)
    for text in ['2:max', '0:max', 'x:1g', '', '0', '100m', '99t', '-99t', '1gg', '+-1', 'cancel', '1:max',
                 '-4096', '+4k', '1:400M', 'max']:
        size(text)
    for id, mode in [(5, 0), (9999, 0), (ALL, 0), (0, 0), (256, 9), (0, 1)]:
        print('wait', id, mode, wait(id, mode))
    os.stat(os.path.join(sys.argv[1], 'a'))
    print('wait for what is there', wait(256, 0))
def looks(paths):
    for path in paths:
        at(path)
        print('at', path)
        for dir in [256, 257, 258, 259, 260, 999]:
            for id in [256, 257, 258, 259, 260, 5, 999]:
                look(dir, id)
everything()
ways = ['', 'a', 'd', 'd/open', 'd/open/deep']
looks(ways)
# A directory that is open already is asked by who may not list it, or not pass through it.
opened = [os.open(os.path.join(sys.argv[1], path), os.O_RDONLY) for path in ways]
os.setgroups([])
for mode in [0o755, 0o700, 0o711, 0o744]:
    for closed in ways:
        os.seteuid(0)
        for path in ways:
            os.chmod(os.path.join(sys.argv[1], path), mode if path == closed else 0o755)
        os.seteuid(65534)
        for path, fd in zip(ways, opened):
            print('asked of', path, 'where', closed, 'is', oct(mode))
            for dir in [257, 258, 259, 260]:
                for id in [256, 257, 258, 259]:
                    look(dir, id)
os.seteuid(0)
for path in ways:
    os.chmod(os.path.join(sys.argv[1], path), 0o755)
os.setgid(65534)
os.setuid(65534)
everything()
"#;

fn asked(point: &Path, program: &str) -> String {
    let program = format!("{ASK}{program}");
    let asked = Command::new("python3").args(["-c", &program]).arg(point).arg(PROGRAM).output();
    let told = asked.expect("python3");
    assert!(told.status.success(), "{}{}", text(&told.stdout), text(&told.stderr));
    text(&told.stdout)
}

/// Subvolumes in directories, which everybody may list.
fn filled(name: &str) -> Image {
    let image = Image::new(name);
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    let made = sh(&format!(
        "cd {} && btrfs -q subvolume create a && btrfs -q subvolume create a/b && \
         mkdir -p d/open/deep && btrfs -q subvolume create d/open/c && \
         btrfs -q subvolume create d/open/deep/e && head -c 3000000 /dev/urandom >d/data",
        mount.path().display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    mount.unmount().unwrap();
    image
}

#[test]
fn what_waits_is_answered_as_the_kernel_answers_it() {
    require!(kernel_btrfs);
    require!(fuse);
    let (image, other) = (filled("ioctls-waiting"), Image::new("ioctls-waiting-kernel"));
    std::fs::copy(&image.path, &other.path).unwrap();
    let mount = KernelMount::new(&other.path, "noatime").unwrap();
    let expected = asked(mount.path(), ALIKE);
    mount.unmount().unwrap();
    assert!(expected.lines().count() > 300, "{expected}");
    let mount = Mount::new(&image, "");
    let told = asked(&mount.point, ALIKE);
    for (ours, theirs) in told.lines().zip(expected.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(told, expected);
}

/// Who waits hears of a cancellation, of a signal and of the end; others are served meanwhile.
const WAITING: &str = r#"
at('')
def spinney(*words):
    subprocess.run([sys.argv[2], *words], check=True, stdout=subprocess.DEVNULL)
def until(what, done, patience=20):
    end = time.time() + patience
    while not done():
        assert time.time() < end, what
        time.sleep(0.01)
def is_running():
    return scrub(0, 29)[0] == 'done'
# A scrub stops between two extents.
for n in range(8):
    open(os.path.join(sys.argv[1], 'large-%d' % n), 'wb').write(os.urandom(2 << 20))
assert call(0, 8, 0)[0] == 'done'
spinney('scrub', 'limit', '-a', '-l', '1M', sys.argv[1])
told = []
thread = threading.Thread(target=lambda: told.append(scrub(0)))
thread.start()
until('it does not begin', is_running)
for n in range(50):
    open(os.path.join(sys.argv[1], 'file-%d' % n), 'w').write('x')
assert scrub(0)[0] == 'EINPROGRESS' and scrub(1)[0] == 'EINPROGRESS'
until('nothing is read', lambda: sum(struct.unpack_from('<4Q', scrub(0, 29)[1], 32)) > 0)
assert call(0, 28, 0)[0] == 'done' and not is_running()
thread.join()
said, record = told[0]
assert said == 'ECANCELED' and sum(struct.unpack_from('<4Q', record, 32)) > 0, (said, record[:152])
# The work goes on where who waits is killed.
child = os.fork()
if child == 0:
    scrub(0)
    os._exit(1)
until('it does not begin again', is_running)
os.kill(child, signal.SIGKILL)
until('who is killed stays', lambda: os.waitpid(child, os.WNOHANG)[0] == child)
assert is_running()
assert call(0, 28, 0)[0] == 'done'
spinney('scrub', 'limit', '-a', '-l', '0', sys.argv[1])
assert scrub(0)[0] == 'done'
# Quotas, counted anew.
assert call(READ | WRITE, 40, 16, struct.pack('<QQ', 1, 0))[0] == 'done'
assert call(0, 46, 0)[0] == 'done'
assert call(WRITE, 44, 64)[0] == 'done'
assert call(0, 46, 0)[0] == 'done'
assert call(READ, 45, 64)[1][:8] == bytes(8)
# Subvolumes that are deleted.
assert wait(257, 0) == 'EEXIST'
spinney('subvolume', 'delete', os.path.join(sys.argv[1], 'a/b'))
assert wait(257, 0) in ('done', 'ENOENT') and wait(257, 0) == 'ENOENT'
spinney('subvolume', 'delete', os.path.join(sys.argv[1], 'd/open/c'))
assert wait(0, 1) in ('done', 'ENOENT') and wait(258, 0) == 'ENOENT'
# The whole content moves, and the device becomes smaller.
said, record = call(READ | WRITE, 32, 1024, struct.pack('<QQ', 1, 0))
assert said == 'done' and struct.unpack_from('<Q', record, 440)[0] > 0, said
assert call(WRITE, 3, 4096, bytes(8) + b'400m')[0] == 'done'
assert struct.unpack_from('<Q', call(READ | WRITE, 30, 4096, struct.pack('<Q', 1))[1], 32)[0] == 400 << 20
print('all')
"#;

#[test]
fn who_waits_holds_nobody_up() {
    require!(kernel_btrfs);
    require!(fuse);
    for transport in TRANSPORTS.into_iter().filter(|transport| !lacks_fuse(transport)) {
        let image = filled(&format!("ioctls-waiting-{transport}"));
        let mount = Mount::new(&image, &format!("transport={transport}"));
        assert_eq!(asked(&mount.point, WAITING), "all\n");
        drop(mount);
        let checked = sh(&format!("btrfs check {}", image.word()));
        assert!(checked.status.success(), "{transport}: {}", text(&checked.stderr));
    }
}

/// With one thread for each queue none can be spared.
#[test]
fn the_last_thread_does_not_wait() {
    require!(kernel_btrfs);
    require!(fuse);
    for transport in TRANSPORTS.into_iter().filter(|transport| !lacks_fuse(transport)) {
        let image = filled(&format!("ioctls-threads-{transport}"));
        let mount = Mount::new(&image, &format!("transport={transport},threads=1"));
        let program = "at('')\nprint(scrub(1)[0], scrub(0, 29)[0], call(0, 46, 0)[0])\n";
        let refused = "EBUSY ENOTCONN EBUSY\n";
        // The device has two threads, of which one may.
        let expected = if transport == "uring" { refused } else { "done ENOTCONN done\n" };
        assert_eq!(asked(&mount.point, program), expected, "{transport}");
    }
}

/// Work on huge sparse files: passing over a hole takes no time, hashing one takes long. More processes hash than there
/// are threads; `stat` waits a while, and is killed where nobody serves it.
const SPARSE: &str = r#"
at('')
def opened(name, size):
    path = os.path.join(sys.argv[1], name)
    with open(path, 'wb') as f:
        f.write(b'x')
        f.truncate(size)
    return os.open(path, os.O_RDONLY)
def others_are_served():
    path = os.path.join(sys.argv[1], 'sparse-0')
    subprocess.run(['timeout', '-s', 'KILL', '60', 'sh', '-c', 'stat -f "$0" && echo x > "$0.new"', path],
                   check=True, stdout=subprocess.DEVNULL)
COUNT = 4 + 2 * os.cpu_count()
fd = opened('exabytes', 2**63 - 4096)
for n in range(COUNT):
    assert call(WRITE, 2, 4096)[0] == 'done'
enable = struct.pack('<IIII', 1, 1, 4096, 0).ljust(128, b'\0')
files = [opened('sparse-%d' % n, 2**40) for n in range(COUNT)]
children = []
for file in files:
    child = os.fork()
    if child == 0:
        try:
            fcntl.ioctl(file, 1 << 30 | 128 << 16 | ord('f') << 8 | 133, bytearray(enable))
        except OSError as e:
            os._exit(e.errno)
        os._exit(0)
    children.append(child)
ended = {}
while errno.EBUSY not in ended.values():
    child, status = os.wait()
    ended[child] = os.waitstatus_to_exitcode(status)
others_are_served()
for child in children:
    if child not in ended:
        os.kill(child, signal.SIGTERM)
        ended[child] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
others_are_served()
left = set(ended.values())
assert left <= {errno.EBUSY, -signal.SIGTERM} and -signal.SIGTERM in left, left
print('all')
"#;

#[test]
fn work_on_huge_sparse_files_holds_nobody_up() {
    require!(fuse);
    for transport in TRANSPORTS.into_iter().filter(|transport| !lacks_fuse(transport)) {
        let image = Image::new(&format!("ioctls-sparse-{transport}"));
        let mount = Mount::new(&image, &format!("transport={transport},threads=2"));
        assert_eq!(asked(&mount.point, SPARSE), "all\n", "{transport}");
        drop(mount);
        common::assert_clean(&image.path);
    }
}
