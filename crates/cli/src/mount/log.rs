//! Where a server's messages go: the terminal, a file, or the system's log.
//!
//! A small `tracing` subscriber: events only, one line each. The level comes from
//! `SPINNEY_LOG` (error, warn, info, debug, trace), info where that is not set. The system's
//! log listens at /dev/log unless `SPINNEY_SYSLOG` names another socket.

use std::fmt::{self, Write as _};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

const SYSLOG: &str = "/dev/log";
/// Syslog's facility for daemons.
const DAEMON: u8 = 3 << 3;

/// Where a log goes that the user may not know of.
pub enum LogPlace {
    /// The user chose it, or looks there anyway.
    Chosen,
    File(PathBuf),
    Nowhere,
}

pub enum Sink {
    Stderr,
    File(Mutex<File>),
    Syslog(UnixDatagram),
    /// There is no place for it.
    Nowhere,
}

impl Sink {
    pub fn file(path: &Path) -> io::Result<Sink> {
        let file = OpenOptions::new().append(true).create(true).mode(0o640).open(path)?;
        Ok(Sink::File(Mutex::new(file)))
    }

    fn syslog(path: &Path) -> io::Result<Sink> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        // A logger that hangs must not hang the file system.
        socket.set_nonblocking(true)?;
        Ok(Sink::Syslog(socket))
    }

    /// For a server in the background that was not told: the system's log, else a fresh
    /// file in the directory for such things.
    pub fn for_background(mount_point: &Path) -> (Sink, LogPlace) {
        let socket = std::env::var_os("SPINNEY_SYSLOG").unwrap_or_else(|| SYSLOG.into());
        if let Ok(sink) = Sink::syslog(Path::new(&socket)) {
            return (sink, LogPlace::Chosen);
        }
        match run_file(mount_point).and_then(|path| own_file(&path)) {
            Some((file, path)) => (Sink::File(Mutex::new(file)), LogPlace::File(path)),
            None => (Sink::Nowhere, LogPlace::Nowhere),
        }
    }

    fn write(&self, level: Level, target: &str, message: &str) {
        // There is nobody to tell that telling failed.
        let _ = match self {
            Sink::Stderr => {
                writeln!(io::stderr(), "spinney: {}: {message}", name(level).to_lowercase())
            }
            Sink::File(file) => {
                let line = format!("{} {} {target}: {message}\n", timestamp(), name(level));
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                file.write_all(line.as_bytes())
            }
            Sink::Syslog(socket) => {
                let priority = DAEMON | severity(level);
                let line = format!("<{priority}>spinney[{}]: {message}", std::process::id());
                socket.send(line.as_bytes()).map(drop)
            }
            Sink::Nowhere => Ok(()),
        };
    }
}

/// An empty log that is no other server's: `path`, or with a number if a server has that one.
/// Servers keep theirs locked while they live.
fn own_file(path: &Path) -> Option<(File, PathBuf)> {
    const MOST: u32 = 100;
    let numbered = (2..=MOST).map(|number| path.with_extension(format!("{number}.log")));
    std::iter::once(path.to_owned()).chain(numbered).find_map(|path| {
        let file = OpenOptions::new().append(true).create(true).mode(0o640).open(&path).ok()?;
        file.try_lock().ok()?;
        // Who had it may just have removed it.
        let (now, mine) = (fs::symlink_metadata(&path).ok()?, file.metadata().ok()?);
        if (now.dev(), now.ino()) != (mine.dev(), mine.ino()) {
            return None;
        }
        // The last mount's log must not grow with every mount.
        file.set_len(0).ok()?;
        Some((file, path))
    })
}

/// `/run/spinney/MOUNT-POINT.log`, or in the user's own runtime directory.
fn run_file(mount_point: &Path) -> Option<PathBuf> {
    let base = match crate::sys::is_root() {
        true => PathBuf::from("/run"),
        false => PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?),
    };
    let directory = base.join("spinney");
    if !directory.is_dir() {
        DirBuilder::new().mode(0o755).create(&directory).ok()?;
    }
    let owned = fs::symlink_metadata(&directory).ok()?;
    if owned.uid() != crate::sys::user_and_group().0 {
        return None;
    }
    let mut name = mount_point.display().to_string().trim_matches('/').replace('/', "-");
    while name.len() > 200 {
        name.pop();
    }
    Some(directory.join(format!("{name}.log")))
}

