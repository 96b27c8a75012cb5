//! File contents through a mount.

use crate::fixture::{Mount, able, with_transport};
use crate::over_both_transports;
use crate::sys::{self, Mapping, sh};
use fuse::{Config, Transport};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

over_both_transports!(
    content_survives_the_page_cache,
    large_files_keep_every_byte,
    truncation_by_open_and_by_call,
    appending_from_two_threads,
    shared_mappings_reach_the_file,
    unlinked_files_stay_usable,
    temporary_files_get_names,
    allocation_and_holes,
    copies_within_the_mount,
    direct_io,
    synchronous_writes_are_synced,
    programs_can_be_run,
);

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        })
        .collect()
}

/// Makes the kernel forget pages and inodes, so that the next read asks the server.
fn drop_caches() {
    crate::sys::drop_caches();
}

fn content_survives_the_page_cache(mount: &Mount) {
    let path = mount.path("file");
    fs::write(&path, "hello").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello");
    drop_caches();
    assert_eq!(fs::read(&path).unwrap(), b"hello");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"J", 0).unwrap();
    file.write_all_at(b"!", 9).unwrap();
    drop(file);
    drop_caches();
    assert_eq!(fs::read(&path).unwrap(), b"Jello\0\0\0\0!");
}

fn large_files_keep_every_byte(mount: &Mount) {
    let path = mount.path("large");
    let data = pattern((9 << 20) + 4321, 1);
    fs::write(&path, &data).unwrap();
    drop_caches();
    assert!(fs::read(&path).unwrap() == data);
    let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let middle = pattern((3 << 20) + 77, 2);
    file.seek(SeekFrom::Start(1_234_567)).unwrap();
    file.write_all(&middle).unwrap();
    drop_caches();
    let mut all = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut all).unwrap();
    let mut expected = data;
    expected[1_234_567..1_234_567 + middle.len()].copy_from_slice(&middle);
    assert!(all == expected);
}

fn truncation_by_open_and_by_call(mount: &Mount) {
    let path = mount.path("file");
    fs::write(&path, "a long content").unwrap();
    File::create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    assert_eq!(fs::read(&path).unwrap(), b"");
    fs::write(&path, "another").unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(3).unwrap();
    file.set_len(6).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"ano\0\0\0");
    drop_caches();
    assert_eq!(fs::read(&path).unwrap(), b"ano\0\0\0");
}

fn appending_from_two_threads(mount: &Mount) {
    let path = mount.path("log");
    File::create(&path).unwrap();
    std::thread::scope(|scope| {
        for letter in [b'a', b'b'] {
            let path = &path;
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).open(path).unwrap();
                for _ in 0..200 {
                    file.write_all(&[letter; 100]).unwrap();
                }
            });
        }
    });
    let content = fs::read(&path).unwrap();
    assert_eq!(content.len(), 2 * 200 * 100);
    assert!(content.chunks(100).all(|line| line.iter().all(|byte| *byte == line[0])));
}

/// Says that it is waiting for its input to end.
const SYNCED: &str = "the mapping is synced";

