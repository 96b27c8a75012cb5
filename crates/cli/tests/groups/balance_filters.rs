//! Filters of `spinney balance start`: which chunks they choose.
//!
//! Judge: the kernel's balance with the same words on a copy of the same image. Behind both the same chunks of
//! those that were there are gone, and both say the same number.

use crate::common;
use common::streams::shell;
use common::{Image, KernelMount, MIB, TempDir, assert_clean, mkfs_btrfs, sh, spinney, text};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use testkit::require;

/// What a chunk's item says.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Chunk {
    len: u64,
    kind: String,
    /// Where its first stripe lies on the device.
    at: u64,
}

/// By logical address.
type Chunks = BTreeMap<u64, Chunk>;

fn chunks(image: &Path) -> Chunks {
    let dump = shell(&format!("btrfs inspect-internal dump-tree -t chunk {}", image.display()));
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text:?} in {dump}"));
    let mut chunks = Chunks::new();
    let mut last = 0;
    for line in dump.lines().map(str::trim) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, _, "key", "(FIRST_CHUNK_TREE", "CHUNK_ITEM", at, ..] => {
                last = number(at.trim_end_matches(')'));
                chunks.insert(last, Chunk { len: 0, kind: String::new(), at: 0 });
            }
            ["length", len, "owner", .., "type", kind] => {
                let chunk = chunks.get_mut(&last).expect("behind its key");
                (chunk.len, chunk.kind) = (number(len), kind.to_owned());
            }
            ["stripe", "0", "devid", _, "offset", at] => {
                chunks.get_mut(&last).expect("behind its key").at = number(at);
            }
            _ => {}
        }
    }
    assert!(chunks.values().all(|chunk| chunk.len > 0 && chunk.at > 0), "{chunks:?}");
    chunks
}

/// A volume with chunks of data of both profiles, filled in different degrees, and several of metadata; they are
/// small ones of a small device, which grows then, so that there is room for whatever a filter chooses.
///
/// Which chunk the kernel puts a file into, and so which of them the balances of this preparation move or remove,
/// differs from run to run: a volume that has too few of a kind is made again.
fn base(name: &str) -> (Image, Chunks) {
    for _ in 0..8 {
        let image = volume(name);
        let chunks = chunks(&image.path);
        let of = |kind: &str| chunks.values().filter(|c| c.kind.starts_with(kind)).count();
        if of("DATA|DUP") >= 2 && of("DATA|single") >= 2 && of("METADATA") >= 2 {
            return (image, chunks);
        }
        println!("made again: {chunks:?}");
    }
    panic!("eight volumes in turn had too few chunks of a kind");
}

fn volume(name: &str) -> Image {
    let dir = TempDir::new(name).unwrap();
    let path = dir.join("disk.img");
    mkfs_btrfs(&path, 256 * MIB, &["-n", "4096"]).unwrap();
    let image = Image { dir, path };
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    shell(&format!(
        "cd {} && for i in $(seq 50); do head -c 1500000 /dev/urandom >f$i; done && sync -f . && \
         btrfs -q balance start -dconvert=dup,limit=2 . && for i in $(seq 8); do mkdir d$i; \
         for j in $(seq 800); do printf %2000s $j >d$i/$j; done; done && sync -f .",
        mount.path().display()
    ));
    mount.unmount().unwrap();
    shell(&format!("truncate -s 1G {}", image.path.display()));
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    shell(&format!(
        "cd {} && btrfs -q filesystem resize max . && rm f?0 f?2 f?3 && sync -f . && \
         btrfs -q balance start -dusage=0 -musage=0 .",
        mount.path().display()
    ));
    mount.unmount().unwrap();
    image
}

/// What became of a balance: whether it was begun, what it said, and which chunks are gone.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    fine: bool,
    moved: Option<u64>,
    gone: Vec<u64>,
}

/// The number of `Done, had to relocate A out of B chunks`.
fn moved(said: &str) -> Option<u64> {
    said.trim().strip_prefix("Done, had to relocate ")?.split(' ').next()?.parse().ok()
}

