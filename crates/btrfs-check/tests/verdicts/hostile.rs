//! Bytes that nobody would write: nodes and superblocks with random changes and valid
//! checksums. The check must end with a report or an error, never with a panic, and in
//! bounded time.

use crate::common;
use blockdev::{BlockDevice, MemDevice};
use btrfs_check::{CheckOptions, check};
use btrfs_disk::{ChecksumType, Superblock};
use btrfs_volume::{OpenOptions, Volume};
use common::{Scratch, mkfs_btrfs, mounted, ready};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NODE: usize = 4096;

/// xorshift64*
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

fn image(name: &str) -> Option<Vec<u8>> {
    if !ready() {
        return None;
    }
    let scratch = Scratch::new(name);
    let image = scratch.path("image");
    mkfs_btrfs(&image, "120M", "mkfs.btrfs --mixed -R quota");
    mounted(
        &image,
        "",
        "set -e; for i in $(seq 1 200); do echo $i > f$i; done
        head -c 200000 /dev/urandom > big; cp --reflink=always big clone
        btrfs -q subvolume create s; cp f1* s; btrfs -q subvolume snapshot s t; rm t/f11*
        for i in $(seq 1 150); do ln f1 s-link-with-a-long-name-$i; done; sync -f .; rm f7*",
    );
    Some(std::fs::read(&image).expect("image"))
}

/// Offsets of everything on the device that looks like a node of this volume.
fn nodes(bytes: &[u8], fsid: &[u8]) -> Vec<usize> {
    (1 << 20..bytes.len())
        .step_by(NODE)
        .filter(|at| &bytes[at + 32..at + 48] == fsid && bytes[at + 48..at + 56] != [0; 8])
        .collect()
}

/// Changes some bytes: a bit, a word that is somewhere else too, an extreme.
fn mutate(random: &mut Random, node: &mut [u8]) {
    for _ in 0..=random.below(3) {
        // Most bytes of interest are headers, keys and the items at the end.
        let at = match random.below(4) {
            0 => 48 + random.below(53),
            1 => 101 + random.below(600),
            _ => random.below(node.len() - 8),
        }
        .min(node.len() - 8);
        match random.below(4) {
            0 => node[at] ^= 1 << random.below(8),
            1 => node[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes()),
            2 => node[at..at + 8].fill(0),
            _ => {
                let from = random.below(node.len() - 8);
                node.copy_within(from..from + 8, at);
            }
        }
    }
}

/// True if something was found, or the volume did not open.
fn judge(device: &Arc<MemDevice>, what: &str) -> bool {
    let begin = Instant::now();
    let options = OpenOptions { read_only: true, ignore_log: true, ..OpenOptions::default() };
    let report = Volume::open(device.clone(), options).and_then(|volume| {
        let options =
            CheckOptions { verify_data: true, max_findings: 50, ..CheckOptions::default() };
        check(Arc::new(volume), &options)
    });
    assert!(begin.elapsed() < Duration::from_secs(20), "{what} takes too long");
    report.map_or(true, |report| !report.findings.is_empty())
}

#[test]
fn random_changes_of_nodes() {
    let Some(bytes) = image("hostile-nodes") else { return };
    let sb = Superblock::parse(&bytes[65536..65536 + 4096], 65536).expect("superblock");
    let nodes = nodes(&bytes, &sb.fields.fsid);
    let device = Arc::new(MemDevice::from_bytes(&bytes));
    let mut random = Random(0x5eed);
    let mut noticed = 0;
    for round in 0..3000 {
        let at = nodes[random.below(nodes.len())];
        let mut node = bytes[at..at + NODE].to_vec();
        mutate(&mut random, &mut node);
        ChecksumType::Crc32c.seal(&mut node);
        device.write_at(at as u64, &node).expect("in range");
        noticed += usize::from(judge(&device, &format!("round {round}, node at {at}")));
        device.write_at(at as u64, &bytes[at..at + NODE]).expect("in range");
    }
    // Many nodes on the device are of earlier commits, many bytes of no meaning here.
    println!("{noticed} of 3000 changes were noticed");
    assert!(noticed > 500, "only {noticed} changes were noticed");
}

#[test]
fn random_changes_of_superblocks() {
    let Some(bytes) = image("hostile-supers") else { return };
    let device = Arc::new(MemDevice::from_bytes(&bytes));
    let mut random = Random(0x5eed5);
    for round in 0..1500 {
        for at in [64 << 10, 64 << 20] {
            let mut sb = bytes[at..at + 4096].to_vec();
            let seed = random.0;
            mutate(&mut random, &mut sb[..900]);
            if at == 64 << 10 {
                random.0 = seed; // both copies alike
            }
            ChecksumType::Crc32c.seal(&mut sb);
            device.write_at(at as u64, &sb).expect("in range");
        }
        let _ = judge(&device, &format!("round {round}"));
    }
}
