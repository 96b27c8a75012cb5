//! One dispatcher under both loops: a request in, reply bytes or an errno out.
//!
//! # Every operation that Linux 6.18 can send
//!
//! | operation | answer |
//! |---|---|
//! | LOOKUP FORGET BATCH_FORGET MKNOD MKDIR SYMLINK LINK UNLINK RMDIR RENAME RENAME2 TMPFILE | `names` |
//! | GETATTR SETATTR STATX READLINK STATFS | `inode` |
//! | READ WRITE FSYNC FSYNCDIR FALLOCATE LSEEK COPY_FILE_RANGE COPY_FILE_RANGE_64 SYNCFS | `data` |
//! | READDIR READDIRPLUS | `dir` |
//! | SETXATTR GETXATTR LISTXATTR REMOVEXATTR | `xattr` |
//! | IOCTL | `ioctl`, or the file system's own by `control`; ENOTTY for all others |
//! | INIT | `init`; the session reads it before any loop runs, a second one is EIO |
//! | DESTROY | closes the file system, once |
//! | RELEASE RELEASEDIR | accepted; nothing is kept per open file |
//! | OPEN OPENDIR CREATE FLUSH | ENOSYS: the kernel opens and closes without a message, and creates by MKNOD; OPEN and OPENDIR are served where access times are kept, OPEN also where openings are told apart (`open`) |
//! | ACCESS | ENOSYS: `default_permissions`, the kernel checks |
//! | BMAP | ENOSYS: file blocks have no fixed device address (so no swap files) |
//! | POLL | ENOSYS: files are always ready |
//! | GETLK SETLK SETLKW | ENOSYS: not asked for, the kernel keeps locks by itself |
//! | INTERRUPT | no reply: ends the waiting of control operations (`waits`), nothing else waits for outside events |
//! | NOTIFY_REPLY | ignored, no reply |
//! | SETUPMAPPING REMOVEMAPPING and unknown numbers | ENOSYS |
//!
//! # What the kernel caches, and what makes it stale
//!
//! Names and attributes are given to the kernel for ever. By itself Linux drops
//!
//! * a directory's attributes (and its listing) after every operation that changes
//!   its names: create, unlink, rmdir, link, symlink, and both parents of a rename;
//! * the ctime of an inode that was unlinked, renamed or given an xattr, and counts
//!   its link count down itself; the same for what a rename replaced;
//! * size, blocks, mtime and ctime after each WRITE (also a failed one), FALLOCATE
//!   and of the target of COPY_FILE_RANGE; atime after READ and READDIR;
//! * everything after an ACL was set;
//!
//! and it takes the attributes in the replies of SETATTR, LINK, MKNOD, LOOKUP. Before
//! a WRITE, FALLOCATE or COPY_FILE_RANGE by someone who may not keep set-ID bits it
//! sends a SETATTR that changes nothing: the server clears the bits (`inode`), and the
//! reply brings the mode. Left over are changes on our side that it does not expect:
//!
//! * the *ctime* after FS_IOC_SETFLAGS and FSSETXATTR;
//! * the *mode* after FALLOCATE and COPY_FILE_RANGE on older kernels, which do not send
//!   that SETATTR: we clear the bits that this caller may not keep (`caller`).
//!
//! In these cases the handler sends NOTIFY_INVAL_INODE for the attributes alone
//! *before* it replies, so the caller never sees the old ones. That message takes no
//! inode lock in the kernel and no pages are dropped, which is why it may be sent from
//! inside a handler. What changes with no request at all (the block count when delayed
//! allocation or compression settles, a snapshot made by an administrative command) is
//! for `Notifier`: the file system gets it as its `vfs::Observer`.
//!
//! Pages that an asynchronous direct write leaves behind: `pages`; pages that the kernel has not sent, over
//! holes: `mapped`; what is in a page behind the end of a file that grows: `behind_end`.
//!
//! Where the file system says that answers do not last (a subvolume into which it receives a stream),
//! nothing of them is given for ever, and it tells of content and listings that changed (`unsettled`).
//!
//! Negative names are cached for ever too: only the kernel makes names in this mount,
//! and it replaces or drops the negative entry when it does.

mod behind_end;
mod caller;
mod control;
mod counters;
mod data;
mod dir;
mod failure;
mod init;
mod inode;
mod inodes;
mod ioctl;
mod listings;
mod mapped;
mod names;
mod open;
mod pages;
mod reply;
mod request;
#[cfg(test)]
mod tests;
mod unsettled;
mod waits;
mod xattr;

