//! The commands that look at volumes without mounting them, run as a user runs them.
//!
//! No privileges are needed; `btrfs check` is asked too where it is installed.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Output};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("spinney-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("scratch directory");
        Scratch(dir)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn spinney(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_spinney")).args(words).output().expect("spinney runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Standard output of a command that must succeed.
fn fine(words: &[&str]) -> String {
    let output = spinney(words);
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "{words:?}");
    text(&output.stdout)
}

/// Exit code, standard output, standard error.
fn failing(words: &[&str]) -> (i32, String, String) {
    let output = spinney(words);
    (output.status.code().expect("exit code"), text(&output.stdout), text(&output.stderr))
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn a_new_volume_is_what_was_asked_for() {
    let scratch = Scratch::new("new");
    let image = scratch.path("disk.img");
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    fine(&["mkfs", "--size", "300M", "-L", "hallo", "-U", uuid, "--csum", "xxhash", &image]);
    let info = json(&fine(&["info", "--json", &image]));
    assert_eq!(info["label"], "hallo");
    assert_eq!(info["uuid"], uuid);
    assert_eq!(info["total_bytes"], 300 << 20);
    assert_eq!(info["checksum"], "xxhash64");
    assert_eq!(info["subvolumes"], 1);
    assert_eq!(info["profiles"]["metadata"], "dup");
    assert_eq!(info["writable"], true);
    assert!(fine(&["info", &image]).contains("hallo"));
    let report = json(&fine(&["check", "--json", "--data", &image]));
    assert_eq!(report["clean"], true);
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(0));
    assert!(fine(&["check", &image]).contains("no damage found"));
    match Command::new("btrfs").args(["check", &image]).output() {
        Ok(theirs) => assert!(theirs.status.success(), "{}", text(&theirs.stdout)),
        Err(e) => println!("SKIPPED: btrfs check: {e}"),
    }
}

#[test]
fn features_can_be_chosen() {
    let scratch = Scratch::new("features");
    let image = scratch.path("disk.img");
    fine(&["mkfs", "-s", "200M", "-O", "block-group-tree", "-n", "8K", "-m", "single", &image]);
    let info = json(&fine(&["info", "--json", &image]));
    assert_eq!(info["node_size"], 8192);
    assert_eq!(info["profiles"]["metadata"], "single");
    let features = info["features"].as_array().expect("features");
    assert!(features.contains(&"block_group_tree".into()), "{features:?}");
    fine(&["check", &image]);
    let made = json(&fine(&["mkfs", "-f", "--mixed", "--json", "-O", "^no-holes", &image]));
    assert_eq!(made["node_size"], 4096);
    let info = json(&fine(&["info", "--json", &image]));
    assert_eq!(info["profiles"]["data+metadata"], "single");
    assert!(!info["features"].as_array().expect("features").contains(&"no_holes".into()));
    fine(&["check", &image]);
}

#[test]
fn space_adds_up() {
    let scratch = Scratch::new("df");
    let image = scratch.path("disk.img");
    fine(&["mkfs", "-s", "1G", &image]);
    let df = json(&fine(&["df", "--json", &image]));
    let info = json(&fine(&["info", "--json", &image]));
    let chunks = df["chunks"].as_array().expect("chunks");
    let sum = |member: &str| chunks.iter().map(|c| c[member].as_u64().expect(member)).sum::<u64>();
    assert_eq!(sum("used_bytes"), info["bytes_used"].as_u64().unwrap());
    assert_eq!(sum("device_bytes"), info["allocated_bytes"].as_u64().unwrap());
    let unallocated = df["unallocated_bytes"].as_u64().unwrap();
    assert_eq!(sum("device_bytes") + unallocated, 1 << 30);
    assert!(fine(&["df", &image]).contains("metadata, dup"));
    assert!(fine(&["df", "-b", &image]).contains("1073741824"));
}

#[test]
fn trees_and_superblocks_are_printed() {
    let scratch = Scratch::new("dump");
    let image = scratch.path("disk.img");
    fine(&["mkfs", "-s", "300M", &image]);
    let all = fine(&["dump-tree", &image]);
    for tree in ["root", "chunk", "extent", "dev", "fs", "csum", "free-space", "data-reloc"] {
        assert!(all.contains(&format!("tree {tree} at ")), "{tree} is missing:\n{all}");
    }
    assert!(all.contains("(256 INODE_ITEM 0)") && !all.contains("malformed"));
    let fs = fine(&["dump-tree", "-t", "5", "--json", &image]);
    let items: Vec<_> = fs.lines().map(json).collect();
    assert_eq!(items[0]["type"], "INODE_ITEM");
    let node = items[0]["node"].to_string();
    assert!(fine(&["dump-tree", "-b", &node, &image]).contains(&format!("leaf {node} level 0")));
    assert!(!fine(&["dump-tree", "-t", "fs", "--headers", &image]).contains("  item "));
    let supers = json(&fine(&["dump-super", "--all", "--json", &image]));
    assert_eq!(supers.as_array().map(Vec::len), Some(2));
    assert_eq!(supers[0]["root"], supers[1]["root"]);
    assert_eq!(fine(&["dump-super", &image]).matches("superblock at").count(), 1);
}

