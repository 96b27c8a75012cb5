//! Mounts the in-memory reference model, to try the transport by hand:
//! `serve_model MOUNTPOINT [OPTIONS] [IMAGE]`, options as after `mount -o`. With an
//! image the mount is of type `fuseblk`. Unmounting ends the program.

use fuse::{Config, Session, Source};
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mountpoint = arguments.next().ok_or("which mount point?")?;
    let mut config = Config::default();
    config.apply_options(&arguments.next().unwrap_or_default())?;
    if let Some(image) = arguments.next() {
        config.source = Source::Image(image.into());
    }
    let session = Session::mount(Arc::new(testkit::RefFs::new()), &mountpoint, &config)?;
    println!("{} over {}", mountpoint, session.transport());
    session.run()?;
    Ok(())
}
