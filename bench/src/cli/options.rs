//! The words of the command line, parsed and checked; nothing is done here.

pub use super::usage::USAGE;

use crate::side::SERVE;
use std::path::PathBuf;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Command {
    Help,
    List,
    Run,
    Compare,
    /// The null server, for a process that this program starts.
    ServeNull,
    /// The index of open inodes, without a file system.
    Index,
    /// `compare`, with the workloads of one system and times that suit them.
    Preset(&'static Preset),
}

#[derive(PartialEq, Debug)]
pub struct Preset {
    pub verb: &'static str,
    workloads: &'static [&'static str],
    seconds: u64,
    /// How much of everything `--scale 1` is.
    scale: f64,
}

const PRESETS: &[Preset] = &[
    Preset {
        verb: "fsync",
        workloads: &["fio-fsync-seq64k-*", "fio-fsync-rand4k-*", "fsync-in-commit"],
        seconds: 5,
        scale: 1.0,
    },
    Preset { verb: "dbench", workloads: &["dbench-8", "dbench-16"], seconds: 30, scale: 1.0 },
    Preset { verb: "orphans", workloads: &["truncate-*", "creat-clo-*"], seconds: 10, scale: 1.0 },
    Preset { verb: "inodes", workloads: &["fs-mark", "insert-times"], seconds: 10, scale: 1.0 },
    Preset {
        verb: "many",
        workloads: &["create-rounds", "one-dir", "ops-in-commit"],
        seconds: 10,
        scale: 1.0,
    },
    Preset {
        verb: "limits",
        workloads: &["deep-dirs*", "wide-dirs*", "rename-storm", "in-budget"],
        seconds: 10,
        scale: 1.0,
    },
    Preset {
        verb: "trees",
        workloads: &["untar", "cp-a", "rm-rf", "find-*", "grep-*", "git-status", "npm-ci"],
        seconds: 10,
        scale: 2.45,
    },
    Preset {
        verb: "compress",
        workloads: &["content-write", "content-read"],
        seconds: 10,
        scale: 1.0,
    },
];

/// Where images are put; all sides of one run are on the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backing {
    pub name: String,
    pub dir: PathBuf,
}

/// Mount options to be compared with others, and what their column is called.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Variant {
    pub name: String,
    pub options: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    Default,
    Uring,
    Classic,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    pub command: Command,
    pub dir: Option<PathBuf>,
    pub spinney: Option<PathBuf>,
    pub transports: Vec<Transport>,
    pub spinney_options: Option<String>,
    pub spinney_dir: Option<PathBuf>,
    pub kernel_dir: Option<PathBuf>,
    pub kernel_options: Option<String>,
    pub control: bool,
    pub null: bool,
    pub null_options: String,
    /// The kernel's ext4.
    pub ext4: bool,
    pub library: bool,
    /// The library with truncations tracked in other ways.
    pub tracking: bool,
    pub library_options: Option<String>,
    pub image_size: u64,
    /// `ram`, `disk`, `both` or a directory.
    backing: String,
    disk: PathBuf,
    pub variants: Vec<Variant>,
    pub kernel_variants: Vec<Variant>,
    pub mkfs_options: Vec<String>,
    pub workloads: Vec<String>,
    /// Only these numbers of jobs; all where it is empty.
    pub jobs: Vec<u64>,
    pub seconds: Option<u64>,
    pub loadfile: PathBuf,
    pub rounds: usize,
    pub scale: f64,
    pub file_size: u64,
    pub timeout: u64,
    /// Programs that take all of the processors that they get, beside every sample.
    pub burners: usize,
    pub json: Option<PathBuf>,
    pub plot: Option<PathBuf>,
    pub markdown: Option<PathBuf>,
    pub gate: bool,
    pub check: bool,
}

