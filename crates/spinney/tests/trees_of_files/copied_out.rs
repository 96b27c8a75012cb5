//! Copies into directories of this machine that change meanwhile, that keep what they have, and in which
//! others left something; and what is left of a copy.

use spinney::tree::{CopyRules, Draft, Transfer, TransferEvent};
use spinney::{FormatOptions, MemDevice, Volume, VolumeOptions};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use testkit::oracle::{KernelMount, TempDir};
use vfs::{Context, XattrMode};

fn fresh() -> Volume {
    let device = Arc::new(MemDevice::new(256 << 20));
    FormatOptions::new().format(&*device).unwrap();
    VolumeOptions::new().write(true).open_device(device).unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// `top` with a default ACL, and in it a file and a directory with one that lets a user in and the group not.
fn with_acls() -> Volume {
    let volume = fresh();
    let acl = |at: &str, name: &[u8], dir: bool| {
        let entries = [(0x01, 6, !0), (0x02, 6, 1234), (0x04, 0, !0), (0x10, 6, !0), (0x20, 0, !0)];
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries.map(|(tag, perm, id): (u16, u16, u32)| {
            (tag.to_le_bytes(), (perm | u16::from(dir)).to_le_bytes(), id.to_le_bytes())
        }) {
            value.extend([&tag[..], &perm, &id].concat());
        }
        let ino = volume.find(at.as_bytes(), true).unwrap().ino();
        volume.fs().setxattr(&Context::default(), ino, name, &value, XattrMode::Set).unwrap();
    };
    volume.create_dir_all("top/d").unwrap();
    volume.write("top/f", b"content").unwrap();
    for (name, dir) in [("f", false), ("d", true)] {
        acl(&format!("top/{name}"), b"system.posix_acl_access", dir);
    }
    // This one keeps nobody out of the directory itself.
    acl("top", b"system.posix_acl_default", false);
    volume
}

/// The group's permissions beside an ACL are the most that anybody has whom it names; the group may have none.
#[test]
fn where_there_are_no_acls_nobody_gets_in_whom_one_keeps_out() {
    testkit::require!(kernel_btrfs);
    let dir = TempDir::new("no-acls").unwrap();
    let image = dir.join("noacl.img");
    testkit::oracle::mkfs_btrfs(&image, 256 << 20, &[]).unwrap();
    let mount = KernelMount::new(&image, "noacl").unwrap();
    let volume = with_acls();
    let to = mount.path().join("to");
    let copied = volume.export("top", &to).unwrap();
    assert_eq!(copied.skipped_xattrs, 3);
    let mode = |name: &str| fs::metadata(to.join(name)).unwrap().mode() & 0o777;
    assert_eq!([mode("f"), mode("d"), mode("")], [0o600, 0o700, 0o755]);
    mount.unmount().unwrap();
    // Where there are some the group has what the mask is.
    let copied = volume.export("top", dir.join("to")).unwrap();
    assert_eq!(copied.skipped_xattrs, 0);
    assert_eq!(fs::metadata(dir.join("to/f")).unwrap().mode() & 0o777, 0o660);
}

/// The kernel lists ACLs also where it does not go by them, and then nobody can read them.
#[test]
fn acls_that_come_in_from_where_there_are_none_are_counted() {
    testkit::require!(kernel_btrfs);
    let dir = TempDir::new("unread-acls").unwrap();
    let image = dir.join("acl.img");
    testkit::oracle::mkfs_btrfs(&image, 256 << 20, &[]).unwrap();
    let mount = KernelMount::new(&image, "").unwrap();
    let volume = with_acls();
    assert_eq!(volume.export("top", mount.path().join("to")).unwrap().skipped_xattrs, 0);
    mount.unmount().unwrap();
    for (options, skipped, modes) in [("", 0, [0o660, 0o771]), ("noacl", 3, [0o600, 0o700])] {
        let mount = KernelMount::new(&image, options).unwrap();
        volume.create_dir(format!("back{options}")).unwrap();
        let copied = volume.import(mount.path().join("to"), format!("back{options}")).unwrap();
        let mode =
            |name: &str| volume.metadata(format!("back{options}/{name}")).unwrap().permissions();
        assert_eq!(["f", "d"].map(|name| mode(name) & 0o777), modes);
        assert_eq!(copied.skipped_xattrs, skipped, "{options}");
        mount.unmount().unwrap();
    }
}

/// Whoever owns the directory that is merged into can put a link to another one at its name.
#[test]
fn what_is_merged_into_a_directory_goes_into_that_one() {
    let volume = fresh();
    volume.create_dir_all("d/sub").unwrap();
    for name in ["a", "b", "c"] {
        volume.write(format!("d/sub/{name}"), name.as_bytes()).unwrap();
    }
    volume.symlink("a", "d/sub/l").unwrap();
    for rules in [CopyRules::SAME, CopyRules { preserve: false, ..CopyRules::SAME }] {
        let dir = TempDir::new("merge-swapped").unwrap();
        let (host, away, other) = (dir.join("d"), dir.join("away"), dir.join("other"));
        fs::create_dir_all(host.join("sub")).unwrap();
        fs::create_dir(&other).unwrap();
        for name in ["a", "b", "l"] {
            fs::write(host.join("sub").join(name), "old").unwrap();
        }
        let swap = |event: &TransferEvent<'_>| {
            let TransferEvent::Progress { path, .. } = event else { return };
            if path.ends_with("sub/c") && !away.exists() {
                fs::rename(host.join("sub"), &away).unwrap();
                symlink(&other, host.join("sub")).unwrap();
            }
        };
        let transfer = Transfer::new(&volume, rules).on_event(swap);
        let node = volume.find(b"d", true).unwrap();
        transfer.export(&node, b"d", &host).unwrap();
        assert!(away.exists() && names(&other).is_empty(), "{:?}", names(&other));
        assert_eq!(names(&away), ["a", "b", "c", "l"]);
        assert_eq!(fs::read_link(away.join("l")).unwrap(), Path::new("a"));
    }
}