pub(crate) use init::{Agreement, negotiate};
pub(crate) use pages::Origin;
pub(crate) use request::Request;
pub(crate) use waits::Waits;

use crate::abi::Opcode;
use crate::abi::record::InterruptIn;
use crate::callers::Callers;
use crate::config::Config;
use crate::nodeid::NodeIds;
use crate::notify::Notifier;
use crate::owners::Owners;
use crate::polling::Polling;
use crate::tidying::Tidying;
use failure::{Answer, Failure};
use parking_lot::Mutex;
use reply::Out;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use vfs::{Context, Control, FileSystem, FsError, Ino};

/// What a loop does with a request that was handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Send this many bytes of the out buffer.
    Reply(usize),
    /// Send this errno (positive).
    Refuse(i32),
    /// The kernel expects nothing.
    Silent,
}

/// What comes beside the rings and gathers there: what nobody waits for.
pub(crate) trait Beside: Send + Sync {
    /// Serves it, by the dispatcher.
    fn fetch(&self, dispatcher: &Dispatcher) -> io::Result<()>;

    /// How many messages were served.
    fn served(&self) -> u64;
}

pub(crate) struct Dispatcher {
    fs: Arc<dyn FileSystem>,
    nodes: NodeIds,
    notifier: Notifier,
    counters: counters::Counters,
    polling: Arc<Polling>,
    pages: pages::Pages,
    notes: Arc<unsettled::Notes>,
    /// Files whose end, within a page, the kernel has READ, or has the page of.
    ends: inodes::Inodes<behind_end::EndPages>,
    /// Files that the kernel has READ into its cache: a store through a map may be there.
    read: inodes::Inodes,
    /// Directories of which the kernel may have a listing.
    listed: inodes::Inodes,
    waiters: pages::Waiters,
    waits: Arc<Waits>,
    listings: listings::Listings,
    cache_negative: bool,
    /// Reads may change access times: each open is asked for, and may drop what is cached.
    keeps_atime: bool,
    /// Each opening of a file is one of its own for an fsync.
    open_errors: bool,
    /// Some files refuse those who would write: each open is asked for.
    refuses_writers: bool,
    writeback: bool,
    /// Bytes of a page of the kernel's.
    page: u64,
    owners: Owners,
    callers: Arc<dyn Callers>,
    /// What the file system does beyond the table of `ioctl`.
    control: Option<Arc<dyn Control>>,
    /// The user that serves.
    server: u32,
    tidying: Tidying,
    transport: Mutex<&'static str>,
    /// What comes beside the rings, if there are rings.
    gathered: OnceLock<Arc<dyn Beside>>,
    closed: AtomicBool,
    close_error: Mutex<Option<FsError>>,
    #[cfg(feature = "fault-injection")]
    on_request: Option<fn(u32)>,
}

/// Requests that have done nothing where they hear that there is no room, so they can be asked once more. Of an
/// fsync or a control operation that is not so: they may have told of an error, or have begun.
fn takes_room(opcode: u32) -> bool {
    use Opcode::*;
    let all = [
        Write,
        Create,
        Mknod,
        Mkdir,
        Symlink,
        Link,
        Tmpfile,
        Setattr,
        Setxattr,
        Rename,
        Rename2,
        Fallocate,
        CopyFileRange,
        CopyFileRange64,
    ];
    Opcode::from_number(opcode).is_some_and(|opcode| all.contains(&opcode))
}

impl Dispatcher {
    pub(crate) fn new(
        fs: Arc<dyn FileSystem>,
        notifier: Notifier,
        config: &Config,
        polling: &Arc<Polling>,
    ) -> Dispatcher {
        let queues = crate::sys::possible_cpus().iter().max().map_or(0, |last| last + 1);
        Dispatcher {
            keeps_atime: fs.keeps_atime(),
            refuses_writers: fs.refuses_writers(),
            fs,
            nodes: notifier.nodes(),
            notifier,
            counters: counters::Counters::new(),
            polling: polling.clone(),
            pages: pages::Pages::new(),
            notes: Arc::default(),
            ends: inodes::Inodes::default(),
            read: inodes::Inodes::default(),
            listed: inodes::Inodes::default(),
            waiters: pages::Waiters::new(queues),
            waits: Arc::default(),
            listings: listings::Listings::default(),
            cache_negative: config.cache_negative,
            open_errors: config.open_errors,
            writeback: config.writeback,
            page: u64::from(crate::sys::page_size()),
            owners: config.owners,
            callers: config.callers.clone(),
            control: config.control.clone().map(|control| control.0),
            server: crate::sys::user_and_group().0,
            tidying: config.tidying,
            transport: Mutex::new("none"),
            gathered: OnceLock::new(),
            closed: AtomicBool::new(false),
            close_error: Mutex::new(None),
            #[cfg(feature = "fault-injection")]
            on_request: config.on_request,
        }
    }