impl Options {
    fn new(command: Command) -> Options {
        Options {
            command,
            dir: None,
            spinney: None,
            transports: vec![Transport::Default],
            spinney_options: None,
            spinney_dir: None,
            kernel_dir: None,
            kernel_options: None,
            control: false,
            null: false,
            null_options: String::new(),
            ext4: false,
            library: false,
            tracking: false,
            library_options: None,
            image_size: 8 << 30,
            backing: "ram".into(),
            disk: "/var/tmp".into(),
            variants: Vec::new(),
            kernel_variants: Vec::new(),
            mkfs_options: Vec::new(),
            workloads: Vec::new(),
            jobs: Vec::new(),
            seconds: None,
            loadfile: "/usr/share/dbench/client.txt".into(),
            rounds: 3,
            scale: 1.0,
            file_size: 256 << 20,
            timeout: 300,
            burners: 0,
            json: None,
            plot: None,
            markdown: None,
            gate: false,
            check: false,
        }
    }

    pub fn compares(&self) -> bool {
        matches!(self.command, Command::Compare | Command::Preset(_))
    }

    pub fn backings(&self) -> Vec<Backing> {
        let ram = || Backing { name: "ram".into(), dir: "/dev/shm".into() };
        let disk = || Backing { name: "disk".into(), dir: self.disk.clone() };
        match self.backing.as_str() {
            "ram" => vec![ram()],
            "disk" => vec![disk()],
            "both" => vec![ram(), disk()],
            dir => vec![Backing { name: dir.to_string(), dir: dir.into() }],
        }
    }

    /// What must run through in seconds: every part once, nothing worth a number.
    fn make_quick(&mut self) {
        (self.rounds, self.scale, self.seconds) = (1, 0.002, Some(1));
        self.image_size = 1 << 30;
        self.jobs = vec![1, 8];
    }

    /// What a preset says and the command line does not.
    fn settle(&mut self) {
        let Command::Preset(preset) = self.command else { return };
        if self.workloads.is_empty() {
            self.workloads = preset.workloads.iter().map(|name| name.to_string()).collect();
        }
        self.seconds.get_or_insert(preset.seconds);
        self.scale *= preset.scale;
    }
}

pub fn parse(arguments: &[String]) -> Result<Options, String> {
    let preset = |word: &String| PRESETS.iter().find(|preset| preset.verb == word);
    let (command, rest) = match arguments.split_first() {
        Some((first, rest)) if first == "run" => (Command::Run, rest),
        Some((first, rest)) if first == "compare" => (Command::Compare, rest),
        Some((first, rest)) if first == "index" => (Command::Index, rest),
        Some((first, _)) if first == "--list" || first == "list" => (Command::List, &[][..]),
        Some((first, _)) if first == "--help" || first == "-h" => (Command::Help, &[][..]),
        // `spinney-bench --dir PATH` needs no word in front.
        Some((first, _)) if first.starts_with("--") => (Command::Run, arguments),
        Some((first, [at, list])) if first == SERVE => {
            let (dir, null_options) = (Some(at.into()), list.clone());
            return Ok(Options { dir, null_options, ..Options::new(Command::ServeNull) });
        }
        Some((first, rest)) => match preset(first) {
            Some(preset) => (Command::Preset(preset), rest),
            None => return Err(format!("no command {first}")),
        },
        None => (Command::Help, &[][..]),
    };
    let mut options = Options::new(command);
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        // Both `--flag value` and `--flag=value`.
        let (flag, inline) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_string())),
            None => (word.as_str(), None),
        };
        if inline.is_none() && set_switch(&mut options, flag) {
            continue;
        }
        let value = inline.or_else(|| words.next().cloned());
        set_value(&mut options, flag, value)?;
    }
    options.settle();
    check(options)
}

fn set_switch(options: &mut Options, flag: &str) -> bool {
    match flag {
        "--control" => options.control = true,
        "--null" => options.null = true,
        "--ext4" => options.ext4 = true,
        "--library" => options.library = true,
        "--tracking" => options.tracking = true,
        "--quick" => options.make_quick(),
        "--gate" => options.gate = true,
        "--check" => options.check = true,
        "--list" => options.command = Command::List,
        "--help" | "-h" => options.command = Command::Help,
        _ => return false,
    }
    true
}