fn seen(before: &Chunks, image: &Path, fine: bool, said: &str) -> Seen {
    assert_clean(image);
    let behind = chunks(image);
    // A new one may have got the address of one that is gone.
    let stays = |at: &u64, chunk: &Chunk| behind.get(at).is_some_and(|now| now.at == chunk.at);
    let gone = before.iter().filter(|(at, chunk)| !stays(at, chunk)).map(|(at, _)| *at).collect();
    Seen { fine, moved: moved(said), gone }
}

fn by_the_kernel(before: &Chunks, image: &Path, words: &str) -> Seen {
    let mount = KernelMount::new(image, "noatime").unwrap();
    let quoted: Vec<String> = words.split(' ').map(|word| format!("'{word}'")).collect();
    let place = mount.path().display();
    let done = sh(&format!("btrfs balance start {} {place}", quoted.join(" ")));
    mount.unmount().unwrap();
    seen(before, image, done.status.success(), &text(&done.stdout))
}

fn by_spinney(before: &Chunks, image: &Path, words: &str) -> Seen {
    let word = image.display().to_string();
    let mut all = vec!["balance", "start"];
    all.extend(words.split(' '));
    all.push(&word);
    let done = spinney(&all);
    seen(before, image, done.status.success(), &text(&done.stdout))
}

/// The words whose chunks are compared, of that volume.
fn words(chunks: &Chunks) -> Vec<String> {
    let data: Vec<(&u64, &Chunk)> =
        chunks.iter().filter(|(_, c)| c.kind.starts_with("DATA")).collect();
    let (second, third) = (data[1], data[2]);
    let mut words: Vec<String> = [
        "-dusage=50",
        "-dusage=0",
        "-dusage=30..70",
        "-dusage=..60",
        "-dusage=90..100",
        "-dlimit=2",
        "-dlimit=2..3",
        "-dlimit=40..50",
        "-dlimit=1 -mlimit=1",
        "-dprofiles=dup",
        "-dprofiles=single",
        "-dprofiles=single|raid1",
        "-dstripes=1..1",
        "-dstripes=2..4",
        "-mstripes=3..9",
        "-ddevid=1,limit=1",
        "-ddevid=2",
        "-dconvert=single,soft",
        "-dconvert=dup,soft,limit=1",
        "-dconvert=single,profiles=dup,limit=1",
        "-f -mconvert=single",
        "-mconvert=single",
        "-mconvert=dup,soft",
        "-msoft",
        "-ddrange=0..1G",
        "-m",
        "-f -s",
        "-s",
    ]
    .map(str::to_owned)
    .into();
    // From the last byte of one to the first of the next; between two; one byte of one.
    let end = second.0 + second.1.len;
    words.push(format!("-dvrange={}..{}", end - 1, third.0 + 1));
    words.push(format!("-dvrange={}..{end}", second.0));
    words.push(format!("-dvrange={end}.."));
    words.push(format!("-dvrange=..{}", second.0));
    let (at, end) = (second.1.at, second.1.at + second.1.len);
    words.push(format!("-ddevid=1,drange={at}..{end}"));
    words.push(format!("-ddevid=1,drange={}..{}", end - 1, end));
    words.push(format!("-ddevid=1,drange={end}.."));
    words.push(format!("-ddevid=1,drange=..{}", at + MIB));
    words.push(format!("-ddevid=1,drange=..{at},profiles=dup"));
    words
}

#[test]
fn filters_choose_what_the_kernels_choose() {
    require!(kernel_btrfs);
    let (image, before) = base("balance-filters");
    let [theirs, ours] = ["theirs.img", "ours.img"].map(|name| image.dir.join(name));
    let (mut differences, mut sets) = (Vec::new(), BTreeSet::new());
    for words in words(&before) {
        for copy in [&theirs, &ours] {
            let (from, to) = (image.path.display(), copy.display());
            shell(&format!("cp --sparse=always {from} {to}"));
        }
        let expected = by_the_kernel(&before, &theirs, &words);
        let seen = by_spinney(&before, &ours, &words);
        sets.insert(seen.gone.clone());
        if seen != expected {
            differences.push(format!("{words}: {seen:?}, the kernel's {expected:?}"));
        }
    }
    assert!(differences.is_empty(), "{differences:#?}\n{before:#?}");
    assert!(sets.len() > 10, "the filters choose the same chunks: {sets:?}");
}
