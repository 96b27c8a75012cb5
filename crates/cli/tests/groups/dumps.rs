//! `inspect-internal dump-tree` and `dump-super` under the name `btrfs`.
//!
//! Judge: btrfs-progs on the same images, which the kernel wrote. All of standard output is
//! compared, byte for byte, but for the line that tells the version.

use crate::common;
use common::{Image, KernelMount, PROGRAM, copies, fine, sh, text, told_behind};
use std::path::Path;
use std::process::{Command, Output};
use testkit::require;

/// Everything that a subvolume can hold, in the directory `$1`.
const FILL: &str = r#"
set -e; cd "$1"
btrfs quota enable . >/dev/null
echo hi > small; : > empty; head -c 3000 /dev/urandom > inline
dd if=/dev/urandom of=big bs=64k count=16 status=none
dd if=/dev/zero of=zeros bs=64k count=16 status=none
fallocate -l 300K pre; dd if=/dev/urandom of=pre bs=4k count=3 seek=2 conv=notrunc status=none
truncate -s 10M sparse; dd if=/dev/urandom of=sparse bs=4k count=1 seek=1000 conv=notrunc status=none
ln -s big sym; mkdir d links packed; ln big d/link
for i in $(seq 300); do ln small links/$(printf 'a-long-name-%03d-%0150d' $i 0) 2>/dev/null || break; done
setfattr -n user.x -v val big; setfattr -n user.y -v 0x41ff0a0042 big; setfattr -n user.none big
setfattr -n trusted.t -v x d; mkfifo fifo; mknod null c 1 3; mknod block b 7 0
touch nocow append; chattr +C nocow; chattr +a append; dd if=/dev/urandom of=nocow bs=64k count=2 status=none
chattr +c packed; dd if=/dev/zero of=packed/z bs=4k count=64 status=none
chattr -a append; chattr +AdS append
touch "$(printf 'odd\nname\t\377')" 'back\slash'
touch -d '1960-01-01 00:00:00' old; touch -d '2200-01-01 00:00:00' late
btrfs subvolume create s >/dev/null
for i in $(seq 40); do dd if=/dev/urandom of=s/f$i bs=4k count=$((i%5)) status=none; done
cp --reflink=always big s/rl; cp --reflink=always big s/rl2
sync -f .; btrfs subvolume snapshot s s2 >/dev/null; btrfs subvolume snapshot -r s s3 >/dev/null
dd if=/dev/urandom of=s/f3 bs=4k count=2 status=none; rm s2/f4
btrfs subvolume create s/in >/dev/null; btrfs subvolume set-default s2
btrfs property set big compression zstd
btrfs qgroup create 1/0 . ; btrfs qgroup assign --no-rescan 0/$(btrfs inspect rootid s) 1/0 . >/dev/null
btrfs qgroup limit 1G 1/0 . ; btrfs qgroup limit -e 100M s
sync -f .; btrfs quota rescan -w . >/dev/null
"#;

/// What fsync leaves in logs, and an inode without a name that is open.
const FSYNC: &str = r#"
set -e; cd "$1"
python3 - <<'END'
import os
for name in ("logged", "small", "d/new", "s/f7", "s/new"):
    f = os.open(name, os.O_RDWR | os.O_CREAT); os.write(f, b"y" * 9000); os.fsync(f)
os.unlink("links/" + sorted(os.listdir("links"))[3])
d = os.open("links", os.O_RDONLY); os.fsync(d)
END
"#;

/// References that are many, and shared: more than an extent's own item holds.
const SHARE: &str = r#"
set -e; cd "$1"; btrfs subvolume create s >/dev/null
dd if=/dev/urandom of=s/base bs=4k count=8 status=none
for i in $(seq 40); do cp --reflink=always s/base s/r$i; done
for i in $(seq 120); do echo $i > s/x$i; done; sync -f .
for i in $(seq 40); do btrfs subvolume snapshot s sn$i >/dev/null; done; sync -f .
for i in 1 7 13 19; do touch sn$i/r5; dd if=/dev/urandom of=sn$i/r9 bs=4k count=1 conv=notrunc status=none; done
sync -f .; btrfs balance start --full-balance . >/dev/null
for i in 3 9; do echo y >> sn$i/x7; done; sync -f .
"#;

/// Free space in so many pieces that bitmaps are shorter.
const SPLIT: &str = r#"
set -e; cd "$1"
python3 - <<'END'
import os, subprocess
for i in range(2000):
    with open(f"f{i}", "wb") as f: f.write(b"x" * 4096)
subprocess.run(["sync", "-f", "."], check=True)
for i in range(0, 2000, 2): os.unlink(f"f{i}")
subprocess.run(["sync", "-f", "."], check=True)
END
"#;

