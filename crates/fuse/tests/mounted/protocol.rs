//! What the server does when the engine misbehaves or is slow.

use crate::fixture::{self, Mount};
use crate::over_both_transports;
use crate::sys;
use fuse::Transport;
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

over_both_transports!(
    a_panic_is_an_io_error,
    an_unknown_operation_is_asked_again,
    slow_requests_hold_up_nobody,
    many_clients_at_once,
    operations_cost_few_requests,
    reading_and_small_requests_mix,
    killed_callers_leave_no_trace,
    detaching_under_load_ends,
);

fn a_panic_is_an_io_error(mount: &Mount) {
    for _ in 0..20 {
        let error = fs::metadata(mount.path("panic")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
    fs::write(mount.path("file"), "still serving").unwrap();
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"still serving");
}

fn an_unknown_operation_is_asked_again(mount: &Mount) {
    for _ in 0..2 {
        let error = fs::metadata(mount.path("unknown")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
    }
    fs::write(mount.path("file"), "").unwrap();
}

fn slow_requests_hold_up_nobody(mount: &Mount) {
    // The kernel itself keeps a directory's creates and lookups apart.
    fs::create_dir(mount.path("elsewhere")).unwrap();
    std::thread::scope(|scope| {
        // Fewer than the server's threads on one processor.
        for i in 0..3 {
            scope.spawn(move || fs::metadata(mount.path(&format!("elsewhere/slow{i}"))));
        }
        mount.spy.slow.wait_for(3);
        for i in 0..50 {
            fs::write(mount.path(&format!("f{i}")), "x").unwrap();
        }
        assert_eq!(mount.spy.slow.held(), 3, "all of them still under way");
        mount.spy.slow.release();
    });
}

fn many_clients_at_once(mount: &Mount) {
    std::thread::scope(|scope| {
        for client in 0..16 {
            scope.spawn(move || {
                let dir = mount.path(&format!("client{client}"));
                fs::create_dir(&dir).unwrap();
                for round in 0..60 {
                    let path = dir.join(format!("file{}", round % 7));
                    let data = vec![client as u8; 1000 * (round + 1)];
                    fs::write(&path, &data).unwrap();
                    assert!(fs::read(&path).unwrap() == data);
                    if round % 5 == 0 {
                        fs::remove_file(&path).unwrap();
                    }
                }
                fs::remove_dir_all(&dir).unwrap();
            });
        }
    });
    assert_eq!(fs::read_dir(mount.path("")).unwrap().count(), 0);
}

/// Requests of each kind so far, from the server's own counters.
fn requests(mount: &Mount) -> std::collections::BTreeMap<String, u64> {
    let room = sys::getxattr(&mount.path(""), "spinney.stats", 0).unwrap().len();
    let stats = sys::getxattr(&mount.path(""), "spinney.stats", room).unwrap();
    let stats = String::from_utf8(stats).unwrap();
    stats
        .trim_matches(['{', '}'])
        .split(',')
        .filter_map(|member| member.strip_prefix("\"fuse.requests.")?.split_once("\":"))
        .map(|(name, count)| (name.to_string(), count.parse().unwrap()))
        .collect()
}

/// What `work` costs in requests, done 100 times; a request now and then is ignored.
fn cost(mount: &Mount, work: impl Fn(usize)) -> String {
    let before = requests(mount);
    (0..100).for_each(work);
    let costs: Vec<String> = requests(mount)
        .into_iter()
        .map(|(name, count)| (count - before.get(&name).copied().unwrap_or(0), name))
        .filter(|(count, name)| *count >= 50 && !name.contains("forget"))
        .map(|(count, name)| format!("{} {name}", (count + 50) / 100))
        .collect();
    costs.join(", ")
}

fn operations_cost_few_requests(mount: &Mount) {
    let _kept = sys::CACHES.read();
    let path = |i: usize| mount.path(&format!("f{i}"));
    // Teaches the kernel that opening and closing needs no message.
    fs::write(path(1000), "x").unwrap();
    fs::read(path(1000)).unwrap();
    assert_eq!(
        cost(mount, |i| drop(fs::File::create_new(path(i)).unwrap())),
        "1 getattr, 1 lookup, 1 mknod"
    );
    assert_eq!(cost(mount, |i| drop(fs::File::open(path(i)).unwrap())), "");
    // The standard library wants the time of creation too, which only STATX brings.
    let stat = |i| assert!(fs::metadata(path(i)).unwrap().is_file());
    assert_eq!(cost(mount, stat), "1 statx");
    assert_eq!(cost(mount, stat), "");
    let file = fs::File::create(path(1000)).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    assert_eq!(cost(mount, |i| file.write_all_at(b"y", i as u64).unwrap()), "1 write");
    assert_eq!(cost(mount, |_| drop(fs::read(path(1000)).unwrap())), "");
    assert_eq!(cost(mount, |i| fs::remove_file(path(i)).unwrap()), "1 getattr, 1 unlink");
}

/// Beside rings, one wake-up serves many FORGETs; but who asks what is free hears of all.
#[test]
fn forgets_gather_until_it_matters() {
    fixture::run(Transport::Uring, forgets_gather);
}

fn forgets_gather(mount: &Mount) {
    const FILES: u64 = 300;
    let path = |i: u64| mount.path(&format!("f{i}"));
    (0..FILES).for_each(|i| fs::write(path(i), "x").unwrap());
    let messages = |mount| {
        let requests = requests(mount);
        ["forget", "batch_forget"].iter().filter_map(|name| requests.get(*name)).sum::<u64>()
    };
    let (before, forgotten) = (messages(mount), mount.spy.calls("forget"));
    let begin = Instant::now();
    (0..FILES).for_each(|i| fs::remove_file(path(i)).unwrap());
    // They gather for a millisecond, whatever happens.
    let last = begin.elapsed().as_millis() as u64 + 20;
    sys::statfs(&mount.path("")).unwrap();
    let forgotten = mount.spy.calls("forget") - forgotten;
    // More if another test drops the machine's caches meanwhile.
    assert!(forgotten >= FILES, "{forgotten} of {FILES}");
    let (messages, most) = (messages(mount) - before, last.max(FILES * 3 / 4));
    assert!(messages <= most, "{messages} messages for {FILES} files, {most} at most");
}

fn reading_and_small_requests_mix(mount: &Mount) {
    const LEN: usize = 6 << 20;
    let content = |i: usize| -> Vec<u8> { (0..LEN).map(|at| (at / 1000 + i) as u8).collect() };
    for i in 0..4 {
        fs::write(mount.path(&format!("big{i}")), content(i)).unwrap();
    }
    for _ in 0..4 {
        crate::sys::drop_caches();
        std::thread::scope(|scope| {
            for i in 0..4 {
                scope.spawn(move || {
                    let found = fs::read(mount.path(&format!("big{i}"))).unwrap();
                    assert!(found == content(i));
                });
                scope.spawn(move || {
                    for j in 0..50 {
                        let path = mount.path(&format!("small{i}-{j}"));
                        fs::write(&path, [i as u8; 3000]).unwrap();
                        assert_eq!(fs::read(&path).unwrap(), [i as u8; 3000]);
                        fs::remove_file(&path).unwrap();
                    }
                });
            }
        });
    }
}

fn killed_callers_leave_no_trace(mount: &Mount) {
    fs::create_dir(mount.path("dir")).unwrap();
    for round in 0..3 {
        let slow = mount.path(&format!("dir/slow{round}"));
        let mut caller = std::process::Command::new("stat").arg(slow).spawn().unwrap();
        mount.spy.slow.wait_for(1);
        caller.kill().unwrap();
        // It ends with its request, which the server has already.
        mount.spy.slow.release();
        caller.wait().unwrap();
        fs::write(mount.path("dir/file"), "served").unwrap();
        assert_eq!(fs::read(mount.path("dir/file")).unwrap(), b"served");
        mount.spy.slow.wait_for(0);
    }
}

fn detaching_under_load_ends(mount: &Mount) {
    fs::write(mount.path("big"), vec![1; 32 << 20]).unwrap();
    crate::sys::drop_caches();
    std::thread::scope(|scope| {
        for client in 0..6 {
            scope.spawn(move || {
                // Ends when the mount is no longer there.
                for round in 0.. {
                    let path = mount.path(&format!("f{client}-{round}"));
                    if !mount.path("big").exists() || fs::write(&path, "x").is_err() {
                        break;
                    }
                    let _ = fs::read(mount.path("big"));
                }
            });
        }
        std::thread::sleep(Duration::from_millis(150));
        mount.unmounter().unmount(true).unwrap();
    });
}
