//! Points in time as people write them.

use crate::sys::{self, CivilTime};
use vfs::Timestamp;

/// `2024-05-01T12:00:00Z`.
pub fn utc(secs: i64) -> String {
    let (days, rest) = (secs.div_euclid(86_400), secs.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a number of days since 1970 (Gregorian, also before 1582).
fn civil(days: i64) -> (i64, u32, u32) {
    // Years are counted from March, so that a leap day is a year's last.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month as u32, day as u32)
}

/// Days since 1970; the inverse of `civil`.
fn days(year: i64, month: u32, day: u32) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let months = i64::from(if month > 2 { month - 3 } else { month + 9 });
    let of_year = (153 * months + 2) / 5 + i64::from(day) - 1;
    let day_of_era = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    era * 146_097 + day_of_era - 719_468
}

/// As `stat` shows it: `2024-05-01 12:00:00.000000000 +0200`.
pub fn full(time: Timestamp) -> String {
    let Some(c) = sys::to_local(time.secs) else { return format!("@{}", time.secs) };
    let sign = if c.offset < 0 { '-' } else { '+' };
    let (hours, minutes) = (c.offset.abs() / 3600, c.offset.abs() / 60 % 60);
    let nanos = time.nanos;
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{nanos:09} {sign}{hours:02}{minutes:02}",
        c.year, c.month, c.day, c.hour, c.minute, c.second
    )
}

/// As `ctime(3)` tells it: `Wed May  1 12:00:00 2024`, in local time.
pub fn asctime(secs: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let Some(c) = sys::to_local(secs) else { return format!("@{secs}") };
    let day = DAYS[(secs + c.offset).div_euclid(86_400).rem_euclid(7) as usize];
    let month = MONTHS[(c.month as usize + 11) % 12];
    let (hour, minute, second) = (c.hour, c.minute, c.second);
    format!("{day} {month} {:2} {hour:02}:{minute:02}:{second:02} {}", c.day, c.year)
}

/// As `ls -l` shows it: `2024-05-01 12:00`.
pub fn short(time: Timestamp) -> String {
    let Some(c) = sys::to_local(time.secs) else { return format!("@{}", time.secs) };
    format!("{:04}-{:02}-{:02} {:02}:{:02}", c.year, c.month, c.day, c.hour, c.minute)
}

/// `now`, `@SECONDS[.FRACTION]`, `YYYY-MM-DD`, or that and `HH:MM[:SS[.FRACTION]]` behind
/// a blank or `T`, in local time unless `Z`, `UTC` or `+HH:MM` follows.
pub fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if text == "now" {
        return Some(Timestamp::now());
    }
    if let Some(seconds) = text.strip_prefix('@') {
        return since_epoch(seconds);
    }
    let (text, offset) = split_zone(text)?;
    let (date, clock) = match text.split_once(['T', ' ']) {
        Some((date, clock)) => (date, clock.trim()),
        None => (text, "00:00"),
    };
    let mut civil = parse_date(date)?;
    let nanos = parse_clock(clock, &mut civil)?;
    let secs = match offset {
        Some(offset) => {
            let c = &civil;
            let of_day = i64::from(c.hour * 3600 + c.minute * 60 + c.second);
            days(c.year, c.month, c.day) * 86_400 + of_day - offset
        }
        None => sys::from_local(&civil)?,
    };
    Some(Timestamp { secs, nanos })
}

/// `-1.5` is half a second before `-1`.
fn since_epoch(text: &str) -> Option<Timestamp> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let nanos = fraction(part)?;
    let secs: i64 = whole.parse().ok()?;
    if whole.starts_with('-') && nanos > 0 {
        return Some(Timestamp { secs: secs.checked_sub(1)?, nanos: 1_000_000_000 - nanos });
    }
    Some(Timestamp { secs, nanos })
}

/// Nanoseconds of the digits behind a point; further digits are cut.
fn fraction(digits: &str) -> Option<u32> {
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    format!("{digits:0<9}").get(..9)?.parse().ok()
}

/// The text before the zone, and the zone's seconds ahead of UTC.
fn split_zone(text: &str) -> Option<(&str, Option<i64>)> {
    for name in ["Z", "UTC"] {
        if let Some(rest) = text.strip_suffix(name) {
            return Some((rest.trim_end(), Some(0)));
        }
    }
    // The date has signs of its own.
    let Some(clock) = text.find(':') else { return Some((text, None)) };
    let Some(sign) = text[clock..].rfind(['+', '-']).map(|at| at + clock) else {
        return Some((text, None));
    };
    let digits: String = text[sign + 1..].chars().filter(|c| *c != ':').collect();
    if digits.len() != 4 {
        return None;
    }
    let number: i64 = digits.parse().ok()?;
    let seconds = number / 100 * 3600 + number % 100 * 60;
    let ahead = if text[sign..].starts_with('-') { -seconds } else { seconds };
    Some((text[..sign].trim_end(), Some(ahead)))
}

fn parse_date(text: &str) -> Option<CivilTime> {
    let mut parts = text.splitn(3, '-').map(|part| part.parse::<u32>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    let valid = (1..=last).contains(&day) && text.len() >= 8;
    valid.then(|| CivilTime { year: i64::from(year), month, day, ..CivilTime::default() })
}

/// Sets the clock; the nanoseconds.
fn parse_clock(text: &str, civil: &mut CivilTime) -> Option<u32> {
    let mut parts = text.splitn(3, ':');
    civil.hour = parts.next()?.parse().ok().filter(|h| *h < 24)?;
    civil.minute = parts.next()?.parse().ok().filter(|m| *m < 60)?;
    let Some(seconds) = parts.next() else { return Some(0) };
    let (whole, part) = seconds.split_once('.').unwrap_or((seconds, ""));
    civil.second = whole.parse().ok().filter(|s| *s <= 60)?;
    fraction(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64, nanos: u32) -> Option<Timestamp> {
        Some(Timestamp { secs, nanos })
    }

    #[test]
    fn calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(-1), "1969-12-31T23:59:59Z");
        for day in (-1_000_000..1_000_000).step_by(997) {
            let (y, m, d) = civil(day);
            assert_eq!(days(y, m, d), day);
        }
    }

    #[test]
    fn what_people_write() {
        assert_eq!(parse("@5"), at(5, 0));
        assert_eq!(parse("@5.25"), at(5, 250_000_000));
        assert_eq!(parse("@-1.5"), at(-2, 500_000_000));
        assert_eq!(parse("2000-02-29T00:00:00Z"), at(951_782_400, 0));
        assert_eq!(parse("2000-02-29 01:00:00.5 +01:00"), at(951_782_400, 500_000_000));
        assert_eq!(parse("2000-02-28 19:00-0500"), at(951_782_400, 0));
        let local = parse("2001-09-09 01:46:40").unwrap();
        assert!(full(local).starts_with("2001-09-09 01:46:40.000000000 "));
        assert_eq!(parse(&full(local)), Some(local));
        assert_eq!(short(local), "2001-09-09 01:46");
        assert!(parse("now").is_some() && parse("2024-01-31").is_some());
    }

    #[test]
    fn what_is_no_time() {
        for text in [
            "",
            "yesterday",
            "2023-02-29",
            "2024-13-01",
            "2024-01-01 25:00",
            "2024-01-01T1",
            "@",
            "@x",
            "@1.x",
            "2024-1",
            "2024-01-01 10:00+1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
