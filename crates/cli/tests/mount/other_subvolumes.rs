//! Several subvolumes of one volume, each mounted somewhere: one server, one cache.

use crate::common;
use common::mount::{Mount, TRANSPORTS, gone, lacks_fuse, mounted, place, server, signal};
use common::{Image, failing, fine, sh, spinney, text};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use testkit::require;

/// What of the file system the mount on `point` shows.
fn root_of(point: &str) -> String {
    let output = sh(&format!("findmnt -fno FSROOT --mountpoint {point}"));
    text(&output.stdout).trim().to_owned()
}

fn image(name: &str) -> Image {
    let image = Image::new(name);
    for subvolume in ["/@", "/@home", "/@home/mail"] {
        fine(&["subvolume", "create", &image.at(subvolume)]);
    }
    fine(&["mkdir", &image.at("/dir")]);
    image
}

fn number(image: &Image, path: &str) -> String {
    let shown = fine(&["subvolume", "show", "--json", &image.at(path)]);
    common::json(&shown)["id"].to_string()
}

fn same_volume(one: &Path, two: &Path) {
    assert_eq!(fs::metadata(one).unwrap().dev(), fs::metadata(two).unwrap().dev());
}

/// Was refused: "a second mount of another subvolume".
#[test]
fn each_subvolume_is_mounted_beside_the_others() {
    require!(fuse);
    require!(btrfs_progs);
    for transport in TRANSPORTS {
        for kind in ["rw", "plain"] {
            if lacks_fuse(transport) {
                continue;
            }
            let image = image("beside");
            let id = number(&image, "/@home/mail");
            let mount = Mount::new(&image, &format!("{kind},transport={transport},subvol=@"));
            assert_eq!(root_of(&mount.word()), "/@");
            let (home, home_word) = place(&image, "home");
            let told = fine(&["mount", "-o", "subvol=@home", &image.word(), &home_word]);
            let expected = format!("it is the subvolume @home of the mount on {}", mount.word());
            assert!(told.contains(&expected), "{told}");
            assert_eq!(
                (mounted(&home), root_of(&home_word)),
                (mounted(&mount.point), "/@home".into())
            );
            same_volume(&home, &mount.point);
            let (mail, mail_word) = place(&image, "mail");
            fine(&["mount", "-r", "-o", &format!("subvolid={id}"), &image.word(), &mail_word]);
            fs::write(home.join("mail/letter"), "one").unwrap();
            assert_eq!(fs::read(mail.join("letter")).unwrap(), b"one");
            let refused = fs::write(mail.join("x"), "x").unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
            assert!(
                !mount.join("mail").exists()
                    && fs::read_dir(&mount.point).unwrap().next().is_none()
            );
            // What is left leads to the others.
            fine(&["umount", &mount.word()]);
            let (top, top_word) = place(&image, "top");
            fine(&["mount", &image.word(), &top_word]);
            assert_eq!(fs::read(top.join("@home/mail/letter")).unwrap(), b"one");
            fine(&["mount", "-o", "subvol=@", &image.word(), &mount.word()]);
            assert_eq!(root_of(&mount.word()), "/@");
            fine(&["umount", &home_word, &top_word, &mail_word]);
            fs::write(mount.join("last"), "last").unwrap();
            fine(&["umount", &mount.word()]);
            assert_eq!(
                fine(&["cat", &image.at("/@/last"), &image.at("/@home/mail/letter")]),
                "lastone"
            );
            gone(&image);
        }
    }
}

