//! What a rescuer gets out of a volume whose last commit is lost, by mounts and without: what the kernel gives him
//! with the same words, and nothing is written.

use crate::common;
use common::mount::Mount;
use common::{Image, failing, spinney, text};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use testkit::oracle::KernelMount;
use testkit::require;

const NODE: usize = 16384;

/// Names and contents of files.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).expect("list").map(|entry| entry.expect("an entry"));
    let file = |entry: std::fs::DirEntry| {
        let content = std::fs::read(entry.path()).expect("read");
        (entry.file_name().to_string_lossy().into_owned(), content)
    };
    entries.map(file).collect()
}

/// What it prints, of a command that says which commit it shows.
fn shown(words: &[&str]) -> String {
    let output = spinney(words);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("those of"), "{words:?}: {said}");
    text(&output.stdout)
}

/// Made by the kernel in several commits; the root tree of the last is lost.
fn without_last_commit(name: &str) -> Image {
    let image = Image::new(name);
    let mount = KernelMount::new(&image.path, "noatime").expect("the kernel mounts it");
    for n in 0..5u8 {
        let content = vec![n; 20_000 + usize::from(n)];
        std::fs::write(mount.path().join(format!("file-{n}")), content).expect("write");
        common::sh(&format!("sync -f {}", mount.path().display()));
    }
    mount.unmount().expect("unmount");
    let shown = common::sh(&format!("btrfs inspect-internal dump-super {}", image.word()));
    let shown = text(&shown.stdout);
    let line = shown.lines().find(|line| line.starts_with("root\t")).expect("the root tree");
    let root: u64 = line.trim_start_matches("root").trim().parse().expect("an address");
    let device = std::fs::OpenOptions::new().write(true).open(&image.path).expect("open");
    for at in common::copies(&image.path, root) {
        device.write_all_at(&[0xff; 16384], at).expect("written");
    }
    image
}

#[test]
fn an_earlier_commit_is_what_the_kernel_shows() {
    require!(kernel_btrfs);
    let image = without_last_commit("earlier-commit");
    let before = std::fs::read(&image.path).expect("read");
    let (_, said) = failing(&["ls", &image.at("/")]);
    let first = "--rescue usebackuproot:ignorebadroots ";
    assert!(
        said.contains("damaged volume") && said.contains(first),
        "content stays verified: {said}"
    );
    let (code, said) = failing(&["cp", "--rescue", "everything", &image.at("/file-0"), "x"]);
    assert!(code == 2 && said.contains("usebackuproot"), "{said}");
    let (code, said) = failing(&["cp", "--rescue", "all", "/etc/hostname", &image.at("/x")]);
    assert!(code == 2 && said.contains("are read"), "{said}");
    let compressing = ["cp", "--compress", "--rescue", "all", "/etc/hostname", &image.at("/x")];
    let (code, said) = failing(&compressing);
    assert!(code == 2 && said.contains("are read"), "{said}");
    let (code, said) =
        failing(&["tar", "-x", "--rescue", "all", "-f", "/dev/null", &image.at("/")]);
    assert!(code == 2 && said.contains("are read"), "{said}");
    let kernel = KernelMount::new(&image.path, "ro,rescue=usebackuproot").expect("the kernel");
    let expected = files(kernel.path());
    kernel.unmount().expect("unmount");
    assert!(expected.len() >= 4, "{:?}", expected.keys());
    let to = image.dir.join("copy");
    shown(&["cp", "-r", "--rescue", "usebackuproot", &image.at("/"), &to.display().to_string()]);
    assert!(files(&to) == expected, "copied: {:?}", files(&to).keys());
    let listed = shown(&["ls", "--rescue=all", &image.at("/")]);
    assert!(listed.lines().eq(expected.keys()), "{listed}");
    for verb in ["find", "du"] {
        shown(&[verb, "--rescue", "all", &image.at("/")]);
    }
    assert!(std::fs::read(&image.path).expect("read") == before, "nothing is written");
}

