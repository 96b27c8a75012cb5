//! What the mount table tells a server. `mount -o remount`: the kernel's side of its mount
//! turns read-only or writable again, and the server follows. A kernel mount of the image that
//! it serves: two who write destroy a volume, so the server stops.
//!
//! mount(8) tells the kernel alone unless it finds our helper, so a thread of the server
//! looks at the mount table whenever that changes. The helper also makes sure: it asks the
//! server before the mount turns writable, and returns when it has followed. What the kernel
//! knows nothing of, compression, the helper alone can change: it tells the server.
//!
//! Invariant: when the helper returned from `ro`, all is on the medium, and nothing is
//! written there until it turns writable.

use super::changes;
use super::control::{Waiter, keeping_awake, wake_if_stopped};
use super::flags::{self, Flags};
use super::monitor::Monitor;
use super::options::MountOptions;
use crate::error::{Error, Exit, Result, io_text};
use crate::mounts::{self, MountEntry};
use crate::sys;
use btrfs_fs::BtrfsFs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// What helps where a remount cannot.
const ANEW: &str = "unmount it, and mount it anew";
/// The server may have to commit.
const TO_FOLLOW: Duration = Duration::from_secs(120);

/// Questions of the helper; a list of options follows the last two.
const FOLLOW: &str = "follow";
const PREPARE: &str = "prepare to write";
const MAY_CHANGE: &str = "may remount with ";
const CHANGE: &str = "remount with ";

/// The server's side.
pub struct Follower {
    fs: Weak<BtrfsFs>,
    monitor: Arc<Monitor>,
    table: mounts::Watch,
    /// The mount's `major:minor`.
    device: String,
    /// What it was mounted with.
    options: MountOptions,
    /// One at a time. Has how the mount's access times were kept at the last look.
    turn: Mutex<Option<libc::c_ulong>>,
}

impl Follower {
    pub fn new(
        fs: Weak<BtrfsFs>,
        monitor: Arc<Monitor>,
        device: String,
        options: MountOptions,
    ) -> io::Result<Follower> {
        let table = mounts::Watch::new()?;
        Ok(Follower { fs, monitor, table, device, options, turn: Mutex::default() })
    }

    /// What an owner asks for; why not, if it cannot be done.
    pub fn asked(&self, question: &str) -> std::result::Result<(), String> {
        if let Some(list) = question.strip_prefix(MAY_CHANGE) {
            return changes::compression(&self.options, list).map(drop);
        }
        if let Some(list) = question.strip_prefix(CHANGE) {
            return self.change(list);
        }
        match question {
            FOLLOW => self.follow(),
            PREPARE => self.prepare_to_write(),
            _ => Err("it cannot do that".into()),
        }
    }

    fn change(&self, list: &str) -> std::result::Result<(), String> {
        if let Some(compress) = changes::compression(&self.options, list)?
            && let Some(fs) = self.fs.upgrade()
        {
            fs.set_compression(compress);
            tracing::info!("remounted with {list}");
        }
        Ok(())
    }

