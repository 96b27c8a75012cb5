//! `spinney scrub`: the numbers of `btrfs scrub` on the same damage, in an image and in a mount, what
//! is mended, and that nothing is called damage which is none.

use crate::common;
use common::mount::{Mount, TRANSPORTS, lacks_fuse};
use common::streams::{ready, shell};
use common::{
    Image, OpenToAll, PROGRAM, SCRUB, assert_clean, copies, eventually, fine, json,
    no_ordinary_users, records, sh, spinney, text, told_behind,
};
use std::collections::BTreeMap;
use std::path::Path;

use testkit::oracle::{KernelMount, TempDir};

/// 300 short files, a long one and one without checksums; two copies of everything.
fn made(name: &str) -> Image {
    let image = Image::with(name, &["-d", "dup", "-m", "dup"]);
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    shell(&format!(
        "cd {}; for i in $(seq 300); do head -c 20000 /dev/urandom > f$i; done
        head -c 300000 /dev/urandom > long; mkdir n; chattr +C n; head -c 100000 /dev/urandom > n/f",
        mount.path().display()
    ));
    mount.unmount().unwrap();
    image
}

fn hurt(image: &Path, at: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xa5; 16], at).unwrap();
}

/// Content: two sectors of one copy, one sector of both; a node: one copy; a superblock; and if
/// `lost`, both copies of another node.
fn damage(image: &Path, lost: bool) {
    let tree = shell(&format!("btrfs inspect-internal dump-tree -t 5 {}", image.display()));
    let (extents, leaves) =
        (told_behind(&tree, "extent data disk byte "), told_behind(&tree, "leaf "));
    let extent = |n: usize| copies(image, extents[n]);
    let leaf = |n: usize| copies(image, leaves[n]);
    hurt(image, extent(5)[0] + 100);
    hurt(image, extent(5)[0] + 4196);
    extent(9).iter().for_each(|at| hurt(image, at + 100));
    hurt(image, leaf(1)[1] + 5000);
    hurt(image, (64 << 20) + 200);
    if lost {
        leaf(2).iter().for_each(|at| hurt(image, at + 5000));
    }
}

type Numbers = BTreeMap<String, u64>;

/// What both tell. A mount, and whoever opens an image to write, has the superblocks mended before.
fn numbers(text: &str) -> Numbers {
    let of = |line: &str| {
        let (name, number) = line.strip_prefix('\t')?.split_once(": ")?;
        let theirs = ["csum_discards", "malloc_errors", "unverified_errors", "last_physical"];
        (!theirs.contains(&name)).then(|| (name.to_owned(), number.parse().unwrap()))
    };
    text.lines().filter_map(of).collect()
}

fn theirs(image: &Path, words: &str) -> (i32, Numbers) {
    let kernel = KernelMount::new(image, "noatime").unwrap();
    let script = format!(
        "rc=0; {SCRUB} start -BR {words} {} 2>&1 || rc=$?; echo rc=$rc",
        kernel.path().display()
    );
    let text = shell(&script);
    kernel.unmount().unwrap();
    let code = text.lines().find_map(|line| line.strip_prefix("rc=")).unwrap();
    (code.parse().unwrap(), numbers(&text))
}

fn ours(words: &[&str]) -> (i32, Numbers) {
    let output = spinney(&[&["scrub", "start"], words].concat());
    (output.status.code().unwrap(), numbers(&String::from_utf8(output.stdout).unwrap()))
}

fn without_super((code, mut numbers): (i32, Numbers)) -> (i32, Numbers) {
    numbers.remove("super_errors");
    (code, numbers)
}

fn copy_of(image: &Image, name: &str) -> Image {
    let dir = TempDir::new(name).expect("scratch directory");
    let copy = Image { path: dir.join("disk.img"), dir };
    shell(&format!("cp --sparse=always {} {}", image.word(), copy.word()));
    copy
}

