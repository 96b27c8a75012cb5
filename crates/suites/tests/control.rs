//! Control commands of the whole volume, on its root directory: the answers are those of the
//! kernel's btrfs, asked in the same way, and what they did is on the volume for everybody.

use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use suites::{Volume, spinney, transports};
use testkit::oracle::run;
use testkit::skip;

const FITRIM: libc::c_ulong = 0xc018_5879;
const GETFSLABEL: libc::c_ulong = 0x8100_9431;
const SETFSLABEL: libc::c_ulong = 0x4100_9432;
const END: u64 = u64::MAX;

fn control<T>(root: &Path, command: libc::c_ulong, record: &mut T) -> Result<(), Error> {
    let directory = File::open(root).unwrap();
    // SAFETY: the record has the size that the command's number says, and outlives the call.
    let result = unsafe { libc::ioctl(directory.as_raw_fd(), command, record) };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// How a command ended, to be compared.
fn ended(result: Result<(), Error>) -> i32 {
    result.err().map_or(0, |error| error.raw_os_error().unwrap())
}

/// Start, length, least: around each end of the addresses and of a sector.
const RANGES: &[(u64, u64, u64)] = &[
    (0, END, 0),
    (1, END, 0),
    (4096, END, END),
    (1, END - 1, 0),
    (4096, END - 4096, 0),
    (4096, END - 4095, 0),
    (2, END - 1, 0),
    (END, END, 0),
    (END, 4096, 0),
    (END, 0, 0),
    (END - 1, END, 0),
    (END - 4096, 4096, 0),
    (END - 4095, 4096, 0),
    (1 << 63, 1 << 63, 0),
    (1 << 63, (1 << 63) - 1, 0),
    (0, 0, 0),
    (0, 4095, 0),
    (0, 4096, 0),
    (1 << 50, 4096, 0),
    (0, END, END),
    (0, END, 1 << 63),
];

/// Each range: how its trim ended.
fn trims(root: &Path) -> Vec<String> {
    let trim = |&(start, len, least): &(u64, u64, u64)| {
        let errno = ended(control(root, FITRIM, &mut [start, len, least]));
        format!("{start:#x} {len:#x} {least:#x}: {errno}")
    };
    RANGES.iter().map(trim).collect()
}

fn label(root: &Path) -> Vec<u8> {
    let mut text = [0u8; 256];
    control(root, GETFSLABEL, &mut text).unwrap();
    let len = text.iter().position(|byte| *byte == 0).expect("an end");
    text[..len].to_vec()
}

fn set_label(root: &Path, text: &[u8]) -> i32 {
    let mut record = [0u8; 256];
    record[..text.len()].copy_from_slice(text);
    ended(control(root, SETFSLABEL, &mut record))
}

/// Each label: how setting it ended, and the label after that.
fn labels(root: &Path) -> Vec<String> {
    let (longest, unterminated) = ([b'a'; 255], [b'b'; 256]);
    let rest = [&b"cut\0"[..], &[b'z'; 252]].concat();
    let texts: [&[u8]; 10] = [
        b"x",
        b"",
        &longest,
        &unterminated,
        b"two\nlines",
        b"\n",
        &rest,
        b"a/b",
        b"\xff\xfe",
        b"last",
    ];
    texts.iter().map(|text| format!("{} {:?}", set_label(root, text), label(root))).collect()
}

fn as_nobody(root: &Path) -> String {
    let script = "import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for number, size in (0x41009432, 256), (0xc0185879, 24):
    for byte in b'\\0', b'a':
        try: fcntl.ioctl(fd, number, bytearray(byte * size)); print(0)
        except OSError as error: print(error.errno)";
    let output = Command::new("python3").args(["-c", script]).arg(root).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn read_only(root: &Path, mounted: bool, ours: bool) -> Vec<i32> {
    let option = if mounted { "remount,ro" } else { "remount,rw" };
    let report = run("mount", &["-o", option, root.to_str().unwrap()]);
    assert!(report.success(), "{report:?}");
    // Without its link mount(8) tells our server nothing, which sees it a moment later.
    let start = Instant::now();
    let trim = || ended(control(root, FITRIM, &mut [0, END, END]));
    while ours && mounted && trim() != libc::EROFS && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(5));
    }
    if mounted { vec![set_label(root, b"no"), set_label(root, &[b'n'; 256])] } else { vec![] }
}

