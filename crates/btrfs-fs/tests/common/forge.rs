//! Names made so that a directory (or an inode, of attributes) files them all under one
//! hash. The hash is linear: four bytes at the end of any name bring it wherever one wants.

use testkit::oracle::name_hash;

const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The register from which four bytes of zeros lead to `hash`.
fn before_four_bytes(hash: u32) -> u32 {
    (0..32).fold(hash, |register, _| match register >> 31 {
        1 => ((register ^ POLYNOMIAL) << 1) | 1,
        _ => register << 1,
    })
}

/// `count` names of `len` bytes (12 at least) that begin with `prefix` and hash to `hash`.
pub fn forged(prefix: &str, hash: u32, len: usize, count: usize) -> Vec<Vec<u8>> {
    let names = (0u32..).map(|number| {
        let digits = len - 4 - prefix.len();
        let mut name = format!("{prefix}{number:0digits$x}").into_bytes();
        let end = before_four_bytes(hash) ^ name_hash(&name);
        name.extend(end.to_le_bytes());
        name
    });
    let usable = |name: &Vec<u8>| !name[name.len() - 4..].iter().any(|b| matches!(b, 0 | b'/'));
    names.filter(usable).take(count).collect()
}
