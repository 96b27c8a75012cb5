//! How fast each transport is with a file system that does nothing, beside any other
//! directory. Needs root.
//!
//! `transport_limits [DIRECTORY...]` measures both transports over `NullFs` in a server
//! process of their own, and each directory given (a btrfs mount, say). Rounds are
//! interleaved, medians are printed. `LIMITS_ONLY` names a part of the workloads,
//! `LIMITS_OPTIONS` adds mount options, `LIMITS_SPREAD` a column without the spreading
//! of large reads, `LIMITS_READ_NS_PER_KIB` work to each read. `serve MOUNTPOINT OPTIONS` is the server.

mod null_fs;

use fuse::{Config, Session};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const FILES: usize = 20_000;
const ROUNDS: usize = 3;
const BIG: usize = 256 << 20;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [serve, mountpoint, options] = arguments.as_slice()
        && serve == "serve"
    {
        let mut config = Config::default();
        config.apply_options(options)?;
        Session::mount(Arc::new(null_fs::NullFs::new()), mountpoint, &config)?.run()?;
        return Ok(());
    }
    let mut targets = vec![Target::served("io_uring", "transport=uring")?];
    if std::env::var_os("LIMITS_SPREAD").is_some() {
        targets.push(Target::served("no-spread", "transport=uring,no_spread_large_reads")?);
    }
    targets.push(Target::served("classic", "transport=classic")?);
    targets.extend(arguments.iter().map(|path| Target::directory(path)));
    measure(&targets)
}

struct Target {
    name: String,
    path: PathBuf,
    server: Option<Child>,
}

impl Target {
    fn directory(path: &str) -> Target {
        Target { name: path.into(), path: path.into(), server: None }
    }

    fn served(name: &str, options: &str) -> Outcome<Target> {
        let path = std::env::temp_dir().join(format!("fuse-limits-{name}-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        let mut options = options.to_string();
        if let Ok(more) = std::env::var("LIMITS_OPTIONS") {
            options = format!("{options},{more}");
        }
        let server =
            Command::new(std::env::current_exe()?).arg("serve").arg(&path).arg(options).spawn()?;
        let parent = fs::metadata(path.parent().unwrap_or(Path::new("/")))?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::os::unix::fs::MetadataExt::dev(&fs::metadata(&path)?)
            == std::os::unix::fs::MetadataExt::dev(&parent)
        {
            if Instant::now() > deadline {
                return Err("the server did not mount".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Target { name: name.into(), path, server: Some(server) })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = Command::new("umount").arg("-l").arg(&self.path).status();
            let _ = server.wait();
            let _ = fs::remove_dir(&self.path);
        }
    }
}

type Workload = (&'static str, fn(&Path) -> Outcome<f64>);

const WORKLOADS: &[Workload] = &[
    ("create+close t1, k/s", |dir| create(dir, 1)),
    ("stat cold t1, k/s", |dir| stat_cold(dir)),
    ("open+close t1, k/s", |dir| open_close(dir)),
    ("unlink t1, k/s", |dir| unlink(dir, 1)),
    ("create+close t2, k/s", |dir| create(dir, 2)),
    ("unlink t2, k/s", |dir| unlink(dir, 2)),
    ("fsync, us", |dir| fsync(dir)),
    ("write4K buffered, k/s", |dir| small_writes(dir)),
    ("read4K O_DIRECT, k/s", |dir| direct_reads(dir)),
    ("seq write, MB/s", |dir| sequential_write(dir)),
    ("seq read cold, MB/s", |dir| sequential_read(dir, true)),
    ("seq read hot, MB/s", |dir| sequential_read(dir, false)),
];

fn measure(targets: &[Target]) -> Outcome<()> {
    print!("{:24}", "");
    targets.iter().for_each(|target| print!("{:>16}", tail(&target.name)));
    println!();
    let only = std::env::var("LIMITS_ONLY").unwrap_or_default();
    let workloads: Vec<Workload> =
        WORKLOADS.iter().copied().filter(|(name, _)| name.contains(&only)).collect();
    let mut results = vec![vec![Vec::new(); targets.len()]; workloads.len()];
    for _ in 0..ROUNDS {
        for (column, target) in targets.iter().enumerate() {
            for (row, (_, run)) in workloads.iter().enumerate() {
                results[row][column].push(run(&target.path)?);
            }
            for name in ["big", "small"] {
                let _ = fs::remove_file(target.path.join(name));
            }
        }
    }
    for (row, (name, _)) in workloads.iter().enumerate() {
        print!("{name:24}");
        for samples in &mut results[row] {
            samples.sort_by(f64::total_cmp);
            print!("{:16.1}", samples[samples.len() / 2]);
        }
        println!();
    }
    Ok(())
}

fn tail(name: &str) -> &str {
    &name[name.len().saturating_sub(15)..]
}

fn drop_caches() -> Outcome<()> {
    Ok(fs::write("/proc/sys/vm/drop_caches", "3")?)
}

/// Thousands of operations a second, over all threads.
fn rate(dir: &Path, threads: usize, one: impl Fn(PathBuf) -> Outcome<()> + Sync) -> Outcome<f64> {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let work = |thread: usize| {
            let one = &one;
            move || (0..FILES / threads).try_for_each(|i| one(dir.join(format!("f{thread}-{i}"))))
        };
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(work(thread))).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("a client panicked"))
    })?;
    Ok(FILES as f64 / begin.elapsed().as_secs_f64() / 1e3)
}

