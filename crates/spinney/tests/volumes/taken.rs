//! Names that are taken when a file is to be made: all of that ends.

use btrfs_disk::checksum::ChecksumType;
use spinney::{BlockDevice, Cause, FileOptions, FormatOptions, MemDevice, Volume, VolumeOptions};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const NODE: usize = 16384;
const NAME: &[u8] = b"a-name-that-leads-nowhere";

fn writable(device: &Arc<MemDevice>) -> Volume {
    VolumeOptions::new().write(true).open_device(device.clone()).unwrap()
}

fn fresh() -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(128 << 20));
    FormatOptions::new().format(&*device).unwrap();
    device
}

/// What `work` answers, which must not take for ever.
fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(work()));
    told.recv_timeout(Duration::from_secs(120)).expect("it ends")
}

/// Entries of the name stand for an inode that is not there.
fn lead_nowhere(device: &MemDevice) {
    let (mut node, mut changed) = (vec![0; NODE], 0);
    for at in (0..device.len()).step_by(NODE) {
        device.read_at(at, &mut node).unwrap();
        // Its tree, and how high it stands in it.
        if node[88..96] != 5u64.to_le_bytes() || node[100] != 0 {
            continue;
        }
        let places: Vec<usize> = (30..NODE - NAME.len())
            // The kind of what an entry stands for; in front of the name's other place is its length.
            .filter(|at| node[*at..].starts_with(NAME) && node[at - 1] == 1)
            .collect();
        for place in &places {
            node[place - 30..place - 22].copy_from_slice(&99_999u64.to_le_bytes());
        }
        if !places.is_empty() {
            ChecksumType::Crc32c.seal(&mut node);
            device.write_at(at, &node).unwrap();
            changed += places.len();
        }
    }
    assert!(changed >= 2, "by hash and by order");
}

/// It was looked for and not found, made and found to be there, for ever.
#[test]
fn a_name_without_an_inode_is_damage() {
    let device = fresh();
    let volume = writable(&device);
    let name = std::str::from_utf8(NAME).unwrap();
    volume.write(name, b"content").unwrap();
    volume.close().unwrap();
    lead_nowhere(&device);
    let volume = writable(&device);
    assert!(!volume.exists(name).unwrap() && volume.read_dir("/").is_ok());
    let other = volume.clone();
    let told = ends(move || other.write(name, b"x")).unwrap_err();
    assert!(matches!(told.cause(), Cause::Volume(spinney::FsError::Corrupt(_))), "{told:?}");
    volume.write("another", b"x").unwrap();
    volume.close().unwrap();
}

/// What is there is not made anew, whatever else is wished.
#[test]
fn to_create_and_to_create_anew_is_to_create_anew() {
    let volume = writable(&fresh());
    volume.write("f", b"content").unwrap();
    let other = volume.clone();
    let both = FileOptions::new().write(true).create(true).create_new(true);
    let told = ends(move || both.open(&other, "f").map(drop)).unwrap_err();
    assert_eq!(told.errno(), Some(libc::EEXIST));
    assert_eq!(volume.read("f").unwrap(), b"content");
}