fn set_value(options: &mut Options, flag: &str, value: Option<String>) -> Result<(), String> {
    let text = || value.clone().ok_or(format!("{flag} is unknown or needs a value"));
    let path = || text().map(|t| Some(PathBuf::from(t)));
    match flag {
        "--dir" => options.dir = path()?,
        "--spinney" => options.spinney = path()?,
        "--transport" => options.transports = transports(&text()?)?,
        "--spinney-opts" => options.spinney_options = Some(text()?),
        "--null-opts" => options.null_options = text()?,
        "--library-opts" => options.library_options = Some(text()?),
        "--spinney-dir" => options.spinney_dir = path()?,
        "--kernel-dir" => options.kernel_dir = path()?,
        "--kernel-opts" => options.kernel_options = Some(text()?),
        "--image-size" => options.image_size = size(flag, &text()?)?,
        "--backing" => options.backing = text()?,
        "--disk" => options.disk = PathBuf::from(text()?),
        "--variant" => options.variants.push(variant(flag, &text()?)?),
        "--kernel-variant" => options.kernel_variants.push(variant(flag, &text()?)?),
        "--mkfs" => options.mkfs_options = text()?.split_whitespace().map(str::to_string).collect(),
        "--workloads" | "--workload" => options.workloads.extend(names(&text()?)),
        "--jobs" => {
            let list = text()?;
            options.jobs = list.split(',').map(|n| number(flag, n)).collect::<Result<_, _>>()?;
        }
        "--seconds" => options.seconds = Some(number(flag, &text()?)?),
        "--loadfile" => options.loadfile = PathBuf::from(text()?),
        "--rounds" => options.rounds = number(flag, &text()?)?,
        "--scale" => options.scale = number(flag, &text()?)?,
        "--file-size" => options.file_size = size(flag, &text()?)?,
        "--burners" => options.burners = number(flag, &text()?)?,
        "--timeout" => options.timeout = number(flag, &text()?)?,
        "--json" => options.json = path()?,
        "--plot" => options.plot = path()?,
        "--markdown" => options.markdown = path()?,
        _ => return Err(format!("no option {flag}")),
    }
    Ok(())
}

fn names(list: &str) -> impl Iterator<Item = String> {
    list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_string)
}

fn transports(text: &str) -> Result<Vec<Transport>, String> {
    match text {
        "uring" => Ok(vec![Transport::Uring]),
        "classic" => Ok(vec![Transport::Classic]),
        "both" => Ok(vec![Transport::Uring, Transport::Classic]),
        other => Err(format!("no transport {other}: uring, classic or both")),
    }
}

/// `NAME=OPTIONS`; the name becomes part of a file's.
fn variant(flag: &str, text: &str) -> Result<Variant, String> {
    let (name, options) = text.split_once('=').unwrap_or((text, ""));
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return Err(format!("{flag} {text}: NAME=OPTIONS, the name of letters and digits"));
    }
    Ok(Variant { name: name.into(), options: options.into() })
}

fn number<T: std::str::FromStr>(flag: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{flag} {text} is not a number"))
}

