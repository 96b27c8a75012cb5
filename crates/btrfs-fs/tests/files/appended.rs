//! What the kernel's cache writes to a file that may only grow (`chattr +a`): it begins with the page that the file
//! ended in, and several parts of what was appended are under way at once.

use crate::common;
use btrfs_fs::BtrfsFs;
use common::{CX, Image, close_and_judge, errno, new_file};
use testkit::ops::Rng;
use vfs::{FallocateMode, FileSystem, Ino, SetAttr, SetTime, Timestamp, WriteFlags};

const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
const NODUMP: u32 = 0x40;
const CACHED: WriteFlags =
    WriteFlags { cached: true, direct: false, kill_priv: false, sync: false };
const MOST: usize = 1 << 20;

fn append_only(fs: &BtrfsFs, name: &str, content: &[u8]) -> Ino {
    let ino = new_file(fs, name, content);
    fs.set_flags(&CX, ino, APPEND).expect("chattr +a");
    ino
}

fn cached(fs: &BtrfsFs, ino: Ino, at: usize, content: &[u8]) -> i32 {
    errno(fs.write(&CX, ino, at as u64, content, CACHED))
}

fn content(fs: &BtrfsFs, ino: Ino) -> Vec<u8> {
    let mut content = vec![0; fs.getattr(ino).expect("there").size as usize];
    fs.read(ino, 0, &mut content).expect("read");
    content
}

fn random(rng: &mut Rng, len: usize) -> Vec<u8> {
    // Some of it zeros, as a gap has.
    (0..len).map(|_| (rng.next_u64() & 3) as u8).collect()
}

#[test]
fn pages_begin_with_what_is_there() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let ino = append_only(&fs, "file", b"");
    assert_eq!(cached(&fs, ino, 0, b"a"), 0);
    assert_eq!(cached(&fs, ino, 0, b"ab"), 0);
    fs.sync().expect("sync");
    assert_eq!(cached(&fs, ino, 0, b"abc"), 0);
    assert_eq!(content(&fs, ino), b"abc");
    for other in [&b"abd"[..], b"xbcd", b"\0bcd", b"x"] {
        assert_eq!(cached(&fs, ino, 0, other), libc::EPERM, "{other:?}");
    }
    let uncached = |at, content| errno(fs.write(&CX, ino, at, content, Default::default()));
    assert_eq!((uncached(0, b"abcd"), uncached(7, b"x")), (libc::EPERM, libc::EPERM));
    assert_eq!(content(&fs, ino), b"abc");
    close_and_judge(&image, fs);
}

/// As the kernel sends a file that has grown by much, in any order.
#[test]
fn parts_come_in_any_order() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    for seed in common::seeds(1, 8) {
        let mut rng = Rng::new(seed);
        let mut whole = random(&mut rng, 100 + seed as usize * 5000);
        let ino = append_only(&fs, &format!("file-{seed}"), &whole);
        for _ in 0..3 {
            let start = whole.len() / 4096 * 4096;
            let more = 1 + rng.below(9 << 20) as usize;
            whole.extend(random(&mut rng, more));
            let mut parts: Vec<usize> = (start..whole.len()).step_by(MOST).collect();
            while !parts.is_empty() {
                let at = parts.swap_remove(rng.below(parts.len() as u64) as usize);
                let part = &whole[at..whole.len().min(at + MOST)];
                assert_eq!(cached(&fs, ino, at, part), 0, "seed {seed}: at {at}");
                if rng.chance(5) {
                    fs.sync().expect("sync");
                }
            }
            assert!(content(&fs, ino) == whole, "seed {seed}");
        }
        // All of it is there, so nothing of it changes any more.
        let at = rng.below(whole.len() as u64) as usize / 4096 * 4096;
        let mut other = whole[at..whole.len().min(at + 4096)].to_vec();
        *other.last_mut().expect("a byte") ^= 4;
        assert_eq!(cached(&fs, ino, at, &other), libc::EPERM, "seed {seed}: at {at}");
    }
    close_and_judge(&image, fs);
}