fn create(dir: &Path, threads: usize) -> Outcome<f64> {
    rate(dir, threads, |path| {
        OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(())
    })
}

fn stat_cold(dir: &Path) -> Outcome<f64> {
    drop_caches()?;
    rate(dir, 1, |path| Ok(fs::symlink_metadata(path).map(drop)?))
}

fn open_close(dir: &Path) -> Outcome<f64> {
    rate(dir, 1, |path| Ok(File::open(path).map(drop)?))
}

fn unlink(dir: &Path, threads: usize) -> Outcome<f64> {
    rate(dir, threads, |path| Ok(fs::remove_file(path)?))
}

fn small_file(dir: &Path) -> Outcome<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join("small"))?;
    if file.metadata()?.len() == 0 {
        file.write_all_at(&vec![7; 16 << 20], 0)?;
        file.sync_all()?;
    }
    Ok(file)
}

fn fsync(dir: &Path) -> Outcome<f64> {
    let file = small_file(dir)?;
    let begin = Instant::now();
    for _ in 0..10_000 {
        file.sync_all()?;
    }
    Ok(begin.elapsed().as_secs_f64() * 1e6 / 1e4)
}

/// Pseudo-random block numbers, the same for every target.
fn blocks(count: usize) -> impl Iterator<Item = u64> {
    let mut state = 88_172_645_463_325_252u64;
    (0..count).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % 4096
    })
}

fn small_writes(dir: &Path) -> Outcome<f64> {
    let file = small_file(dir)?;
    let begin = Instant::now();
    for block in blocks(20_000) {
        file.write_all_at(&[3; 4096], block * 4096)?;
    }
    Ok(20.0 / begin.elapsed().as_secs_f64())
}

fn direct_reads(dir: &Path) -> Outcome<f64> {
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(dir.join("small"))?;
    let mut room = vec![0u8; 8192];
    let at = room.as_ptr().align_offset(4096);
    let begin = Instant::now();
    for block in blocks(20_000) {
        file.read_exact_at(&mut room[at..at + 4096], block * 4096)?;
    }
    Ok(20.0 / begin.elapsed().as_secs_f64())
}

fn sequential_write(dir: &Path) -> Outcome<f64> {
    let chunk = vec![5u8; 1 << 20];
    let begin = Instant::now();
    let mut file = File::create(dir.join("big"))?;
    for _ in 0..BIG / chunk.len() {
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    Ok(BIG as f64 / 1e6 / begin.elapsed().as_secs_f64())
}

fn sequential_read(dir: &Path, cold: bool) -> Outcome<f64> {
    if cold {
        drop_caches()?;
    }
    let mut chunk = vec![0u8; 1 << 20];
    let begin = Instant::now();
    let mut file = File::open(dir.join("big"))?;
    let mut total = 0;
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            len => total += len,
        }
    }
    if total != BIG {
        return Err(format!("read {total} bytes").into());
    }
    Ok(BIG as f64 / 1e6 / begin.elapsed().as_secs_f64())
}
