//! The offsets that listings tell: small where they can be, and good for going on, whatever
//! the file system's own are.

use crate::fixture::{Mount, able, with_transport};
use crate::spy::Spy;
use crate::sys;
use fuse::Transport;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const NAMES: usize = 400;
/// From here on offsets are told in the long form.
const SHORT: u64 = 1 << 20;

/// As many as fit some buffers of the kernel's, each with the offset behind it.
fn listed(dir: &File) -> Vec<(i64, String)> {
    let mut all = Vec::new();
    loop {
        match sys::getdents(dir, 1000).unwrap() {
            some if some.is_empty() => return all,
            some => all.extend(some),
        }
    }
}

/// `.`, `..` and those of `fill`, each once.
fn assert_whole(names: &[(i64, String)], what: &str) {
    let set: BTreeSet<_> = names.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!((names.len(), set.len()), (NAMES + 2, NAMES + 2), "{what}");
}

fn fill(dir: &Path) {
    fs::create_dir(dir).unwrap();
    (0..NAMES).for_each(|n| drop(File::create(dir.join(format!("name-{n:030}"))).unwrap()));
}

/// Whoever has any of the offsets hears what he heard then.
fn assert_goes_on(dir: &Path, names: &[(i64, String)], what: &str) {
    for (n, (offset, _)) in names.iter().enumerate().step_by(37) {
        let again = File::open(dir).unwrap();
        sys::seek(&again, *offset, libc::SEEK_SET).unwrap();
        let rest: Vec<_> = listed(&again).into_iter().map(|(_, name)| name).collect();
        let expected: Vec<_> = names[n + 1..].iter().map(|(_, name)| name.clone()).collect();
        assert!(rest == expected, "{what}: behind {offset:#x}");
    }
}

fn on_a_mount(transport: Transport, further: u64) {
    let what = format!("{transport:?}, {further:#x} further");
    let spy = Spy { further, ..Spy::new() };
    let mount = match Mount::of(spy, &with_transport(transport)) {
        Ok(mount) => mount,
        Err(vfs::FsError::Unsupported(what)) => return println!("SKIPPED: {what}"),
        Err(error) => panic!("mounting: {error}"),
    };
    let dir = mount.path("dir");
    fill(&dir);
    let names = listed(&File::open(&dir).unwrap());
    assert_whole(&names, &what);
    let short = names.iter().filter(|(offset, _)| *offset < 1 << 31).count();
    let fit = SHORT.saturating_sub(further + 3).min(NAMES as u64) as usize;
    assert_eq!(short, fit + 2, "{what}: as many are short as can be");
    assert_goes_on(&dir, &names, &what);
    // Listings of another directory, which met no end, take all numbers.
    for n in 0..1100 {
        File::create(mount.path(&format!("{n}"))).unwrap();
        assert!(!sys::getdents(&File::open(mount.path("")).unwrap(), 1000).unwrap().is_empty());
    }
    assert_goes_on(&dir, &names, &what);
}

#[test]
fn offsets_are_small_where_they_can_be() {
    if !able() {
        return;
    }
    for transport in [Transport::Classic, Transport::Uring] {
        for further in [0, SHORT - 200, SHORT, (1 << 47) - 200, 1 << 47] {
            on_a_mount(transport, further);
        }
    }
}

/// The parent that a listing tells, which the kernel keeps with the names.
fn assert_parent(dir: &Path, parent: &Path, what: &str) {
    let listed = sys::listed(&File::open(dir).unwrap(), 1000).unwrap();
    let told = listed.iter().find(|(_, _, name)| name == "..").unwrap().0;
    assert_eq!(told, fs::metadata(parent).unwrap().ino(), "{what}");
}

#[test]
fn what_moves_lists_its_new_parent() {
    if !able() {
        return;
    }
    for transport in [Transport::Classic, Transport::Uring] {
        let mount = match Mount::of(Spy::new(), &with_transport(transport)) {
            Ok(mount) => mount,
            Err(vfs::FsError::Unsupported(what)) => return println!("SKIPPED: {what}"),
            Err(error) => panic!("mounting: {error}"),
        };
        let [a, b] = ["a", "b"].map(|name| mount.path(name));
        [&a, &b].iter().for_each(|dir| fs::create_dir_all(dir.join("sub")).unwrap());
        let (one, two) = (a.join("sub"), b.join("moved"));
        // The second listing is the kernel's own.
        (0..2).for_each(|_| assert_parent(&one, &a, "as made"));
        fs::rename(&one, &two).unwrap();
        (0..2).for_each(|_| assert_parent(&two, &b, "moved"));
        fs::create_dir(&one).unwrap();
        (0..2).for_each(|_| assert_parent(&one, &a, "made anew"));
        sys::exchange(&one, &two).unwrap();
        assert_parent(&one, &a, "exchanged");
        assert_parent(&two, &b, "exchanged");
    }
}
