//! `spinney tar -x` with archives that nobody packed: they cost as much as they are long.

use crate::common;
use common::{Image, PROGRAM, assert_clean, fine, text};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use testkit::require;

/// A header of its own in front of a member, with this content, and what it is of: a file `f`, and then one
/// called `last`.
pub fn archive(file: &Path, kind: u8, content: &[u8]) {
    archive_of(file, &[("x", kind, content), ("f", b'0', b"content\n"), ("last", b'0', b"last\n")]);
}

/// Members with these names, types and contents.
fn archive_of(file: &Path, members: &[(&str, u8, &[u8])]) {
    let mut to = BufWriter::new(File::create(file).unwrap());
    for (name, kind, content) in members {
        let mut header = tar::Header::new_gnu();
        header.set_path(name).unwrap();
        header.set_entry_type(tar::EntryType::new(*kind));
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        to.write_all(header.as_bytes()).unwrap();
        to.write_all(content).unwrap();
        let padding = content.len().next_multiple_of(512) - content.len();
        to.write_all(&vec![0; padding]).unwrap();
    }
    to.write_all(&[0; 1024]).unwrap();
    to.flush().unwrap();
}

/// Within a minute: exit code, and what is said.
pub fn unpacked(file: &Path, to: &str) -> (Option<i32>, String) {
    let mut command = Command::new("timeout");
    let done = command.args(["60", PROGRAM, "tar", "-xf"]).arg(file).arg(to).output().unwrap();
    (done.status.code(), text(&done.stderr))
}

/// Each of a name's directories was looked for by the whole way to it, copied anew; and a name could have
/// millions.
#[test]
fn names_of_millions_of_directories_are_refused() {
    require!(btrfs_progs);
    let image = Image::new("tar-names");
    let file = image.dir.join("a.tar");
    let name = b"d/".repeat(4 << 20);
    let mut record = b"8388624 path=".to_vec();
    record.extend_from_slice(&name);
    record.extend_from_slice(b"ff\n");
    for (kind, content) in [(b'L', &name), (b'x', &record)] {
        archive(&file, kind, content);
        let (code, said) = unpacked(&file, &image.at("/"));
        assert!(code == Some(1) && said.contains("d/d/d/") && said.contains("bytes"), "{said}");
        assert!(said.len() < 1000, "{} bytes", said.len());
        // What comes behind it is unpacked.
        assert_eq!(fine(&["cat", &image.at("/last")]), "last\n");
        assert_eq!(fine(&["ls", &image.at("/")]), "last\n");
        fine(&["rm", &image.at("/last")]);
    }
    assert_clean(&image.path);
}

/// As GNU tar and bsdtar have it (`--acls`), the ACL is a text. The group's permissions beside it are its mask.
#[test]
fn whom_an_acl_keeps_out_gets_not_in_without_it() {
    require!(btrfs_progs);
    let image = Image::new("tar-acl");
    let file = image.dir.join("a.tar");
    let of = |key: &str, acl: &str| {
        let record = format!(" SCHILY.{key}={acl}\n");
        let mut lens = (1..9).map(|digits| digits + record.len());
        let len = lens.find(|len| len.to_string().len() + record.len() == *len).unwrap();
        format!("{len}{record}")
    };
    let text = "user::rw-,user:not-here:rw-,group::---,mask::rw-,other::---";
    // In a form of its own, which no volume takes; the text beside it is no other.
    let strange = of("xattr.system.posix_acl_access", "\u{1}\0\0\0");
    let default = of("xattr.system.posix_acl_default", "\u{1}\0\0\0");
    // Longer than an item of the volume, and than any attribute.
    let long = |count| {
        let more: String = (0..count).map(|id| format!("user:{id}:r--,")).collect();
        format!("{more}user::rw-,group::---,mask::r--,other::---")
    };
    for (content, kind, mode) in [
        (of("acl.access", text), b'0', "600"),
        (of("acl.access", "user::rw-,group::rw-,other::r--"), b'0', "664"),
        (of("acl.access", text) + &strange, b'0', "600"),
        (strange.clone(), b'0', "600"),
        (strange, b'5', "600"),
        (default, b'5', "664"),
        (of("acl.default", text), b'5', "664"),
        (of("acl.default", text), b'0', "664"),
        (of("acl.access", &long(3000)), b'0', "600"),
        (of("acl.access", &long(10_000)), b'0', "600"),
        (of("acl.access", &long(3000)), b'5', "600"),
        (of("acl.default", &long(3000)), b'5', "664"),
    ] {
        let mut to = File::create(&file).unwrap();
        for (kind, mode, content) in [(b'x', 0, content.as_bytes()), (kind, 0o664, b"")] {
            let mut header = tar::Header::new_gnu();
            header.set_path("f").unwrap();
            header.set_entry_type(tar::EntryType::new(kind));
            header.set_size(content.len() as u64);
            header.set_mode(mode);
            header.set_cksum();
            to.write_all(header.as_bytes()).unwrap();
            to.write_all(content).unwrap();
            to.write_all(&vec![0; content.len().next_multiple_of(512) - content.len()]).unwrap();
        }
        to.write_all(&[0; 1024]).unwrap();
        let (code, said) = unpacked(&file, &image.at("/"));
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(said.contains("its owner alone"), mode == "600", "{said}");
        let stat = fine(&["stat", &image.at("/f")]);
        assert!(stat.contains(&format!("Access: (0{mode}/")), "{stat}");
        fine(&["rm", "-d", &image.at("/f")]);
    }
}

