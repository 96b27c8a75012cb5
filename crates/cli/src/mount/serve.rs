//! The server: opens the volume, mounts it, waits for the end, closes.
//!
//! Order at the start: the monitor is forked, while there is one thread; every thread that is made
//! then lets its rights go (`sandbox.rs`), and this one, which opens and mounts, when nothing is
//! left that can fail.
//!
//! Order at the end: the file system is closed (committed), then the image is unlocked,
//! then whoever waits is told. So what `spinney umount` returns from is free to be used.

use super::again;
use super::background::Reporter;
use super::begin;
use super::clock::KernelClock;
use super::control::{Answers, Asker, Control, Hearing};
use super::fault;
use super::log::{self, LogPlace, Sink};
use super::machine;
use super::memory;
use super::monitor::Monitor;
use super::receive::Receivers;
use super::remount::Follower;
use super::request::Request;
use super::sandbox;
use super::signals::{self, Served};
use crate::error::{Error, Exit, Result, io_text};
use crate::image::{self, Access, Medium};
use crate::mounts;
use crate::sys;
use btrfs_fs::{BtrfsFs, Options};
use fuse::{Config, Controls, Map, Session, Source, Transport};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use vfs::{FileSystem, FsError};

/// Serves until the volume is unmounted. Errors before `reporter` heard that the mount is
/// ready are the start's.
pub fn serve(request: &Request, reporter: &mut Reporter) -> Result<Exit> {
    // While there is one thread, and nothing open.
    let monitor = Monitor::start(&request.fixed(), &request.point);
    let monitor = Arc::new(monitor.map_err(|e| starting("the process beside the server", &e))?);
    let place = start_log(request)?;
    let served = step("log").and_then(|()| serve_logged(request, reporter, &place, &monitor));
    if let (LogPlace::File(path), false) = (&place, reporter.was_ready()) {
        // What it says the terminal was told. It is locked, so it is no other server's.
        let _ = std::fs::remove_file(path);
    }
    served
}

fn serve_logged(
    request: &Request,
    reporter: &mut Reporter,
    place: &LogPlace,
    monitor: &Arc<Monitor>,
) -> Result<Exit> {
    if let Some(warning) = request.options.warning() {
        tracing::warn!("{warning}");
    }
    // Threads inherit the mask: only the one that waits for signals gets them.
    sys::block_signals();
    // Whoever looks at the mount, and sync(2) of all, would wait for a stopped server.
    sys::ignore_stops();
    sys::allow_descriptors();
    if !request.options.no_sandbox {
        sandbox::prepare();
    }
    let tender = memory::tend(request.options.fs.memory_bytes);
    let tender = tender.map_err(|e| starting("a thread", &e))?;
    let signals = signals::wait(monitor.clone()).map_err(|e| starting("a thread", &e))?;
    let (fs, medium, mut session) = begin(request, reporter, monitor)?;
    let medium = Arc::new(medium);
    let image = request.image.display();
    let point = session.unmounter().mountpoint().to_owned();
    request.options.limits.set(&point);
    let number = device_on(&point);
    monitor.begun(number.as_deref().unwrap_or_default());
    let follower = number.as_deref().and_then(|number| follow(request, &fs, monitor, number));
    let receivers = receivers(request, &fs);
    let hearing = Hearing {
        answers: answers(request, follower),
        receivers: receivers.clone(),
        fs: Arc::downgrade(&fs),
    };
    let mut control = listen(&point, hearing);
    step("listening")?;
    let (serving, over) = channel();
    let _ = signals.send(Served::new(&fs, &medium, session.unmounter(), over));
    let _ = tender.send(Arc::downgrade(&fs));
    step("ready")?;
    let text = ready_text(request, &fs, &session, place);
    tracing::info!("{text}");
    sandbox::close();
    reporter.ready(&text);
    session.wait();
    drop(serving);
    if let Some(control) = &mut control {
        control.close();
    }
    if let Some(receivers) = receivers {
        receivers.end();
    }
    let mut result = session.run().map_err(|e| e.to_string());
    if let Some(why) = medium.failure() {
        result = result.and(Err(format!("the device failed: {why}")));
    }
    drop((fs, medium));
    match &result {
        Ok(()) => tracing::info!("{image} is closed"),
        Err(why) => tracing::error!("closing {image}: {why}"),
    }
    if let Some(control) = control {
        control.finish(&result);
    }
    result.map(|()| Exit::Done).map_err(|why| Error::about(image, why))
}

