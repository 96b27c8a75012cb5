//! What is in the way of a copy, beside GNU cp; and `-`.

use crate::common;
use common::{Image, PROGRAM, TempDir, assert_clean, failing, fine, sh, text};
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;
use testkit::require;

/// Things that a copy may meet, in a fresh directory.
fn in_the_way(dir: &Path) {
    let script = format!(
        "cd {} && mkdir dir && mkfifo fifo && mknod null c 1 3 && echo old > file &&
         echo outside > kept && ln -s kept to-file && ln -s nowhere dangling && ln -s dir to-dir &&
         ln file file2 && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'",
        dir.display()
    );
    let done = sh(&script);
    assert!(done.status.success(), "{}", text(&done.stderr));
}

fn listing(dir: &Path) -> String {
    let script = format!(
        "cd {} && find . -printf '%P %y %n %l ' \\( -type f -exec cat {{}} \\; -o -print \\) | sort",
        dir.display()
    );
    text(&sh(&script).stdout)
}

#[test]
fn what_is_in_the_way_is_treated_as_by_cp() {
    require!(btrfs_progs);
    require!(root);
    let image = Image::new("targets");
    let host = TempDir::new("targets-host").unwrap();
    let source = host.join("source");
    fs::write(&source, "content\n").unwrap();
    fine(&["cp", &source.display().to_string(), &image.at("/source")]);
    symlink("anywhere", host.join("link")).unwrap();
    fine(&["cp", "-r", &host.join("link").display().to_string(), &image.at("/link")]);
    let targets =
        ["dir", "fifo", "null", "file", "to-file", "dangling", "to-dir", "socket", "new", "kept/x"];
    for options in ["", "-r", "-n"] {
        for what in ["source", "link"] {
            if what == "link" && options != "-r" {
                continue;
            }
            for target in targets {
                let (theirs, ours) = (host.join("theirs"), host.join("ours"));
                let run = |dir: &Path, command: String| {
                    fs::create_dir(dir).unwrap();
                    in_the_way(dir);
                    // A fifo needs a reader; one that gets nothing is ended.
                    let (before, behind) = match (target, what, options) {
                        ("fifo", "source", "" | "-r") => {
                            ("{ timeout 2 cat fifo > read & }; ", "[ $code = 0 ] && wait;")
                        }
                        _ => ("", ""),
                    };
                    let script = format!(
                        "cd {}; {before} timeout 20 {command} {target}; code=$?; {behind} echo $code",
                        dir.display()
                    );
                    let done = sh(&script);
                    (text(&done.stdout).starts_with('0'), listing(dir), text(&done.stderr))
                };
                let plain = if options == "-r" { "-r --no-preserve" } else { options };
                let expected =
                    run(&theirs, format!("cp {options} {}/{what}", host.path().display()));
                let got =
                    run(&ours, format!("{PROGRAM} cp {plain} {}", image.at(&format!("/{what}"))));
                assert_eq!(
                    (got.0, &got.1),
                    (expected.0, &expected.1),
                    "{options} {what} {target}: {} | {}",
                    got.2,
                    expected.2
                );
                fs::remove_dir_all(&theirs).unwrap();
                fs::remove_dir_all(&ours).unwrap();
            }
        }
    }
}

#[test]
fn content_goes_into_block_devices() {
    require!(btrfs_progs);
    require!(kernel_btrfs);
    let image = Image::new("to-device");
    let host = TempDir::new("to-device-host").unwrap();
    let (source, medium) = (host.join("source"), host.join("medium"));
    let content: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&source, &content).unwrap();
    fs::write(&medium, vec![7; 1 << 20]).unwrap();
    fine(&["cp", &source.display().to_string(), &image.at("/source")]);
    let attached = sh(&format!("losetup -f --show {}", medium.display()));
    let device = text(&attached.stdout).trim().to_owned();
    assert!(device.starts_with("/dev/loop"), "{}", text(&attached.stderr));
    let mode = sh(&format!("stat -c %a,%u,%y {device}"));
    let done = sh(&format!("{PROGRAM} cp -r {} {device}", image.at("/source")));
    let after = sh(&format!("stat -c %a,%u,%y {device}"));
    let still = fs::symlink_metadata(&device).unwrap().file_type().is_block_device();
    sh(&format!("losetup -d {device}"));
    assert!(done.status.success() && still, "{}", text(&done.stderr));
    let written = fs::read(&medium).unwrap();
    assert!(written[..content.len()] == content && written[content.len()] == 7);
    // Owner and permissions of a device are the machine's.
    assert_eq!(text(&mode.stdout).split(',').take(2).collect::<Vec<_>>(), {
        text(&after.stdout).split(',').take(2).map(str::to_owned).collect::<Vec<_>>()
    });
}

