//! `spinney filesystem usage -T`: a row for each device, a column for each kind of block group.

use super::numbers::{Numbers, kind_name, left_of, profile_name};
use super::units::Units;
use crate::error::Result;
use crate::output::{Cell, Out, left, right, table};
use spinney::DeviceUsage;

type Row = Vec<Cell>;

pub fn print(out: &mut Out, numbers: &Numbers, units: Units) -> Result<()> {
    let devices = &numbers.usage.devices;
    let mut rows = Vec::from(heads(numbers));
    rows.extend(devices.iter().map(|device| of_device(numbers, device, units)));
    rows.extend(sums(numbers, units));
    table(&rows, &[2, 2 + devices.len()], " ").iter().try_for_each(|line| out.line(line))
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
    let here = numbers.on_device(device);
    row.extend(here.map(|(_, bytes)| right(bytes.map_or("-".into(), |bytes| units.show(bytes)))));
    row.push(right(units.show(left_of(device))));
    let slack = if numbers.slack == 0 { "-".into() } else { units.show(numbers.slack) };
    row.extend([right(units.show(device.total)), right(slack)]);
    row
}

fn sums(numbers: &Numbers, units: Units) -> [Row; 2] {
    let groups = numbers.by_weight();
    let mut total = vec![left(""), left("Total")];
    total.extend(groups.iter().map(|group| right(units.show(group.total))));
    let sizes = [numbers.unallocated(), numbers.size(), numbers.slack];
    total.extend(sizes.map(|bytes| right(units.show(bytes))));
    let mut used = vec![left(""), left("Used")];
    used.extend(groups.iter().map(|group| right(units.show(group.used))));
    used.extend(["", "", ""].map(right));
    [total, used]
}
