//! A mount in service: from the first exchange with the kernel to the last thread.
//!
//! `Session::mount` returns when the file system answers requests; `run` waits for the
//! end. The file system is closed exactly once: by the kernel's DESTROY (a `fuseblk`
//! mount: before umount(2) returns), else when the last loop has ended.
//!
//! Threads are made in `mount`, so a program that forks into the background does so
//! before. All of them are there before the kernel's first request is answered: from the
//! answer on it sends requests that everybody on the machine may come to wait for
//! (sync(2) does), and a start that fails then would leave nobody to answer.
//!
//! A start that fails ends the connection before it unmounts, and waits for no thread for
//! long: whatever happened, the process can end.

use crate::abi::record::{InHeader, OutHeader};
use crate::abi::{Opcode, Wire};
use crate::classic::{self, Servers};
use crate::config::{Config, Transport};
use crate::device::Device;
use crate::dispatch::{Agreement, Dispatcher, Request, Waits, negotiate};
use crate::gather::Gathered;
use crate::mount::{self, Breaker, failed};
use crate::mount_table;
use crate::notify::{Notifier, Subject};
use crate::polling::{Pollers, Polling};
use crate::sys;
use crate::uring::{End, Server};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use vfs::{Errno, FileSystem, FsError, Result};

/// Loops of the classic transport: at least two, and no more than helps.
const CLASSIC_THREADS: std::ops::RangeInclusive<usize> = 2..=64;
/// The largest first message is far smaller.
const FIRST_MESSAGE: usize = 1 << 16;

/// A file system that is mounted and served. Dropped, it unmounts.
pub struct Session {
    dispatcher: Arc<Dispatcher>,
    notifier: Notifier,
    unmounter: Unmounter,
    block_device: Option<PathBuf>,
    loops: Vec<JoinHandle<()>>,
    notifying: Vec<JoinHandle<()>>,
    pollers: Option<Pollers>,
    /// The mount's `major:minor`.
    number: Option<String>,
    breaker: Breaker,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Dropping it takes the mount away by force.
    Starting,
    /// The file system is the session's to close.
    Serving,
    Finished,
}

/// Ends a mount from another thread, a signal handler's for example.
#[derive(Clone, Debug)]
pub struct Unmounter {
    mountpoint: PathBuf,
    breaker: Breaker,
}

impl Unmounter {
    /// As umount(8). EBUSY if something is open there, unless `lazy`: then the tree is
    /// detached at once and the session ends when its last user is gone.
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        mount::unmount(&self.mountpoint, lazy)
    }

    /// Ends the connection, whatever is open: who waits for an answer, or asks from now on, hears an error. As the process's
    /// end does, unless the kernel keeps a thread of it for somebody. What is mounted stays so.
    pub fn disconnect(&self) {
        self.breaker.end();
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// For a bind mount of it.
    pub fn at(&self, mountpoint: &Path) -> Unmounter {
        Unmounter { mountpoint: mountpoint.to_path_buf(), breaker: self.breaker.clone() }
    }
}

impl Session {
    /// Mounts and serves. On an error nothing is mounted, and the file system is still
    /// the caller's to close.
    pub fn mount(
        fs: Arc<dyn FileSystem>,
        mountpoint: impl AsRef<Path>,
        config: &Config,
    ) -> Result<Session> {
        let mountpoint =
            std::path::absolute(mountpoint.as_ref())
                .and_then(std::fs::canonicalize)
                .map_err(|error| failed(mountpoint.as_ref().display().to_string(), error))?;
        let mounted = mount::mount(&mountpoint, config)?;
        let notifier = Notifier::new(mounted.device.clone(), fs.root());
        let (limit, processors) = config.polling();
        let polling =
            Arc::new(Polling::new(limit, processors.iter().max().map_or(0, |last| last + 1)));
        let number = mount_table::number_on(&mountpoint);
        let callers = number.as_deref().and_then(|number| config.callers.of_mount(number));
        let callers = callers.unwrap_or_else(|| config.callers.clone());
        let config = &Config { callers, ..config.clone() };
        let dispatcher = Arc::new(Dispatcher::new(fs, notifier.clone(), config, &polling));
        let breaker = Breaker::of(number.as_deref());
        let mut session = Session {
            dispatcher,
            notifier,
            breaker: breaker.clone(),
            number,
            unmounter: Unmounter { mountpoint, breaker },
            block_device: mounted.block_device,
            loops: Vec::new(),
            notifying: Vec::new(),
            pollers: None,
            state: State::Starting,
        };
        // From here on dropping the session takes the mount away.
        config.step("mounted")?;
        session.start(mounted.device, config, &polling, &processors)?;
        session.state = State::Serving;
        Ok(session)
    }

