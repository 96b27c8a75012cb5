//! `spinney tar`, both ways, with GNU tar on a kernel btrfs on the other side.

use crate::common;
use common::{
    Image, KernelMount, PROGRAM, TempDir, assert_clean, failing, fine, json, sh, spinney, text,
    without_stand_ins,
};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::oracle::kernel_populate;
use testkit::require;

const XATTRS: &str = "--xattrs --xattrs-include='*'";

pub fn run(script: &str) -> Output {
    let done = sh(script);
    assert!(done.status.success(), "{script}: {}", text(&done.stderr));
    done
}

/// A volume that the kernel filled, and what is in it; sockets are in no archive.
fn populated(name: &str, seed: u64) -> (Image, TreeSnapshot) {
    let image = Image::new(name);
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    kernel_populate(mount.path(), seed).unwrap();
    let long = "long".repeat(40);
    run(&format!(
        "cd {} && mkdir -p {long}/{long} && echo x > {long}/{long}/file &&
         ln -s {long}/{long}/file {long}/{long}/link && ln {long}/{long}/file {long}/{long}/hard &&
         truncate -s 90M sparse && printf end | dd of=sparse bs=1 seek=80000000 conv=notrunc status=none &&
         for n in $(seq 60); do printf piece | dd of=sparse bs=1 seek=$((n * 1000001)) conv=notrunc status=none; done &&
         truncate -s 3M hole && touch -d '1960-01-02 03:04:05.678901234' old && mknod device b 259 70000 &&
         setfattr -n user.any=% -v \"$(printf 'line\\nfeed')\" old && setfattr -n user.bin -v 0x000a0d3dff old &&
         setfacl -m u:7:rw,g:8:r old && mkdir acls && setfacl -d -m u:7:rwx acls && chown 2000000000:3000000000 old &&
         chmod 4711 hole && sync -f .",
        mount.path().display()
    ));
    let tree = snapshot(mount.path());
    mount.unmount().unwrap();
    (image, tree)
}

/// Without sockets, of which archives have none.
pub fn snapshot(dir: &Path) -> TreeSnapshot {
    let mut tree = TreeSnapshot::of_dir(dir).unwrap();
    let sockets = run(&format!("cd {} && find . -type s -printf '/%P\n'", dir.display()));
    for socket in text(&sockets.stdout).lines() {
        tree.nodes.retain(|path, _| format!("{path:?}") != *socket);
    }
    tree
}

pub fn assert_same(found: &TreeSnapshot, expected: &TreeSnapshot, rules: &Rules) {
    let differences = diff(&without_stand_ins(found), &without_stand_ins(expected), rules);
    assert!(differences.is_empty(), "{differences:#?}");
}

/// What archives do not carry: `chattr` flags.
pub fn rules() -> Rules {
    Rules { flags: false, attributes: false, dir_size: false, ..Rules::default() }
}

pub fn of_image(image: &Path) -> TreeSnapshot {
    assert_clean(image);
    let mount = KernelMount::new(image, "ro").unwrap();
    let tree = snapshot(mount.path());
    mount.unmount().unwrap();
    tree
}

#[test]
fn gnu_tar_unpacks_what_we_pack() {
    require!(kernel_btrfs);
    let (source, expected) = populated("tar-pack", 3);
    let target = Image::new("tar-packed");
    let mount = KernelMount::new(&target.path, "noatime").unwrap();
    let made = run(&format!(
        "{PROGRAM} tar -c {} | tar -x --warning=no-timestamp -C {} {XATTRS} --numeric-owner",
        source.at("/"),
        mount.path().display()
    ));
    assert!(!text(&made.stderr).contains("tar:"), "{}", text(&made.stderr));
    let found = snapshot(mount.path());
    let sparse = run(&format!("du -k {}", mount.join("sparse").display()));
    mount.unmount().unwrap();
    assert_same(&found, &expected, &rules());
    let kib: u64 = text(&sparse.stdout).split('\t').next().unwrap().parse().unwrap();
    assert!(kib < 1000, "{kib} KiB");
}