const TREES: &[&str] = &[
    "",
    "-e",
    "-d",
    "-r",
    "-R",
    "-u",
    "-d -u",
    "-r -e",
    "-t fs --dfs",
    "-t 256 --csum-headers",
    "-t csum --csum-items --noscan --bfs",
    "-t 2 -e",
    "-t CHUNK_TREE -r",
    "-t tree_log",
    "-t 77",
    "-b 22036480",
    "--dfs -b 0x1504000 -b 0x1500000",
];

const SUPERS: &[&str] =
    &["", "-f", "-a", "-f -a", "-s 1", "-s 2", "-i 0", "--bytenr 67108864", "-F --bytenr 4096"];

fn run(program: &str, first: &[&str], words: &str, image: &Path) -> Output {
    let words = words.split_whitespace();
    let mut command = Command::new(program);
    command.args(first).args(words).arg(image).env("TZ", "Asia/Kolkata");
    command.output().expect("it starts")
}

/// The first line that differs, with the one before it.
fn difference(ours: &[u8], theirs: &[u8]) -> Option<String> {
    let lines = |bytes: &[u8]| bytes.split(|b| *b == b'\n').map(text).collect::<Vec<_>>();
    let (ours, theirs) = (lines(ours), lines(theirs));
    let at = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at))?;
    let before = at.checked_sub(1).and_then(|at| theirs.get(at));
    Some(format!("line {at}, behind {before:?}: {:?}, not {:?}", ours.get(at), theirs.get(at)))
}

fn behind_the_first_line(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|b| *b == b'\n').map_or(bytes.len(), |at| at + 1);
    &bytes[end..]
}

fn trees_are_told_the_same(image: &Path, words: &str) -> Vec<u8> {
    let verb = ["inspect-internal", "dump-tree"];
    let theirs = run("btrfs", &verb, words, image);
    let ours = run(PROGRAM, &["btrfs", verb[0], verb[1]], words, image);
    let told = behind_the_first_line(&theirs.stdout);
    let found = difference(behind_the_first_line(&ours.stdout), told);
    assert_eq!(found, None, "dump-tree {words}: {}", text(&ours.stderr));
    told.to_vec()
}

fn supers_are_told_the_same(image: &Path, words: &str) {
    let verb = ["inspect-internal", "dump-super"];
    let theirs = run("btrfs", &verb, words, image);
    let ours = run(PROGRAM, &["btrfs", verb[0], verb[1]], words, image);
    assert_eq!(difference(&ours.stdout, &theirs.stdout), None, "dump-super {words}");
    assert_eq!(ours.status.code(), theirs.status.code(), "dump-super {words}");
}

/// All is told the same; what is told of all trees.
fn same(image: &Path) -> String {
    for words in SUPERS {
        supers_are_told_the_same(image, words);
    }
    let told: Vec<_> = TREES.iter().map(|words| trees_are_told_the_same(image, words)).collect();
    text(&told[0])
}

