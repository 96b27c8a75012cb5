//! `spinney find` and `spinney du`, beside GNU find and du on the kernel's mount.

use crate::common;
use common::{Image, KernelMount, failing, fine, json, sh, spinney, text};
use std::path::Path;
use testkit::require;

/// Fills a mounted volume.
fn fill(dir: &Path) {
    let script = format!(
        "cd {} && mkdir -p a/b/c empty 'with blank' && seq 1000 > a/one && echo x > a/b/Two.TXT &&
         : > a/b/nothing && truncate -s 5M a/b/c/sparse && head -c 300000 /dev/urandom > 'with blank/big' &&
         ln -s ../one a/b/link && ln a/one a/b/c/hard && mkfifo a/fifo && mknod a/null c 1 3 &&
         touch -d '3 days ago' a/b/Two.TXT && touch -d '2001-01-01' a/b/nothing && touch -d '1 day' a/b/c/sparse &&
         chmod 4755 a/one && chmod 2770 empty && chown 7:8 'with blank/big' && touch .hidden 'a/star*' &&
         for n in $(seq 300); do echo $n > a/b/c/file$n; done; sync -f .",
        dir.display()
    );
    let done = sh(&script);
    assert!(done.status.success(), "{}", text(&done.stderr));
}

fn sorted(bytes: &[u8], separator: char) -> Vec<String> {
    let mut all: Vec<String> = text(bytes).split(separator).map(str::to_owned).collect();
    all.sort();
    all
}

#[test]
fn what_find_finds() {
    require!(kernel_btrfs);
    let image = Image::new("find");
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    fill(mount.path());
    let cases = [
        "@/",
        "@/ -name *.TXT",
        "@/ -iname *.txt",
        "@/a -name [fo]* -type f,p",
        "@/ -name a",
        "@/ -name star\\*",
        "@/ -type d",
        "@/ -type l",
        "@/ -type c -o -type p",
        "@/ ! -type f",
        "@/ -type f -not -name file* -o -name c -type d",
        "@/ -size +100k",
        "@/ -size -2",
        "@/ -size 1 -type f",
        "@/ -size 3893c",
        "@/ -empty",
        "@/ -newer @/a/b/Two.TXT -type f -name [a-z]*",
        "@/ -mtime +1",
        "@/ -mtime -1 -maxdepth 2",
        "@/ -mtime 3",
        "@/ -mmin +10",
        "@/ -perm 4755",
        "@/ -perm -2000",
        "@/ -perm /6000",
        "@/ -perm -g+w -type d",
        "@/ -uid 7",
        "@/ -gid +7",
        "@/ -links 2 -type f",
        "@/ -links +1",
        "@/a -maxdepth 1",
        "@/a -mindepth 2 -maxdepth 2",
        "@/a -maxdepth 0",
        "@/a/ -maxdepth 1",
        "@/a/one",
        "@/a/b/link",
        "@/a @/empty @/none",
        "@/ -type d -print0",
        "@/ --name one",
        "@/a -type",
        "@/a -type x",
        "@/a -size 1x",
    ];
    let words = |line: &str, prefix: &str| -> Vec<String> {
        line.split(' ').map(|word| word.replace("@/", &format!("{prefix}/"))).collect()
    };
    let root = mount.path().display().to_string();
    let mut expected = Vec::new();
    for line in cases {
        let line = line.replace("--name", "-name");
        let done = std::process::Command::new("find").args(words(&line, &root)).output().unwrap();
        expected.push((done.status.success(), text(&done.stdout).replace(&root, "@")));
    }
    mount.unmount().unwrap();
    for (line, (well, found)) in cases.iter().zip(expected) {
        let prefix = format!("{}:", image.word());
        let done = spinney(&[vec!["find".to_owned()], words(line, &prefix)].concat());
        assert_eq!(done.status.success(), well, "{line}: {}", text(&done.stderr));
        let separator = if line.contains("print0") { '\0' } else { '\n' };
        let got = text(&done.stdout).replace(&prefix, "@");
        assert_eq!(
            sorted(got.as_bytes(), separator),
            sorted(found.as_bytes(), separator),
            "{line}"
        );
    }
    let lines = fine(&["find", &image.at("/a"), "-name", "link", "--json"]);
    let told = json(&lines);
    assert_eq!((&told["path"], &told["target"]), (&"/a/b/link".into(), &"../one".into()));
    // Others of our commands take what it prints.
    let two = fine(&["find", &image.at("/"), "-name", "Two*"]);
    assert_eq!(fine(&["cat", two.trim_end()]), "x\n");
    assert_eq!(failing(&["find", &image.at("/"), "-o", "-type", "f"]).0, 2);
    assert_eq!(failing(&["find", &image.at("/"), "!"]).0, 2);
    let (_, why) = failing(&["find", &image.at("/"), "-nmae", "x"]);
    assert!(why.contains("find has no option"), "{why}");
}

