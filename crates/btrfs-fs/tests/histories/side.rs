//! Whose turn it is: the engine as a library, or the kernel with its tools, behind one trait.
//!
//! Invariant: both are asked for the same and answer in the same words ([`Refused`]); what neither may
//! refuse panics here.
//!
//! What it does not know: histories, and what is right.

use crate::common::{CX, end_of_balance};
use btrfs_disk::ids::block_group::{DATA, DUP, METADATA, SYSTEM};
use btrfs_disk::items::{BalanceFilter, BalanceItem, balance_filter as f, balance_flags};
use btrfs_fs::{BalanceState, BtrfsFs, Caller, Delete, LimitChange, Qgroup, QgroupId};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use testkit::oracle::{KernelMount, Report, run, sh};
use vfs::{FileKind, FileSystem, Ino, SetAttr};

/// Groups above those of subvolumes.
pub const GROUPS: [&str; 3] = ["1/1", "1/2", "2/1"];

const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    Quota,
    Exists,
    NotThere,
    Invalid,
    /// It has members, or charges.
    Busy,
}

pub type Done = Result<(), Refused>;

#[derive(Clone, Copy, Debug)]
pub enum Balance {
    Data,
    Metadata,
    All,
    HalfFull,
    DataDup,
    DataSingle,
    MetadataDup,
    MetadataSingle,
}

impl Balance {
    pub const ALL: [Balance; 8] = [
        Balance::Data,
        Balance::Metadata,
        Balance::All,
        Balance::HalfFull,
        Balance::DataDup,
        Balance::DataSingle,
        Balance::MetadataDup,
        Balance::MetadataSingle,
    ];

    fn words(self) -> &'static [&'static str] {
        match self {
            Balance::Data => &["-d"],
            Balance::Metadata => &["-m"],
            Balance::All => &["-d", "-m"],
            Balance::HalfFull => &["-dusage=50", "-musage=50"],
            Balance::DataDup => &["-dconvert=dup"],
            Balance::DataSingle => &["-dconvert=single,soft"],
            Balance::MetadataDup => &["-mconvert=dup,soft"],
            Balance::MetadataSingle => &["-f", "-mconvert=single"],
        }
    }

    fn item(self) -> BalanceItem {
        let convert = |target, soft| BalanceFilter {
            flags: f::CONVERT | if soft { f::SOFT } else { 0 },
            target,
            ..BalanceFilter::default()
        };
        let half = BalanceFilter { flags: f::USAGE, usage: 50, ..BalanceFilter::default() };
        let (flags, filter) = match self {
            Balance::Data => (DATA, BalanceFilter::default()),
            Balance::Metadata => (METADATA | SYSTEM, BalanceFilter::default()),
            Balance::All => (DATA | METADATA | SYSTEM, BalanceFilter::default()),
            Balance::HalfFull => (DATA | METADATA | SYSTEM, half),
            Balance::DataDup => (DATA, convert(DUP, false)),
            Balance::DataSingle => (DATA, convert(f::SINGLE, true)),
            Balance::MetadataDup => (METADATA | SYSTEM, convert(DUP, true)),
            Balance::MetadataSingle => {
                (METADATA | SYSTEM | balance_flags::FORCE, convert(f::SINGLE, false))
            }
        };
        BalanceItem { flags, data: filter, metadata: filter, system: filter, ..Default::default() }
    }
}

pub trait Side {
    /// Makes the file if there is none.
    fn write(&self, sub: &str, name: &str, at: u64, content: &[u8]) -> Done;
    fn cut(&self, sub: &str, name: &str, len: u64) -> Done;
    /// Files are cut to multiples of this. The kernel zeroes the rest of a block in its cache and then
    /// asks whether a limit lets it write that; if not the file reads otherwise until the next mount.
    fn cut_unit(&self) -> u64;
    /// Whether a cut that a limit refuses takes away what was appended since the last writeback: the kernel goes back to the
    /// size that its item has.
    fn forgets_by_a_refused_cut(&self) -> bool {
        self.cut_unit() > 1
    }
    fn remove(&self, sub: &str, name: &str) -> Done;
    /// The whole file as a new one.
    fn clone_file(&self, sub: &str, name: &str, to: &str, new: &str) -> Done;
    fn read(&self, sub: &str, name: &str) -> Option<Vec<u8>>;
    /// Of its files.
    fn names(&self, sub: &str) -> Vec<String>;
    fn sync(&self);

    fn create(&self, sub: &str) -> Done;
    fn snapshot(&self, from: &str, to: &str, read_only: bool) -> Done;
    fn delete(&self, sub: &str) -> Done;

