//! Every fuzz target with damaged seeds, for a second or two. `SPINNEY_FUZZ=N` does it for N
//! times as many inputs, from `SPINNEY_SEED` on. An input is made of the seed and its number
//! alone; a failure names both.

use std::panic::{AssertUnwindSafe, catch_unwind};

use blockdev::BlockDevice;
use btrfs_disk::compress::compress;
use btrfs_disk::items::Compression;
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use fuzzing::{Body, TARGETS, base};
use testkit::ops::Rng;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// One of the seeds with a few changes, of the kinds that fuzzers make.
fn mutated(seeds: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut data = any(seeds, rng).clone();
    for _ in 0..rng.below(4) {
        change(&mut data, seeds, rng);
    }
    data
}

fn any<'a>(seeds: &'a [Vec<u8>], rng: &mut Rng) -> &'a Vec<u8> {
    &seeds[rng.below(seeds.len() as u64) as usize]
}

fn change(data: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut Rng) {
    const ODD: [u64; 8] = [0, 1, 0x7F, 0xFF, 0xFFFF, 0xFFFF_FFFF, 1 << 63, u64::MAX];
    if data.is_empty() {
        data.push(rng.next_u64() as u8);
    }
    let len = data.len();
    let at = rng.below(len as u64) as usize;
    match rng.below(7) {
        0 | 1 => data[at] ^= 1 << rng.below(8),
        2 => data[at] = rng.next_u64() as u8,
        3 => {
            let width = 1 << rng.below(4);
            let bytes = ODD[rng.below(8) as usize].to_le_bytes();
            let end = len.min(at + width);
            data[at..end].copy_from_slice(&bytes[..end - at]);
        }
        4 => data.truncate(at),
        5 => {
            // A piece of another seed, at the same place.
            let other = any(seeds, rng);
            let end = other.len().min(len).min(at + 1 + rng.below(64) as usize);
            if at < end {
                data[at..end].copy_from_slice(&other[at..end]);
            }
        }
        _ => {
            let piece = data[at..len.min(at + 16)].to_vec();
            data.splice(at..at, piece);
        }
    }
}

/// Inputs until the count is reached; at least `sound` percent of them must get past the
/// gate, else they would show little.
fn drive(target: &str, seeds: &[Vec<u8>], count: u64, sound: u64) {
    let (_, body) = TARGETS.iter().find(|(name, _)| *name == target).expect("a target");
    let (seed, count) = (number("SPINNEY_SEED", 1), count * number("SPINNEY_FUZZ", 1));
    assert!(!seeds.is_empty());
    let mut passed = 0;
    for number in 0..count {
        let mut rng = Rng::new(seed.wrapping_mul(1 << 32).wrapping_add(number));
        let data = mutated(seeds, &mut rng);
        passed += u64::from(fed(target, *body, &data, seed, number));
    }
    println!("{target}: {passed} of {count} inputs from seed {seed} got past the gate");
    assert!(passed * 100 >= count * sound, "{target}: only {passed} of {count} passed the gate");
}

fn fed(target: &str, body: Body, data: &[u8], seed: u64, number: u64) -> bool {
    catch_unwind(AssertUnwindSafe(|| body(data))).unwrap_or_else(|_| {
        let path = std::env::temp_dir().join(format!("spinney-{target}-{seed}-{number}"));
        let kept = std::fs::write(&path, data);
        panic!("{target}: SPINNEY_SEED={seed}, input {number}, {} ({kept:?})", path.display())
    })
}

fn nodes() -> Vec<Vec<u8>> {
    let base = base();
    base.nodes.iter().map(|node| base.node_bytes(&*base.device, node.logical)).collect()
}

/// Items of real leaves in the form that the target takes.
fn items() -> Vec<Vec<u8>> {
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize;
    let mut all = Vec::new();
    for (node, bytes) in base().nodes.iter().zip(nodes()) {
        let (tree, count) = (node.tree.0, number(&bytes[96..100]));
        for slot in (0..count).step_by(3).take_while(|_| node.level == 0 && tree <= 13) {
            let header = &bytes[101 + 25 * slot..][..25];
            let (offset, size) = (number(&header[17..21]), number(&header[21..25]));
            if size / 4 < 256 {
                let lengths = [(size / 4) as u8, (size % 4) as u8];
                let item = &bytes[101 + offset..][..size];
                all.push([&[tree as u8][..], &header[..17], &lengths, item].concat());
            }
        }
    }
    all
}

#[test]
fn superblocks() {
    let device = &base().device;
    let copies = COPIES.iter().filter(|at| **at + SUPER_SIZE as u64 <= device.len());
    let read = |at: &u64| {
        let mut bytes = vec![0; SUPER_SIZE];
        device.read_at(*at, &mut bytes).expect("in range");
        bytes
    };
    drive("superblock", &copies.map(read).collect::<Vec<_>>(), 20_000, 20);
}

#[test]
fn whole_nodes() {
    drive("node", &nodes(), 20_000, 20);
}

#[test]
fn single_items() {
    drive("item", &items(), 60_000, 20);
}

#[test]
fn compressed_extents() {
    let text: Vec<u8> = (0..9000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
    let mut seeds = vec![[&[0x51][..], &text[..3000]].concat()];
    for (choice, kind) in [(1, Compression::Zlib), (2, Compression::Lzo), (3, Compression::Zstd)] {
        for len in [100, 4096, 18_900] {
            let stream = compress(kind, 1, 4096, &text[..len], 1 << 16).expect("it fits");
            let room = (len as u64).div_ceil(300).min(63) as u8;
            seeds.push([&[choice | room << 2][..], &stream].concat());
        }
    }
    drive("compressed", &seeds, 4000, 20);
}

#[test]
fn streams() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../btrfs-send/tests/golden");
    let seeds = ["full", "incremental", "protocol2"].map(|name| {
        let mut bytes = std::fs::read(format!("{golden}/{name}.stream")).expect("a kept stream");
        bytes.truncate(20_000);
        bytes
    });
    drive("stream", &seeds, 3000, 20);
}

/// Bytes without a form: every choice is one.
fn noise(count: u64, len: usize) -> Vec<Vec<u8>> {
    let one = |seed| {
        let mut bytes = vec![0; len];
        Rng::new(seed).fill(&mut bytes);
        bytes
    };
    (0..count).map(one).collect()
}

#[test]
fn whole_images() {
    drive("image", &noise(40, 400), 40, 20);
}

#[test]
fn operations_on_a_fresh_volume() {
    drive("operations", &noise(40, 24), 40, 90);
}

/// The targets in `fuzz/` are what is tested here, all of them and nothing else.
#[test]
fn fuzz_has_these_targets() {
    let fuzz = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz");
    let manifest = std::fs::read_to_string(format!("{fuzz}/Cargo.toml")).unwrap();
    for (name, _) in TARGETS {
        let file = format!("fuzz_targets/{name}.rs");
        let source = std::fs::read_to_string(format!("{fuzz}/{file}")).unwrap();
        let wanted = format!(
            "#![no_main]\nlibfuzzer_sys::fuzz_target!(|data: &[u8]| {{\n    fuzzing::{name}(data);\n}});\n"
        );
        assert_eq!(source, wanted, "{file}");
        let bin = format!("[[bin]]\nname = \"{name}\"\npath = \"{file}\"\n");
        assert!(manifest.contains(&bin), "{file} is not in fuzz/Cargo.toml");
    }
    let files = std::fs::read_dir(format!("{fuzz}/fuzz_targets")).unwrap().count();
    assert_eq!((files, manifest.matches("[[bin]]").count()), (TARGETS.len(), TARGETS.len()));
}
