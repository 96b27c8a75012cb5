//! Who may what of control operations: by owners, groups, ACLs and each of the capabilities that decide, on a mount
//! as on the kernel's btrfs, call by call (`rights.py`).

use crate::common;
use common::mount::Mount;
use common::{Image, KernelMount, PROGRAM, assert_clean, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use testkit::require;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/served/rights.py");

fn told(root: &Path, program: &Path) -> Vec<String> {
    let output = Command::new("python3").arg(SCRIPT).args([root, program]).output();
    let output = output.expect("python3 runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(str::to_owned).collect()
}

/// Each line behind the name of its caller.
fn by_caller(lines: &[String]) -> Vec<String> {
    let mut caller = "";
    let mut named = Vec::new();
    for one in lines {
        caller = one.strip_prefix("as ").unwrap_or(caller);
        named.push(format!("{caller}: {one}"));
    }
    named
}

/// A copy of the program where ordinary users can run it.
fn program_for_all(image: &Image) -> std::path::PathBuf {
    let copy = image.dir.join("spinney");
    fs::copy(PROGRAM, &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    for dir in copy.ancestors().skip(1).filter(|dir| dir.starts_with(std::env::temp_dir())) {
        let mode = fs::metadata(dir).unwrap().permissions().mode();
        let _ = fs::set_permissions(dir, fs::Permissions::from_mode(mode | 0o711));
    }
    copy
}

#[test]
fn rights_and_capabilities_count_as_with_the_kernel() {
    require!(kernel_btrfs);
    require!(fuse);
    for options in ["noatime", "noatime,user_subvol_rm_allowed"] {
        let reference = Image::new("rights-kernel");
        program_for_all(&reference);
        let kernel = KernelMount::new(&reference.path, options).unwrap();
        let expected = by_caller(&told(kernel.path(), Path::new("/usr/bin/btrfs")));
        kernel.unmount().unwrap();
        let refused = expected.iter().filter(|line| line.ends_with(" EPERM")).count();
        assert!(refused > 60, "the kernel refuses most: {expected:#?}");

        let image = Image::new("rights");
        let program = program_for_all(&image);
        let mount = Mount::new(&image, options);
        let told = by_caller(&told(&mount.point, &program));
        let differ: Vec<_> = told.iter().zip(&expected).filter(|(a, b)| a != b).collect();
        assert!(differ.is_empty(), "{options}; the kernel's btrfs is on the right: {differ:#?}");
        assert_eq!(told.len(), expected.len());
        mount.umount();
        assert_clean(&image.path);
    }
}
