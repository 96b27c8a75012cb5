//! Several sources of one `cp`, and what the directory of the target has for all of them.

use crate::common;
use common::{Image, TempDir, assert_clean, fine, sh, text};
use testkit::require;

fn made(name: &str, script: &str) -> TempDir {
    let host = TempDir::new(name).unwrap();
    let made = sh(&format!("cd {} && {script}", host.path().display()));
    assert!(made.status.success(), "{}", text(&made.stderr));
    host
}

/// A file that other names are still to become links to gets nobody else's content, wherever that comes from.
#[test]
fn content_of_one_source_does_not_come_to_links_of_another() {
    require!(btrfs_progs);
    let [one, two, to] = ["linked-one", "linked-two", "linked-to"].map(Image::new);
    let script = "mkdir -p p r q && echo shared >p/f && ln p/f r/g && echo other >q/f";
    let host = made("linked-host", script);
    let word = |name: &str| host.join(name).display().to_string();
    for image in [&one, &two, &to] {
        fine(&["cp", "-r", &word("p"), &word("r"), &word("q"), &image.at("/")]);
    }
    let places = ["", "one", "two", "to"];
    let at = |place: &str, name: &str| match place {
        "one" => one.at(&format!("/{name}")),
        "two" => two.at(&format!("/{name}")),
        "to" => to.at(&format!("/{name}")),
        _ => word(name),
    };
    for (first, second) in places.iter().flat_map(|a| places.iter().map(move |b| (a, b))) {
        let dir = to.at(&format!("/from-{first}-{second}"));
        fine(&["mkdir", &dir]);
        let [p, q, r] = [at(first, "p/."), at(second, "q/."), at(first, "r/.")];
        fine(&["cp", "-r", &p, &q, &r, &dir]);
        assert_eq!(fine(&["cat", &format!("{dir}/f")]), "other\n", "{first} {second}");
        assert_eq!(fine(&["cat", &format!("{dir}/g")]), "shared\n", "{first} {second}");
    }
    // No link leads into another subvolume: there it is a file of its own.
    for from in places {
        fine(&["mkdir", &to.at("/t")]);
        fine(&["subvolume", "create", &to.at("/t/r")]);
        fine(&["cp", "-r", &at(from, "p"), &at(from, "r"), &to.at("/t")]);
        assert_eq!(fine(&["cat", &to.at("/t/r/g")]), "shared\n", "{from}");
        fine(&["rm", "-r", &to.at("/t")]);
    }
    assert_clean(&to.path);
}

/// As cp(1) has it: the group of the directory, and its bit that hands it on.
#[test]
fn what_a_directory_hands_on_stays_with_what_is_copied_as_new() {
    require!(root);
    require!(btrfs_progs);
    let (image, other) = (Image::new("handed-on"), Image::new("handed-on-too"));
    let script = "mkdir -p d/e && echo x >d/e/f && chmod 777 d d/e && chmod 666 d/e/f";
    let host = made("handed-on-host", script);
    let word = host.join("d").display().to_string();
    for to in [&image, &other] {
        fine(&["cp", "-r", &word, &to.at("/")]);
    }
    for (turn, from) in [word, other.at("/d"), image.at("/d")].into_iter().enumerate() {
        let dir = format!("/shared{turn}");
        fine(&["mkdir", &image.at(&dir)]);
        fine(&["chown", "0:77", &image.at(&dir)]);
        fine(&["chmod", "2775", &image.at(&dir)]);
        fine(&["cp", "-r", "--no-preserve", &from, &image.at(&dir)]);
        for (name, mode) in [("d", "2755"), ("d/e", "2755"), ("d/e/f", "0644")] {
            let path = image.at(&format!("{dir}/{name}"));
            let told = common::json(&fine(&["stat", "--json", &path]))[0].clone();
            assert_eq!((&told["mode"], &told["gid"]), (&mode.into(), &77.into()), "{from}: {path}");
        }
    }
    assert_clean(&image.path);
}