/// What the first mount begins at is no directory of anybody's else.
#[test]
fn a_mount_begins_at_the_default_subvolume() {
    require!(fuse);
    require!(btrfs_progs);
    let image = image("beside-default");
    fine(&["subvolume", "set-default", &image.at("/@")]);
    let mount = Mount::new(&image, "rw");
    assert_eq!(root_of(&mount.word()), "/@");
    let parent = fs::metadata(mount.join("..")).unwrap().ino();
    assert_eq!(parent, fs::metadata(image.dir.path()).unwrap().ino());
    let (second, word) = place(&image, "second");
    for same in ["rw", "subvol=@", "subvol=/@/"] {
        fine(&["mount", "-o", same, &image.word(), &word]);
        assert_eq!(root_of(&word), "/@");
        fine(&["umount", &word]);
    }
    fine(&["mount", "-o", "subvolid=5", &image.word(), &word]);
    assert_eq!((root_of(&word), second.join("@home").exists()), ("/".into(), true));
    fine(&["umount", &word]);
    mount.umount();
    gone(&image);
}

#[test]
fn what_is_no_subvolume_is_not_mounted() {
    require!(fuse);
    require!(btrfs_progs);
    let image = image("beside-refused");
    let mount = Mount::new(&image, "subvol=@");
    let (second, word) = place(&image, "second");
    for (asked, why) in [
        ("subvol=none", "has no subvolume /none"),
        ("subvol=dir", "has no subvolume /dir"),
        ("subvol=@home/../@home", "has no subvolume /@home/../@home"),
        ("subvolid=999", "has no subvolume with the number 999"),
    ] {
        let (code, told) = failing(&["mount", "-o", asked, &image.word(), &word]);
        let first = format!("is mounted on {} already", mount.word());
        assert!(code == 1 && told.contains(&first) && told.contains(why), "{asked}: {told}");
        assert_eq!(mounted(&second), None);
    }
    mount.umount();
    gone(&image);
}

/// What came last was mounted, without a word.
#[test]
fn path_and_number_name_one_subvolume() {
    require!(fuse);
    require!(btrfs_progs);
    let image = image("both-named");
    let ids = [number(&image, "/@"), number(&image, "/@home")];
    let (point, word) = place(&image, "point");
    let mount = |options: &str| spinney(&["mount", "-o", options, &image.word(), &word]);
    let lists = |id: &str, path: &str| {
        [format!("subvolid={id},subvol={path}"), format!("subvol={path},subvolid={id}")]
    };
    let all = || {
        for (id, path) in [(&ids[0], "/@home"), (&ids[1], "/@"), (&ids[0], "/"), (&ids[0], "/no")] {
            for list in lists(id, path) {
                let output = mount(&list);
                let why = format!("no subvolume {} with the number {id}", path.trim_matches('/'));
                let told = text(&output.stderr).replace("subvolume /", "subvolume ");
                assert!(output.status.code() == Some(1) && told.contains(&why), "{list}: {told}");
                assert_eq!(mounted(&point), None);
            }
        }
        for (id, path) in [(&*ids[0], "/@"), (&*ids[1], "@home"), ("5", "/"), ("0", "/")] {
            for list in lists(id, path) {
                let output = mount(&list);
                assert!(output.status.success(), "{list}: {}", text(&output.stderr));
                assert_eq!(root_of(&word), format!("/{}", path.trim_matches('/')));
                fine(&["umount", &word]);
            }
        }
    };
    all();
    // Beside a mount that is there, of the top and of one of them.
    for first in ["subvolid=5", "subvol=@"] {
        let first = Mount::new(&image, first);
        all();
        first.umount();
    }
    gone(&image);
}

