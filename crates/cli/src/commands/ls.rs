//! `spinney ls`.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Exit, Result};
use crate::image::ImagePath;
use crate::inside::path::join;
use crate::inside::volumes::At;
use crate::inside::{Failures, Node, Scope, Volumes};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::{Json, JsonRows, Out, human};
use crate::rescue_options::RescueOptions;
use crate::show::{self, Owners};
use crate::when;
use btrfs_fs::Subvol;
use spinney::Volume;
use spinney::tree::walk::two_names;
use std::collections::HashSet;
use std::io::IsTerminal;
use vfs::FileKind;

pub const COMMAND: Command = Command {
    name: "ls",
    summary: "list files in a volume",
    usage: "[-laARdhintSr1] [--json] IMAGE:/PATH...",
    help: "\
Lists directories of a volume that is not mounted, or tells about single files. Names are
sorted by their bytes.

Options
    -l                     permissions, links, owner, group, size, time and name
    -a, --all              names that begin with a dot as well, also . and ..
    -A, --almost-all       names that begin with a dot as well, but not . and ..
    -R, --recursive        directories below as well
    -d, --directory        the directory itself, not what is in it
    -h, --human-readable   sizes as 1.5 MiB
    -i, --inode            inode numbers
    -n                     as -l, owners as numbers; the names are those of this machine
    -t                     sort by time, the newest first
    -S                     sort by size, the largest first
    -r, --reverse          sort the other way round
    -1                     one name per line, which is always so
    --json                 an array of objects, one for each file, with all attributes
    --subvol PATH, --subvolid ID
                           start from this subvolume instead of the volume's default one
    --rescue WORD[:WORD...]
                           make do with a damaged volume, as mount -o ro,rescue=

Examples
    spinney ls -l disk.img:/
    spinney ls -R --json disk.img:/etc
",
    run,
};

#[derive(Default)]
struct Options {
    long: bool,
    all: bool,
    dots: bool,
    recursive: bool,
    directory: bool,
    human: bool,
    inode: bool,
    numeric: bool,
    by_time: bool,
    by_size: bool,
    reverse: bool,
    json: bool,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut options, mut subvol) = (Options::default(), Subvol::Default);
    let mut rescue = RescueOptions::default();
    let mut operands = Vec::new();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('l') => options.long = true,
            Arg::Short('a') | Arg::Long("all") => (options.all, options.dots) = (true, true),
            Arg::Short('A') | Arg::Long("almost-all") => options.all = true,
            Arg::Short('R') | Arg::Long("recursive") => options.recursive = true,
            Arg::Short('d') | Arg::Long("directory") => options.directory = true,
            Arg::Short('h') | Arg::Long("human-readable") => options.human = true,
            Arg::Short('i') | Arg::Long("inode") => options.inode = true,
            Arg::Short('n') => (options.long, options.numeric) = (true, true),
            Arg::Short('t') => options.by_time = true,
            Arg::Short('S') => options.by_size = true,
            Arg::Short('r') | Arg::Long("reverse") => options.reverse = true,
            Arg::Short('1') => {}
            Arg::Long("json") => options.json = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Long("rescue") => rescue = RescueOptions::parse(&args.text()?)?,
            Arg::Value(value) => operands.push(ImagePath::expect(&value)?),
            other => return Err(args::unexpected(other)),
        }
    }
    let operands = args::some(operands, "IMAGE:/PATH")?;
    Scope::of(subvol, &operands, false).rescue(rescue).run(|volumes, failures| {
        let mut lister = Lister::new(&options, operands.len() > 1);
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        for operand in &operands {
            let Some(found) = failures.keep(top(volumes, operand, &options)) else { continue };
            let is_dir = found.node.is_dir() && !options.directory;
            if is_dir { directories.push(found) } else { files.push(found) }
        }
        if !files.is_empty() {
            lister.entries(files)?;
            lister.tell(failures);
        }
        for directory in directories {
            failures.keep(lister.directory(directory));
            lister.tell(failures);
        }
        lister.finish()
    })
}

/// Something to be listed.
struct Item<'v> {
    volume: &'v Volume,
    node: Node,
    path: Vec<u8>,
    name: Vec<u8>,
}

fn top<'v>(volumes: &'v Volumes, operand: &ImagePath, options: &Options) -> Result<Item<'v>> {
    let volume = volumes.of(operand)?;
    // As in coreutils: links are followed unless they themselves are asked about.
    let follow = !(options.long || options.directory);
    let path = operand.path.clone();
    let node = volume.find(&path, follow).at(volume, &path)?;
    Ok(Item { volume, node, name: path.clone(), path })
}

struct Lister<'o> {
    options: &'o Options,
    out: Out,
    owners: Owners,
    terminal: bool,
    titles: bool,
    blocks: usize,
    objects: JsonRows,
    /// What could not be listed beside the rest.
    failed: Vec<Result<()>>,
}

