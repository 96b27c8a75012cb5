//! What programs store through shared maps, beside calls that the kernel answers, or passes on, without having sent
//! it: the kernel's own mount is asked the same, by the same script.
//!
//! `writeback` holds writes as maps hold stores, and is asked the same where that is promised.

use crate::common;
use common::mount::{Mount, lacks_fuse};
use common::streams::shell;
use common::{Image, assert_clean};
use testkit::oracle::KernelMount;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/served/beside_maps.py");

/// What the script says of a mount of the image, or of the kernel's own.
fn asked(what: &str, dir: &str) -> String {
    shell(&format!("mkdir {dir}/{what}; python3 {SCRIPT} {what} {dir}/{what}"))
}

fn as_in_the_kernel(what: &str, options: &str) {
    testkit::require!(kernel_btrfs);
    for transport in common::mount::TRANSPORTS {
        if lacks_fuse(transport) {
            continue;
        }
        let image = Image::new(&format!("beside-{what}-{transport}"));
        let kernel = KernelMount::new(&image.path, "noatime").unwrap();
        let expected = asked(what, &kernel.path().display().to_string());
        shell(&format!("rm -r {}/{what}", kernel.path().display()));
        kernel.unmount().unwrap();
        let mount = Mount::new(&image, &format!("transport={transport}{options}"));
        let said = asked(what, &mount.word());
        mount.umount();
        for (said, expected) in said.lines().zip(expected.lines()) {
            assert_eq!(said, expected, "{transport}{options}");
        }
        assert_eq!(said.len(), expected.len(), "{transport}{options}");
        assert_clean(&image.path);
    }
}

#[test]
fn what_is_stored_behind_the_end_is_no_content_when_the_file_grows() {
    as_in_the_kernel("behind", "");
}

#[test]
fn what_is_stored_behind_the_end_of_a_file_that_was_cut_is_no_content() {
    as_in_the_kernel("cut", "");
}

/// The kernel's btrfs asks only who opens the file, so it is not asked.
#[test]
fn a_copy_that_fails_makes_no_file_longer() {
    for transport in common::mount::TRANSPORTS {
        if lacks_fuse(transport) {
            continue;
        }
        let image = Image::new(&format!("beside-refused-{transport}"));
        let mount = Mount::new(&image, &format!("transport={transport}"));
        let said = asked("refused", &mount.word());
        mount.umount();
        assert_eq!(said, "EPERM\n101 b'XXXXa'\n", "{transport}");
        assert_clean(&image.path);
    }
}

#[test]
fn a_listing_that_is_taken_up_again_has_no_name_of_before() {
    as_in_the_kernel("listing", "");
}

/// The kernel refuses to enable it for a file that is open for writing, so it is not asked.
#[test]
fn what_is_stored_before_fs_verity_is_in_what_is_verified() {
    for transport in common::mount::TRANSPORTS {
        for options in ["", ",writeback"] {
            if lacks_fuse(transport) {
                continue;
            }
            let image = Image::new(&format!("beside-verity-{transport}{options}"));
            let mount = Mount::new(&image, &format!("transport={transport}{options}"));
            let said = asked("verity", &mount.word());
            mount.umount();
            let of = |how: &str| format!("{how} b'XXXXXXstoredXXXX'\n").repeat(2);
            assert_eq!(said, of("store") + &of("write"), "{transport}{options}");
            assert_clean(&image.path);
        }
    }
}

#[test]
fn a_time_that_is_set_behind_a_store_stays() {
    as_in_the_kernel("times", "");
    as_in_the_kernel("times", ",writeback");
}

#[test]
fn blocks_of_what_is_held_are_told_when_it_was_written() {
    as_in_the_kernel("blocks", ",writeback");
}