    /// Does as the mount table says; why not, if it cannot.
    fn follow(&self) -> std::result::Result<(), String> {
        let mut times = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(fs) = self.fs.upgrade() else { return Ok(()) };
        let all = self.table.all().map_err(|e| e.to_string())?;
        let Some(entry) = all.iter().find(|entry| entry.device == self.device) else {
            return Ok(());
        };
        note_access_times(&mut times, flags::access_times(entry));
        match (entry.is_read_only(), fs.is_still()) {
            (true, false) if fs.read_only_reason().is_none() => {
                fs.still().map_err(|e| e.to_string())?;
                tracing::info!("remounted read-only: all is on the medium, nothing is written");
            }
            (false, true) => writable(&fs)?,
            (false, false) => {
                if let Some(why) = fs.read_only_reason() {
                    tracing::warn!("the mount is writable for the kernel, but not here: {why}");
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Why it cannot do as the table says, unless the volume is being closed: then nothing else becomes of it.
    fn failed_to_follow(&self) -> Option<String> {
        let why = self.follow().err()?;
        let stays = self.fs.upgrade().is_some_and(|fs| !fs.is_being_closed());
        stays.then_some(why)
    }

    /// Nothing keeps the kernel from mounting an image by a further loop device.
    fn yield_to_kernel(&self) {
        let Some(fs) = self.fs.upgrade() else { return };
        if fs.read_only_reason().is_none()
            && let Some(point) = self.monitor.written_by_kernel()
        {
            fs.give_up(&format!("the kernel has mounted the image, too, on {point}"));
        }
    }

    /// Before the kernel lets writers in.
    fn prepare_to_write(&self) -> std::result::Result<(), String> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(fs) = self.fs.upgrade() else { return Err("it is being closed".into()) };
        if fs.is_still() {
            writable(&fs)?;
        }
        match fs.is_being_closed() {
            true => Err("it is being closed".into()),
            false => fs.read_only_reason().map_or(Ok(()), Err),
        }
    }

    pub fn is_still(&self) -> bool {
        self.fs.upgrade().is_some_and(|fs| fs.is_still())
    }

    /// Follows for as long as the process lives.
    pub fn watch(&self) {
        let now = self.table.all().unwrap_or_default();
        if let Some(entry) = now.iter().find(|entry| entry.device == self.device) {
            let mut times = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            times.get_or_insert_with(|| flags::access_times(entry));
        }
        let error = loop {
            if let Err(error) = self.table.wait() {
                break error;
            }
            self.yield_to_kernel();
            if let Some(why) = self.failed_to_follow() {
                tracing::error!("remounted read-only: {why}");
            }
        };
        tracing::warn!("remounts are not noticed: {error}");
    }
}

/// The kernel does not ask before it changes its flags, which do not keep them.
fn note_access_times(seen: &mut Option<libc::c_ulong>, now: libc::c_ulong) {
    if seen.replace(now).is_some_and(|before| before != now) {
        tracing::warn!(
            "remounted with other access times: they are kept as before, whatever the mount \
             table says; {ANEW}"
        );
    }
}

fn writable(fs: &BtrfsFs) -> std::result::Result<(), String> {
    fs.writable_again().map_err(|e| e.to_string())?;
    tracing::info!("remounted read-write");
    Ok(())
}

/// The helper's side: remounts what is on `point`, with `options`.
pub fn remount(point: &Path, options: &MountOptions) -> Result<Exit> {
    let about = |what: String| Error::about(point.display(), what);
    let entry = mounts::on(point).map_err(|e| Error::io(point, &e))?;
    let ours = |entry: &MountEntry| entry.is_fuse() && entry.kind.ends_with(".spinney");
    let entry = entry.filter(ours).ok_or_else(|| about("no mount of Spinney's is here".into()))?;
    let waiter = Waiter::of(&entry);
    let server = waiter.as_ref().and_then(Waiter::server);
    wake_if_stopped(server);
    let ask = |question: &str| match waiter.as_ref().map(|w| w.ask(question, TO_FOLLOW)) {
        Some(Some(answer)) if answer == "done" => Ok(()),
        Some(Some(why)) => Err(why),
        _ => Err("the server does not answer".into()),
    };
    if let Some(option) = changes::unlike_the_table(options, &entry) {
        let told = format!("option {option} cannot be changed by a remount");
        return Err(about(told).remedy(ANEW));
    }
    let changes = changes::of_the_server(options, &entry);
    let ask_about = |question: &str| match changes.as_str() {
        "" => Ok(()),
        list => ask(&format!("{question}{list}")),
    };
    ask_about(MAY_CHANGE).map_err(|why| about(why).remedy(ANEW))?;
    if !changes::is_of_the_server_alone(options) {
        tell_kernel(point, server, &calls(options, &entry), &ask)?;
    }
    ask_about(CHANGE).map_err(|why| about(format!("remounted, but {why}")))?;
    Ok(Exit::Done)
}

/// The flags of the calls of mount(2) that give the mount `entry` what `options` name, without
/// MS_REMOUNT: for the file system, and with MS_BIND for this mount alone.
fn calls(options: &MountOptions, entry: &MountEntry) -> Vec<libc::c_ulong> {
    let has = match Flags::of(entry) {
        has if options.names_all_flags() => has.without_what_can_be_named(),
        has => has,
    };
    let wanted = has.with(options.flag_words());
    let alone = libc::MS_BIND | wanted.mount;
    if !options.flag_words().any(flags::is_of_fs) {
        return vec![alone];
    }
    // It makes this mount as read-only as the file system.
    let all = wanted.fs | wanted.mount & !libc::MS_RDONLY;
    let differ = (wanted.fs ^ wanted.mount) & libc::MS_RDONLY != 0;
    if differ { vec![all, alone] } else { vec![all] }
}

fn tell_kernel(
    point: &Path,
    server: Option<i32>,
    calls: &[libc::c_ulong],
    ask: &dyn Fn(&str) -> std::result::Result<(), String>,
) -> Result<()> {
    let about = |what: String| Error::about(point.display(), what);
    if calls[0] & (libc::MS_RDONLY | libc::MS_BIND) == 0 {
        ask(PREPARE)
            .map_err(|why| about(format!("cannot be remounted read-write: {why}")).remedy(ANEW))?;
    }
    let told = || calls.iter().try_for_each(|flags| sys::remount(point, *flags));
    if let Err(error) = keeping_awake(server, told) {
        // It may have been prepared for what did not come.
        let _ = ask(FOLLOW);
        let what = match error.kind() {
            io::ErrorKind::ResourceBusy => "files are open for writing".into(),
            _ => io_text(&error),
        };
        return Err(about(format!("remounting: {what}")));
    }
    ask(FOLLOW).map_err(|why| about(format!("remounted, but {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::mount::COMMAND;
    use btrfs_fs::Options;
    use vfs::FileSystem;

    /// Of some mount of this machine, with a volume of its own. Answers whether that mount is read-only.
    fn follower() -> (Follower, Arc<BtrfsFs>, bool) {
        let device = Arc::new(blockdev::MemDevice::new(128 << 20));
        btrfs_image::mkfs::make(&*device, &Default::default()).expect("mkfs");
        let options = Options { background: false, ..Options::default() };
        let fs = Arc::new(BtrfsFs::open_device(device, options).expect("open"));
        let table = mounts::Watch::new().and_then(|table| table.all()).expect("a table");
        let (number, ro) = (table[0].device.clone(), table[0].is_read_only());
        let options = MountOptions::listed_in(COMMAND.help);
        let monitor = Arc::new(Monitor::of_nobody());
        let follower = Follower::new(Arc::downgrade(&fs), monitor, number, options);
        (follower.expect("a table"), fs, ro)
    }

    #[test]
    fn what_is_being_closed_is_not_prepared_for_writers() {
        let (follower, fs, _) = follower();
        fs.still().expect("still");
        follower.asked(PREPARE).expect("it is open");
        assert!(!fs.is_still());
        fs.still().expect("still");
        fs.destroy().expect("close");
        let why = follower.asked(PREPARE).expect_err("it is closed");
        assert!(why.contains("closed"), "{why}");
    }

    /// Who asked for it hears that it could not be done, and the log does not call it an error.
    #[test]
    fn what_is_being_closed_follows_no_remount_and_is_silent() {
        let (follower, fs, ro) = follower();
        if !ro {
            fs.still().expect("still");
        }
        fs.destroy().expect("close");
        assert!(follower.asked(FOLLOW).expect_err("it is closed").contains("closed"));
        assert_eq!(follower.failed_to_follow(), None);
    }
}