#[test]
fn we_unpack_what_gnu_tar_packs() {
    require!(kernel_btrfs);
    let (source, expected) = populated("tar-unpack", 5);
    let formats = [
        format!("--format=posix -S {XATTRS}"),
        format!("--format=posix -S --sparse-version=0.1 {XATTRS}"),
        format!("--format=posix -S --sparse-version=0.0 {XATTRS}"),
        "--format=gnu -S".to_owned(),
    ];
    for format in formats {
        let target = Image::new("tar-unpacked");
        let mount = KernelMount::new(&source.path, "ro").unwrap();
        let archive = format!("tar -c {format} --numeric-owner -C {} .", mount.path().display());
        let made = sh(&format!("{archive} 2>/dev/null | {PROGRAM} tar -x {}", target.at("/")));
        mount.unmount().unwrap();
        assert!(made.status.success(), "{format}: {}", text(&made.stderr));
        let exact = format.contains("posix");
        let mut rules = rules();
        if !exact {
            // Its own format has whole seconds and no attributes.
            rules = Rules { mtime: testkit::compare::TimeRule::Ignore, xattrs: false, ..rules };
        }
        let mut found = of_image(&target.path);
        let mut expected = expected.clone();
        if !exact {
            for tree in [&mut found, &mut expected] {
                tree.nodes.retain(|path, _| !format!("{path:?}").ends_with("/old\""));
            }
        }
        assert_same(&found, &expected, &rules);
        let stat = json(&fine(&["stat", "--json", &target.at("/sparse")]))[0].clone();
        assert!(stat["blocks"].as_u64().unwrap() < 2000, "{format}: {stat}");
    }
}

/// GNU tar's own format has times before 1970 as numbers below zero, in whole seconds.
#[test]
fn old_times_in_gnu_headers() {
    require!(btrfs_progs);
    let image = Image::new("tar-old-times");
    run(&format!(
        "cd {} && touch -d '1950-01-02 03:04:05Z' old && touch -d '2300-01-02 03:04:05Z' late &&
         tar -c --format=gnu old late | {PROGRAM} tar -x {}",
        image.dir.path().display(),
        image.at("/")
    ));
    for (name, year) in [("/old", 1950), ("/late", 2300)] {
        let stat = json(&fine(&["stat", "--json", &image.at(name)]))[0].clone();
        assert_eq!(stat["mtime"], format!("{year}-01-02T03:04:05.000000000Z"), "{stat}");
    }
}

#[test]
fn what_we_pack_we_unpack() {
    require!(kernel_btrfs);
    let (source, _) = populated("tar-both", 9);
    let expected = of_image(&source.path);
    let (target, dir) = (Image::new("tar-both-to"), TempDir::new("tar-file").unwrap());
    let file = dir.join("all.tar").display().to_string();
    assert!(spinney(&["tar", "-cf", &file, &source.at("/")]).status.success());
    assert_eq!(fine(&["tar", "-xf", &file, &target.at("/")]), "");
    let rules = Rules { atime: testkit::compare::TimeRule::Exact, ..rules() };
    assert_same(&of_image(&target.path), &expected, &rules);
    // Once more over what is there.
    assert_eq!(fine(&["tar", "-x", "--file", &file, &target.at("/")]), "");
    assert_same(&of_image(&target.path), &expected, &rules);
}

/// Offsets and sizes that no octal field holds.
#[test]
fn files_of_many_gigabytes() {
    require!(btrfs_progs);
    let (image, dir) = (Image::new("tar-large"), TempDir::new("tar-large-host").unwrap());
    let at = dir.path().display();
    run(&format!(
        "cd {at} && truncate -s 20G large && for gib in 0 9 17; do printf piece-$gib |
         dd of=large bs=1 seek=$((gib << 30)) conv=notrunc status=none; done"
    ));
    let pieces = |file: &str| {
        let dd = "dd bs=1 count=9 status=none";
        let script = format!(
            "cd {at} && stat -c %s {file} && for gib in 0 9 17; do {dd} if={file} skip=$((gib << 30)); done;
             [ $(du -k {file} | cut -f1) -lt 1000 ] && echo sparse"
        );
        text(&run(&script).stdout)
    };
    let expected = pieces("large");
    assert!(expected.contains("piece-17") && expected.ends_with("sparse\n"), "{expected}");
    fine(&["cp", &format!("{at}/large"), &image.at("/large")]);
    run(&format!("mkdir {at}/out && {PROGRAM} tar -c {} | tar -x -C {at}/out", image.at("/large")));
    assert_eq!(pieces("out/large"), expected);
    for format in ["gnu", "posix"] {
        let (to, back) = (image.at(&format!("/{format}")), format!("{at}/{format}"));
        fine(&["mkdir", &to]);
        run(&format!("tar -cS --format={format} -C {at} large | {PROGRAM} tar -x {to}"));
        fine(&["cp", &format!("{to}/large"), &back]);
        assert_eq!(pieces(format), expected);
    }
    assert_clean(&image.path);
}

