//! The command line: from words to sides, a plan and a report.
//!
//! Ends with 0 when everything was measured, 1 when a sample failed or an image is damaged (or, with
//! `--gate`, an aim was missed), 2 when the words make no sense, 130 on a signal.

mod options;
mod sides;
mod usage;
pub mod verb;

use crate::burners::Burners;
use crate::index;
use crate::report::{self, Report, Setting, SideInfo};
use crate::runner::{self, Plan};
use crate::side::{self, Engine};
use crate::workload::{self, Material, Sizes, Workload};
use crate::{sys, workload::Cache};
use options::{Backing, Command, Options, USAGE};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

pub use options::bytes;

/// `library` opens an image with the engine in this process, where there is one.
pub fn main(arguments: Vec<String>, library: Option<Engine>) -> ExitCode {
    crate::sys::keep_memory_as_the_server();
    let options = match options::parse(&arguments) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("spinney-bench: {message}\ntry `spinney-bench --help`");
            return ExitCode::from(2);
        }
    };
    let result = match options.command {
        Command::Help => say(&format!("{USAGE}\n")).map(|()| 0),
        Command::List => say(&list()).map(|()| 0),
        Command::ServeNull => {
            let at = options.dir.clone().unwrap_or_default();
            side::serve(&at, &options.null_options).map(|()| 0)
        }
        Command::Index => measure_index(&options, arguments),
        _ => measure(&options, arguments, library),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("spinney-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// On standard output; whoever reads there may go away (`| head`), which is no failure.
fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        said => said,
    }
}

fn list() -> String {
    let line = |name: &str, unit: &str, mount: &str, library: &str, about: &str| {
        format!("{name:<22} {unit:<8} {mount:>6} {library:>8}  {about}\n")
    };
    let aim = |aim: Option<f64>| aim.map_or_else(|| "-".to_string(), |a| format!("{a:.2}"));
    let mut text = line("workload", "unit", "mount", "library", "about");
    for workload in workload::all() {
        let info = workload.info();
        let cold = if info.cache == Cache::Cold { ", cold" } else { "" };
        let extra = if info.standard { "" } else { " (only when named)" };
        let about = format!("{}{cold}{extra}", info.about);
        text += &line(info.name, info.unit, &aim(info.aims.mount), &aim(info.aims.library), &about);
    }
    text
}

fn measure(options: &Options, arguments: Vec<String>, library: Option<Engine>) -> io::Result<u8> {
    check_root(options, &workloads(options)?)?;
    sys::catch_interrupts();
    let mut reports: Vec<Report> = Vec::new();
    for backing in options.backings() {
        if !reports.iter().any(|report| report.outcome.interrupted) {
            reports.push(measure_on(&backing, options, &arguments, library)?);
        }
    }
    publish(options, &reports)
}

fn measure_index(options: &Options, arguments: Vec<String>) -> io::Result<u8> {
    let setting = Setting::here(arguments, 1, options.scale);
    let all = index::run(options.scale, &mut |name| eprintln!("{name}"));
    let page = index::to_markdown(&setting, &all);
    say(&page)?;
    if let Some(path) = &options.markdown {
        report::write(path, &page)?;
    }
    if let Some(path) = &options.plot {
        report::write(path, &index::to_svg(&all))?;
    }
    Ok(0)
}

fn workloads(options: &Options) -> io::Result<Vec<Box<dyn Workload>>> {
    let mut list = workload::select(&options.workloads)
        .map_err(|name| io::Error::other(format!("no workload {name}; --list shows them")))?;
    list.retain(|workload| workload::jobs::wanted(&workload.info(), &options.jobs));
    if list.is_empty() { Err(io::Error::other("no workload is left")) } else { Ok(list) }
}

fn measure_on(
    backing: &Backing,
    options: &Options,
    arguments: &[String],
    library: Option<Engine>,
) -> io::Result<Report> {
    let scratch = Scratch::make(&backing.dir)?;
    let mut sides = sides::make(options, &scratch.0, library)?;
    let mut sizes = Sizes::scaled(options.scale, options.file_size);
    sizes.program_seconds = options.seconds.unwrap_or(sizes.program_seconds);
    let material = Material::new(&scratch.0, &sizes, &options.loadfile);
    let limit = Duration::from_secs(options.timeout);
    let workloads = workloads(options)?;
    let plan = Plan { workloads, rounds: options.rounds, sizes, limit, verify: options.check };
    let progress = &mut |line: &str| eprintln!("{} {line}", backing.name);
    let burners = Burners::start(options.burners)?;
    let outcome = runner::run(&plan, &mut sides, &material, progress);
    drop(burners);
    let infos = sides.iter().map(|side| SideInfo::from(&**side)).collect();
    for side in &mut sides {
        if let Err(error) = side.close() {
            eprintln!("{}: {error}", side.label());
        }
    }
    let mut setting = Setting::here(arguments.to_vec(), options.rounds, options.scale);
    setting.backing = backing.name.clone();
    setting.seconds = plan.sizes.program_seconds;
    Ok(Report { setting, sides: infos, outcome })
}

/// Writes the reports everywhere they were asked for, and says how the program ends.
fn publish(options: &Options, reports: &[Report]) -> io::Result<u8> {
    let own = |path: &Path, report: &Report| match reports.len() {
        1 => path.to_owned(),
        _ => with_suffix(path, &report.setting.backing),
    };
    for report in reports {
        say(&report::to_text(report))?;
        if let Some(path) = &options.json {
            report::write(&own(path, report), &report::to_json(report))?;
        }
        if let Some(path) = &options.plot {
            report::write(&own(path, report), &report::to_svg(report))?;
        }
    }
    if let Some(path) = &options.markdown {
        let pages: Vec<String> = reports.iter().map(report::to_markdown).collect();
        report::write(path, &pages.join("\n"))?;
    }
    if reports.iter().any(|report| report.outcome.interrupted) {
        return Ok(130);
    }
    let bad = |report: &Report| {
        report.outcome.failures() > 0
            || !report.outcome.damage.is_empty()
            || options.gate && report.score().1 > 0
    };
    Ok(u8::from(reports.iter().any(bad)))
}

/// `a/b.json` with `ram` is `a/b-ram.json`.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push("-");
    name.push(suffix);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
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
    let mounts = options.compares() && options.kernel_dir.is_none();
    if mounts { Err(io::Error::other("mounting by the kernel needs root")) } else { Ok(()) }
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

#[cfg(test)]
mod tests {
    use super::with_suffix;
    use std::path::Path;

    #[test]
    fn a_suffix_goes_before_the_extension() {
        assert_eq!(with_suffix(Path::new("a/b.c.json"), "ram"), Path::new("a/b.c-ram.json"));
        assert_eq!(with_suffix(Path::new("plain"), "disk"), Path::new("plain-disk"));
    }
}
