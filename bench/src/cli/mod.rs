//! The command line: from words to sides, a plan and a report.
//!
//! Ends with 0 when everything was measured, 1 when a sample failed or an image is damaged (or, with
//! `--gate`, an aim was missed), 2 when the words make no sense, 130 on a signal.

mod options;

use crate::report::{self, Report, Setting, SideInfo};
use crate::runner::{self, Plan};
use crate::side::{
    DirSide, ImageSide, ImageSpec, KernelMounter, LibrarySide, Opener, Side, SpinneyMounter,
};
use crate::workload::{self, Material, Sizes, Workload};
use crate::{sys, workload::Cache};
use options::{Command, Options, Transport, USAGE};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// `library` opens an image with the engine in this process, where there is one.
pub fn main(arguments: Vec<String>, library: Option<Opener>) -> ExitCode {
    let options = match options::parse(&arguments) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("spinney-bench: {message}\ntry `spinney-bench --help`");
            return ExitCode::from(2);
        }
    };
    let result = match options.command {
        Command::Help => {
            println!("{USAGE}");
            Ok(0)
        }
        Command::List => {
            list();
            Ok(0)
        }
        Command::Run | Command::Compare => measure(&options, arguments, library),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("spinney-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list() {
    println!("{:<22} {:<8} {:>6} {:>8}  about", "workload", "unit", "mount", "library");
    let aim = |aim: Option<f64>| aim.map_or_else(|| "-".to_string(), |a| format!("{a:.2}"));
    for workload in workload::all() {
        let info = workload.info();
        let cold = if info.cache == Cache::Cold { ", cold" } else { "" };
        let extra = if info.standard { "" } else { " (only when named)" };
        println!(
            "{:<22} {:<8} {:>6} {:>8}  {}{cold}{extra}",
            info.name,
            info.unit,
            aim(info.aims.mount),
            aim(info.aims.library),
            info.about
        );
    }
}

fn measure(options: &Options, arguments: Vec<String>, library: Option<Opener>) -> io::Result<u8> {
    let workloads = workload::select(&options.workloads)
        .map_err(|name| io::Error::other(format!("no workload {name}; --list shows them")))?;
    check_root(options, &workloads)?;
    let scratch = Scratch::make(&options.backing)?;
    sys::catch_interrupts();
    let mut sides = sides(options, &scratch.0, library)?;
    let sizes = Sizes::scaled(options.scale, options.file_size);
    let material = Material::new(&scratch.0, &sizes);
    let limit = Duration::from_secs(options.timeout);
    let plan = Plan { workloads, rounds: options.rounds, sizes, limit, verify: options.check };
    let outcome = runner::run(&plan, &mut sides, &material, &mut |line| eprintln!("{line}"));
    let infos = sides
        .iter()
        .map(|side| SideInfo { label: side.label().into(), is_library: side.is_library() })
        .collect();
    let report = Report {
        setting: Setting::here(arguments, options.rounds, options.scale),
        sides: infos,
        outcome,
    };
    for side in &mut sides {
        if let Err(error) = side.close() {
            eprintln!("{}: {error}", side.label());
        }
    }
    drop(sides);
    publish(options, &report)
}

/// Writes the report everywhere it was asked for, and says how the program ends.
fn publish(options: &Options, report: &Report) -> io::Result<u8> {
    print!("{}", report::to_text(report));
    if let Some(path) = &options.json {
        report::write(path, &report::to_json(report))?;
    }
    if let Some(path) = &options.plot {
        report::write(path, &report::to_svg(report))?;
    }
    let (_, missed) = report.score();
    Ok(match report.outcome.interrupted {
        true => 130,
        false => u8::from(
            report.outcome.failures() > 0
                || !report.outcome.damage.is_empty()
                || options.gate && missed > 0,
        ),
    })
}

/// Better before the first round than after an hour.
fn check_root(options: &Options, workloads: &[Box<dyn Workload>]) -> io::Result<()> {
    if sys::is_root() {
        return Ok(());
    }
    let cold = workloads.iter().find(|w| w.info().cache == Cache::Cold);
    if let Some(workload) = cold {
        let name = workload.info().name;
        return Err(io::Error::other(format!("{name} drops caches, which needs root")));
    }
    let mounts = options.command == Command::Compare && options.kernel_dir.is_none();
    if mounts { Err(io::Error::other("mounting by the kernel needs root")) } else { Ok(()) }
}

fn sides(
    options: &Options,
    scratch: &Path,
    library: Option<Opener>,
) -> io::Result<Vec<Box<dyn Side>>> {
    let mut sides: Vec<Box<dyn Side>> = Vec::new();
    if let Some(dir) = &options.dir {
        sides.push(Box::new(DirSide::new("rate", dir.clone())));
        return Ok(sides);
    }
    let spec = ImageSpec {
        scratch: scratch.to_owned(),
        size: options.image_size,
        mkfs_options: options.mkfs_options.clone(),
        limit: Duration::from_secs(options.timeout),
    };
    let kernel = |label: &str| {
        let mounter = KernelMounter { options: options.kernel_options.clone() };
        Box::new(ImageSide::new(label, spec.clone(), Box::new(mounter)))
    };
    match &options.kernel_dir {
        Some(dir) => sides.push(Box::new(DirSide::new("kernel", dir.clone()))),
        None => sides.push(kernel("kernel")),
    }
    if let Some(dir) = &options.spinney_dir {
        sides.push(Box::new(DirSide::new("spinney", dir.clone())));
    }
    if let Some(program) = &options.spinney {
        // The program is run by path, never looked up, so that it is known which one it was.
        let program = std::fs::canonicalize(program)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", program.display())))?;
        for transport in &options.transports {
            sides.push(Box::new(spinney_side(options, *transport, &spec, &program)));
        }
    }
    if options.control {
        sides.push(kernel("kernel-again"));
    }
    if options.library {
        let opener = library.ok_or_else(|| io::Error::other("this build has no engine in it"))?;
        sides.push(Box::new(LibrarySide::new("library", spec, opener)));
    }
    Ok(sides)
}

fn spinney_side(
    options: &Options,
    transport: Transport,
    spec: &ImageSpec,
    program: &Path,
) -> ImageSide {
    let (label, own) = match transport {
        Transport::Default => ("spinney", None),
        Transport::Uring => ("spinney-uring", Some("transport=uring")),
        Transport::Classic => ("spinney-classic", Some("transport=classic")),
    };
    let all: Vec<&str> = own.into_iter().chain(options.spinney_options.as_deref()).collect();
    let joined = (!all.is_empty()).then(|| all.join(","));
    let mounter = SpinneyMounter::new(program.to_owned(), joined);
    ImageSide::new(label, spec.clone(), Box::new(mounter))
}

/// This run's own directory on the backing file system, gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn make(backing: &Path) -> io::Result<Scratch> {
        let path = backing.join(format!("spinney-bench-{}", std::process::id()));
        std::fs::create_dir(&path)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Not remove_dir_all: if something is still mounted here, its content is not ours.
        for file in ["tree.tar", "command.log"] {
            let _ = std::fs::remove_file(self.0.join(file));
        }
        if let Err(error) = std::fs::remove_dir(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}
