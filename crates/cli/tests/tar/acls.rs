//! `spinney tar -x` of ACLs that are texts, as GNU tar, bsdtar and star write them with `--acls`.
//!
//! Judge: GNU tar on a kernel btrfs.

use crate::common::{Image, KernelMount, PROGRAM, assert_clean, fine};
use crate::strange::{archive, unpacked};
use crate::tar::{assert_same, of_image, rules, run, snapshot};
use testkit::compare::Rules;
use testkit::require;

/// With names of this machine.
#[test]
fn acls_are_those_that_gnu_tar_unpacks() {
    require!(kernel_btrfs);
    let source = Image::new("tar-acls");
    let mount = KernelMount::new(&source.path, "noatime").unwrap();
    let script = "mkdir d d/below && touch d/f d/plain d/many d/mask && ln -s f d/l && mkfifo d/p &&
         setfacl -m u:7:rw,g:8:r,u:2000000000:x,g::- d/f && setfacl -d -m u:7:rwx,g:root:r,o::- d &&
         setfacl -m u:nobody:rwx,g:daemon:rx,m::r d && setfacl -d -m u::rwx,g::rx,o::- d/below &&
         setfacl -m m::- d/mask && setfacl -m u:daemon:w d/p && chmod 2750 d/below && chmod 4711 d/plain &&
         for n in $(seq 100 300); do echo u:$n:r; done | setfacl -M - d/many && touch -d @7 d/f d/below d";
    run(&format!("cd {} && {script}", mount.path().display()));
    for (n, options) in ["", "--numeric-owner", "--xattrs"].into_iter().enumerate() {
        let archive = source.dir.join(&format!("{n}.tar")).display().to_string();
        run(&format!("cd {} && tar -c --acls {options} -f {archive} d", mount.path().display()));
        let theirs = Image::new("tar-acls-gnu");
        let into = KernelMount::new(&theirs.path, "noatime").unwrap();
        run(&format!("cd {} && tar -x --acls -f {archive}", into.path().display()));
        let expected = snapshot(into.path());
        into.unmount().unwrap();
        let ours = Image::new("tar-acls-ours");
        assert_eq!(fine(&["tar", "-xf", &archive, &ours.at("/")]), "");
        let rules = Rules { root: false, ..rules() };
        assert_same(&of_image(&ours.path), &expected, &rules);
        // Over what has other ones.
        run(&format!("{PROGRAM} tar -xf {archive} {}", ours.at("/")));
        assert_same(&of_image(&ours.path), &expected, &rules);
    }
    mount.unmount().unwrap();
}

/// Of who is not known here bsdtar and star have the number as well, which is the volume's.
#[test]
fn numbers_in_acls_count_and_names_only_where_there_are_none() {
    require!(btrfs_progs);
    let image = Image::new("tar-acl-numbers");
    let file = image.dir.join("a.tar");
    let text = "user::rw-,user:root:rwx:4660,user:not-here:rw-:9,user:root:r--,group::---,mask::rw-,other::---";
    let record = format!(" SCHILY.acl.access={text}\n");
    archive(&file, b'x', format!("{}{record}", record.len() + 3).as_bytes());
    assert_eq!(unpacked(&file, &image.at("/")), (Some(0), String::new()));
    let entries =
        ["01000600", "02000400", "02000600", "02000700", "04000000", "10000400", "20000400"];
    let ids = ["ffffffff", "00000000", "09000000", "34120000", "ffffffff", "ffffffff", "ffffffff"];
    let acl: String = entries.iter().zip(ids).map(|(entry, id)| format!("{entry}{id}")).collect();
    let found = fine(&["xattr", "get", "--hex", &image.at("/f"), "system.posix_acl_access"]);
    // As chmod has it: mask and others are what the member's permissions say.
    assert_eq!(found, format!("0x02000000{acl}\n"));
    assert_clean(&image.path);
}