/// Of what cannot be read there are zeros, and the members behind are whole.
#[test]
fn lost_content_does_not_end_the_archive() {
    require!(btrfs_progs);
    let (image, dir) = (Image::new("tar-lost"), TempDir::new("tar-lost-host").unwrap());
    let at = dir.path().display();
    run(&format!("cd {at} && mkdir t && seq 100000 > t/a && seq 200000 300000 > t/b"));
    fine(&["cp", "-r", &format!("{at}/t"), &image.at("/")]);
    let mut bytes = fs::read(&image.path).unwrap();
    let needle = b"\n77777\n77778\n";
    let found = bytes.windows(needle.len()).position(|w| w == needle).unwrap();
    bytes[found] ^= 1;
    fs::write(&image.path, bytes).unwrap();
    let file = format!("{at}/lost.tar");
    let (code, why) = failing(&["tar", "-cf", &file, &image.at("/t")]);
    assert!(code == 1 && why.contains("/t/a") && why.lines().count() < 4, "{why}");
    run(&format!("mkdir {at}/out && tar -xf {file} -C {at}/out && cmp {at}/t/b {at}/out/t/b"));
    let (old, new) = (fs::read(dir.join("t/a")).unwrap(), fs::read(dir.join("out/t/a")).unwrap());
    let differ: Vec<usize> = (0..old.len()).filter(|&at| old[at] != new[at]).collect();
    assert!(old.len() == new.len() && differ.len() > 4000, "{}", differ.len());
    let sector = differ[0] / 4096;
    assert!(differ.iter().all(|at| at / 4096 == sector && new[*at] == 0));
}

#[test]
fn names_parts_and_exclusions() {
    require!(btrfs_progs);
    let image = Image::new("tar-names");
    fine(&["mkdir", "-p", &image.at("/a/b/cache"), &image.at("/out")]);
    fine(&["touch", &image.at("/a/b/one"), &image.at("/a/b/cache/two"), &image.at("/single")]);
    let list = |words: &str| {
        let words = words.replace("@/", &image.at("/"));
        text(&run(&format!("{PROGRAM} tar {words} | tar -t")).stdout)
    };
    assert_eq!(list("-c @/a/b @/single"), "b/\nb/cache/\nb/cache/two\nb/one\nsingle\n");
    assert_eq!(
        list("-c --exclude cache --exclude 'sing*' @/"),
        "./\n./a/\n./a/b/\n./a/b/one\n./out/\n"
    );
    assert_eq!(list("-c --exclude 'b/cache/*' @/a/"), "a/\na/b/\na/b/cache/\na/b/one\n");
    let script = format!(
        "{PROGRAM} tar -c {} | {PROGRAM} tar -xv --strip-components 1 {}",
        image.at("/a"),
        image.at("/out")
    );
    let script =
        script.replace(" | ", &format!(" > {0} && < {0} ", image.dir.join("tar").display()));
    assert!(text(&run(&script).stderr).contains("a/b/cache/two\n"));
    assert_eq!(fine(&["ls", &image.at("/out/b/cache")]), "two\n");
    for (words, what) in [
        (&["tar", &image.at("/")][..], "either -c"),
        (&["tar", "-c", "-x", &image.at("/")], "either -c"),
        (&["tar", "-x", &image.at("/"), &image.at("/out")], "one directory"),
    ] {
        let (code, why) = failing(words);
        assert!(code == 2 && why.contains(what), "{why}");
    }
    let (code, why) = failing(&["tar", "-xf", &image.word(), &image.at("/out")]);
    assert!(code == 1 && why.contains("no tar archive"), "{why}");
    let (code, why) = failing(&["tar", "-xf", PROGRAM, &image.at("/out")]);
    assert!(code == 1 && why.contains("no tar archive") && why.contains("zcat"), "{why}");
    assert_clean(&image.path);
}