fn beside_the_kernel(name: &str, lost: bool) {
    let image = made(name);
    let clean = ours(&["-rR", &image.word()]);
    assert_eq!(clean, theirs(&image.path, "-r"));
    assert!(clean.0 == 0 && clean.1["data_bytes_scrubbed"] > 12_000_000, "{clean:?}");
    damage(&image.path, lost);
    let looked_at = ours(&["-rR", &image.word()]);
    assert_eq!(looked_at.1["super_errors"], 1);
    let (of_image, of_mount) = (copy_of(&image, "of-image"), copy_of(&image, "of-mount"));
    let kernels = copy_of(&image, "kernels");
    let told = theirs(&kernels.path, "");
    assert_eq!(without_super(looked_at), without_super(told.clone()), "only looked at");
    assert_eq!(without_super(ours(&["-R", &of_image.word()])), without_super(told.clone()));
    let mount = Mount::new(&of_mount, "");
    assert_eq!(without_super(ours(&["-BR", &mount.word()])), without_super(told));
    mount.umount();
    // What could be mended is; what could not is still there, for all of them.
    let left = theirs(&kernels.path, "-r");
    assert_eq!((left.0, left.1["corrected_errors"]), (3, 0));
    for image in [&of_image, &of_mount] {
        assert_eq!(theirs(&image.path, "-r"), left);
        assert_eq!(ours(&["-rR", &image.word()]), left);
    }
}

#[test]
fn damage_is_counted_and_mended_as_the_kernel_does() {
    if ready("damage_is_counted_and_mended_as_the_kernel_does") {
        beside_the_kernel("scrub", false);
    }
}

/// Its copy is read when the volume is opened, and the scrub said that there were no errors.
#[test]
fn what_opening_mends_is_told() {
    let image = Image::new("scrub-opened");
    let tree = shell(&format!("btrfs inspect-internal dump-tree -t 1 {}", image.word()));
    let leaf = copies(&image.path, told_behind(&tree, "leaf ")[0]);
    hurt(&image.path, leaf[0] + 5000);
    let output = spinney(&["scrub", "start", &image.word()]);
    let said = text(&output.stderr);
    assert!(said.contains("1 bad copy mended before the scrub"), "{said}");
    assert!(output.status.success());
    fine(&["scrub", "start", &image.word()]);
    assert_clean(&image.path);
}

#[test]
fn a_node_that_is_lost_ends_no_scrub() {
    if ready("a_node_that_is_lost_ends_no_scrub") {
        beside_the_kernel("scrub-lost", true);
    }
}

/// A volume of 600 files, the leaf in the middle of one of its trees lost; where that leaf begins and ends.
fn middle_lost(name: &str, tree: &str) -> (Image, [u64; 2]) {
    let image = Image::with(name, &["-d", "dup", "-m", "dup"]);
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    let fill = "for i in $(seq 600); do head -c 100000 /dev/urandom > f$i; done";
    shell(&format!("cd {}; {fill}", mount.path().display()));
    mount.unmount().unwrap();
    let dump = shell(&format!("btrfs inspect-internal dump-tree -t {tree} {}", image.word()));
    let mut leaves: Vec<(u64, u64)> = Vec::new();
    for line in dump.lines() {
        let number = |word: &str| line.trim().strip_prefix(word)?.split([' ', ')']).next();
        let leaf =
            number("leaf ").and_then(|at| at.parse().ok()).filter(|_| line.contains(" items "));
        if let Some(leaf) = leaf {
            leaves.push((leaf, 0));
        }
        if let (Some(at), Some(last)) = (number("item 0 key ("), leaves.last_mut()) {
            let csum = at == "EXTENT_CSUM";
            let first = if csum { line.split([' ', ')']).nth(5) } else { Some(at) };
            last.1 = first.and_then(|first| first.parse().ok()).unwrap();
        }
    }
    let middle = leaves.len() / 2;
    assert!(middle > 0 && middle + 1 < leaves.len(), "{leaves:?}");
    copies(&image.path, leaves[middle].0).iter().for_each(|at| hurt(&image.path, at + 5000));
    (image, [leaves[middle].1, leaves[middle + 1].1])
}

