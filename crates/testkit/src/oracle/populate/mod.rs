//! Filling a volume through the kernel's own btrfs, with everything that the format
//! can hold and the kernel writes without special mount options.

mod collide;
mod extents;
mod names;

use std::path::Path;

use vfs::{FileSystem, Ino};

use super::command::sh;
use crate::PosixFs;
use crate::ops::{Config, Rng, Session, generate};
use extents::Filler;

pub use collide::{colliding_names, name_hash};

/// Fills `dir` (a directory of a mounted btrfs, as root): all kinds of extents,
/// compression, reflinks, attributes, ACLs, links, special inodes, names, random
/// operations, subvolumes and snapshots. Some 60 MiB. The same seed does the same.
pub fn kernel_populate(dir: &Path, seed: u64) -> Result<(), String> {
    fill(dir, seed).map_err(|error| format!("populating {}: {error}", dir.display()))?;
    subvolumes(dir, seed)?;
    sh("btrfs", &["filesystem", "sync", &dir.to_string_lossy()]).map(|_| ())
}

fn fill(dir: &Path, seed: u64) -> vfs::Result<()> {
    let fs = PosixFs::open(dir)?;
    let mut top = Filler { fs: &fs, dir: fs.root(), rng: Rng::new(seed) };
    let mut files = top.dir("files")?;
    files.sizes()?;
    files.preallocated()?;
    files.holes()?;
    files.fragmented()?;
    files.without_checksums()?;
    let mut compressed = top.dir("compressed")?;
    for kind in ["zlib", "lzo", "zstd"] {
        compressed.compressed(kind)?;
    }
    top.dir("reflinks")?.shared()?;
    top.dir("links")?.links()?;
    top.dir("attributes")?.attributes()?;
    top.dir("specials")?.specials()?;
    top.dir("names")?.many_names()?;
    let random: Ino = top.dir("random")?.dir;
    fs.forget(random, 1);
    drop(fs);
    random_load(&dir.join("random"), seed, 3000)
}

/// Random operations of all kinds on a directory.
fn random_load(dir: &Path, seed: u64, steps: usize) -> vfs::Result<()> {
    let fs = PosixFs::open(dir)?;
    let config = Config { freeze: false, ..Config::all() };
    let mut session = Session::new(&fs);
    for op in generate(seed, steps, &config) {
        session.apply(&op);
    }
    Ok(())
}

/// Subvolumes, nested ones, snapshots that went their own way, and some that are gone.
fn subvolumes(dir: &Path, seed: u64) -> Result<(), String> {
    let path = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let subvolume = |args: &[&str]| sh("btrfs", &[&["subvolume"], args].concat()).map(|_| ());
    let load = |name: &str, seed| {
        random_load(&dir.join(name), seed, 500).map_err(|error| format!("{name}: {error}"))
    };
    subvolume(&["create", &path("sub")])?;
    load("sub", seed + 1)?;
    subvolume(&["create", &path("sub/nested")])?;
    load("sub/nested", seed + 2)?;
    subvolume(&["snapshot", &path("sub"), &path("snap-rw")])?;
    subvolume(&["snapshot", "-r", &path("sub"), &path("snap-ro")])?;
    load("snap-rw", seed + 3)?;
    load("sub", seed + 4)?;
    for number in 0..3 {
        let name = path(&format!("snap-{number}"));
        subvolume(&["snapshot", &path("sub"), &name])?;
        load("sub", seed + 5 + number)?;
    }
    subvolume(&["delete", &path("snap-1")])?;
    subvolume(&["create", &path("gone")])?;
    load("gone", seed + 9)?;
    subvolume(&["delete", &path("gone")])
}

/// As `kernel_populate` on a whole mount, and on top a directory written under each of
/// the forced compressions, which compress what nobody asked to be compressed.
pub fn kernel_populate_mount(mount: &super::KernelMount, seed: u64) -> Result<(), String> {
    kernel_populate(mount.path(), seed)?;
    for kind in ["zlib", "lzo", "zstd:7"] {
        mount.remount(&format!("compress-force={kind}"))?;
        let name = format!("forced-{}", kind.replace(':', "-"));
        forced(mount.path(), &name, seed).map_err(|error| format!("{name}: {error}"))?;
        sh("btrfs", &["filesystem", "sync", &mount.path().to_string_lossy()])?;
    }
    mount.remount("compress=no")
}

fn forced(dir: &Path, name: &str, seed: u64) -> vfs::Result<()> {
    let fs = PosixFs::open(dir)?;
    let mut top = Filler { fs: &fs, dir: fs.root(), rng: Rng::new(seed) };
    let mut dir = top.dir(name)?;
    dir.sizes()?;
    dir.holes()?;
    dir.fragmented()
}
