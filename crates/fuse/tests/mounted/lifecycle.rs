//! Mounting and unmounting.

use crate::fixture::{Mount, Scratch, able, with_transport};
use crate::spy::Spy;
use crate::starts;
use crate::sys::{self, sh};
use fuse::{Config, LoopDevice, Session, Source, Transport};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

const BOTH: [Transport; 2] = [Transport::Classic, Transport::Uring];

/// Each transport that works here.
fn each(test: impl Fn(Config)) {
    if !able() {
        return;
    }
    for transport in BOTH {
        let config = with_transport(transport);
        match Mount::new(&config) {
            Ok(_) => test(config),
            Err(vfs::FsError::Unsupported(what)) => println!("SKIPPED: {what}"),
            Err(error) => panic!("mounting: {error}"),
        }
    }
}

fn over_image(config: &Config) -> Config {
    Config { source: Source::Image("set by the fixture".into()), ..config.clone() }
}

#[test]
fn umount_of_a_block_mount_waits_for_the_commit() {
    each(|config| {
        let waited = (0..10).any(|_| umount_waits(&config));
        assert!(waited, "another mount namespace had it each time");
    });
}

/// False where somebody made a mount namespace meanwhile, which has a copy of the mount: then
/// umount(8) returns, and the volume is closed when that one ends.
fn umount_waits(config: &Config) -> bool {
    let spy = Spy { destroy_takes: Duration::from_millis(400), ..Spy::new() };
    let mut mount = Mount::of(spy, &over_image(config)).unwrap();
    let point = mount.unmounter().mountpoint().to_path_buf();
    let number = starts::number_on(&point).unwrap();
    let line = format!("{} fuseblk.spinney ", point.display());
    assert!(fs::read_to_string("/proc/mounts").unwrap().contains(&line));
    fs::write(mount.path("file"), "x").unwrap();
    let copied = in_another_namespace(&number);
    let begin = Instant::now();
    sh(&format!("umount {}", point.display()));
    let (destroyed, took) = (mount.spy.calls("destroy"), begin.elapsed());
    if destroyed == 0 && (copied || in_another_namespace(&number)) {
        starts::abort(&number);
        let _ = mount.join();
        return false;
    }
    assert_eq!(destroyed, 1, "destroyed before umount returned");
    assert!(took >= Duration::from_millis(400));
    let spy = mount.spy.clone();
    mount.join().unwrap();
    assert_eq!(spy.calls("destroy"), 1);
    let deadline = Instant::now() + Duration::from_secs(30);
    while !starts::loops_over(&point.with_file_name("image")).is_empty() {
        assert!(Instant::now() < deadline, "the loop device did not detach");
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Whether a process beside this one sees the mount with this number in a namespace of its own.
fn in_another_namespace(number: &str) -> bool {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let here = namespace("self");
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let pid = entry.file_name().to_string_lossy().into_owned();
        let there = namespace(&pid);
        let table = fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default();
        there.is_some_and(|there| Some(there) != here)
            && table.lines().any(|line| line.split(' ').nth(2) == Some(number))
    })
}

#[test]
fn syncfs_reaches_a_block_mount() {
    each(|config| {
        let mount = Mount::new(&over_image(&config)).unwrap();
        sys::syncfs(&File::open(mount.path("")).unwrap()).unwrap();
        // More if anybody on the machine calls sync(2).
        assert!(mount.spy.calls("sync") >= 1);
    });
}

/// A mount is in the table, and used, before `Session::mount` returns: what the kernel was
/// told by a file system that knew nobody to tell of changes, it remembered for ever.
#[test]
fn who_is_told_of_changes_is_known_before_the_first_call() {
    each(|config| {
        let spy = Spy { observe_takes: Duration::from_millis(100), ..Spy::new() };
        let early = Arc::new(OnceLock::new());
        let seen = early.clone();
        let mount = Mount::of_used(spy, &config, move |spy, point| {
            let below = point.parent().unwrap().metadata().unwrap().dev();
            let deadline = Instant::now() + Duration::from_secs(10);
            while point.metadata().unwrap().dev() == below {
                assert!(Instant::now() < deadline, "no mount");
            }
            seen.set(spy.all_calls()).unwrap();
        });
        assert_eq!(mount.unwrap().spy.calls("observe"), 1);
        let calls = early.get().unwrap();
        assert!(calls.contains_key("getattr") && calls.contains_key("observe"), "{calls:?}");
    });
}

