//! Makes an image with a btrfs volume out of a directory.
//!
//! `build_image DIRECTORY IMAGE [MIB]`; 512 MiB if nothing is said.

use spinney::FormatOptions;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args_os().skip(1);
    let directory = words.next().ok_or("which directory?")?;
    let image = words.next().ok_or("which image?")?;
    let mib = match words.next() {
        Some(word) => word.to_string_lossy().parse::<u64>()?,
        None => 512,
    };
    let volume = FormatOptions::new().label("built").create(&image, mib << 20)?;
    volume.import(&directory, "/")?;
    let free = volume.space()?.available;
    // Here everything is committed, and an error of that is not lost.
    volume.close()?;
    println!("made, with {} MiB to spare", free >> 20);
    Ok(())
}
