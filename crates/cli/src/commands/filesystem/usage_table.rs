//! `spinney filesystem usage -T`: a row for each device, a column for each kind of block group.

use super::numbers::{Numbers, kind_name, profile_name};
use super::units::Units;
use crate::error::Result;
use crate::output::Out;
use spinney::DeviceUsage;

/// A row; what begins with a blank stands at the right.
type Row = Vec<(String, bool)>;

pub fn print(out: &mut Out, numbers: &Numbers, units: Units) -> Result<()> {
    let heads = heads(numbers);
    let devices: Vec<Row> =
        numbers.usage.devices.iter().map(|device| of_device(numbers, device, units)).collect();
    let sums = sums(numbers, units);
    let rows = || heads.iter().chain(&devices).chain(&sums);
    let widths: Vec<usize> = (0..heads[0].len())
        .map(|column| rows().map(|row| row[column].0.len()).max().unwrap_or(0))
        .collect();
    let line = |row: &Row| {
        let cells = row.iter().zip(&widths).map(|((text, right), width)| match right {
            true => format!("{text:>width$}"),
            false => format!("{text:<width$}"),
        });
        cells.collect::<Vec<_>>().join(" ")
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let rule = rule.join(" ");
    heads.iter().try_for_each(|row| out.line(line(row)))?;
    out.line(&rule)?;
    devices.iter().try_for_each(|row| out.line(line(row)))?;
    out.line(&rule)?;
    sums.iter().try_for_each(|row| out.line(line(row)))
}

fn left(text: impl Into<String>) -> (String, bool) {
    (text.into(), false)
}

fn right(text: impl Into<String>) -> (String, bool) {
    (text.into(), true)
}

fn heads(numbers: &Numbers) -> [Row; 2] {
    let groups = numbers.by_weight();
    let kinds = groups.iter().map(|group| left(kind_name(group.flags)));
    let profiles = groups.iter().map(|group| left(profile_name(group.flags)));
    let nothing = ["", "", ""].map(left);
    let names = ["Unallocated", "Total", "Slack"].map(left);
    [
        [left(""), left("")].into_iter().chain(kinds).chain(nothing).collect(),
        [left("Id"), left("Path")].into_iter().chain(profiles).chain(names).collect(),
    ]
}

fn of_device(numbers: &Numbers, device: &DeviceUsage, units: Units) -> Row {
    let path = numbers.device.display().to_string();
    let mut row = vec![right(format!("{:2}", device.id)), left(path)];
    for group in numbers.by_weight() {
        let here = group.on_devices.iter().find(|(id, _)| *id == device.id);
        row.push(right(here.map_or("-".into(), |(_, bytes)| units.show(*bytes))));
    }
    row.push(right(units.show(device.total.saturating_sub(device.used))));
    let slack = numbers.slack();
    let slack = if slack == 0 { "-".into() } else { units.show(slack) };
    row.extend([right(units.show(device.total)), right(slack)]);
    row
}

fn sums(numbers: &Numbers, units: Units) -> [Row; 2] {
    let groups = numbers.by_weight();
    let mut total = vec![left(""), left("Total")];
    total.extend(groups.iter().map(|group| right(units.show(group.total))));
    let sizes = [numbers.unallocated(), numbers.size(), numbers.slack()];
    total.extend(sizes.map(|bytes| right(units.show(bytes))));
    let mut used = vec![left(""), left("Used")];
    used.extend(groups.iter().map(|group| right(units.show(group.used))));
    used.extend(["", "", ""].map(right));
    [total, used]
}