/// In a volume nobody is behind a device or fifo; links lead on.
#[test]
fn in_volumes_devices_and_fifos_are_not_written_over() {
    require!(btrfs_progs);
    require!(root);
    let image = Image::new("targets-inside");
    let host = TempDir::new("targets-inside-host").unwrap();
    let tree = host.join("tree");
    fs::create_dir(&tree).unwrap();
    in_the_way(&tree);
    let source = host.join("source");
    fs::write(&source, "content\n").unwrap();
    let source = source.display().to_string();
    fine(&["cp", "-r", &format!("{}/.", tree.display()), &image.at("/")]);
    fine(&["cp", &source, &image.at("/inner")]);
    for from in [source.as_str(), &image.at("/inner")] {
        for options in [&["cp"][..], &["cp", "-r"]] {
            for target in ["fifo", "null", "socket", "dangling"] {
                let target = image.at(&format!("/{target}"));
                let before = fine(&["stat", &target]);
                let (code, why) = failing(&[options, &[from, &target]].concat());
                assert!(code == 1 && why.contains(&target), "{why}");
                assert_eq!(fine(&["stat", &target]), before);
            }
            fine(&[options, &[from, &image.at("/to-file")]].concat());
            assert_eq!(fine(&["cat", &image.at("/kept")]), "content\n");
            assert!(fine(&["ls", "-l", &image.at("/to-file")]).contains("-> kept"));
            fine(&["truncate", "-s", "0", &image.at("/kept")]);
        }
    }
    // What is no file itself takes the place, as with cp -r.
    let fifo = tree.join("fifo").display().to_string();
    fine(&["cp", "-r", &fifo, &image.at("/null")]);
    assert!(fine(&["stat", &image.at("/null")]).contains(" fifo"));
    assert_clean(&image.path);
}

#[test]
fn standard_input_and_output_are_a_dash() {
    require!(btrfs_progs);
    let image = Image::new("dash");
    let run = |script: &str| {
        let script =
            script.replace("spinney ", &format!("{PROGRAM} ")).replace("img", &image.word());
        let done = sh(&script);
        (done.status.code(), text(&done.stdout) + &text(&done.stderr))
    };
    let expected: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(run("seq 100000 | spinney cp - img:/numbers"), (Some(0), String::new()));
    assert!(run("spinney cp img:/numbers -") == (Some(0), expected.clone()));
    assert!(run("spinney cp -v img:/numbers - | cat") == (Some(0), expected.clone()));
    // Over a file that is there, and from where the descriptor stands.
    let file = image.dir.join("lines");
    fs::write(&file, "1\n2\n3\n").unwrap();
    let lines = file.display();
    assert_eq!(
        run(&format!("{{ dd bs=2 count=1 2>/dev/null; spinney cp - img:/numbers; }} < {lines}")).1,
        "1\n"
    );
    assert_eq!(run("spinney cat img:/numbers").1, "2\n3\n");
    assert_eq!(run("echo x | spinney cat img:/numbers - img:/numbers").1, "2\n3\nx\n2\n3\n");
    fine(&["mkdir", &image.at("/dir")]);
    let (code, why) = run("echo x | spinney cp - img:/dir");
    assert!(code == Some(1) && why.contains("has no name"), "{why}");
    let (code, why) = run("spinney cp -r img:/dir -");
    assert!(code == Some(1) && why.contains("spinney tar"), "{why}");
    let (code, why) = run("echo x | spinney cp - -");
    assert!(code == Some(1) && why.contains("neither side"), "{why}");
    // A file that has this name.
    fine(&["cp", &file.display().to_string(), &image.at("/-")]);
    assert_eq!(run("cd $(dirname img) && spinney cp img:/- ./- && cat ./-").1, "1\n2\n3\n");
    assert_clean(&image.path);
}

