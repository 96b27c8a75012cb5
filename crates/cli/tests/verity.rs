//! `spinney verity`, and the tool `fsverity` on a mount: by either a file becomes one that is verified, and
//! the tool says what it is measured by.

mod common;

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