fn script(script: &str, at: &Path) {
    let output = Command::new("bash").args(["-c", script, "bash"]).arg(at).output().expect("bash");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn has(told: &str, all: &[&str]) {
    for what in all {
        assert!(told.contains(what), "no {what:?} in what is compared");
    }
}

#[test]
fn files_and_quotas_and_a_log_are_told_as_btrfs_progs_tells_them() {
    require!(kernel_btrfs);
    let image = Image::new("dumps-files");
    let kernels = KernelMount::new(&image.path, "noatime,nodiscard").expect("mount");
    script(FILL, kernels.path());
    script(FSYNC, kernels.path());
    let copy = image.dir.join("log.img");
    let copied = sh(&format!("cp --sparse=always {} {}", image.path.display(), copy.display()));
    assert!(copied.status.success());
    let told = same(&copy);
    has(&told, &["log tree key (TREE_LOG ROOT_ITEM 256)", "dir log end", "INODE_EXTREF"]);
    has(&told, &["type 2 (prealloc)", "flags 0x3(NODATASUM|NODATACOW)", "type XATTR", "data val"]);
    has(&told, &["QGROUP_RELATION 1/0", "max_referenced 1073741824", "device stats", "flags ON"]);
    kernels.unmount().expect("unmount");
    same(&image.path);
}

#[test]
fn shared_references_are_told_as_btrfs_progs_tells_them() {
    require!(kernel_btrfs);
    let image = Image::with("dumps-shared", &["-n", "4k", "-m", "single", "--csum", "sha256"]);
    let kernels = KernelMount::new(&image.path, "noatime").expect("mount");
    script(SHARE, kernels.path());
    kernels.unmount().expect("unmount");
    let told = same(&image.path);
    has(&told, &[" TREE_BLOCK_REF ", " SHARED_DATA_REF ", "shared data backref parent"]);
    has(&told, &["WRITTEN|RELOC", "node ", "FULL_BACKREF"]);
}

#[test]
fn other_kinds_of_volumes_are_told_as_btrfs_progs_tells_them() {
    require!(kernel_btrfs);
    for (options, mounted, work, what) in [
        (
            "-M --csum xxhash -L label",
            "noatime,compress-force=zlib",
            FILL,
            "type DATA|METADATA|single",
        ),
        ("-n 4k -O ^no-holes,^extref", "noatime,compress=lzo", FILL, "compression 2 (lzo)"),
        ("-O ^skinny-metadata,^extref,^no-holes", "noatime", SHARE, "tree block key ("),
        ("-d dup -n 32k --csum blake2", "noatime", SPLIT, "free space bitmap"),
        ("-n 64k -U 11111111-2222-3333-4444-555555555555", "noatime", SPLIT, "11111111-2222"),
    ] {
        let image = Image::with("dumps-kinds", &options.split(' ').collect::<Vec<_>>());
        let kernels = KernelMount::new(&image.path, mounted).expect("mount");
        script(work, kernels.path());
        kernels.unmount().expect("unmount");
        has(&same(&image.path), &[what]);
    }
}

#[test]
fn hidden_names_are_in_no_line() {
    require!(kernel_btrfs);
    let image = Image::new("dumps-hidden");
    let kernels = KernelMount::new(&image.path, "noatime").expect("mount");
    script(
        r#"set -e; cd "$1"; mkdir secret-dir; echo x > secret-dir/secret-file
           setfattr -n user.secret-name -v secret-value secret-dir/secret-file
           btrfs subvolume create secret-subvolume >/dev/null"#,
        kernels.path(),
    );
    kernels.unmount().expect("unmount");
    let words = "inspect-internal dump-tree".split(' ').collect::<Vec<_>>();
    let all = [&["btrfs"], &words[..]].concat();
    let told = text(&run(PROGRAM, &all, "--hide-names", &image.path).stdout);
    // Those of subvolumes as well, which btrfs-progs 6.2 forgets.
    assert!(!told.contains("secret"), "{told}");
    let theirs = text(&run("btrfs", &words, "--hide-names", &image.path).stdout);
    let plain = |told: &str| {
        let lines = told.lines().skip(1).filter(|line| !line.contains(" key dirid "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(plain(&told), plain(&theirs));
}

#[test]
fn a_copy_without_magic_or_with_a_bad_checksum_is_told_as_it_is() {
    require!(btrfs_progs);
    let image = Image::new("dumps-super");
    let at = |offset: u64, bytes: &[u8]| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(&image.path).expect("open");
        file.write_all_at(bytes, (64 << 10) + offset).expect("write");
    };
    // Flags and features that nobody knows, a label that no terminal should see as it is.
    at(56, &0xffff_ffff_ffff_fffb_u64.to_le_bytes());
    at(180, &u64::MAX.to_le_bytes());
    at(188, &u64::MAX.to_le_bytes());
    at(299, b"a\x1b[2J\xff");
    for words in SUPERS {
        supers_are_told_the_same(&image.path, words);
    }
    for (offset, bytes) in [(196, &[77, 0][..]), (160, &[0xff, 0xff]), (64, b"nothing")] {
        at(offset, bytes);
        for words in SUPERS {
            supers_are_told_the_same(&image.path, words);
        }
    }
}

#[test]
fn a_block_that_cannot_be_read_is_told_and_fails() {
    require!(btrfs_progs);
    let image = Image::new("dumps-block");
    for words in ["-b 4096", "-b 12345", "-b 13631488"] {
        trees_are_told_the_same(&image.path, words);
        let all = ["btrfs", "inspect-internal", "dump-tree"];
        let ours = run(PROGRAM, &all, words, &image.path);
        assert_eq!(ours.status.code(), Some(1), "{words}");
        assert!(!ours.stderr.is_empty(), "{words}");
    }
}

/// What its first copy says of itself is not believed where that is damaged.
#[test]
fn a_block_whose_first_copy_is_damaged_is_told_by_the_second() {
    use std::os::unix::fs::FileExt;
    require!(btrfs_progs);
    let image = Image::with("dumps-copy", &["-m", "dup"]);
    let fs = trees_are_told_the_same(&image.path, "-t 5");
    let leaf = told_behind(&text(&fs), "leaf ")[0];
    let words = ["dump-tree", "-b", &leaf.to_string(), &image.word()];
    let (block, before) = (format!("-b {leaf}"), fine(&words));
    let theirs = trees_are_told_the_same(&image.path, &block);
    let first = copies(&image.path, leaf)[0];
    let file = std::fs::File::options().read(true).write(true).open(&image.path).expect("open");
    let mut sound = vec![0; 101];
    file.read_exact_at(&mut sound, first).expect("read");
    // The owner, the level, all of the header.
    for (at, len) in [(88, 8), (100, 1), (0, 101)] {
        file.write_all_at(&vec![7; len], first + at).expect("write");
        let output = common::spinney(&words);
        assert_eq!(text(&output.stdout), before, "{}", text(&output.stderr));
        assert!(output.status.success());
        assert!(trees_are_told_the_same(&image.path, &block) == theirs);
        file.write_all_at(&sound, first).expect("write");
    }
}