#[test]
fn plain_mounts_destroy_at_the_end_of_the_session() {
    each(|config| {
        let mut mount = Mount::new(&config).unwrap();
        let spy = mount.spy.clone();
        mount.unmounter().unmount(false).unwrap();
        mount.join().unwrap();
        assert_eq!(spy.calls("destroy"), 1);
    });
}

#[test]
fn the_error_of_closing_is_told() {
    each(|config| {
        for config in [config.clone(), over_image(&config)] {
            let spy = Spy { destroy_fails: true, ..Spy::new() };
            let mut mount = Mount::of(spy, &config).unwrap();
            mount.unmounter().unmount(false).unwrap();
            let error = mount.join().unwrap_err();
            assert_eq!(error.errno(), libc::EUCLEAN);
        }
    });
}

#[test]
fn busy_mounts_refuse_or_detach() {
    each(|config| {
        let mut mount = Mount::new(&config).unwrap();
        fs::write(mount.path("file"), "x").unwrap();
        let file = File::open(mount.path("file")).unwrap();
        let busy = mount.unmounter().unmount(false).unwrap_err();
        assert_eq!(busy.raw_os_error(), Some(libc::EBUSY));
        mount.unmounter().unmount(true).unwrap();
        assert!(!mount.path("file").exists());
        assert_eq!(file.metadata().unwrap().len(), 1);
        assert_eq!(mount.spy.calls("destroy"), 0);
        drop(file);
        mount.join().unwrap();
    });
}

#[test]
fn an_aborted_connection_ends_the_session() {
    each(|config| {
        let mut mount = Mount::new(&config).unwrap();
        let spy = mount.spy.clone();
        let number = std::os::unix::fs::MetadataExt::dev(&fs::metadata(mount.path("")).unwrap());
        let unmounter = mount.unmounter();
        let control = Scratch::new();
        sh(&format!("mount -t fusectl none {}", control.0.display()));
        let abort = control.0.join(format!("{}/abort", libc::minor(number)));
        let aborted = fs::write(abort, "1");
        sh(&format!("umount {}", control.0.display()));
        aborted.unwrap();
        mount.join().unwrap();
        assert_eq!(spy.calls("destroy"), 1);
        unmounter.unmount(true).unwrap();
    });
}

#[test]
fn read_only_mounts_refuse_changes() {
    each(|config| {
        for config in [config.clone(), over_image(&config)] {
            let mount = Mount::new(&Config { read_only: true, ..config }).unwrap();
            let refused = fs::write(mount.path("file"), "x").unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
            assert_eq!(fs::read_dir(mount.path("")).unwrap().count(), 0);
        }
    });
}

#[test]
fn options_show_in_the_mount_table() {
    each(|config| {
        let mut config = Config { fsname: "a name".into(), ..config };
        config.apply_options("nosuid,nodev,noexec,noatime,max_read=65536").unwrap();
        let mount = Mount::new(&config).unwrap();
        let table = fs::read_to_string("/proc/mounts").unwrap();
        let point = mount.path("").display().to_string();
        let line = table.lines().find(|line| line.contains(point.trim_end_matches('/'))).unwrap();
        assert!(line.starts_with("a\\040name "), "{line}");
        for option in ["nosuid", "nodev", "noexec", "noatime", "max_read=65536", "fuse.spinney"] {
            assert!(line.contains(option), "{line}");
        }
    });
}

#[test]
fn a_dropped_session_leaves_no_mount() {
    each(|config| {
        let scratch = Scratch::new();
        let spy = Arc::new(Spy::new());
        let session = Session::mount(spy.clone(), &scratch.0, &config).unwrap();
        fs::write(scratch.0.join("file"), "x").unwrap();
        drop(session);
        assert!(!scratch.0.join("file").exists());
        assert_eq!(spy.calls("destroy"), 1);
    });
}

#[test]
fn failing_to_mount_is_an_error() {
    if !able() {
        return;
    }
    let nowhere = Session::mount(Arc::new(Spy::new()), "/does/not/exist", &Config::default());
    assert_eq!(nowhere.err().unwrap().errno(), libc::EIO);
    let scratch = Scratch::new();
    let source = Source::BlockDevice("/dev/null".into());
    let config = Config { source, ..Config::default() };
    assert!(Session::mount(Arc::new(Spy::new()), &scratch.0, &config).is_err());
}