/// A process that has ended.
fn dead() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

/// Nobody can tell who made it: users may call their own so, and whoever is dead here may live in a container.
#[test]
fn what_is_called_like_something_left_over_stays() {
    let volume = fresh();
    volume.symlink("new", "l").unwrap();
    let node = volume.find(b"l", false).unwrap();
    let dir = TempDir::new("left-over").unwrap();
    let left = format!(".spinney-{}-0", dead());
    for name in [&left, ".spinney-1-2", "l"] {
        fs::write(dir.join(name), "old").unwrap();
    }
    Transfer::new(&volume, CopyRules::SAME).export(&node, b"l", &dir.join("l")).unwrap();
    assert_eq!(fs::read_link(dir.join("l")).unwrap(), Path::new("new"));
    let mut kept = vec![left, ".spinney-1-2".to_owned(), "l".to_owned()];
    kept.sort();
    assert_eq!(names(dir.path()), kept);
}

/// Of who was killed meanwhile it stayed there, half made.
#[test]
fn a_file_in_the_place_of_another_on_this_machine_has_no_name_until_it_is_whole() {
    let volume = fresh();
    volume.write("f", &vec![7; 3 << 20]).unwrap();
    volume.hard_link("f", "g").unwrap();
    let node = volume.find(b"f", false).unwrap();
    let dir = TempDir::new("nameless").unwrap();
    let host = dir.join("f");
    if let Err(error) = File::options().write(true).custom_flags(libc::O_TMPFILE).open(dir.path()) {
        return testkit::oracle::record_skip("files without a name", &error.to_string());
    }
    let seen = AtomicBool::new(false);
    let look = |event: &TransferEvent<'_>| {
        if let TransferEvent::Progress { bytes, .. } = event
            && *bytes < 3 << 20
        {
            seen.store(true, Ordering::Relaxed);
            assert_eq!(names(dir.path()), ["f"]);
        }
    };
    fs::write(&host, "old").unwrap();
    Transfer::new(&volume, CopyRules::SAME).on_event(look).export(&node, b"f", &host).unwrap();
    assert!(seen.into_inner() && fs::read(&host).unwrap() == vec![7; 3 << 20]);
    let made = fs::metadata(&host).unwrap();
    assert_eq!((names(dir.path()), made.nlink()), (vec!["f".to_owned()], 1));
    assert_eq!(made.mode() & 0o7777, volume.metadata("f").unwrap().permissions() & 0o7777);
}

