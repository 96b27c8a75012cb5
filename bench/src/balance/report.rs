//! The table and its picture.

use super::base::Base;
use super::{Cell, Row};
use std::fmt::Write;

pub fn markdown(rows: &[Row], base: &Base) -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (files, mib) = (base.files, base.bytes >> 20);
    let mut out = format!(
        "# Balances and a shrink\n\nMade by `spinney-bench balance`: Linux {}, {cpus} processors, images in \
         memory. {files} files of /usr and /lib, {mib} MiB, nodes of 4 KiB, metadata twice (DUP); in each snapshot \
         three files were written anew. Both sides work on copies of one image, mounted; each cell is the median of \
         its rounds, and `btrfs check` finds each result clean. Processor time is that of the program and, for \
         Spinney, of the server.\n\n\
         | work | snapshots | quotas | side | wall s | user s | system s | extents moved | quota-dirty | times as fast |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        kernel.trim()
    );
    for row in rows {
        let quotas = if row.quotas { "on" } else { "off" };
        let ratio = format!("{:.1}", row.kernel.wall / row.spinney.wall.max(1e-9));
        for (side, cell, ratio) in [("kernel", &row.kernel, ""), ("Spinney", &row.spinney, &*ratio)]
        {
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "| {} | {} | {quotas} | {side} | {} | {ratio} |",
                row.what.name(),
                row.snapshots,
                numbers(cell)
            );
        }
    }
    out
}

fn numbers(cell: &Cell) -> String {
    let count = |n: Option<u64>| n.map_or("-".into(), |n| n.to_string());
    let (moved, dirty) = (count(cell.relocated), count(cell.quota_dirty));
    format!("{:.2} | {:.2} | {:.2} | {moved} | {dirty}", cell.wall, cell.user, cell.system)
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 250.0;
const BAR: f64 = 14.0;

pub fn svg(rows: &[Row]) -> String {
    let longest = rows.iter().map(|row| row.kernel.wall.max(row.spinney.wall)).fold(0.1, f64::max);
    let scale = (WIDTH - LEFT - 70.0) / longest;
    let height = 50.0 + rows.len() as f64 * (2.0 * BAR + 12.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"10\" y=\"20\">Seconds; \
         above the kernel's btrfs, below Spinney</text>\n"
    );
    for (n, row) in rows.iter().enumerate() {
        let top = 36.0 + n as f64 * (2.0 * BAR + 12.0);
        let quotas = if row.quotas { ", quotas" } else { "" };
        let name = format!("{}, {} snapshots{quotas}", row.what.name(), row.snapshots);
        let _ = writeln!(out, "<text x=\"10\" y=\"{}\">{name}</text>", top + BAR + 4.0);
        let sides = [(row.kernel.wall, "#2f6f9f"), (row.spinney.wall, "#b8732e")];
        for (k, (wall, colour)) in sides.into_iter().enumerate() {
            let (y, width) = (top + k as f64 * BAR, wall * scale);
            let _ = writeln!(
                out,
                "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/><text \
                 x=\"{:.1}\" y=\"{}\">{wall:.2}</text>",
                BAR - 2.0,
                LEFT + width + 5.0,
                y + BAR - 3.0
            );
        }
    }
    out.push_str("</svg>\n");
    out
}