impl<'o> Lister<'o> {
    fn new(options: &'o Options, several: bool) -> Lister<'o> {
        Lister {
            options,
            out: Out::new(),
            owners: if options.numeric { Owners::numeric() } else { Owners::default() },
            terminal: std::io::stdout().is_terminal(),
            titles: several || options.recursive,
            blocks: 0,
            objects: JsonRows::default(),
            failed: Vec::new(),
        }
    }

    fn finish(&mut self) -> Result<()> {
        if self.options.json {
            self.objects.end(&mut self.out)?;
        }
        self.out.finish()
    }

    fn tell(&mut self, failures: &Failures) {
        self.failed.drain(..).for_each(|failed| _ = failures.keep(failed));
    }

    /// What could be read, or `None`; why not is told later.
    fn keep<T>(&mut self, found: Result<T>) -> Option<T> {
        found.map_err(|error| self.failed.push(Err(error))).ok()
    }

    /// The directory, and with -R those below it: each once, though a damaged volume may have it
    /// under several names.
    fn directory(&mut self, top: Item<'_>) -> Result<()> {
        let (mut left, mut seen) = (vec![top], HashSet::new());
        while let Some(item) = left.pop() {
            if !seen.insert(item.node.ino()) {
                self.failed.push(Err(two_names()).at(item.volume, &item.path));
                continue;
            }
            let entries = self.read(&item);
            self.title(&item.path)?;
            let mut below: Vec<Item<'_>> = Vec::new();
            let shown = self.entries(entries)?;
            if self.options.recursive {
                let real = |i: &Item<'_>| i.node.is_dir() && !matches!(&*i.name, b"." | b"..");
                below.extend(shown.into_iter().filter(real));
            }
            left.extend(below.into_iter().rev());
            if self.out.closed() {
                break;
            }
        }
        Ok(())
    }

    fn read<'v>(&mut self, item: &Item<'v>) -> Vec<Item<'v>> {
        let (volume, path) = (item.volume, &item.path);
        let (mut names, missing) = item.node.listing();
        self.failed.extend(missing.map(|why| Err(why).at(volume, path)));
        names.retain(|listed| self.options.all || !listed.name.starts_with(b"."));
        let mut items = Vec::new();
        if self.options.dots {
            for name in [&b"."[..], b".."] {
                let path = join(path, name);
                let node = self.keep(volume.find(&path, true).at(volume, &path));
                items.extend(node.map(|node| Item { volume, node, path, name: name.to_vec() }));
            }
        }
        for listed in names {
            let path = join(path, &listed.name);
            let node = self.keep(item.node.listed(&listed).at(volume, &path));
            items.extend(node.map(|node| Item { volume, node, path, name: listed.name }));
        }
        items
    }

    fn title(&mut self, path: &[u8]) -> Result<()> {
        if self.options.json || !self.titles {
            return Ok(());
        }
        if self.blocks > 0 {
            self.out.line("")?;
        }
        self.blocks += 1;
        let mut title = show::printable(path, self.terminal);
        title.push(b':');
        self.out.line(title)
    }

    /// Shows them, and gives them back in the order in which they were shown.
    fn entries<'v>(&mut self, mut items: Vec<Item<'v>>) -> Result<Vec<Item<'v>>> {
        self.blocks = self.blocks.max(1);
        if self.options.by_time {
            items.sort_by_key(|item| std::cmp::Reverse(item.node.attr.mtime));
        }
        if self.options.by_size {
            items.sort_by_key(|item| std::cmp::Reverse(item.node.attr.size));
        }
        if self.options.reverse {
            items.reverse();
        }
        if self.options.json {
            for item in &items {
                self.object(item)?;
            }
        } else if self.options.long {
            self.table(&items)?;
        } else {
            for item in &items {
                let mut line = Vec::new();
                if self.options.inode {
                    line.extend(format!("{} ", item.node.ino().0).into_bytes());
                }
                line.extend(show::printable(&item.name, self.terminal));
                self.out.line(line)?;
            }
        }
        Ok(items)
    }

    fn object(&mut self, item: &Item<'_>) -> Result<()> {
        let target = self.target(item);
        let object = Json::object(|o| {
            o.bytes("name", &item.name).bytes("path", &item.path);
            show::json(o, &item.node.attr);
            if let Some(target) = target {
                o.bytes("target", &target);
            }
        });
        self.objects.row(&mut self.out, &object)
    }

    fn table(&mut self, items: &[Item<'_>]) -> Result<()> {
        let rows: Vec<Vec<String>> = items.iter().map(|item| self.columns(item)).collect();
        let count = rows.first().map_or(0, Vec::len);
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
        for (row, item) in rows.iter().zip(items) {
            let mut line = String::new();
            for (column, (text, width)) in row.iter().zip(&widths).enumerate() {
                // Owner and group begin at the left, numbers end at the right.
                let left = (count - 4..count - 2).contains(&column) || text.starts_with('-');
                let text =
                    if left { format!("{text:<width$} ") } else { format!("{text:>width$} ") };
                line.push_str(&text);
            }
            let mut line = line.into_bytes();
            line.extend(show::printable(&item.name, self.terminal));
            if let Some(target) = self.target(item) {
                line.extend(b" -> ");
                line.extend(show::printable(&target, self.terminal));
            }
            self.out.line(line)?;
        }
        Ok(())
    }

    /// Where a link leads, if that can be read.
    fn target(&mut self, item: &Item<'_>) -> Option<Vec<u8>> {
        let target = item.node.is_symlink().then(|| item.volume.fs().readlink(item.node.ino()))?;
        self.keep(target.at(item.volume, &item.path))
    }

    fn columns(&mut self, item: &Item<'_>) -> Vec<String> {
        let attr = &item.node.attr;
        let size = match attr.kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                let (major, minor) = show::device_numbers(attr.rdev);
                format!("{major}, {minor}")
            }
            _ if self.options.human => human(attr.size),
            _ => attr.size.to_string(),
        };
        let mut columns = Vec::new();
        if self.options.inode {
            columns.push(attr.ino.0.to_string());
        }
        columns.extend([
            show::mode_text(attr),
            attr.nlink.to_string(),
            self.owners.user(attr.uid),
            self.owners.group(attr.gid),
            size,
            when::short(attr.mtime),
        ]);
        columns
    }
}
