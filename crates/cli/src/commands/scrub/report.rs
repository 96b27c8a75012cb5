//! What there is to say of a scrub: as `btrfs scrub` says it.

use crate::commands::filesystem::units::Units;
use crate::commands::target::Target;
use crate::error::Result;
use crate::output::{Json, Out};
use crate::when;
use btrfs_fs::{ScrubState, ScrubStatus};
use std::time::Duration;

fn state_of(status: &ScrubStatus) -> &'static str {
    match status.state {
        ScrubState::None => "none",
        ScrubState::Running => "running",
        ScrubState::Finished => "finished",
        ScrubState::Cancelled => "aborted",
        ScrubState::Failed => "interrupted",
    }
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// How a scrub is told of.
pub struct How {
    /// All numbers by name.
    pub raw: bool,
    pub units: Units,
    /// Bytes that it reads in a second at most, 0: as many as there can be.
    pub limit: u64,
}

impl Default for How {
    fn default() -> How {
        How { raw: false, units: Units::HUMAN, limit: 0 }
    }
}

/// What is said of a limit behind something else.
pub fn behind(limit: u64, units: Units) -> String {
    match limit {
        0 => String::new(),
        limit => format!(" (limit {}/s)", units.show(limit)),
    }
}

/// The line above what is told of a device.
pub fn device(target: &Target, what: &str) -> Result<String> {
    Ok(format!("\nScrub device {} (id {}) {what}", target.device().display(), target.devid()?))
}

/// What a status is of, in that line.
pub fn told_of(status: &ScrubStatus) -> &'static str {
    match status.state {
        ScrubState::None => "",
        ScrubState::Running => "status",
        _ => "history",
    }
}

pub fn text(out: &mut Out, status: &ScrubStatus, how: &How) -> Result<()> {
    if status.state == ScrubState::None {
        out.line("\tno stats available")?;
    } else {
        out.line(format!("Scrub started:    {}", when::asctime(status.started)))?;
        out.line(format!("Status:           {}", state_of(status)))?;
        out.line(format!("Duration:         {}", clock(status.time)))?;
    }
    match how.raw {
        true => all_numbers(out, status)?,
        false => summary(out, status, how)?,
    }
    match status.unseen {
        0 => Ok(()),
        bytes => out.line(format!(
            "Not looked at:    {} of addresses, from {} on",
            how.units.show(bytes),
            status.unseen_from
        )),
    }
}

/// Those that only the kernel has among ours, where `btrfs scrub` has them: nothing here is thrown
/// away, and no memory is lacking. `last_physical` is a logical address.
fn all_numbers(out: &mut Out, status: &ScrubStatus) -> Result<()> {
    for (name, number) in status.done.list() {
        out.line(format!("\t{name}: {number}"))?;
        let next = match name {
            "no_csum" => "csum_discards",
            "super_errors" => "malloc_errors",
            "uncorrectable_errors" => "unverified_errors",
            _ => continue,
        };
        out.line(format!("\t{next}: 0"))?;
    }
    let last = if status.state == ScrubState::Finished { 0 } else { status.next };
    out.line(format!("\tlast_physical: {last}"))
}

fn summary(out: &mut Out, status: &ScrubStatus, how: &How) -> Result<()> {
    let (done, size) = (status.done.bytes(), |bytes| how.units.show(bytes));
    let total = status.total.max(done);
    if status.state == ScrubState::Running {
        let seconds = status.time.as_secs_f64();
        let left = (total - done) as f64 * seconds / done.max(1) as f64;
        let left = Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX);
        out.line(format!("Time left:        {}", clock(left)))?;
    }
    out.line(format!("Total to scrub:   {}", size(total)))?;
    if !matches!(status.state, ScrubState::Finished | ScrubState::None) {
        let percent = done as f64 * 100.0 / total.max(1) as f64;
        out.line(format!("Bytes scrubbed:   {}  ({percent:.2}%)", size(done)))?;
    }
    // A record knows whole seconds.
    let time = if status.time.is_zero() { 1.0 } else { status.time.as_secs_f64() };
    let limit = behind(how.limit, how.units);
    out.line(format!("Rate:             {}/s{limit}", size((done as f64 / time) as u64)))?;
    errors(out, status)
}

fn errors(out: &mut Out, status: &ScrubStatus) -> Result<()> {
    let done = &status.done;
    if !done.has_errors() {
        return out.line("Error summary:    no errors found");
    }
    let kinds = [
        ("read", done.read_errors),
        ("super", done.super_errors),
        ("verify", done.verify_errors),
        ("csum", done.csum_errors),
    ];
    let kinds = kinds.iter().filter(|(_, count)| *count > 0);
    let kinds: Vec<String> = kinds.map(|(name, count)| format!("{name}={count}")).collect();
    out.line(format!("Error summary:    {}", kinds.join(" ")))?;
    out.line(format!("  Corrected:      {}", done.corrected_errors))?;
    out.line(format!("  Uncorrectable:  {}", done.uncorrectable_errors))?;
    out.line("  Unverified:     0")
}

pub fn json(status: &ScrubStatus) -> String {
    Json::object(|o| {
        o.text("status", state_of(status)).bool("read_only", status.read_only);
        if status.state != ScrubState::None {
            o.text("started", &when::utc(status.started));
            o.number("duration_ms", status.time.as_millis() as u64);
            o.number("total_bytes", status.total.max(status.done.bytes()));
            for (name, number) in status.done.list() {
                o.number(name, number);
            }
            if status.unseen > 0 {
                o.number("unseen_bytes", status.unseen).number("unseen_from", status.unseen_from);
            }
        }
    })
}