    pub(crate) fn keeps_atime(&self) -> bool {
        self.keeps_atime
    }

    /// How threads that serve let go memory.
    pub(crate) fn tidying(&self) -> Tidying {
        self.tidying
    }

    /// Names the transport in use, for the `spinney.transport` attribute.
    pub(crate) fn set_transport(&self, name: &'static str) {
        *self.transport.lock() = name;
    }

    /// The calling thread serves the device from now on: its ring is none.
    pub(crate) fn goes_on_by_the_device(&self) {
        self.set_transport("classic");
        self.waiters.one_more_reads_the_device();
    }

    /// How many threads serve the device, and how many each ring queue.
    pub(crate) fn served_by(&self, device: usize, ring: usize) {
        self.waiters.limit(device, ring, init::MAX_BACKGROUND);
    }

    /// Names who serves, by this dispatcher, the FORGETs that have gathered.
    pub(crate) fn fetch_by(&self, gathered: Arc<dyn Beside>) {
        let _ = self.gathered.set(gathered);
    }

    /// Serves one request that came by a ring. Who would hear that there is no room is served again, if
    /// something was forgotten since he asked: it may be what he removed.
    pub(crate) fn dispatch_from_ring(&self, request: &Request<'_>, out: &mut [u8]) -> Outcome {
        let Some(gathered) = self.gathered.get() else { return self.dispatch(request, out) };
        let asks_what_is_free = [Opcode::Statfs.number(), Opcode::Syncfs.number()];
        if asks_what_is_free.contains(&request.header.opcode) {
            self.fetch(&**gathered);
        }
        let before = gathered.served();
        let outcome = self.dispatch(request, out);
        if !matches!(outcome, Outcome::Refuse(libc::ENOSPC | libc::EDQUOT))
            || !takes_room(request.header.opcode)
        {
            return outcome;
        }
        self.fetch(&**gathered);
        if gathered.served() == before { outcome } else { self.dispatch(request, out) }
    }

    fn fetch(&self, gathered: &dyn Beside) {
        if let Err(error) = gathered.fetch(self) {
            tracing::error!("reading what gathered: {error}");
        }
    }