#[test]
fn archives_do_not_lead_out_of_the_directory() {
    require!(btrfs_progs);
    let image = Image::new("tar-escape");
    let dir = TempDir::new("tar-escape-host").unwrap();
    let at = dir.path().display();
    fine(&["mkdir", &image.at("/in"), &image.at("/other"), &image.at("/in/usr")]);
    fine(&["ln", "-s", "usr", &image.at("/in/lib")]);
    run(&format!(
        "cd {at} && echo evil > file && ln -s ../other link && tar -cPf a.tar --transform 's,file,../evil,' file &&
         tar -cf b.tar link && mkdir -p d && echo x > d/f && tar -rf b.tar --transform 's,^d,link,' d/f &&
         tar -rf b.tar --transform 's,^d,lib,' d/f && tar -cPf c.tar $PWD/file"
    ));
    let unpack = |name: &str| spinney(&["tar", "-xf", &format!("{at}/{name}"), &image.at("/in")]);
    let done = unpack("a.tar");
    assert!(
        !done.status.success() && text(&done.stderr).contains("leads out of"),
        "{}",
        text(&done.stderr)
    );
    let done = unpack("b.tar");
    assert!(!done.status.success() && text(&done.stderr).contains("symbolic link of the archive"));
    // A link that was there before is followed, as GNU tar does.
    assert_eq!(fine(&["ls", &image.at("/in/usr")]), "f\n");
    assert!(unpack("c.tar").status.success());
    assert_eq!(fine(&["cat", &image.at(&format!("/in{at}/file"))]), "evil\n");
    assert_eq!(fine(&["ls", &image.at("/other")]), "");
    assert!(!fine(&["find", &image.at("/"), "-name", "evil"]).contains("evil"));
    assert_clean(&image.path);
}

/// Archives that are cut or changed: told, and never a panic or a volume that is not clean.
#[test]
fn damaged_archives_are_told() {
    require!(btrfs_progs);
    let image = Image::new("tar-damaged");
    let dir = TempDir::new("tar-damaged-host").unwrap();
    let at = dir.path().display();
    run(&format!(
        "cd {at} && mkdir t && seq 9999 > t/file && truncate -s 1M t/sparse && echo x >> t/sparse &&
         ln t/file t/hard && mkdir t/{0} && setfattr -n user.a -v b t/file && mkfifo t/{0}/{0} &&
         tar -cS --format=posix {XATTRS} -f posix.tar t && tar -cS --format=gnu -f gnu.tar t",
        "n".repeat(90)
    ));
    let unpack = |bytes: &[u8]| {
        let mut child = Command::new(PROGRAM)
            .args(["tar", "-x", &image.at("/")])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), bytes);
        let output = child.wait_with_output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let mut random = 12345u64;
    let mut failures = 0;
    for name in ["posix.tar", "gnu.tar"] {
        let bytes = fs::read(dir.join(name)).unwrap();
        assert_eq!(unpack(&bytes).0, Some(0));
        for cut in [0, 1, 511, 600, 1000, 1537, 5000, 20000] {
            let (code, why) = unpack(&bytes[..cut]);
            assert!(code == Some(1) && why.contains("archive"), "{cut}: {why}");
        }
        for _ in 0..60 {
            let mut bytes = bytes.clone();
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let block = (random >> 33) as usize % (bytes.len() / 512) * 512;
            let offset = block + (random >> 20) as usize % 512;
            bytes[offset] ^= 1 << (random >> 12 & 7);
            if (random >> 8) & 1 == 1 {
                mend_checksum(&mut bytes[block..block + 512]);
            }
            let (code, why) = unpack(&bytes);
            assert!(matches!(code, Some(0 | 1)) && !why.contains("panic"), "{offset}: {why}");
            failures += u32::from(code == Some(1));
        }
    }
    assert!(failures > 5, "{failures}");
    assert_clean(&image.path);
}

