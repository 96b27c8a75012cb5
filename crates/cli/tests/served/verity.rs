//! `spinney verity`, and the tool `fsverity` on a mount: by either a file becomes one that is verified, and
//! the tool says what it is measured by.

use crate::common;
use btrfs_send::{Command, Encoder, Origin, Protocol, Verity};
use common::mount::Mount;
use common::streams::{ready, shell};
use common::{Image, assert_clean, failing, fine};

/// What the first word of a line says.
fn digest(line: &str) -> String {
    line.split_whitespace().next().expect("a digest").to_string()
}

#[test]
fn files_are_verified_by_either_program_in_mounts_and_images() {
    if !ready("files_are_verified_by_either_program_in_mounts_and_images") {
        return;
    }
    let there = std::process::Command::new("fsverity").arg("--version").output().is_ok();
    testkit::require!(there, "fsverity-utils is not installed");
    let image = Image::new("verity");
    let mount = Mount::new(&image, "");
    let top = mount.word();
    let dir = image.path.parent().unwrap().display().to_string();
    let salted = "--salt=0abc --hash-alg=sha512 --block-size=1024";
    shell(&format!(
        "cd {dir}; head -c 1000001 /dev/urandom > f; for i in a b c; do cp f {top}/$i; done
        fsverity enable {top}/a {salted}"
    ));
    fine(&["verity", "enable", &format!("{top}/b")]);
    let by_tool = digest(&shell(&format!("fsverity digest {dir}/f {salted}")));
    let plain = digest(&shell(&format!("fsverity digest {dir}/f")));
    assert_eq!(digest(&shell(&format!("fsverity measure {top}/a"))), by_tool);
    assert_eq!(digest(&shell(&format!("fsverity measure {top}/b"))), plain);
    assert_eq!(digest(&fine(&["verity", "measure", &format!("{top}/a")])), by_tool);
    let (code, said) = failing(&["verity", "measure", &format!("{top}/c")]);
    assert!(code == 1 && said.contains("is not verified"), "{code} {said}");
    // The last of them is refused when it writes: the volume had no such file when it was mounted.
    let refused =
        "for i in a b; do if echo x > $i || echo x >> $i; then exit 1; fi; done 2>/dev/null";
    shell(&format!("cd {top}; {refused}; cmp a {dir}/f; cmp b {dir}/f; lsattr a | grep -q V"));
    // What is written through a map is refused behind the writer's back, and forgotten.
    shell(&format!(
        "cd {top}; python3 -c 'if 1:
        import mmap, os, time
        f = os.open(\"b\", os.O_RDWR)
        m, old = mmap.mmap(f, 8192), os.pread(f, 4096, 0)
        m[0] = old[0] ^ 1
        try: m.flush()
        except OSError: pass
        for _ in range(100):
            if os.pread(f, 4096, 0) == old: break
            time.sleep(0.1)
        else: raise SystemExit(\"what was never verified is read\")'
        if fsverity dump_metadata merkle_tree a > /dev/null 2>&1; then exit 1; fi"
    ));
    mount.umount();

    fine(&["verity", "enable", "--hash-alg", "sha512", &image.at("/c")]);
    let other = digest(&shell(&format!("fsverity digest {dir}/f --hash-alg=sha512")));
    assert_eq!(digest(&fine(&["verity", "measure", &image.at("/c")])), other);
    assert_eq!(digest(&fine(&["verity", "measure", &image.at("/a")])), by_tool);
    assert_clean(&image.path);
    let json = fine(&["verity", "measure", "--json", &image.at("/a"), &image.at("/c")]);
    let (a, c) = (image.at("/a"), image.at("/c"));
    let entry = |path: &str, digest: &str| {
        let (name, hex) = digest.split_once(':').expect("a name in front");
        format!(r#"{{"path":"{path}","hash_alg":"{name}","digest":"{hex}"}}"#)
    };
    let expected = format!("{{\"files\":[{},{}]}}", entry(&a, &by_tool), entry(&c, &other));
    assert_eq!(json.trim(), expected);
    let checked = fine(&["check", "--data", &image.word()]);
    assert!(checked.contains("by fs-verity"), "{checked}");

    // From the next mount on none can be opened to be written.
    let mount = Mount::new(&image, "");
    let top = mount.word();
    shell(&format!(
        "cd {top}; for i in a b c; do if (exec 3>>$i) 2>/dev/null; then exit 1; fi; cmp $i {dir}/f; done"
    ));
    mount.umount();
    assert_clean(&image.path);
}

/// Protocol 3 of the kernel's send: in an image, in a mount whose server receives, and in one where it is
/// received by system calls.
#[test]
fn what_is_sent_as_verified_is_verified_where_it_is_received() {
    if !ready("what_is_sent_as_verified_is_verified_where_it_is_received") {
        return;
    }
    let image = Image::new("verity-receive");
    let dir = image.path.parent().unwrap().display().to_string();
    let stream = format!("{dir}/stream");
    let verity = Verity { algorithm: 1, block_size: 4096, salt: b"\x0a\xbc", signature: b"none" };
    let origin = Origin { uuid: [7; 16], ctransid: 9 };
    let mut encoder = Encoder::new(Vec::new(), Protocol::V3).unwrap();
    for command in [
        Command::Subvol { path: b"snap", origin },
        Command::MkFile { path: b"file", ino: 257 },
        Command::Write { path: b"file", offset: 0, data: &[7; 45_000] },
        Command::EnableVerity { path: b"file", verity },
        Command::End,
    ] {
        encoder.put(&command).unwrap();
    }
    std::fs::write(&stream, encoder.into_inner()).unwrap();
    let dumped = fine(&["receive", "--dump", "-f", &stream]);
    let line = "algorithm=1 block_size=4096 salt_len=2 sig_len=4";
    assert!(
        dumped.lines().any(|l| l.starts_with("enable_verity") && l.ends_with(line)),
        "{dumped}"
    );
    for name in ["image", "served", "calls"] {
        fine(&["mkdir", &image.at(&format!("/{name}"))]);
    }
    fine(&["receive", "-q", "-f", &stream, &image.at("/image")]);
    let mount = Mount::new(&image, "");
    let top = mount.word();
    fine(&["receive", "-q", "-f", &stream, &format!("{top}/served")]);
    // From another root directory no server is asked.
    fine(&["receive", "-q", "-C", "-f", &stream, &format!("{top}/calls")]);
    mount.umount();
    let mut digests: Vec<String> = ["image", "served", "calls"]
        .map(|name| digest(&fine(&["verity", "measure", &image.at(&format!("/{name}/snap/file"))])))
        .to_vec();
    digests.dedup();
    assert_eq!(digests.len(), 1, "{digests:?}");
    if std::process::Command::new("fsverity").arg("--version").output().is_ok() {
        shell(&format!("head -c 45000 /dev/zero | tr '\\0' '\\7' > {dir}/same"));
        let tool = shell(&format!("fsverity digest --salt=0abc {dir}/same"));
        assert_eq!(digests[0], digest(&tool));
    }
    assert_clean(&image.path);
    // And on from there: an image and a mount of it send the same, to whoever knows the word.
    let (by_image, by_mount) = (format!("{dir}/by-image"), format!("{dir}/by-mount"));
    let snap = "/image/snap";
    fine(&["send", "-q", "--proto", "3", "-f", &by_image, &image.at(snap)]);
    let mount = Mount::new(&image, "ro");
    let there = format!("{}{snap}", mount.word());
    fine(&["btrfs", "-q", "send", "--proto", "3", "-f", &by_mount, &there]);
    mount.umount();
    shell(&format!("cmp {by_image} {by_mount}"));
    let other = Image::new("verity-sent-on");
    fine(&["receive", "-q", "-f", &by_image, &other.at("/")]);
    let sent_on = fine(&["verity", "measure", &other.at("/snap/file")]);
    assert_eq!(digest(&sent_on), digests[0]);
    let ordinary = fine(&["send", "-q", "--proto", "0", "-f", &by_mount, &image.at(snap)]);
    assert!(
        ordinary.is_empty() && !fine(&["receive", "--dump", "-f", &by_mount]).contains("verity")
    );
    assert_clean(&other.path);
}