#[test]
fn a_mount_shows_it_as_well() {
    require!(kernel_btrfs);
    require!(fuse);
    let image = without_last_commit("earlier-mount");
    let before = std::fs::read(&image.path).expect("read");
    let point = Mount::directory(&image).display().to_string();
    let (_, said) = failing(&["mount", "-o", "rescue=all", &image.word(), &point]);
    assert!(said.contains("add ro"), "{said}");
    let mounted = spinney(&["mount", "-o", "ro,rescue=all", &image.word(), &point]);
    let said = text(&mounted.stdout);
    assert!(said.contains("read-only, with the trees of commit"), "{said}");
    assert!(spinney(&["umount", &point]).status.success());
    for words in ["ro,rescue=all", "ro,usebackuproot"] {
        let mount = Mount::new(&image, words);
        assert!(files(&mount.point).len() >= 4);
        mount.umount();
    }
    assert!(std::fs::read(&image.path).expect("read") == before, "nothing is written");
}

/// Made by the kernel; the chunk tree of the last commit is lost, which differs from those before in the size of the
/// device alone. What is in the files.
fn without_chunk_tree(name: &str) -> (Image, BTreeMap<String, Vec<u8>>) {
    let image = Image::new(name);
    let mount = KernelMount::new(&image.path, "noatime").expect("the kernel mounts it");
    for n in 0..3u8 {
        std::fs::write(mount.path().join(format!("file-{n}")), vec![n; 200_000]).expect("write");
        let smaller =
            format!("cd {}; btrfs filesystem resize -16M . && sync -f .", mount.path().display());
        assert!(common::sh(&smaller).status.success());
    }
    let held = files(mount.path());
    mount.unmount().expect("unmount");
    let shown = common::sh(&format!("btrfs inspect-internal dump-super {}", image.word()));
    let shown = text(&shown.stdout);
    let root =
        shown.lines().find_map(|line| line.strip_prefix("chunk_root\t")?.trim().parse().ok());
    let root: u64 = root.expect("the chunk tree");
    let device = std::fs::OpenOptions::new().write(true).open(&image.path).expect("open");
    for at in common::copies(&image.path, root) {
        device.write_all_at(&[0; 16384], at).expect("written");
    }
    (image, held)
}

/// Where the chunk tree is lost an older one does, where one is left; and that is what is advised.
#[test]
fn an_older_chunk_tree_gives_out_the_files() {
    require!(kernel_btrfs);
    require!(fuse);
    let (image, held) = without_chunk_tree("older-chunks");
    let (_, said) = failing(&["ls", &image.at("/")]);
    assert!(said.contains("rescue=usebackuproot"), "{said}");
    let dir = image.dir.join("copy").display().to_string();
    let told = spinney(&["cp", "-r", "--rescue", "usebackuproot", &image.at("/"), &dir]);
    let warned = text(&told.stderr);
    assert!(told.status.success() && warned.contains("chunk tree is lost"), "{warned}");
    assert!(files(Path::new(&dir)) == held);
    let (_, said) = failing(&["check", &image.word()]);
    let at = said.split("--chunk-root ").nth(1).and_then(|rest| rest.split(' ').next());
    let at = at.unwrap_or_else(|| panic!("names no other: {said}"));
    let looked = common::sh(&format!("btrfs check --force --chunk-root {at} {}", image.word()));
    let seen = [looked.stdout, looked.stderr].concat();
    assert!(text(&seen).contains("checking fs roots"), "{}", text(&seen));
    let mount = Mount::new(&image, "ro,rescue=usebackuproot");
    assert!(files(&mount.point) == held);
    mount.umount();
}

/// Where the nodes of the chunk tree lie on the device, and of which commit each is.
fn chunk_nodes(disk: &[u8]) -> Vec<(usize, u64)> {
    let word = |at: usize| u64::from_le_bytes(disk[at..at + 8].try_into().expect("eight bytes"));
    let fsid = &disk[(64 << 10) + 32..][..16];
    let is_one = |at: &usize| disk[at + 32..][..16] == *fsid && word(at + 88) == 3;
    let places = (1 << 20..disk.len() - NODE).step_by(4096).filter(is_one);
    places.map(|at| (at, word(at + 80))).collect()
}

/// System chunks lie there.
fn begin_of(image: &Image) -> Vec<u8> {
    let mut begin = vec![0; 80 << 20];
    let file = std::fs::File::open(&image.path).expect("open");
    file.read_exact_at(&mut begin, 0).expect("read");
    begin
}

