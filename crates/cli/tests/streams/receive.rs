//! `spinney receive --dump`: streams that the kernel made are told as `btrfs` tells them, and
//! damaged ones up to the damage, with its offset.

use crate::common;
use btrfs_send::{Command, Encoder, Origin, Protocol};
use common::mount::Mount;
use common::streams::{Chain, Sender, assert_same, chains, shell};
use common::{Image, KernelMount, PROGRAM, TempDir, failing, fine, sh, text};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};
use testkit::require;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../btrfs-send/tests/golden");

fn receive(words: &[&str], input: Option<&Path>) -> Output {
    let input = input.map_or_else(Stdio::null, |path| File::open(path).unwrap().into());
    std::process::Command::new(PROGRAM)
        .arg("receive")
        .args(words)
        .env("TZ", "UTC")
        .stdin(input)
        .output()
        .unwrap()
}

#[test]
fn streams_are_told_from_a_file_and_from_standard_input() {
    for name in ["full", "incremental", "protocol2"] {
        let stream = format!("{GOLDEN}/{name}.stream");
        let expected = fs::read_to_string(format!("{GOLDEN}/{name}.dump")).unwrap();
        let from_file = receive(&["--dump", "-f", &stream], None);
        let from_input = receive(&["--dump"], Some(Path::new(&stream)));
        for done in [from_file, from_input] {
            assert!(done.status.success(), "{name}: {}", text(&done.stderr));
            assert_eq!(text(&done.stdout), expected, "{name}");
        }
    }
}

#[test]
fn damage_is_told_with_its_offset_behind_what_is_whole() {
    let dir = TempDir::new("receive-damaged").unwrap();
    let path = dir.join("cut.stream");
    let stream = fs::read(format!("{GOLDEN}/full.stream")).unwrap();
    fs::write(&path, &stream[..1000]).unwrap();
    let done = receive(&["--dump"], Some(&path));
    assert!(!done.status.success());
    let (told, said) = (text(&done.stdout), text(&done.stderr));
    let whole = fs::read_to_string(format!("{GOLDEN}/full.dump")).unwrap();
    assert!(told.lines().count() > 2 && whole.starts_with(&told), "{told}");
    assert!(said.contains("standard input") && said.contains("at byte "), "{said}");
}

#[test]
fn chains_that_the_kernel_sent() {
    let kind = Chain {
        name: "receive-chain",
        rounds: 8,
        mkfs: &["-n", "4096"],
        mount: "noatime",
        sender: Sender::Kernels(""),
        into_mount: None,
        confined: false,
    };
    chains(kind, 3);
}

#[test]
fn chains_that_the_kernel_sent_in_protocol_2() {
    let kind = Chain {
        name: "receive-2",
        rounds: 6,
        mkfs: &[],
        mount: "noatime,compress-force=zstd",
        sender: Sender::Kernels("--proto 2 --compressed-data"),
        into_mount: None,
        confined: false,
    };
    chains(kind, 3);
}

#[test]
fn chains_into_a_mount() {
    let kernels = Chain {
        name: "receive-mount",
        rounds: 5,
        mkfs: &["-n", "4096"],
        mount: "noatime",
        sender: Sender::Kernels(""),
        into_mount: Some(""),
        confined: false,
    };
    chains(kernels, 2);
    let sender = Sender::Ours(&["--proto", "2", "--compressed-data"]);
    chains(Chain { mount: "noatime,compress-force=lzo", sender, ..kernels }, 2);
    // By system calls.
    chains(Chain { into_mount: Some("writeback"), ..kernels }, 1);
}

#[test]
fn chains_of_a_confined_process() {
    let into_image = Chain {
        name: "receive-confined",
        rounds: 4,
        mkfs: &["-n", "4096"],
        mount: "noatime",
        sender: Sender::Kernels(""),
        into_mount: None,
        confined: true,
    };
    chains(into_image, 1);
    chains(Chain { into_mount: Some(""), ..into_image }, 1);
}

const FIRST: Origin = Origin { uuid: [7; 16], ctransid: 9 };
const SECOND: Origin = Origin { uuid: [8; 16], ctransid: 9 };