/// Other flags make nothing of what is still to come a content that is there.
#[test]
fn other_flags_leave_gaps() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let ino = append_only(&fs, "file", b"");
    assert_eq!(cached(&fs, ino, 8192, &[2; 4096]), 0);
    fs.set_flags(&CX, ino, APPEND | NODUMP).expect("chattr +d");
    assert_eq!(cached(&fs, ino, 0, &[1; 8192]), 0);
    assert_eq!(cached(&fs, ino, 0, &[3; 8192]), libc::EPERM);
    assert!(content(&fs, ino) == [[1; 4096], [1; 4096], [2; 4096]].concat());
    close_and_judge(&image, fs);
}

/// Who allocates first what is appended then has written nothing yet.
#[test]
fn what_is_allocated_may_be_filled() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let ino = append_only(&fs, "file", b"");
    fs.fallocate(&CX, ino, FallocateMode::Allocate, 0, MOST as u64).expect("room");
    assert_eq!(cached(&fs, ino, 0, &[1; MOST]), 0);
    assert_eq!(cached(&fs, ino, 0, &[3; 4096]), libc::EPERM);
    assert!(content(&fs, ino) == [1; MOST]);
    close_and_judge(&image, fs);
}

/// Of a file that was closed to changes the kernel's cache tells the times of what it sent, once; a user sets none,
/// neither before nor behind that.
#[test]
fn times_of_content_are_not_a_users() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let ino = new_file(&fs, "file", b"");
    assert_eq!(cached(&fs, ino, 0, b"content"), 0);
    fs.set_flags(&CX, ino, IMMUTABLE).expect("chattr +i");
    let time = Timestamp { secs: 1_000_000, nanos: 7 };
    let (mtime, ctime) = (Some(SetTime::At(time)), Some(time));
    let of_user = SetAttr { mtime, ctime, ..SetAttr::default() };
    let of_content = SetAttr { of_content: true, ..of_user };
    let set = |set: &SetAttr| errno(fs.setattr(&CX, ino, set));
    assert_eq!(set(&of_user), libc::EPERM);
    assert_eq!(set(&of_content), 0);
    assert_eq!(fs.getattr(ino).expect("stat").mtime, time);
    assert_eq!((set(&of_content), set(&of_user)), (libc::EPERM, libc::EPERM));
    close_and_judge(&image, fs);
}

/// Of `touch` a kernel that caches writes tells the time of it, as that of both changes.
#[test]
fn an_append_only_file_can_be_touched_whoever_has_the_clock() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let ino = append_only(&fs, "file", b"content");
    let [time, other] = [7, 8].map(|nanos| Timestamp { secs: 1_000_000, nanos });
    let (atime, mtime) = (Some(SetTime::Now), Some(SetTime::At(time)));
    let touch = SetAttr { atime, mtime, ctime: Some(time), ..SetAttr::default() };
    let set = |set: &SetAttr| errno(fs.setattr(&CX, ino, set));
    assert_eq!(set(&touch), 0);
    assert_eq!(fs.getattr(ino).expect("stat").mtime, time);
    assert_eq!(set(&SetAttr { mtime: Some(SetTime::Now), ctime: None, ..touch }), 0);
    for refused in [
        SetAttr { ctime: Some(other), ..touch },
        SetAttr { ctime: None, ..touch },
        SetAttr { atime: None, ..touch },
    ] {
        assert_eq!(set(&refused), libc::EPERM);
    }
    close_and_judge(&image, fs);
}

/// Who is about to write takes them away first, and is refused only then.
#[test]
fn what_is_immutable_keeps_its_special_bits() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let ino = new_file(&fs, "file", b"program");
    let special = SetAttr { perm: Some(0o6755), ..SetAttr::default() };
    fs.setattr(&CX, ino, &special).expect("chmod");
    let kill = SetAttr { kill_priv: true, ..SetAttr::default() };
    for (flags, perm) in [(IMMUTABLE, 0o6755), (APPEND, 0o755)] {
        fs.set_flags(&CX, ino, flags).expect("chattr");
        let before = fs.getattr(ino).expect("there");
        fs.setattr(&CX, ino, &kill).expect("the write behind it is refused, not this");
        let after = fs.getattr(ino).expect("there");
        assert_eq!(after.perm, perm);
        assert_eq!(after.ctime == before.ctime, flags == IMMUTABLE);
    }
    close_and_judge(&image, fs);
}
