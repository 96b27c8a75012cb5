//! Seconds since 1970 and the calendar of the local time zone.

/// A point in the calendar; months count from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CivilTime {
    pub year: i64,
    pub month: u32,
    pub day: u32,
    pub hour: u32,
    pub minute: u32,
    pub second: u32,
    /// Seconds that the local time is ahead of UTC.
    pub offset: i64,
}

/// The time that the kernel gives to what it changes itself: seconds since 1970 and nanoseconds, of its last tick.
pub fn of_kernel() -> (i64, u32) {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes `now`.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &mut now) };
    (now.tv_sec, now.tv_nsec as u32)
}

/// `None` for years that a C `int` cannot hold.
pub fn to_local(secs: i64) -> Option<CivilTime> {
    // SAFETY: plain data; all zeros is a valid value.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: reads one integer, writes `tm`.
    let done = unsafe { libc::localtime_r(&secs, &mut tm) };
    if done.is_null() {
        return None;
    }
    Some(CivilTime {
        year: i64::from(tm.tm_year) + 1900,
        month: tm.tm_mon as u32 + 1,
        day: tm.tm_mday as u32,
        hour: tm.tm_hour as u32,
        minute: tm.tm_min as u32,
        second: tm.tm_sec as u32,
        offset: tm.tm_gmtoff,
    })
}

/// Seconds since 1970 of a local time; `offset` is found out, not read.
pub fn from_local(time: &CivilTime) -> Option<i64> {
    // SAFETY: plain data; all zeros is a valid value.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    tm.tm_year = i32::try_from(time.year - 1900).ok()?;
    tm.tm_mon = time.month as i32 - 1;
    tm.tm_mday = time.day as i32;
    tm.tm_hour = time.hour as i32;
    tm.tm_min = time.minute as i32;
    tm.tm_sec = time.second as i32;
    tm.tm_isdst = -1;
    tm.tm_wday = -1;
    // SAFETY: reads and normalises `tm`.
    let secs = unsafe { libc::mktime(&mut tm) };
    // -1 is also a time; only a failure leaves the day of the week alone.
    (secs != -1 || tm.tm_wday != -1).then_some(secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for secs in [0, -1, 1_700_000_000, -5_000_000_000, 32_503_680_000] {
            assert_eq!(from_local(&to_local(secs).unwrap()), Some(secs));
        }
        assert_eq!(to_local(i64::MAX), None);
    }
}
