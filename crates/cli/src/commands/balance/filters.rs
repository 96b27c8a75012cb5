//! The words of a balance's filters: `usage=50,limit=2..5,convert=dup,soft`.
//!
//! What it does not know: which chunks they choose.

use crate::args;
use crate::error::{Error, Result};
use btrfs_disk::ids::block_group::{DUP, RAID0, RAID1, RAID1C3, RAID1C4, RAID5, RAID6, RAID10};
use btrfs_disk::items::{BalanceFilter, balance_filter as f};

const PROFILES: [(&str, u64); 9] = [
    ("single", f::SINGLE),
    ("dup", DUP),
    ("raid0", RAID0),
    ("raid1", RAID1),
    ("raid1c3", RAID1C3),
    ("raid1c4", RAID1C4),
    ("raid5", RAID5),
    ("raid6", RAID6),
    ("raid10", RAID10),
];

/// Adds what `text` says to what was said before of the same chunks.
pub fn add(filter: &mut BalanceFilter, text: &str) -> Result<()> {
    for word in text.split(',').filter(|word| !word.is_empty()) {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        one(filter, name, value)?;
    }
    Ok(())
}

/// Refuses what makes no sense without something else, once all is said.
pub fn check(filter: &BalanceFilter) -> Result<()> {
    if filter.has(f::DRANGE) && !filter.has(f::DEVID) {
        return Err(Error::usage("drange filter must be used with devid filter"));
    }
    if filter.has(f::SOFT) && !filter.has(f::CONVERT) {
        return Err(Error::usage("'soft' option can be used only when converting profiles"));
    }
    Ok(())
}

fn one(filter: &mut BalanceFilter, name: &str, value: &str) -> Result<()> {
    match name {
        "profiles" => {
            for name in value.split('|') {
                filter.profiles |= profile(name)?;
            }
            filter.flags |= f::PROFILES;
        }
        "usage" => usage(filter, value)?,
        "drange" => addresses(filter, f::DRANGE, range(value)?),
        "vrange" => addresses(filter, f::VRANGE, range(value)?),
        "devid" => {
            filter.devid = number(value)?;
            filter.flags |= f::DEVID;
        }
        "limit" if value.contains("..") => {
            filter.limit = halves(value)?;
            instead(filter, f::LIMIT, f::LIMIT_RANGE);
        }
        "limit" => {
            filter.limit = number(value)?;
            instead(filter, f::LIMIT_RANGE, f::LIMIT);
        }
        "stripes" => {
            let both = halves(value)?;
            (filter.stripes_min, filter.stripes_max) = (both as u32, (both >> 32) as u32);
            filter.flags |= f::STRIPES_RANGE;
        }
        "convert" => {
            filter.target = profile(value)?;
            filter.flags |= f::CONVERT;
        }
        "soft" => filter.flags |= f::SOFT,
        _ => return Err(Error::usage(format!("unrecognized balance option: {name}"))),
    }
    Ok(())
}

/// A number and a range are kept in the same place: the last one counts.
fn instead(filter: &mut BalanceFilter, before: u64, now: u64) {
    filter.flags = filter.flags & !before | now;
}

fn addresses(filter: &mut BalanceFilter, which: u64, (from, to): (u64, u64)) {
    match which {
        f::DRANGE => (filter.pstart, filter.pend) = (from, to),
        _ => (filter.vstart, filter.vend) = (from, to),
    }
    filter.flags |= which;
}

fn usage(filter: &mut BalanceFilter, value: &str) -> Result<()> {
    let wrong = || Error::usage(format!("invalid usage argument: {value}"));
    if value.contains("..") {
        filter.usage = halves(value)?;
        instead(filter, f::USAGE, f::USAGE_RANGE);
        return if filter.usage >> 32 > 100 { Err(wrong()) } else { Ok(()) };
    }
    filter.usage = number(value)?;
    instead(filter, f::USAGE_RANGE, f::USAGE);
    if filter.usage > 100 { Err(wrong()) } else { Ok(()) }
}

fn profile(name: &str) -> Result<u64> {
    let found = PROFILES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
    found.map(|(_, bits)| *bits).ok_or_else(|| Error::usage(format!("unknown profile: {name}")))
}

fn number(text: &str) -> Result<u64> {
    args::size(text).map_err(|_| Error::usage(format!("{text:?} is no number")))
}

/// `A..B`, `A..` and `..B`.
fn range(text: &str) -> Result<(u64, u64)> {
    let wrong = || Error::usage(format!("invalid range: {text:?}; write A..B"));
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let from = if from.is_empty() { 0 } else { number(from)? };
    let to = if to.is_empty() { u64::MAX } else { number(to)? };
    if from < to || from == to && from > 0 { Ok((from, to)) } else { Err(wrong()) }
}

/// A range of 32-bit numbers: from in the lower half, to in the higher one.
fn halves(text: &str) -> Result<u64> {
    let (from, to) = range(text)?;
    let most = u64::from(u32::MAX);
    if from > most {
        return Err(Error::usage(format!("range out of bounds: {text}")));
    }
    Ok(from | to.min(most) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Exit;

    fn parse(text: &str) -> Result<BalanceFilter> {
        parse_all(&[text])
    }

    /// Of an option that is given several times.
    fn parse_all(texts: &[&str]) -> Result<BalanceFilter> {
        let mut filter = BalanceFilter::default();
        texts.iter().try_for_each(|text| add(&mut filter, text))?;
        check(&filter).map(|()| filter)
    }

    #[test]
    fn what_is_said_in_several_options_holds_together() {
        let filter = parse_all(&["usage=5", "limit=2"]).unwrap();
        assert_eq!((filter.usage, filter.limit, filter.flags), (5, 2, f::USAGE | f::LIMIT));
        let filter = parse_all(&["convert=single", "soft"]).unwrap();
        assert_eq!((filter.target, filter.flags), (f::SINGLE, f::CONVERT | f::SOFT));
        let filter = parse_all(&["profiles=single", "profiles=dup"]).unwrap();
        assert_eq!(filter.profiles, f::SINGLE | DUP);
        // One place has the number or the range.
        let filter = parse_all(&["usage=1..9,limit=3", "usage=7", "limit=1..4"]).unwrap();
        assert_eq!((filter.usage, filter.limit), (7, 1 | 4 << 32));
        assert_eq!(filter.flags, f::USAGE | f::LIMIT_RANGE);
        assert!(parse_all(&["drange=1M..2M"]).is_err());
        assert!(parse_all(&["drange=1M..2M", "devid=1"]).is_ok());
    }

    #[test]
    fn words_become_filters() {
        let filter = parse("usage=50,vrange=1M..2M,limit=2..5,convert=dup,soft").unwrap();
        assert_eq!(filter.usage, 50);
        assert_eq!((filter.vstart, filter.vend), (1 << 20, 2 << 20));
        assert_eq!(filter.limit, 2 | 5 << 32);
        assert_eq!(filter.target, DUP);
        let flags = f::USAGE | f::VRANGE | f::LIMIT_RANGE | f::CONVERT | f::SOFT;
        assert_eq!(filter.flags, flags);
        assert_eq!(parse("profiles=single|dup").unwrap().profiles, f::SINGLE | DUP);
        for wrong in ["soft", "usage=101", "usage=x", "vrange=5", "convert=raid7", "what=1"] {
            let exit = parse(wrong).err().map(|error| Exit::from(&error));
            assert_eq!(exit, Some(Exit::Usage), "{wrong}");
        }
    }
}