/// A stranger's volume must not say where the content of another goes.
#[test]
fn links_that_a_command_made_are_not_written_through() {
    require!(btrfs_progs);
    let (image, other) = (Image::new("made-links"), Image::new("made-links-too"));
    let host = TempDir::new("made-links-host").unwrap();
    let (kept, out) = (host.join("kept"), host.join("out"));
    fs::write(&kept, "kept").unwrap();
    fs::create_dir(&out).unwrap();
    fine(&["ln", "-s", &kept.display().to_string(), &image.at("/x")]);
    fine(&["mkdir", &image.at("/dir")]);
    let source = host.join("source");
    fs::write(&source, "content").unwrap();
    for to in [image.at("/dir/x"), other.at("/x")] {
        fine(&["cp", &source.display().to_string(), &to]);
        let words = ["cp", "-r", &image.at("/x"), &to, &out.display().to_string()];
        let (code, why) = failing(&words);
        assert!(code == 1 && why.contains("just made"), "{why}");
        assert_eq!(fs::read_to_string(&kept).unwrap(), "kept");
        // One that was there before is the caller's own.
        fine(&["cp", "-r", "--no-preserve", &to, &out.display().to_string()]);
        assert_eq!(fs::read_to_string(&kept).unwrap(), "content");
        fs::write(&kept, "kept").unwrap();
        fs::remove_file(out.join("x")).unwrap();
    }
}

/// The same in a volume: from this machine, from another volume, and within it.
#[test]
fn links_that_a_command_made_in_a_volume_are_not_written_through() {
    require!(btrfs_progs);
    let (image, other) = (Image::new("made-inside"), Image::new("made-inside-too"));
    let host = TempDir::new("made-inside-host").unwrap();
    let made = common::sh(&format!(
        "cd {} && mkdir one two && ln -s /kept one/x && echo content >two/x && echo kept >kept",
        host.path().display()
    ));
    assert!(made.status.success());
    let word = |name: &str| host.join(name).display().to_string();
    for to in [&image, &other] {
        fine(&["cp", "-r", &word("one"), &word("two"), &word("kept"), &to.at("/")]);
    }
    let kept = || assert_eq!(fine(&["cat", &image.at("/kept")]), "kept\n");
    let from =
        |name: &str| [word(name), other.at(&format!("/{name}")), image.at(&format!("/{name}"))];
    for (turn, (one, two)) in from("one").iter().zip(from("two").iter()).enumerate() {
        for merged in [false, true] {
            let dir = image.at(&format!("/{turn}{merged}"));
            fine(&["mkdir", &dir]);
            let below = if merged { "/." } else { "/x" };
            let words = ["cp", "-r", &format!("{one}{below}"), &format!("{two}{below}"), &dir];
            let (code, why) = failing(&words);
            assert!(code == 1 && why.contains("just made"), "{why}");
            kept();
            // One that was there before is the caller's own.
            fine(&["cp", "-r", "--no-preserve", &format!("{two}/x"), &dir]);
            assert_eq!(fine(&["cat", &image.at("/kept")]), "content\n");
            fine(&["cp", &word("kept"), &image.at("/kept")]);
        }
    }
}

/// Of two sources with one name neither is lost; trees are merged.
#[test]
fn a_source_does_not_take_the_name_of_another() {
    require!(btrfs_progs);
    let (image, other) = (Image::new("same-names"), Image::new("same-names-too"));
    let host = TempDir::new("same-names-host").unwrap();
    let made = common::sh(&format!(
        "cd {} && mkdir -p a/d b/d out && echo a | tee a/x a/d/one && echo b | tee b/x b/d/two && \
         mkdir c && ln -s . c/x",
        host.path().display()
    ));
    assert!(made.status.success());
    let word = |name: &str| host.join(name).display().to_string();
    fine(&["cp", "-r", &word("a"), &word("b"), &word("c"), &other.at("/")]);
    for (from, to) in
        [(word(""), image.at("/")), (other.at("/"), image.at("/")), (other.at("/"), word("out"))]
    {
        let [a, b, c] = ["a/x", "b/x", "c/x"].map(|name| format!("{from}{name}"));
        // With -r a link to a directory is none.
        for words in [&["cp", &a, &b, &to][..], &["cp", "-r", &a, &c, &to]] {
            let (code, why) = failing(words);
            assert!(code == 1 && why.contains("just made"), "{why}");
        }
        let dirs = ["a/d", "b/d"].map(|name| format!("{from}{name}"));
        fine(&["cp", "-r", &dirs[0], &dirs[1], &to]);
        fine(&["cp", "-n", &b, &a, &to]);
        if to == image.at("/") {
            assert_eq!(fine(&["cat", &image.at("/x")]), "a\n");
            assert_eq!(fine(&["ls", &image.at("/d")]), "one\ntwo\n");
        } else {
            assert_eq!(fs::read_to_string(host.join("out/x")).unwrap(), "a\n");
            assert!(host.join("out/d/one").exists() && host.join("out/d/two").exists());
        }
    }
}