    fn start(
        &mut self,
        device: Device,
        config: &Config,
        polling: &Arc<Polling>,
        processors: &[usize],
    ) -> Result<()> {
        config.step("first-request")?;
        let (unique, mut agreement) = first_exchange(&device, config)?;
        if self.dispatcher.keeps_atime() {
            // Following one is a read.
            agreement.flags &= !crate::abi::init::CACHE_SYMLINKS;
        }
        let spawner = Spawner::new(config);
        let rings = match config.transport {
            Transport::Classic => None,
            Transport::Auto | Transport::Uring if !agreement.offers_uring() => {
                tracing::info!("the kernel does not offer FUSE over io_uring");
                None
            }
            Transport::Auto | Transport::Uring => {
                self.make_rings(&device, &agreement, config, &spawner)
            }
        };
        if rings.is_none() && config.transport == Transport::Uring {
            return Err(FsError::Unsupported("FUSE over io_uring is not available here".into()));
        }
        self.dispatcher.set_transport(if rings.is_some() { "io_uring" } else { "classic" });
        config.step("loops")?;
        match &rings {
            Some(_) => {
                let cpus = sys::possible_cpus().len();
                self.dispatcher.served_by(0, config.threads_for(cpus));
                self.spawn_gathering(&device, &agreement, &spawner)?;
            }
            None => {
                let cpus = sys::possible_cpus().len();
                let count = config.threads_for(cpus) * cpus;
                let count = count.clamp(*CLASSIC_THREADS.start(), *CLASSIC_THREADS.end());
                self.dispatcher.served_by(count, 0);
                polling.servers_follow();
                self.spawn_classic(&device, &agreement, count, polling, &spawner)?;
            }
        }
        self.pollers =
            Pollers::start(polling, processors, |name, work| spawner.spawn(&name, work))?;
        config.step("notify")?;
        self.spawn_notifying(&spawner)?;
        // Before anybody can remember an attribute that nobody would tell the end of: the
        // mount is in the table already, and requests come from the answer on.
        self.dispatcher.tell_file_system_of(self.notifier());
        spawner.wait();
        config.step("answer")?;
        accept(&device, unique, &agreement, rings.is_some())
            .map_err(|error| failed("answering the kernel's first request", error))?;
        if let Some(rings) = rings {
            rings.begin();
        }
        config.step("answered")
    }

    fn spawn_notifying(&mut self, spawner: &Spawner) -> Result<()> {
        for subject in [Subject::Inodes, Subject::Names] {
            let (notifier, vital) = (self.notifier.clone(), Shared(Arc::new(self.vital())));
            let work = move || notifier.run(subject, vital);
            self.notifying.push(spawner.spawn(subject.thread(), work)?);
        }
        Ok(())
    }

