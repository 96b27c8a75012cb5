//! Where the file system of a copy tells at its close alone that there is no room, that is told, and the exit code is 1.

use crate::common;
use common::{Image, PROGRAM, fine, text};
use std::fs;
use std::process::Command;
use testkit::require;

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/served/no_room_at_close.py");

#[test]
fn what_a_close_tells_is_no_success() {
    require!(root);
    require!(fuse);
    require!(btrfs_progs);
    require!(Command::new("python3").arg("--version").output().is_ok(), "no python3");
    let image = Image::new("closes");
    for words in [
        "mkdir @:/d",
        "touch @:/f @:/d/f",
        "truncate -s 1M @:/f",
        "subvolume create @:/s",
        "property set @:/s ro true",
    ] {
        let words = words.replace('@', &image.word());
        fine(&words.split(' ').collect::<Vec<_>>());
    }
    let point = image.dir.join("point");
    fs::create_dir(&point).unwrap();
    let (at, image) = (point.display(), image.word());
    let commands = [
        ("a new file", format!("cp {image}:/f {at}/f")),
        ("over it", format!("cp {image}:/f {at}/f")),
        ("a tree", format!("cp -r {image}:/d {at}/d")),
        ("to standard output", format!("cp {image}:/f - > {at}/output")),
        ("cat", format!("cat {image}:/f > {at}/output")),
        ("an archive", format!("tar -c -f {at}/tar {image}:/d")),
        ("an archive to standard output", format!("tar -c {image}:/d > {at}/output")),
        ("a stream", format!("send -q -f {at}/stream {image}:/s")),
        ("a stream to standard output", format!("send -q {image}:/s > {at}/output")),
        ("a list", format!("ls {image}:/ > {at}/output")),
    ];
    let script: String = commands
        .iter()
        .map(|(what, words)| format!("{PROGRAM} {words}; echo \"{what}: $?\" >&3\n"))
        .collect();
    let done = Command::new("python3")
        .args([SERVER, &at.to_string(), "bash", "-c", &format!("exec 3>&1\n{script}")])
        .output()
        .unwrap();
    if done.status.code() == Some(77) {
        println!("SKIPPED: the server of the test cannot be mounted");
        return;
    }
    let expected: String = commands.iter().map(|(what, _)| format!("{what}: 1\n")).collect();
    assert_eq!(text(&done.stdout), expected, "{}", text(&done.stderr));
    let told = text(&done.stderr).to_lowercase();
    assert_eq!(told.matches("no space").count(), commands.len(), "{told}");
}