#[test]
fn the_caller_may_attach_the_loop_device() {
    if !able() {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.0.join("image");
    File::create(&image).unwrap().set_len(4 << 20).unwrap();
    let attached = LoopDevice::attach(&image, false).unwrap();
    let path = attached.path().to_path_buf();
    let config = Config { source: Source::BlockDevice(path.clone()), ..Config::default() };
    let mount = Mount::new(&config).unwrap();
    drop(attached);
    assert_eq!(mount.block_device.as_deref(), Some(path.as_path()));
    assert!(sh("losetup -a").contains(&format!("{}:", path.display())), "the mount holds it");
}

#[test]
fn ordinary_users_mount_with_the_helper() {
    if !able() {
        return;
    }
    let scratch = Scratch::new();
    let point = scratch.0.join("mnt");
    fs::create_dir(&point).unwrap();
    std::os::unix::fs::chown(&point, Some(65534), Some(65534)).unwrap();
    // The test runs itself again as the user, for the ignored test below.
    let program = scratch.0.join("again");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    // Machines differ in who may open the device; in a mount namespace we decide.
    let output = sys::try_sh(&format!(
        "unshare -m sh -ec 'mknod {device} c 10 229; chmod 666 {device}
        mount --bind {device} /dev/fuse
        FUSE_TEST_POINT={} setpriv --reuid 65534 --regid 65534 --clear-groups {} \\
            --ignored --exact lifecycle::as_ordinary_user --nocapture'",
        point.display(),
        program.display(),
        device = scratch.0.join("device").display(),
    ));
    let text = String::from_utf8_lossy(&output.stdout).to_string();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "run by ordinary_users_mount_with_the_helper, as another user"]
fn as_ordinary_user() {
    let point = std::env::var("FUSE_TEST_POINT").unwrap();
    for transport in [Transport::Auto, Transport::Classic] {
        let spy = Arc::new(Spy::new());
        let owner = vfs::SetAttr { uid: Some(65534), ..Default::default() };
        let root = vfs::FileSystem::root(&spy.model);
        vfs::FileSystem::setattr(&spy.model, &Default::default(), root, &owner).unwrap();
        let session = Session::mount(spy.clone(), &point, &with_transport(transport)).unwrap();
        fs::write(format!("{point}/file"), "x").unwrap();
        assert_eq!(fs::read(format!("{point}/file")).unwrap(), b"x");
        let unmounter = session.unmounter();
        let serving = std::thread::spawn(move || session.run());
        let file = File::open(format!("{point}/file")).unwrap();
        assert_eq!(unmounter.unmount(false).unwrap_err().raw_os_error(), Some(libc::EBUSY));
        drop(file);
        unmounter.unmount(false).unwrap();
        serving.join().unwrap().unwrap();
        assert_eq!(spy.calls("destroy"), 1);
    }
}

static CALLED_BY: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// What a program has each thread do (give up rights, say) it has done before it serves.
#[test]
fn threads_do_first_what_the_program_wants() {
    each(|config| {
        let on_thread = || {
            // Time in which one that did not wait would serve.
            std::thread::sleep(Duration::from_millis(20));
            CALLED_BY.lock().unwrap().insert(sys::thread_id());
        };
        let config = Config { on_thread: Some(on_thread), ..config };
        let ready_with = |spy: &Spy, point: &std::path::Path| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while spy.looked_up_by.lock().unwrap().is_empty() {
                assert!(Instant::now() < deadline, "no mount");
                let _ = fs::metadata(point.join("name"));
            }
        };
        let mount = Mount::of_used(Spy::new(), &config, ready_with).unwrap();
        std::thread::scope(|scope| {
            for number in 0..32 {
                let path = mount.path(&format!("name{number}"));
                scope.spawn(move || fs::metadata(path).map(drop));
            }
        });
        let served_by = mount.spy.looked_up_by.lock().unwrap();
        let called_by = CALLED_BY.lock().unwrap();
        assert!(!served_by.is_empty() && served_by.is_subset(&called_by));
    });
}
