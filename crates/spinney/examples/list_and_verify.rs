//! Lists everything in a volume, then reads it all and says whether it is whole.
//!
//! `list_and_verify IMAGE`; ends with 1 if something is damaged.

use std::process::ExitCode;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let image = std::env::args_os().nth(1).ok_or("which image?")?;
    let volume = spinney::Volume::open(&image)?;
    for entry in volume.walk("/")? {
        let entry = entry?;
        let about = entry.metadata();
        println!(
            "{:06o} {:>5}:{:<5} {:>10} {}",
            about.mode(),
            about.uid(),
            about.gid(),
            about.len(),
            entry.path().display()
        );
    }
    volume.close()?;

    let report = spinney::check(&image, true)?;
    for finding in &report.findings {
        eprintln!("{:?}: {}", finding.severity, finding.message);
    }
    eprintln!("{} bytes of content verified", report.verified_bytes);
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
