//! A subvolume of a mount that is being sent: its server holds it as the kernel does.

use crate::common;
use common::mount::{Mount, TRANSPORTS, gone, lacks_fuse};
use common::{Image, PROGRAM, eventually, failing, fine, spinney};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use testkit::require;

/// More than a pipe takes.
const CONTENT: usize = 4 << 20;

/// Sends until somebody reads on.
fn begin(words: &[&str]) -> Child {
    let mut child = Command::new(PROGRAM)
        .args(["send", "-q"])
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The first bytes come behind the hold.
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 64]).unwrap();
    child
}

/// A mount with read-only snapshots.
fn mounted(name: &str, transport: &str) -> (Image, Mount) {
    let image = Image::new(name);
    let mount = Mount::new(&image, &format!("transport={transport}"));
    fine(&["subvolume", "create", &mount.join("v").display().to_string()]);
    for (number, snapshot) in ["parent", "s"].into_iter().enumerate() {
        std::fs::write(mount.join("v/file"), vec![number as u8; CONTENT]).unwrap();
        let [from, to] = ["v", snapshot].map(|name| mount.join(name).display().to_string());
        fine(&["subvolume", "snapshot", "-r", &from, &to]);
    }
    (image, mount)
}

fn refuses(place: &str) {
    for words in [&["subvolume", "delete", place][..], &["property", "set", place, "ro", "false"]] {
        let (code, told) = failing(words);
        assert!(code == 1 && told.contains("operation not permitted"), "{words:?}: {told}");
    }
}

/// It was deleted, and the stream ended with an error.
#[test]
fn what_is_sent_is_held_until_it_is() {
    require!(fuse);
    require!(btrfs_progs);
    for transport in TRANSPORTS {
        if lacks_fuse(transport) {
            continue;
        }
        let (image, mount) = mounted("held", transport);
        let [parent, s] = ["parent", "s"].map(|name| mount.join(name).display().to_string());
        let mut sends = begin(&["-p", &parent, &s]);
        refuses(&s);
        refuses(&parent);
        fine(&["property", "set", &s, "ro", "true"]);
        let mut rest = Vec::new();
        sends.stdout.as_mut().unwrap().read_to_end(&mut rest).unwrap();
        assert!(sends.wait().unwrap().success() && rest.len() > CONTENT);
        // At once.
        fine(&["property", "set", &parent, "ro", "false"]);
        fine(&["subvolume", "delete", &s, &parent]);
        mount.umount();
        gone(&image);
    }
}

#[test]
fn who_is_killed_holds_nothing() {
    require!(fuse);
    require!(btrfs_progs);
    let (image, mount) = mounted("held-killed", "classic");
    let s = mount.join("s").display().to_string();
    let mut sends = begin(&[&s]);
    refuses(&s);
    sends.kill().unwrap();
    sends.wait().unwrap();
    eventually("it is held no more", || spinney(&["subvolume", "delete", &s]).status.success());
    mount.umount();
    gone(&image);
}
