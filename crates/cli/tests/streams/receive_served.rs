//! `receive` into a mount whose server plays the stream: who reads meanwhile finds what is there in the
//! end, whatever the kernel has kept; who goes on the way leaves something unfinished behind.

use crate::common;
use btrfs_send::{Command as Sent, Encoder, Origin, Protocol};
use common::mount::{Mount, lacks_fuse};
use common::streams::{assert_same, history, ready};
use common::{Image, KernelMount, PROGRAM, TempDir, assert_clean, fine, sh, text};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const ROUNDS: usize = 4;

/// Walks what is there, reads all of it, and keeps some of it open.
struct Reader {
    open: Vec<(PathBuf, File)>,
    seen: u64,
}

impl Reader {
    fn look(&mut self, dir: &Path) {
        let Ok(entries) = fs::read_dir(dir) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            // Whatever is asked for may be gone by now.
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            let _ = fs::symlink_metadata(dir.join(format!("{}.not", self.seen)));
            self.seen += 1;
            if meta.is_dir() {
                self.look(&path);
            } else if meta.is_symlink() {
                let _ = fs::read_link(&path);
            } else if meta.is_file()
                && let Ok(mut file) = File::open(&path)
            {
                let _ = file.read_to_end(&mut Vec::new());
                if self.open.len() < 400 {
                    self.open.push((path, file));
                }
            }
        }
    }
}

/// Sends a file bit by bit.
fn slowly(from: &Path, mut to: impl Write, pause: Duration) {
    let bytes = fs::read(from).unwrap();
    for piece in bytes.chunks(bytes.len() / 60 + 1) {
        to.write_all(piece).unwrap();
        thread::sleep(pause);
    }
}

fn receiver(place: &str) -> Child {
    // SIGINT ends it, whatever the tests were started with.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", PROGRAM, "receive", place]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The first half of `bytes`, a [`stream`], is sent, and what it has is there.
fn half_sent(mount: &Mount, bytes: &[u8]) -> (Child, ChildStdin) {
    let mut child = receiver(&mount.word());
    let mut input = child.stdin.take().unwrap();
    input.write_all(&bytes[..bytes.len() / 2]).unwrap();
    wait_for("files are there", || mount.join("snap/f500").exists());
    (child, input)
}

fn streams(source: &Image, into: &Path) {
    let mount = KernelMount::new(&source.path, "ro").unwrap();
    let top = mount.path().display().to_string();
    for round in 0..ROUNDS {
        let parent = round.checked_sub(1).map_or(String::new(), |p| format!("-p {top}/s{p}"));
        let file = into.join(round.to_string()).display().to_string();
        let done = sh(&format!("btrfs -q send --proto 2 {parent} -f {file} {top}/s{round}"));
        assert!(done.status.success(), "{}", text(&done.stderr));
    }
    mount.unmount().unwrap();
}

/// What was opened on the way and has its name still reads as the file that is opened now.
fn assert_open_files(readers: &[Reader]) -> usize {
    let mut compared = 0;
    for (path, old) in readers.iter().flat_map(|reader| &reader.open) {
        let Ok(new) = File::open(path) else { continue };
        let (old_meta, new_meta) = (old.metadata().unwrap(), new.metadata().unwrap());
        if old_meta.ino() != new_meta.ino() {
            continue;
        }
        assert_eq!(old_meta.len(), new_meta.len(), "{}", path.display());
        let mut through = vec![0; old_meta.len() as usize];
        old.read_exact_at(&mut through, 0).unwrap();
        assert!(through == fs::read(path).unwrap(), "{}", path.display());
        compared += 1;
    }
    compared
}

#[test]
fn who_reads_meanwhile_keeps_nothing_old() {
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |n| n.parse().unwrap());
    let (first, seeds) = (number("SPINNEY_SEED", 1), number("SPINNEY_SEEDS", 2));
    for seed in first..first + seeds {
        let transport = ["uring", "classic"][seed as usize % 2];
        if !ready("receive-served") || lacks_fuse(transport) {
            return;
        }
        let (source, target) = (Image::new("served-source"), Image::new("served"));
        history(&source, "noatime", seed, ROUNDS, 300);
        let dir = TempDir::new("served").unwrap();
        streams(&source, dir.path());
        let mount = Mount::new(&target, &format!("transport={transport}"));
        let (stop, looks) = (AtomicBool::new(false), AtomicU64::new(0));
        let read = || {
            let mut reader = Reader { open: Vec::new(), seen: 0 };
            while !stop.load(Ordering::Relaxed) {
                reader.look(&mount.point);
                looks.fetch_add(1, Ordering::Relaxed);
            }
            reader
        };
        let readers: Vec<Reader> = thread::scope(|scope| {
            let readers: Vec<_> = (0..2).map(|_| scope.spawn(read)).collect();
            for round in 0..ROUNDS {
                let mut child = receiver(&mount.word());
                let file = dir.join(&round.to_string());
                slowly(&file, child.stdin.take().unwrap(), Duration::from_millis(8));
                let done = child.wait_with_output().unwrap();
                assert!(done.status.success(), "{}", text(&done.stderr));
            }
            // Not by a panic: the readers go on until they are told.
            let (least, until) = (9, Instant::now() + Duration::from_secs(20));
            while looks.load(Ordering::Relaxed) < least && Instant::now() < until {
                thread::sleep(Duration::from_millis(20));
            }
            stop.store(true, Ordering::Relaxed);
            readers.into_iter().map(|reader| reader.join().unwrap()).collect()
        });
        let log = fs::read_to_string(target.dir.join("log")).unwrap();
        assert_eq!(log.matches("a stream is received").count(), ROUNDS, "{log}");
        let from = KernelMount::new(&source.path, "ro").unwrap();
        for round in 0..ROUNDS {
            let name = format!("s{round}");
            let what = format!("{transport}, seed {seed}, round {round}");
            assert_same(&from.join(&name), &mount.join(&name), &what);
        }
        let compared = assert_open_files(&readers);
        println!("{transport}: {} looks, {compared} open files", looks.load(Ordering::Relaxed));
        assert!(compared > 50 && looks.load(Ordering::Relaxed) > 8);
        drop(readers);
        mount.umount();
        from.unmount().unwrap();
        assert_clean(&target.path);
    }
}