/// Where tests make it fail.
fn step(name: &'static str) -> Result<()> {
    fault::at(name).map_err(|e| Error::new(io_text(&e)))
}

fn start_log(request: &Request) -> Result<LogPlace> {
    let (sink, place) = match &request.options.log {
        Some(path) => (Sink::file(path).map_err(|e| Error::io(path, &e))?, LogPlace::Chosen),
        None if request.foreground => (Sink::Stderr, LogPlace::Chosen),
        None => Sink::for_background(&request.point),
    };
    log::start(sink);
    Ok(place)
}

/// Opens and mounts: from its top on, or where that cannot be, as far as it is asked for.
fn begin(
    request: &Request,
    reporter: &mut Reporter,
    monitor: &Arc<Monitor>,
) -> Result<(Arc<BtrfsFs>, Medium, Session)> {
    let (image, point) = (request.image.display(), request.point.display());
    let mut from_top = begin::from_top(&request.options.fs, &request.point);
    loop {
        let (fs, medium) = open(request, from_top)?;
        step("opened")?;
        reporter.mounting();
        let session = mount(request, &fs, monitor).inspect_err(|_| {
            // Nothing was changed through it, but its recovery may have to be written.
            fs.destroy().unwrap_or_else(|e| tracing::error!("closing {image}: {e}"));
        })?;
        let Err(failed) = begin::at(&request.point, fs.begin().1) else {
            return Ok((fs, medium, session));
        };
        let why = io_text(&failed.error);
        tracing::warn!("{point}: no other subvolume can be mounted beside this one: {why}");
        begin::end(session, &failed).map_err(|e| Error::about(&point, e))?;
        from_top = false;
    }
}

fn open(request: &Request, from_top: bool) -> Result<(Arc<BtrfsFs>, Medium)> {
    let mut options = Options { from_top, ..request.options.fs.clone() };
    if request.options.config.writeback {
        options.clock = Arc::new(KernelClock);
    }
    // Where no mount of ours will hold a block device, we do.
    let held = matches!(source(request), Source::BlockDevice(_));
    let access = match options.read_only {
        true => Access::Read,
        false if held => Access::Mount,
        false => Access::Write,
    };
    let medium = image::open(&request.image, access)?;
    let fs = open_volume(&medium, options)?.map_err(|e| {
        let options = &request.options.fs;
        image::opening_volume(&request.image, &options.subvol, !options.read_only, &e)
    })?;
    Ok((Arc::new(fs), medium))
}

/// On a thread that has let go what it can, for those that the engine makes.
fn open_volume(medium: &Medium, options: Options) -> Result<vfs::Result<BtrfsFs>> {
    // As much as the main thread has.
    const STACK: usize = 8 << 20;
    let device = medium.device();
    let body = move || {
        sandbox::enter();
        BtrfsFs::open_device(device, options)
    };
    let opening = thread::Builder::new().name("open".into()).stack_size(STACK).spawn(body);
    let opening = opening.map_err(|e| starting("a thread", &e))?;
    Ok(opening.join().unwrap_or_else(|panic| resume_unwind(panic)))
}