#[test]
fn damage_is_found_and_told() {
    let scratch = Scratch::new("damage");
    let image = scratch.path("disk.img");
    fine(&["mkfs", "-s", "300M", "-m", "single", &image]);
    let items = fine(&["dump-tree", "-t", "fs", "--json", &image]);
    let node = json(items.lines().next().expect("items"))["node"].as_u64().expect("address");
    // Found by its own header, wherever its chunk lies on the device.
    let bytes = std::fs::read(&image).expect("image");
    let block = bytes.chunks(4096).position(|b| b[48..56] == node.to_le_bytes()).expect("node");
    let file = std::fs::OpenOptions::new().write(true).open(&image).expect("image");
    file.write_all_at(b"damage", block as u64 * 4096 + 2000).expect("written");
    let (code, out, _) = failing(&["check", "--json", &image]);
    let report = json(&out);
    assert_eq!((code, &report["clean"]), (1, &false.into()));
    let finding = &report["findings"][0];
    assert_eq!(finding["kind"], "node-unreadable");
    assert_eq!(finding["logical"], node);
    assert!(finding["remedy"].as_str().is_some_and(|r| !r.is_empty()));
    let (code, out, _) = failing(&["check", &image]);
    assert!(code == 1 && out.contains("What to do:") && out.contains("1 error, "), "{out}");
    // The rest can still be printed.
    let (code, out, err) = failing(&["dump-tree", &image]);
    assert!(code == 1 && out.contains("tree data-reloc"), "{out}");
    assert!(err.contains(&image) && err.contains(&format!("logical {node}")), "{err}");
    assert!(err.contains("spinney check"), "{err}");
    // A volume without a superblock.
    file.write_all_at(&[0; 4096], 64 << 10).expect("written");
    file.write_all_at(&[0; 4096], 64 << 20).expect("written");
    let (code, _, err) = failing(&["check", &image]);
    assert!(code == 1 && err.contains("dump-super --all") && err.contains("not a btrfs"), "{err}");
    let (code, out, _) = failing(&["dump-super", "--all", &image]);
    assert!(code == 1 && out.matches("not valid").count() == 2, "{out}");
}

#[test]
fn nothing_is_overwritten_without_being_told_to() {
    let scratch = Scratch::new("force");
    let image = scratch.path("disk.img");
    let (code, _, err) = failing(&["mkfs", &image]);
    assert!(code == 1 && err.contains("--size"), "{err}");
    let (code, _, err) = failing(&["mkfs", "-s", "1M", &image]);
    assert!(code == 1 && err.contains("minimum") && !PathBuf::from(&image).exists(), "{err}");
    fine(&["mkfs", "-s", "200M", "-L", "first", &image]);
    let (code, _, err) = failing(&["mkfs", "-L", "second", &image]);
    assert!(code == 1 && err.contains("btrfs volume") && err.contains("-f"), "{err}");
    assert_eq!(json(&fine(&["info", "--json", &image]))["label"], "first");
    fine(&["mkfs", "-f", "-L", "second", "-s", "250M", &image]);
    let info = json(&fine(&["info", "--json", &image]));
    assert_eq!(info["label"], "second");
    assert_eq!(info["total_bytes"], 250 << 20);
}

#[test]
fn a_volume_in_use_is_not_checked() {
    let scratch = Scratch::new("busy");
    let image = scratch.path("disk.img");
    fine(&["mkfs", "-s", "200M", &image]);
    let writer = std::fs::File::open(&image).expect("image");
    writer.lock().expect("lock");
    let (code, _, err) = failing(&["check", &image]);
    assert!(code == 1 && err.contains("in use"), "{err}");
    assert!(fine(&["check", "--force", &image]).contains("no damage"));
    assert!(fine(&["info", &image]).contains("uuid"));
    let (code, _, err) = failing(&["mkfs", "-f", &image]);
    assert!(code == 1 && err.contains("in use"), "{err}");
}