    fn quotas(&self, on: bool) -> Done;
    /// Begins one, if none is under way.
    fn rescan(&self);
    /// Makes a group.
    fn group(&self, group: &str) -> Done;
    /// Takes one away.
    fn no_group(&self, group: &str) -> Done;
    /// The group of a subvolume.
    fn group_of(&self, sub: &str) -> String;
    fn relate(&self, child: &str, parent: &str, comes: bool) -> Done;
    /// Of what is referenced, or of what the group has for itself.
    fn limit(&self, group: &str, most: Option<u64>, exclusive: bool) -> Done;

    /// Returns when it has ended.
    fn balance(&self, what: Balance) -> Done;
    fn resize(&self, total: u64) -> Done;
    /// Begins one of everything, which the end of the turn interrupts.
    fn leave_balance(&self);
    /// One that the other left goes on to its end; whether there was one.
    fn end_balance(&self) -> bool;
}

/// The engine.
pub struct Ours<'a>(pub &'a BtrfsFs);

fn of_errno(errno: i32) -> Refused {
    match errno {
        libc::EDQUOT => Refused::Quota,
        libc::EEXIST => Refused::Exists,
        libc::ENOENT => Refused::NotThere,
        libc::EINVAL => Refused::Invalid,
        libc::EBUSY => Refused::Busy,
        other => panic!("{}", io::Error::from_raw_os_error(other)),
    }
}

fn ours<T>(result: vfs::Result<T>) -> Result<T, Refused> {
    result.map_err(|error| {
        let errno = error.errno();
        let known = [libc::EDQUOT, libc::EEXIST, libc::ENOENT, libc::EINVAL, libc::EBUSY];
        if known.contains(&errno) { of_errno(errno) } else { panic!("{error}") }
    })
}

/// What is no content: no limit refuses it.
fn unlimited<T>(result: vfs::Result<T>) -> Done {
    let done = ours(result).map(drop);
    assert_ne!(done, Err(Refused::Quota));
    done
}

fn id(group: &str) -> QgroupId {
    group.parse().expect("a group")
}

impl Ours<'_> {
    fn dir(&self, sub: &str) -> Ino {
        match sub {
            "" => self.0.root(),
            sub => self.0.lookup(&CX, self.0.root(), sub.as_bytes()).expect("there").attr.ino,
        }
    }

    fn file(&self, sub: &str, name: &str) -> Option<Ino> {
        self.0.lookup(&CX, self.dir(sub), name.as_bytes()).ok().map(|entry| entry.attr.ino)
    }

    fn make(&self, sub: &str, name: &str) -> Result<Ino, Refused> {
        let made = self.0.mknod(&CX, self.dir(sub), name.as_bytes(), FileKind::File, 0o644, 0);
        ours(made).map(|entry| entry.attr.ino)
    }
}

impl Ours<'_> {
    /// By group.
    pub fn limits(&self) -> BTreeMap<String, Option<u64>> {
        let groups = self.0.qgroups_from(QgroupId(0), usize::MAX).expect("groups");
        let most = |group: &Qgroup| group.max_referenced.or(group.max_exclusive);
        groups.iter().map(|group| (group.id.to_string(), most(group))).collect()
    }

    fn wait_for_balance(&self) {
        let status = end_of_balance(self.0, PATIENCE);
        assert_eq!((status.errno, status.failed), (0, 0), "{status:?}");
    }
}

