//! Starts that fail, and servers that die: nothing hangs, and nothing is left mounted.
//!
//! What hangs here hangs sync(2) of the whole machine, so each test ends the connection by
//! the kernel's control files when its time is over, and then fails.

use crate::fixture::{Scratch, able, with_transport};
use crate::spy::Spy;
use crate::sys::sh;
use fuse::{Config, Session, Source, Transport};
use std::cell::Cell;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug)]
enum Fault {
    Error,
    Panic,
}

thread_local! {
    static FAULT: Cell<Option<(&'static str, Fault)>> = const { Cell::new(None) };
}

fn on_step(step: &'static str) -> std::io::Result<()> {
    match FAULT.get() {
        Some((at, Fault::Error)) if at == step => Err(std::io::Error::other("asked to fail")),
        Some((at, Fault::Panic)) if at == step => panic!("asked to panic"),
        _ => Ok(()),
    }
}

/// What is mounted on `point`, by `major:minor`; asks no server.
pub fn number_on(point: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = point.display().to_string();
    let lines = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    lines.filter(|fields| fields[4] == point).map(|fields| fields[2].to_string()).next_back()
}

/// Ends the connection of the mount with this number.
pub fn abort(number: &str) {
    let (major, minor) = number.split_once(':').unwrap();
    let name = major.parse::<u64>().unwrap() << 20 | minor.parse::<u64>().unwrap();
    let control = Scratch::new();
    sh(&format!("mount -t fusectl none {}", control.0.display()));
    let _ = fs::write(control.0.join(format!("{name}/abort")), "1");
    sh(&format!("umount {}", control.0.display()));
}

/// Loop devices over `image`, by `major:minor`.
pub fn loops_over(image: &Path) -> Vec<String> {
    let list = sh("losetup -ln -O MAJ:MIN,BACK-FILE");
    let image = image.display().to_string();
    let lines = list.lines().filter_map(|line| line.trim().split_once(' '));
    lines.filter(|(_, file)| file.trim() == image).map(|(n, _)| n.to_string()).collect()
}

/// Waits until `done`; if that takes too long, ends what may hang and fails.
fn in_time(what: &str, numbers: impl Fn() -> Vec<String>, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done() {
        if Instant::now() > deadline {
            numbers().iter().for_each(|number| abort(number));
            panic!("not in time: {what}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn place(source: &str) -> (Scratch, PathBuf, Source) {
    let scratch = Scratch::new();
    let point = scratch.0.join("mnt");
    fs::create_dir(&point).unwrap();
    let image = scratch.0.join("image");
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let source = if source == "image" { Source::Image(image) } else { Source::Nothing };
    (scratch, point, source)
}

fn fails_at(step: &'static str, fault: Fault, transport: Transport, source: &'static str) {
    let what = format!("{step} {fault:?} {transport:?} {source}");
    let (scratch, point, source) = place(source);
    let image = scratch.0.join("image");
    let config = Config { source, on_step: Some(on_step), ..with_transport(transport) };
    let spy = Arc::new(Spy::new());
    let (tell, told) = channel();
    let (fs, at) = (spy.clone(), point.clone());
    std::thread::spawn(move || {
        FAULT.set(Some((step, fault)));
        let mount = || Session::mount(fs, at, &config).map(drop);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(mount));
        let _ = tell.send(outcome);
    });
    let numbers = || number_on(&point).into_iter().chain(loops_over(&image)).collect();
    let mut outcome = None;
    in_time(&what, numbers, || {
        outcome = told.try_recv().ok();
        outcome.is_some()
    });
    match (fault, outcome.unwrap()) {
        (Fault::Error, Ok(Err(error))) => {
            let text = error.to_string();
            assert!(text.contains(step) || step == "rings", "{what}: {text}");
        }
        (Fault::Panic, Err(_)) => {}
        (_, other) => panic!("{what}: {other:?}"),
    }
    assert_eq!(number_on(&point), None, "{what}: still mounted");
    // The kernel's file system is gone, and with it the connection.
    in_time(&what, numbers, || loops_over(&image).is_empty());
    // So are the threads.
    in_time(&what, numbers, || Arc::strong_count(&spy) == 1);
    assert_eq!(spy.calls("destroy"), 0, "{what}: the caller closes");
}

fn fail_everywhere(transport: Transport) {
    if !able() {
        return;
    }
    if let Err(vfs::FsError::Unsupported(what)) =
        crate::fixture::Mount::new(&with_transport(transport))
    {
        return println!("SKIPPED: {what}");
    }
    for step in Config::STEPS.iter().copied() {
        if step == "rings" && transport == Transport::Classic {
            continue;
        }
        for source in ["image", "nothing"] {
            let attaches = source == "image" || step != "attach";
            for fault in [Fault::Error, Fault::Panic].into_iter().filter(|_| attaches) {
                fails_at(step, fault, transport, source);
            }
        }
    }
}

#[test]
fn a_start_that_fails_at_any_step_leaves_nothing_classic() {
    fail_everywhere(Transport::Classic);
}

#[test]
fn a_start_that_fails_at_any_step_leaves_nothing_uring() {
    fail_everywhere(Transport::Uring);
}

/// This program again, for the ignored test `dying_server`. It unmounts when its input says so.
fn server(point: &Path, image: &Path, transport: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "starts::dying_server", "--nocapture"])
        .env("FUSE_TEST_POINT", point)
        .env("FUSE_TEST_IMAGE", image)
        .env("FUSE_TEST_TRANSPORT", transport)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "run by a_server_killed_while_it_unmounts_itself_ends, to be killed"]
fn dying_server() {
    let path = |name: &str| PathBuf::from(std::env::var(name).unwrap());
    let image = path("FUSE_TEST_IMAGE");
    let transport = match std::env::var("FUSE_TEST_TRANSPORT").unwrap().as_str() {
        "classic" => Transport::Classic,
        _ => Transport::Auto,
    };
    // Never closed: it is killed before.
    let spy = Spy { destroy_takes: Duration::from_secs(60), ..Spy::new() };
    let config = Config { source: Source::Image(image.clone()), ..with_transport(transport) };
    let session = Session::mount(Arc::new(spy), path("FUSE_TEST_POINT"), &config).unwrap();
    let unmounter = session.unmounter();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        unmounter.unmount(false)
    });
    session.run().unwrap();
}

