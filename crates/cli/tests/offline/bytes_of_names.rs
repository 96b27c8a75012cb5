//! Names that are no text: as bytes where they are listed, and as `KEY_hex` in JSON; and mount points.

use crate::common;
use common::{Image, PROGRAM, fine, json, sh, spinney, text};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use testkit::oracle::TempDir;
use testkit::require;

const NAME: &[u8] = b"caf\xe9";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that a command must write, and no replacement for any.
fn told(words: &[OsString]) -> Vec<u8> {
    let done = spinney(words);
    assert!(done.status.success(), "{words:?}: {}", text(&done.stderr));
    done.stdout
}

fn has(told: &[u8], bytes: &[u8]) -> bool {
    told.windows(bytes.len()).any(|window| window == bytes)
}

#[test]
fn names_that_are_no_text_are_told_as_they_are() {
    let scratch = TempDir::new("bytes-of-names").expect("scratch");
    let image = scratch.join("image").display().to_string();
    let made = sh(&format!(
        "cd {} && mkdir from && head -c 9000 /dev/urandom > \"from/$(printf 'caf\\351')\" && cd from &&
         {PROGRAM} mkfs -q -s 128M --rootdir . {image}",
        scratch.path().display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let path = [image.as_bytes(), b":/", NAME].concat();
    let words = |verb: &str, last: &[u8]| -> Vec<OsString> {
        let verb = verb.split(' ').map(OsString::from);
        verb.chain([OsString::from_vec(last.to_vec())]).collect()
    };
    let top = format!("{image}:/");
    let ino = json(text(&told(&words("find --json", &path))).trim())["ino"].to_string();
    fine(&words("verity enable", &path));
    let inode = format!("inspect-internal inode-resolve {ino}");
    for verb in ["filesystem du", "filesystem defragment -v -r", "verity measure", &inode] {
        let last = if verb.starts_with("filesystem") { top.as_bytes() } else { &path };
        let last = if verb == inode { image.as_bytes() } else { last };
        let out = spinney(&words(verb, last)).stdout;
        assert!(has(&out, &path), "{verb}: {}", text(&out));
    }
    let du = json(&text(&told(&words("filesystem du --json", top.as_bytes()))));
    let hexes: Vec<_> =
        du.as_array().expect("rows").iter().filter_map(|r| r.get("path_hex")).collect();
    assert_eq!(hexes, [&hex(&path)]);
    let measured = json(&text(&told(&words("verity measure --json", &path))));
    assert_eq!(measured["files"][0]["path_hex"], hex(&path).as_str());
    let found = json(&text(&told(&words(&format!("{inode} --json"), image.as_bytes()))));
    assert_eq!(found["paths_hex"][0], hex(&path).as_str());
}

/// Anybody's, and ours: what a mount needs of the kernel's table it finds there. In a mount namespace of its own, for
/// other tests read that table as text.
#[test]
fn mount_points_need_not_be_text() {
    require!(fuse);
    require!(kernel_btrfs);
    let image = Image::new("no-text");
    let (dir, word) = (image.dir.path().display(), image.word());
    for options in ["transport=classic", "transport=classic,plain"] {
        let script = format!(
            "set -ex; cd {dir}; ours=$(printf 'ours\\344'); theirs=$(printf 'theirs\\377')
            mkdir -p $ours $theirs kernel; mount -t tmpfs none $theirs
            SPINNEY_LOG=debug {PROGRAM} mount -q --log log -o {options} {word} $ours
            touch $ours/file; {PROGRAM} umount $ours
            mount -o loop,ro {word} kernel; {PROGRAM} ls {word}:/; umount kernel"
        );
        let script =
            format!("unshare -m --propagation private sh -c '{}'", script.replace('\'', "'\\''"));
        let done = sh(&script);
        assert!(done.status.success(), "{}", text(&done.stderr));
        assert_eq!(text(&done.stdout), "file\n");
        let log = std::fs::read_to_string(image.dir.join("log")).unwrap();
        assert!(
            log.contains("is closed") && !log.contains("no way to end the connection"),
            "{log}"
        );
    }
}
