//! `spinney find`: the words of find(1), on a volume that is not mounted.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result};
use crate::image::ImagePath;
use crate::inside::volumes::At;
use crate::inside::words::parse;
use crate::inside::{Failures, Node, Scope, Volumes, walk};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::{Json, Out};
use crate::rescue_options::RescueOptions;
use crate::show;
use btrfs_fs::Subvol;
use spinney::Volume;
use spinney::tree::search::{Clause, Seen, Test, Unfinished};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use vfs::Timestamp;

pub const COMMAND: Command = Command {
    name: "find",
    summary: "search for files in a volume",
    usage: "IMAGE:/PATH... [TESTS]",
    help: "\
Names what is below directories of a volume that is not mounted, and passes all tests, as
find(1) does: one dash does as well (-name), a test behind `!` must fail, and of what stands
around -o one side must pass. Whatever passes is printed, wherever -print0 stands, and so
that other commands of spinney take it: IMAGE:/PATH. Symbolic links are not followed.

N is a number; +N stands for more and -N for less.

Options
    --name PATTERN       the last name, with *, ? and [...]
    --iname PATTERN      the same, whatever the case
    --path PATTERN       the whole path, without IMAGE: in front
    --type TYPE          f, d, l, p, s, c or b; several with commas between
    --size N[cwbkMG]     size, rounded up to bytes, 2 bytes, 512 bytes (the default), KiB,
                         MiB, GiB
    --empty              empty files and directories
    --newer FILE         content changed after that of FILE, of this machine or IMAGE:/PATH
    --mtime N            content changed N days ago
    --mmin N             content changed N minutes ago
    --perm MODE          these permissions; -MODE: all of these, /MODE: any of these
    --uid N              owner
    --gid N              group
    --links N            number of names
    --inum N             inode number
    --not                as !
    -o, --or             either what is before it, or what is behind
    --maxdepth LEVELS    go no deeper than this; 0 is PATH itself
    --mindepth LEVELS    nothing above this
    --print              print what is found, which is the default
    --print0             with a NUL behind each instead of a new line
    --json               one JSON object a line, with all attributes
    --subvol PATH, --subvolid ID
                         start from this subvolume instead of the volume's default one
    --rescue WORD[:WORD...]
                         make do with a damaged volume, as mount -o ro,rescue=

Examples
    spinney find disk.img:/ -name '*.conf' -size +4k
    spinney find disk.img:/home -type f -newer ./stamp -print0 | xargs -0 spinney cat
    spinney find disk.img:/bin -perm /6000 --json | jq -r .path
",
    run,
};

#[derive(Default)]
struct Words {
    operands: Vec<ImagePath>,
    /// As they were written.
    shown: Vec<Vec<u8>>,
    clause: Clause,
    /// FILEs of `--newer`, in the order of their tests.
    references: Vec<std::ffi::OsString>,
    least: usize,
    most: Option<usize>,
    nul: bool,
    json: bool,
}

fn run(args: Args) -> Result<Exit> {
    let mut args = args.with_one_dash();
    let (mut words, mut subvol) = (Words::default(), Subvol::Default);
    let mut rescue = RescueOptions::default();
    while let Some(arg) = args.next()? {
        let name = match &arg {
            Arg::Long(name) => (*name).to_owned(),
            Arg::Short('o') => "or".to_owned(),
            Arg::Value(value) if value == "!" => "not".to_owned(),
            Arg::Value(value) => {
                words.shown.push(value.as_bytes().to_vec());
                words.operands.push(ImagePath::expect(value)?);
                continue;
            }
            _ => return Err(args::unexpected(arg)),
        };
        match &*name {
            "subvol" => subvol = subvol_path(&args.text()?)?,
            "subvolid" => subvol = subvol_id(&args.text()?)?,
            "rescue" => rescue = RescueOptions::parse(&args.text()?)?,
            "maxdepth" => words.most = Some(level(&args.text()?)?),
            "mindepth" => words.least = level(&args.text()?)?,
            "print" => {}
            "print0" => words.nul = true,
            "json" => words.json = true,
            "not" => words.clause.negate(),
            "or" => words.clause.or().map_err(missing)?,
            "empty" => words.clause.push(Test::Empty),
            "newer" => {
                words.clause.push(Test::Newer(words.references.len()));
                words.references.push(args.value()?);
            }
            name => words.clause.push(parse(name, &args.value()?)?),
        }
    }
    words.clause.finish().map_err(missing)?;
    words.operands = args::some(words.operands, "IMAGE:/PATH")?;
    let mut scope = Scope::of(subvol, &words.operands, false).rescue(rescue);
    let inside: Vec<ImagePath> =
        words.references.iter().filter_map(|w| ImagePath::parse(w)).collect();
    inside.iter().for_each(|path| scope.add(path, false));
    scope.run(|volumes, failures| search(volumes, failures, &words))
}