fn mount(request: &Request, fs: &Arc<BtrfsFs>, monitor: &Arc<Monitor>) -> Result<Session> {
    let mut config = request.options.config.clone();
    if let Some(why) = fs.read_only_reason() {
        if !config.read_only {
            tracing::warn!("mounting {} read-only: {why}", request.image.display());
        }
        config.read_only = true;
    }
    if config.fsname == Config::default().fsname {
        config.fsname = request.image.display().to_string();
    }
    let top = fs.getattr(fs.begin().0).map_err(|e| Error::about(request.image.display(), e))?;
    config.owners = request.options.owners(&top);
    config.source = source(request);
    config.callers = monitor.clone();
    config.control = Some(Controls(fs.clone()));
    config.on_thread = Some(sandbox::enter);
    config.tidying = memory::TIDYING;
    fault::in_mounting(&mut config);
    if config.transport == Transport::Uring && sys::is_root() {
        machine::enable_uring();
    }
    let session = Session::mount(fault::in_serving(fs.clone()), &request.point, &config);
    session.map_err(|e| mounting(request, &e))
}

/// Over a block device the kernel passes syncfs on, and umount(2) waits for the commit.
fn source(request: &Request) -> Source {
    if !sys::is_root() || request.options.plain {
        return Source::Nothing;
    }
    if image::is_block(&request.image) {
        return Source::BlockDevice(request.image.clone());
    }
    match request.part {
        Some(part) => Source::Part(request.file.clone(), part.start..part.end()),
        None => Source::Image(request.file.clone()),
    }
}

fn mounting(request: &Request, error: &FsError) -> Error {
    let told = Error::about(request.point.display(), error);
    if let (FsError::Unsupported(_), Transport::Uring) = (error, request.options.config.transport) {
        return match sys::is_root() {
            true => told.remedy("it needs Linux 6.14 or newer"),
            false => told.remedy(machine::FOR_URING),
        };
    }
    if !Path::new("/dev/fuse").exists() {
        return told.remedy("there is no /dev/fuse; load the kernel's module: modprobe fuse");
    }
    let FsError::Io { source, .. } = error else { return told };
    match source.kind() {
        std::io::ErrorKind::NotFound if !sys::is_root() => {
            told.remedy("mounting as an ordinary user needs the package fuse3 (fusermount3)")
        }
        std::io::ErrorKind::PermissionDenied if !sys::is_root() => {
            told.remedy("you must own the mount point, and be allowed to open /dev/fuse")
        }
        _ => told,
    }
}

/// What others may ask this server.
fn answers(request: &Request, follower: Option<Arc<Follower>>) -> Answers {
    let read_only = request.options.fs.read_only;
    let is_still =
        |follower: &Option<Arc<Follower>>| follower.as_ref().is_some_and(|f| f.is_still());
    Arc::new(move |question, asker| match (question, &follower) {
        ("status", _) => again::status(read_only || is_still(&follower)),
        _ if asker == Asker::Stranger => "only root and the user who mounted it may ask".into(),
        (question, Some(follower)) => done(follower.asked(question)),
        _ => "it cannot do that".into(),
    })
}

fn done(result: std::result::Result<(), String>) -> String {
    result.map_or_else(|why| why, |()| "done".into())
}

/// Remounts of the mount `number` are noticed from here on.
fn follow(
    request: &Request,
    fs: &Arc<BtrfsFs>,
    monitor: &Arc<Monitor>,
    number: &str,
) -> Option<Arc<Follower>> {
    let unnoticed = |why: String| tracing::warn!("remounts are not noticed: {why}");
    let (fs, options) = (Arc::downgrade(fs), request.options.clone());
    let follower = Follower::new(fs, monitor.clone(), number.to_owned(), options);
    let follower = Arc::new(follower.inspect_err(|e| unnoticed(e.to_string())).ok()?);
    let watching = follower.clone();
    let started = start_thread("remounts", move || watching.watch());
    started.inspect_err(|e| unnoticed(e.text())).ok()?;
    Some(follower)
}

