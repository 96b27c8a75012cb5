//! What the program says of what is no volume, of damaged volumes and of cut ones: what it is,
//! and nothing that leads back to the same words.

mod common;

use common::{Image, MIB, failing, text};
use std::os::unix::fs::FileExt;
use testkit::oracle::TempDir;

/// Verbs that open a volume, with the word for the image at `IMAGE`.
const OPENERS: &[&[&str]] = &[
    &["check", "IMAGE"],
    &["info", "IMAGE"],
    &["df", "IMAGE"],
    &["ls", "IMAGE:/"],
    &["stat", "IMAGE:/x"],
    &["cat", "IMAGE:/x"],
    &["cp", "-r", "IMAGE:/", "OUT"],
    &["mkdir", "IMAGE:/x"],
    &["mount", "IMAGE", "DIR"],
];

fn words(verb: &[&str], image: &str, dir: &str) -> Vec<String> {
    let word = |w: &&str| w.replace("IMAGE", image).replace("OUT", &format!("{dir}/out"));
    verb.iter().map(|w| word(w).replace("DIR", dir)).collect()
}

#[test]
fn what_is_no_volume_is_not_damaged() {
    let scratch = TempDir::new("no-volume").expect("scratch");
    let dir = scratch.join("dir");
    std::fs::create_dir(&dir).expect("directory");
    for (name, len) in [("short", 100), ("zeros", 64 * MIB)] {
        let path = scratch.join(name);
        let file = std::fs::File::create(&path).expect("made");
        file.set_len(len).expect("length");
        file.write_all_at(b"#!/bin/sh", 0).expect("written");
        for verb in OPENERS {
            let words = words(verb, &path.display().to_string(), &dir.display().to_string());
            let (code, said) = failing(&words);
            assert_eq!(code, if verb[0] == "mount" { code } else { 1 }, "{words:?}: {said}");
            assert!(said.contains("not a btrfs volume"), "{words:?}: {said}");
            assert!(
                !said.contains("damaged") && !said.contains("spinney check"),
                "{words:?}: {said}"
            );
            let named = path.display().to_string();
            let first = said.lines().next().unwrap_or_default();
            assert_eq!(first.matches(&named).count(), 1, "{words:?}: named once: {said}");
        }
    }
}

/// The chunk tree is gone: nothing opens, and nobody is sent to what opens it in the same way.
#[test]
fn advice_is_not_circular() {
    let image = Image::new("circular");
    let device =
        std::fs::OpenOptions::new().read(true).write(true).open(&image.path).expect("open");
    let mut sb = [0; 4096];
    device.read_exact_at(&mut sb, 64 << 10).expect("superblock");
    // The system chunk array's first chunk item: its stripes (DUP).
    let item = 811 + 17;
    let stripes = u16::from_le_bytes([sb[item + 44], sb[item + 45]]) as usize;
    for stripe in 0..stripes {
        let at = item + 48 + stripe * 32 + 8;
        let at = u64::from_le_bytes(sb[at..at + 8].try_into().expect("8"));
        device.write_all_at(&vec![0xff; 1 << 20], at).expect("written");
    }
    let dir = image.dir.join("dir");
    std::fs::create_dir(&dir).expect("directory");
    for verb in OPENERS {
        let words = words(verb, &image.word(), &dir.display().to_string());
        let (_, said) = failing(&words);
        assert!(said.contains("damaged volume"), "{words:?}: {said}");
        let circular = ["spinney check", "spinney cp", "spinney ls", "spinney info"];
        assert!(!circular.iter().any(|w| said.contains(w)), "{words:?}: {said}");
        assert!(said.contains("dump-super --all"), "{words:?}: {said}");
    }
    let shown = common::spinney(&["dump-super", "--all", &image.word()]);
    assert!(shown.status.success(), "the advice helps: {}", text(&shown.stderr));
}
