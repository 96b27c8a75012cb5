//! `spinney du`: how much room files in a volume take.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result};
use crate::image::ImagePath;
use crate::inside::usage::{Counted, Sum};
use crate::inside::volumes::At;
use crate::inside::{Failures, Node, Scope, Volumes, walk};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::{Json, JsonRows, Object, Out, human};
use crate::rescue_options::RescueOptions;
use crate::show;
use btrfs_fs::Subvol;
use spinney::Volume;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;

pub const COMMAND: Command = Command {
    name: "du",
    summary: "tell how much room files in a volume take",
    usage: "[-shac] [-d LEVELS] [-b] [--json] IMAGE:/PATH...",
    help: "\
Sums what files take in a volume that is not mounted, for each directory, in KiB. What
several names or reflinked copies share is counted once: where it is met first. Metadata is
not counted; `spinney df` tells of the whole volume.

Options
    -s, --summarize          each PATH alone, not the directories in it
    -d, --max-depth LEVELS   directories so deep only; 0 is as -s
    -a, --all                files as well
    -c, --total              and the sum of all
    -h, --human-readable     sizes as 1.5 MiB
    -k                       in KiB, which is always so
    --apparent-size          how long files and symbolic links are, whatever they take
    -b, --bytes              the same, in bytes
    --json                   an array of objects, all in bytes: disk_bytes, apparent_bytes,
                             files, and in shared_bytes what was counted elsewhere already
    --subvol PATH, --subvolid ID
                             start from this subvolume instead of the volume's default one
    --rescue WORD[:WORD...]
                             make do with a damaged volume, as mount -o ro,rescue=

Examples
    spinney du -h -d 1 disk.img:/
    spinney du -s --json disk.img:/var | jq '.[].disk_bytes'
",
    run,
};

#[derive(Default)]
struct Options {
    most: Option<usize>,
    all: bool,
    total: bool,
    human: bool,
    apparent: bool,
    bytes: bool,
    json: bool,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut options, mut subvol) = (Options::default(), Subvol::Default);
    let mut rescue = RescueOptions::default();
    let (mut operands, mut shown) = (Vec::new(), Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('s') | Arg::Long("summarize") => options.most = Some(0),
            Arg::Short('d') | Arg::Long("max-depth") => {
                let text = args.text()?;
                let wrong = |_| Error::usage(format!("{text:?} is no number of levels"));
                options.most = Some(text.parse().map_err(wrong)?);
            }
            Arg::Short('a') | Arg::Long("all") => options.all = true,
            Arg::Short('c') | Arg::Long("total") => options.total = true,
            Arg::Short('h') | Arg::Long("human-readable") => options.human = true,
            Arg::Short('k') => {}
            Arg::Long("apparent-size") => options.apparent = true,
            Arg::Short('b') | Arg::Long("bytes") => {
                (options.apparent, options.bytes) = (true, true)
            }
            Arg::Long("json") => options.json = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Long("rescue") => rescue = RescueOptions::parse(&args.text()?)?,
            Arg::Value(value) => {
                shown.push(value.as_bytes().to_vec());
                operands.push(ImagePath::expect(&value)?);
            }
            other => return Err(args::unexpected(other)),
        }
    }
    let operands = args::some(operands, "IMAGE:/PATH")?;
    Scope::of(subvol, &operands, false).rescue(rescue).run(|volumes, failures| {
        let mut report = Report::new(&options);
        let mut total = Sum::default();
        let mut counted = Counted::new(operands.len() > 1);
        for (operand, shown) in operands.iter().zip(&shown) {
            let found = start(volumes, operand);
            let Some((volume, node)) = failures.keep(found) else { continue };
            let tree = Tree { volume, operand, shown };
            total.add(&report.tree(&tree, node, &mut counted, failures)?);
        }
        report.finish(&total)
    })
}

fn start<'v>(volumes: &'v Volumes, operand: &ImagePath) -> Result<(&'v Volume, Node)> {
    let volume = volumes.of(operand)?;
    Ok((volume, volume.find(&operand.path, false).at(volume, &operand.path)?))
}