/// None where the kernel decides on sizes and times by itself: it would not hear of those of a stream.
fn receivers(request: &Request, fs: &Arc<BtrfsFs>) -> Option<Arc<Receivers>> {
    (!request.options.config.writeback).then(|| Arc::new(Receivers::new(fs)))
}

fn listen(point: &Path, hearing: Hearing) -> Option<Control> {
    let listening = mounts::on(point)
        .and_then(|entry| entry.ok_or_else(|| std::io::Error::other("not in the mount table")))
        .and_then(|entry| Control::listen(&entry.device, hearing));
    match listening {
        Ok(control) => Some(control),
        Err(error) => {
            tracing::warn!("`spinney umount` will not be able to wait: {error}");
            None
        }
    }
}

/// Whether anything can be written, and which commit is shown where it is not the last.
fn access(request: &Request, fs: &BtrfsFs) -> String {
    match fs.read_only_reason() {
        None => "read-write".into(),
        Some(why) if request.options.fs.read_only => {
            why.strip_prefix("mounted ").unwrap_or("read-only").to_owned()
        }
        Some(why) => format!("read-only: {why}"),
    }
}

fn ready_text(request: &Request, fs: &BtrfsFs, session: &Session, log: &LogPlace) -> String {
    let (image, point) = (request.image.display(), request.point.display());
    let access = access(request, fs);
    let log = match log {
        LogPlace::Chosen => String::new(),
        LogPlace::File(path) => format!(", log: {}", path.display()),
        LogPlace::Nowhere => ", no log: there is no place for one, give --log FILE".into(),
    };
    // Measured: `mount -o loop` is refused where our own loop device is, a further one is not.
    let open_to_all = !request.options.fs.read_only && !image::is_block(&request.image);
    let warning = match open_to_all {
        true => {
            "\n  nobody keeps the kernel from mounting the image too; Spinney gives up where it does"
        }
        false => "",
    };
    let alone = match source(request) != Source::Nothing && session.block_device().is_none() {
        true => {
            "\n  there is no loop device for it here: `sync` does not reach it, `fsync` does, and \
             `spinney umount` waits for the last commit"
        }
        false => "",
    };
    let converted = match fs.made_free_space_tree() {
        true => format!("\n  {}", image::CONVERTED),
        false => String::new(),
    };
    let warning = format!("{warning}{alone}{converted}{}", not_yours(request, fs));
    let transport = session.transport();
    let faster = machine::faster(request.options.config.transport, transport);
    let warning =
        format!("{warning}{}", faster.map(|how| format!("\n  {how}")).unwrap_or_default());
    format!("{image} is mounted on {point} ({transport}, {access}{log}){warning}")
}

/// A line for who will get "Permission denied" from the first thing that he does.
fn not_yours(request: &Request, fs: &BtrfsFs) -> String {
    let others_write = 0o002;
    let (user, _) = sys::user_and_group();
    let Ok(top) = fs.getattr(fs.begin().0) else { return String::new() };
    let options = &request.options;
    // Nor may the root of a user namespace, to whom that user is nobody.
    let writable = user == 0 && sys::has_user(top.uid)
        || user == top.uid
        || top.perm & others_write != 0
        || options.map_owner
        || options.config.owners.users != Map::AsStored
        || fs.read_only_reason().is_some();
    match writable {
        true => String::new(),
        false => format!(
            "\n  its top directory is that of user {}, so you may not make files there; -o \
             map-owner lets you",
            top.uid
        ),
    }
}

/// A thread that ends with the process.
fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    sandbox::spawn(name, body).map_err(|e| starting("a thread", &e))
}

fn starting(what: &str, error: &std::io::Error) -> Error {
    Error::new(format!("starting {what}: {}", io_text(error)))
}

/// The topmost mount's `major:minor`.
fn device_on(point: &Path) -> Option<String> {
    mounts::on(point).ok().flatten().map(|entry| entry.device)
}