fn size(flag: &str, text: &str) -> Result<u64, String> {
    let wrong = || format!("{flag} {text} is not a size such as 256M or 8G");
    bytes(text).filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

/// `8G`, `256M`, `64k`, `4096`.
pub fn bytes(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let shift = match unit.to_ascii_lowercase().trim_end_matches("ib") {
        "" | "b" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn named_twice(options: &Options) -> Option<String> {
    let variants = options.variants.iter().chain(&options.kernel_variants);
    let mut names: Vec<&str> = variants.map(|v| v.name.as_str()).collect();
    names.sort_unstable();
    names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].to_owned())
}

fn check(options: Options) -> Result<Options, String> {
    if options.rounds == 0 {
        return Err("--rounds must be at least 1".into());
    }
    if !(options.scale > 0.0 && options.scale <= 1000.0) {
        return Err("--scale must be above 0 and at most 1000".into());
    }
    if options.seconds == Some(0) {
        return Err("--seconds must be at least 1".into());
    }
    if let Some(name) = named_twice(&options) {
        return Err(format!("two variants have the name {name}"));
    }
    let others = options.spinney.is_some()
        || options.spinney_dir.is_some()
        || options.control
        || options.null
        || options.ext4
        || options.tracking
        || options.library
        || !options.kernel_variants.is_empty();
    match options.command {
        Command::Run if options.dir.is_none() => Err("run needs --dir PATH".into()),
        Command::Run if others || options.kernel_dir.is_some() => {
            Err("sides are for compare; run takes --dir alone".into())
        }
        Command::Index if others || options.dir.is_some() || options.kernel_dir.is_some() => {
            Err("index has no sides: --scale, --plot and --markdown alone".into())
        }
        _ if options.compares() && options.dir.is_some() => {
            Err("--dir is for run; compare takes --kernel-dir and --spinney-dir".into())
        }
        _ if options.compares() && !others => Err("nothing to compare with the kernel: \
             give --spinney, --spinney-dir, --control or --library"
            .into()),
        _ => Ok(options),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn the_line_of_the_manual() {
        let options = parsed(
            "compare --image-size 8G --rounds 5 --spinney target/release/spinney \
             --transport both --workloads create-1t,stat-cold --json o.json --plot=o.svg \
             --backing /dev/shm --scale 0.1",
        )
        .unwrap();
        assert_eq!(options.command, Command::Compare);
        assert_eq!((options.image_size, options.rounds, options.scale), (8 << 30, 5, 0.1));
        assert_eq!(options.transports, [Transport::Uring, Transport::Classic]);
        assert_eq!(options.workloads, ["create-1t", "stat-cold"]);
        assert_eq!(options.plot, Some("o.svg".into()));
    }

    #[test]
    fn short_forms() {
        let options = parsed("--dir /tmp --workloads stat-hot").unwrap();
        assert_eq!((options.command, options.dir), (Command::Run, Some("/tmp".into())));
        assert_eq!(parsed("--list").unwrap().command, Command::List);
        assert_eq!(parsed("compare --help --control").unwrap().command, Command::Help);
        assert_eq!(parsed("").unwrap().command, Command::Help);
    }

    #[test]
    fn a_preset_fills_in_what_is_not_said() {
        let options = parsed("fsync --spinney s --library --backing both --disk /d").unwrap();
        assert!(options.compares());
        assert_eq!(options.workloads.len(), 3);
        assert_eq!((options.seconds, options.rounds), (Some(5), 3));
        let dirs: Vec<_> = options.backings().into_iter().map(|b| (b.name, b.dir)).collect();
        assert_eq!(dirs, [("ram".into(), "/dev/shm".into()), ("disk".into(), "/d".into())]);
        let options = parsed("dbench --quick --seconds 7 --jobs 8 --control").unwrap();
        assert_eq!((options.seconds, options.rounds), (Some(7), 1));
        assert_eq!((options.jobs, options.workloads.len()), (vec![8], 2));
        let options = parsed("compare --control --backing /x").unwrap();
        assert_eq!(options.backings()[0].dir, PathBuf::from("/x"));
    }

    #[test]
    fn variants_have_a_name_and_any_options() {
        let options = parsed("fsync --spinney s --variant a=fsync=log,x --variant=b").unwrap();
        let pairs: Vec<_> =
            options.variants.iter().map(|v| (v.name.as_str(), v.options.as_str())).collect();
        assert_eq!(pairs, [("a", "fsync=log,x"), ("b", "")]);
        let kernel = parsed("compare --kernel-variant nolog=notreelog").unwrap();
        assert_eq!(kernel.kernel_variants[0].options, "notreelog");
        for bad in ["fsync --spinney s --variant =x", "fsync --spinney s --variant a/b=x"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_index_has_no_sides() {
        let options = parsed("index --scale 0.1 --plot a.svg --markdown a.md").unwrap();
        assert_eq!((options.command, options.scale), (Command::Index, 0.1));
        assert!(parsed("index --library").is_err() && parsed("index --dir /tmp").is_err());
    }

    #[test]
    fn sizes() {
        assert_eq!(size("", "4096"), Ok(4096));
        assert_eq!(size("", "64k"), Ok(65536));
        assert_eq!(size("", "8GiB"), Ok(8 << 30));
        for bad in ["", "G", "8X", "0", "-1", "99999999T"] {
            assert!(size("--x", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "fly",
            "run",
            "compare",
            "compare --dir /tmp --control",
            "run --dir /tmp --control",
            "compare --control --rounds 0",
            "compare --control --scale 0",
            "compare --control --scale nan",
            "compare --control --rounds",
            "compare --control --colour red",
            "compare --control --transport pigeon",
            "fsync",
            "fsync --control --seconds 0",
            "fsync --control --jobs 1,many",
            "fsync --spinney s --variant a=x --variant a=y",
        ] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