fn names_in(volume: &Volume) -> Vec<String> {
    let entries = volume.read_dir("/").unwrap().into_iter();
    entries.map(|entry| entry.file_name().to_str().unwrap().to_owned()).collect()
}

#[test]
fn so_it_does_in_a_volume() {
    let volume = fresh();
    let dir = TempDir::new("left-in-volume").unwrap();
    volume.write("f", b"old").unwrap();
    volume.write(".spinney-1-3", b"older").unwrap();
    volume.create_dir(format!(".spinney-{}-1", dead())).unwrap();
    // What comes with the same copy, before the one that is replaced.
    fs::write(dir.join(".spinney-1-2"), "user's").unwrap();
    fs::write(dir.join("f"), "new").unwrap();
    fs::hard_link(dir.join("f"), dir.join("g")).unwrap();
    volume.import(dir.path(), "/").unwrap();
    let names = names_in(&volume);
    assert_eq!(names.len(), 5, "{names:?}");
    assert_eq!(volume.read(".spinney-1-2").unwrap(), b"user's");
    assert_eq!(volume.read("f").unwrap(), b"new");
}

/// Of who is killed meanwhile nothing is left.
#[test]
fn a_file_in_the_place_of_another_has_no_name_until_it_is_whole() {
    let volume = fresh();
    volume.write("f", b"old").unwrap();
    let top = volume.find(b"", true).unwrap();
    let cx = vfs::Context::default();
    for is_kept in [false, true] {
        let mut draft = Draft::new(&volume, &top, b"f", true).unwrap();
        let made = draft.make_file(&cx, 0o640).unwrap();
        volume
            .fs()
            .setattr(&cx, made.ino(), &vfs::SetAttr { size: Some(7), ..Default::default() })
            .unwrap();
        let ctime = volume.fs().getattr(made.ino()).unwrap().ctime;
        assert_eq!(names_in(&volume), ["f"]);
        match is_kept {
            true => draft.keep().unwrap(),
            false => drop(draft),
        }
        assert_eq!(names_in(&volume), ["f"]);
        let there = volume.find(b"f", false).unwrap().attr;
        assert_eq!(there.nlink, 1);
        assert_eq!((there.ino, there.ctime) == (made.ino(), ctime), is_kept);
        assert_eq!(volume.read("f").unwrap(), if is_kept { &[0; 7][..] } else { b"old" });
    }
}

/// Nothing is replaced where nothing may be taken away: what was made beside it would stay.
#[test]
fn a_directory_that_only_grows_keeps_what_it_has() {
    let volume = fresh();
    volume.symlink("new", "l").unwrap();
    volume.write("n", b"new").unwrap();
    let dir = TempDir::new("append-only").unwrap();
    let grows = dir.join("grows");
    fs::create_dir(&grows).unwrap();
    fs::write(grows.join("l"), "old").unwrap();
    let chattr = |how: &str, path: &Path| Command::new("chattr").arg(how).arg(path).output();
    if !chattr("+a", &grows).is_ok_and(|done| done.status.success()) {
        testkit::skip!("no chattr +a here");
    }
    let export = |name: &str| {
        let node = volume.find(name.as_bytes(), false).unwrap();
        Transfer::new(&volume, CopyRules::SAME).export(&node, name.as_bytes(), &grows.join(name))
    };
    let refused = export("l").map_err(|error| error.errno());
    let made = export("n");
    let there = names(&grows);
    chattr("-a", &grows).unwrap();
    assert_eq!(refused.unwrap_err(), Some(libc::EPERM));
    made.unwrap();
    assert_eq!(there, ["l", "n"]);
    // So it is with the file itself.
    chattr("+a", &grows.join("l")).unwrap();
    let (refused, there) = (export("l").is_err(), names(&grows));
    chattr("-a", &grows.join("l")).unwrap();
    assert!(refused);
    assert_eq!(there, ["l", "n"]);
}