const ORIGIN: Origin = Origin { uuid: [7; 16], ctransid: 9 };

fn stream() -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), Protocol::V1).unwrap();
    encoder.put(&Sent::Subvol { path: b"snap", origin: ORIGIN }).unwrap();
    for number in 0..2000 {
        let path = format!("f{number}").into_bytes();
        encoder.put(&Sent::MkFile { path: &path, ino: 257 + number }).unwrap();
        encoder.put(&Sent::Write { path: &path, offset: 0, data: &[9; 5000] }).unwrap();
    }
    encoder.put(&Sent::End).unwrap();
    encoder.into_inner()
}

fn wait_for(what: &str, is: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn who_goes_leaves_something_unfinished() {
    if lacks_fuse("classic") {
        return;
    }
    let image = Image::new("served-killed");
    let mount = Mount::new(&image, "");
    let (bytes, snap) = (stream(), mount.join("snap"));
    let log = || fs::read_to_string(image.dir.join("log")).unwrap();
    for signal in ["KILL", "INT"] {
        let (mut child, _input) = half_sent(&mount, &bytes);
        let ended = log().matches("the stream ended").count();
        common::mount::signal(child.id(), signal);
        child.wait().unwrap();
        wait_for("the server hears of it", || log().matches("the stream ended").count() > ended);
        let told = fine(&["subvolume", "show", &snap.display().to_string()]);
        assert!(!told.contains("07070707") && !told.contains("readonly"), "{told}");
        fs::write(snap.join("written"), "it stays writable").unwrap();
        fine(&["subvolume", "delete", &snap.display().to_string()]);
        assert!(!snap.exists());
    }
    // What is sent then finds nothing of it.
    let file = image.dir.join("stream");
    fs::write(&file, &bytes).unwrap();
    fine(&["receive", "-q", "-f", &file.display().to_string(), &mount.word()]);
    assert_eq!(fs::read_dir(&snap).unwrap().count(), 2000);
    let told = fine(&["subvolume", "show", &snap.display().to_string()]);
    assert!(told.contains("07070707-0707") && told.contains("readonly"), "{told}");
    mount.umount();
}

/// The server gets a stream by a word that it gave to an administrator, and by no other.
#[test]
fn strangers_send_the_server_nothing() {
    if lacks_fuse("classic") {
        return;
    }
    if !sh("setpriv --help").status.success() {
        testkit::skip!("no setpriv here");
    }
    let image = Image::new("served-strangers");
    let mount = Mount::new(&image, "");
    let device = fs::metadata(&mount.point).unwrap().dev();
    let name = format!("spinney/mount/{}:{}", libc::major(device), libc::minor(device));
    let address = SocketAddr::from_abstract_name(name).unwrap();
    for line in ["receive 00112233445566778899aabbccddeeff 0 1 0", "receive  0 1 0", "receive x"] {
        let mut to = UnixStream::connect_addr(&address).unwrap();
        to.write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        to.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("ask the dir") || answer.starts_with("it cannot"), "{answer}");
    }
    // He has a directory of his own, and receives there by what he may himself.
    let (theirs, file) = (mount.join("theirs"), image.dir.join("stream"));
    fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(65534), Some(65534)).unwrap();
    fs::write(&file, stream()).unwrap();
    let program = image.dir.join("spinney");
    fs::copy(PROGRAM, &program).unwrap();
    let done = sh(&format!(
        "chmod 755 {dir} && chmod 644 {file} && exec setpriv --reuid 65534 --regid 65534 \
         --clear-groups {program} receive -q -f {file} {theirs}",
        dir = image.dir.path().display(),
        file = file.display(),
        program = program.display(),
        theirs = theirs.display(),
    ));
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(fs::read_dir(theirs.join("snap")).unwrap().count(), 2000);
    let log = fs::read_to_string(image.dir.join("log")).unwrap();
    assert!(!log.contains("a stream is received"), "{log}");
    mount.umount();
}