    /// Starts all ring threads and waits until each has made its ring. `None` if one
    /// could not: then none of them serves.
    fn make_rings(
        &mut self,
        device: &Device,
        agreement: &Agreement,
        config: &Config,
        spawner: &Spawner,
    ) -> Option<Rings> {
        let mut rings = Rings { go: Vec::new() };
        let mut threads = Vec::new();
        match self.fill_rings(&mut rings, &mut threads, device, agreement, config, spawner) {
            Ok(()) => {
                self.loops.extend(threads);
                Some(rings)
            }
            Err(error) => {
                tracing::warn!("making rings: {error}; using /dev/fuse alone");
                drop(rings);
                // They hold memory and the connection.
                join(threads);
                None
            }
        }
    }

    fn fill_rings(
        &self,
        rings: &mut Rings,
        threads: &mut Vec<JoinHandle<()>>,
        device: &Device,
        agreement: &Agreement,
        config: &Config,
        spawner: &Spawner,
    ) -> Result<()> {
        config.step("rings")?;
        let (report, reports) = channel();
        let cpus = sys::possible_cpus();
        let threads_per_cpu = config.threads_for(cpus.len());
        for &cpu in cpus {
            for _ in 0..threads_per_cpu {
                let (go, wait) = channel();
                let work = RingThread {
                    cpu,
                    device: device.clone(),
                    dispatcher: self.dispatcher.clone(),
                    payload_len: agreement.payload_len(),
                    spread_large_reads: config.spread_large_reads,
                    breaker: self.breaker.clone(),
                    report: report.clone(),
                    wait,
                };
                threads.push(spawner.spawn(&format!("fuse-ring-{cpu}"), move || work.run())?);
                rings.go.push(go);
            }
        }
        drop(report);
        let made: io::Result<Vec<()>> = reports.iter().take(threads.len()).collect();
        match made.map_err(|error| failed("a thread's ring", error))?.len() == threads.len() {
            true => Ok(()),
            // It panicked, and would serve nobody.
            false => Err(failed("a thread's ring", io::Error::other("the thread ended"))),
        }
    }

    /// Starts the thread beside the rings.
    fn spawn_gathering(
        &mut self,
        device: &Device,
        agreement: &Agreement,
        spawner: &Spawner,
    ) -> Result<()> {
        let gathered = Gathered::new(device, agreement.payload_len())
            .map_err(|error| failed("cloning the connection", error))?;
        let gathered = Arc::new(gathered);
        self.dispatcher.fetch_by(gathered.clone());
        let (dispatcher, vital) = (self.dispatcher.clone(), self.vital());
        self.loops.push(spawner.spawn("fuse-0", move || {
            let _vital = vital;
            if let Err(error) = gathered.run(&dispatcher) {
                tracing::error!("serving /dev/fuse: {error}");
            }
        })?);
        Ok(())
    }

    fn spawn_classic(
        &mut self,
        device: &Device,
        agreement: &Agreement,
        count: usize,
        polling: &Arc<Polling>,
        spawner: &Spawner,
    ) -> Result<()> {
        let servers = Arc::<Servers>::default();
        for index in 0..count {
            let vital = self.vital();
            let server = classic::Server {
                servers: servers.clone(),
                dispatcher: self.dispatcher.clone(),
                polling: polling.clone(),
                device: device
                    .another()
                    .map_err(|error| failed("cloning the connection", error))?,
                payload_len: agreement.payload_len(),
            };
            self.loops.push(spawner.spawn(&format!("fuse-{index}"), move || {
                let _vital = vital;
                if let Err(error) = server.run() {
                    tracing::error!("serving /dev/fuse: {error}");
                }
            })?);
        }
        Ok(())
    }

    fn vital(&self) -> Vital {
        Vital { breaker: self.breaker.clone(), waits: self.dispatcher.waits() }
    }

    /// Waits until the file system is unmounted and closed; the error is that of
    /// closing it.
    pub fn run(mut self) -> Result<()> {
        self.wait();
        self.finish();
        self.dispatcher.take_close_error().map_or(Ok(()), Err)
    }