/// All that is compared.
fn answers(root: &Path, ours: bool) -> Vec<String> {
    let mut told = trims(root);
    told.extend(labels(root));
    told.push(as_nobody(root));
    told.push(format!("{:?}", read_only(root, true, ours)));
    read_only(root, false, ours);
    told.push(format!("{:?}", label(root)));
    told
}

fn ask(program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn answers_are_the_kernels() {
    if !run("which", &["python3"]).success() {
        skip!("no python3");
    }
    let reference = Volume::new("control-kernel", 256 << 20);
    let kernel = reference.mount_by_kernel();
    let expected = answers(kernel.path(), false);
    kernel.unmount().unwrap();
    assert!(expected.iter().filter(|line| line.ends_with(": 22")).count() > 5, "{expected:#?}");
    for transport in transports() {
        let volume = Volume::new("control", 256 << 20);
        let mount = volume.mount(transport, Duration::from_secs(120));
        let told = answers(mount.path(), true);
        let differ: Vec<_> = told.iter().zip(&expected).filter(|(a, b)| a != b).collect();
        assert!(differ.is_empty(), "{transport}; the kernel's btrfs is on the right: {differ:#?}");
        volume.judge(&mount.unmount_with_tree());
    }
}

/// docs/SEMANTICS.md says why there are none. A kernel that took one would write to the device
/// from then on, where we may have put something else.
#[test]
fn swap_files_are_refused() {
    for transport in transports() {
        let volume = Volume::new("swap", 256 << 20);
        let mount = volume.mount(transport, Duration::from_secs(120));
        let path = mount.join("swap").to_str().unwrap().to_string();
        File::create(&path).unwrap();
        ask("chattr", &["+C", &path]);
        ask("chmod", &["600", &path]);
        ask("fallocate", &["-l", "8M", &path]);
        ask("mkswap", &[&path]);
        let name = std::ffi::CString::new(path).unwrap();
        // SAFETY: the name ends with a zero and outlives both calls.
        let (taken, errno) = unsafe {
            let result = libc::swapon(name.as_ptr(), 0);
            let errno = Error::last_os_error().raw_os_error();
            if result == 0 {
                libc::swapoff(name.as_ptr());
            }
            (result == 0, errno)
        };
        assert!(!taken && errno == Some(libc::EINVAL), "{transport}: {errno:?}");
        volume.judge(&mount.unmount_with_tree());
    }
}

/// Set by the tool on the mount, by the tool again on top of a log, and read by all.
#[test]
fn a_label_is_on_the_volume_at_once() {
    for transport in transports() {
        let volume = Volume::new("label", 256 << 20);
        let image = volume.image();
        let image = image.to_str().unwrap();
        let mount = volume.mount(transport, Duration::from_secs(120));
        let root = mount.path().to_str().unwrap().to_string();
        ask("btrfs", &["filesystem", "label", &root, "the first"]);
        let file = File::create(mount.join("synced")).unwrap();
        file.sync_all().unwrap();
        ask("btrfs", &["filesystem", "label", &root, "the second"]);
        assert_eq!(ask("btrfs", &["filesystem", "label", &root]), "the second\n");
        // Nobody said sync: all copies have it, and no log leads back.
        for copy in ["0", "1"] {
            let told = ask("btrfs", &["inspect-internal", "dump-super", "-s", copy, image]);
            assert!(
                told.lines().any(|l| l.split_whitespace().eq(["label", "the", "second"])),
                "{told}"
            );
        }
        file.sync_all().unwrap();
        mount.kill_server();
        drop(file);
        drop(mount);
        assert_eq!(ask("blkid", &["-p", "-o", "value", "-s", "LABEL", image]), "the second\n");
        assert!(ask(spinney(), &["info", image]).contains("the second"));
        let kernel = volume.mount_by_kernel();
        assert_eq!(label(kernel.path()), b"the second");
        assert!(kernel.path().join("synced").exists());
        kernel.unmount().unwrap();
        suites::assert_sound(&volume.image());
    }
}
