//! Files and devices that `cp`, `tar -c` and `send` write to: each refuses what is an image in use, under
//! whatever name, and leaves it as it is.

use crate::common;
use common::mount::Mount;
use common::{Image, KernelMount, TempDir, assert_clean, failing, fine, sh, spinney, text};
use std::fs;
use testkit::require;

/// A loop device, let go with the value.
struct Loop(String);

impl Loop {
    fn over(image: &Image) -> Loop {
        let attached = sh(&format!("losetup -f --show {}", image.word()));
        assert!(attached.status.success(), "{}", text(&attached.stderr));
        Loop(text(&attached.stdout).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        sh(&format!("losetup -d {}", self.0));
    }
}

/// With a read-only snapshot `/s`, in which there is a file.
fn filled(name: &str) -> Image {
    let image = Image::new(name);
    fs::write(image.dir.join("file"), vec![7; 300_000]).unwrap();
    fine(&["subvolume", "create", &image.at("/v")]);
    fine(&["cp", &image.dir.join("file").display().to_string(), &image.at("/v/file")]);
    fine(&["subvolume", "snapshot", "-r", &image.at("/v"), &image.at("/s")]);
    image
}

/// What writes `from:/s`, or what is in it, to `to`.
fn writers(from: &str, to: &str) -> [Vec<String>; 3] {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    [
        words(&["cp", &format!("{from}:/s/file"), to]),
        words(&["tar", "-c", "-f", to, &format!("{from}:/s")]),
        words(&["send", "-q", "-f", to, &format!("{from}:/s")]),
    ]
}

fn refused(from: &str, to: &str) {
    for words in writers(from, to) {
        let (code, said) = failing(&words);
        assert!(code == 1 && said.contains("in use"), "{words:?}: {code}, {said}");
    }
}

#[test]
fn an_image_that_is_read_is_not_written_whatever_it_is_called() {
    require!(kernel_btrfs);
    let image = filled("outputs-itself");
    refused(&image.word(), &image.word());
    {
        let (one, other) = (Loop::over(&image), Loop::over(&image));
        refused(&image.word(), &one.0);
        refused(&one.0, &image.word());
        refused(&one.0, &one.0);
        refused(&one.0, &other.0);
        let link = image.dir.join("link");
        std::os::unix::fs::symlink(&one.0, &link).unwrap();
        refused(&image.word(), &link.display().to_string());
    }
    assert_clean(&image.path);
    assert_eq!(fs::metadata(&image.path).unwrap().len(), 512 << 20);
}

#[test]
fn what_somebody_else_has_is_not_written() {
    require!(kernel_btrfs);
    require!(fuse);
    let (image, other) = (filled("outputs-from"), Image::new("outputs-other"));
    let mount = KernelMount::new(&other.path, "ro").unwrap();
    refused(&image.word(), &other.word());
    mount.unmount().unwrap();
    let device = Loop::over(&other);
    let point = TempDir::new("outputs-point").unwrap();
    let place = point.path().display();
    assert!(sh(&format!("mount -o ro {} {place}", device.0)).status.success());
    refused(&image.word(), &other.word());
    refused(&image.word(), &device.0);
    assert!(sh(&format!("umount {place}")).status.success());
    drop(device);
    let mount = Mount::new(&other, "rw,transport=classic");
    let device = Loop::over(&other);
    refused(&image.word(), &other.word());
    refused(&image.word(), &device.0);
    drop(mount);
    assert_clean(&other.path);
    // Nobody has it any more, so whoever wants to may.
    for words in writers(&image.word(), &device.0) {
        let done = spinney(&words);
        assert!(done.status.success(), "{words:?}: {}", text(&done.stderr));
    }
}

#[test]
fn an_image_is_not_copied_into_itself_by_way_of_a_device() {
    require!(kernel_btrfs);
    let image = Image::new("outputs-into");
    let device = Loop::over(&image);
    let dir = image.dir.path().display().to_string();
    fs::write(image.dir.join("file"), "content").unwrap();
    let at = |path: &str| format!("{}:{path}", device.0);
    let done = spinney(&["cp", "-r", &format!("{dir}/."), &at("/")]);
    let said = text(&done.stderr);
    assert!(done.status.success() && said.matches("is left out").count() == 1, "{said}");
    assert_eq!(fine(&["ls", &at("/")]), "file\n");
    for (from, to) in [(image.word(), at("/x")), (device.0.clone(), image.at("/x"))] {
        let (code, why) = failing(&["cp", &from, &to]);
        assert!(code == 1 && why.contains("is the image"), "{from}: {why}");
    }
    drop(device);
    assert_clean(&image.path);
}