    /// Waits until the mount is gone. What is mounted from now on can have its number.
    pub fn wait(&mut self) {
        for thread in self.loops.drain(..) {
            // `Vital` tells of panics.
            let _ = thread.join();
        }
        // Where the loops did not end with it: what is done next, telling the kernel of changes
        // among it, may wait for answers that nobody would give.
        self.breaker.end();
    }

    /// Ends what is beside the loops, which have ended, and closes.
    fn finish(&mut self) {
        self.pollers = None;
        self.notifier.close();
        join(self.notifying.drain(..).collect());
        self.dispatcher.close();
        self.state = State::Finished;
    }

    /// Takes a mount away that was never ready. The file system stays open.
    fn give_up(&mut self) {
        self.state = State::Finished;
        let mountpoint = &self.unmounter.mountpoint;
        if let Err(error) = mount::give_up(mountpoint, self.number.as_deref(), &self.breaker) {
            tracing::warn!("unmounting {}: {error}", mountpoint.display());
        }
        self.notifier.close();
        join(self.loops.drain(..).chain(self.notifying.drain(..)).collect());
        self.pollers = None;
    }

    /// A handle that unmounts, for other threads.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// A handle for the engine to tell the kernel what changed behind its back.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// `io_uring` or `classic`.
    pub fn transport(&self) -> &'static str {
        self.dispatcher.transport()
    }

    /// The block device that the mount holds; for an image the loop device.
    pub fn block_device(&self) -> Option<&Path> {
        self.block_device.as_deref()
    }
}

impl Drop for Session {
    /// A session that was not run ends with its mount.
    fn drop(&mut self) {
        match self.state {
            State::Finished => return,
            State::Starting => return self.give_up(),
            State::Serving => {}
        }
        if let Err(error) = self.unmounter.unmount(true) {
            tracing::warn!("unmounting {}: {error}", self.unmounter.mountpoint.display());
            if !self.loops.is_empty() {
                // Joining would wait for ever for a mount that does not end.
                return;
            }
        }
        self.wait();
        self.finish();
    }
}

/// Of a thread without which callers would wait for ever, or see what is old: however it ends (an error,
/// a panic, also before its work began) the connection ends. Mostly the mount's end came first. Keeps nothing of the
/// file system: a thread that tells the kernel of something may still be there when the session is over, for long
/// where the kernel has it wait, and who then opens the image shall not find it in use.
struct Vital {
    breaker: Breaker,
    waits: Arc<Waits>,
}

impl Drop for Vital {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!("a server thread panicked: the connection ends");
        }
        self.end();
    }
}

impl Vital {
    fn end(&self) {
        self.breaker.end();
        self.waits.end();
    }
}

/// Of a thread that has others beside it: the connection ends with the last of them, or where one panics.
#[derive(Clone)]
struct Shared(Arc<Vital>);

impl Drop for Shared {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!(
                "a thread that tells the kernel what changed panicked: the connection ends"
            );
            self.0.end();
        }
    }
}

/// Waits for threads that have nothing to wait for any more, but not for ever: one that
/// hangs all the same ends with the process.
fn join(threads: Vec<JoinHandle<()>>) {
    /// Chosen, not measured.
    const PATIENCE: Duration = Duration::from_secs(2);
    let deadline = Instant::now() + PATIENCE;
    for thread in threads {
        while !thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        match thread.is_finished() {
            true => drop(thread.join()),
            false => tracing::warn!("a server thread does not end"),
        }
    }
}

/// Makes the session's threads, and knows when all of them are there.
struct Spawner {
    on_thread: Option<fn()>,
    /// Each thread has a copy until it is there.
    coming: Sender<()>,
    all_there: Receiver<()>,
}

