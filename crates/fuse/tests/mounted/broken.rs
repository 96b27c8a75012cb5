//! Server threads that panic outside of what a handler does: the connection ends, whichever thread it
//! was, so that nobody waits for an answer that nobody would give. A handler's own panic costs its
//! caller alone (`protocol`).

use crate::fixture::{Mount, able, with_transport};
use crate::spy::{SLOW, Spy};
use crate::starts::abort;
use crate::sys::sh;
use fuse::{Config, Notifier, Transport};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use vfs::{Context, FileKind, FileSystem, Ino, WriteFlags};

const LONG: Duration = Duration::from_secs(15);

/// What a thread's name begins with that panics over the next request.
static PANICS: Mutex<Option<&'static str>> = Mutex::new(None);

fn on_request(_: u32) {
    let mut panics = PANICS.lock().unwrap();
    let name = thread::current().name().unwrap_or_default().to_owned();
    if panics.take_if(|prefix| name.starts_with(*prefix)).is_some() {
        drop(panics);
        panic!("asked to");
    }
}

/// Runs `work` beside; if it takes too long, ends the connection and fails.
fn in_time<T: Send + 'static>(
    what: &str,
    device: u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (tell, told) = channel();
    thread::spawn(move || tell.send(work()));
    match told.recv_timeout(LONG) {
        Ok(done) => done,
        Err(RecvTimeoutError::Disconnected) => panic!("{what}: it panicked"),
        Err(RecvTimeoutError::Timeout) => {
            abort(&format!("{}:{}", libc::major(device), libc::minor(device)));
            panic!("{what}: somebody waits for ever");
        }
    }
}

/// Makes requests of every kind that such a thread serves, until the connection ends.
fn ask(point: &Path, notifier: &Notifier, large: Ino) {
    for n in 0..200 {
        let _ = fs::metadata(point.join(format!("nothing-{n}")));
        let _ = fs::remove_file(point.join(format!("file-{n}")));
        let _ = fs::read(point.join("large"));
        // It is read again.
        notifier.data_changed(large, 0, 0);
        thread::sleep(Duration::from_millis(5));
        if fs::metadata(point.join(format!("end-{n}"))).is_err_and(|error| is_end(&error)) {
            return;
        }
    }
    panic!("the connection did not end");
}

fn is_end(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

/// A file system with a large file.
fn spy() -> (Spy, Ino) {
    let (spy, cx) = (Spy::new(), Context::default());
    let root = spy.model.root();
    let ino = spy.model.mknod(&cx, root, b"large", FileKind::File, 0o644, 0).unwrap().attr.ino;
    spy.model.write(&cx, ino, 0, &vec![1; 8 << 20], WriteFlags::default()).unwrap();
    spy.model.forget(ino, 1);
    (spy, ino)
}

fn panics(transport: Transport, prefix: &'static str) {
    let what = format!("{transport:?} {prefix}");
    let config = Config { on_request: Some(on_request), ..with_transport(transport) };
    let (spy, large) = spy();
    let mut mount = match Mount::of(spy, &config) {
        Ok(mount) => mount,
        Err(vfs::FsError::Unsupported(what)) => return println!("SKIPPED: {what}"),
        Err(error) => panic!("mounting: {error}"),
    };
    let (point, spy, notifier) = (mount.path(""), mount.spy.clone(), mount.notifier.clone());
    let device = fs::metadata(&point).unwrap().dev();
    (0..200).for_each(|n| fs::write(mount.path(&format!("file-{n}")), "x").unwrap());
    let slow = mount.path(std::str::from_utf8(SLOW).unwrap());
    let waiting = thread::spawn(move || fs::metadata(slow).map(drop));
    let (holds, begun) = (spy.clone(), Instant::now());
    // Only for a while: the kernel keeps others out of the directory meanwhile.
    thread::spawn(move || {
        while holds.slow.held() == 0 && begun.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(300));
        holds.slow.release();
    });
    *PANICS.lock().unwrap() = Some(prefix);
    let asked = point.clone();
    in_time(&what, device, move || ask(&asked, &notifier, large));
    assert_eq!(*PANICS.lock().unwrap(), None, "{what}: it had nothing to serve");
    // Whoever was being served hears something, and the session ends as with the mount.
    in_time(&what, device, move || waiting.join().unwrap().unwrap_err());
    let mount = in_time(&what, device, move || {
        mount.join().unwrap();
        mount
    });
    assert_eq!(spy.calls("destroy"), 1, "{what}");
    sh(&format!("umount -l {}", point.display()));
    drop(mount);
}

#[test]
fn the_connection_ends_with_a_thread_that_panics() {
    if !able() {
        return;
    }
    panics(Transport::Classic, "fuse-");
    panics(Transport::Uring, "fuse-ring-");
    // Beside the rings.
    panics(Transport::Uring, "fuse-0");
    if thread::available_parallelism().is_ok_and(|count| count.get() > 1) {
        panics(Transport::Uring, "fuse-read");
    }
}
