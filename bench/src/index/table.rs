//! The tables: times of single inserts, and rates by the number of threads.

use super::{Measured, THREADS};
use crate::report::Setting;
use std::fmt::Write;

pub fn to_markdown(setting: &Setting, all: &[Measured]) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    _ = write(&mut out, setting, all);
    out
}

fn write(out: &mut String, setting: &Setting, all: &[Measured]) -> std::fmt::Result {
    let inserts = all.first().map_or(0, |one| one.times.len());
    writeln!(out, "Linux {}, {} processors.\n", setting.kernel, setting.cpus)?;
    writeln!(
        out,
        "Inserts of one thread, {inserts} in ascending order, ns each (the clock's own \
                   time is in all of them):\n"
    )?;
    writeln!(out, "| structure | mean | median | 90th | 95th | 99th | longest |")?;
    writeln!(out, "|---|---:|---:|---:|---:|---:|---:|")?;
    for one in all {
        let mean = one.times.iter().map(|t| f64::from(*t)).sum::<f64>() / one.times.len() as f64;
        write!(out, "| {} | {mean:.1} |", one.name)?;
        for share in [0.5, 0.9, 0.95, 0.99, 1.0] {
            write!(out, " {} |", at(&one.times, share))?;
        }
        writeln!(out)?;
    }
    rates(out, "Inserts", all, |one| &one.inserts)?;
    rates(out, "Lookups", all, |one| &one.lookups)?;
    rates(out, "Lookups while one more thread inserts and removes", all, |o| &o.lookups_beside)
}

fn at(times: &[u32], share: f64) -> u32 {
    let place = (share * times.len() as f64).ceil() as usize;
    times.get(place.max(1) - 1).copied().unwrap_or(0)
}

fn rates(
    out: &mut String,
    what: &str,
    all: &[Measured],
    of: fn(&Measured) -> &Vec<f64>,
) -> std::fmt::Result {
    write!(out, "\n{what}, millions a second of all threads:\n\n| structure |")?;
    THREADS.iter().try_for_each(|threads| write!(out, " {threads} |"))?;
    writeln!(out, "\n|---|{}", "---:|".repeat(THREADS.len()))?;
    for one in all {
        write!(out, "| {} |", one.name)?;
        of(one).iter().try_for_each(|rate| write!(out, " {rate:.2} |"))?;
        writeln!(out)?;
    }
    Ok(())
}