/// The kernel takes a directory of the same time for the same: with the times that a stream sets it
/// cannot tell.
#[test]
fn a_listing_of_before_is_not_kept() {
    if lacks_fuse("classic") {
        return;
    }
    let image = Image::new("served-listing");
    let mount = Mount::new(&image, "");
    let times = (1_000_000, 0);
    let set = Sent::Utimes { path: b"d", atime: times, mtime: times, ctime: times, otime: None };
    let before = [
        Sent::Subvol { path: b"snap", origin: ORIGIN },
        Sent::MkDir { path: b"d", ino: 257 },
        Sent::MkFile { path: b"d/old", ino: 258 },
        Sent::MkFile { path: b"d/gone", ino: 259 },
        Sent::MkFile { path: b"d/was", ino: 260 },
        set,
    ];
    let mut child = receiver(&mount.word());
    let mut input = child.stdin.take().unwrap();
    input.write_all(&sent(&before, false)).unwrap();
    let dir = mount.join("snap/d");
    let names = || {
        let mut all: Vec<_> = fs::read_dir(&dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        all.sort();
        all
    };
    let is_set = || fs::metadata(&dir).is_ok_and(|meta| meta.modified().unwrap() < ago());
    wait_for("times are set", is_set);
    for _ in 0..5 {
        assert_eq!(names(), ["gone", "old", "was"]);
    }
    let behind = [
        Sent::MkFile { path: b"d/new", ino: 261 },
        Sent::Unlink { path: b"d/gone" },
        Sent::Rename { path: b"d/was", to: b"d/is" },
        set,
        Sent::End,
    ];
    input.write_all(&sent(&behind, true)).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success());
    assert_eq!(names(), ["is", "new", "old"]);
    mount.umount();
}