/// The map of a sparse file was read from its beginning again with each of its blocks: one of
/// 16 MiB took minutes, and more is taken.
#[test]
fn long_maps_are_read_once() {
    require!(btrfs_progs);
    let image = Image::new("tar-map");
    let pieces = 4 << 20;
    let mut map = format!("{pieces}\n").into_bytes();
    map.extend_from_slice(&b"0\n0\n".repeat(pieces - 1));
    map.extend_from_slice(b"3\n4\n");
    map.resize(map.len().next_multiple_of(512), 0);
    let mut archive = tar::Builder::new(fs::File::create(image.dir.join("map.tar")).unwrap());
    let records: [(&str, &[u8]); 4] = [
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"sparse"),
        ("GNU.sparse.realsize", b"8"),
    ];
    archive.append_pax_extensions(records).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(map.len() as u64 + 4);
    header.set_mode(0o644);
    header.set_cksum();
    archive.append(&header, (&map[..]).chain(&b"data"[..])).unwrap();
    archive.into_inner().unwrap();
    run(&format!(
        "timeout 60 {PROGRAM} tar -xf {}/map.tar {}",
        image.dir.path().display(),
        image.at("/")
    ));
    assert_eq!(fine(&["cat", &image.at("/sparse")]), "\0\0\0data\0");
    assert_clean(&image.path);
}

fn unpacked(archive: &Path, to: &str) -> (Option<i32>, String) {
    let done = spinney(&["tar", "-xf", &archive.display().to_string(), to]);
    (done.status.code(), text(&done.stderr))
}

/// Archives of one member called `f`.
fn of_one(
    file: &Path,
    kind: u8,
    records: &[(&str, &[u8])],
    set: impl Fn(&mut tar::Header),
    content: &[u8],
) {
    let mut archive = tar::Builder::new(fs::File::create(file).unwrap());
    archive.append_pax_extensions(records.iter().copied()).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_path("f").unwrap();
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    set(&mut header);
    header.set_cksum();
    archive.append(&header, content).unwrap();
    archive.into_inner().unwrap();
}

/// GNU tar writes a file that it meets twice as a link to itself; the file went.
#[test]
fn links_to_themselves_change_nothing() {
    require!(btrfs_progs);
    let image = Image::new("tar-itself");
    let at = image.dir.path().display();
    run(&format!(
        "cd {at} && mkdir d && echo content > d/f && ln -s f d/l && tar -cf twice.tar d d/f d/l &&
         find d | tar -cf found.tar -T - && tar -tvf twice.tar | grep -q 'd/f link to d/f'"
    ));
    for name in ["twice.tar", "found.tar", "twice.tar"] {
        let done = unpacked(&image.dir.join(name), &image.at("/"));
        assert_eq!(done, (Some(0), String::new()), "{name}");
        assert_eq!(fine(&["cat", &image.at("/d/f")]), "content\n");
        assert_eq!(fine(&["cat", &image.at("/d/l")]), "content\n");
    }
    // Nor do we write them, and a link to something else replaces what is there.
    fine(&["ln", &image.at("/d/f"), &image.at("/d/g")]);
    let script = format!("{PROGRAM} tar -c {0} {0} {1}", image.at("/d/f"), image.at("/d/g"));
    let list = text(&run(&format!("{script} > {at}/ours.tar && tar -tvf {at}/ours.tar")).stdout);
    assert!(!list.contains("f link to f") && list.contains("g link to f"), "{list}");
    fine(&["mkdir", &image.at("/out")]);
    fine(&["touch", &image.at("/out/g")]);
    assert_eq!(unpacked(&image.dir.join("ours.tar"), &image.at("/out")).0, Some(0));
    assert_eq!(fine(&["cat", &image.at("/out/g")]), "content\n");
    assert_eq!(fine(&["ls", &image.at("/out")]), "f\ng\n");
    assert_clean(&image.path);
}

