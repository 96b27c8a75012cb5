//! Simple quotas over mounts: writers, copies that share, snapshots, deletions and a balance beside each
//! other, by the server that is unmounted or killed, and by the kernel in turns. Each time our check and a newer `btrfs
//! check` count what the quota tree says, and scrub finds nothing.
//!
//! `SPINNEY_ROUNDS` makes it longer.

use std::path::Path;
use std::time::Duration;

use suites::{Limited, Volume, shell, transports};
use testkit::oracle::{KernelMount, newer_btrfs, newer_btrfs_check, run, scrub};
use testkit::require;

const LIMIT: Duration = Duration::from_secs(120);

/// Both count, and find nothing else either.
fn judge(image: &Path) {
    newer_btrfs_check(image).unwrap();
    let text = image.to_string_lossy();
    let ours = run(&suites::spinney().to_string_lossy(), &["check", "--data", &text]);
    assert!(ours.success() && !ours.text().contains("warning: "), "{}", ours.text());
}

fn begin(volume: &Volume) {
    let mount = volume.mount_by_kernel();
    let newer = newer_btrfs().unwrap().to_string_lossy().into_owned();
    let place = mount.path().to_string_lossy().into_owned();
    Limited::new(60, newer).args(["quota", "enable", "--simple", &place]).ok();
    let script = "btrfs qgroup create 1/1 .; btrfs qgroup assign 0/5 1/1 .
        for s in a b; do btrfs -q subvolume create $s; done";
    shell(60, mount.path(), script);
    mount.unmount().unwrap();
}

/// What one turn does; `btrfs` is the program that is asked for snapshots and such. What a sparse copy cannot share is copied.
fn work(root: &Path, btrfs: &str, round: u64) {
    let script = format!(
        "work() {{ for i in $(seq 60); do
             head -c $(( (i * 7919 + $2) % 300000 + 1 )) /dev/urandom >$1/f$(( i % 17 ))
             dd if=/dev/zero of=$1/f$(( i % 5 )) bs=4096 seek=$(( i % 9 )) count=3 conv=notrunc status=none
             case $(( i % 6 )) in
                 0) cp $1/f$(( i % 17 )) $3/c$1$(( i % 11 ));;
                 1) rm -f $1/c*;;
                 2) sync $1/f$(( i % 17 ));;
             esac
         done; }}
         work a {round} b & first=$!
         work b $(( {round} + 5 )) a & second=$!
         for s in 1 2 3; do {btrfs} subvolume snapshot a s{round}-$s >/dev/null; echo $s >s{round}-$s/own; done
         {btrfs} balance start --full-balance . >/dev/null
         {btrfs} subvolume delete s{round}-1 >/dev/null
         [ {round} = 0 ] || {btrfs} subvolume delete s$(( {round} - 1 ))-2 >/dev/null
         wait $first; wait $second"
    );
    shell(240, root, &script);
}

#[test]
fn what_mounts_write_is_counted() {
    require!(kernel_btrfs);
    require!(newer_btrfs().is_ok(), "no newer btrfs-progs in target/tools");
    let able = transports();
    if able.is_empty() {
        return;
    }
    let rounds = suites::number("SPINNEY_ROUNDS", 3);
    let volume = Volume::new("simple-quotas", 2 << 30);
    begin(&volume);
    let ours = suites::spinney().to_string_lossy().into_owned();
    for round in 0..rounds {
        if round % 3 == 2 {
            let mount = volume.mount_by_kernel();
            work(mount.path(), "btrfs", round);
            mount.unmount().unwrap();
            judge(&volume.image());
            continue;
        }
        let mount = volume.mount(able[round as usize % able.len()], LIMIT);
        work(mount.path(), &ours, round);
        if round % 3 == 1 {
            // What is in the log, or half dropped, the kernel goes on with.
            mount.kill_server();
            drop(mount);
        } else {
            mount.unmount();
            judge(&volume.image());
        }
        let mount = KernelMount::new(&volume.image(), "noatime").unwrap();
        scrub(&mount).unwrap();
        mount.unmount().unwrap();
        judge(&volume.image());
    }
}
