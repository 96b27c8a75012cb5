//! Volumes in partitions of whole disks: all verbs and mounts, judged by the kernel on the partition
//! devices that partx(8) makes, and by what lies outside of them, which stays as it was.

use crate::common;
use common::mount::{TRANSPORTS, lacks_fuse, loops_over, mounted};
use common::{MIB, PROGRAM, failing, fine, sh, spinney, text};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::oracle::{TempDir, assert_clean};
use testkit::require;

const HEAD: u64 = 24 * MIB;
const LEN: u64 = 300 * MIB;
const TAIL: u64 = 24 * MIB;

/// A whole disk whose bytes outside of one partition are known.
struct Disk {
    dir: TempDir,
    path: PathBuf,
    /// The one that is used.
    number: u32,
    start: u64,
}

impl Disk {
    /// `layout` makes it by sfdisk; bytes outside of `number`, which begins at `start`, are a pattern
    /// wherever there is no table.
    fn new(layout: &str, number: u32, start: u64) -> Disk {
        let dir = TempDir::new("partitions").expect("scratch directory");
        let path = dir.join("disk.img");
        let file = File::create(&path).unwrap();
        file.set_len(HEAD + LEN + TAIL).unwrap();
        for at in (0..HEAD + LEN + TAIL).step_by(MIB as usize) {
            let outside = at < start || at >= start + LEN;
            if outside {
                file.write_all_at(&vec![0xa5; MIB as usize], at).unwrap();
            }
        }
        let made = sh(&format!("printf '{layout}' | sfdisk -q --wipe never {}", path.display()));
        assert!(made.status.success(), "{}", text(&made.stderr));
        Disk { dir, path, number, start }
    }

    fn gpt() -> Disk {
        let layout = "label: gpt\\nstart=2048,size=20MiB\\nstart=24MiB,size=300MiB\\nsize=20MiB\\n";
        Disk::new(layout, 2, HEAD)
    }

    /// Two of 150 MiB, and their words.
    fn of_two() -> (Disk, [String; 2]) {
        let layout = "label: gpt\\nstart=2048,size=150MiB\\nsize=150MiB\\n";
        let disk = Disk::new(layout, 1, MIB);
        let words = [1, 2].map(|number| format!("{}@{number}", disk.path.display()));
        (disk, words)
    }

    /// The second logical one.
    fn logical() -> Disk {
        let layout = "label: dos\\nx1 : size=10MiB\\nx2 : size=330MiB,type=5\\n\
                      x5 : start=12MiB,size=8MiB\\nx6 : start=24MiB,size=300MiB\\n";
        Disk::new(layout, 6, HEAD)
    }

    fn word(&self) -> String {
        format!("{}@{}", self.path.display(), self.number)
    }

    fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.word())
    }

    fn outside(&self) -> Vec<u8> {
        let file = File::open(&self.path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), HEAD + LEN + TAIL);
        let mut bytes = vec![0; (HEAD + TAIL) as usize];
        file.read_exact_at(&mut bytes[..self.start as usize], 0).unwrap();
        file.read_exact_at(&mut bytes[self.start as usize..], self.start + LEN).unwrap();
        bytes
    }

    fn point(&self, name: &str) -> (PathBuf, String) {
        let point = self.dir.join(name);
        fs::create_dir_all(&point).unwrap();
        let word = point.display().to_string();
        (point, word)
    }

    /// Its own check, and the kernel's mount and `btrfs check` by its own partition device.
    fn judge(&self, look: impl FnOnce(&Path)) {
        assert!(fine(&["check", "--data", &self.word()]).contains("no damage found"));
        let kernel = KernelDisk::attach(&self.path, self.number);
        assert_clean(&kernel.node);
        let point = self.dir.join("kernel");
        fs::create_dir_all(&point).unwrap();
        run("mount", &[kernel.node.as_os_str(), point.as_os_str()]);
        look(&point);
        run("umount", &[point.as_os_str()]);
        assert_clean(&kernel.node);
    }
}

fn run(program: &str, words: &[&std::ffi::OsStr]) {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {}", text(&output.stderr));
}

/// The kernel's view of a whole disk.
struct KernelDisk {
    device: String,
    node: PathBuf,
}