#[test]
fn what_du_counts() {
    require!(kernel_btrfs);
    let image = Image::new("du");
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    fill(mount.path());
    let compressed = format!(
        "cd {} && mkdir z && btrfs property set z compression zstd && seq 200000 > z/numbers && sync -f .",
        mount.path().display()
    );
    assert!(sh(&compressed).status.success());
    let cases = [
        "@/",
        "-s @/",
        "-d 1 @/a",
        "--max-depth=2 @/",
        "-a @/a",
        "-ac @/a @/empty",
        "@/a/one",
        "@/a/b @/a",
        "-sc @/a/b/c @/a/one",
        "-k @/none @/empty",
        "@/z",
        "-a -d 1 @/",
    ];
    let words = |line: &str, prefix: &str| -> Vec<String> {
        line.split(' ').map(|word| word.replace("@/", &format!("{prefix}/"))).collect()
    };
    let root = mount.path().display().to_string();
    let mut expected = Vec::new();
    for line in cases {
        let done = std::process::Command::new("du").args(words(line, &root)).output().unwrap();
        expected.push((done.status.success(), text(&done.stdout).replace(&root, "@")));
    }
    let lengths =
        sh(&format!("cd {root} && find . \\( -type f -o -type l \\) -printf '%i %s\\n' | sort -u"));
    let apparent: u64 = text(&lengths.stdout)
        .lines()
        .map(|line| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap())
        .sum();
    mount.unmount().unwrap();
    let prefix = format!("{}:", image.word());
    for (line, (well, told)) in cases.iter().zip(expected) {
        let done = spinney(&[vec!["du".to_owned()], words(line, &prefix)].concat());
        assert_eq!(done.status.success(), well, "{line}: {}", text(&done.stderr));
        let got = text(&done.stdout).replace(&prefix, "@");
        assert_eq!(sorted(got.as_bytes(), '\n'), sorted(told.as_bytes(), '\n'), "{line}");
    }
    let top = image.at("/");
    assert_eq!(fine(&["du", "-sb", &top]), format!("{apparent}\t{top}\n"));
    // What reflinks share is there once: the whole is no larger, the copy alone is.
    let sum = |path: &str| json(&fine(&["du", "-s", "--json", &image.at(path)]))[0].clone();
    let (before, z) = (sum("/"), sum("/z"));
    fine(&["cp", "-r", &image.at("/z"), &image.at("/copy")]);
    let after = sum("/");
    assert_eq!(after["disk_bytes"], before["disk_bytes"]);
    assert_eq!(sum("/copy")["disk_bytes"], z["disk_bytes"]);
    assert_eq!(after["shared_bytes"], z["disk_bytes"]);
    assert!(z["disk_bytes"].as_u64() > Some(1 << 20), "{z}");
    assert!(fine(&["du", "-sh", &image.at("/z")]).contains("MiB\t"));
}
