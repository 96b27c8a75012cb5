//! `kill -9` of the server while clients work: what they were told is durable is there
//! afterwards, through the kernel and through a new mount, and the volume is sound.
//!
//! The machine stays up, so this shows the order of commits and what an fsync covers, not
//! that flushes reach the medium; crash images of a simulated device show that.
//!
//! `SPINNEY_ROUNDS` makes it longer.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use suites::{Limited, Volume, assert_sound_after_kill, transports};
use testkit::oracle::with_kernel;

/// The bytes that belong at a position of a file; never 0, which is what is lost reads as.
fn bytes(file: u64, from: u64, len: u64) -> Vec<u8> {
    let byte = |at: u64| (((at / 7) ^ (at >> 11) ^ (file * 31)) % 251 + 1) as u8;
    (from..from + len).map(byte).collect()
}

/// A client that keeps note of what it was promised.
trait Client: Sync {
    /// One more step; Ok when it is durable.
    fn step(&self, root: &Path, number: u64) -> io::Result<()>;

    /// All is there to step `promised`, which was the last to succeed; the one after it
    /// was tried.
    fn verify(&self, root: &Path, promised: u64) -> Result<(), String>;
}

/// Replaces a file by rename, as editors and package managers do.
struct Replacer {
    dir: &'static str,
}

impl Replacer {
    /// From inline files to such of several extents.
    fn content(number: u64) -> Vec<u8> {
        let mut content = number.to_le_bytes().to_vec();
        content.extend(bytes(number, 0, (number * 7919) % 200_000));
        content
    }
}

impl Client for Replacer {
    fn step(&self, root: &Path, number: u64) -> io::Result<()> {
        let dir = root.join(self.dir);
        fs::create_dir_all(&dir)?;
        let mut file = File::create(dir.join("new"))?;
        file.write_all(&Replacer::content(number))?;
        file.sync_all()?;
        fs::rename(dir.join("new"), dir.join("file"))?;
        File::open(&dir)?.sync_all()?;
        File::open(root)?.sync_all()
    }

    fn verify(&self, root: &Path, promised: u64) -> Result<(), String> {
        let path = root.join(self.dir).join("file");
        let found = fs::read(&path).map_err(|error| format!("{path:?}: {error}"))?;
        let whole = [promised, promised + 1].iter().any(|&n| found == Replacer::content(n));
        let number = found.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let told = format!("{path:?}: {promised} was promised, there is {number:?}, or a part");
        if whole { Ok(()) } else { Err(told) }
    }
}

/// Appends records to a log, each made durable by fdatasync.
struct Appender {
    name: &'static str,
    id: u64,
}

impl Appender {
    const RECORD: u64 = 3001;
}

impl Client for Appender {
    fn step(&self, root: &Path, number: u64) -> io::Result<()> {
        let path = root.join(self.name);
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        // After a crash there may be more than was promised.
        let (from, end) = (file.metadata()?.len(), number * Appender::RECORD);
        file.write_all(&bytes(self.id, from, end.saturating_sub(from)))?;
        if number == 1 { file.sync_all() } else { file.sync_data() }
    }

    fn verify(&self, root: &Path, promised: u64) -> Result<(), String> {
        let found = fs::read(root.join(self.name)).map_err(|error| format!("{error}"))?;
        let (len, least) = (found.len() as u64, promised * Appender::RECORD);
        if len < least {
            return Err(format!("{}: {len} bytes, but {least} were promised", self.name));
        }
        let right = found == bytes(self.id, 0, len);
        if right { Ok(()) } else { Err(format!("{}: other bytes", self.name)) }
    }
}

/// Writes in turn to the sectors of a file that was opened so that each write is durable when it
/// returns; nobody asks for an fsync but the client's kernel.
struct Opened {
    name: &'static str,
    flags: i32,
}

impl Opened {
    const SECTORS: u64 = 64;
    const LEN: u64 = 4096;

