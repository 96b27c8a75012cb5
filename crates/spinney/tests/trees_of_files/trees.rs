//! Trees in, out and inside; and losses, which are told or end the copy.

use blocksim::{Image, SimDevice};
use parking_lot::Mutex;
use spinney::tree::{CopyRules, Transfer, TransferEvent, TreeCopy};
use spinney::{BlockDevice, FormatOptions, Volume, VolumeOptions};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::Arc;
use testkit::oracle::TempDir;

fn fresh() -> (Arc<SimDevice>, Volume) {
    let device = Arc::new(SimDevice::new(Image::zeros(256 << 20)));
    FormatOptions::new().format(&*device).unwrap();
    let volume = VolumeOptions::new().write(true).open_device(device.clone()).unwrap();
    (device, volume)
}

#[test]
fn a_tree_comes_back_as_it_went() {
    let dir = TempDir::new("lib-trees").unwrap();
    let from = dir.join("from");
    fs::create_dir_all(from.join("a/b")).unwrap();
    fs::write(from.join("a/f"), vec![9; 100_000]).unwrap();
    fs::hard_link(from.join("a/f"), from.join("a/b/again")).unwrap();
    symlink("a/f", from.join("link")).unwrap();
    let (_, volume) = fresh();
    volume.create_dir("in").unwrap();
    volume.import(&from, "in").unwrap();
    // Once more, over what is there.
    volume.import(&from, "in").unwrap();
    assert_eq!(volume.metadata("in/a/f").unwrap().nlink(), 2);
    let out = dir.join("out");
    volume.export("in", &out).unwrap();
    assert_eq!(fs::read(out.join("link")).unwrap(), vec![9; 100_000]);
    let (there, here) = (fs::metadata(from.join("a/f")), fs::metadata(out.join("a/f")));
    let (there, here) = (there.unwrap(), here.unwrap());
    assert_eq!((here.nlink(), here.mtime_nsec()), (2, there.mtime_nsec()));
    assert!(volume.import(dir.join("none"), "in").is_err());
}

#[test]
fn a_transfer_tells_how_far_it_is() {
    let dir = TempDir::new("lib-events").unwrap();
    fs::write(dir.join("f"), vec![1; 3 << 20]).unwrap();
    let (_, volume) = fresh();
    let most = Mutex::new(0);
    let transfer = Transfer::new(&volume, CopyRules::SAME).on_event(|event| {
        if let TransferEvent::Progress { bytes, .. } = event {
            *most.lock() = *bytes;
        }
    });
    transfer.import_into(dir.path(), &volume.root().unwrap(), b"/").unwrap();
    assert_eq!(*most.lock(), 3 << 20);
}

#[test]
fn trees_are_copied_between_volumes() {
    let (_, from) = fresh();
    from.create_dir_all("a/b").unwrap();
    from.write("a/b/f", b"content").unwrap();
    from.set_xattr("a/b/f", "user.k", b"v").unwrap();
    let (_, to) = fresh();
    let (node, top) = (from.find(b"/a", true).unwrap(), to.root().unwrap());
    let mut copy = TreeCopy::new(&from, &to, CopyRules::SAME);
    copy.entry(node, b"/a", &top, b"copy", b"/copy".to_vec()).unwrap();
    assert_eq!(to.read("copy/b/f").unwrap(), b"content");
    assert_eq!(to.xattr("copy/b/f", "user.k").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn damaged_content_is_an_error_or_a_loss_and_never_content() {
    let (device, volume) = fresh();
    volume.write("f", &vec![0x5a; 64 << 10]).unwrap();
    volume.write("g", b"sound").unwrap();
    volume.close().unwrap();
    let mut all = vec![0; device.len() as usize];
    device.read_at(0, &mut all).unwrap();
    let at = all.windows(4096).position(|w| w.iter().all(|b| *b == 0x5a)).expect("the content");
    device.write_at(at as u64 + 8192, &[0; 16]).unwrap();

    let volume = VolumeOptions::new().open_device(device.clone()).unwrap();
    assert!(volume.read("f").unwrap_err().is_damage());
    let report = volume.check(true).unwrap();
    assert!(!report.is_clean() && report.findings.iter().all(|f| !f.message.is_empty()));
    let dir = TempDir::new("lib-losses").unwrap();
    assert!(volume.export("/", dir.join("whole")).is_err());

    let told = Arc::new(Mutex::new(Vec::new()));
    let teller = told.clone();
    volume.on_loss(move |loss| teller.lock().push((loss.path.to_vec(), loss.range)));
    volume.export("/", dir.join("rest")).unwrap();
    assert_eq!(*told.lock(), [(b"/f".to_vec(), Some((8192, 4096)))]);
    assert_eq!(fs::read(dir.join("rest/g")).unwrap(), b"sound");
    assert_eq!(fs::read(dir.join("rest/f")).unwrap()[..8192], [0x5a; 8192]);
}

/// As with the kernel: what is no directory gets no name with a `/` behind.
#[test]
fn a_slash_behind_stands_for_a_directory() {
    let (_, volume) = fresh();
    volume.write("f", b"x").unwrap();
    volume.create_dir("d/").unwrap();
    assert!(volume.write("new/", b"x").is_err());
    assert!(volume.rename("f", "new/").is_err() && volume.rename("f/", "new").is_err());
    assert!(volume.hard_link("f", "new/").is_err() && volume.symlink("f", "new/").is_err());
    assert!(volume.remove_file("f/").is_err());
    volume.rename("d/", "e/").unwrap();
    let entries = volume.read_dir("").unwrap();
    let names: Vec<_> = entries.iter().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["e", "f"]);
    volume.close().unwrap();
}