/// What lies behind a leaf that tells what is where, or of what checksum it is.
fn goes_on_behind(name: &str, tree: &str) {
    let (image, [from, to]) = middle_lost(name, tree);
    let dump = shell(&format!("btrfs inspect-internal dump-tree -t 5 {}", image.word()));
    let last = told_behind(&dump, "extent data disk byte ").into_iter().max().unwrap();
    assert!(last >= to);
    copies(&image.path, last).iter().for_each(|at| hurt(&image.path, at + 100));
    let output = spinney(&["scrub", "start", "-r", "--json", &image.word()]);
    let told = json(&text(&output.stdout));
    assert_eq!(output.status.code(), Some(1), "not everything was looked at");
    assert_eq!(told["csum_errors"], 2, "what is bad behind it: {told}");
    let (first, len) = (&told["unseen_from"], told["unseen_bytes"].as_u64().unwrap());
    // The extents that the leaf has part in, as far as nobody knows of them.
    assert!(first.as_u64().unwrap().abs_diff(from) <= 1 << 20, "{told}, from {from}");
    assert!(len.abs_diff(to - from) <= 1 << 20, "{told}, {from} to {to}");
    let said = text(&output.stderr);
    assert!(said.contains(&format!("from {first} on")), "{said}");
    let output = spinney(&["scrub", "start", "-Br", &Mount::new(&image, "ro").word()]);
    assert!(text(&output.stdout).contains("Not looked at: "), "{}", text(&output.stdout));
}

#[test]
fn a_lost_leaf_of_the_extent_tree_ends_no_scrub() {
    if ready("a_lost_leaf_of_the_extent_tree_ends_no_scrub") {
        goes_on_behind("scrub-extents", "extent");
    }
}

#[test]
fn a_lost_leaf_of_checksums_ends_no_scrub() {
    if ready("a_lost_leaf_of_checksums_ends_no_scrub") {
        goes_on_behind("scrub-sums", "csum");
    }
}