impl KernelDisk {
    fn attach(disk: &Path, number: u32) -> KernelDisk {
        let output = sh(&format!("losetup -fP --show {}", disk.display()));
        assert!(output.status.success(), "{}", text(&output.stderr));
        let device = text(&output.stdout).trim().to_owned();
        let node = PathBuf::from(format!("{device}p{number}"));
        let kernel = KernelDisk { device, node };
        // Also where the kernel was built without knowing these tables.
        let told = sh(&format!("partx -d {0}; partx -a {0}", kernel.device));
        assert!(told.status.success(), "{}", text(&told.stderr));
        common::eventually("the partition has a node", || kernel.node.exists());
        kernel
    }
}

impl Drop for KernelDisk {
    fn drop(&mut self) {
        // The device would have them still when it is another image's.
        let _ = Command::new("partx").args(["-d", &self.device]).status();
        let _ = Command::new("losetup").args(["-d", &self.device]).status();
    }
}

macro_rules! needed {
    () => {
        require!(kernel_btrfs);
        require!(btrfs_progs);
        require!(Command::new("sfdisk").arg("-v").output().is_ok(), "sfdisk is not installed");
    };
}

#[test]
fn every_verb_takes_a_partition_and_leaves_the_rest_of_the_disk() {
    needed!();
    for disk in [Disk::gpt(), Disk::logical()] {
        let before = disk.outside();
        let word = disk.word();
        fine(&["mkfs", "-L", "part", &word]);
        let (source, _) = disk.point("source");
        fs::write(source.join("text"), "hello\n").unwrap();
        fs::write(source.join("large"), vec![7; 40 << 20]).unwrap();
        let source = source.display().to_string();
        fine(&["cp", "-r", &source, &disk.at("/")]);
        assert_eq!(fine(&["cat", &disk.at("/source/text")]), "hello\n");
        fine(&["mkdir", &disk.at("/dir")]);
        fine(&["mv", &disk.at("/source/large"), &disk.at("/dir/")]);
        fine(&["subvolume", "create", &disk.at("/sub")]);
        fine(&["cp", &disk.at("/source/text"), &disk.at("/sub/text")]);
        fine(&["subvolume", "snapshot", "-r", &disk.at("/sub"), &disk.at("/snap")]);
        let stream = disk.dir.join("stream").display().to_string();
        spinney(&["send", "-f", &stream, &disk.at("/snap")]);
        fine(&["mkdir", &disk.at("/received")]);
        let received = spinney(&["receive", "-f", &stream, &disk.at("/received")]);
        assert!(received.status.success(), "{}", text(&received.stderr));
        assert_eq!(fine(&["cat", &disk.at("/received/snap/text")]), "hello\n");
        assert_eq!(fine(&["filesystem", "label", &word]).trim(), "part");
        assert!(fine(&["ls", &disk.at("/")]).contains("received"));
        assert!(fine(&["dump-tree", "-t", "chunk", &word]).contains("chunk"));
        assert!(fine(&["dump-super", &word]).contains("part"));
        assert!(fine(&["info", &word]).contains("part"));
        fine(&["df", &word]);
        fine(&["filesystem", "usage", &word]);
        fine(&["scrub", "start", "-B", &word]);
        fine(&["quota", "enable", &word]);
        fine(&["balance", "start", "--full-balance", &word]);
        fine(&["rm", "-r", &disk.at("/dir")]);
        fine(&["trim", &word]);
        fine(&["rescue", "zero-log", &word]);
        // The disk is neither cut nor grown, whatever the volume becomes.
        fine(&["filesystem", "resize", "-20M", &word]);
        assert!(disk.outside() == before);
        fine(&["filesystem", "resize", "max", &word]);
        let (code, said) = failing(&["filesystem", "resize", "+1M", &word]);
        assert!(code == 1 && said.contains("New size too large"), "{said}");
        assert!(disk.outside() == before, "bytes outside of the partition changed");
        disk.judge(|point| {
            assert_eq!(fs::read_to_string(point.join("received/snap/text")).unwrap(), "hello\n");
            fs::write(point.join("kernels"), "too\n").unwrap();
        });
        assert_eq!(fine(&["cat", &disk.at("/kernels")]), "too\n");
        assert!(disk.outside() == before, "bytes outside of the partition changed");
    }
}