    pub(crate) fn transport(&self) -> &'static str {
        *self.transport.lock()
    }

    /// The file system shall say what changes without a request.
    pub(crate) fn tell_file_system_of(&self, notifier: Notifier) {
        self.fs.observe(Arc::new(unsettled::Telling { notes: self.notes.clone(), notifier }));
    }

    /// True where `out` may be the very buffer that held the payload, because the
    /// operation has none.
    pub(crate) fn replies_in_place(opcode: u32) -> bool {
        matches!(
            Opcode::from_number(opcode),
            Some(Opcode::Read | Opcode::Readdir | Opcode::Readdirplus | Opcode::Listxattr)
        )
    }

    /// Serves one request. Never panics: a handler that does is answered with EIO.
    pub(crate) fn dispatch(&self, request: &Request<'_>, out: &mut [u8]) -> Outcome {
        self.counters.count(request.header.opcode);
        #[cfg(feature = "fault-injection")]
        if let Some(call) = self.on_request {
            call(request.header.opcode);
        }
        let guarded = catch_unwind(AssertUnwindSafe(|| self.route(request, out)));
        self.polling.served(request.header.pid);
        guarded.unwrap_or_else(|_| {
            let header = &request.header;
            tracing::error!(opcode = header.opcode, nodeid = header.nodeid, "handler panicked");
            match Opcode::from_number(header.opcode) {
                Some(Opcode::Forget | Opcode::BatchForget) => Outcome::Silent,
                _ => Outcome::Refuse(libc::EIO),
            }
        })
    }

    fn route(&self, request: &Request<'_>, out: &mut [u8]) -> Outcome {
        let Some(opcode) = Opcode::from_number(request.header.opcode) else {
            tracing::debug!(opcode = request.header.opcode, "unknown operation");
            return Outcome::Refuse(libc::ENOSYS);
        };
        let mut out = Out::new(out);
        let answer = match opcode {
            Opcode::Forget => return self.forget(request),
            Opcode::BatchForget => return self.batch_forget(request),
            Opcode::Interrupt => return self.interrupt(request),
            Opcode::NotifyReply => return Outcome::Silent,
            _ => self.serve(opcode, request, &mut out),
        };
        match answer {
            Ok(()) => Outcome::Reply(out.len()),
            Err(failure) => Outcome::Refuse(failure.errno()),
        }
    }

    fn serve(&self, opcode: Opcode, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        match opcode {
            Opcode::Lookup => self.lookup(request, out),
            Opcode::Mknod => self.mknod(request, out),
            Opcode::Mkdir => self.mkdir(request, out),
            Opcode::Symlink => self.symlink(request, out),
            Opcode::Link => self.link(request, out),
            Opcode::Tmpfile => self.tmpfile(request, out),
            Opcode::Unlink => self.unlink(request),
            Opcode::Rmdir => self.rmdir(request),
            Opcode::Rename => self.rename(request),
            Opcode::Rename2 => self.rename2(request),
            Opcode::Getattr => self.getattr(request, out),
            Opcode::Setattr => self.setattr(request, out),
            Opcode::Statx => self.statx(request, out),
            Opcode::Readlink => self.readlink(request, out),
            Opcode::Statfs => self.statfs(out),
            Opcode::Read => self.read(request, out),
            Opcode::Write => self.write(request, out),
            Opcode::Fsync | Opcode::Fsyncdir => self.fsync(request),
            Opcode::Syncfs => Ok(self.fs.sync_by(request.header.pid)?),
            Opcode::Fallocate => self.fallocate(request),
            Opcode::Lseek => self.lseek(request, out),
            Opcode::CopyFileRange => self.copy_file_range(request, out),
            Opcode::CopyFileRange64 => self.copy_file_range_64(request, out),
            Opcode::Readdir => self.readdir(request, out),
            Opcode::Readdirplus => self.readdir_plus(request, out),
            Opcode::Setxattr => self.setxattr(request),
            Opcode::Getxattr => self.getxattr(request, out),
            Opcode::Listxattr => self.listxattr(request, out),
            Opcode::Removexattr => self.removexattr(request),
            Opcode::Ioctl => self.ioctl(request, out),
            Opcode::Release | Opcode::Releasedir => Ok(()),
            Opcode::Destroy => {
                self.close();
                Ok(())
            }
            Opcode::Init => Err(vfs::Errno::EIO.into()),
            Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply => {
                Ok(())
            }
            Opcode::Open if self.sees_opens() => self.open(request, out),
            Opcode::Opendir if self.keeps_atime => self.open(request, out),
            Opcode::Open
            | Opcode::Opendir
            | Opcode::Create
            | Opcode::Flush
            | Opcode::Access
            | Opcode::Bmap
            | Opcode::Poll
            | Opcode::Getlk
            | Opcode::Setlk
            | Opcode::Setlkw
            | Opcode::SetupMapping
            | Opcode::RemoveMapping => Err(Failure::NEVER_SEND),
        }
    }

    /// Closes the file system on the first call: at DESTROY, or when the loops ended
    /// without one. The error is kept for `take_close_error`.
    pub(crate) fn close(&self) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        let result = catch_unwind(AssertUnwindSafe(|| self.fs.destroy()));
        let error = match result {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => FsError::Io {
                context: "closing the file system".into(),
                source: std::io::Error::other("it panicked"),
            },
        };
        tracing::error!("closing the file system: {error}");
        *self.close_error.lock() = Some(error);
    }

    fn interrupt(&self, request: &Request<'_>) -> Outcome {
        if let Ok(arg) = request.arg::<InterruptIn>() {
            self.waits.interrupt(arg.unique);
        }
        Outcome::Silent
    }

    /// Those who wait for something that may take long, for who ends the connection: nobody shall any more.
    pub(crate) fn waits(&self) -> Arc<Waits> {
        self.waits.clone()
    }

    pub(crate) fn take_close_error(&self) -> Option<FsError> {
        self.close_error.lock().take()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Who makes something in `dir`: whose it will be.
    fn maker(&self, request: &Request<'_>, umask: u32, dir: Ino) -> vfs::Result<Context> {
        let mut cx = request.context(umask);
        self.owners.adopt(&mut cx, || self.fs.getattr(dir))?;
        Ok(cx)
    }

    /// The inode that the request is about.
    fn ino(&self, request: &Request<'_>) -> Ino {
        self.nodes.to_ino(request.header.nodeid)
    }
}
