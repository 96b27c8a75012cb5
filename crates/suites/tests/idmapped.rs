//! Idmapped mounts: whoever works below one makes files of other numbers on the volume, and sees
//! them as his own; as with the kernel's btrfs, for each kind of change.

use std::ffi::CString;
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use suites::{Volume, transports};
use testkit::oracle::run;
use testkit::skip;

const OPEN_TREE_CLONE: u32 = 1;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
const MOVE_MOUNT_F_EMPTY_PATH: u32 = 4;

/// The kernel's `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

/// A user namespace whose number N is the machine's 100000 + N.
struct Namespace(Child);

impl Namespace {
    fn new() -> Namespace {
        let mut child = Command::new("unshare");
        child.args(["--user", "sleep", "600"]).stdin(Stdio::null());
        let namespace = Namespace(child.spawn().expect("unshare"));
        let file = |name: &str| format!("/proc/{}/{name}", namespace.0.id());
        let ours = std::fs::read_link("/proc/self/ns/user").unwrap();
        while std::fs::read_link(file("ns/user")).is_ok_and(|theirs| theirs == ours) {
            std::thread::sleep(Duration::from_millis(5));
        }
        for map in ["uid_map", "gid_map"] {
            std::fs::write(file(map), "0 100000 65536").unwrap();
        }
        namespace
    }

    fn open(&self) -> File {
        File::open(format!("/proc/{}/ns/user", self.0.id())).unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn check(result: i64) -> Result<i64, Error> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
}

/// The directory `from` at `to`, with the numbers of `namespace`.
fn bind_mapped(from: &Path, to: &Path, namespace: &Namespace) -> Result<(), Error> {
    let (from, to, users) = (text(from), text(to), namespace.open());
    let empty = c"";
    // SAFETY: the path outlives the call.
    let tree = unsafe {
        libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, from.as_ptr(), OPEN_TREE_CLONE)
    };
    // SAFETY: a new descriptor that nobody else has.
    let tree = unsafe { OwnedFd::from_raw_fd(check(tree)? as i32) };
    let attr = MountAttr {
        set: MOUNT_ATTR_IDMAP,
        clear: 0,
        propagation: 0,
        userns: users.as_raw_fd() as u64,
    };
    // SAFETY: path and record outlive the call, and the record's size is told.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            empty.as_ptr(),
            libc::AT_EMPTY_PATH,
            &attr,
            size_of::<MountAttr>(),
        )
    })?;
    // SAFETY: the paths outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            empty.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    })?;
    Ok(())
}

/// Who works below the mapped mount: its root, one of its users, a stranger to it.
const WHO: &[(&str, &str)] = &[
    ("its root", "--reuid 100000 --regid 100000 --clear-groups --inh-caps=-all"),
    ("its user", "--reuid 101000 --regid 101000 --groups 100005"),
    ("a stranger", "--reuid 1000 --regid 1000 --clear-groups"),
    ("the machine's root", "--reuid 0"),
];

const WORK: &str = r"
    t() { echo \$ $*; eval $* 2>&1 | sed 's/ at .*//'; }
    t 'umask 022; echo 1 >file'; t 'mkdir dir'; t 'mkfifo fifo'; t 'ln -s file link'; t 'ln file hard'
    t 'chmod 2775 dir'; t 'touch dir/in'; t 'chmod 6755 file'; t 'echo 2 >>file'
    t 'chown 101000 file'; t 'chgrp 100005 file'; t 'chown 1000 file'; t 'chown 100000:100000 dir'
    t 'echo 3 >>old'; t 'chmod 600 old'; t 'mv old new'; t 'rm -f new'
    t 'setfacl -m u:101000:rwx,g:100005:r dir'; t 'setfacl -m u:7:r dir'; t 'getfacl -n dir'
    t 'setfattr -n user.a -v b dir'; t 'setfattr -n trusted.a -v b dir'; t 'cat secret'
    find . -printf '%p %m %U %G %s\n' 2>&1 | LC_ALL=C sort
";

/// What each caller is told, and what is on the volume then.
fn work(root: &Path, point: &Path) -> Result<Vec<String>, Error> {
    let namespace = Namespace::new();
    let mut told = Vec::new();
    for (who, credentials) in WHO {
        let script = format!(
            "cd '{0}' || exit 99; rm -rf top; mkdir -m 777 top; cd top
            echo old >old; chown 1000:1000 old; chmod 640 old
            echo secret >secret; chmod 600 secret; chown 5:5 secret",
            root.display()
        );
        assert!(run("sh", &["-c", &script]).success());
        bind_mapped(&root.join("top"), point, &namespace)?;
        let below = format!("cd '{}' && {WORK}", point.display());
        let mapped = format!("exec setpriv {credentials} bash -c \"$1\"");
        let report = run("bash", &["-c", &mapped, "bash", &below]);
        let point_text = point.to_string_lossy();
        assert!(run("umount", &[&*point_text]).success());
        let view = "cd \"$1/top\" && find . -printf '%p %m %U %G %s\\n' | LC_ALL=C sort; \
                    getfacl -n dir 2>/dev/null";
        let volume = run("bash", &["-c", view, "bash", &*root.to_string_lossy()]);
        for line in report.stdout.lines().chain(report.stderr.lines()).chain(volume.stdout.lines())
        {
            told.push(format!("{who}: {line}"));
        }
    }
    Ok(told)
}

