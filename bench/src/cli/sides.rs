//! From the words of the command line to sides, the baseline first.

use super::options::{Options, Transport, Variant};
use crate::side::{
    DirSide, Engine, Ext4Mounter, ImageSide, ImageSpec, KernelMounter, LibrarySide, NullSide, Side,
    SpinneyMounter,
};
use crate::target::Tracked;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub fn make(
    options: &Options,
    scratch: &Path,
    library: Option<Engine>,
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
    add_kernel(&mut sides, options, &spec);
    add_spinney(&mut sides, options, &spec)?;
    if options.null {
        sides.push(Box::new(NullSide::new("null", scratch, &options.null_options)));
    }
    if options.ext4 {
        sides.push(Box::new(ImageSide::new("ext4", spec.clone(), Box::new(Ext4Mounter))));
    }
    if options.library || options.tracking {
        let engine = library.ok_or_else(|| io::Error::other("this build has no engine in it"))?;
        if options.library {
            add_library(&mut sides, options, &spec, engine);
        }
        if options.tracking {
            add_tracking(&mut sides, options, &spec, engine);
        }
    }
    Ok(sides)
}

fn add_kernel(sides: &mut Vec<Box<dyn Side>>, options: &Options, spec: &ImageSpec) {
    let kernel = |label: &str, more: &str| {
        let mounter =
            KernelMounter { options: joined([options.kernel_options.as_deref(), Some(more)]) };
        Box::new(ImageSide::new(label, spec.clone(), Box::new(mounter)))
    };
    match &options.kernel_dir {
        Some(dir) => sides.push(Box::new(DirSide::new("kernel", dir.clone()))),
        None => sides.push(kernel("kernel", "")),
    }
    for variant in &options.kernel_variants {
        sides.push(kernel(&format!("kernel-{}", variant.name), &variant.options));
    }
    if options.control {
        sides.push(kernel("kernel-again", ""));
    }
}

fn add_spinney(
    sides: &mut Vec<Box<dyn Side>>,
    options: &Options,
    spec: &ImageSpec,
) -> io::Result<()> {
    if let Some(dir) = &options.spinney_dir {
        sides.push(Box::new(DirSide::new("spinney", dir.clone())));
    }
    let Some(program) = &options.spinney else { return Ok(()) };
    // The program is run by path, never looked up, so that it is known which one it was.
    let program: PathBuf = std::fs::canonicalize(program)
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", program.display())))?;
    for variant in variants(options) {
        for transport in &options.transports {
            let (label, own) = match transport {
                Transport::Default => ("spinney", None),
                Transport::Uring => ("spinney-uring", Some("transport=uring")),
                Transport::Classic => ("spinney-classic", Some("transport=classic")),
            };
            let all = joined([own, options.spinney_options.as_deref(), Some(&variant.options)]);
            let mounter = SpinneyMounter::new(program.clone(), all);
            let label = labelled(label, &variant);
            sides.push(Box::new(ImageSide::new(&label, spec.clone(), Box::new(mounter))));
        }
    }
    Ok(())
}

fn add_library(
    sides: &mut Vec<Box<dyn Side>>,
    options: &Options,
    spec: &ImageSpec,
    engine: Engine,
) {
    for variant in variants(options) {
        let label = labelled("library", &variant);
        let all = joined([options.library_options.as_deref(), Some(&variant.options)]);
        let all = all.unwrap_or_default();
        match (engine.stranger)(&all) {
            Some(option) => eprintln!("no side {label}: the engine alone has no option {option}"),
            None => {
                sides.push(Box::new(LibrarySide::new(&label, spec.clone(), engine, &all)));
            }
        }
    }
}

/// The plain library with what tracking costs beside it.
fn add_tracking(
    sides: &mut Vec<Box<dyn Side>>,
    options: &Options,
    spec: &ImageSpec,
    engine: Engine,
) {
    let all = options.library_options.clone().unwrap_or_default();
    for (label, how) in
        [("library-lockless", Tracked::Lockless), ("library-locked", Tracked::Locked)]
    {
        let side = LibrarySide::new(label, spec.clone(), engine, &all).tracked(how);
        sides.push(Box::new(side));
    }
}

/// The plain one where none is named.
fn variants(options: &Options) -> Vec<Variant> {
    match options.variants.is_empty() {
        true => vec![Variant::default()],
        false => options.variants.clone(),
    }
}

fn labelled(side: &str, variant: &Variant) -> String {
    if variant.name.is_empty() { side.to_string() } else { format!("{side}-{}", variant.name) }
}

/// What goes behind one `-o`.
fn joined<const N: usize>(parts: [Option<&str>; N]) -> Option<String> {
    let parts: Vec<&str> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_joined_to_one_list() {
        assert_eq!(joined([None, Some("")]), None);
        assert_eq!(joined([Some("a=1"), None, Some("b,c")]).as_deref(), Some("a=1,b,c"));
    }

    #[test]
    fn every_variant_has_its_column() {
        let words = "fsync --spinney /bin/true --library --transport both --kernel-variant n=x \
                     --variant plain= --variant log=fsync=log";
        let words: Vec<String> = words.split_whitespace().map(str::to_string).collect();
        let options = super::super::options::parse(&words).unwrap();
        let engine = Engine {
            open: |_, _| Err(io::Error::other("not opened here")),
            stranger: |options| (!options.is_empty()).then(|| options.to_string()),
        };
        let sides = make(&options, Path::new("/nonexistent"), Some(engine)).unwrap();
        let labels: Vec<&str> = sides.iter().map(|side| side.label()).collect();
        let expected = [
            "kernel",
            "kernel-n",
            "spinney-uring-plain",
            "spinney-classic-plain",
            "spinney-uring-log",
            "spinney-classic-log",
            "library-plain",
        ];
        assert_eq!(labels, expected, "the library is left out where it lacks an option");
    }
}
