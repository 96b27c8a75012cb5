//! One mount for one test.

use crate::spy::Spy;
use fuse::{Config, Notifier, Session, Source, Transport, Unmounter};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A directory that is removed with everything in it (but never through a mount).
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fuse-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A mount that is still there is left alone.
        let _ = Command::new("rm").args(["-rf", "--one-file-system"]).arg(&self.0).status();
    }
}

pub struct Mount {
    pub spy: Arc<Spy>,
    pub notifier: Notifier,
    pub transport: &'static str,
    pub block_device: Option<PathBuf>,
    unmounter: Unmounter,
    serving: Option<JoinHandle<vfs::Result<()>>>,
    _scratch: Scratch,
}

impl Mount {
    pub fn new(config: &Config) -> vfs::Result<Mount> {
        Mount::of(Spy::new(), config)
    }

    pub fn of(spy: Spy, config: &Config) -> vfs::Result<Mount> {
        Mount::of_used(spy, config, |_, _| {})
    }

    /// As `of`; `user` is at the mount point from before the mount, in a thread that has
    /// ended when this returns.
    pub fn of_used(
        spy: Spy,
        config: &Config,
        user: impl FnOnce(&Spy, &Path) + Send,
    ) -> vfs::Result<Mount> {
        let scratch = Scratch::new();
        let point = scratch.0.join("mnt");
        fs::create_dir(&point).unwrap();
        let mut config = config.clone();
        if let Source::Image(image) = &mut config.source {
            *image = scratch.0.join("image");
            fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        }
        let spy = Arc::new(spy);
        let session = std::thread::scope(|scope| {
            scope.spawn(|| user(&spy, &point));
            Session::mount(spy.clone(), &point, &config)
        })?;
        Ok(Mount {
            spy,
            notifier: session.notifier(),
            transport: session.transport(),
            block_device: session.block_device().map(Path::to_path_buf),
            unmounter: session.unmounter(),
            serving: Some(std::thread::spawn(move || session.run())),
            _scratch: scratch,
        })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.unmounter.mountpoint().join(name)
    }

    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Waits for the session's end, which something else brings about.
    pub fn join(&mut self) -> vfs::Result<()> {
        self.serving.take().unwrap().join().unwrap()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            let _ = self.unmounter.unmount(true);
            let ended = serving.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

/// True if mounts can be tried here at all.
pub fn able() -> bool {
    let missing = if !Path::new("/dev/fuse").exists() {
        "there is no /dev/fuse"
    } else if !fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t0\t") {
        "not root"
    } else {
        return true;
    };
    println!("SKIPPED: {missing}");
    false
}

pub fn with_transport(transport: Transport) -> Config {
    // Polling on whatever machine this is: where it does not pay it has to work all the same.
    Config { transport, poll: Some(100), ..Config::default() }
}

/// Runs `test` on a fresh mount.
pub fn run(transport: Transport, test: fn(&Mount)) {
    if !able() {
        return;
    }
    match Mount::new(&with_transport(transport)) {
        Ok(mount) => test(&mount),
        Err(vfs::FsError::Unsupported(what)) => println!("SKIPPED: {what}"),
        Err(error) => panic!("mounting: {error}"),
    }
}