struct Tree<'t> {
    volume: &'t Volume,
    operand: &'t ImagePath,
    /// As it was written.
    shown: &'t [u8],
}

struct Report<'o> {
    options: &'o Options,
    out: Out,
    objects: JsonRows,
    terminal: bool,
}

impl<'o> Report<'o> {
    fn new(options: &'o Options) -> Report<'o> {
        let terminal = std::io::stdout().is_terminal();
        Report { options, out: Out::new(), objects: JsonRows::default(), terminal }
    }

    /// Directories come after what is in them.
    fn tree(
        &mut self,
        tree: &Tree<'_>,
        top: Node,
        counted: &mut Counted,
        failures: &Failures,
    ) -> Result<Sum> {
        let mut open: Vec<(Vec<u8>, Sum)> = Vec::new();
        let mut sum = Sum::default();
        let mut told = |error: Error| failures.tell(&error);
        let path = tree.operand.path.clone();
        walk::until(tree.volume, top, path, &mut told, &mut |node, path, depth| {
            while open.len() > depth {
                self.close(tree, &mut open, &mut sum)?;
            }
            let own = counted.take(tree.volume, node, path).map_err(Error::from);
            let Some(own) = failures.keep(own).unwrap_or(Some(Sum::default())) else {
                return Ok(false);
            };
            if node.is_dir() {
                open.push((path.to_vec(), own));
                return Ok(true);
            }
            if depth == 0 || (self.options.all && self.deep_enough(depth)) {
                self.line(tree, path, &own)?;
            }
            open.last_mut().map_or(&mut sum, |(_, above)| above).add(&own);
            Ok(true)
        })?;
        while !open.is_empty() {
            self.close(tree, &mut open, &mut sum)?;
        }
        Ok(sum)
    }

    fn deep_enough(&self, depth: usize) -> bool {
        self.options.most.is_none_or(|most| depth <= most)
    }

    fn close(
        &mut self,
        tree: &Tree<'_>,
        open: &mut Vec<(Vec<u8>, Sum)>,
        all: &mut Sum,
    ) -> Result<()> {
        let Some((path, sum)) = open.pop() else { return Ok(()) };
        open.last_mut().map_or(all, |(_, above)| above).add(&sum);
        if self.deep_enough(open.len()) { self.line(tree, &path, &sum) } else { Ok(()) }
    }

    fn line(&mut self, tree: &Tree<'_>, path: &[u8], sum: &Sum) -> Result<()> {
        if self.options.json {
            let image = tree.volume.name().as_os_str().as_bytes();
            let object = Json::object(|o| {
                o.bytes("image", image).bytes("path", path);
                json(o, sum);
            });
            return self.objects.row(&mut self.out, &object);
        }
        // `disk.img:` stands for `disk.img:/`.
        let joint: &[u8] = if tree.shown.ends_with(b":") { b"/" } else { b"" };
        let name = [tree.shown, joint, &path[tree.operand.path.len()..]].concat();
        self.size(sum, &name)
    }

    fn size(&mut self, sum: &Sum, name: &[u8]) -> Result<()> {
        let bytes = if self.options.apparent { sum.apparent } else { sum.disk };
        let size = match (self.options.human, self.options.bytes) {
            (true, _) => human(bytes),
            (false, true) => bytes.to_string(),
            (false, false) => bytes.div_ceil(1024).to_string(),
        };
        self.out.bytes(format!("{size}\t").as_bytes())?;
        self.out.line(show::printable(name, self.terminal))
    }

    fn finish(&mut self, total: &Sum) -> Result<()> {
        if self.options.total && !self.options.json {
            self.size(total, b"total")?;
        }
        if self.options.json {
            self.objects.end(&mut self.out)?;
        }
        self.out.finish()
    }
}

fn json(object: &mut Object<'_>, sum: &Sum) {
    object.number("disk_bytes", sum.disk).number("apparent_bytes", sum.apparent);
    object.number("shared_bytes", sum.shared).number("files", sum.files);
}