impl Side for Ours<'_> {
    fn write(&self, sub: &str, name: &str, at: u64, content: &[u8]) -> Done {
        let ino = self.file(sub, name).map_or_else(|| self.make(sub, name), Ok)?;
        let mut done = 0;
        while done < content.len() {
            let rest = &content[done..];
            done += ours(self.0.write(&CX, ino, at + done as u64, rest, Default::default()))?;
        }
        Ok(())
    }

    fn cut(&self, sub: &str, name: &str, len: u64) -> Done {
        let set = SetAttr { size: Some(len), ..SetAttr::default() };
        ours(self.0.setattr(&CX, self.file(sub, name).expect("there"), &set)).map(drop)
    }

    fn cut_unit(&self) -> u64 {
        1
    }

    fn remove(&self, sub: &str, name: &str) -> Done {
        self.0.unlink(&CX, self.dir(sub), name.as_bytes()).expect("removing needs no room");
        Ok(())
    }

    fn clone_file(&self, sub: &str, name: &str, to: &str, new: &str) -> Done {
        let from = self.file(sub, name).expect("there");
        let to = self.make(to, new)?;
        ours(self.0.clone_range(&CX, from, 0, to, 0, 0)).map(drop)
    }

    fn read(&self, sub: &str, name: &str) -> Option<Vec<u8>> {
        let ino = self.file(sub, name)?;
        let mut content = vec![0; self.0.getattr(ino).expect("there").size as usize];
        assert_eq!(self.0.read(ino, 0, &mut content).expect("read"), content.len());
        Some(content)
    }

    fn names(&self, sub: &str) -> Vec<String> {
        let mut names = Vec::new();
        let listed = self.0.readdir(self.dir(sub), 0, &mut |entry| {
            if entry.kind == FileKind::File {
                names.push(String::from_utf8(entry.name.to_vec()).expect("UTF-8"));
            }
            true
        });
        listed.expect("list");
        names
    }

    fn sync(&self) {
        self.0.sync().expect("commit");
    }

    fn create(&self, sub: &str) -> Done {
        ours(self.0.create_subvolume(&Caller::root(), self.0.root(), sub.as_bytes())).map(drop)
    }

    fn snapshot(&self, from: &str, to: &str, read_only: bool) -> Done {
        let (from, root) = (self.dir(from), self.0.root());
        ours(self.0.snapshot(&Caller::root(), from, root, to.as_bytes(), read_only)).map(drop)
    }

    fn delete(&self, sub: &str) -> Done {
        let which = Delete::Name(self.0.root(), sub.as_bytes());
        self.0.delete_subvolume(&Caller::root(), which).expect("removing needs no room");
        Ok(())
    }

    fn quotas(&self, on: bool) -> Done {
        let done = if on { self.0.enable_quotas() } else { self.0.disable_quotas() };
        unlimited(done)
    }

    fn rescan(&self) {
        if let Err(error) = self.0.rescan_quotas() {
            assert_eq!(error.errno(), libc::EINPROGRESS, "{error}");
        }
    }

    fn group(&self, group: &str) -> Done {
        unlimited(self.0.create_qgroup(id(group)))
    }

    fn no_group(&self, group: &str) -> Done {
        unlimited(self.0.destroy_qgroup(id(group)))
    }

    fn group_of(&self, sub: &str) -> String {
        let number = self.0.subvolume_of(self.dir(sub)).expect("a subvolume").0;
        format!("0/{}", number.0)
    }

    fn relate(&self, child: &str, parent: &str, comes: bool) -> Done {
        let (child, parent) = (id(child), id(parent));
        let done = match comes {
            true => self.0.assign_qgroup(child, parent),
            false => self.0.remove_qgroup(child, parent),
        };
        unlimited(done)
    }

    fn limit(&self, group: &str, most: Option<u64>, exclusive: bool) -> Done {
        let change = match exclusive {
            true => LimitChange { exclusive: Some(most), ..LimitChange::default() },
            false => LimitChange { referenced: Some(most), ..LimitChange::default() },
        };
        unlimited(self.0.limit_qgroup(id(group), &change))
    }

    fn balance(&self, what: Balance) -> Done {
        unlimited(self.0.start_balance(what.item()))?;
        self.wait_for_balance();
        Ok(())
    }

    fn resize(&self, total: u64) -> Done {
        unlimited(self.0.resize(total))
    }

    fn leave_balance(&self) {
        self.0.start_balance(Balance::All.item()).expect("begin");
    }

    fn end_balance(&self) -> bool {
        let left = self.0.balance_status().expect("status").state == BalanceState::Paused;
        if left {
            self.0.resume_balance().expect("go on");
            self.wait_for_balance();
        }
        left
    }
}

/// The kernel.
pub struct Theirs<'a>(pub &'a KernelMount);

fn theirs(result: io::Result<()>) -> Done {
    result.map_err(|error| of_errno(error.raw_os_error().expect("an errno")))
}

/// What btrfs-progs said of it.
fn told(report: &Report) -> Done {
    let words = [
        ("quota exceeded", Refused::Quota),
        ("File exists", Refused::Exists),
        ("No such file", Refused::NotThere),
        ("Invalid argument", Refused::Invalid),
        ("resource busy", Refused::Busy),
    ];
    if report.success() {
        return Ok(());
    }
    let found = words.iter().find(|(text, _)| report.stderr.contains(text));
    Err(found.unwrap_or_else(|| panic!("{}", report.text())).1)
}

impl Theirs<'_> {
    fn path(&self, sub: &str, name: &str) -> PathBuf {
        self.0.path().join(sub).join(name)
    }

    fn place(&self, sub: &str) -> String {
        self.0.join(sub).to_string_lossy().into_owned()
    }

    fn btrfs(&self, words: &[&str]) -> Done {
        told(&run("btrfs", words))
    }

    /// With the mount as the last word.
    fn here(&self, words: &[&str]) -> Done {
        self.btrfs(&[words, &[&self.place("")]].concat())
    }
}