/// The old file goes when the new one is there, and not before.
#[test]
fn what_cannot_be_made_replaces_nothing() {
    require!(btrfs_progs);
    let image = Image::new("tar-stays");
    run(&format!("echo old > {}/f", image.dir.path().display()));
    fine(&["cp", &image.dir.join("f").display().to_string(), &image.at("/f")]);
    let (long, large) = ("x".repeat(5000), vec![b'x'; (64 << 10) + 1]);
    let large: [(&str, &[u8]); 1] = [("SCHILY.xattr.user.large", &large)];
    let sparse: [(&str, &[u8]); 4] = [
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"f"),
        ("GNU.sparse.realsize", b"18446744073709551615"),
    ];
    let mut no_map = [0; 512];
    no_map[..2].copy_from_slice(b"0\n");
    let none = |_: &mut tar::Header| {};
    let missing = |header: &mut tar::Header| header.set_link_name("missing").unwrap();
    let numberless = |header: &mut tar::Header| header.as_old_mut().pad.fill(0);
    type Set<'s> = &'s dyn Fn(&mut tar::Header);
    type Case<'c> = (&'c str, u8, &'c [(&'c str, &'c [u8])], Set<'c>, &'c [u8], i32);
    let cases: [Case<'_>; 10] = [
        ("a link to what is missing", b'1', &[], &missing, b"", 1),
        ("a device without numbers", b'3', &[], &numberless, b"", 1),
        ("a link without a target", b'2', &[], &none, b"", 1),
        ("a long target", b'2', &[("linkpath", long.as_bytes())], &none, b"", 1),
        ("a label", b'V', &[], &none, b"", 0),
        ("a continuation", b'M', &[], &none, b"rest", 1),
        ("an owner", b'0', &[("uid", b"4294967296")], &none, b"new", 1),
        ("a length", b'0', &sparse, &none, &no_map, 1),
        ("an attribute", b'0', &large, &none, b"new", 1),
        ("an attribute of a directory", b'5', &large, &none, b"", 1),
    ];
    let file = image.dir.join("one.tar");
    for (what, kind, records, set, content, code) in cases {
        of_one(&file, kind, records, set, content);
        let (found, why) = unpacked(&file, &image.at("/"));
        assert!(found == Some(code) && !why.contains("panic"), "{what}: {found:?} {why}");
        assert!(why.contains("/f") || why.contains("/missing"), "{what}: {why}");
        assert_eq!(fine(&["cat", &image.at("/f")]), "old\n", "{what}");
        assert_eq!(fine(&["ls", &image.at("/")]), "f\n", "{what}");
    }
    // What can be made takes the place, whatever the two are.
    for (kind, linkpath) in [(b'0', ""), (b'6', ""), (b'2', "to"), (b'0', ""), (b'5', "")] {
        let records: [(&str, &[u8]); 1] = [("linkpath", linkpath.as_bytes())];
        of_one(&file, kind, &records, none, if kind == b'0' { b"new\n" } else { b"" });
        assert_eq!(unpacked(&file, &image.at("/")), (Some(0), String::new()));
        assert_eq!(fine(&["ls", &image.at("/")]), "f\n");
        if kind == b'0' {
            assert_eq!(fine(&["cat", &image.at("/f")]), "new\n");
        }
    }
    assert_eq!(json(&fine(&["stat", "--json", &image.at("/f")]))[0]["type"], "directory");
    assert_clean(&image.path);
}

/// A link of the archive that an older one leads to was followed, and so was an older one to which
/// the archive gave a name elsewhere.
#[test]
fn older_links_do_not_lead_to_links_of_the_archive() {
    require!(btrfs_progs);
    let image = Image::new("tar-older");
    let at = image.dir.path().display();
    run(&format!("cd {at} && echo good > passwd"));
    fine(&["mkdir", "-p", &image.at("/srv/releases/1"), &image.at("/srv/a/b"), &image.at("/etc")]);
    fine(&["mkdir", &image.at("/srv/etc")]);
    fine(&["cp", &format!("{at}/passwd"), &image.at("/etc/passwd")]);
    fine(&["ln", "-s", "1", &image.at("/srv/releases/now")]);
    fine(&["ln", "-s", "releases/cur", &image.at("/srv/app")]);
    fine(&["ln", "-s", "releases/now", &image.at("/srv/safe")]);
    fine(&["ln", "-s", "../etc", &image.at("/srv/a/up")]);
    run(&format!(
        "cd {at} && mkdir -p t/releases u/app u/safe && ln -s /etc t/releases/cur &&
         echo evil | tee u/app/passwd > u/safe/passwd &&
         tar -cf a.tar -C t releases/cur && tar -rf a.tar -C u app/passwd safe/passwd"
    ));
    let (code, why) = unpacked(&image.dir.join("a.tar"), &image.at("/srv"));
    assert!(code == Some(1) && why.contains("symbolic link of the archive"), "{why}");
    assert_eq!(fine(&["cat", &image.at("/etc/passwd")]), "good\n");
    assert_eq!(fine(&["cat", &image.at("/srv/releases/1/passwd")]), "evil\n");
    let mut archive = tar::Builder::new(fs::File::create(image.dir.join("b.tar")).unwrap());
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Link);
    header.set_size(0);
    header.set_mode(0o777);
    archive.append_link(&mut header, "up", "a/up").unwrap();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_size(5);
    archive.append_data(&mut header, "up/passwd", &b"evil\n"[..]).unwrap();
    archive.into_inner().unwrap();
    let (code, why) = unpacked(&image.dir.join("b.tar"), &image.at("/srv"));
    assert!(code == Some(1) && why.contains("symbolic link of the archive"), "{why}");
    assert_eq!(fine(&["cat", &image.at("/etc/passwd")]), "good\n");
    assert_clean(&image.path);
}

