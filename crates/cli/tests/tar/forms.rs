//! `spinney tar -x` of what other tools, and other options of theirs, make: incremental backups, directories behind
//! what is in them, archives without an end.
//!
//! Judge: GNU tar.

use crate::common;
use common::{Image, fine, json, sh, spinney, text};
use std::fs;
use testkit::require;

/// Runs it in the image's directory.
fn packed(image: &Image, script: &str) {
    let done = sh(&format!("cd {} && umask 022 && {script}", image.dir.path().display()));
    assert!(done.status.success(), "{}", text(&done.stderr));
}

fn unpacked(image: &Image, archive: &str, to: &str) -> (Option<i32>, String) {
    let archive = image.dir.join(archive).display().to_string();
    let done = spinney(&["tar", "-xf", &archive, &image.at(to)]);
    (done.status.code(), text(&done.stderr))
}

/// Mode and time of last change.
fn seen(image: &Image, path: &str) -> (String, String) {
    let found = json(&fine(&["stat", "--json", &image.at(path)]))[0].clone();
    let of = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (of("mode"), of("mtime").replace(".000000000Z", "").replace("1970-01-01T00:00:", ""))
}

#[test]
fn directories_of_incremental_backups_are_directories() {
    require!(btrfs_progs);
    let image = Image::new("tar-incremental");
    packed(
        &image,
        "mkdir -p d/empty d/full && chmod 700 d && chmod 2770 d/full && echo x > d/full/f &&
         touch -d @15 d/full/f && touch -d @16 d/full && touch -d @17 d/empty && touch -d @18 d &&
         for form in gnu posix; do tar -H $form -g $form.names -cf $form.tar d || exit 1; done",
    );
    for form in ["gnu", "posix"] {
        let to = format!("/{form}");
        fine(&["mkdir", &image.at(&to)]);
        let done = unpacked(&image, &format!("{form}.tar"), &to);
        assert_eq!(done, (Some(0), String::new()), "{form}");
        for (name, mode, time) in [
            ("d", "0700", "18"),
            ("d/empty", "0755", "17"),
            ("d/full", "2770", "16"),
            ("d/full/f", "0644", "15"),
        ] {
            let expected = (mode.to_owned(), time.to_owned());
            assert_eq!(seen(&image, &format!("{to}/{name}")), expected, "{form}: {name}");
        }
    }
}

/// What an archive has and the volume has not is a failure.
#[test]
fn members_of_unknown_types_are_a_failure() {
    require!(btrfs_progs);
    let image = Image::new("tar-unknown");
    let mut archive = tar::Builder::new(fs::File::create(image.dir.join("odd.tar")).unwrap());
    for (name, kind) in [("odd", b'Z'), ("last", b'0')] {
        let mut header = tar::Header::new_gnu();
        header.set_path(name).unwrap();
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_size(5);
        header.set_mode(0o644);
        header.set_cksum();
        archive.append(&header, &b"text\n"[..]).unwrap();
    }
    archive.into_inner().unwrap();
    let (code, said) = unpacked(&image, "odd.tar", "/");
    assert!(code == Some(1) && said.contains("/odd: is left out"), "{code:?}: {said}");
    assert_eq!(fine(&["ls", &image.at("/")]), "last\n");
}

/// What the archive is called is nothing that was packed.
#[test]
fn an_archive_with_a_name_is_unpacked() {
    require!(btrfs_progs);
    let image = Image::new("tar-named");
    packed(
        &image,
        "touch f && tar -V name -cf named.tar f && tar -H posix -V name -cf posix.tar f",
    );
    for archive in ["named.tar", "posix.tar"] {
        let (code, said) = unpacked(&image, archive, "/");
        assert!(code == Some(0) && !said.contains("f: "), "{code:?}: {said}");
        assert_eq!(fine(&["ls", &image.at("/")]), "f\n");
        fine(&["rm", &image.at("/f")]);
    }
}

#[test]
fn an_archive_without_an_end_is_one() {
    require!(btrfs_progs);
    let image = Image::new("tar-no-end");
    let name = "n".repeat(120);
    packed(&image, &format!("echo x > a && echo x > {name} && tar -H gnu -cf whole.tar a {name}"));
    let whole = fs::read(image.dir.join("whole.tar")).unwrap();
    // Header and content; the same of a header with the long name; the same again.
    for (blocks, code, words, listed) in [
        (6, 0, "has no end marker", format!("a\n{name}\n")),
        (2, 0, "has no end marker", "a\n".to_owned()),
        (4, 1, "in the middle of a member", "a\n".to_owned()),
        (3, 1, "in the middle of a member", "a\n".to_owned()),
    ] {
        fs::write(image.dir.join("cut.tar"), &whole[..blocks * 512]).unwrap();
        let to = format!("/{blocks}");
        fine(&["mkdir", &image.at(&to)]);
        let (got, said) = unpacked(&image, "cut.tar", &to);
        assert!(got == Some(code) && said.contains(words), "{blocks}: {got:?}: {said}");
        assert_eq!(fine(&["ls", &image.at(&to)]), listed, "{blocks}");
    }
}

/// It inherits when it is made; the member that tells of it comes later.
#[test]
fn a_directory_behind_what_is_in_it_has_what_its_member_says() {
    require!(btrfs_progs);
    let image = Image::new("tar-behind");
    packed(
        &image,
        "mkdir -p d/e && touch d/e/f && chmod 2710 d/e && touch -d @15 d/e && touch -d @16 d &&
         find d -depth | tar --no-recursion -T - -cf depth.tar",
    );
    fine(&["mkdir", &image.at("/to")]);
    fine(&["property", "set", &image.at("/to"), "compression", "zstd"]);
    // A directory that was there keeps what it has.
    fine(&["mkdir", &image.at("/to/d")]);
    fine(&["tar", "-xf", &image.dir.join("depth.tar").display().to_string(), &image.at("/to")]);
    let listed = |path: &str| fine(&["xattr", "list", &image.at(path)]);
    assert_ne!(listed("/to/d"), "");
    assert_eq!([listed("/to/d/e"), listed("/to/d/e/f")], ["", ""]);
    assert_eq!(seen(&image, "/to/d/e"), ("2710".to_owned(), "15".to_owned()));
    assert_eq!(seen(&image, "/to/d").1, "16");
}

/// GNU tar makes nothing for what a link leads to.
#[test]
fn a_hard_link_to_what_is_not_there_makes_no_directories_for_it() {
    require!(btrfs_progs);
    let image = Image::new("tar-dangling");
    packed(
        &image,
        "mkdir -p from/a/b from/c && cd from && echo x > a/b/f && ln a/b/f c/l && echo x > c/last &&
         tar -cf ../part.tar a/b/f c/l c/last && tar --delete -f ../part.tar a/b/f",
    );
    let seen = "find . -mindepth 1 | LC_ALL=C sort";
    let gnu = sh(&format!(
        "cd {} && mkdir gnu && cd gnu && ! tar -xf ../part.tar 2>/dev/null && {seen}",
        image.dir.path().display()
    ));
    assert_eq!(text(&gnu.stdout), "./c\n./c/last\n", "GNU tar");
    fine(&["mkdir", &image.at("/to")]);
    let (code, said) = unpacked(&image, "part.tar", "/to");
    assert!(code == Some(1) && said.contains("no such file"), "{code:?}: {said}");
    let to = image.at("/to");
    assert_eq!(fine(&["find", &to, "-mindepth", "1"]), format!("{to}/c\n{to}/c/last\n"));
}