/// umount(2) of a block mount waits for the server's answer, whatever happens. A server that
/// called it itself could not be killed any more.
#[test]
fn a_server_killed_while_it_unmounts_itself_ends() {
    if !able() {
        return;
    }
    for transport in ["classic", "auto"] {
        let (scratch, point, _) = place("image");
        let image = scratch.0.join("image");
        let mut child = server(&point, &image, transport);
        let numbers = || loops_over(&image);
        in_time("it is mounted", numbers, || number_on(&point).is_some());
        drop(child.stdin.take());
        // Gone from the table, and DESTROY under way.
        in_time("it unmounts", numbers, || number_on(&point).is_none());
        std::thread::sleep(Duration::from_millis(200));
        child.kill().unwrap();
        in_time("the server ends", numbers, || child.try_wait().unwrap().is_some());
        in_time("the mount ends", numbers, || loops_over(&image).is_empty());
    }
}

/// umount(2) waits for the answer to DESTROY, which a panic must not keep back.
#[test]
fn a_panic_while_it_closes_leaves_nothing_mounted() {
    if !able() {
        return;
    }
    for transport in [Transport::Classic, Transport::Auto] {
        for source in ["image", "nothing"] {
            let what = format!("{transport:?} {source}");
            let (scratch, point, source) = place(source);
            let image = scratch.0.join("image");
            let spy = Arc::new(Spy { destroy_panics: true, ..Spy::new() });
            let config = Config { source, ..with_transport(transport) };
            let session = Session::mount(spy.clone(), &point, &config).unwrap();
            let serving = std::thread::spawn(move || session.run());
            let mut umount = Command::new("umount").arg(&point).spawn().unwrap();
            let numbers = || number_on(&point).into_iter().chain(loops_over(&image)).collect();
            in_time(&what, numbers, || umount.try_wait().unwrap().is_some());
            assert!(umount.wait().unwrap().success(), "{what}");
            assert_eq!(number_on(&point), None, "{what}: still mounted");
            in_time(&what, numbers, || serving.is_finished());
            let error = serving.join().unwrap().expect_err(&what).to_string();
            assert!(error.contains("it panicked"), "{what}: {error}");
            assert_eq!(spy.calls("destroy"), 1, "{what}");
            in_time(&what, numbers, || loops_over(&image).is_empty());
        }
    }
}
