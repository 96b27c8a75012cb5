//! What a command that fails, or is done at a bad moment, must not take away: content that somebody was told is
//! written, and what was there before.

use crate::common;
use common::mount::{Mount, TRANSPORTS, lacks_fuse};
use common::streams::shell;
use common::{Image, KernelMount, PROGRAM, TempDir, assert_clean, failing, fine, sh, text};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
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

#[test]
fn a_link_that_cannot_be_made_leaves_what_it_was_to_replace() {
    require!(kernel_btrfs);
    let image = Image::new("kept-ln");
    let (at, host) = (|path: &str| image.at(path), TempDir::new("kept-ln-host").unwrap());
    let (old, new) = (host.join("old"), host.join("new"));
    fs::write(&old, "old").unwrap();
    fs::write(&new, "new").unwrap();
    for (from, to) in [(&old, "/old"), (&new, "/fixed")] {
        fine(&["cp", &from.display().to_string(), &at(to)]);
    }
    let mount = KernelMount::new(&image.path, "").unwrap();
    let top = mount.path().display().to_string();
    shell(&format!("chattr +i {top}/fixed"));
    mount.unmount().unwrap();
    let (code, why) = failing(&["ln", "-f", &at("/fixed"), &at("/old")]);
    assert!(code == 1 && why.contains("not permitted"), "{why}");
    assert_eq!(fine(&["cat", &at("/old")]), "old");
    let (code, why) = failing(&["ln", "-sf", &"x".repeat(5000), &at("/old")]);
    assert!(code == 1 && why.contains("too long"), "{why}");
    assert_eq!(fine(&["cat", &at("/old")]), "old");
    fine(&["ln", "-sf", "somewhere", &at("/old")]);
    fine(&["cp", &new.display().to_string(), &at("/other")]);
    fine(&["ln", "-f", &at("/other"), &at("/old")]);
    assert_eq!(fine(&["cat", &at("/old")]), "new");
    assert_eq!(fine(&["ls", "-A", &at("/")]), "fixed\nold\nother\n");
    assert_clean(&image.path);
}

/// The image of a volume with `/two` and `/names`, one file of a megabyte, in whose middle a sector is bad.
fn with_a_bad_sector(name: &str) -> Image {
    let image = Image::new(name);
    let mount = KernelMount::new(&image.path, "").unwrap();
    let top = mount.path().display().to_string();
    shell(&format!("cd {top}; yes 'the content' | head -c 1M > two; ln two names; sync -f ."));
    mount.unmount().unwrap();
    let mut bytes = fs::read(&image.path).unwrap();
    let found =
        bytes.windows(8192).position(|part| part.starts_with(b"the content\nthe content\n"));
    let at = found.expect("it lies in the image as it is") + 500_000;
    bytes[at] ^= 1;
    fs::write(&image.path, bytes).unwrap();
    image
}

#[test]
fn of_a_source_that_cannot_be_read_nothing_is_made_and_the_old_one_stays() {
    require!(kernel_btrfs);
    let (bad, image) = (with_a_bad_sector("kept-bad"), Image::new("kept-import"));
    let host = TempDir::new("kept-import-host").unwrap();
    let source = KernelMount::new(&bad.path, "ro").unwrap();
    let top = source.path().display().to_string();
    fs::write(host.join("good"), "good").unwrap();
    let good = host.join("good").display().to_string();
    // Where there is none, and one of several names in the place of which it is to be.
    for path in ["/two", "/names", "/also"] {
        let (code, why) = failing(&["cp", "-r", &format!("{top}/."), &image.at("/")]);
        assert!(code == 1 && why.contains("two"), "{why}");
        let there = if path == "/two" { "" } else { "also\nnames\ntwo\n" };
        assert_eq!(fine(&["ls", "-A", &image.at("/")]), there);
        if path == "/two" {
            fine(&["cp", &good, &image.at("/two")]);
            fine(&["ln", &image.at("/two"), &image.at("/names")]);
            fine(&["ln", &image.at("/two"), &image.at("/also")]);
        }
        assert_eq!(fine(&["cat", &image.at(path)]), "good");
    }
    source.unmount().unwrap();
    assert_clean(&image.path);
}