impl Spawner {
    fn new(config: &Config) -> Spawner {
        let (coming, all_there) = channel();
        Spawner { on_thread: config.on_thread, coming, all_there }
    }

    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
        let (on_thread, coming) = (self.on_thread, self.coming.clone());
        thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                sys::block_signals();
                sys::mark_io_flusher();
                if let Some(call) = on_thread {
                    call();
                }
                drop(coming);
                work();
            })
            .map_err(|error| failed("starting a server thread", error))
    }

    /// Waits until all have called what they were to call.
    fn wait(self) {
        drop(self.coming);
        // Nobody sends: it ends with the last copy.
        let _ = self.all_there.recv();
    }
}

/// Reads INIT. Nothing is answered yet: the answer says whether rings will come.
fn first_exchange(device: &Device, config: &Config) -> Result<(u64, Agreement)> {
    let mut message = vec![0u8; FIRST_MESSAGE];
    let len = device
        .receive(&mut message)
        .map_err(|error| failed("reading the kernel's first request", error))?
        .ok_or(FsError::Posix(Errno::ENODEV))?;
    let request = Request::parse(&message[..len]).ok_or(FsError::Posix(Errno::EIO))?;
    if request.header.opcode != Opcode::Init.number() {
        return Err(FsError::Unsupported("the kernel did not begin with INIT".into()));
    }
    let body = &message[InHeader::SIZE..len];
    let agreement = negotiate(body, sys::page_size(), config.max_write, config.writeback)
        .map_err(FsError::Unsupported)?;
    tracing::debug!(?agreement, "agreed with the kernel");
    Ok((request.header.unique, agreement))
}

fn accept(device: &Device, unique: u64, agreement: &Agreement, uring: bool) -> io::Result<()> {
    let mut body = [0u8; crate::abi::record::InitOut::SIZE];
    agreement.reply(uring).store(&mut body);
    let mut head = [0u8; OutHeader::SIZE];
    let len = (head.len() + body.len()) as u32;
    OutHeader { len, error: 0, unique }.store(&mut head);
    device.send(&[IoSlice::new(&head), IoSlice::new(&body)])
}

/// Ring threads that wait for the word to register; dropping it sends them home.
struct Rings {
    go: Vec<Sender<()>>,
}

impl Rings {
    /// Lets them serve.
    fn begin(self) {
        for go in self.go {
            let _ = go.send(());
        }
    }
}

struct RingThread {
    cpu: usize,
    device: Device,
    dispatcher: Arc<Dispatcher>,
    payload_len: usize,
    spread_large_reads: bool,
    breaker: Breaker,
    report: Sender<io::Result<()>>,
    wait: Receiver<()>,
}

impl RingThread {
    fn run(self) {
        if let Err(error) = sys::pin_to(self.cpu) {
            // An offline or forbidden processor: its queue must be served all the same.
            tracing::debug!(cpu = self.cpu, "not pinned: {error}");
        }
        let made = Server::new(
            &self.device,
            &self.dispatcher,
            self.cpu as u16,
            self.payload_len,
            self.spread_large_reads,
        );
        let server = match made {
            Ok(server) => server,
            Err(error) => {
                let _ = self.report.send(Err(error));
                return;
            }
        };
        let _ = self.report.send(Ok(()));
        if self.wait.recv().is_err() {
            return;
        }
        // Not before: where no rings serve, this thread's end is no reason to end anything.
        let _vital = Vital { breaker: self.breaker, waits: self.dispatcher.waits() };
        match server.serve() {
            End::Disconnected => {}
            End::Failed(error) => tracing::error!(cpu = self.cpu, "serving a ring: {error}"),
            End::NotRegistered(error) => {
                // The kernel goes back to the device by itself; help to serve that. All read the
                // one that is open: a thread that serves may not be allowed to open files.
                tracing::error!(cpu = self.cpu, "registering a ring entry: {error}");
                self.dispatcher.goes_on_by_the_device();
                let served = classic::serve(&self.device, &self.dispatcher, self.payload_len);
                if let Err(error) = served {
                    tracing::error!("serving /dev/fuse: {error}");
                }
            }
        }
    }
}