    fn place(number: u64) -> u64 {
        number % Opened::SECTORS * Opened::LEN
    }
}

impl Client for Opened {
    fn step(&self, root: &Path, number: u64) -> io::Result<()> {
        let path = root.join(self.name);
        let mut options = OpenOptions::new();
        let file = options.create(true).write(true).custom_flags(self.flags).open(path)?;
        // O_DIRECT takes no other.
        let mut room = vec![0; 2 * Opened::LEN as usize];
        let start = room.as_ptr().align_offset(Opened::LEN as usize);
        let aligned = &mut room[start..][..Opened::LEN as usize];
        aligned.copy_from_slice(&bytes(number, 0, Opened::LEN));
        file.write_all_at(aligned, Opened::place(number))
    }

    fn verify(&self, root: &Path, promised: u64) -> Result<(), String> {
        let found = fs::read(root.join(self.name)).map_err(|error| format!("{error}"))?;
        let sector = |number| {
            let place = Opened::place(number) as usize;
            found.get(place..place + Opened::LEN as usize)
        };
        let is = |number| sector(number) == Some(&bytes(number, 0, Opened::LEN)[..]);
        // The one that was tried may have been in the place of the oldest.
        let tried = promised + 1;
        let oldest = tried.saturating_sub(Opened::SECTORS).max(1);
        let replaced = |number| number + Opened::SECTORS == tried && is(tried);
        let lost = |number: &u64| !is(*number) && !replaced(*number);
        match (oldest..=promised).find(lost) {
            None => Ok(()),
            Some(n) => Err(format!("{}: write {n} of {promised} is lost", self.name)),
        }
    }
}

/// Makes and removes names, and asks for all of it by syncfs.
struct Maker;