/// Only another process may map a file of a mount that this one serves: munmap(2) waits for
/// the file to be written back with the lock of the address space held, which the server
/// needs as soon as it touches a new page. (Seen as a run that did not end.)
#[test]
#[ignore = "run by shared_mappings_reach_the_file, as a process of its own"]
fn as_a_process_with_a_mapping() {
    let path = std::env::var("FUSE_TEST_FILE").unwrap();
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut mapping = Mapping::new(&file, 10_000);
    mapping.bytes()[5000..5005].copy_from_slice(b"mmap!");
    mapping.sync();
    let mut direct = [0u8; 5];
    file.read_exact_at(&mut direct, 5000).unwrap();
    assert_eq!(&direct, b"mmap!");
    println!("{SYNCED}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    mapping.bytes()[0] = b'!';
}

fn shared_mappings_reach_the_file(mount: &Mount) {
    let path = mount.path("mapped");
    fs::write(&path, vec![b'.'; 10_000]).unwrap();
    let before = fs::metadata(&path).unwrap();
    let mut user = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "files::as_a_process_with_a_mapping", "--nocapture"])
        .env("FUSE_TEST_FILE", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(user.stdout.take().unwrap()).lines();
    let synced = said.by_ref().any(|line| line.unwrap().contains(SYNCED));
    assert!(synced, "{:?}", user.wait());
    // The server has it, not only the cache.
    let entry = vfs::FileSystem::lookup(
        &mount.spy.model,
        &vfs::Context::default(),
        vfs::FileSystem::root(&mount.spy.model),
        b"mapped",
    )
    .unwrap();
    let mut stored = [0u8; 5];
    vfs::FileSystem::read(&mount.spy.model, entry.attr.ino, 5000, &mut stored).unwrap();
    assert_eq!(&stored, b"mmap!");
    let after = fs::metadata(&path).unwrap();
    assert!((after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()));
    drop(user.stdin.take());
    assert!(said.any(|line| line.unwrap().contains("1 passed")));
    assert!(user.wait().unwrap().success());
    drop_caches();
    assert_eq!(fs::read(&path).unwrap()[0], b'!');
}

fn unlinked_files_stay_usable(mount: &Mount) {
    let path = mount.path("gone");
    fs::write(&path, "still here").unwrap();
    let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    drop_caches();
    let attributes = file.metadata().unwrap();
    assert_eq!((attributes.nlink(), attributes.len()), (0, 10));
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(b" and more").unwrap();
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here and more");
    file.set_len(2).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 2);
    drop(file);
    // Only the root is left once the kernel has given its references back.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while mount.spy.model.inode_count() > 1 {
        drop_caches();
        assert!(std::time::Instant::now() < deadline, "the inode was not forgotten");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

fn temporary_files_get_names(mount: &Mount) {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .mode(0o640)
        .open(mount.path(""))
        .unwrap();
    file.write_all(b"nameless").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read_dir(mount.path("")).unwrap().count(), 0);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    sh(&format!("ln -L /proc/{}/fd/{fd} {}", std::process::id(), mount.path("named").display()));
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    let named = fs::metadata(mount.path("named")).unwrap();
    assert_eq!((named.ino(), named.mode() & 0o777), (file.metadata().unwrap().ino(), 0o640));
    assert_eq!(fs::read(mount.path("named")).unwrap(), b"nameless");
}

fn allocation_and_holes(mount: &Mount) {
    let path = mount.path("sparse");
    let shown = path.display();
    fs::write(&path, vec![1u8; 64 << 10]).unwrap();
    let full = fs::metadata(&path).unwrap();
    sh(&format!("fallocate -p -o 16K -l 32K {shown}"));
    let punched = fs::metadata(&path).unwrap();
    assert_eq!(punched.len(), full.len());
    assert_eq!(punched.blocks(), full.blocks() - 64, "blocks follow a punched hole");
    let content = fs::read(&path).unwrap();
    assert!(content[..16 << 10].iter().all(|b| *b == 1));
    assert!(content[16 << 10..48 << 10].iter().all(|b| *b == 0));
    sh(&format!("fallocate -l 128K {shown}"));
    assert_eq!(fs::metadata(&path).unwrap().len(), 128 << 10);
    sh(&format!("fallocate -n -l 256K {shown}"));
    assert_eq!(fs::metadata(&path).unwrap().len(), 128 << 10);
    sh(&format!("fallocate -z -o 0 -l 4K {shown}"));
    assert_eq!(fs::read(&path).unwrap()[..4096], [0; 4096]);
    let refused = sys::try_sh(&format!("fallocate -c -o 0 -l 4K {shown}"));
    assert!(!refused.status.success());
    assert!(mount.spy.calls("fallocate") >= 4);
}

