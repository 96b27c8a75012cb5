//! The program under the name `btrfs`.
//!
//! Judge: btrfs-progs, with the same command lines on the kernel's mount of an image like ours.

use crate::common;
use common::mount::Mount;
use common::{Image, KernelMount, PROGRAM, fine, text};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use testkit::require;

/// Command lines of scripts, `@` for the mount. What they print is compared, and how they end.
const LINES: &[&str] = &[
    "subvolume create @/one",
    "sub cr @/one/inner",
    "subvolume snapshot -r @/one @/copy",
    "subvolume snapshot @/one @/two",
    "property set -ts @/two ro true",
    "property get -ts @/two ro",
    "prop get @/one ro",
    "property list @",
    "prop list @/one",
    "property list -t f @",
    "property list -t i @/one",
    "property get @",
    "property get @/one",
    "property get -t subvol @",
    "property set @ label other",
    "property get @ label",
    "property get @/one nothing",
    "property set @/one compression zstd",
    "property get @/one",
    "subvolume list @",
    "subvolume list -o @/one",
    "sub list -t @",
    "subvolume get-default @",
    "subvolume set-default 256 @",
    "sub get-default @",
    "quota enable @",
    "quota rescan -w @",
    "qgroup create 1/7 @",
    "qgroup limit 100M 1/7 @",
    "qgroup show -rep @",
    "qgroup limit 3M @/copy",
    "filesystem label @ some-name",
    "fi label @",
    "filesystem sync @",
    "subvolume delete @/two",
    "subvolume delete @/nothing",
    "sub s @",
    "nothing of this kind",
];

struct Answered {
    code: Option<i32>,
    out: Vec<String>,
}

fn refused(line: &str) -> bool {
    line.contains("nothing") || line.contains(" s ")
}

/// The generations of a list are those of two volumes that committed at other times.
fn without_generations(line: &str) -> String {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["ID", id, "gen", ..] if id.parse::<u64>().is_ok() => words[3] = "N",
        [id, generation, ..] if [id, generation].iter().all(|w| w.parse::<u64>().is_ok()) => {
            words[1] = "N";
        }
        _ => return line.to_owned(),
    }
    words.join(" ")
}

fn told(program: &Path, line: &str, at: &str) -> Answered {
    let words = line.split(' ').map(|word| word.replace('@', at));
    let output: Output = Command::new(program).args(words).output().expect("it starts");
    assert!(output.status.success() != refused(line), "{line}: {}", text(&output.stderr));
    // Newer btrfs-progs than 6.2 tell the number, as ours do.
    let out = text(&output.stdout).replace(at, "@").replace("subvolume 259 (", "subvolume (");
    let list = line.contains(" list") || line.contains("get-default");
    let told = |line: &str| if list { without_generations(line) } else { line.to_owned() };
    Answered { code: output.status.code(), out: out.lines().map(told).collect() }
}