/// Volumes can hold it, and no system call can name it; not even the file is made.
#[test]
fn an_attribute_with_a_nul_in_its_name_is_refused() {
    require!(btrfs_progs);
    let image = Image::new("tar-nul");
    let file = image.dir.join("a.tar");
    archive(&file, b'x', b"27 SCHILY.xattr.user.a\0b=v\n");
    let (code, said) = unpacked(&file, &image.at("/"));
    assert!(code == Some(1) && said.contains("/f") && said.contains("NUL"), "{said}");
    assert_eq!(fine(&["ls", &image.at("/")]), "last\n");
    assert_clean(&image.path);
}

/// The kernel would follow what is in front of the NUL, and no stream can have such a link.
#[test]
fn a_link_to_a_path_with_a_nul_in_it_is_refused() {
    require!(btrfs_progs);
    let image = Image::new("tar-nul-link");
    let file = image.dir.join("a.tar");
    for (kind, target) in [(b'x', &b"16 linkpath=a\0b\n"[..]), (b'K', b"a\0b")] {
        archive_of(&file, &[("x", kind, target), ("l", b'2', b""), ("last", b'0', b"last\n")]);
        let (code, said) = unpacked(&file, &image.at("/"));
        assert!(code == Some(1) && said.contains("/l") && said.contains("NUL"), "{said}");
        assert_eq!(fine(&["ls", &image.at("/")]), "last\n");
    }
    assert_clean(&image.path);
}

/// A header of so many records, each of them of two names in memory, took twenty times its length.
#[test]
fn headers_of_millions_of_records_are_refused() {
    require!(btrfs_progs);
    let image = Image::new("tar-records");
    let file = image.dir.join("a.tar");
    archive(&file, b'x', &b"4 =\n".repeat(16 << 20));
    let (code, said) = unpacked(&file, &image.at("/"));
    assert!(code == Some(1) && said.contains("too many"), "{said}");
    assert_eq!(fine(&["ls", &image.at("/")]), "");
    assert_clean(&image.path);
}

/// No system call takes such a name, but trees of this depth are made, and packed.
#[test]
fn deep_trees_are_packed_and_unpacked() {
    require!(btrfs_progs);
    let image = Image::new("tar-deep");
    let archive = image.dir.join("deep.tar").display().to_string();
    let deep = format!("{}/", "d".repeat(250)).repeat(40);
    let volume = spinney::VolumeOptions::new().write(true).open(&image.path).unwrap();
    volume.create_dir_all(format!("from/{deep}")).unwrap();
    volume.write(format!("from/{deep}file"), b"content\n").unwrap();
    volume.create_dir("to").unwrap();
    volume.close().unwrap();
    fine(&["tar", "-cf", &archive, &image.at("/from")]);
    fine(&["tar", "-xf", &archive, &image.at("/to")]);
    let volume = spinney::VolumeOptions::new().open(&image.path).unwrap();
    assert_eq!(volume.read(format!("to/from/{deep}file")).unwrap(), b"content\n");
    volume.close().unwrap();
    assert_clean(&image.path);
}

/// Who packs a path that is refused when it is unpacked hears so.
#[test]
fn a_path_that_would_not_come_back_is_told_where_it_is_packed() {
    require!(btrfs_progs);
    let image = Image::new("tar-deepest");
    let archive = image.dir.join("deepest.tar").display().to_string();
    let name = "d".repeat(250);
    let volume = spinney::VolumeOptions::new().write(true).open(&image.path).unwrap();
    volume.create_dir_all(format!("{name}/").repeat(261)).unwrap();
    volume.close().unwrap();
    let packed = |top: &str| {
        let words = ["tar", "-cf", &archive, &image.at(&format!("/{top}"))];
        text(&Command::new(PROGRAM).args(words).output().unwrap().stderr)
    };
    // 65511 bytes.
    assert_eq!(packed(&name), "");
    fine(&["tar", "-xf", &archive, &image.at("/")]);
    fine(&["mkdir", &image.at("/longer-by-more-than-25-bytes")]);
    fine(&["mv", &image.at(&format!("/{name}")), &image.at("/longer-by-more-than-25-bytes/")]);
    let said = packed("longer-by-more-than-25-bytes");
    assert_eq!(said.matches("which `spinney tar -x` refuses").count(), 1, "{said}");
    let (code, refused) = unpacked(Path::new(&archive), &image.at("/"));
    assert!(code == Some(1) && refused.contains("is refused"), "{refused}");
}
