//! What the server does when the engine misbehaves or is slow.

use crate::fixture::Mount;
use crate::over_both_transports;
use crate::spy::SLOWNESS;
use std::fs;
use std::time::Instant;

over_both_transports!(
    a_panic_is_an_io_error,
    an_unknown_operation_is_asked_again,
    slow_requests_hold_up_nobody,
    many_clients_at_once,
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
        for _ in 0..3 {
            scope.spawn(|| fs::metadata(mount.path("elsewhere/slow")));
        }
        std::thread::sleep(SLOWNESS / 10);
        let begin = Instant::now();
        for i in 0..50 {
            fs::write(mount.path(&format!("f{i}")), "x").unwrap();
        }
        assert!(begin.elapsed() < SLOWNESS / 2, "{:?}", begin.elapsed());
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