#[test]
fn mapped_owners_are_as_in_the_kernel() {
    for program in ["setpriv", "setfacl", "setfattr", "unshare"] {
        if !run("which", &[program]).success() {
            skip!("no {program}");
        }
    }
    let reference = Volume::new("idmapped-kernel", 256 << 20);
    let point = reference.beside("point");
    std::fs::create_dir(&point).unwrap();
    let kernel = reference.mount_by_kernel();
    let expected = match work(kernel.path(), &point) {
        Ok(expected) => expected,
        Err(error) => skip!("no idmapped mounts: {error}"),
    };
    kernel.unmount().unwrap();
    let mapped = expected.iter().filter(|line| line.contains(" 1000 1000 ")).count();
    assert!(mapped >= 4, "its user's files have the numbers of the volume: {expected:#?}");
    for transport in transports() {
        let volume = Volume::new("idmapped", 256 << 20);
        let mount = volume.mount(transport, Duration::from_secs(60));
        let told = work(mount.path(), &point).expect("idmapped mounts");
        let differ: Vec<_> = told.iter().zip(&expected).filter(|(a, b)| a != b).collect();
        assert!(differ.is_empty(), "{transport}; the kernel's btrfs is on the right: {differ:#?}");
        assert_eq!(told.len(), expected.len());
        volume.judge(&mount.unmount_with_tree());
    }
}

/// Makes what the others try: `prepare` in the directory, then as a user of that number by the mapped mount of it.
const CONTROL: &str = r"
import errno, fcntl, os, struct, sys
who, place = sys.argv[1:]
os.chdir(place)
def ask(path, number, size, data):
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, 1 << 30 | size << 16 | 0x94 << 8 | number, bytearray(data.ljust(size, b'\0')))
    finally:
        os.close(fd)
def create(dir, name):
    ask(dir, 14, 4096, bytes(8) + name)
def freeze(yes):
    ask('his', 26, 8, struct.pack('<Q', 2 * yes))
def defragment():
    ask('his/file', 16, 48, struct.pack('<QQ', 0, 2**64 - 1))
if who == 'prepare':
    create('.', b'his')
    os.mkdir('his/open')
    with open('his/file', 'w') as file:
        file.write('content')
    for path in ['his', 'his/file']:
        os.chown(path, 1000, 1000)
    os.chmod('his/open', 0o1777)
    sys.exit()
if int(who):
    os.setgroups([])
    os.setresgid(int(who), int(who), int(who))
    os.setresuid(int(who), int(who), int(who))
for call, *args in [(create, 'his/open', b'new'), (create, 'his', b'new'), (freeze, 1), (freeze, 0), (defragment,)]:
    try:
        call(*args)
        print(call.__name__, *args[:1], 'ok')
    except OSError as e:
        print(call.__name__, *args[:1], errno.errorcode[e.errno])
";

/// What the container's user 1000, the machine's user 1000 and root are told, and who owns what is there behind it.
fn control(root: &Path, point: &Path) -> Result<[Vec<String>; 3], Error> {
    let namespace = Namespace::new();
    let users = ["101000", "1000", "0"];
    let mut told = users.map(|_| Vec::new());
    for (who, told) in users.iter().zip(&mut told) {
        let top = root.join(format!("for-{who}"));
        std::fs::create_dir(&top).unwrap();
        let run_as = |who: &str, place: &Path| {
            let report = run("python3", &["-c", CONTROL, who, &*place.to_string_lossy()]);
            assert!(report.success(), "{report:?}");
            report.stdout
        };
        run_as("prepare", &top);
        bind_mapped(&top, point, &namespace)?;
        told.extend(run_as(who, point).lines().map(str::to_owned));
        assert!(run("umount", &[&*point.to_string_lossy()]).success());
        let owners = "cd \"$1\" && find . -printf '%p %U\\n' | LC_ALL=C sort";
        let owners = run("bash", &["-c", owners, "bash", &*top.to_string_lossy()]);
        told.extend(owners.stdout.lines().map(str::to_owned));
    }
    Ok(told)
}

/// Whom the mount gives other numbers is nobody to control operations: he gets no more than by the kernel's btrfs.
#[test]
fn who_comes_by_a_mapped_mount_is_nobody_to_control_operations() {
    let reference = Volume::new("idmapped-control-kernel", 256 << 20);
    let point = reference.beside("point");
    std::fs::create_dir(&point).unwrap();
    let kernel = reference.mount_by_kernel();
    let [user, stranger, root] = match control(kernel.path(), &point) {
        Ok(expected) => expected,
        Err(error) => skip!("no idmapped mounts: {error}"),
    };
    kernel.unmount().unwrap();
    // The kernel judges a defragmentation, the last of these, by numbers that are not mapped.
    let (tried, judged) = (5, 4);
    assert!(user[..judged].iter().all(|line| line.ends_with(" ok")), "{user:?}");
    for transport in transports() {
        let volume = Volume::new("idmapped-control", 256 << 20);
        let mount = volume.mount(transport, Duration::from_secs(60));
        let [told, strangers, roots] = control(mount.path(), &point).expect("idmapped mounts");
        assert_eq!(
            strangers[..judged],
            stranger[..judged],
            "{transport}; the kernel's is on the right"
        );
        assert_eq!(roots, root, "{transport}; the kernel's is on the right");
        for told in [&told, &strangers] {
            assert!(told[..tried].iter().all(|line| !line.ends_with(" ok")), "{told:?}");
            assert_eq!(told[tried..], stranger[tried..], "{transport}: nothing has changed");
        }
        volume.judge(&mount.unmount_with_tree());
    }
}
