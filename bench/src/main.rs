//! `spinney-bench`: the command line, and the engine that its library side opens;
//! everything else is in the library, which knows no format.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use vfs::FileSystem;

fn main() -> ExitCode {
    spinney_bench::cli::main(std::env::args().skip(1).collect(), Some(open_image))
}

/// As a mount would open it: all options are the engine's own choice.
fn open_image(image: &Path) -> io::Result<Arc<dyn FileSystem>> {
    let device = blockdev::FileDevice::open(image, false, false)?;
    let opened = btrfs_fs::BtrfsFs::open_device(Arc::new(device), btrfs_fs::Options::default());
    Ok(Arc::new(opened.map_err(|e| io::Error::other(e.to_string()))?))
}