impl Client for Maker {
    fn step(&self, root: &Path, number: u64) -> io::Result<()> {
        let dir = root.join("made").join(format!("{number}"));
        if dir.exists() {
            // Of a step that was not promised before the server was killed.
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir_all(&dir)?;
        for n in 0..20 {
            fs::write(dir.join(format!("f{n}")), bytes(n, 0, n * 331))?;
        }
        fs::hard_link(dir.join("f1"), dir.join("hard"))?;
        symlink("f2", dir.join("soft"))?;
        fs::rename(dir.join("f3"), dir.join("moved"))?;
        (4..10).try_for_each(|n| fs::remove_file(dir.join(format!("f{n}"))))?;
        let synced = Limited::new(60, "sync").arg("-f").arg(&dir).run();
        if synced.success() { Ok(()) } else { Err(io::Error::other(synced.text())) }
    }

    fn verify(&self, root: &Path, promised: u64) -> Result<(), String> {
        (1..=promised).try_for_each(|number| {
            let dir = root.join("made").join(format!("{number}"));
            let told = |what: String| format!("{dir:?}: {what}");
            let list = fs::read_dir(&dir).map_err(|error| told(error.to_string()))?;
            let mut names: Vec<_> =
                list.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            let mut expected: Vec<_> =
                [0, 1, 2].into_iter().chain(10..20).map(|n| format!("f{n}")).collect();
            expected.extend(["hard", "moved", "soft"].map(String::from));
            expected.sort();
            if names != expected {
                return Err(told(format!("{names:?}")));
            }
            let content = fs::read(dir.join("soft")).map_err(|error| told(error.to_string()))?;
            if content != bytes(2, 0, 662)
                || fs::read(dir.join("f19")).unwrap() != bytes(19, 0, 6289)
            {
                return Err(told("other content".to_owned()));
            }
            Ok(())
        })
    }
}

fn clients() -> Vec<(Box<dyn Client + Send>, AtomicU64)> {
    let clients: Vec<Box<dyn Client + Send>> = vec![
        Box::new(Replacer { dir: "one" }),
        Box::new(Replacer { dir: "two" }),
        Box::new(Appender { name: "log", id: 3 }),
        Box::new(Appender { name: "journal", id: 4 }),
        Box::new(Opened { name: "sync", flags: libc::O_SYNC }),
        Box::new(Opened { name: "dsync", flags: libc::O_DSYNC }),
        Box::new(Opened { name: "direct", flags: libc::O_SYNC | libc::O_DIRECT }),
        Box::new(Maker),
    ];
    clients.into_iter().map(|client| (client, AtomicU64::new(0))).collect()
}

/// What is not there though it was promised.
fn broken(clients: &[(Box<dyn Client + Send>, AtomicU64)], root: &Path) -> Vec<String> {
    let verify = |(client, promised): &(Box<dyn Client + Send>, AtomicU64)| {
        let promised = promised.load(Ordering::SeqCst);
        if promised == 0 { None } else { client.verify(root, promised).err() }
    };
    clients.iter().filter_map(verify).collect()
}

/// Lets the clients work until the server is killed under them.
fn round(
    volume: &Volume,
    clients: &[(Box<dyn Client + Send>, AtomicU64)],
    number: u64,
    transport: &str,
) {
    let mount = volume.mount(transport, Duration::from_secs(120));
    assert_eq!(
        broken(clients, mount.path()),
        Vec::<String>::new(),
        "round {number}, mounted again"
    );
    thread::scope(|scope| {
        for (client, promised) in clients {
            let root = mount.path();
            scope.spawn(move || {
                let next = || promised.load(Ordering::SeqCst) + 1;
                while client.step(root, next()).is_ok() {
                    promised.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        // Different moments of commits; no clock decides what is right.
        thread::sleep(Duration::from_millis(400 + number * 373 % 900));
        mount.kill_server();
    });
    drop(mount);
    assert_sound_after_kill(&volume.image());
    // The kernel replays what the log holds, which it will not do on a device that it may
    // not write; on a copy, so that the next mount of ours has the log to replay, too.
    let copy = volume.beside("copy.img");
    Limited::new(60, "cp").arg("--sparse=always").args([&volume.image(), &copy]).ok();
    let lost = with_kernel(&copy, "noatime", |kernel| broken(clients, kernel.path())).unwrap();
    assert_eq!(lost, Vec::<String>::new(), "round {number}, to the kernel");
}

#[test]
fn what_was_synced_survives() {
    let able = transports();
    if able.is_empty() {
        return;
    }
    let rounds = suites::number("SPINNEY_ROUNDS", 6);
    let volume = Volume::new("kill", 1 << 30);
    let clients = clients();
    for number in 0..rounds {
        round(&volume, &clients, number, able[number as usize % able.len()]);
        let promised = clients.iter().map(|(_, promised)| promised.load(Ordering::SeqCst));
        println!("round {number}: promised {:?}", promised.collect::<Vec<_>>());
    }
    let all = clients.iter().all(|(_, promised)| promised.load(Ordering::SeqCst) > 3);
    assert!(all, "a client could not do anything");
    let mount = volume.mount(able[0], Duration::from_secs(60));
    assert_eq!(broken(&clients, mount.path()), Vec::<String>::new());
    let seen = mount.unmount_with_tree();
    volume.judge(&seen);
}

/// `-o sync`: files that were opened like any other are written as with O_SYNC.
#[test]
fn a_mount_with_sync_is_synchronous() {
    let able = transports();
    if able.is_empty() {
        return;
    }
    let volume = Volume::new("kill-sync", 1 << 30);
    let opened: Box<dyn Client + Send> = Box::new(Opened { name: "plain", flags: 0 });
    let clients = [(opened, AtomicU64::new(0))];
    for (number, transport) in able.iter().enumerate() {
        round(&volume, &clients, number as u64, &format!("{transport},sync"));
    }
    assert!(clients[0].1.load(Ordering::SeqCst) > 3, "the client could not do anything");
}