/// Two subvolumes; of the first two commands fail.
fn with_errors(into: &Path) {
    let mut encoder = Encoder::new(Vec::new(), Protocol::V1).unwrap();
    for command in [
        Command::Subvol { path: b"first", origin: FIRST },
        Command::MkFile { path: b"one", ino: 257 },
        Command::Unlink { path: b"nothing" },
        Command::MkFile { path: b"two", ino: 257 },
        Command::RmDir { path: b"nothing" },
        Command::MkFile { path: b"three", ino: 257 },
        Command::Subvol { path: b"second", origin: SECOND },
        Command::MkFile { path: b"file", ino: 257 },
        Command::End,
    ] {
        encoder.put(&command).unwrap();
    }
    fs::write(into, encoder.into_inner()).unwrap();
}

/// A stream of a subvolume with one file of so many pieces.
fn of_length(name: &[u8], origin: Origin, pieces: u64) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), Protocol::V1).unwrap();
    let data = vec![pieces as u8; 40_000];
    let write = |piece: u64| Command::Write { path: b"file", offset: piece * 40_000, data: &data };
    encoder.put(&Command::Subvol { path: name, origin }).unwrap();
    encoder.put(&Command::MkFile { path: b"file", ino: 257 }).unwrap();
    (0..pieces).for_each(|piece| encoder.put(&write(piece)).unwrap());
    encoder.put(&Command::End).unwrap();
    encoder.into_inner()
}

/// The first one took what was the second one's out of the input.
#[test]
fn what_is_behind_the_end_of_a_stream_is_left_to_others() {
    let image = Image::new("receive-two");
    fine(&["mkdir", &image.at("/d1"), &image.at("/d2"), &image.at("/m1"), &image.at("/m2")]);
    let both = image.dir.join("both").display().to_string();
    let two = |place: &str, names: [&str; 2], pieces: [u64; 2]| {
        let [one, two] = names.map(|name| format!("{place}{name}"));
        let first = of_length(b"first", FIRST, pieces[0]);
        fs::write(&both, [first, of_length(b"second", SECOND, pieces[1])].concat()).unwrap();
        let done = sh(&format!(
            "set -e; cat {both} | ({PROGRAM} receive -e {one}; {PROGRAM} receive -e {two})"
        ));
        assert!(done.status.success(), "{place}, {pieces:?}: {}", text(&done.stderr));
        assert_eq!(text(&done.stderr).lines().count(), 2, "{}", text(&done.stderr));
    };
    for pieces in [[1, 1], [1, 40], [40, 1], [40, 40]] {
        two(&image.at("/"), ["d1", "d2"], pieces);
        for (path, pieces) in [("/d1/first", pieces[0]), ("/d2/second", pieces[1])] {
            let told = fine(&["stat", "--json", &image.at(&format!("{path}/file"))]);
            assert!(told.contains(&(pieces * 40_000).to_string()), "{told}");
            fine(&["subvolume", "delete", "-q", &image.at(path)]);
        }
    }
    require!(fuse);
    let mount = Mount::new(&image, "rw");
    for pieces in [[1, 1], [1, 40], [40, 1], [40, 40]] {
        two(&format!("{}/", mount.word()), ["m1", "m2"], pieces);
        for (path, pieces) in [("m1/first", pieces[0]), ("m2/second", pieces[1])] {
            let len = fs::metadata(mount.join(path).join("file")).unwrap().len();
            assert_eq!(len, pieces * 40_000);
            fine(&["subvolume", "delete", "-q", &mount.join(path).display().to_string()]);
        }
    }
    mount.umount();
}

/// With so many errors allowed: what is there then, whether it is read-only, and who is known by
/// what was sent; and how many errors were told.
fn allowing(errors: &str, stream: &Path, place: &str) -> (Option<i32>, usize) {
    let done = receive(&["-E", errors, "-f", &stream.display().to_string(), place], None);
    let said = text(&done.stderr);
    (done.status.code(), said.lines().filter(|line| line.contains("at byte ")).count())
}

fn names(at: &Path) -> Vec<String> {
    let mut all: Vec<_> = ["first", "second"]
        .iter()
        .flat_map(|dir| fs::read_dir(at.join(dir)).into_iter().flatten())
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    all.sort();
    all
}