#[test]
fn wrong_command_lines_end_with_2() {
    for words in [
        &["check"][..],
        &["check", "a", "b"],
        &["check", "--max", "many", "a"],
        &["info", "--colour", "a"],
        &["dump-tree", "-t", "elm", "a"],
        &["dump-tree", "-b", "x", "a"],
        &["mkfs", "--csum", "md5", "a"],
        &["mkfs", "-U", "1234", "a"],
        &["mkfs", "-s", "2 G", "a"],
        &["mkfs", "-O", "raid56", "a"],
        &["mkfs", "-s", "1G", "-n", "5000", "/nonexistent/a"],
    ] {
        let (code, out, err) = failing(words);
        assert_eq!((code, out.as_str()), (2, ""), "{words:?}: {err}");
        assert!(err.starts_with("spinney: ") && err.contains("--help"), "{words:?}: {err}");
    }
    for command in ["check", "info", "df", "dump-super", "dump-tree", "mkfs"] {
        let help = fine(&[command, "--help"]);
        assert!(help.contains("Usage") && help.contains("Examples"), "{command}: {help}");
        let (code, _, err) = failing(&[command, "/nonexistent/image"]);
        assert!(code == 1 && err.contains("/nonexistent/image"), "{command}: {err}");
    }
}

/// A volume of which the kernel fsynced `new` and then lost its power.
fn with_log(scratch: &Scratch) -> String {
    let (live, image) = (scratch.path("live.img"), scratch.path("disk.img"));
    testkit::oracle::mkfs_btrfs(live.as_ref(), 256 << 20, &[]).expect("mkfs.btrfs");
    testkit::oracle::with_kernel(live.as_ref(), "noatime,commit=300", |mount| {
        std::fs::write(mount.join("old"), b"committed").expect("write");
        testkit::oracle::sh("btrfs", &["filesystem", "sync", &mount.path().to_string_lossy()])
            .expect("sync");
        std::fs::write(mount.join("new"), b"fsynced").expect("write");
        std::fs::File::open(mount.join("new")).and_then(|file| file.sync_all()).expect("fsync");
        std::fs::copy(&live, &image).expect("copy");
    })
    .expect("the kernel mounts the volume");
    image
}

#[test]
fn a_log_is_shown_replayed_or_given_up() {
    testkit::require!(kernel_btrfs);
    let scratch = Scratch::new("log");
    let image = with_log(&scratch);
    let pending = |image: &str| json(&fine(&["info", "--json", image]))["log_pending"] == true;
    assert!(pending(&image));
    let log = fine(&["dump-tree", "-t", "log", &image]);
    assert!(log.contains("tree log of fs") && log.contains("new"), "{log}");
    let check = &json(&fine(&["check", "--json", &image]))["totals"];
    assert_eq!((&check["pending_log"], &check["log_trees"]), (&true.into(), &1.into()));
    assert!(fine(&["ls", &format!("{image}:/")]).contains("new"), "shown without writing");
    assert!(pending(&image));
    let second = scratch.path("second.img");
    std::fs::copy(&image, &second).expect("copy");
    fine(&["mkdir", &format!("{image}:/dir")]);
    assert!(!pending(&image));
    assert_eq!(fine(&["cat", &format!("{image}:/new")]), "fsynced");
    assert!(fine(&["rescue", "zero-log", &second]).contains("given up"));
    assert!(!pending(&second));
    let left = fine(&["ls", &format!("{second}:/")]);
    assert!(left.contains("old") && !left.contains("new"), "{left}");
    assert!(fine(&["rescue", "zero-log", &second]).contains("no log"));
    for image in [&image, &second] {
        testkit::oracle::assert_clean(image.as_ref());
    }
    assert_eq!(failing(&["rescue", "all", &second]).0, 2);
}

/// It is said once, by the command that did it; who only reads leaves the volume as it is.
#[test]
fn a_volume_that_gets_a_free_space_tree_is_told_of() {
    testkit::require!(btrfs_progs);
    let scratch = Scratch::new("converted");
    let image = scratch.path("disk.img");
    testkit::oracle::mkfs_btrfs(image.as_ref(), 300 << 20, &["-R", "^free-space-tree"])
        .expect("mkfs.btrfs");
    let top = format!("{image}:/");
    fine(&["ls", &top]);
    let has_tree = || fine(&["dump-super", &image]).contains("free_space_tree");
    assert!(!has_tree());
    let (code, _, told) = failing(&["touch", &format!("{image}:/a")]);
    assert!(code == 0 && told.contains("free-space tree from now on"), "{code} {told}");
    assert!(has_tree());
    fine(&["touch", &format!("{image}:/b")]);
    assert_eq!(fine(&["ls", &top]), "a\nb\n");
    fine(&["check", &image]);
}