fn on_kernel(image: &Image, work: impl FnOnce(&Path)) {
    let mount = KernelMount::new(&image.path, "noatime").expect("the kernel mounts it");
    work(mount.path());
    mount.unmount().expect("unmount");
}

fn script(dir: &Path, script: &str) {
    let done = common::sh(&format!("set -e; cd {}; {script}; sync -f .", dir.display()));
    assert!(done.status.success(), "{script}: {}", text(&done.stderr));
}

/// By the kernel, of content without checksums: a chunk goes, and by the time that one of metadata and another one of
/// data have its addresses those of data are elsewhere on the device. No chunk tree is left but the one of before. What
/// was written first, and what last.
fn without_newer_chunk_trees(name: &str) -> (Image, [Vec<u8>; 2]) {
    let image = Image::new(name);
    std::fs::File::options().write(true).open(&image.path).unwrap().set_len(1 << 30).unwrap();
    common::mkfs_btrfs(&image.path, 1 << 30, &["-f"]).expect("mkfs.btrfs");
    let content = |seed: u8, len: usize| -> Vec<u8> {
        (0..len as u32).map(|i| (i.wrapping_mul(2654435761) >> 17) as u8 ^ seed).collect()
    };
    let (first, last) = (content(1, 1_000_000), content(2, 30_000_000));
    on_kernel(&image, |dir| {
        script(dir, "touch first goes last; chattr +C first goes last");
        std::fs::write(dir.join("first"), &first).expect("write");
        std::fs::write(dir.join("goes"), content(3, 45_000_000)).expect("write");
        script(dir, "true");
    });
    let before = begin_of(&image);
    let commit = chunk_nodes(&before).into_iter().map(|(_, commit)| commit).max();
    on_kernel(&image, |dir| {
        script(dir, "rm goes; sync -f .; btrfs balance start -dusage=0 .");
        // Chunks that come are smaller then, and no longer what was.
        script(
            dir,
            "btrfs filesystem resize 512M .; btrfs balance start -mvrange=30408704..30408705 .",
        );
        std::fs::write(dir.join("last"), &last).expect("write");
    });
    let device = std::fs::OpenOptions::new().write(true).open(&image.path).expect("open");
    for (at, _) in chunk_nodes(&begin_of(&image)) {
        device.write_all_at(&[0; NODE], at as u64).expect("written");
    }
    for (at, _) in chunk_nodes(&before).into_iter().filter(|(_, of)| Some(*of) == commit) {
        device.write_all_at(&before[at..at + NODE], at as u64).expect("written");
    }
    (image, [first, last])
}

/// It was given out from where it had been, with an exit status of success.
#[test]
fn content_whose_chunk_may_be_elsewhere_is_told() {
    require!(kernel_btrfs);
    require!(fuse);
    let (image, [first, last]) = without_newer_chunk_trees("other-chunks");
    let copy = |words: &str, name: &str| {
        let dir = image.dir.join(name);
        let to = dir.display().to_string();
        let output = spinney(&["cp", "-r", "--rescue", words, &image.at("/"), &to]);
        (output.status.code(), text(&output.stderr), files(&dir))
    };
    let (code, said, copied) = copy("usebackuproot", "verified");
    assert!(code == Some(1) && said.contains("chunks may be elsewhere"), "{code:?} {said}");
    assert!(copied["first"] == first, "where it lies is confirmed");
    let told: Vec<&str> = said.lines().filter(|line| line.contains("are lost")).collect();
    assert!(told.iter().any(|line| line.contains("/last: ")), "{said}");
    assert!(!told.iter().any(|line| line.contains("/first")), "{said}");
    let (code, said, copied) = copy("usebackuproot:ignoredatacsums", "whatever");
    assert!(code == Some(1) && said.contains("/last: "), "{code:?} {said}");
    assert!(said.contains("are copied as they are, and may be wrong"), "{said}");
    assert!(copied["first"] == first && copied["last"].len() == last.len());
    assert!(copied["last"] != last, "the chunk is another's place");
    let mount = Mount::new(&image, "ro,rescue=usebackuproot");
    let read = std::fs::read(mount.join("last")).expect_err("not known to be there");
    assert_eq!(read.raw_os_error(), Some(libc::EIO));
    assert!(std::fs::read(mount.join("first")).expect("confirmed") == first);
    mount.umount();
}
