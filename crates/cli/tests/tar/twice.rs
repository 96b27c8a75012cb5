//! `spinney tar -x` of archives that have something twice, as `tar -r` makes them: the last member tells.
//!
//! Judge: GNU tar.

use crate::common;
use common::{Image, fine, json, sh, spinney, text};
use testkit::require;

#[test]
fn of_a_directory_that_is_there_twice_the_last_member_tells() {
    require!(btrfs_progs);
    let image = Image::new("tar-twice");
    let at = image.dir.path().display();
    let done = sh(&format!(
        "cd {at} && mkdir d e && touch d/f && touch -d @5 d && tar -cf a.tar d e && chmod 700 d &&
         touch -d @7 d && tar -rf a.tar d && mkdir out && tar -xf a.tar -C out && stat -c '%a %Y' out/d"
    ));
    assert_eq!(text(&done.stdout), "700 7\n", "{}", text(&done.stderr));
    // What is made there inherits that, and no member says so.
    fine(&["mkdir", &image.at("/new"), &image.at("/old"), &image.at("/old/d")]);
    fine(&["property", "set", &image.at("/new"), "compression", "zstd"]);
    for target in ["/new", "/old"] {
        let archive = image.dir.join("a.tar").display().to_string();
        let done = spinney(&["tar", "-xf", &archive, &image.at(target)]);
        assert_eq!((done.status.code(), text(&done.stderr)), (Some(0), String::new()));
        let path = image.at(&format!("{target}/d"));
        let found = json(&fine(&["stat", "--json", &path]))[0].clone();
        let said = (found["mode"].as_str(), found["mtime"].as_str());
        assert_eq!(said, (Some("0700"), Some("1970-01-01T00:00:07.000000000Z")), "{target}");
        assert_eq!(fine(&["xattr", "list", &path]), "", "{target}");
    }
}