/// Whoever has the image of a whole disk is told the name of the volume in it.
#[test]
fn in_the_image_of_a_whole_disk_the_volume_is_found() {
    testkit::require!(Command::new("sfdisk").arg("-v").output().is_ok(), "sfdisk is not installed");
    let scratch = Scratch::new("whole-disk");
    let (disk, volume) = (scratch.path("disk.img"), scratch.path("volume.img"));
    fine(&["mkfs", "--size", "120M", "--label", "inside", &volume]);
    let bytes = std::fs::read(&volume).unwrap();
    let inside = format!("{disk}:/");
    for label in ["dos", "gpt"] {
        let script = format!("label: {label}\nsize=20MiB\nsize=120MiB\n");
        let made = format!(
            "rm -f {disk} {volume}; truncate -s 150M {disk}; printf '{script}' | sfdisk -q {disk}"
        );
        assert!(Command::new("sh").args(["-c", &made]).status().unwrap().success());
        let image = std::fs::File::options().write(true).open(&disk).unwrap();
        image.write_all_at(&bytes, 21 << 20).unwrap();
        for words in [&["ls", &inside][..], &["check", &disk], &["mount", &disk, "/mnt"]] {
            let (code, _, said) = failing(words);
            assert_ne!(code, 0);
            assert!(said.contains(&format!("write `{disk}@2`")), "{words:?}: {said}");
        }
        assert_eq!(fine(&["filesystem", "label", &format!("{disk}@2")]).trim(), "inside");
        assert!(fine(&["check", &format!("{disk}@2")]).contains("no damage found"));
    }
}

/// The program where no file may have more MiB than `most`.
fn limited(most: u64, words: &[&str]) -> std::process::Output {
    let script = format!(r#"ulimit -f {}; exec "$0" "$@""#, most * 2048);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_spinney")]).args(words);
    shell.output().expect("sh")
}

/// No file is left that was not there, and one that was there has its length.
#[test]
fn an_image_that_may_not_become_so_large_stays_as_it_was() {
    let scratch = Scratch::new("limit");
    let (image, link) = (scratch.path("disk.img"), scratch.path("link.img"));
    std::os::unix::fs::symlink(&image, &link).unwrap();
    let refused = |words: &[&str]| {
        let output = limited(150, words);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("too large"), "{words:?}: {said}");
    };
    for name in [&image, &link] {
        refused(&["mkfs", "--size", "300M", name]);
        assert!(!std::path::Path::new(&image).exists(), "{name}");
    }
    // Copied after the volume was made.
    let from = scratch.path("from");
    std::fs::create_dir(&from).unwrap();
    std::fs::write(format!("{from}/large"), vec![7; 100 << 20]).unwrap();
    let made = limited(150, &["mkfs", "--size", "120M", "--rootdir", &from, &link]);
    assert_eq!(made.status.code(), Some(1));
    assert!(!std::path::Path::new(&image).exists());
    assert!(std::path::Path::new(&link).is_symlink());

    fine(&["mkfs", "--size", "120M", &image]);
    refused(&["filesystem", "resize", "300M", &image]);
    refused(&["filesystem", "resize", "+100M", &image]);
    refused(&["mkfs", "-f", "--size", "300M", &image]);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 120 << 20);
    fine(&["check", &image]);
}

/// The file may not become so large as what is written to it needs: as where the host is full, the file that
/// was to be written over has what it had.
#[test]
fn what_the_host_refuses_changes_nothing() {
    let scratch = Scratch::new("host");
    let (image, content) = (scratch.path("disk.img"), scratch.path("content"));
    fine(&["mkfs", "--size", "512M", &image]);
    std::fs::write(&content, "what was there").unwrap();
    fine(&["cp", &content, &format!("{image}:/kept")]);
    // Fills the first chunk of content; the second is at 89 MiB, behind all metadata.
    std::fs::write(&content, vec![7; 9 << 20]).unwrap();
    fine(&["cp", &content, &format!("{image}:/filler")]);
    let refused = limited(89, &["cp", &content, &format!("{image}:/kept")]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing was changed") && said.contains("ulimit -f"), "{said}");
    assert_eq!(fine(&["cat", &format!("{image}:/kept")]), "what was there");
    fine(&["check", &image]);
    fine(&["cp", &content, &format!("{image}:/kept")]);
}