#[test]
fn a_partition_is_mounted_written_and_read_by_the_kernel() {
    needed!();
    require!(fuse);
    for (transport, options) in TRANSPORTS.iter().flat_map(|t| [(*t, ""), (*t, ",plain")]) {
        if lacks_fuse(transport) {
            continue;
        }
        let disk = Disk::gpt();
        fine(&["mkfs", &disk.word()]);
        let before = disk.outside();
        let (point, place) = disk.point("mnt");
        let how = format!("discard,transport={transport}{options}");
        let whole = disk.path.display().to_string();
        // By its number, and by its bytes.
        let by_bytes = format!("{how},offset=24M,sizelimit=300M");
        for (round, (image, options)) in [(disk.word(), how), (whole, by_bytes)].iter().enumerate()
        {
            fine(&["mount", "-q", "-o", options, image, &place]);
            for at in 0..20 {
                fs::write(point.join(format!("{round}-{at}")), vec![at; 4 << 20]).unwrap();
            }
            for at in 0..10 {
                fs::remove_file(point.join(format!("{round}-{at}"))).unwrap();
            }
            fine(&["filesystem", "sync", &place]);
            run("fstrim", &[point.as_os_str()]);
            fine(&["filesystem", "resize", "-8M", &place]);
            fine(&["filesystem", "resize", "max", &place]);
            fine(&["umount", &place]);
            assert!(loops_over(&disk.path).is_empty(), "its loop device is gone");
        }
        assert!(disk.outside() == before, "{transport}: bytes outside of the partition changed");
        disk.judge(|point| {
            for (round, at) in [(0, 10), (1, 19)] {
                assert!(
                    fs::read(point.join(format!("{round}-{at}"))).unwrap() == vec![at; 4 << 20]
                );
            }
        });
        assert!(disk.outside() == before);
    }
}

/// Two servers of the same bytes are one too many; of two partitions each has its own.
#[test]
fn partitions_are_held_apart_from_each_other() {
    needed!();
    require!(fuse);
    let (disk, [first, second]) = Disk::of_two();
    let image = disk.path.display().to_string();
    fine(&["mkfs", "-L", "first", &first]);
    fine(&["mkfs", "-f", "-L", "second", &second]);
    for options in ["rw", "plain"] {
        let [one, two, third] = ["one", "two", "third"].map(|name| disk.point(name).1);
        fine(&["mount", "-q", "-o", options, &first, &one]);
        for words in [&["touch", &format!("{first}:/x")][..], &["check", &first]] {
            let said = failing(words).1;
            assert!(said.contains("Spinney has it mounted on"), "{words:?}: {said}");
        }
        // The same bytes by another name, and bytes that are partly the same.
        let same = format!("{image}@@1M+150M");
        let across = format!("{image}@@100M+150M");
        for word in [&same, &across] {
            let said = failing(&["mkfs", "-f", word]).1;
            assert!(said.contains("in use"), "{word}: {said}");
        }
        assert!(failing(&["mount", &across, &third]).1.contains("in use"));
        // The first again is its mount once more, by either name.
        assert!(fine(&["mount", &same, &third]).contains("it is the mount on"));
        fine(&["umount", &third]);
        // Another partition is another volume, read, written and mounted.
        fine(&["touch", &format!("{second}:/x")]);
        fine(&["check", &second]);
        fine(&["mount", "-q", "-o", options, &second, &two]);
        assert_ne!(mounted(Path::new(&one)), mounted(Path::new(&two)));
        fs::write(Path::new(&one).join("a"), "first").unwrap();
        fs::write(Path::new(&two).join("a"), "second").unwrap();
        fine(&["umount", &one]);
        fine(&["touch", &format!("{first}:/y")]);
        fine(&["umount", &two]);
        assert_eq!(fine(&["cat", &format!("{first}:/a"), &format!("{second}:/a")]), "firstsecond");
        fine(&["rm", &format!("{first}:/a"), &format!("{second}:/a")]);
    }
}