fn name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "ERROR",
        Level::WARN => "WARNING",
        Level::INFO => "INFO",
        Level::DEBUG => "DEBUG",
        Level::TRACE => "TRACE",
    }
}

/// Syslog's number.
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

fn timestamp() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    crate::when::utc(since.as_secs() as i64)
}

struct Logger {
    sink: Sink,
    most: Level,
}

impl Logger {
    fn new(sink: Sink, unless_told: Level) -> Logger {
        let most = std::env::var("SPINNEY_LOG").ok().and_then(|level| level.parse().ok());
        Logger { sink, most: most.unwrap_or(unless_told) }
    }
}

/// From here on all messages of this process go to `sink`, those of panics too.
pub fn start(sink: Sink) {
    let logger = Logger::new(sink, Level::INFO);
    if tracing::subscriber::set_global_default(logger).is_ok() {
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    }
}

/// For a command that works long on an image: what goes wrong meanwhile is said where it is seen.
pub fn tell_errors() {
    // Once is enough.
    let _ = tracing::subscriber::set_global_default(Logger::new(Sink::Stderr, Level::ERROR));
}

impl Subscriber for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.most
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(self.most.into())
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let metadata = event.metadata();
        self.sink.write(*metadata.level(), metadata.target(), &line.text());
    }

    // Spans are not kept.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The message, and its fields behind it.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Line {
    /// On one line, whatever is in it.
    fn text(self) -> String {
        (self.message + &self.fields).replace('\n', "; ")
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            name => drop(write!(self.fields, " {name}={value:?}")),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_lines() {
        let dir = testkit::oracle::TempDir::new("log").unwrap();
        let path = dir.join("log");
        let logger = Logger { sink: Sink::file(&path).unwrap(), most: Level::INFO };
        tracing::subscriber::with_default(logger, || {
            tracing::info!(count = 3, why = "a b", "some {}", "thing");
            tracing::debug!("not this");
            tracing::error!("two\nlines");
        });
        let text = fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].ends_with(r#"some thing count=3 why="a b""#), "{text}");
        assert!(lines[0].contains("Z INFO spinney"), "{text}");
        assert!(lines[1].ends_with("two; lines"), "{text}");
    }

    /// A second mount on the same point that failed took the first one's log away.
    #[test]
    fn a_log_is_one_servers() {
        let dir = testkit::oracle::TempDir::new("logs").unwrap();
        let path = dir.join("mnt.log");
        let (mut first, at) = own_file(&path).unwrap();
        assert_eq!(at, path);
        first.write_all(b"kept").unwrap();
        let (second, at) = own_file(&path).unwrap();
        assert_eq!(at, dir.join("mnt.2.log"));
        fs::remove_file(at).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"kept");
        drop((first, second));
        let (_third, at) = own_file(&path).unwrap();
        assert_eq!((at, fs::read(&path).unwrap()), (path, Vec::new()));
    }

    #[test]
    fn the_system_log_gets_datagrams_and_holds_nobody_up() {
        let dir = testkit::oracle::TempDir::new("syslog").unwrap();
        let path = dir.join("socket");
        assert!(Sink::syslog(&path).is_err(), "nobody listens");
        let listener = UnixDatagram::bind(&path).unwrap();
        let logger = Logger { sink: Sink::syslog(&path).unwrap(), most: Level::INFO };
        let mut buffer = [0; 4096];
        let mut heard = || {
            let len = listener.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(&buffer[..len]).into_owned()
        };
        let pid = std::process::id();
        tracing::subscriber::with_default(logger, || {
            tracing::error!(why = "the reason", "something\nbroke");
            tracing::warn!("careful");
            tracing::debug!("not this");
            tracing::info!("well");
            assert_eq!(heard(), format!("<27>spinney[{pid}]: something; broke why=\"the reason\""));
            assert_eq!(heard(), format!("<28>spinney[{pid}]: careful"));
            assert_eq!(heard(), format!("<30>spinney[{pid}]: well"));
            // Nobody reads any more: messages are lost, and nobody waits.
            for number in 0..10_000 {
                tracing::info!("number {number}");
            }
            assert_eq!(heard(), format!("<30>spinney[{pid}]: number 0"));
        });
    }
}
