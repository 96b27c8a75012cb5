//! How subvolumes are told: UUIDs, times, paths, JSON.

use crate::error::{Error, Result};
use crate::output::Object;
use crate::sys;
use crate::when;
use btrfs_fs::Time;
use spinney::{QgroupId, SubvolId, SubvolumeInfo};

/// `ff25b691-6f97-ed47-8e7a-f7b73e2080c7`; `-` where there is none.
pub fn uuid(bytes: &[u8; 16]) -> String {
    if *bytes == [0; 16] {
        return "-".into();
    }
    let digits = crate::output::hex(bytes);
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32];
    parts.map(|part| digits[part].to_owned()).join("-")
}

/// `None`: it is none.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let dashes = [8, 13, 18, 23];
    let fits = text.len() == 36 && text.is_ascii();
    if !fits || !dashes.iter().all(|at| text.as_bytes()[*at] == b'-') {
        return None;
    }
    u128::from_str_radix(&text.replace('-', ""), 16).ok().map(u128::to_be_bytes)
}

/// `2026-11-24 15:55:13` of the local clock; `-` for never.
pub fn time(time: Time) -> String {
    moment(time, |_| String::new())
}

/// The same with ` +0100`.
pub fn time_and_zone(time: Time) -> String {
    moment(time, |offset| {
        let sign = if offset < 0 { '-' } else { '+' };
        format!(" {sign}{:02}{:02}", offset.abs() / 3600, offset.abs() / 60 % 60)
    })
}

fn moment((secs, _): Time, zone: impl Fn(i64) -> String) -> String {
    if secs == 0 {
        return "-".into();
    }
    let Some(c) = sys::to_local(secs) else { return format!("@{secs}") };
    let zone = zone(c.offset);
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}{zone}",
        c.year, c.month, c.day, c.hour, c.minute, c.second
    )
}

/// The number of the subvolume that it lies in, 0 if there is none.
pub fn parent(info: &SubvolumeInfo) -> u64 {
    info.parent.map_or(0, |parent| parent.0)
}

pub fn is_snapshot(info: &SubvolumeInfo) -> bool {
    info.parent_uuid != [0; 16]
}

/// From the top of the volume, as far as it is known.
pub fn path(info: &SubvolumeInfo) -> &[u8] {
    match &info.path {
        _ if info.deleted => b"DELETED",
        Some(path) => path,
        None => &info.name,
    }
}

/// `path` is where the caller wants it to begin.
pub fn json(o: &mut Object<'_>, info: &SubvolumeInfo, path: &[u8]) {
    o.number("id", info.id.0)
        .number("gen", info.generation)
        .number("cgen", info.otransid)
        .number("parent", parent(info))
        .number("top_level", parent(info));
    let known = |(secs, nanos): Time| {
        (secs != 0).then(|| format!("{}.{nanos:09}Z", when::utc(secs).trim_end_matches('Z')))
    };
    for (key, time) in [("otime", info.otime), ("ctime", info.ctime)] {
        if let Some(text) = known(time) {
            o.text(key, &text);
        }
    }
    for (key, time, transid) in
        [("stime", info.stime, info.stransid), ("rtime", info.rtime, info.rtransid)]
    {
        if let Some(text) = known(time) {
            o.text(key, &text);
        }
        // Receivers, ours and the kernel's, do not know when it was sent.
        if transid != 0 {
            o.number(&key.replace("time", "transid"), transid);
        }
    }
    for (key, bytes) in [
        ("uuid", &info.uuid),
        ("parent_uuid", &info.parent_uuid),
        ("received_uuid", &info.received_uuid),
    ] {
        if *bytes != [0; 16] {
            o.text(key, &uuid(bytes));
        }
    }
    o.bool("readonly", info.read_only).bool("snapshot", is_snapshot(info));
    if info.deleted {
        o.bool("deleted", true);
    }
    o.bytes("path", path);
}

pub fn id(text: &str) -> Result<SubvolId> {
    let wrong = || Error::usage(format!("{text:?} is no number of a subvolume"));
    text.parse().map(SubvolId).map_err(|_| wrong())
}

/// A quota group by level and number; without a level it is one of level 0.
pub fn group(text: &str) -> Result<QgroupId> {
    let wrong =
        || Error::usage(format!("{text:?} is no quota group: write LEVEL/NUMBER, as 1/100"));
    let level = if text.contains('/') { "" } else { "0/" };
    format!("{level}{text}").parse().map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_there_and_back() {
        let text = "ff25b691-6f97-ed47-8e7a-f7b73e2080c7";
        let bytes = parse_uuid(text).unwrap();
        assert_eq!((bytes[0], bytes[15]), (0xff, 0xc7));
        assert_eq!(uuid(&bytes), text);
        assert_eq!(uuid(&[0; 16]), "-");
        for wrong in ["", "x", &text[1..], "ff25b691-6f97-ed47-8e7a-f7b73e2080cg"] {
            assert_eq!(parse_uuid(wrong), None, "{wrong}");
        }
        assert_eq!(time((0, 0)), "-");
    }
}