#[test]
fn as_many_errors_as_are_allowed() {
    require!(kernel_btrfs);
    require!(fuse);
    let dir = TempDir::new("receive-some").unwrap();
    let stream = dir.join("stream");
    with_errors(&stream);
    for (errors, told) in [("1", 1), ("2", 2), ("3", 2), ("0", 2)] {
        let theirs = Image::new("receive-some-theirs");
        let kernels = KernelMount::new(&theirs.path, "noatime").unwrap();
        let (file, top) = (stream.display(), kernels.path().display());
        assert!(!sh(&format!("btrfs receive -E {errors} -f {file} {top}")).status.success());
        let expected = names(kernels.path());
        kernels.unmount().unwrap();
        let image = Image::new("receive-some-image");
        assert_eq!(allowing(errors, &stream, &image.at("/")), (Some(1), told), "{errors}");
        let mounted = Image::new("receive-some-mount");
        let mount = Mount::new(&mounted, "");
        assert_eq!(allowing(errors, &stream, &mount.word()), (Some(1), told), "{errors}");
        mount.umount();
        for ours in [&image, &mounted] {
            let kernels = KernelMount::new(&ours.path, "noatime").unwrap();
            assert_eq!(names(kernels.path()), expected, "{errors}");
            let show = |name: &str| {
                let path = kernels.join(name).display().to_string();
                text(&sh(&format!("btrfs subvolume show {path}")).stdout)
            };
            // What is damaged is not taken for received; what came behind it is.
            let (first, second) = (show("first"), show("second"));
            assert!(!first.contains("07070707") && !first.contains("readonly"), "{first}");
            let whole = second.contains("08080808") && second.contains("readonly");
            assert_eq!(whole, expected.contains(&"file".to_owned()), "{errors}: {second}");
            kernels.unmount().unwrap();
            common::assert_clean(&ours.path);
        }
    }
}

#[test]
fn damage_of_the_stream_ends_it_however_many_errors_are_allowed() {
    require!(btrfs_progs);
    let dir = TempDir::new("receive-cut").unwrap();
    let stream = dir.join("stream");
    with_errors(&stream);
    let whole = fs::read(&stream).unwrap();
    fs::write(&stream, &whole[..whole.len() - 20]).unwrap();
    let image = Image::new("receive-cut");
    let (code, told) = allowing("0", &stream, &image.at("/"));
    assert!(code == Some(1) && told == 3, "{code:?} {told}");
}

/// When everything in a subvolume was made, to the nanosecond.
fn births(subvolume: &Path) -> String {
    let told = sh(&format!(
        "cd {} && find . | sort | xargs -d '\\n' stat -c '%n %w'",
        subvolume.display()
    ));
    assert!(told.status.success(), "{}", text(&told.stderr));
    text(&told.stdout)
}