fn copies_within_the_mount(mount: &Mount) {
    let data = pattern((2 << 20) + 5, 3);
    fs::write(mount.path("from"), &data).unwrap();
    // The standard library copies by copy_file_range.
    let target = mount.path("to");
    fs::write(&target, "old").unwrap();
    let before = fs::metadata(&target).unwrap();
    assert_eq!(fs::copy(mount.path("from"), &target).unwrap(), data.len() as u64);
    assert!(mount.spy.calls("copy_range") > 0, "{:?}", mount.spy.all_calls());
    let after = fs::metadata(&target).unwrap();
    assert_eq!(after.len(), data.len() as u64);
    assert!(after.blocks() > before.blocks());
    assert!(after.mtime_nsec() != before.mtime_nsec());
    assert!(fs::read(&target).unwrap() == data);
    drop_caches();
    assert!(fs::read(&target).unwrap() == data);
}

fn direct_io(mount: &Mount) {
    let path = mount.path("direct");
    let mut open = OpenOptions::new();
    open.read(true).write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
    let file = open.open(&path).unwrap();
    let mut room = vec![0u8; (2 << 20) + 4096];
    let at = room.as_ptr().align_offset(4096);
    let data = pattern(2 << 20, 4);
    room[at..at + data.len()].copy_from_slice(&data);
    file.write_all_at(&room[at..at + data.len()], 0).unwrap();
    assert_eq!(file.metadata().unwrap().len(), data.len() as u64);
    room.fill(0);
    file.read_exact_at(&mut room[at..at + data.len()], 0).unwrap();
    assert!(room[at..at + data.len()] == data);
    assert!(fs::read(&path).unwrap() == data);
}

fn synchronous_writes_are_synced(mount: &Mount) {
    let open = |name: &str, flags| {
        let mut open = OpenOptions::new();
        open.write(true).create(true).truncate(false).custom_flags(flags);
        open.open(mount.path(name)).unwrap()
    };
    open("buffered", libc::O_DSYNC).write_all(b"x").unwrap();
    assert_eq!(mount.spy.calls("fsync"), 1, "the kernel follows a buffered write with FSYNC");
    fs::File::open(mount.path("buffered")).unwrap().sync_all().unwrap();
    fs::File::open(mount.path("")).unwrap().sync_all().unwrap();
    assert_eq!(mount.spy.calls("fsync"), 3);
    let direct = open("direct", libc::O_DIRECT | libc::O_DSYNC);
    let room = vec![7u8; 8192];
    let at = room.as_ptr().align_offset(4096);
    direct.write_all_at(&room[at..at + 4096], 0).unwrap();
    assert_eq!(mount.spy.calls("fsync"), 4, "and a direct one too");
    assert_eq!(mount.spy.calls("synchronous write"), 0, "so writing need not sync");
}

fn programs_can_be_run(mount: &Mount) {
    let path = mount.path("true");
    fs::copy("/bin/true", &path).unwrap();
    sh(&path.display().to_string());
    fs::write(mount.path("script"), "#!/bin/sh\necho ran\n").unwrap();
    sh(&format!("chmod +x {}", mount.path("script").display()));
    assert_eq!(sh(&mount.path("script").display().to_string()), "ran\n");
}

/// The kernel looks at no count of what it sends out of its cache.
#[test]
fn what_is_written_in_part_out_of_the_cache_is_an_error() {
    if !able() {
        return;
    }
    let config = Config { writeback: true, ..with_transport(Transport::Classic) };
    let mount = Mount::new(&config).expect("mount");
    let file = File::create(mount.path("file")).unwrap();
    let told = |halves| {
        mount.spy.writes_halves.store(halves, Ordering::Relaxed);
        file.write_all_at(&pattern(100_000, 5), 0).unwrap();
        file.sync_all().map_err(|error| error.raw_os_error())
    };
    assert_eq!(told(true), Err(Some(libc::ENOSPC)));
    assert_eq!(told(false), Ok(()));
    drop_caches();
    assert!(fs::read(mount.path("file")).unwrap() == pattern(100_000, 5));
}