/// An empty path leads nowhere, and a slash behind a name that nothing has says that a directory is to be there.
#[test]
fn a_path_that_is_empty_or_a_directorys_is_no_place_for_any_copy() {
    let volume = fresh();
    volume.create_dir_all("d").unwrap();
    volume.write("f", b"content").unwrap();
    let host = TempDir::new("export-slash").unwrap();
    let at = |name: &str| format!("{}/{name}", host.path().display());
    for (from, to, why) in [
        ("d", String::new(), "No such file"),
        ("f", String::new(), "No such file"),
        ("f", at("new/"), "not a directory"),
    ] {
        let told = volume.export(from, &to).unwrap_err().to_string();
        assert!(told.contains(why), "{from} {to}: {told}");
    }
    symlink("f", host.join("dangling")).unwrap();
    assert!(volume.import(at("dangling/"), "l").is_err());
    assert_eq!(names(host.path()), ["dangling"]);
    volume.export("d", at("new/")).unwrap();
    assert!(host.join("new").is_dir());
}

/// Who waits until somebody opens a pipe to be read.
struct Waiting {
    /// Where the kernel tells of his thread.
    task: PathBuf,
    is_through: Arc<AtomicBool>,
    pipe: PathBuf,
    thread: JoinHandle<()>,
}

impl Waiting {
    fn at(pipe: &Path) -> Waiting {
        let is_through = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let (path, through) = (pipe.to_owned(), is_through.clone());
        let thread = std::thread::spawn(move || {
            tell.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
            File::options().write(true).open(path).unwrap();
            through.store(true, Ordering::SeqCst);
        });
        let task = Path::new("/proc").join(told.recv().unwrap());
        Waiting { task, is_through, pipe: pipe.to_owned(), thread }
    }

    /// Once he sleeps: who was let go is awake until he has said so.
    fn still_waits(&self) -> bool {
        let sleeps =
            || fs::read_to_string(self.task.join("stat")).is_ok_and(|s| s.contains(") S "));
        while !self.is_through.load(Ordering::SeqCst) {
            if sleeps() {
                return !self.is_through.load(Ordering::SeqCst);
            }
            std::thread::yield_now();
        }
        false
    }

    fn let_go(self) {
        let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&self.pipe);
        self.thread.join().unwrap();
        drop(reader.unwrap());
    }
}

/// What is only replaced is not opened: that lets go who waits for the other end of a pipe, and makes devices do
/// something.
#[test]
fn a_pipe_that_is_replaced_is_not_opened() {
    let volume = fresh();
    let dir = TempDir::new("pipe-replaced").unwrap();
    let mkfifo = |path: &Path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let from = dir.join("from");
    fs::create_dir(&from).unwrap();
    symlink("new", from.join("l")).unwrap();
    mkfifo(&from.join("p"));
    volume.import(&from, "/").unwrap();
    for name in ["l", "p"] {
        let (there, same) = (dir.join(name), dir.join(&format!("{name}-too")));
        mkfifo(&there);
        fs::hard_link(&there, &same).unwrap();
        let writer = Waiting::at(&same);
        assert!(writer.still_waits());
        let node = volume.find(name.as_bytes(), false).unwrap();
        Transfer::new(&volume, CopyRules::SAME).export(&node, name.as_bytes(), &there).unwrap();
        assert!(writer.still_waits(), "{name}");
        writer.let_go();
        let which = |path: &Path| path.symlink_metadata().unwrap().ino();
        assert_ne!(which(&there), which(&same), "{name}");
    }
    assert_eq!(fs::read_link(dir.join("l")).unwrap(), Path::new("new"));
}