#[test]
fn of_a_source_that_may_not_be_opened_nothing_is_made() {
    require!(btrfs_progs);
    require!(sh("setpriv --help").status.success(), "no setpriv here");
    let image = Image::new("kept-closed");
    let host = TempDir::new("kept-closed-host").unwrap();
    let top = host.path().display().to_string();
    shell(&format!(
        "cd {top}; mkdir in; cp {PROGRAM} program; echo closed > in/closed; echo open > in/open; ln in/closed in/name
        chmod 600 in/closed; chmod 755 . in; chown 65534 {} {}",
        image.dir.path().display(),
        image.path.display()
    ));
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let copy = || {
        let done = sh(&format!("{nobody} {top}/program cp -r {top}/in/. {}", image.at("/")));
        assert!(done.status.code() == Some(1), "{}", text(&done.stderr));
        text(&done.stderr)
    };
    let why = copy();
    assert!(why.contains("/closed:") && why.contains("/name:") && !why.contains("/open:"), "{why}");
    assert_eq!(fine(&["ls", "-A", &image.at("/")]), "open\n");
    for name in ["/closed", "/name"] {
        fine(&["cp", &format!("{top}/in/open"), &image.at(name)]);
    }
    copy();
    for name in ["/closed", "/name", "/open"] {
        assert_eq!(fine(&["cat", &image.at(name)]), "open\n", "{name}");
    }
    assert_clean(&image.path);
}

/// A file system of its own, gone with the test.
struct Small(std::path::PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        sh(&format!("umount -l {}", self.0.display()));
    }
}

#[test]
fn a_copy_that_does_not_fit_leaves_what_it_was_to_replace() {
    require!(root);
    require!(btrfs_progs);
    let image = Image::new("kept-export");
    let host = TempDir::new("kept-export-host").unwrap();
    let small = Small(host.join("small"));
    let top = small.0.display().to_string();
    shell(&format!(
        "mkdir {top}; mount -t tmpfs -o size=2m tmpfs {top}; cd {top}; echo good > one; ln one two
        head -c 5M /dev/urandom > {0}/one; ln {0}/one {0}/two",
        host.path().display()
    ));
    for name in ["one", "two"] {
        fine(&["cp", &host.join(name).display().to_string(), &image.at(&format!("/{name}"))]);
    }
    let (code, why) = failing(&["cp", "-r", &image.at("/."), &top]);
    assert!(code == 1 && why.contains("small/one: write: no space left"), "{why}");
    let left = |path: &Path| fs::read_to_string(path).unwrap();
    assert_eq!(
        (left(&small.0.join("one")), left(&small.0.join("two"))),
        ("good\n".into(), "good\n".into())
    );
    assert_eq!(fs::read_dir(&small.0).unwrap().count(), 2);
}

#[test]
fn an_image_is_not_copied_into_itself() {
    require!(btrfs_progs);
    let image = Image::new("kept-itself");
    let dir = image.dir.path().display().to_string();
    fs::write(image.dir.join("file"), "content").unwrap();
    fs::hard_link(&image.path, image.dir.join("also.img")).unwrap();
    // Into an empty volume, and merged into one.
    for _ in 0..2 {
        let done = common::spinney(&["cp", "-r", &format!("{dir}/."), &image.at("/")]);
        let said = text(&done.stderr);
        assert!(done.status.success() && said.matches("is left out").count() == 2, "{said}");
        assert_eq!(fine(&["ls", &image.at("/")]), "file\n");
    }
    let (code, why) = failing(&["cp", &image.word(), &image.at("/x")]);
    assert!(code == 1 && why.contains("is the image"), "{why}");
    assert_clean(&image.path);
    fs::remove_file(image.dir.join("also.img")).unwrap();
    let line = ["mkfs", "-f", "-q", "--rootdir", &dir, &image.word()];
    let done = common::spinney(&line);
    let said = text(&done.stderr);
    assert!(done.status.success() && said.matches("is left out").count() == 1, "{said}");
    assert_eq!(fine(&["ls", &image.at("/")]), "file\n");
    assert_clean(&image.path);
}