/// A partition is content for the volume in another one; what has a byte of that is not.
#[test]
fn a_partition_is_copied_into_another_and_not_into_itself() {
    needed!();
    let (disk, _) = Disk::of_two();
    let layout = "label: gpt\\nstart=2048,size=4MiB\\nsize=200MiB\\n";
    let made = sh(&format!("printf '{layout}' | sfdisk -q --wipe never {}", disk.path.display()));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let (image, second) = (disk.path.display().to_string(), format!("{}@2", disk.path.display()));
    fine(&["mkfs", "-f", &second]);
    let boot = "boot".repeat(1 << 20);
    let file = File::options().write(true).open(&disk.path).unwrap();
    file.write_all_at(boot.as_bytes(), MIB).unwrap();
    let kernel = KernelDisk::attach(&disk.path, 2);
    let [first, itself] = [1, 2].map(|number| format!("{}p{number}", kernel.device));
    common::eventually("the first has a node", || Path::new(&first).exists());
    for volume in [&itself, &second] {
        let to = format!("{volume}:/boot.img");
        // As a new file, and over one that is there.
        for _ in 0..2 {
            fine(&["cp", &first, &to]);
            assert!(fine(&["cat", &to]) == boot);
            fine(&["truncate", "-s", "5", &to]);
        }
        for from in [&itself, &kernel.device, &image] {
            let (code, said) = failing(&["cp", from, &format!("{volume}:/new")]);
            assert!(code == 1 && said.contains("is the image that it was"), "{from}: {said}");
        }
    }
    drop(kernel);
    assert!(fine(&["check", "--data", &second]).contains("no damage found"));
}

#[test]
fn the_kernels_mount_of_a_partition_keeps_us_from_that_one_alone() {
    needed!();
    require!(fuse);
    let (disk, [first, second]) = Disk::of_two();
    let image = disk.path.display().to_string();
    fine(&["mkfs", &first]);
    fine(&["mkfs", "-f", &second]);
    let (point, place) = disk.point("kernel");
    let (_, ours) = disk.point("ours");
    for partitioned in [true, false] {
        let kernel = partitioned.then(|| KernelDisk::attach(&disk.path, 1));
        let mounting = match &kernel {
            Some(kernel) => format!("mount {} {place}", kernel.node.display()),
            None => format!("mount -o loop,offset={MIB},sizelimit={} {image} {place}", 150 * MIB),
        };
        assert!(sh(&mounting).status.success(), "{mounting}");
        for words in [&["touch", &format!("{first}:/x")][..], &["mount", &first, &ours]] {
            let said = failing(words).1;
            assert!(said.contains("is mounted on"), "{words:?}: {said}");
        }
        fine(&["touch", &format!("{second}:/x")]);
        fine(&["mount", "-q", &second, &ours]);
        fine(&["umount", &ours]);
        run("umount", &[point.as_os_str()]);
    }
    // And the other way round: a server gives up where the kernel mounts its partition, and goes on
    // beside a mount of another.
    let server = || text(&spinney(&["stats", &ours]).stdout);
    for (number, ends) in [(2, false), (1, true)] {
        fine(&["mount", "-q", &first, &ours]);
        let kernel = KernelDisk::attach(&disk.path, number);
        let mounting = format!("mount {} {place}", kernel.node.display());
        assert!(sh(&mounting).status.success(), "{mounting}");
        let written = || fs::write(Path::new(&ours).join("written"), "x").is_ok();
        if ends {
            common::eventually("the server gives up", || !written());
        } else {
            std::thread::sleep(std::time::Duration::from_millis(500));
            assert!(written(), "{}", server());
        }
        run("umount", &[point.as_os_str()]);
        let _ = spinney(&["umount", &ours]);
        common::eventually("it is unmounted", || mounted(Path::new(&ours)).is_none());
    }
}

