//! What a subvolume says of where it comes from: its own UUID, that of its parent, what it was received as and
//! of which commit of the sender's.
//!
//! Told by `btrfs inspect-internal dump-tree` of the root items, by `btrfs subvolume show` on the kernel's
//! mount and by `spinney subvolume show` on the image: all three must agree.

use super::{Image, KernelMount, fine, json, sh, text};
use std::collections::BTreeMap;
use std::path::Path;

/// As the root item has it; UUIDs of zeros are `-`, as `show` tells them.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Origin {
    pub uuid: String,
    pub parent_uuid: String,
    pub received_uuid: String,
    /// Its own last change, for who sends it.
    pub ctransid: u64,
    /// That of what was sent, and the commit that received it.
    pub stransid: u64,
    pub rtransid: u64,
}

const NONE: &str = "00000000-0000-0000-0000-000000000000";

impl Origin {
    /// A line of the item in a dump.
    fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let uuid = |text: &str| if text == NONE { "-".to_owned() } else { text.to_owned() };
        match words[..] {
            ["uuid", text] => self.uuid = uuid(text),
            ["parent_uuid", text] => self.parent_uuid = uuid(text),
            ["received_uuid", text] => self.received_uuid = uuid(text),
            ["ctransid", c, "otransid", _, "stransid", s, "rtransid", r] => {
                let number = |text: &str| text.parse().expect("a number");
                (self.ctransid, self.stransid, self.rtransid) = (number(c), number(s), number(r));
            }
            _ => {}
        }
    }

    /// The same lines of `show`, where `told` is what a program says.
    fn told(told: &str) -> Origin {
        let after = |name: &str| {
            let line = told.lines().find_map(|line| line.trim().strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name} in {told}")).trim().to_owned()
        };
        Origin {
            uuid: after("UUID:"),
            parent_uuid: after("Parent UUID:"),
            received_uuid: after("Received UUID:"),
            ctransid: 0,
            stransid: after("Send transid:").parse().expect("a number"),
            rtransid: after("Receive transid:").parse().expect("a number"),
        }
    }
}

/// Of all subvolumes of an image that nobody has mounted, by UUID.
fn dumped(image: &Image) -> BTreeMap<String, Origin> {
    let dump = sh(&format!("btrfs inspect-internal dump-tree -t root {}", image.word()));
    assert!(dump.status.success(), "{}", text(&dump.stderr));
    let (mut all, mut item) = (Vec::new(), None);
    for line in text(&dump.stdout).lines() {
        if line.contains("\titem ") || line.starts_with("leaf ") {
            all.extend(item.take());
            item = line.contains(" ROOT_ITEM ").then(Origin::default);
        } else if let Some(item) = &mut item {
            Origin::read(item, line);
        }
    }
    all.extend(item);
    all.into_iter().map(|origin| (origin.uuid.clone(), origin)).collect()
}

/// Of the subvolumes `names` of an image that nobody has mounted, as all three tell them.
pub fn origins(image: &Image, names: &[String]) -> Vec<Origin> {
    let dumped = dumped(image);
    let mount = KernelMount::new(&image.path, "ro").unwrap();
    let theirs = |name: &String| {
        let path = mount.join(name);
        let shown = sh(&format!("btrfs subvolume show {}", path.display()));
        assert!(shown.status.success(), "{}", text(&shown.stderr));
        Origin::told(&text(&shown.stdout))
    };
    let theirs: Vec<Origin> = names.iter().map(theirs).collect();
    mount.unmount().unwrap();
    let both = names.iter().zip(theirs).map(|(name, theirs)| {
        let place = image.at(&format!("/{name}"));
        let ours = Origin::told(&fine(&["subvolume", "show", &place]));
        let told = json(&fine(&["subvolume", "show", "--json", &place]));
        let number = |key: &str| told[key].as_u64().unwrap_or(0);
        assert_eq!([number("stransid"), number("rtransid")], [ours.stransid, ours.rtransid]);
        assert_eq!(ours, theirs, "{name}, shown by us and by the kernel's tools");
        let dumped = dumped.get(&theirs.uuid).expect("it has a root item").clone();
        assert_eq!(Origin { ctransid: 0, ..dumped.clone() }, theirs, "{name}, in its root item");
        dumped
    });
    both.collect()
}

/// `got` was received as what `sent` is, upon `parent`.
pub fn assert_received(sent: &Origin, got: &Origin, parent: Option<&Origin>, what: &str) {
    assert!(sent.uuid != "-" && sent.ctransid > 0 && got.rtransid > 0, "{what}: {sent:?} {got:?}");
    let came_as = (&got.received_uuid, got.stransid);
    assert_eq!(came_as, (&sent.uuid, sent.ctransid), "{what}: {sent:?} {got:?}");
    let parent = parent.map_or("-", |parent| parent.uuid.as_str());
    assert_eq!(got.parent_uuid, parent, "{what}: {got:?}");
    assert_ne!(got.uuid, sent.uuid, "{what}");
}

/// Where the files below `dir` have content, and where holes.
pub fn content_map(dir: &Path) -> String {
    let script = r#"
import os, stat, sys
for place, dirs, files in os.walk(sys.argv[1]):
    dirs.sort()
    for path in sorted(os.path.join(place, name) for name in files):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            continue
        file, at, found = os.open(path, os.O_RDONLY), 0, []
        try:
            while True:
                begin = os.lseek(file, at, os.SEEK_DATA)
                at = os.lseek(file, begin, os.SEEK_HOLE)
                found.append((begin, at))
        except OSError:
            pass
        os.close(file)
        print(os.path.relpath(path, sys.argv[1]), found)
"#;
    let mut command = std::process::Command::new("python3");
    let output = command.args(["-c", script]).arg(dir).output().expect("python3 runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}
