//! What a command that fails, or is done at a bad moment, must not take away: content that somebody was told is
//! written, and what was there before.

mod common;

use common::mount::{Mount, TRANSPORTS, lacks_fuse};
use common::{Image, assert_clean, fine};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use testkit::require;

/// Writes to a file that stays open, and by a map, and closes and syncs nothing until it is told to end. A process
/// that it forked would do so for it.
const WRITER: &str = r#"if 1:
    import mmap, os, sys
    kept = os.open("kept", os.O_RDWR | os.O_CREAT)
    os.write(kept, b"k" * 100000)
    mapped = os.open("mapped", os.O_RDWR | os.O_CREAT)
    os.ftruncate(mapped, 8192)
    memory = mmap.mmap(mapped, 8192)
    memory[:] = b"m" * 8192
    print("written", flush=True)
    sys.stdin.read()
    "#;

#[test]
fn what_becomes_read_only_has_what_the_kernel_kept_of_it() {
    require!(btrfs_progs);
    require!(fuse);
    for transport in TRANSPORTS.into_iter().filter(|transport| !lacks_fuse(transport)) {
        for options in ["", ",writeback"] {
            let image = Image::new("kept-read-only");
            let mount = Mount::new(&image, &format!("transport={transport}{options}"));
            let sub = mount.join("sub");
            let word = sub.display().to_string();
            fine(&["subvolume", "create", &word]);
            let mut writer = Command::new("python3")
                .args(["-c", WRITER])
                .current_dir(&sub)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut said = String::new();
            BufReader::new(writer.stdout.take().unwrap()).read_line(&mut said).unwrap();
            assert_eq!(said, "written\n");
            fine(&["property", "set", &word, "ro", "true"]);
            drop(writer.stdin.take());
            assert!(writer.wait().unwrap().success());
            mount.umount();
            let content = |path: &str| fine(&["cat", &image.at(path)]);
            assert!(content("/sub/kept") == "k".repeat(100_000), "{transport}{options}");
            assert!(content("/sub/mapped") == "m".repeat(8192), "{transport}{options}");
            assert_clean(&image.path);
        }
    }
}