/// So that more than the checksum is met.
fn mend_checksum(header: &mut [u8]) {
    if &header[257..262] == b"ustar" {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

/// Where nothing is found that was to be in it; of several the others are archived.
#[test]
fn an_archive_stays_as_it_is_for_a_mistyped_name() {
    require!(btrfs_progs);
    let image = Image::new("mistyped");
    let [d, mistyped] = ["/d", "/mistyped"].map(|path| image.at(path));
    fine(&["mkdir", &d]);
    let [file, new] = ["backup.tar", "new.tar"].map(|name| image.dir.join(name));
    let [word, new_word] = [&file, &new].map(|path| path.display().to_string());
    fine(&["tar", "-c", "-f", &word, &d]);
    let before = fs::read(&file).unwrap();
    for words in [&[&mistyped][..], &[&mistyped, &mistyped]] {
        let words: Vec<&str> = words.iter().map(|word| word.as_str()).collect();
        let (code, said) = failing(&[&["tar", "-c", "-f", &word], &words[..]].concat());
        assert!(code == 1 && said.contains("mistyped"), "{said}");
        assert!(fs::read(&file).unwrap() == before);
        failing(&[&["tar", "-c", "-f", &new_word], &words[..]].concat());
        assert!(!new.exists());
    }
    failing(&["tar", "-c", "-f", &new_word, &mistyped, &d]);
    assert!(fs::read(&new).unwrap() == before);
}

/// Older tars tell a link the size of its file, and write nothing of it.
#[test]
fn links_that_tell_a_size_swallow_nothing() {
    require!(btrfs_progs);
    let image = Image::new("tar-links");
    let archive = image.dir.join("old.tar").display().to_string();
    let script = "if 1:
        import tarfile, sys
        out = open(sys.argv[1], 'wb')
        def put(name, kind, size, content=b'', link='', pax={}):
            it = tarfile.TarInfo(name)
            it.type, it.size, it.linkname, it.pax_headers = kind, size, link, pax
            out.write(it.tobuf(tarfile.PAX_FORMAT if pax else tarfile.USTAR_FORMAT))
            out.write(content + bytes(-len(content) % 512))
        put('one', tarfile.REGTYPE, 1500, b'1' * 1500)
        put('hard', tarfile.LNKTYPE, 1500, link='one')
        put('soft', tarfile.SYMTYPE, 700, link='one')
        put('dir', tarfile.DIRTYPE, 4096)
        put('pipe', tarfile.FIFOTYPE, 3)
        put('told', tarfile.LNKTYPE, 1500, b'1' * 1500, 'one', {'size': '1500'})
        put('last', tarfile.REGTYPE, 5, b'last!')
        out.write(bytes(1024))";
    run(&format!("python3 -c \"{script}\" {archive}"));
    fine(&["tar", "-x", "-f", &archive, &image.at("/")]);
    assert_eq!(fine(&["ls", &image.at("/")]), "dir\nhard\nlast\none\npipe\nsoft\ntold\n");
    assert_eq!(fine(&["cat", &image.at("/last")]), "last!");
    assert_eq!(fine(&["cat", &image.at("/told")]), "1".repeat(1500));
    assert_clean(&image.path);
}