/// Everything changes while it is scrubbed again and again: nothing is called damage.
#[test]
fn a_busy_volume_has_no_errors() {
    if !ready("a_busy_volume_has_no_errors") {
        return;
    }
    let image = made("scrub-busy");
    let mount = Mount::new(&image, "commit=1");
    let top = mount.word();
    let writer = std::process::Command::new("bash")
        .arg("-c")
        .arg(format!(
            "cd {top}; for r in $(seq 1000); do [ -e /proc/$PPID ] || exit
            for i in $(seq 20); do head -c $((RANDOM * 4)) /dev/urandom > w$i; done
            cp f$((RANDOM % 300 + 1)) long; rm -f w$((RANDOM % 20 + 1)); sync -f .; done"
        ))
        .spawn();
    let mut writer = writer.unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(4);
    let mut scrubs = 0;
    while std::time::Instant::now() < until || scrubs < 3 {
        let told = json(&fine(&["scrub", "start", "--json", &top]));
        assert_eq!(told["status"], "finished", "{told}");
        for kind in ["read", "csum", "verify", "super", "uncorrectable", "corrected"] {
            assert_eq!(told[format!("{kind}_errors")], 0, "{told}");
        }
        scrubs += 1;
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
    fine(&["balance", "start", "--full-balance", &top]);
    let told = json(&fine(&["scrub", "start", "--json", &top]));
    assert!(told["csum_errors"] == 0 && told["verify_errors"] == 0, "{told}");
    mount.umount();
    assert_eq!(theirs(&image.path, "-r").0, 0);
}

#[test]
fn it_is_cancelled_and_goes_on() {
    if !ready("it_is_cancelled_and_goes_on") {
        return;
    }
    let image = made("scrub-cancel");
    let mount = Mount::new(&image, "");
    let top = mount.word();
    let code = |words: &[&str]| spinney(words).status.code();
    assert!(fine(&["scrub", "status", &top]).contains("no stats available"));
    assert_eq!(code(&["scrub", "cancel", &top]), Some(2));
    assert_eq!(code(&["scrub", "resume", &top]), Some(2));
    // Long enough to be met at work.
    shell(&format!("head -c 150000000 /dev/urandom > {top}/large; sync -f {top}"));
    let whole = json(&fine(&["scrub", "start", "--json", &top]));
    let mut cancelled = 0;
    for _ in 0..50 {
        fine(&["scrub", "start", "-q", &top]);
        if code(&["scrub", "cancel", &top]) != Some(0) {
            continue;
        }
        cancelled += 1;
        let status = json(&fine(&["scrub", "status", "--json", &top]));
        assert_eq!(status["status"], "aborted");
        let before = status["data_bytes_scrubbed"].as_u64().unwrap();
        let ended = json(&fine(&["scrub", "resume", "--json", &top]));
        assert_eq!(ended["status"], "finished");
        assert!(ended["data_bytes_scrubbed"].as_u64().unwrap() >= before);
        assert_eq!(ended["data_bytes_scrubbed"], whole["data_bytes_scrubbed"], "all, and once");
    }
    assert!(cancelled > 0, "none was met at work");
    mount.umount();
    assert_eq!(code(&["scrub", "status", &image.word()]), Some(1), "an image has none at work");
}

/// Content that takes a scrub a while, and what a whole scrub says of it.
fn long_to_scrub(top: &str) -> serde_json::Value {
    shell(&format!("head -c 200000000 /dev/urandom > {top}/large; sync -f {top}"));
    json(&fine(&["scrub", "start", "--json", top]))
}

/// Begins scrubs until one is met at work and cancelled; what is told of it.
fn cancelled(top: &str) -> serde_json::Value {
    for _ in 0..50 {
        fine(&["scrub", "start", "-q", top]);
        if spinney(&["scrub", "cancel", top]).status.success() {
            let status = json(&fine(&["scrub", "status", "--json", top]));
            assert_eq!(status["status"], "aborted");
            return status;
        }
    }
    panic!("none was met at work");
}

/// The name of the volume's record.
fn record(image: &Image) -> String {
    let told = fine(&["btrfs", "inspect-internal", "dump-super", &image.word()]);
    let fsid = told.lines().find_map(|line| line.strip_prefix("fsid")).unwrap();
    format!("scrub.status.{}", fsid.trim())
}

/// Scrubs of tests leave nothing where the machine's are written down.
fn assert_none_of_roots(image: &Image) {
    for end in ["", "_tmp"] {
        let file = Path::new("/var/lib/btrfs").join(record(image) + end);
        assert!(!file.exists(), "{}", file.display());
    }
}

/// Root's record is where `btrfs scrub` has its own, which reads it; here a directory that goes with the
/// command.
#[test]
fn root_has_them_where_btrfs_scrub_does() {
    if !ready("root_has_them_where_btrfs_scrub_does") {
        return;
    }
    let image = made("scrub-root");
    let mount = Mount::new(&image, "");
    let told = shell(&format!(
        "mkdir -p /var/lib/btrfs && unset SPINNEY_SCRUB_RECORDS && unshare -m sh -ec '
        mount -t tmpfs none /var/lib/btrfs; {PROGRAM} scrub start -Bq {}; cat /var/lib/btrfs/{}'",
        mount.word(),
        record(&image)
    ));
    assert!(told.starts_with("scrub status:1\n") && told.contains("|finished:1\n"), "{told}");
    mount.umount();
    assert_none_of_roots(&image);
}

#[test]
fn a_scrub_goes_on_after_an_unmount() {
    if !ready("a_scrub_goes_on_after_an_unmount") {
        return;
    }
    let image = made("scrub-kept");
    let mount = Mount::new(&image, "");
    let top = mount.word();
    let whole = long_to_scrub(&top);
    let before = cancelled(&top);
    mount.umount();
    let mount = Mount::new(&image, "");
    let told = json(&fine(&["scrub", "status", "--json", &top]));
    for name in ["status", "started", "total_bytes", "data_bytes_scrubbed", "csum_errors"] {
        assert_eq!(told[name], before[name], "{name}");
    }
    mount.umount();
    // btrfs-progs reads it as its own, and finds no fault with it.
    let kernel = KernelMount::new(&image.path, "ro").unwrap();
    let theirs = sh(&format!(
        "unshare -m sh -ec 'mount --bind {} /var/lib/btrfs; btrfs scrub status -R {}'",
        records().display(),
        kernel.path().display()
    ));
    let (theirs, complaints) = (text(&theirs.stdout), text(&theirs.stderr));
    assert!(
        theirs.contains("Status:           aborted\n") && complaints.is_empty(),
        "{complaints}"
    );
    kernel.unmount().unwrap();
    let numbers_before = numbers(&theirs);
    assert_eq!(before["data_bytes_scrubbed"], numbers_before["data_bytes_scrubbed"]);
    assert_eq!(before["tree_bytes_scrubbed"], numbers_before["tree_bytes_scrubbed"]);
    // It goes on where it was: all is read, and once.
    let mount = Mount::new(&image, "");
    let ended = json(&fine(&["scrub", "resume", "--json", &top]));
    assert_eq!((&ended["status"], &ended["started"]), (&"finished".into(), &before["started"]));
    assert_eq!(ended["data_bytes_scrubbed"], whole["data_bytes_scrubbed"]);
    mount.umount();
    let mount = Mount::new(&image, "");
    assert_eq!(json(&fine(&["scrub", "status", "--json", &top]))["status"], "finished");
    assert_eq!(spinney(&["scrub", "resume", &top]).status.code(), Some(2));
    // The unmount ends one that nobody cancelled; the process that wrote it down is no hindrance.
    fine(&["scrub", "start", "-q", &top]);
    mount.umount();
    let mount = Mount::new(&image, "");
    let told = json(&fine(&["scrub", "status", "--json", &top]));
    assert_eq!(told["status"], "interrupted");
    let ended = json(&fine(&["scrub", "resume", "--json", &top]));
    assert_eq!(ended["data_bytes_scrubbed"], whole["data_bytes_scrubbed"]);
    // One in the background is written down when it ends.
    fine(&["scrub", "start", "-q", &top]);
    let file = records().join(record(&image));
    let kept = || std::fs::read_to_string(&file).unwrap();
    eventually("the end is written down", || kept().contains("canceled:0|finished:1\n"));
    // What the kernel left has no place of ours: it is begun anew.
    mount.umount();
    let without = kept().lines().take(2).map(|line| format!("{line}\n")).collect::<String>();
    std::fs::write(&file, without.replace("canceled:0|finished:1", "canceled:1|finished:0"))
        .unwrap();
    let mount = Mount::new(&image, "");
    let ended = json(&fine(&["scrub", "resume", "--json", &top]));
    assert_eq!(ended["data_bytes_scrubbed"], whole["data_bytes_scrubbed"]);
    mount.umount();
    assert_none_of_roots(&image);
    assert_clean(&image.path);
}

#[test]
fn an_ordinary_user_has_a_place_of_his_own() {
    if !ready("an_ordinary_user_has_a_place_of_his_own") {
        return;
    }
    if let Some(why) = no_ordinary_users() {
        testkit::skip!("{why}");
    }
    let _open = OpenToAll::new();
    let image = made("scrub-user");
    let (dir, point) = (image.dir.path().display(), Mount::directory(&image));
    std::fs::copy(PROGRAM, image.dir.join("spinney")).unwrap();
    let script = format!(
        "cd {dir}; chmod 755 .; unset SPINNEY_SCRUB_RECORDS; top={0}; export HOME={dir}/home; mkdir -p home
        again() {{ ./spinney umount $top; ./spinney mount -o $1 disk.img $top; }}
        told() {{ ./spinney scrub status $top | grep -o 'Status: .*'; }}
        for transport in {1}; do
            unset XDG_STATE_HOME
            ./spinney mount -o transport=$transport disk.img $top
            ./spinney scrub start -B -q $top; again transport=$transport; told
            ls home/.local/state/spinney; stat -c %a home/.local/state/spinney
            export XDG_STATE_HOME={dir}/state
            ./spinney scrub status $top; ./spinney scrub start -B -q $top; ls state/spinney
            rm -rf state; touch state; ./spinney scrub start -B -q $top; rm state
            unset XDG_STATE_HOME; (unset HOME; ./spinney scrub start -B -q $top)
            ./spinney umount $top; rm -rf home/.local
        done",
        point.display(),
        TRANSPORTS.into_iter().filter(|t| !lacks_fuse(t)).collect::<Vec<_>>().join(" ")
    );
    std::fs::write(image.dir.join("script"), script).unwrap();
    let output = sh(&format!(
        "chown -R 65534:65534 {dir} && cd {dir} && PATH=/usr/local/bin:/usr/bin:/bin \
         setpriv --reuid 65534 --regid 65534 --clear-groups timeout 100 bash -eu script"
    ));
    let (told, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{told}{errors}");
    let of_one = told.lines().filter(|line| line.starts_with("Status:           finished")).count();
    let transports = TRANSPORTS.into_iter().filter(|transport| !lacks_fuse(transport)).count();
    assert_eq!(of_one, transports, "{told}{errors}");
    assert_eq!(told.matches("\tno stats available").count(), transports, "elsewhere: {told}");
    assert_eq!(told.matches("700\n").count(), transports, "{told}");
    assert_eq!(told.matches("scrub.status.").count(), 2 * transports, "{told}");
    let lost = "what a scrub has done is forgotten at the unmount";
    assert_eq!(errors.matches(lost).count(), 2 * transports, "{errors}");
    assert!(errors.contains("neither $XDG_STATE_HOME nor $HOME names a directory"), "{errors}");
    assert!(!records().join(record(&image)).exists());
    assert_none_of_roots(&image);
    assert_clean(&image.path);
}

/// The limit of the refused one held, and stayed behind the end.
#[test]
fn a_scrub_that_is_refused_sets_no_limit() {
    if !ready("scrub-limits") {
        return;
    }
    let image = made("scrub-limits");
    let mount = Mount::new(&image, "");
    let word = mount.word();
    let limit = || json(&fine(&["scrub", "limit", "--json", &word]))["limit"].as_u64();
    for always in ["0", "20K"] {
        fine(&["scrub", "limit", "-a", "-l", always, &word]);
        let before = limit();
        // Slow: neither ends by itself.
        fine(&["scrub", "start", "-q", "--limit", "10K", &word]);
        let (code, said) = common::failing(&["scrub", "start", "--limit", "5K", &word]);
        assert!(code == 1 && said.contains("already running"), "{said}");
        assert_eq!(limit(), Some(10 << 10));
        fine(&["scrub", "cancel", &word]);
        assert_eq!(limit(), before);
        fine(&["scrub", "start", "-q", "--limit", "7K", &word]);
        assert_eq!(limit(), Some(7 << 10));
        // That it is to be later is what is said of later.
        fine(&["scrub", "limit", "-a", "-l", "30K", &word]);
        fine(&["scrub", "cancel", &word]);
        assert_eq!(limit(), Some(30 << 10));
    }
    mount.umount();
}

/// As with `btrfs scrub`, which takes a device for the place where it is mounted.
#[test]
fn an_image_or_device_that_is_mounted_is_its_mount() {
    if !ready("scrub-device") {
        return;
    }
    let image = made("scrub-device");
    let mount = Mount::new(&image, "");
    let (_, device) = common::mount::mounted(&mount.point).expect("a mount");
    for word in [image.word(), device] {
        fine(&["scrub", "start", "-B", &word]);
        let told = |word: &str| fine(&["scrub", "status", "-R", word]);
        assert!(told(&word) == told(&mount.word()) && told(&word).contains("finished"), "{word}");
        let told = fine(&["scrub", "start", &word]);
        assert!(told.contains(&format!("scrub started on {}", mount.word())), "{told}");
        eventually("finished", || fine(&["scrub", "status", &word]).contains("finished"));
        assert_eq!(common::failing(&["scrub", "cancel", &word]).0, 2);
    }
    mount.umount();
    assert_eq!(common::failing(&["scrub", "status", &image.word()]).0, 1);
}
