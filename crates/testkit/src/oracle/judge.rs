//! The outside judges of an image: `btrfs check` and scrub; and the maker, `mkfs.btrfs`.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::command::{Report, run, sh};
use super::mount::{KernelMount, LoopDevice};

/// Makes an image of `size` bytes; `options` go to `mkfs.btrfs` as they are.
pub fn mkfs_btrfs(path: &Path, size: u64, options: &[&str]) -> Result<(), String> {
    mkfs_btrfs_devices(&[path], size, options)
}

/// Makes a volume of several images of `size` bytes each.
pub fn mkfs_btrfs_devices(paths: &[&Path], size: u64, options: &[&str]) -> Result<(), String> {
    let mut args = vec!["-q", "-f"];
    args.extend(options);
    let mut names = Vec::new();
    for path in paths {
        let made = File::create(path).and_then(|file| file.set_len(size));
        made.map_err(|error| format!("{}: {error}", path.display()))?;
        names.push(path.to_string_lossy());
    }
    args.extend(names.iter().map(|name| &**name));
    sh("mkfs.btrfs", &args).map(|_| ())
}

/// Lines in which `btrfs check` found something wrong. It ends with 0 for some of them.
fn complaints(report: &Report) -> Vec<&str> {
    const WORDS: [&str; 9] = [
        "error",
        "mismatch",
        "warning",
        "bad ",
        "invalid",
        "corrupt",
        "missing",
        "wrong",
        "unable to",
    ];
    // The line that names the image may have any word in its path.
    const FINE: [&str; 4] = [
        "no error found",
        "checking only csum",
        "error summary: no errors",
        "checking filesystem on ",
    ];
    let suspicious = |line: &&str| {
        let line = line.to_lowercase();
        WORDS.iter().any(|word| line.contains(word)) && !FINE.iter().any(|fine| line.contains(fine))
    };
    report.stdout.lines().chain(report.stderr.lines()).filter(suspicious).collect()
}

/// `btrfs check` on an image that nobody has mounted: metadata, and data against its
/// checksums. The error is what it said.
pub fn btrfs_check(image: &Path) -> Result<(), String> {
    check(&image.to_string_lossy())
}

/// As `btrfs_check`, on a volume of several images.
pub fn btrfs_check_devices(images: &[&Path]) -> Result<(), String> {
    // The other devices are found only if they are block devices.
    let attach = |image: &&Path| LoopDevice::attach(image, true);
    let devices = images.iter().map(attach).collect::<Result<Vec<_>, _>>()?;
    let Some(first) = devices.first() else { return Err("no image".to_owned()) };
    check(&first.path().to_string_lossy())
}

fn check(image: &str) -> Result<(), String> {
    check_by("btrfs", image)
}

fn check_by(program: &str, image: &str) -> Result<(), String> {
    let report = run(program, &["check", "--readonly", "--check-data-csum", image]);
    let mut complaints = complaints(&report);
    // It looks at all block devices for more of the volume's; another test's may vanish
    // meanwhile. Without one of its own it would not get far.
    complaints.retain(|line| !line.starts_with("ERROR: cannot scan /dev/loop"));
    if report.success() && complaints.is_empty() {
        return Ok(());
    }
    Err(format!("btrfs check is not content: {complaints:#?}\n{}", report.text()))
}

/// A newer `btrfs` than the machine's, which `scripts/setup.sh` puts into `target/tools`: it knows simple
/// quotas. The error says why there is none, for a test to be skipped with.
pub fn newer_btrfs() -> Result<PathBuf, String> {
    let program = tools().join("bin/btrfs-new");
    match run(&program.to_string_lossy(), &["--version"]) {
        report if report.success() => Ok(program),
        _ => Err(NO_NEWER.to_owned()),
    }
}

const NO_NEWER: &str = "no newer btrfs-progs in target/tools (scripts/setup.sh fetches it)";

/// The `mkfs.btrfs` of the same, as the beginning of a shell's command: it runs with libraries of its own. It makes
/// simple quotas and block-group trees.
pub fn newer_mkfs() -> Result<String, String> {
    let place = tools().join("btrfs-new");
    let program = place.join("usr/sbin/mkfs.btrfs");
    let inside = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
    };
    let all = inside(&place.join("usr/lib"));
    let libraries = all.iter().find(|dir| dir.join("libc.so.6").exists()).ok_or(NO_NEWER)?;
    let is_loader = |path: &&PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux-"))
    };
    let beside = inside(libraries);
    let loader = beside.iter().find(is_loader).filter(|_| program.exists()).ok_or(NO_NEWER)?;
    let [loader, libraries, program] = [loader, libraries, &program].map(|path| path.display());
    Ok(format!("{loader} --library-path {libraries} {program}"))
}

fn tools() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).join("target/tools")
}

/// As `btrfs_check`, by the newer program, which counts simple quotas as well.
pub fn newer_btrfs_check(image: &Path) -> Result<(), String> {
    check_by(&newer_btrfs()?.to_string_lossy(), &image.to_string_lossy())
}

/// Panics with the judge's words if `btrfs check` finds anything.
pub fn assert_clean(image: &Path) {
    if let Err(why) = btrfs_check(image) {
        panic!("{}: {why}", image.display());
    }
}

/// `btrfs scrub` as the beginning of a shell's command: what it keeps of a scrub goes with the
/// command, and is not left in /var/lib/btrfs for each volume that a test ever made.
pub const SCRUB: &str = "mkdir -p /var/lib/btrfs && unshare -m sh -c \
    'mount -t tmpfs none /var/lib/btrfs && exec btrfs scrub \"$@\"' scrub";

/// A full scrub of a mounted volume; all error counters must be zero.
pub fn scrub(mount: &KernelMount) -> Result<(), String> {
    let words = format!("{SCRUB} start -B -R {}", mount.path().display());
    let report = run("sh", &["-c", &words]);
    let bad = |line: &&str| {
        let Some((name, value)) = line.split_once(':') else { return false };
        let counts = name.trim().ends_with("errors") || name.trim().ends_with("discards");
        counts && value.trim().parse::<u64>() != Ok(0)
    };
    let found: Vec<_> = report.stdout.lines().filter(bad).collect();
    let scrubbed = report.stdout.contains("csum_errors");
    if report.success() && found.is_empty() && scrubbed {
        return Ok(());
    }
    Err(format!("scrub found {found:?}\n{}", report.text()))
}

/// Mounts the image with the kernel, and gives the mount to `look`.
pub fn with_kernel<T>(
    image: &Path,
    options: &str,
    look: impl FnOnce(&KernelMount) -> T,
) -> Result<T, String> {
    let mount = KernelMount::new(image, options)?;
    let seen = look(&mount);
    mount.unmount()?;
    Ok(seen)
}
