//! Digests, trees and descriptors against the tool `fsverity` of fsverity-utils.

use fs_verity::{Builder, Descriptor, HashAlgorithm, Merkle, Params};
use std::convert::Infallible;
use std::fs;
use std::process::Command;
use testkit::oracle::TempDir;

fn content(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64 ^ len as u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state >> 7).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn ours(params: &Params, content: &[u8]) -> (Descriptor, Vec<u8>) {
    let merkle = Merkle::new(params, content.len() as u64).expect("a tree");
    let mut tree = vec![0xee; merkle.tree_size() as usize];
    let mut put = |at: u64, block: Vec<u8>| -> Result<(), Infallible> {
        tree[at as usize..][..block.len()].copy_from_slice(&block);
        Ok(())
    };
    let mut builder = Builder::new(&merkle);
    for block in content.chunks(merkle.block_size()) {
        let Ok(()) = builder.add(block, &mut put);
    }
    let Ok(root_hash) = builder.finish(&mut put);
    let data_size = content.len() as u64;
    let signature = Vec::new();
    (Descriptor { params: params.clone(), data_size, root_hash, signature }, tree)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Theirs {
    digest: String,
    descriptor: Vec<u8>,
    tree: Vec<u8>,
}

fn theirs(dir: &TempDir, params: &Params, content: &[u8]) -> Theirs {
    let path = |name: &str| dir.path().join(name);
    fs::write(path("file"), content).expect("a file");
    let mut tool = Command::new("fsverity");
    tool.args(["digest", "--compact"]).arg(path("file"));
    tool.arg(format!("--hash-alg={}", params.algorithm().name()));
    tool.arg(format!("--block-size={}", params.block_size()));
    tool.arg(format!("--out-merkle-tree={}", path("tree").display()));
    tool.arg(format!("--out-descriptor={}", path("descriptor").display()));
    if !params.salt().is_empty() {
        tool.arg(format!("--salt={}", hex(params.salt())));
    }
    let output = tool.output().expect("the tool runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{params:?} of {}: {said}", content.len());
    let read = |name: &str| fs::read(path(name)).expect("what the tool wrote");
    Theirs {
        digest: String::from_utf8(output.stdout).expect("hexadecimal").trim().into(),
        descriptor: read("descriptor"),
        tree: read("tree"),
    }
}

fn sizes(block: usize, hash: usize) -> Vec<usize> {
    let each = block / hash;
    let mut sizes = vec![0, 1, block - 1, block, block + 1, 3 * block + 7];
    // The last block of a level full, and one more.
    sizes.extend([each * block, each * block + 1]);
    if block == 1024 {
        sizes.extend([each * each * block - 1, each * each * block + 1]);
    }
    sizes.retain(|size| *size <= 8 << 20);
    sizes
}

#[test]
fn digests_trees_and_descriptors_are_the_tools() {
    let there = Command::new("fsverity").arg("--version").output().is_ok();
    testkit::require!(there, "fsverity-utils is not installed");
    let dir = TempDir::new("fs-verity").expect("a place");
    let salts = [&b""[..], b"x", &[0xa5; 31], &[7; 32]];
    let mut cases = 0;
    for algorithm in HashAlgorithm::ALL {
        for log in 10..=16 {
            for size in sizes(1 << log, algorithm.size()) {
                let salt = salts[cases % salts.len()];
                cases += 1;
                let params = Params::new(algorithm, 1 << log, salt).expect("allowed");
                let content = content(size);
                let (ours, tree) = ours(&params, &content);
                let theirs = theirs(&dir, &params, &content);
                assert_eq!(hex(ours.digest().as_bytes()), theirs.digest, "{params:?} {size}");
                assert!(tree == theirs.tree, "trees differ: {params:?} {size}");
                assert_eq!(ours.to_vec(), theirs.descriptor, "{params:?} {size}");
                assert_eq!(Descriptor::parse(&theirs.descriptor), Ok(ours));
            }
        }
    }
    assert!(cases > 100, "{cases}");
}

/// What the tool says of nothing, by SHA-256 and blocks of 4 KiB: for machines without it.
#[test]
fn the_digest_of_an_empty_file_is_known() {
    let params = Params::new(HashAlgorithm::Sha256, 4096, &[]).expect("allowed");
    let known = "3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95";
    assert_eq!(ours(&params, &[]).0.digest().to_string(), known);
}

#[test]
fn descriptors_that_cannot_be_are_refused() {
    let params = Params::new(HashAlgorithm::Sha512, 4096, b"salt").expect("allowed");
    let (good, _) = ours(&params, &content(10_000));
    let signed = Descriptor { signature: vec![1; 100], ..good };
    let bytes = signed.to_vec();
    assert_eq!(Descriptor::parse(&bytes).as_ref(), Ok(&signed));
    let changes: &[(usize, &[u8])] = &[
        (0, &[2]),
        (0, &[0]),
        (1, &[0]),
        (1, &[3]),
        (2, &[9]),
        (2, &[17]),
        (2, &[64]),
        (2, &[255]),
        (3, &[33]),
        (3, &[255]),
        (4, &[101]),
        (4, &[0xff; 4]),
        (112, &[1]),
        (255, &[1]),
    ];
    for (at, with) in changes {
        let mut bad = bytes.clone();
        bad[*at..at + with.len()].copy_from_slice(with);
        let parsed = Descriptor::parse(&bad);
        assert!(parsed.is_err(), "{with:?} at {at}: {parsed:?}");
    }
    assert!(Descriptor::parse(&bytes[..255]).is_err() && Descriptor::parse(&[]).is_err());
    assert!(Descriptor::parse(&[&bytes[..], &vec![0; 16384]].concat()).is_err());
}

/// Shapes of any size: no tree of more than eight levels, nothing that overflows.
#[test]
fn sizes_that_no_file_has_are_no_harm() {
    for algorithm in HashAlgorithm::ALL {
        for log in 10..=16 {
            let params = Params::new(algorithm, 1 << log, &[]).expect("allowed");
            for size in [1 << 40, 1 << 62, i64::MAX as u64, u64::MAX - 1, u64::MAX] {
                match Merkle::new(&params, size) {
                    Ok(merkle) => {
                        assert!(merkle.levels() <= fs_verity::MAX_LEVELS);
                        assert!(merkle.tree_size() < size);
                    }
                    Err(why) => assert!(log < 13, "{why}"),
                }
            }
        }
    }
    assert!(Params::new(HashAlgorithm::Sha256, 512, &[]).is_err());
    assert!(Params::new(HashAlgorithm::Sha256, 3000, &[]).is_err());
    assert!(Params::new(HashAlgorithm::Sha256, 1 << 17, &[]).is_err());
    assert!(Params::new(HashAlgorithm::Sha256, 4096, &[0; 33]).is_err());
}
