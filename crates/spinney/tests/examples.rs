//! The examples do what they say on real images: `btrfs check` and the kernel's mount judge.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use testkit::oracle::{TempDir, assert_clean, kernel_populate, mkfs_btrfs, with_kernel};

/// Where cargo puts the examples of this build. `cargo test --test examples` alone does not
/// build them.
fn example(name: &str) -> PathBuf {
    let me = std::env::current_exe().expect("this test");
    let target = me.ancestors().nth(2).expect("target/PROFILE/deps/THIS");
    let program = target.join("examples").join(name);
    if !program.exists() {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME"), "--examples"]);
        if target.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo").success());
    }
    program
}

fn run(name: &str, words: &[&dyn AsRef<std::ffi::OsStr>]) -> Output {
    let mut command = Command::new(example(name));
    words.iter().for_each(|word| {
        command.arg(word);
    });
    command.output().expect("the example runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn fine(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Something of each kind.
fn fill(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/one"), "content\n").unwrap();
    fs::write(root.join("a/b/large"), vec![7; 3 << 20]).unwrap();
    fs::set_permissions(root.join("a/one"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::hard_link(root.join("a/one"), root.join("a/b/again")).unwrap();
    symlink("b/large", root.join("a/link")).unwrap();
    let hole = fs::File::create(root.join("hole")).unwrap();
    hole.set_len(5 << 20).unwrap();
}

#[test]
fn an_image_is_built_of_a_directory() {
    testkit::require!(btrfs_progs);
    let dir = TempDir::new("example-build").unwrap();
    let (from, image) = (dir.join("from"), dir.join("disk.img"));
    fill(&from);
    fine(&run("build_image", &[&from, &image, &"300"]));
    assert_clean(&image);
    testkit::require!(kernel_btrfs);
    with_kernel(&image, "ro", |mount| {
        let one = fs::metadata(mount.join("a/one")).unwrap();
        assert_eq!((one.mode() & 0o7777, one.nlink()), (0o4751, 2));
        assert_eq!(fs::read(mount.join("a/link")).unwrap(), vec![7; 3 << 20]);
        let hole = fs::metadata(mount.join("hole")).unwrap();
        assert_eq!((hole.len(), hole.blocks()), (5 << 20, 0));
    })
    .unwrap();
}

#[test]
fn a_volume_of_the_kernel_is_listed_and_verified() {
    testkit::require!(kernel_btrfs);
    let dir = TempDir::new("example-list").unwrap();
    let image = dir.join("disk.img");
    mkfs_btrfs(&image, 512 << 20, &[]).unwrap();
    with_kernel(&image, "", |mount| kernel_populate(mount.path(), 1).unwrap()).unwrap();
    let listed = fine(&run("list_and_verify", &[&image]));
    let names = with_kernel(&image, "ro", |mount| {
        let find = Command::new("find").arg(mount.path()).args(["-printf", "/%P\\n"]).output();
        text(&find.expect("find").stdout).lines().map(str::to_owned).collect::<Vec<_>>()
    })
    .unwrap();
    assert!(names.len() > 20);
    for name in names.iter().filter(|name| name.is_ascii()) {
        assert!(listed.lines().any(|line| line.ends_with(name.as_str())), "{name}");
    }
}

#[test]
fn damage_is_found_by_the_example() {
    testkit::require!(btrfs_progs);
    let dir = TempDir::new("example-damage").unwrap();
    let (from, image) = (dir.join("from"), dir.join("disk.img"));
    fill(&from);
    fine(&run("build_image", &[&from, &image, &"300"]));
    let mut bytes = fs::read(&image).unwrap();
    let at = bytes.windows(4096).position(|w| w.iter().all(|b| *b == 7)).expect("the content");
    bytes[at + 100] = 8;
    fs::write(&image, bytes).unwrap();
    let output = run("list_and_verify", &[&image]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
}

#[test]
fn one_file_is_edited() {
    testkit::require!(kernel_btrfs);
    let dir = TempDir::new("example-edit").unwrap();
    let image = dir.join("disk.img");
    mkfs_btrfs(&image, 512 << 20, &[]).unwrap();
    with_kernel(&image, "", |mount| {
        fs::create_dir(mount.join("etc")).unwrap();
        fs::write(mount.join("etc/config"), "a = 1\nb = 1\n").unwrap();
    })
    .unwrap();
    let said = fine(&run("edit_file", &[&image, &"etc/config", &"= 1", &"= two"]));
    assert_eq!(said, "2 replaced\n");
    assert_clean(&image);
    with_kernel(&image, "ro", |mount| {
        assert_eq!(fs::read_to_string(mount.join("etc/config")).unwrap(), "a = two\nb = two\n");
    })
    .unwrap();
}

/// What the README shows is what the example does.
#[test]
fn the_readme_shows_an_example() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(here.join("../../README.md")).unwrap();
    let (_, section) = readme.split_once("## As a library\n").expect("the section");
    let block: Vec<&str> = section
        .lines()
        .skip_while(|line| !line.starts_with("    let"))
        .map_while(|line| line.strip_prefix("    ").or(line.is_empty().then_some("")))
        .collect();
    let example = fs::read_to_string(here.join("examples/edit_file.rs")).unwrap();
    let lines: Vec<&str> = example.lines().map(str::trim).collect();
    let shown: Vec<&str> = block.iter().map(|line| line.trim()).collect();
    let shown = shown.join("\n");
    assert!(lines.join("\n").contains(shown.trim_end()) && shown.len() > 200, "{shown}");
}
