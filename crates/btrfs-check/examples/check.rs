//! Checks an image: `cargo run -p btrfs-check --example check -- disk.img [--data]`.

use blockdev::FileDevice;
use btrfs_check::{CheckOptions, check};
use btrfs_volume::{OpenOptions, Volume};
use std::path::Path;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("which image?")?;
    let device = Arc::new(FileDevice::open(Path::new(&path), true, true)?);
    let open = OpenOptions { read_only: true, ignore_log: true, ..OpenOptions::default() };
    let volume = Arc::new(Volume::open(device, open)?);
    let verify_data = args.any(|arg| arg == "--data");
    let report = check(volume, &CheckOptions { verify_data, ..CheckOptions::default() })?;
    for finding in &report.findings {
        println!("{}: {finding}", finding.severity.name());
    }
    println!("{:?}", report.totals);
    std::process::exit(i32::from(!report.is_clean()));
}