impl Side for Theirs<'_> {
    fn write(&self, sub: &str, name: &str, at: u64, content: &[u8]) -> Done {
        let open = std::fs::File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.path(sub, name));
        theirs(open.and_then(|file| file.write_all_at(content, at)))
    }

    fn cut(&self, sub: &str, name: &str, len: u64) -> Done {
        let open = std::fs::File::options().write(true).open(self.path(sub, name));
        theirs(open.and_then(|file| file.set_len(len)))
    }

    fn cut_unit(&self) -> u64 {
        4096
    }

    fn remove(&self, sub: &str, name: &str) -> Done {
        theirs(std::fs::remove_file(self.path(sub, name)))
    }

    fn clone_file(&self, sub: &str, name: &str, to: &str, new: &str) -> Done {
        let (from, to) = (self.path(sub, name), self.path(to, new));
        let (from, to) = (from.to_string_lossy(), to.to_string_lossy());
        told(&run("cp", &["--reflink=always", &from, &to]))
    }

    fn read(&self, sub: &str, name: &str) -> Option<Vec<u8>> {
        std::fs::read(self.path(sub, name)).ok()
    }

    fn names(&self, sub: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(sub, "")).expect("list");
        let entries = entries.map(|entry| entry.expect("an entry"));
        let files = entries.filter(|entry| entry.file_type().expect("a type").is_file());
        files.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    fn sync(&self) {
        self.here(&["filesystem", "sync"]).expect("commit");
    }

    fn create(&self, sub: &str) -> Done {
        self.btrfs(&["subvolume", "create", &self.place(sub)])
    }

    fn snapshot(&self, from: &str, to: &str, read_only: bool) -> Done {
        let (from, to) = (self.place(from), self.place(to));
        let flag: &[&str] = if read_only { &["-r"] } else { &[] };
        self.btrfs(&[&["subvolume", "snapshot"], flag, &[&from, &to]].concat())
    }

    fn delete(&self, sub: &str) -> Done {
        self.btrfs(&["subvolume", "delete", &self.place(sub)])
    }

    fn quotas(&self, on: bool) -> Done {
        self.here(&["quota", if on { "enable" } else { "disable" }])
    }

    fn rescan(&self) {
        let report = run("btrfs", &["quota", "rescan", &self.place("")]);
        let busy = report.stderr.contains("in progress");
        assert!(report.success() || busy, "{}", report.text());
    }

    fn group(&self, group: &str) -> Done {
        self.here(&["qgroup", "create", group])
    }

    fn no_group(&self, group: &str) -> Done {
        self.here(&["qgroup", "destroy", group])
    }

    fn group_of(&self, sub: &str) -> String {
        let id = sh("btrfs", &["inspect-internal", "rootid", &self.place(sub)]);
        format!("0/{}", id.expect("a subvolume").trim())
    }

    fn relate(&self, child: &str, parent: &str, comes: bool) -> Done {
        match comes {
            true => self.here(&["qgroup", "assign", "--no-rescan", child, parent]),
            false => self.here(&["qgroup", "remove", "--no-rescan", child, parent]),
        }
    }

    fn limit(&self, group: &str, most: Option<u64>, exclusive: bool) -> Done {
        let most = most.map_or("none".to_owned(), |most| most.to_string());
        let kind: &[&str] = if exclusive { &["-e"] } else { &[] };
        self.here(&[&["qgroup", "limit"], kind, &[&most, group]].concat())
    }

    fn balance(&self, what: Balance) -> Done {
        let place = self.place("");
        let report = run("btrfs", &[&["balance", "start"], what.words(), &[&*place]].concat());
        // What lies in pieces on the device may be too small for chunks of the length that it wants.
        if report.stderr.contains("No space left") {
            println!("{}", report.text());
            return Ok(());
        }
        told(&report)
    }

    fn resize(&self, total: u64) -> Done {
        self.here(&["filesystem", "resize", &total.to_string()])
    }

    fn leave_balance(&self) {
        self.here(&["balance", "start", "--background", "-d", "-m"]).expect("begin");
    }

    fn end_balance(&self) -> bool {
        let (start, mut left) = (Instant::now(), false);
        // `status` ends with 1 as long as there is one. It goes on with it by itself.
        while run("btrfs", &["balance", "status", &self.place("")]).code == Some(1) {
            assert!(start.elapsed() < PATIENCE, "the kernel ends the balance");
            std::thread::sleep(Duration::from_millis(10));
            left = true;
        }
        left
    }
}