/// What the table says is believed as far as it can be true.
#[test]
fn partitions_that_cannot_be_are_not_written() {
    require!(Command::new("sfdisk").arg("-v").output().is_ok(), "sfdisk is not installed");
    let disk = Disk::gpt();
    let image = disk.path.display().to_string();
    fine(&["mkfs", "-L", "inside", &disk.word()]);
    let entry = |number: u64| 1024 + (number - 1) * 128;
    let file = File::options().read(true).write(true).open(&disk.path).unwrap();
    let set = |number: u64, first: u64, last: u64| {
        file.write_all_at(&first.to_le_bytes(), entry(number) + 32).unwrap();
        file.write_all_at(&last.to_le_bytes(), entry(number) + 40).unwrap();
        let mut entries = vec![0; 128 * 128];
        file.read_exact_at(&mut entries, 1024).unwrap();
        let mut header = vec![0; 92];
        file.read_exact_at(&mut header, 512).unwrap();
        header[88..92].copy_from_slice(&crc32(&entries).to_le_bytes());
        header[16..20].fill(0);
        let sum = crc32(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&header, 512).unwrap();
    };
    let (begin, end) = (HEAD / 512, (HEAD + LEN) / 512);
    let cases = [
        // Longer than the disk; over the third; over the table at the disk's beginning, and at its end.
        (begin, (1 << 40), "ends behind the end of the disk"),
        (begin, end + 100, "overlaps partition 3"),
        (begin - 100, end - 1, "no btrfs volume"),
        (begin, (HEAD + LEN + TAIL) / 512 - 1, "overlaps the partition table"),
        (1, end - 1, "overlaps the partition table"),
        (end, begin, "has no partition 2"),
        (1 << 60, 1 << 61, "has no partition 2"),
        (1 << 40, 1 << 41, "behind the end of the disk"),
    ];
    let (_, place) = disk.point("mnt");
    for (first, last, why) in cases {
        set(2, first, last);
        let before = fs::read(&disk.path).unwrap();
        for words in [
            &["touch", &disk.at("/x")][..],
            &["mkfs", "-f", &disk.word()],
            &["mount", &disk.word(), &place],
        ] {
            if why.contains("no btrfs") && words[0] == "mkfs" {
                continue;
            }
            let said = failing(words).1;
            assert!(
                said.contains(why) || why.contains("no btrfs"),
                "{words:?}, {first}-{last}: {said}"
            );
        }
        assert!(fs::read(&disk.path).unwrap() == before, "{why}");
    }
    // What overlaps can be read all the same, and what is cut off as far as it goes.
    set(2, begin, end + 100);
    assert!(fine(&["info", &disk.word()]).contains("inside"));
    // The table at the end stands in for a damaged one.
    file.write_all_at(&[0; 512], 512).unwrap();
    fine(&["touch", &disk.at("/x")]);
    file.write_all_at(&[0; 512], HEAD + LEN + TAIL - 512).unwrap();
    assert!(failing(&["ls", &disk.at("/")]).1.contains("GPT is damaged"));
    // By its bytes it is there still.
    assert!(fine(&["ls", &format!("{image}@@24M:/")]).contains('x'));
    let said = failing(&["ls", &format!("{image}@@1000M:/")]).1;
    assert!(said.contains("and nothing at"), "{said}");
    let said = failing(&["ls", &format!("{image}@@100:/")]).1;
    assert!(said.contains("within a sector"), "{said}");
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0xedb8_8320))
    })
}

/// What people type, and what they are told.
#[test]
fn names_of_partitions() {
    require!(Command::new("sfdisk").arg("-v").output().is_ok(), "sfdisk is not installed");
    let disk = Disk::gpt();
    let image = disk.path.display().to_string();
    fine(&["mkfs", &disk.word()]);
    let said = failing(&["ls", &format!("{image}:/")]).1;
    assert!(said.contains(&format!("write `{}`", disk.word())), "{said}");
    let said = failing(&["ls", &format!("{image}@7:/")]).1;
    assert!(said.contains("has no partition 7; it has 1, 2, 3"), "{said}");
    let said = failing(&["check", &format!("{image}@1")]).1;
    assert!(said.contains("disk.img@1: ") && !said.contains("blkid"), "{said}");
    let (_, place) = disk.point("mnt");
    let said = failing(&["mount", "-o", "offset=1M", &disk.word(), &place]).1;
    assert!(said.contains("no offset= or sizelimit="), "{said}");
    // A file by that name is itself.
    fs::rename(&disk.path, disk.dir.join("other")).unwrap();
    fine(&["mkfs", "--size", "120M", &disk.word()]);
    assert!(fine(&["check", &disk.word()]).contains("no damage"));
    fs::remove_file(disk.word()).unwrap();
    let other = disk.dir.join("other").display().to_string();
    // Completed up to the path inside, as images are.
    let complete = |line: &str| {
        let output = Command::new(PROGRAM).args(["completions", "--line", line]).output().unwrap();
        text(&output.stdout)
    };
    assert!(complete(&format!("spinney ls {other}")).contains(&format!("{other}@2:/")));
    assert!(complete(&format!("spinney check {other}@")).contains(&format!("{other}@2")));
}
