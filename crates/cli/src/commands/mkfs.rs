//! `spinney mkfs`: a fresh volume.

mod held;

use super::Command;
use super::offline::{chunk_flags, uuid};
use crate::args::{self, Arg, Args, one, unexpected};
use crate::error::{Error, Exit, Result, io_text};
use crate::image::{self, Access, ImageFile, Medium, is_block};
use crate::inside::volumes::At;
use crate::inside::{self, CopyRules};
use crate::marks;
use crate::mount::options::method;
use crate::output::{Json, Out, human};
use crate::sys;
use blockdev::{BlockDevice, FileDevice, Made};
use btrfs_disk::ChecksumType;
use btrfs_fs::Compress;
use btrfs_image::mkfs::{self, MkfsError, MkfsOptions, MkfsReport, Profile, Quotas};
use held::Held;
use spinney::Volume;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vfs::SetAttr;

pub const COMMAND: Command = Command {
    name: "mkfs",
    summary: "make a new volume",
    usage: "[OPTIONS] IMAGE",
    help: "\
Makes a btrfs volume in an image file or on a block device. An image that does not exist is
made, sparse, with the size given by --size. The result is what mkfs.btrfs makes: the
kernel mounts it. Of a whole disk IMAGE@2 is partition 2; the table stays as it is.

Options
    -s, --size SIZE        size of the image: 512M, 2G, 1T. Needed for a new image; an
                           existing one is resized, a device must have it. Default: all
    -L, --label TEXT       name of the volume, up to 255 bytes
    -U, --uuid UUID        instead of a random one
        --csum TYPE        crc32c (default), xxhash, sha256 or blake2
    -n, --nodesize SIZE    of tree blocks: 4K to 64K, default 16K
    -m, --metadata PROFILE
                           dup (two copies, the default) or single
    -M, --mixed            data and metadata in the same chunks, for volumes below 1 GiB
    -O, --features LIST    separated by commas, with ^ in front to leave one out:
                           no-holes and free-space-tree (defaults), block-group-tree,
                           quota or squota (quota groups from the start; squota are simple
                           ones); fst and bgt are short for the two trees
    -r, --rootdir DIR      copy what is in DIR into the volume, as `spinney cp -r DIR/.` does
        --compress HOW     compress what is copied: zlib, lzo or zstd, with :LEVEL behind
                           (zlib:1 to zlib:9, zstd:-15 to zstd:15, or the nearest of these)
        --owner UID:GID    owner of the top directory; default: DIR's, or whoever runs this
        --mode MODE        permissions of the top directory in octal; default: DIR's, or 755
    -K, --nodiscard        do not tell the device that its old contents are gone
    -f, --force            overwrite what is there: file systems, swap, partition tables and
                           parts of volumes (LVM, RAID, LUKS, ZFS, ...) are refused
                           otherwise, by name
    -q, --quiet            print nothing but errors
        --json             tell what was made as a JSON object

Examples
    spinney mkfs --size 2G disk.img
    spinney mkfs -f -L backup --csum xxhash /dev/sdb1
    spinney mkfs whole-disk.img@2
    spinney mkfs --size 4G --rootdir ./rootfs --compress zstd:9 root.img
    spinney mkfs --size 200M --mixed -O ^no-holes,^free-space-tree small.img

Exit codes
    0  the volume is made
    1  it is not; the message says why
    2  the command line is wrong
",
    run,
};

#[derive(Default)]
struct Wanted {
    image: OsString,
    size: Option<u64>,
    root: Option<PathBuf>,
    /// What --owner and --mode say; else what `options` has, or the top of --rootdir.
    owner: Option<(u32, u32)>,
    mode: Option<u16>,
    compress: Option<Compress>,
    force: bool,
    json: bool,
    quiet: bool,
    options: MkfsOptions,
}

