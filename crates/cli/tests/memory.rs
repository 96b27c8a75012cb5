//! What a server says of its memory.

mod common;

use common::mount::{Mount, server};
use common::{Image, eventually, fine, json};
use std::fs;
use testkit::require;

/// Accounts within the budget, and what is known beside them.
const COUNTED: [&str; 7] = ["cache", "delta", "sealed", "retired", "building", "inodes", "content"];
const BESIDE: [&str; 2] = ["contents", "nodes_waiting"];

#[test]
fn all_of_a_servers_memory_is_told() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("memory");
    let mount = Mount::new(&image, "memory=64m");
    for number in 0..500 {
        fs::write(mount.join(&format!("file{number}")), [b'x'; 100]).unwrap();
    }
    let process = server(&image.path).expect("a server");
    let resident = || {
        let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
    };
    let mut last = serde_json::Value::Null;
    eventually("the server looks at what it has", || {
        last = json(&fine(&["stats", "--json", &mount.word()]));
        let told = last["memory.process"].as_u64().expect("it is told");
        told.abs_diff(resident()) < 8 << 20
    });
    let of = |name: &str| last[format!("memory.{name}")].as_u64().expect(name);
    let sum = |names: &[&str]| names.iter().map(|name| of(name)).sum::<u64>();
    assert_eq!(of("budget"), 64 << 20);
    assert!(of("cache_budget") <= of("budget") && of("counted") <= of("budget"), "{last}");
    assert_eq!(of("counted"), sum(&COUNTED));
    let known = of("counted") + sum(&BESIDE);
    assert_eq!(of("rest"), of("process").saturating_sub(known), "{last}");
    assert!(of("rest") > 0, "a program has code");
    mount.umount();
}