/// Was refused: "something else is mounted over".
#[test]
fn what_is_covered_in_the_first_mount_is_mounted_all_the_same() {
    require!(fuse);
    require!(btrfs_progs);
    let image = image("beside-covered");
    let mount = Mount::new(&image, "rw");
    fs::write(mount.join("@home/mail/letter"), "one").unwrap();
    let over = mount.join("@home").display().to_string();
    assert!(sh(&format!("mount -t tmpfs none {over}")).status.success());
    let (second, word) = place(&image, "second");
    for (asked, root, letter) in
        [("subvol=@home", "/@home", "mail/letter"), ("subvol=@home/mail", "/@home/mail", "letter")]
    {
        let told = fine(&["mount", "-o", &format!("ro,{asked}"), &image.word(), &word]);
        assert!(told.contains(&format!("the mount on {}", mount.word())), "{told}");
        assert_eq!((mounted(&second), root_of(&word)), (mounted(&mount.point), root.into()));
        same_volume(&second, &mount.point);
        assert_eq!(fs::read(second.join(letter)).unwrap(), b"one");
        let refused = fs::write(second.join("x"), "x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        fine(&["umount", &word]);
        assert_eq!(mounted(&second), None, "there is one mount on it");
    }
    let (code, told) = failing(&["mount", "-o", "subvol=@home/none", &image.word(), &word]);
    assert!(code == 1 && told.contains("has no subvolume /@home/none"), "{told}");
    assert!(sh(&format!("umount {over}")).status.success());
    mount.umount();
    gone(&image);
}

/// As with the kernel's btrfs a subvolume that is mounted can be deleted; that at which the server's own mount begins cannot.
#[test]
fn a_deleted_subvolume_is_unmounted_as_any() {
    require!(fuse);
    require!(btrfs_progs);
    let image = image("beside-deleted");
    let mount = Mount::new(&image, "subvol=@");
    let ((top, top_word), (mail, mail_word)) = (place(&image, "top"), place(&image, "mail"));
    fine(&["mount", "-o", "subvolid=5", &image.word(), &top_word]);
    fine(&["mount", "-o", "subvol=@home/mail", &image.word(), &mail_word]);
    fs::write(mail.join("letter"), "one").unwrap();
    let delete = |path: &str| top.join(path).display().to_string();
    let (_, told) = failing(&["subvolume", "delete", &delete("@")]);
    assert!(told.contains("in use") || told.contains("busy"), "{told}");
    fine(&["subvolume", "delete", &delete("@home/mail")]);
    assert!(fs::read(mail.join("letter")).is_err() && !top.join("@home/mail").exists());
    fine(&["umount", &mail_word, &top_word]);
    mount.umount();
    gone(&image);
}

#[test]
fn a_signal_ends_the_mounts_of_all_subvolumes() {
    require!(fuse);
    require!(btrfs_progs);
    let image = image("beside-signal");
    for first_stays in [true, false] {
        let mut mount = Mount::foreground(&image, "subvol=@");
        let (home, word) = place(&image, "home");
        fine(&["mount", "-o", "subvol=@home", &image.word(), &word]);
        fs::write(home.join("x"), "x").unwrap();
        if !first_stays {
            assert!(sh(&format!("umount {}", mount.word())).status.success());
        }
        signal(mount.pid(), "TERM");
        let (code, log) = mount.wait();
        assert_eq!(code, Some(0), "{log}");
        assert_eq!((mounted(&home), mounted(&mount.point)), (None, None));
        gone(&image);
    }
    assert!(server(&image.path).is_none());
}

/// It was the last mount of the volume in the table, whichever that is.
#[test]
fn paths_are_told_by_the_mount_that_leads_to_them() {
    require!(fuse);
    require!(btrfs_progs);
    let image = image("beside-paths");
    let mount = Mount::new(&image, "subvol=@");
    let (home, word) = place(&image, "home");
    fine(&["mount", "-o", "subvol=@home", &image.word(), &word]);
    for point in [&mount.point, &home] {
        fs::write(point.join("file"), vec![7; 1 << 20]).unwrap();
        fs::File::open(point.join("file")).unwrap().sync_all().unwrap();
        let file = point.join("file").display().to_string();
        let found = fine(&["subvolume", "find-new", "--json", &point.display().to_string(), "0"]);
        let address = common::json(&found)["extents"][0]["disk_start"].to_string();
        for asked in [mount.word(), word.clone()] {
            let told = fine(&["inspect-internal", "logical-resolve", &address, &asked]);
            assert_eq!(told.trim(), file, "by {asked}");
        }
        let types = fine(&["property", "list", &point.display().to_string()]);
        assert!(types.contains("label"), "{types}");
    }
    fine(&["umount", &word]);
    mount.umount();
    gone(&image);
}