fn run(args: Args) -> Result<Exit> {
    let wanted = parse(args)?;
    let path = Path::new(&wanted.image);
    let report = make(path, &wanted)?;
    if wanted.quiet {
        return Ok(Exit::Done);
    }
    let mut out = Out::new();
    if wanted.json {
        out.line(as_json(path, &report))?;
    } else {
        as_text(&mut out, path, &wanted, &report)?;
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn make(path: &Path, wanted: &Wanted) -> Result<MkfsReport> {
    if let Some(root) = &wanted.root
        && !root.metadata().map_err(|e| Error::io(root, &e))?.is_dir()
    {
        return Err(Error::about(root.display(), "is no directory"));
    }
    completed(path, wanted, prepare(path, wanted)?)
}

type Prepared = (Arc<dyn BlockDevice>, Option<Made>);

fn completed(path: &Path, wanted: &Wanted, (device, made): Prepared) -> Result<MkfsReport> {
    let done = complete(path, wanted, device);
    match made {
        // Half an image is of no use to anybody.
        Some(made) if done.is_err() => drop(made.remove()),
        _ => {}
    }
    done
}

fn complete(path: &Path, wanted: &Wanted, device: Arc<dyn BlockDevice>) -> Result<MkfsReport> {
    let make = |device: &dyn BlockDevice| {
        mkfs::make(device, &wanted.options).map_err(|e| explain(path, &e))
    };
    let Some(root) = &wanted.root else { return make(&*device) };
    let held = Arc::new(Held::new(device));
    let report = make(&*held)?;
    fill(held.clone(), root, wanted)?;
    held.release().map_err(|e| Error::io(path, &e))?;
    Ok(report)
}

fn fill(device: Arc<dyn BlockDevice>, root: &Path, wanted: &Wanted) -> Result<()> {
    let volume = image::open_made(device, wanted.compress)?;
    let copied = copy(&volume, root, wanted);
    copied.and(volume.close().map_err(Error::from))
}

/// The top is that of `root`, where nothing else is asked for.
fn copy(volume: &Volume, root: &Path, wanted: &Wanted) -> Result<()> {
    let top = volume.root().at(volume, b"/")?;
    let transfer = inside::transfer(volume, CopyRules::SAME);
    inside::in_image(transfer, Path::new(&wanted.image)).import_into(root, &top, b"/")?;
    let (uid, gid) = wanted.owner.unzip();
    let cx = inside::context();
    // Its ctime is that of `root` too.
    let ctime = Some(volume.fs().getattr(top.ino()).at(volume, b"/")?.ctime);
    // By itself: who changes the owner may drop set-ID bits.
    if wanted.owner.is_some() {
        let set = SetAttr { uid, gid, ctime, ..SetAttr::default() };
        volume.fs().setattr(&cx, top.ino(), &set).at(volume, b"/")?;
    }
    if wanted.mode.is_some() {
        let set = SetAttr { perm: wanted.mode, ctime, ..SetAttr::default() };
        volume.fs().setattr(&cx, top.ino(), &set).at(volume, b"/")?;
    }
    Ok(())
}

/// What is made where nothing else is asked for.
fn usual() -> Wanted {
    let mut wanted = Wanted::default();
    // Where an ordinary user made it, he wants to write in it.
    if !sys::is_root() {
        (wanted.options.root_uid, wanted.options.root_gid) = sys::user_and_group();
    }
    wanted
}

fn parse(mut args: Args) -> Result<Wanted> {
    let mut wanted = usual();
    let mut operands = Vec::new();
    while let Some(arg) = args.next()? {
        let options = &mut wanted.options;
        match arg {
            Arg::Short('s') | Arg::Long("size") => wanted.size = Some(args.size()?),
            Arg::Short('L') | Arg::Long("label") => options.label = bytes(args.value()?),
            Arg::Short('U') | Arg::Long("uuid") => options.uuid = Some(parse_uuid(&args.text()?)?),
            Arg::Long("csum") => options.csum = parse_csum(&args.text()?)?,
            Arg::Short('n') | Arg::Long("nodesize") => {
                options.node_size = Some(u32::try_from(args.size()?).unwrap_or(u32::MAX));
            }
            Arg::Short('m') | Arg::Long("metadata") => {
                options.metadata_profile = Some(parse_profile(&args.text()?)?);
            }
            Arg::Short('M') | Arg::Long("mixed") => options.mixed = true,
            Arg::Short('O') | Arg::Long("features") => parse_features(options, &args.text()?)?,
            Arg::Short('r') | Arg::Long("rootdir") => wanted.root = Some(args.path()?),
            Arg::Long("compress") => wanted.compress = Some(compress(&args.text()?)?),
            Arg::Long("owner") => wanted.owner = Some(parse_owner(&args.text()?)?),
            Arg::Long("mode") => wanted.mode = Some(parse_mode(&args.text()?)?),
            Arg::Short('K') | Arg::Long("nodiscard") => options.discard = false,
            Arg::Short('f') | Arg::Long("force") => wanted.force = true,
            Arg::Short('q') | Arg::Long("quiet") => wanted.quiet = true,
            Arg::Long("json") => wanted.json = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    wanted.image = one(operands, "an image")?;
    let options = &mut wanted.options;
    (options.root_uid, options.root_gid) =
        wanted.owner.unwrap_or((options.root_uid, options.root_gid));
    options.root_perm = wanted.mode.unwrap_or(options.root_perm);
    Ok(wanted)
}

fn bytes(word: OsString) -> Vec<u8> {
    word.into_encoded_bytes()
}

fn compress(how: &str) -> Result<Compress> {
    Ok(Compress { method: method("--compress", how)?, force: false })
}

fn parse_uuid(word: &str) -> Result<[u8; 16]> {
    let wrong = || Error::usage(format!("{word:?} is no UUID"));
    let digits: Vec<u8> = word.bytes().filter(|b| *b != b'-').collect();
    if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(wrong());
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
    }
    Ok(uuid)
}

fn parse_csum(word: &str) -> Result<ChecksumType> {
    Ok(match word {
        "crc32c" => ChecksumType::Crc32c,
        "xxhash" | "xxhash64" => ChecksumType::Xxhash64,
        "sha256" => ChecksumType::Sha256,
        "blake2" | "blake2b" => ChecksumType::Blake2b,
        other => {
            let all = "crc32c, xxhash, sha256 and blake2";
            return Err(Error::usage(format!("no checksum type {other:?}; there are {all}")));
        }
    })
}

fn parse_profile(word: &str) -> Result<Profile> {
    match word {
        "single" => Ok(Profile::Single),
        "dup" | "DUP" => Ok(Profile::Dup),
        other => Err(Error::usage(format!("no profile {other:?} here; there are single and dup"))),
    }
}

fn parse_features(options: &mut MkfsOptions, list: &str) -> Result<()> {
    for word in list.split(',').filter(|word| !word.is_empty()) {
        let (name, on) = match word.strip_prefix('^') {
            Some(name) => (name, false),
            None => (word, true),
        };
        match name {
            "no-holes" => options.features.no_holes = on,
            "quota" => quotas(options, Quotas::Full, on),
            "squota" => quotas(options, Quotas::Simple, on),
            "free-space-tree" | "fst" => options.features.free_space_tree = on,
            "block-group-tree" | "bgt" => options.features.block_group_tree = on,
            "mixed-bg" => options.mixed = on,
            // Always there.
            "extref" | "skinny-metadata" if on => {}
            other => {
                let all = "no-holes, free-space-tree, block-group-tree, quota, squota";
                return Err(Error::usage(format!("no feature {other:?}; there are {all}")));
            }
        }
    }
    Ok(())
}

/// Of both kinds simple ones win, as in mkfs.btrfs.
fn quotas(options: &mut MkfsOptions, kind: Quotas, on: bool) {
    match options.quotas {
        Some(Quotas::Simple) if kind == Quotas::Full => {}
        Some(there) if !on && there != kind => {}
        _ => options.quotas = on.then_some(kind),
    }
}

fn parse_owner(word: &str) -> Result<(u32, u32)> {
    let wrong = || Error::usage(format!("{word:?} is no owner; write UID:GID in numbers"));
    let (uid, gid) = word.split_once(':').ok_or_else(wrong)?;
    let id = |text| args::id(text).ok_or_else(wrong);
    Ok((id(uid)?, id(gid)?))
}

fn parse_mode(word: &str) -> Result<u16> {
    let mode = u16::from_str_radix(word, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| Error::usage(format!("{word:?} is no mode; write it in octal, as 755")))
}

/// The image or device, with the right length, and nothing on it that is still wanted; and what was made for this.
fn prepare(path: &Path, wanted: &Wanted) -> Result<Prepared> {
    if !exists(path)
        && let Some((device, made)) = made(path, wanted)?
    {
        return Ok((Arc::new(device), Some(made)));
    }
    Ok((made_ready(image::open(path, Access::Write)?, path, wanted)?, None))
}

/// A new image; `None` where somebody has made something there meanwhile, which may be wanted.
fn made(path: &Path, wanted: &Wanted) -> Result<Option<(FileDevice, Made)>> {
    let Some(size) = wanted.size else {
        return Err(Error::about(path.display(), "does not exist")
            .remedy("give it a size to make it: --size 2G"));
    };
    check_size(path, size, wanted)?;
    match FileDevice::create_new(path, size) {
        Ok(made) => Ok(Some(made)),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(None),
        Err(e) => Err(Error::io(path, &e)),
    }
}

/// The very one that is locked, whatever `path` leads to by now.
fn made_ready(medium: Medium, path: &Path, wanted: &Wanted) -> Result<Arc<dyn BlockDevice>> {
    if !wanted.force
        && let Some(what) = marks::found(&*medium.device())
    {
        return Err(Error::about(path.display(), format!("there is {what} on it"))
            .remedy("-f overwrites it; all of its content is lost then"));
    }
    let have = medium.device().len();
    let size = wanted.size.unwrap_or(have);
    check_size(path, size, wanted)?;
    if size == have {
        return Ok(medium.device());
    }
    if is_block(path) || !path.exists() {
        return Err(Error::about(path.display(), format!("the device has {have} bytes"))
            .remedy("leave --size out to use all of it"));
    }
    Ok(medium.with_len(size)?.device())
}

/// It, or what it is a part of.
fn exists(path: &Path) -> bool {
    ImageFile::of(path).file.exists()
}

fn check_size(path: &Path, size: u64, wanted: &Wanted) -> Result<()> {
    if i64::try_from(size).is_err() {
        // No file is longer; the standard library would tell of a conversion.
        return Err(Error::io(path, &std::io::Error::from_raw_os_error(libc::EFBIG)));
    }
    let minimum = mkfs::minimum_size(&wanted.options).map_err(|e| explain(path, &e))?;
    if size < minimum {
        return Err(explain(path, &MkfsError::TooSmall { minimum, have: size }));
    }
    Ok(())
}

fn explain(path: &Path, error: &MkfsError) -> Error {
    match error {
        MkfsError::Invalid(what) => Error::usage(what),
        MkfsError::TooSmall { .. } => Error::about(path.display(), error)
            .remedy("make it larger; --mixed and -m single need less"),
        MkfsError::Io { context, source } => {
            Error::about(path.display(), format!("{context}: {}", io_text(source)))
        }
        other => Error::about(path.display(), other),
    }
}

/// Of the top directory.
fn owner_of(wanted: &Wanted) -> (u32, u32) {
    let root = wanted.root.as_ref().and_then(|root| root.metadata().ok());
    let theirs = root.map(|meta| (meta.uid(), meta.gid()));
    wanted.owner.or(theirs).unwrap_or((wanted.options.root_uid, wanted.options.root_gid))
}

fn as_text(out: &mut Out, path: &Path, wanted: &Wanted, report: &MkfsReport) -> Result<()> {
    let owner = owner_of(wanted);
    let label = String::from_utf8_lossy(&wanted.options.label).into_owned();
    let lines = [
        ("image", path.display().to_string()),
        ("label", if label.is_empty() { "(none)".into() } else { label }),
        ("uuid", uuid(&report.uuid)),
        ("size", human(report.total_bytes)),
        ("node size", report.node_size.to_string()),
        ("checksums", wanted.options.csum.name().into()),
        ("owner", format!("{}:{}", owner.0, owner.1)),
    ];
    for (name, value) in lines {
        out.line(format!("{name:<12} {value}"))?;
    }
    for chunk in &report.chunks {
        out.line(format!("{:<12} {} ({})", "chunk", human(chunk.len), chunk_flags(chunk.flags)))?;
    }
    Ok(())
}

fn as_json(path: &Path, report: &MkfsReport) -> String {
    Json::object(|o| {
        o.bytes("image", path.as_os_str().as_encoded_bytes());
        o.text("uuid", &uuid(&report.uuid)).number("total_bytes", report.total_bytes);
        o.number("bytes_used", report.bytes_used).number("node_size", report.node_size);
        o.array("chunks", |a| {
            for chunk in &report.chunks {
                a.object(|o| {
                    o.number("logical", chunk.logical).number("bytes", chunk.len);
                    o.text("flags", &chunk_flags(chunk.flags));
                    o.number("copies", chunk.copies as u64);
                });
            }
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::oracle::TempDir;

    /// Whoever can write in the directory can put something else there once the first one was looked at.
    #[test]
    fn what_has_the_name_by_now_is_not_formatted() {
        let dir = TempDir::new("mkfs-swapped").unwrap();
        let [image, away, other] = ["disk.img", "away", "other"].map(|name| dir.join(name));
        let (size, content) = (512 << 20, vec![7; 1 << 20]);
        std::fs::write(&image, [0; 512]).unwrap();
        std::fs::write(&other, &content).unwrap();
        let medium = image::open(&image, Access::Write).unwrap();
        std::fs::rename(&image, &away).unwrap();
        std::os::unix::fs::symlink(&other, &image).unwrap();
        let wanted = Wanted { size: Some(size), ..Wanted::default() };
        let device = made_ready(medium, &image, &wanted).unwrap();
        complete(&image, &wanted, device.clone()).unwrap();
        assert!(std::fs::read(&other).unwrap() == content);
        assert!(image::open(&away, Access::Write).is_err(), "nobody else has it meanwhile");
        drop(device);
        let volume = image::open_volume(&away, false, &btrfs_fs::Subvol::Default).unwrap();
        assert_eq!(away.metadata().unwrap().len(), size);
        volume.close().unwrap();
    }

    /// What came between the look and the making was emptied, whatever it was.
    #[test]
    fn what_came_meanwhile_is_looked_at_and_not_emptied() {
        let dir = TempDir::new("mkfs-came").unwrap();
        let image = dir.join("disk.img");
        spinney::FormatOptions::new().create(&image, 512 << 20).unwrap().close().unwrap();
        let wanted = Wanted { size: Some(1 << 30), ..Wanted::default() };
        assert!(made(&image, &wanted).unwrap().is_none());
        assert!(prepare(&image, &wanted).map(drop).unwrap_err().text().contains("on it"));
        assert_eq!(image.metadata().unwrap().len(), 512 << 20);
        std::fs::rename(&image, dir.join("there")).unwrap();
        std::os::unix::fs::symlink("there", &image).unwrap();
        assert!(made(&image, &wanted).unwrap().is_none());
        // Where a link leads nobody was.
        std::fs::remove_file(dir.join("there")).unwrap();
        let (device, new) = prepare(&image, &wanted).unwrap();
        assert!(new.is_some() && device.len() == 1 << 30 && dir.join("there").is_file());
    }

    /// Whoever can rename on the way to the image had a file of his choice removed by root.
    #[test]
    fn what_has_the_name_by_now_is_not_removed() {
        let dir = TempDir::new("mkfs-removed").unwrap();
        let [own, away, others] = ["own", "away", "others"].map(|name| dir.join(name));
        let (image, wanted) = (own.join("disk.img"), failing(&dir.join("nothing")));
        for part in [&own, &others] {
            std::fs::create_dir(part).unwrap();
        }
        let victim = others.join("disk.img");
        std::fs::write(&victim, "theirs").unwrap();
        // The directory is another one by then.
        let prepared = prepare(&image, &wanted).unwrap();
        std::fs::rename(&own, &away).unwrap();
        std::os::unix::fs::symlink(&others, &own).unwrap();
        completed(&image, &wanted, prepared).unwrap_err();
        assert!(victim.exists() && !away.join("disk.img").exists());
        // Or what has the name in it.
        std::fs::remove_file(&own).unwrap();
        std::fs::rename(&away, &own).unwrap();
        for kind in ["link", "file", "nothing"] {
            let prepared = prepare(&image, &wanted).unwrap();
            std::fs::rename(&image, &away).unwrap();
            match kind {
                "link" => std::os::unix::fs::symlink(&victim, &image).unwrap(),
                "file" => std::fs::write(&image, "theirs").unwrap(),
                _ => {}
            }
            completed(&image, &wanted, prepared).unwrap_err();
            assert!(victim.exists() && image.exists() == (kind != "nothing"), "{kind}");
            let _ = std::fs::remove_file(&image);
        }
        // As it is usually.
        completed(&image, &wanted, prepare(&image, &wanted).unwrap()).unwrap_err();
        assert!(!image.exists());
    }

    /// There is nothing to fill the volume with when it is made.
    fn failing(root: &Path) -> Wanted {
        Wanted { size: Some(512 << 20), root: Some(root.to_owned()), ..Wanted::default() }
    }

    #[test]
    fn words_are_understood() {
        let uuid = parse_uuid("00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!((uuid[1], uuid[15]), (0x11, 0xff));
        assert!(parse_uuid("00112233").is_err());
        assert_eq!(parse_owner("1000:100").unwrap(), (1000, 100));
        assert!(parse_owner("1000").is_err());
        assert_eq!(parse_mode("1777").unwrap(), 0o1777);
        assert!(parse_mode("8").is_err() && parse_mode("17777").is_err());
        let mut options = MkfsOptions::default();
        parse_features(&mut options, "^no-holes,extref,block-group-tree").unwrap();
        assert!(!options.features.no_holes && options.features.block_group_tree);
        assert!(parse_features(&mut options, "raid56").is_err());
    }
}
