//! Sizes in the units that btrfs-progs has options for, in its format.

use crate::args::Arg;

/// Lines of a command's help, for [`Units::take_long`]: all but the first, `--raw`.
macro_rules! long_units {
    () => {
        "        --human-readable   units that fit, of 1024 (this is what it does anyway)
        --iec              units of 1024
        --si               units of 1000
        --kbytes           in KiB, or kB with --si
        --mbytes           in MiB, or MB with --si
        --gbytes           in GiB, or GB with --si
        --tbytes           in TiB, or TB with --si
"
    };
}

/// The same for [`Units::take`].
macro_rules! short_units {
    () => {
        "    -b, --raw              bytes
    -h, --human-readable   units that fit, of 1024 (this is what it does anyway)
    -H                     units that fit, of 1000
        --iec              units of 1024
        --si               units of 1000
    -k, --kbytes           in KiB, or kB with --si
    -m, --mbytes           in MiB, or MB with --si
    -g, --gbytes           in GiB, or GB with --si
    -t, --tbytes           in TiB, or TB with --si
"
    };
}

pub(crate) use {long_units, short_units};

/// The long options.
const OPTIONS: [&str; 8] =
    ["raw", "human-readable", "iec", "si", "kbytes", "mbytes", "gbytes", "tbytes"];

/// How sizes are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Units {
    raw: bool,
    decimal: bool,
    /// The power of the base; `None`: as fits.
    power: Option<u8>,
}

impl Units {
    pub const HUMAN: Units = Units { raw: false, decimal: false, power: None };
    pub const RAW: Units = Units { raw: true, decimal: false, power: None };

    /// Takes one of the long options; false if it is none.
    pub fn take_long(&mut self, arg: &Arg<'_>) -> bool {
        let Arg::Long(name) = arg else { return false };
        let power = OPTIONS.iter().position(|option| option == name);
        match power {
            Some(0) => *self = Units::RAW,
            Some(1) => *self = Units::HUMAN,
            Some(2) => (self.raw, self.decimal) = (false, false),
            Some(3) => (self.raw, self.decimal) = (false, true),
            Some(at) => self.fix(at as u8 - 3),
            None => return false,
        }
        true
    }

    /// Takes `-b` or one of the long options; false if it is none.
    pub fn take_raw_or_long(&mut self, arg: &Arg<'_>) -> bool {
        match arg {
            Arg::Short('b') => *self = Units::RAW,
            other => return self.take_long(other),
        }
        true
    }

    /// Takes a short or a long option; false if it is none.
    pub fn take(&mut self, arg: &Arg<'_>) -> bool {
        match arg {
            Arg::Short('h') => *self = Units::HUMAN,
            Arg::Short('H') => *self = Units { decimal: true, ..Units::HUMAN },
            Arg::Short('k') => self.fix(1),
            Arg::Short('m') => self.fix(2),
            Arg::Short('g') => self.fix(3),
            Arg::Short('t') => self.fix(4),
            other => return self.take_raw_or_long(other),
        }
        true
    }

    fn fix(&mut self, power: u8) {
        (self.raw, self.power) = (false, Some(power));
    }

    /// Columns need more room.
    pub fn is_wide(self) -> bool {
        self != Units::HUMAN
    }

    /// As in `1.50MiB`; of a raw size the bytes alone.
    pub fn show(self, bytes: u64) -> String {
        const BINARY: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        const DECIMAL: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
        if self.raw {
            return bytes.to_string();
        }
        let (base, names) = if self.decimal { (1000u64, DECIMAL) } else { (1024, BINARY) };
        let (value, power) = match self.power {
            Some(power) => (bytes as f32 / base.pow(power.into()) as f32, usize::from(power)),
            None => fitting(bytes, base),
        };
        format!("{value:.2}{}", names[power])
    }
}

/// The value below the base, and its power. What is below the last unit but one is cut off, as
/// btrfs-progs does it.
fn fitting(bytes: u64, base: u64) -> (f32, usize) {
    let (mut whole, mut last, mut power) = (bytes, bytes, 0);
    while whole >= base {
        (last, whole, power) = (whole, whole / base, power + 1);
    }
    (if power == 0 { whole as f32 } else { last as f32 / base as f32 }, power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_btrfs_writes_them() {
        let shown = |units: Units, bytes| units.show(bytes);
        assert_eq!(shown(Units::HUMAN, 0), "0.00B");
        assert_eq!(shown(Units::HUMAN, 122_880), "120.00KiB");
        assert_eq!(shown(Units::HUMAN, 1536 << 20), "1.50GiB");
        assert_eq!(shown(Units { decimal: true, ..Units::HUMAN }, 122_880), "122.88kB");
        assert_eq!(shown(Units { power: Some(1), ..Units::HUMAN }, 8 << 20), "8192.00KiB");
        assert_eq!(shown(Units::RAW, 122_880), "122880");
        let decimal = Units { decimal: true, ..Units::HUMAN };
        assert_eq!(shown(Units::HUMAN, 16384), "16.00KiB");
        assert_eq!(shown(Units::HUMAN, 3_035_136), "2.89MiB");
        assert_eq!(shown(Units::RAW, 3_035_136), "3035136");
        assert_eq!(shown(decimal, 16384), "16.38kB");
        assert_eq!(shown(Units { power: Some(1), ..decimal }, 3_018_752), "3018.75kB");
        assert_eq!(shown(Units { power: Some(2), ..Units::HUMAN }, 16384), "0.02MiB");
    }
}