/// `btrfs receive` has no call to set them by.
#[test]
fn what_was_made_when_is_kept_where_the_stream_says_it() {
    require!(fuse);
    require!(kernel_btrfs);
    let (source, dir) = (Image::new("births-source"), TempDir::new("births").unwrap());
    let file = dir.join("stream").display().to_string();
    let kernel = KernelMount::new(&source.path, "noatime").unwrap();
    let made = sh(&format!(
        "set -e; cd {}; btrfs -q subvolume create s; mkdir s/d; echo x > s/d/f; ln -s f s/d/l
         head -c 100000 /dev/urandom > s/g; mkfifo s/p; btrfs -q subvolume snapshot -r s r
         btrfs -q send --proto 2 -f {file} r",
        kernel.path().display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let expected = births(&kernel.join("r"));
    kernel.unmount().unwrap();
    assert!(expected.lines().count() == 6 && !expected.contains(" -\n"), "{expected}");

    let target = Image::new("births");
    fine(&["mkdir", &target.at("/image"), &target.at("/mount")]);
    fine(&["receive", "-q", "-f", &file, &target.at("/image")]);
    let mount = Mount::new(&target, "");
    let served = mount.join("mount");
    fine(&["receive", "-q", "-f", &file, &served.display().to_string()]);
    assert_eq!(births(&served.join("r")), expected);
    mount.umount();
    let kernel = KernelMount::new(&target.path, "ro").unwrap();
    for place in ["image", "mount"] {
        assert_eq!(births(&kernel.join(place).join("r")), expected, "{place}");
    }
    kernel.unmount().unwrap();
    // And it is sent on.
    let again = dir.join("again").display().to_string();
    fine(&["send", "-q", "--proto", "2", "-f", &again, &target.at("/image/r")]);
    let third = Image::new("births-third");
    fine(&["receive", "-q", "-f", &again, &third.at("/")]);
    let kernel = KernelMount::new(&third.path, "ro").unwrap();
    assert_eq!(births(&kernel.join("r")), expected);
    kernel.unmount().unwrap();
    common::assert_clean(&target.path);
}

/// The attributes of a received subvolume's root directory, of a directory in it, and its flags; but no labels, which
/// a host gives all that there is.
fn given(snap: &Path) -> String {
    let told = sh(&format!(
        "cd {} && getfattr -d -m '^(user|trusted|system|btrfs)[.]' . d && {{ lsattr -d . | grep c; true; }}",
        snap.display()
    ));
    assert!(told.status.success(), "{}", text(&told.stderr));
    text(&told.stdout)
}

/// A stream says all that an inode has: what the place would give it, is not the source's.
#[test]
fn what_the_place_would_give_is_not_in_what_is_received() {
    require!(kernel_btrfs);
    require!(fuse);
    let is_there = |tool: &&str| sh(&format!("command -v {tool}")).status.success();
    let tools = ["setfacl", "getfattr", "lsattr"];
    require!(tools.iter().all(is_there), "not all of {tools:?} are installed");
    let (image, dir) = (Image::new("given"), TempDir::new("given").unwrap());
    let stream = dir.join("stream").display().to_string();
    let mut encoder = Encoder::new(Vec::new(), Protocol::V1).unwrap();
    for command in [
        Command::Subvol { path: b"snap", origin: FIRST },
        Command::MkDir { path: b"d", ino: 257 },
        Command::End,
    ] {
        encoder.put(&command).unwrap();
    }
    fs::write(&stream, encoder.into_inner()).unwrap();
    let places = ["image", "served", "called"];
    let kernel = KernelMount::new(&image.path, "").unwrap();
    for place in places {
        let made = sh(&format!(
            "set -e; cd {}; btrfs -q subvolume create {place}; mkdir {place}/in
             btrfs property set {place} compression zstd; setfacl -d -m u:1000:rwx {place}/in",
            kernel.path().display()
        ));
        assert!(made.status.success(), "{}", text(&made.stderr));
    }
    kernel.unmount().unwrap();
    fine(&["receive", "-q", "-f", &stream, &image.at("/image/in")]);
    for (place, options) in [("served", ""), ("called", "writeback")] {
        let mount = Mount::new(&image, options);
        let into = mount.join(place).join("in").display().to_string();
        fine(&["receive", "-q", "-f", &stream, &into]);
        mount.umount();
    }
    let kernel = KernelMount::new(&image.path, "ro").unwrap();
    for place in places {
        assert_eq!(given(&kernel.join(place).join("in/snap")), "", "{place}");
    }
    kernel.unmount().unwrap();
    common::assert_clean(&image.path);
}

/// Flags and the property of what `s2` has.
fn stored(top: &Path) -> String {
    shell(&format!(
        "cd {}/s2; lsattr -d d in | cut -c-22; lsattr in/f | cut -c-22
         getfattr -n btrfs.compression d in/f",
        top.display()
    ))
}

/// The kernel says the property in front of the flags, where both are refused together.
#[test]
fn what_the_kernel_sends_of_what_is_compressed_and_was_written_in_place() {
    require!(kernel_btrfs);
    require!(fuse);
    let tools = sh("command -v getfattr chattr lsattr").status.success();
    require!(tools, "no getfattr, chattr or lsattr");
    let (source, target) = (Image::new("was-in-place"), Image::new("was-in-place-ours"));
    let kernel = KernelMount::new(&source.path, "noatime").unwrap();
    let dir = source.dir.path().display().to_string();
    shell(&format!(
        "cd {}; btrfs -q subvolume create v; mkdir v/d v/in; btrfs -q subvolume snapshot -r v s0
         chattr +C v/d v/in; btrfs -q subvolume snapshot -r v s1; chattr -C v/d; touch v/in/f
         chattr -C v/in/f; for i in d in/f; do btrfs property set v/$i compression zstd; done
         echo x > v/in/f; btrfs -q subvolume snapshot -r v s2
         btrfs -q send --proto 2 -f {dir}/0 s0; btrfs -q send --proto 2 -p s0 -f {dir}/1 s1
         btrfs -q send --proto 2 -p s1 -f {dir}/2 s2",
        kernel.path().display()
    ));
    let expected = stored(kernel.path());
    kernel.unmount().unwrap();
    let streams = ["0", "1", "2"].map(|name| format!("{dir}/{name}"));
    let receive = |into: &str| {
        streams.iter().for_each(|file| _ = fine(&["receive", "-q", "-f", file, into]));
    };
    let mount = Mount::new(&target, "writeback");
    fs::create_dir(mount.join("calls")).unwrap();
    receive(&mount.join("calls").display().to_string());
    mount.umount();
    receive(&target.at("/"));
    let kernel = KernelMount::new(&target.path, "ro").unwrap();
    assert_eq!(stored(kernel.path()), expected);
    assert_eq!(stored(&kernel.join("calls")), expected);
    kernel.unmount().unwrap();
    common::assert_clean(&target.path);
}

/// By system calls the kernel would cut it at the source's end, which each piece moved on.
#[test]
fn a_clone_into_a_mount_does_not_feed_on_itself() {
    let (image, dir) = (Image::new("feeding"), TempDir::new("feeding").unwrap());
    let stream = dir.join("stream").display().to_string();
    let content = [7; 40 << 10];
    let mut encoder = Encoder::new(Vec::new(), Protocol::V1).unwrap();
    for command in [
        Command::Subvol { path: b"snap", origin: FIRST },
        Command::MkFile { path: b"f", ino: 257 },
        Command::Write { path: b"f", offset: 0, data: &content },
        Command::Clone {
            path: b"f",
            offset: content.len() as u64,
            len: 1 << 60,
            from: FIRST,
            from_path: b"f",
            from_offset: 0,
        },
        Command::End,
    ] {
        encoder.put(&command).unwrap();
    }
    fs::write(&stream, encoder.into_inner()).unwrap();
    for options in ["", "writeback"] {
        let mount = Mount::new(&image, options);
        let into = mount.join(&format!("by {options}"));
        fs::create_dir(&into).unwrap();
        let told = failing(&["receive", "-q", "-f", &stream, &into.display().to_string()]);
        assert!(told.0 == 1 && told.1.contains("cloning to f"), "{told:?}");
        assert!(fs::read(into.join("snap/f")).unwrap() == content, "{options}");
        mount.umount();
    }
    common::assert_clean(&image.path);
}

/// A receiver that waits for its input, and what is its root directory then.
fn root_of(words: &[&str], begin: &[u8]) -> (String, Output) {
    let mut child = std::process::Command::new(PROGRAM)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let root = Path::new("/proc").join(child.id().to_string()).join("root");
    let mut input = child.stdin.take().unwrap();
    input.write_all(begin).unwrap();
    input.flush().unwrap();
    let mut at = String::new();
    for _ in 0..500 {
        at = fs::read_link(&root).unwrap().display().to_string();
        if at != "/" {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    drop(input);
    (at, child.wait_with_output().unwrap())
}

#[test]
fn a_confined_process_has_another_root_directory() {
    require!(btrfs_progs);
    require!(fuse);
    let image = Image::new("receive-root");
    let (at, done) = root_of(&["receive", "-C", &image.at("/")], b"");
    assert!(at.ends_with("(deleted)") && at.contains("spinney-receive-"), "{at}");
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stderr));
    let mount = Mount::new(&image, "");
    let dir = mount.join("into");
    fs::create_dir(&dir).unwrap();
    let dir = dir.display().to_string();
    let (at, done) = root_of(&["receive", "-C", "-m", &mount.word(), &dir], b"");
    assert_eq!(at, dir);
    assert!(text(&done.stderr).contains(&format!("Chroot to {dir}")), "{}", text(&done.stderr));
    mount.umount();
}

/// Whoever makes the name before in a directory of all keeps nothing from being received.
#[test]
fn a_confined_process_needs_no_name_that_can_be_guessed() {
    require!(root);
    require!(btrfs_progs);
    let image = Image::new("receive-name");
    for words in ["subvolume create @:/s", "property set @:/s ro true", "mkdir @:/into"] {
        let words = words.replace('@', &image.word());
        fine(&words.split(' ').collect::<Vec<_>>());
    }
    let (dir, stream) = (image.dir.path().display(), image.dir.join("stream"));
    fine(&["send", "-q", "-f", &stream.display().to_string(), &image.at("/s")]);
    let done = sh(&format!(
        "export TMPDIR={dir}; sh -c 'mkdir $TMPDIR/spinney-receive-$$; exec {} receive -q -C -f {} {}'",
        common::PROGRAM,
        stream.display(),
        image.at("/into")
    ));
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(fine(&["ls", &image.at("/into")]), "s\n");
    let left = sh(&format!("ls -d {dir}/spinney-receive-*"));
    assert_eq!(text(&left.stdout).lines().count(), 1, "its own is gone");
}

/// What a stream builds on, and clones from, lies above DIRECTORY; attributes and modes are set.
#[test]
fn what_a_stream_builds_on_is_found_from_within() {
    require!(kernel_btrfs);
    require!(fuse);
    let source = Image::new("receive-within");
    let kernels = KernelMount::new(&source.path, "noatime").unwrap();
    let script = format!(
        "set -e; cd {}; btrfs -q subvolume create v; head -c 300000 /dev/urandom > v/a
         btrfs -q subvolume snapshot -r v s0; cp --reflink v/a v/b; mkdir v/d; echo x > v/d/x
         setfattr -n user.name -v value v/d/x; setfattr -n user.dir -v value v/d; chmod 4751 v/d/x
         mknod v/d/null c 1 3; chmod 600 v/d/null; ln -s /etc/passwd v/link; chmod 1777 v
         btrfs -q subvolume snapshot -r v s1; btrfs -q send -f {1}/0 s0
         btrfs -q send -p s0 -c s0 -f {1}/1 s1",
        kernels.path().display(),
        source.dir.path().display()
    );
    let done = sh(&script);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let stream = |n: u32| source.dir.join(&n.to_string()).display().to_string();
    for confined in [&["-C"][..], &["-m", "@"], &["-C", "-m", "@"]] {
        let image = Image::new("receive-within-ours");
        let mount = Mount::new(&image, "");
        let words: Vec<_> = confined.iter().map(|word| word.replace('@', &mount.word())).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let into = mount.join("below");
        fs::create_dir(&into).unwrap();
        fine(&["receive", "-q", "-f", &stream(0), &mount.word()]);
        let into = into.display().to_string();
        fine(&[&["receive", "-q"][..], &words, &["-f", &stream(1), &into]].concat());
        mount.umount();
        let kernel = KernelMount::new(&image.path, "ro").unwrap();
        assert_same(&kernels.join("s1"), &kernel.join("below/s1"), "confined");
        kernel.unmount().unwrap();
    }
    // A mount that is none of the directory's, and what an image has in its place.
    let image = Image::new("receive-within-image");
    fine(&["receive", "-q", "-m", &image.word(), "-f", &stream(0), &image.at("/")]);
    let (code, _) = failing(&["receive", "-m", "/", "-f", &stream(1), &image.at("/")]);
    assert_eq!(code, 1);
    let mount = Mount::new(&image, "");
    let elsewhere = source.dir.path().display().to_string();
    let (code, said) = failing(&["receive", "-m", &elsewhere, "-f", &stream(1), &mount.word()]);
    assert!(code == 1 && said.contains("not below"), "{said}");
    mount.umount();
    kernels.unmount().unwrap();
}
