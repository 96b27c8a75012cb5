//! Copies into a volume from directories of this machine that change meanwhile.

use spinney::tree::{CopyRules, Transfer, TransferEvent};
use spinney::{FormatOptions, MemDevice, Volume, VolumeOptions};
use std::cell::Cell;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use testkit::oracle::TempDir;

fn fresh() -> Volume {
    let device = Arc::new(MemDevice::new(256 << 20));
    FormatOptions::new().format(&*device).unwrap();
    VolumeOptions::new().write(true).open_device(device).unwrap()
}

const FILES: [&str; 5] = ["a", "b", "c", "d", "s/x"];

fn make(dir: &Path, content: &str) {
    fs::create_dir_all(dir.join("s")).unwrap();
    fs::create_dir(dir.join("t")).unwrap();
    for name in FILES.into_iter().chain(["t/y"]) {
        fs::write(dir.join(name), content).unwrap();
    }
}

/// Whoever owns the directory that is merged can put a link to another one at its name.
#[test]
fn what_is_merged_from_a_directory_comes_from_that_one() {
    for rules in [CopyRules::SAME, CopyRules { preserve: false, ..CopyRules::SAME }] {
        let volume = fresh();
        volume.create_dir_all("d/sub/s").unwrap();
        for name in ["a", "d"] {
            volume.write(format!("d/sub/{name}"), b"before").unwrap();
        }
        let before = volume.find(b"d/sub", true).unwrap().attr.perm;
        let dir = TempDir::new("merged-swapped").unwrap();
        let [host, away, other] = ["d", "away", "other"].map(|name| dir.join(name));
        make(&host.join("sub"), "theirs");
        make(&other, "secret");
        fs::set_permissions(&other, Permissions::from_mode(0o711)).unwrap();
        fs::set_permissions(host.join("sub"), Permissions::from_mode(0o750)).unwrap();
        let swapped = Cell::new(false);
        let swap = |event: &TransferEvent<'_>| {
            let TransferEvent::Progress { path, .. } = event else { return };
            if path.ends_with("sub/b") && !swapped.replace(true) {
                fs::rename(host.join("sub"), &away).unwrap();
                symlink(&other, host.join("sub")).unwrap();
            }
        };
        let transfer = Transfer::new(&volume, rules).on_event(swap);
        let node = volume.find(b"d", true).unwrap();
        transfer.import_into(&host, &node, b"d").unwrap();
        assert!(swapped.get());
        for name in FILES.into_iter().chain(["t/y"]) {
            let content = volume.read(format!("d/sub/{name}")).unwrap();
            assert_eq!(content, b"theirs", "{name}: {}", content.escape_ascii());
        }
        let perm = volume.find(b"d/sub", true).unwrap().attr.perm;
        assert_eq!(perm, if rules.preserve { 0o750 } else { before });
    }
}

/// It is written while it would be read, and grows with each byte that is copied, so it would never end.
#[test]
fn the_image_is_not_copied_into_itself() {
    let top = TempDir::new("into-itself").unwrap();
    make(&top.join("d"), "content");
    for name in ["out.img", "d/out.img"] {
        let image = top.join(name);
        let volume = FormatOptions::new().create(&image, 256 << 20).unwrap();
        volume.import(top.path(), "/").unwrap();
        // It is known as the file that is open, whatever it is called by now.
        fs::rename(&image, top.join("d/moved")).unwrap();
        volume.import(top.path(), "/").unwrap();
        for file in FILES.into_iter().chain(["t/y"]) {
            assert_eq!(volume.read(format!("d/{file}")).unwrap(), b"content", "{file}");
        }
        for image in [name, "d/moved"] {
            assert!(!volume.exists(image).unwrap(), "{image}");
        }
        drop(volume);
        fs::remove_file(top.join("d/moved")).unwrap();
    }
}

/// The top is what the caller names, also by a link.
#[test]
fn what_a_link_that_is_named_leads_to_is_merged() {
    let volume = fresh();
    volume.create_dir("d").unwrap();
    let dir = TempDir::new("merged-link").unwrap();
    let (host, link) = (dir.join("d"), dir.join("link"));
    make(&host, "content");
    symlink("d", &link).unwrap();
    for (from, content) in [(link.clone(), "one"), (link.join("."), "two")] {
        fs::write(host.join("t/y"), content).unwrap();
        volume.import(&from, "d").unwrap();
        assert_eq!(volume.read("d/t/y").unwrap(), content.as_bytes());
    }
    // By its own name it is the link, and with a slash behind that what it leads to.
    let (root, transfer) = (volume.root().unwrap(), Transfer::new(&volume, CopyRules::SAME));
    transfer.import(&link, &root, b"l", b"l").unwrap();
    assert_eq!(volume.read_link("l").unwrap(), Path::new("d"));
    for _ in 0..2 {
        transfer.import(Path::new(&format!("{}/", link.display())), &root, b"e", b"e").unwrap();
        assert_eq!(volume.read("e/s/x").unwrap(), b"content");
    }
}
