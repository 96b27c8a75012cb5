//! The kernel's btrfs as a partner: mounts whose complaints in the kernel log count.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use testkit::oracle::{KernelMount, sh};

/// The kernel's log from a moment on.
struct KernelLog(Option<File>);

impl KernelLog {
    fn from_now() -> KernelLog {
        let open = || -> std::io::Result<File> {
            let mut options = File::options();
            let mut file = options.read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg")?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        };
        let log = open().inspect_err(|error| println!("SKIPPED: the kernel log: {error}"));
        KernelLog(log.ok())
    }

    /// Warnings and worse that name `device`, and stack traces out of btrfs.
    fn complaints(&mut self, device: &str) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(line) = self.next() {
            let level = line.split(',').next().and_then(|n| n.parse::<u32>().ok()).unwrap_or(7);
            let text = line.split_once(';').map_or("", |(_, text)| text);
            let ours =
                [")", " "].iter().any(|end| text.contains(&format!("(device {device}{end}")));
            let trace = text.contains("fs/btrfs/") && text.contains("WARNING");
            if (ours && level & 7 <= 4) || trace || text.contains("kernel BUG") {
                found.push(text.to_owned());
            }
        }
        found
    }

    fn next(&mut self) -> Option<String> {
        let mut buf = [0; 8192];
        loop {
            match self.0.as_mut()?.read(&mut buf) {
                Ok(len) => return Some(String::from_utf8_lossy(&buf[..len]).into_owned()),
                // Overwritten before it was read: go on with what is there.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }
}

/// Lets the kernel mount `image`; panics if it complains of anything from the mount to the
/// end of the unmount.
pub fn kernel<T>(image: &Path, options: &str, use_it: impl FnOnce(&KernelMount) -> T) -> T {
    kernel_but(image, options, &[], use_it)
}

/// The same, where complaints with one of the texts `known` are no concern of ours.
pub fn kernel_but<T>(
    image: &Path,
    options: &str,
    known: &[&str],
    use_it: impl FnOnce(&KernelMount) -> T,
) -> T {
    let mut log = KernelLog::from_now();
    let mount = KernelMount::new(image, options).expect("the kernel mounts the volume");
    let device = mount.device().file_name().expect("a device").to_string_lossy().into_owned();
    let counted = has_quotas(&device);
    let result = use_it(&mount);
    let counted = counted || has_quotas(&device);
    mount.unmount().expect("unmount");
    let mut complaints = log.complaints(&device);
    complaints.retain(|line| !known.iter().any(|text| line.contains(text)));
    // A trace names no volume, and other tests let the kernel take groups apart that it counts wrong itself.
    if !counted {
        complaints.retain(|line| !line.contains("fs/btrfs/qgroup.c"));
    }
    let is_trace = |line: &String| !line.contains("(device ");
    if std::env::var_os("SPINNEY_BESIDE").is_some()
        && let Some(trace) = complaints.iter().find(|line| is_trace(line)).map(|line| first(line))
    {
        complaints.retain(|line| !is_trace(line));
        let why = format!("{trace}: a trace of the kernel's, perhaps of another program's volume");
        testkit::oracle::record_skip(file!(), &why);
    }
    assert!(complaints.is_empty(), "the kernel complains: {complaints:#?}");
    result
}

fn first(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn has_quotas(device: &str) -> bool {
    let volumes = std::fs::read_dir("/sys/fs/btrfs").into_iter().flatten().flatten();
    volumes
        .map(|volume| volume.path())
        .any(|path| path.join("devices").join(device).exists() && path.join("qgroups").exists())
}

/// Runs `btrfs` with `args`, each of which may be a path below the mount if it begins
/// with `/`.
pub fn btrfs(mount: &KernelMount, args: &[&str]) {
    let below = |arg: &&str| match arg.strip_prefix('/') {
        Some(name) => mount.join(name).to_string_lossy().into_owned(),
        None => (*arg).to_owned(),
    };
    let args: Vec<String> = args.iter().map(below).collect();
    sh("btrfs", &args).expect("btrfs does as it is told");
}