fn missing(_: Unfinished) -> Error {
    Error::usage("a test is missing before -o, or at the end")
}

fn level(text: &str) -> Result<usize> {
    text.parse().map_err(|_| Error::usage(format!("{text:?} is no number of levels")))
}

fn search(volumes: &Volumes, failures: &Failures, words: &Words) -> Result<()> {
    let times = words.references.iter().map(|word| changed(volumes, word));
    let times = times.collect::<Result<Vec<Timestamp>>>()?;
    let terminal = std::io::stdout().is_terminal() && !words.nul;
    let (now, out) = (Timestamp::now(), Out::new());
    let mut found = Found { words, times, now, out, terminal, failures };
    for (operand, shown) in words.operands.iter().zip(&words.shown) {
        let started = start(volumes, operand);
        let Some((volume, node)) = failures.keep(started) else { continue };
        let top = operand.path.clone();
        let mut told = |error: Error| failures.tell(&error);
        walk::until(volume, node, top, &mut told, &mut |node, path, depth| {
            // `disk.img:` stands for `disk.img:/`.
            let below = &path[operand.path.len()..];
            let joint: &[u8] = if shown.ends_with(b":") { b"/" } else { b"" };
            let word = [shown.as_slice(), joint, below].concat();
            if depth >= words.least {
                found.judge(volume, node, path, word)?;
            }
            Ok(words.most.is_none_or(|most| depth < most) && !found.out.closed())
        })?;
    }
    found.out.finish()
}

fn start<'v>(volumes: &'v Volumes, operand: &ImagePath) -> Result<(&'v Volume, Node)> {
    let volume = volumes.of(operand)?;
    // As find(1): a link is itself, unless a slash follows.
    Ok((volume, volume.find(&operand.path, false).at(volume, &operand.path)?))
}

/// When the content of a file, here or in a volume, changed.
fn changed(volumes: &Volumes, word: &std::ffi::OsStr) -> Result<Timestamp> {
    use std::os::unix::fs::MetadataExt;
    if let Some(path) = ImagePath::parse(word) {
        let volume = volumes.of(&path)?;
        let node = volume.find(&path.path, false).at(volume, &path.path)?;
        return Ok(node.attr.mtime);
    }
    let path = Path::new(word);
    let meta = path.symlink_metadata().map_err(|e| Error::io(path, &e))?;
    Ok(Timestamp { secs: meta.mtime(), nanos: meta.mtime_nsec() as u32 })
}

struct Found<'w> {
    words: &'w Words,
    times: Vec<Timestamp>,
    now: Timestamp,
    out: Out,
    terminal: bool,
    failures: &'w Failures,
}

impl Found<'_> {
    /// An error is one of the output alone: what a test or an attribute needs and cannot be read is told, and
    /// the search goes on.
    fn judge(&mut self, volume: &Volume, node: &Node, path: &[u8], word: Vec<u8>) -> Result<()> {
        let is_empty = || -> Result<bool> {
            if !node.is_dir() {
                return Ok(node.attr.size == 0);
            }
            match node.listing() {
                (names, Some(why)) if names.is_empty() => Err(why).at(volume, path),
                // Whatever else it has: it is not empty.
                (names, _) => Ok(names.is_empty()),
            }
        };
        let seen = Seen { attr: &node.attr, path, times: &self.times, now: self.now };
        let passes = self.words.clause.passes(&seen, &is_empty);
        if self.failures.keep(passes) != Some(true) {
            return Ok(());
        }
        if self.words.json {
            let target = node.is_symlink().then(|| volume.fs().readlink(node.ino()));
            let target = target.and_then(|target| self.failures.keep(target.at(volume, path)));
            return self.out.line(Json::object(|o| {
                o.bytes("image", volume.name().as_os_str().as_bytes()).bytes("path", path);
                show::json(o, &node.attr);
                if let Some(target) = target {
                    o.bytes("target", &target);
                }
            }));
        }
        self.out.bytes(&show::printable(&word, self.terminal))?;
        self.out.bytes(if self.words.nul { b"\0" } else { b"\n" })
    }
}