/// As a stream, or as what comes behind the one before.
fn sent(commands: &[Sent<'_>], behind: bool) -> Vec<u8> {
    const HEAD: usize = 17;
    let mut encoder = Encoder::new(Vec::new(), Protocol::V1).unwrap();
    commands.iter().for_each(|command| encoder.put(command).unwrap());
    encoder.into_inner().split_off(if behind { HEAD } else { 0 })
}

/// A clone that cannot share copies, and breaks where its source ends: what it has copied by then
/// must not lie under pages of before. Times are set back, so that the kernel cannot tell.
#[test]
fn what_a_failed_command_changed_is_not_kept() {
    if lacks_fuse("classic") {
        return;
    }
    const OLD: usize = 300_000;
    const NEW: usize = 200_000;
    let image = Image::new("served-failed");
    let mount = Mount::new(&image, "");
    let times = (1_000_000, 0);
    let set = |path| Sent::Utimes { path, atime: times, mtime: times, ctime: times, otime: None };
    let mut command = Command::new(PROGRAM);
    command.args(["receive", "-E", "0", &mount.word()]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let (new, old) = (vec![7; NEW], vec![8; OLD]);
    let mut before = vec![
        Sent::Subvol { path: b"snap", origin: ORIGIN },
        Sent::MkFile { path: b"from", ino: 257 },
        Sent::MkFile { path: b"to", ino: 258 },
    ];
    for (path, content) in [(&b"from"[..], &new), (b"to", &old)] {
        let pieces = (0..).step_by(40_000).zip(content.chunks(40_000));
        before.extend(pieces.map(|(offset, data)| Sent::Write { path, offset, data }));
    }
    before.push(set(b"to"));
    input.write_all(&sent(&before, false)).unwrap();
    let to = mount.join("snap/to");
    wait_for("times are set", || {
        fs::metadata(&to).is_ok_and(|meta| meta.modified().unwrap() < ago())
    });
    let kept = File::open(&to).unwrap();
    let read = |file: &File| {
        let mut all = vec![0; OLD];
        file.read_exact_at(&mut all, 0).unwrap();
        all
    };
    assert!(read(&kept) == old);
    let clone = Sent::Clone {
        path: b"to",
        offset: 3,
        len: NEW as u64 + 50_000,
        from: ORIGIN,
        from_path: b"from",
        from_offset: 1,
    };
    input.write_all(&sent(&[clone, set(b"to"), Sent::End], true)).unwrap();
    drop(input);
    let done = child.wait_with_output().unwrap();
    let told = text(&done.stderr);
    assert!(!done.status.success() && told.contains("cloning to to: invalid"), "{told}");
    let expected = [&old[..3], &new[1..], &old[NEW + 2..]].concat();
    assert!(read(&kept) == expected, "by who had it open");
    assert!(fs::read(&to).unwrap() == expected);
    drop(kept);
    mount.umount();
    assert_clean(&image.path);
}

fn ago() -> std::time::SystemTime {
    std::time::UNIX_EPOCH + Duration::from_secs(2_000_000)
}

/// As where system calls receive.
#[test]
fn a_mount_that_receives_is_busy() {
    if lacks_fuse("classic") {
        return;
    }
    let image = Image::new("served-busy");
    let mount = Mount::new(&image, "");
    let bytes = stream();
    let (child, mut input) = half_sent(&mount, &bytes);
    let done = sh(&format!("umount {}", mount.word()));
    assert!(!done.status.success() && text(&done.stderr).contains("busy"), "{done:?}");
    input.write_all(&bytes[bytes.len() / 2..]).unwrap();
    drop(input);
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    mount.umount();
}

/// The server ends with a stream that does not.
#[test]
fn a_server_does_not_wait_for_the_rest_of_a_stream() {
    if lacks_fuse("classic") {
        return;
    }
    let image = Image::new("served-ends");
    let mount = Mount::new(&image, "");
    let (child, input) = half_sent(&mount, &stream());
    let server = common::mount::server(&image.path).unwrap();
    common::mount::signal(server, "TERM");
    // What comes within a second of it belongs to it.
    thread::sleep(Duration::from_millis(1500));
    // Twice: the directory is open. By now it may have ended.
    let _ = Command::new("kill").args(["-TERM", &server.to_string()]).output();
    wait_for("the server ends", || common::mount::server(&image.path).is_none());
    drop(input);
    let done = child.wait_with_output().unwrap();
    assert!(!done.status.success());
    let said = text(&done.stderr);
    assert!(
        said.contains("the server of this mount has ended") || said.contains("at byte"),
        "{said}"
    );
    drop(mount);
    assert!(fine(&["subvolume", "list", &image.at("/")]).contains("snap"));
    fine(&["check", &image.word()]);
}
