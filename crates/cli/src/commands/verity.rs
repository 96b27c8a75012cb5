//! `spinney verity enable` and `verity measure`.

use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::subvolume::place::{self, VolumePath};
use crate::error::{Error, Exit, Result};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::{Json, Out, hex};
use crate::show::printable;
use btrfs_fs::{Subvol, VerityWish};
use fs_verity::{HashAlgorithm, Params};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;

pub const COMMANDS: &[&Command] = &[&ENABLE, &MEASURE];

const ENABLE: Command = Command {
    name: "verity enable",
    summary: "have reads of files verified, and their content stay",
    usage: "[OPTIONS] FILE...",
    help: "\
Makes a tree of hashes of each file (fs-verity). From then on its content stays as it is, and
every read of it is held against that tree: what does not match is an error. Owner, mode,
times, attributes and names may change, and the file can be deleted. There is no way back but
a copy. FILE is in a mount or in an image.

Options
        --hash-alg NAME     sha256 (where nothing is said) or sha512
        --block-size SIZE   of 1K, 2K or 4K (4K)
        --salt HEX          in front of each block, up to 32 bytes
        --signature FILE    kept with the file, up to 16,128 bytes; nobody here checks it
        --subvol PATH, --subvolid ID
                            paths in an image start from this subvolume, not the default one

Examples
    spinney verity enable /mnt/bin/tool
    spinney verity enable --hash-alg sha512 disk.img:/release.tar
",
    run: enable,
};

const MEASURE: Command = Command {
    name: "verity measure",
    summary: "tell the digest that reads of files are verified by",
    usage: "[--json] [--subvol PATH | --subvolid ID] FILE...",
    help: "\
Tells of each file the digest that stands for all of its content: the hash and its name, as
`fsverity measure` and `fsverity digest` do. FILE is in a mount or in an image.

Options
        --json              as a JSON object
        --subvol PATH, --subvolid ID
                            paths in an image start from this subvolume, not the default one

Examples
    spinney verity measure /mnt/bin/tool
    spinney verity measure disk.img:/release.tar
    spinney verity measure --json disk.img:/bin/tool | jq -r '.files[].digest'
",
    run: measure,
};

struct Words {
    algorithm: HashAlgorithm,
    block_size: u64,
    salt: Vec<u8>,
    signature: Option<PathBuf>,
    json: bool,
    subvol: Subvol,
    files: Vec<OsString>,
}

fn words(mut args: Args, enables: bool) -> Result<Words> {
    let mut words = Words {
        algorithm: HashAlgorithm::Sha256,
        block_size: 4096,
        salt: Vec::new(),
        signature: None,
        json: false,
        subvol: Subvol::Default,
        files: Vec::new(),
    };
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("hash-alg") if enables => words.algorithm = algorithm(&args.text()?)?,
            Arg::Long("block-size") if enables => words.block_size = args.size()?,
            Arg::Long("salt") if enables => words.salt = bytes(&args.text()?)?,
            Arg::Long("signature") if enables => words.signature = Some(args.path()?),
            Arg::Long("json") if !enables => words.json = true,
            Arg::Long("subvol") => words.subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => words.subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => words.files.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    if words.files.is_empty() {
        return Err(Error::usage("the file is missing"));
    }
    Ok(words)
}

fn algorithm(name: &str) -> Result<HashAlgorithm> {
    HashAlgorithm::from_name(name)
        .ok_or_else(|| Error::usage(format!("no hash algorithm {name}: sha256 and sha512 are")))
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    let wrong = || Error::usage(format!("{hex:?} is no salt; write bytes as 00ff"));
    let digits = hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !digits || !hex.len().is_multiple_of(2) {
        return Err(wrong());
    }
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).map_err(|_| wrong());
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn enable(args: Args) -> Result<Exit> {
    let words = words(args, true)?;
    let size = u32::try_from(words.block_size).unwrap_or(0);
    let params = Params::new(words.algorithm, size, &words.salt)
        .map_err(|why| Error::usage(why.to_string()))?;
    let signature = match &words.signature {
        Some(path) => std::fs::read(path).map_err(|e| Error::io(path, &e))?,
        None => Vec::new(),
    };
    let wish = VerityWish { params, signature };
    let places: Vec<VolumePath> =
        words.files.iter().map(|word| VolumePath::of_any_file(word)).collect();
    place::at(&places, words.subvol, true, |open, failures| {
        for place in &places {
            failures.keep(open.enable_verity(place, &wish));
        }
        Ok(())
    })
}

fn measure(args: Args) -> Result<Exit> {
    let words = words(args, false)?;
    let places: Vec<VolumePath> =
        words.files.iter().map(|word| VolumePath::of_any_file(word)).collect();
    place::at(&places, words.subvol, false, |open, failures| {
        let mut out = Out::new();
        let terminal = std::io::stdout().is_terminal();
        let mut measured = Vec::new();
        for place in &places {
            let found = open.measure_verity(place).and_then(|(algorithm, digest)| {
                let hex = hex(&digest);
                if words.json {
                    measured.push((place, algorithm, hex));
                    return Ok(());
                }
                out.bytes(format!("{}:{hex} ", algorithm.name()).as_bytes())?;
                out.line(printable(&place.bytes(), terminal))
            });
            failures.keep(found);
        }
        if words.json {
            out.line(json(&measured))?;
        }
        out.finish()
    })
}

fn json(measured: &[(&VolumePath, HashAlgorithm, String)]) -> String {
    Json::object(|o| {
        o.array("files", |files| {
            for (place, algorithm, digest) in measured {
                files.object(|file| {
                    file.bytes("path", &place.bytes());
                    file.text("hash_alg", algorithm.name()).text("digest", digest);
                });
            }
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salts_are_bytes() {
        assert_eq!(bytes("00fF7a").expect("bytes"), [0, 255, 0x7a]);
        assert!(bytes("").expect("none").is_empty());
        for wrong in ["0", "0x", "zz", "é", "+1"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
