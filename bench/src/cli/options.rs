//! The words of the command line, parsed and checked; nothing is done here.

use std::path::PathBuf;

pub const USAGE: &str = "\
spinney-bench: workloads on file systems, side by side

  spinney-bench --list
      show the workloads and the ratios that are aimed at
  spinney-bench run --dir PATH [OPTIONS]
      run them in one directory and print the rates
  spinney-bench compare [SIDES] [OPTIONS]
      run them on two or more sides in alternating rounds and print the ratios

Sides of compare (the kernel is the baseline; at least one other is needed)
  --spinney PROGRAM        an image mounted by this `spinney`
  --transport T            uring, classic or both (default: what `spinney` chooses)
  --spinney-opts OPTS      more mount options for `spinney mount -o`
  --spinney-dir PATH       a directory that is already mounted, instead
  --kernel-dir PATH        the same for the baseline
  --kernel-opts OPTS       mount options for the kernel beside loop,noatime
  --control                a second kernel mount: its ratios show the noise
  --library                the engine in this process, without FUSE

Images
  --image-size SIZE        default 8G, sparse
  --backing DIR            where the images are put, default /dev/shm
  --mkfs OPTS              more options for mkfs.btrfs, separated by blanks

Work
  --workloads A,B,...      default: all standard ones; `unlink-*` works too
  --rounds N               default 3
  --scale F                0.1 does a tenth of everything
  --file-size SIZE         of sequential and random I/O, default 256M
  --timeout SECONDS        for one sample, default 300
  --check                  btrfs check of every image at the end of every round

Results
  --json FILE   --plot FILE.svg
  --gate                   end with 1 if an aim is missed";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    Help,
    List,
    Run,
    Compare,
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
    pub library: bool,
    pub image_size: u64,
    pub backing: PathBuf,
    pub mkfs_options: Vec<String>,
    pub workloads: Vec<String>,
    pub rounds: usize,
    pub scale: f64,
    pub file_size: u64,
    pub timeout: u64,
    pub json: Option<PathBuf>,
    pub plot: Option<PathBuf>,
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
            library: false,
            image_size: 8 << 30,
            backing: "/dev/shm".into(),
            mkfs_options: Vec::new(),
            workloads: Vec::new(),
            rounds: 3,
            scale: 1.0,
            file_size: 256 << 20,
            timeout: 300,
            json: None,
            plot: None,
            gate: false,
            check: false,
        }
    }
}

pub fn parse(arguments: &[String]) -> Result<Options, String> {
    let (command, rest) = match arguments.split_first() {
        Some((first, rest)) if first == "run" => (Command::Run, rest),
        Some((first, rest)) if first == "compare" => (Command::Compare, rest),
        Some((first, _)) if first == "--list" || first == "list" => (Command::List, &[][..]),
        Some((first, _)) if first == "--help" || first == "-h" => (Command::Help, &[][..]),
        // `spinney-bench --dir PATH` needs no word in front.
        Some((first, _)) if first.starts_with("--") => (Command::Run, arguments),
        Some((first, _)) => return Err(format!("no command {first}")),
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
    check(options)
}

fn set_switch(options: &mut Options, flag: &str) -> bool {
    match flag {
        "--control" => options.control = true,
        "--library" => options.library = true,
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
        "--spinney-dir" => options.spinney_dir = path()?,
        "--kernel-dir" => options.kernel_dir = path()?,
        "--kernel-opts" => options.kernel_options = Some(text()?),
        "--image-size" => options.image_size = size(flag, &text()?)?,
        "--backing" => options.backing = PathBuf::from(text()?),
        "--mkfs" => options.mkfs_options = text()?.split_whitespace().map(str::to_string).collect(),
        "--workloads" | "--workload" => {
            let list = text()?;
            let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
            options.workloads.extend(names.map(str::to_string));
        }
        "--rounds" => options.rounds = number(flag, &text()?)?,
        "--scale" => options.scale = number(flag, &text()?)?,
        "--file-size" => options.file_size = size(flag, &text()?)?,
        "--timeout" => options.timeout = number(flag, &text()?)?,
        "--json" => options.json = path()?,
        "--plot" => options.plot = path()?,
        _ => return Err(format!("no option {flag}")),
    }
    Ok(())
}

fn transports(text: &str) -> Result<Vec<Transport>, String> {
    match text {
        "uring" => Ok(vec![Transport::Uring]),
        "classic" => Ok(vec![Transport::Classic]),
        "both" => Ok(vec![Transport::Uring, Transport::Classic]),
        other => Err(format!("no transport {other}: uring, classic or both")),
    }
}

fn number<T: std::str::FromStr>(flag: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{flag} {text} is not a number"))
}

/// `8G`, `256M`, `64k`, `4096`.
fn size(flag: &str, text: &str) -> Result<u64, String> {
    let wrong = || format!("{flag} {text} is not a size such as 256M or 8G");
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let shift = match unit.to_ascii_lowercase().trim_end_matches("ib") {
        "" | "b" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    count.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

fn check(options: Options) -> Result<Options, String> {
    if options.rounds == 0 {
        return Err("--rounds must be at least 1".into());
    }
    if !(options.scale > 0.0 && options.scale <= 1000.0) {
        return Err("--scale must be above 0 and at most 1000".into());
    }
    let others = options.spinney.is_some()
        || options.spinney_dir.is_some()
        || options.control
        || options.library;
    match options.command {
        Command::Run if options.dir.is_none() => Err("run needs --dir PATH".into()),
        Command::Run if others || options.kernel_dir.is_some() => {
            Err("sides are for compare; run takes --dir alone".into())
        }
        Command::Compare if options.dir.is_some() => {
            Err("--dir is for run; compare takes --kernel-dir and --spinney-dir".into())
        }
        Command::Compare if !others => Err("nothing to compare with the kernel: \
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
        ] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