/// Nobody reads a terabyte of holes.
#[test]
fn a_sparse_file_over_another_one_is_copied_by_its_data() {
    require!(btrfs_progs);
    let image = Image::new("sparse-over");
    let host = TempDir::new("sparse-over-host").unwrap();
    let made = common::sh(&format!(
        "cd {} && echo old >old && echo new >disk && truncate -s 1T disk && echo end >>disk",
        host.path().display()
    ));
    require!(made.status.success(), "no sparse file of 1 TiB here");
    let word = |name: &str| host.join(name).display().to_string();
    fine(&["cp", &word("old"), &image.at("/f")]);
    for options in ["-r", "--no-preserve"] {
        fine(&["cp", options, &word("disk"), &image.at("/f")]);
        let told = common::json(&fine(&["du", "-s", "--json", &image.at("/f")]));
        assert_eq!(told[0]["disk_bytes"], 8192, "{told}");
    }
    assert_clean(&image.path);
}

/// An empty target is what a script has whose variable is not set.
#[test]
fn an_empty_target_is_not_the_working_directory() {
    let image = Image::new("targets-empty");
    let host = TempDir::new("targets-empty-host").unwrap();
    fs::create_dir(host.join("d")).unwrap();
    fs::write(host.join("d/f"), "theirs").unwrap();
    fine(&["cp", "-r", &host.join("d").display().to_string(), &image.at("/d")]);
    fs::set_permissions(host.join("d"), fs::Permissions::from_mode(0o751)).unwrap();
    fs::write(host.join("d/f"), "ours").unwrap();
    let before = listing(&host.join("d"));
    for options in ["-r", "-rT", "-r --no-preserve"] {
        let script = format!(
            "cd {} && {PROGRAM} cp {options} {} \"\"",
            host.join("d").display(),
            image.at("/d")
        );
        let done = sh(&script);
        let said = text(&done.stderr);
        assert!(
            done.status.code() == Some(1) && said.contains("no such file"),
            "{options}: {said}"
        );
        assert_eq!(listing(&host.join("d")), before, "{options}");
        assert_eq!(host.join("d").metadata().unwrap().permissions().mode() & 0o7777, 0o751);
    }
}

/// As cp(1) has it: no file comes to be at a name that only a directory can have.
#[test]
fn what_is_no_directory_goes_to_no_directory_that_is_not_there() {
    let image = Image::new("targets-slash");
    let host = TempDir::new("targets-slash-host").unwrap();
    fs::write(host.join("f"), "content").unwrap();
    symlink("f", host.join("l")).unwrap();
    symlink("nowhere", host.join("dangling")).unwrap();
    fs::create_dir(host.join("d")).unwrap();
    let word = |name: &str| host.join(name).display().to_string();
    for name in ["f", "l", "d"] {
        fine(&["cp", "-r", &word(name), &image.at(&format!("/{name}"))]);
    }
    for from in ["/f", "/l"] {
        for (options, to) in [("-r", "backups/"), ("-r", "backups//"), ("-rT", "backups/")] {
            let (code, said) = failing(&["cp", options, &image.at(from), &word(to)]);
            assert!(code == 1 && said.contains("not a directory"), "{from} {to}: {said}");
        }
        assert!(host.join("backups").symlink_metadata().is_err(), "{from}");
    }
    fine(&["cp", "-r", &image.at("/d"), &word("backups/")]);
    assert!(host.join("backups").is_dir());
    let (code, _) = failing(&["cp", "-r", &image.at("/d"), &word("dangling/")]);
    assert_eq!((code, host.join("nowhere").exists()), (1, false));
}