/// Waits for a rescan to end.
fn settle(program: &Path, at: &str) {
    let at_work = || {
        let output = Command::new(program).args(["quota", "rescan", "-s", at]).output();
        !text(&output.expect("it starts").stdout).contains("no rescan")
    };
    for _ in 0..1000 {
        if !at_work() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("a rescan of {at} does not end");
}

#[test]
fn scripts_for_btrfs_run_as_they_are() {
    require!(kernel_btrfs);
    require!(fuse);
    let (theirs, ours) = (Image::new("face-theirs"), Image::new("face-ours"));
    let link = ours.dir.join("btrfs");
    std::os::unix::fs::symlink(PROGRAM, &link).expect("a link");
    let kernels = KernelMount::new(&theirs.path, "noatime").expect("mount");
    let mount = Mount::new(&ours, "transport=classic");
    let (there, here) = (kernels.path().display().to_string(), mount.word());
    for line in LINES {
        if line.starts_with("quota rescan") {
            // What `quota enable` began may go on: to ask for more then is told otherwise.
            settle(Path::new("btrfs"), &there);
            settle(&link, &here);
        }
        let expected = told(Path::new("btrfs"), line, &there);
        let found = told(&link, line, &here);
        if refused(line) {
            // What btrfs-progs says then, and where, differs by version.
            assert_eq!(found.code, Some(1), "{line}");
        } else {
            assert_eq!((found.code, found.out), (expected.code, expected.out), "{line}");
        }
    }
    kernels.unmount().expect("unmount");
    mount.umount();
    let checked = Command::new(&link).args(["check", "--readonly", "-p"]).arg(&ours.path).output();
    let checked = checked.expect("it starts");
    assert!(checked.status.success(), "{}{}", text(&checked.stdout), text(&checked.stderr));
}

#[test]
fn json_is_asked_for_in_front() {
    let image = Image::new("face-json");
    let told = fine(&["btrfs", "--format", "json", "fi", "df", &image.word()]);
    assert_eq!(told, fine(&["filesystem", "df", "--json", &image.word()]));
    assert_eq!(common::failing(&["btrfs", "--format=xml", "fi", "df", &image.word()]).0, 1);
}

#[test]
fn what_is_lacking_is_told_by_name() {
    for (line, what) in [
        ("device add /dev/null /", "`btrfs device add` is not there yet"),
        ("rescue chunk-recover image", "`btrfs rescue chunk-recover` is not there yet"),
        ("rescue create-control-device", "mknod /dev/btrfs-control"),
        ("check --repair image", "`btrfs check --repair` is not there yet"),
    ] {
        let output = Command::new(PROGRAM).arg("btrfs").args(line.split(' ')).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert!(text(&output.stderr).contains(what), "{}", text(&output.stderr));
    }
}

/// Command lines, and what btrfs-progs 6.2 says of them behind the command's name, all with code 1.
const TOO_FEW: &[(&str, &str, &str)] = &[
    ("filesystem resize", "", "exactly 2 arguments expected, 0 given"),
    ("filesystem resize", "/x", "exactly 2 arguments expected, 1 given"),
    ("filesystem resize", "-- -128M", "exactly 2 arguments expected, 1 given"),
    ("filesystem resize", "-128M", "exactly 2 arguments expected, 1 given"),
    ("filesystem resize", "1:+128M", "exactly 2 arguments expected, 1 given"),
    ("filesystem resize", "1G /a /b", "exactly 2 arguments expected, 3 given"),
    ("filesystem sync", "", "exactly 1 argument expected, 0 given"),
    ("filesystem du", "", "not enough arguments: 0 but at least 1 expected"),
    ("subvolume show", "", "exactly 1 argument expected, 0 given"),
    ("subvolume snapshot", "/x", "exactly 2 arguments expected, 1 given"),
    ("subvolume find-new", "/x", "exactly 2 arguments expected, 1 given"),
    ("subvolume delete", "", "not enough arguments: 0 but at least 1 expected"),
    ("subvolume get-default", "", "exactly 1 argument expected, 0 given"),
    ("subvolume list", "/a /b", "exactly 1 argument expected, 2 given"),
    ("qgroup create", "1/1", "exactly 2 arguments expected, 1 given"),
    ("qgroup destroy", "1/1", "exactly 2 arguments expected, 1 given"),
    ("inspect-internal rootid", "", "exactly 1 argument expected, 0 given"),
    ("inspect-internal inode-resolve", "5", "exactly 2 arguments expected, 1 given"),
    ("scrub start", "", "exactly 1 argument expected, 0 given"),
    ("rescue super-recover", "", "exactly 1 argument expected, 0 given"),
    ("check", "", "exactly 1 argument expected, 0 given"),
];

/// Scripts and btrfs-progs' own tests look for these words. Its versions differ: what is installed here is no
/// judge.
#[test]
fn too_few_words_are_told_as_btrfs_progs_tells_them() {
    for (name, words, theirs) in TOO_FEW {
        let line = format!("{name} {words}");
        let mut program = Command::new(PROGRAM);
        let output = program.arg("btrfs").args(line.split_whitespace()).output();
        let output = output.expect("it starts");
        let said = text(&output.stderr);
        let told = said.starts_with(&format!("btrfs {name}: {theirs}"));
        assert!(output.status.code() == Some(1) && told, "{line}: {said}");
    }
}

/// As scripts from before `balance start` have it, which btrfs-progs takes still.
#[test]
fn balances_are_begun_by_their_old_words() {
    require!(fuse);
    let image = Image::new("face-old-words");
    let mount = Mount::new(&image, "transport=classic");
    let at = mount.word();
    for line in ["balance --full-balance", "fi balance start --full-balance", "bal start -dusage=0"]
    {
        let mut words = vec!["btrfs"];
        words.extend(line.split(' '));
        words.push(&at);
        let told = fine(&words);
        assert!(told.contains("Done, had to relocate"), "{line}: {told}");
    }
    // The other way has a warning in front, and time for who changes his mind.
    let mut command = Command::new(PROGRAM);
    let mut started =
        command.args(["btrfs", "balance", &at]).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut words = [0; 8];
    started.stderr.as_mut().expect("a pipe").read_exact(&mut words).expect("a warning");
    assert_eq!(&words, b"WARNING:");
    started.kill().and_then(|()| started.wait()).expect("it is gone");
    mount.umount();
}

/// Who builds an incremental stream on such a subvolume does not build on what was received.
#[test]
fn a_received_subvolume_that_is_writable_is_warned_of() {
    require!(kernel_btrfs);
    let image = Image::new("face-received");
    let kernels = KernelMount::new(&image.path, "noatime").expect("mount");
    let at = kernels.path().display().to_string();
    common::streams::shell(&format!(
        "cd {at}; btrfs -q subvolume create one; btrfs -q subvolume snapshot -r one two
        mkdir in; btrfs -q send two | btrfs -q receive in"
    ));
    let warned = |name: &str| {
        let place = format!("{}:/{name}", image.word());
        let output = Command::new(PROGRAM).args(["btrfs", "subvolume", "show", &place]).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said = text(&output.stderr);
        said.contains("WARNING") && said.contains("received_uuid")
    };
    kernels.unmount().expect("unmount");
    assert!(!warned("one") && !warned("two") && !warned("in/two"));
    // As older programs left it: the flag alone.
    let kernels = KernelMount::new(&image.path, "noatime").expect("mount");
    common::streams::shell(&format!(
        "python3 -c 'import fcntl,os,struct,sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.ioctl(fd, 0x4008941a, struct.pack(\"Q\", 0))' {}/in/two",
        kernels.path().display()
    ));
    kernels.unmount().expect("unmount");
    assert!(warned("in/two") && !warned("two"));
}

#[test]
fn help_is_there_of_each_group() {
    for group in [
        "balance",
        "device",
        "filesystem",
        "inspect-internal",
        "property",
        "qgroup",
        "quota",
        "replace",
        "rescue",
        "scrub",
        "subvolume",
        "sub",
    ] {
        let told = fine(&["btrfs", group, "--help"]);
        assert!(told.starts_with(&format!("Usage\n    btrfs {group}")), "{told}");
    }
    assert!(fine(&["btrfs", "device", "--help"]).contains("device add  "));
    assert_eq!(common::failing(&["btrfs", "device"]).0, 1);
}

/// The lines of `subvolume show` about quotas, and paths of what `-R` deletes, as btrfs-progs prints them.
#[test]
fn groups_of_a_subvolume_are_shown_with_it() {
    require!(kernel_btrfs);
    require!(fuse);
    let (theirs, ours) = (Image::new("face-group-theirs"), Image::new("face-group-ours"));
    let kernels = KernelMount::new(&theirs.path, "noatime").expect("mount");
    let mount = Mount::new(&ours, "transport=classic");
    let mut shown = Vec::new();
    for (program, at) in [
        (vec!["btrfs"], kernels.path().display().to_string()),
        (vec![PROGRAM, "btrfs"], mount.word()),
    ] {
        let ask = |line: &str| {
            let words = line.split(' ').map(|word| word.replace('@', &at));
            let output = Command::new(program[0]).args(&program[1..]).args(words).output().unwrap();
            assert!(output.status.success(), "{line}: {}", text(&output.stderr));
            text(&output.stdout)
        };
        ask("subvolume create @/one");
        assert!(!ask("subvolume show @/one").contains("Quota group"));
        ask("quota enable @");
        ask("quota rescan -w @");
        ask("qgroup limit 5M @/one");
        let told = ask("subvolume show @/one");
        let lines = told.lines().skip_while(|line| !line.contains("Snapshot(s)"));
        shown.push(lines.map(str::to_owned).collect::<Vec<_>>());
    }
    assert_eq!(shown[0], shown[1]);
    assert!(shown[1].len() > 5, "{:?}", shown[1]);
    fine(&["subvolume", "create", "-q", &format!("{}/one/two", mount.word())]);
    let told = fine(&["btrfs", "subvolume", "delete", "-R", &format!("{}/one", mount.word())]);
    assert!(told.contains(&format!(": '{}/one/two'\n", mount.word())), "{told}");
    kernels.unmount().expect("unmount");
    mount.umount();
}

/// LXD and Incus read `btrfs-progs v%s`, snapper and libstorage-ng look for `btrfs-progs v([0-9]+)\\.([0-9]+)`.
#[test]
fn the_version_is_told_as_programs_look_for_it() {
    for words in [["btrfs", "version"], ["btrfs", "--version"]] {
        let told = fine(&words);
        let (first, second) = told.split_once('\n').unwrap();
        let (major, minor) = first.strip_prefix("btrfs-progs v").unwrap().split_once('.').unwrap();
        assert!(major == "6" && minor.parse::<u32>().is_ok(), "{told}");
        assert_eq!(second, fine(&["version"]));
    }
}
