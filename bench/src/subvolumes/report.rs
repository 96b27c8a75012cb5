//! The tables.

use super::beside::{Beside, Latency, Work};
use super::quotas::{Cost, STEPS};
use super::snapshots::Many;
use super::{Rounds, median};
use std::fmt::Write;

pub fn head() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "# Snapshots, quotas, and operations beside a balance\n\nMade by `spinney-bench subvolumes`: Linux {}, {cpus} \
         processors, images in memory, mounted; each cell is the median of its rounds, and `btrfs check` finds each \
         volume clean.\n",
        kernel.trim()
    )
}

// Writing to a String cannot fail.

pub fn snapshots(out: &mut String, count: u64, rounds: &Rounds<Many>) {
    let _ = writeln!(
        out,
        "\n## {count} snapshots of one subvolume, with a write in each\n\nMemory is the most that the server had; of the \
         kernel, by how much caches and tables of the whole machine had grown. Left in use: when all were dropped, above \
         what was before the first. The kernel's cleaner comes with its commit in the background, every 30 s.\n\n\
         | side | make, s | list, s | delete, s | until dropped, s | memory, MiB | left in use, MiB |\n\
         |---|---:|---:|---:|---:|---:|---:|"
    );
    for (side, all) in rounds.sides() {
        let of = |f: fn(&Many) -> f64| median(all.iter().map(f).collect());
        let mib =
            |f: fn(&Many) -> u64| median(all.iter().map(|m| f(m) as f64 / 1048576.0).collect());
        let _ = writeln!(
            out,
            "| {side} | {:.2} | {:.3} | {:.2} | {:.2} | {:.0} | {:.1} |",
            of(|m| m.made),
            of(|m| m.listed),
            of(|m| m.deleted),
            of(|m| m.dropped),
            mib(|m| m.memory),
            mib(|m| m.left)
        );
    }
}

pub fn quotas(out: &mut String, files: u64, rounds: &Rounds<Cost>) {
    let _ = writeln!(
        out,
        "\n## What quotas cost: {files} files, a commit behind each step\n\n\
         | step | side | without, s | with, s | times as long (lowest to highest round) |\n|---|---|---:|---:|---:|"
    );
    for (step, name) in STEPS.iter().enumerate() {
        for (side, all) in rounds.sides() {
            let without = median(all.iter().map(|cost| cost.without[step]).collect());
            let with = median(all.iter().map(|cost| cost.with[step]).collect());
            let ratios: Vec<f64> = all.iter().map(|c| c.with[step] / c.without[step]).collect();
            let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            let high = ratios.iter().copied().fold(0.0, f64::max);
            let ratio = median(ratios);
            let _ = writeln!(
                out,
                "| {name} | {side} | {without:.3} | {with:.3} | {ratio:.2} ({low:.2} to {high:.2}) |"
            );
        }
    }
}

pub fn beside(out: &mut String, seconds: u64, rounds: &Rounds<Beside>) {
    let _ = writeln!(
        out,
        "\n## One thread that creates files and one that writes 4 KiB and fsyncs, {seconds} s, alone, beside snapshots of\nthe subvolume that they are at work in, and beside balances of everything\n\n\
         | operation | side | beside | operations | 50 %, ms | 99 %, ms | 99.9 %, ms | most, ms |\n|---|---|---|---:|---:|---:|---:|---:|"
    );
    for name in ["create", "write and fsync"] {
        let of = |work: &Work| if name == "create" { work.creates } else { work.fsyncs };
        for (side, all) in rounds.sides() {
            let balances = median(all.iter().map(|b| b.balances as f64).collect());
            let alone: Vec<Latency> = all.iter().map(|b| of(&b.alone)).collect();
            line(out, (name, side, "nothing"), &alone);
            let snapshots = median(all.iter().map(|b| b.snapshots as f64).collect());
            let snapshotting: Vec<Latency> = all.iter().map(|b| of(&b.snapshotting)).collect();
            line(out, (name, side, &format!("{snapshots} snapshots")), &snapshotting);
            let balancing: Vec<Latency> = all.iter().map(|b| of(&b.balancing)).collect();
            line(out, (name, side, &format!("{balances} balances")), &balancing);
        }
    }
}

fn line(out: &mut String, (name, side, beside): (&str, &str, &str), all: &[Latency]) {
    let count = median(all.iter().map(|l| l.count as f64).collect());
    let [a, b, c] = [0, 1, 2].map(|n| median(all.iter().map(|l| l.at[n]).collect()));
    let most = all.iter().map(|l| l.most).fold(0.0, f64::max);
    let _ = writeln!(
        out,
        "| {name} | {side} | {beside} | {count} | {a:.3} | {b:.2} | {c:.2} | {most:.2} |"
    );
}
