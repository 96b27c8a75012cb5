//! What there is to say of a scrub: as `btrfs scrub` says it.

use crate::commands::filesystem::units::Units;
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

/// `raw`: all numbers by name.
pub fn text(out: &mut Out, status: &ScrubStatus, raw: bool) -> Result<()> {
    if status.state == ScrubState::None {
        return out.line("\tno stats available");
    }
    out.line(format!("Scrub started:    {}", when::asctime(status.started)))?;
    out.line(format!("Status:           {}", state_of(status)))?;
    out.line(format!("Duration:         {}", clock(status.time)))?;
    if raw {
        for (name, number) in status.done.list() {
            out.line(format!("\t{name}: {number}"))?;
        }
        return Ok(());
    }
    let (done, human) = (status.done.bytes(), |bytes| Units::HUMAN.show(bytes));
    let total = status.total.max(done);
    if status.state == ScrubState::Running {
        let seconds = status.time.as_secs_f64();
        let left = (total - done) as f64 * seconds / done.max(1) as f64;
        let left = Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX);
        out.line(format!("Time left:        {}", clock(left)))?;
    }
    out.line(format!("Total to scrub:   {}", human(total)))?;
    if status.state != ScrubState::Finished {
        let percent = done as f64 * 100.0 / total.max(1) as f64;
        out.line(format!("Bytes scrubbed:   {}  ({percent:.2}%)", human(done)))?;
    }
    let rate = (done as f64 / status.time.as_secs_f64().max(1e-9)) as u64;
    out.line(format!("Rate:             {}/s", human(rate)))?;
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
        }
    })
}
