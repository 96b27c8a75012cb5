//! Volumes on simulated devices: made, opened by who writes, and as the next program sees them.

use blocksim::{Image, SimDevice};
use spinney::{FormatOptions, Volume, VolumeOptions};
use std::sync::Arc;

pub fn device() -> Arc<SimDevice> {
    let device = Arc::new(SimDevice::new(Image::zeros(256 << 20)));
    FormatOptions::new().format(&*device).unwrap();
    device
}

pub fn writable(device: &Arc<SimDevice>) -> Volume {
    VolumeOptions::new().write(true).open_device(device.clone()).unwrap()
}

/// The volume that is on `image`, as the next program sees it.
pub fn seen(image: Image) -> Volume {
    VolumeOptions::new().open_device(Arc::new(SimDevice::new(image))).unwrap()
}
