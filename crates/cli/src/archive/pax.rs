//! Records of pax headers: `LENGTH KEY=VALUE\n`, with any bytes in VALUE.

use vfs::Timestamp;

pub const XATTR: &str = "SCHILY.xattr.";

/// As many are in one header at most. GNU tar wrote two for each piece of a sparse file once.
const MOST: usize = 1 << 20;

/// In order: a key may come several times.
pub type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// `None` if the bytes are no records, or more than can be meant.
pub fn parse(mut bytes: &[u8]) -> Option<Records> {
    let mut records = Vec::new();
    while bytes.first().is_some_and(|b| *b != 0) {
        if records.len() == MOST {
            return None;
        }
        let blank = bytes.iter().position(|b| *b == b' ')?;
        let len: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
        let record = bytes.get(blank + 1..len)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|b| *b == b'=')?;
        records.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
        bytes = &bytes[len..];
    }
    Some(records)
}

/// The last of this key counts.
pub fn get<'r>(records: &'r Records, key: &str) -> Option<&'r [u8]> {
    records.iter().rev().find(|(k, _)| k == key.as_bytes()).map(|(_, value)| value.as_slice())
}

pub fn number(records: &Records, key: &str) -> Option<u64> {
    std::str::from_utf8(get(records, key)?).ok()?.parse().ok()
}

/// Seconds with a fraction; before 1970 with a sign.
pub fn time(records: &Records, key: &str) -> Option<Timestamp> {
    let text = std::str::from_utf8(get(records, key)?).ok()?;
    crate::when::parse(&format!("@{text}"))
}

/// The inverse of `time`.
pub fn time_text(time: Timestamp) -> String {
    match (time.secs, time.nanos) {
        (secs, 0) => secs.to_string(),
        (secs, nanos) if secs >= 0 => format!("{secs}.{nanos:09}"),
        // Half a second before -1 is -1.5, and is kept as -2 and a half.
        (secs, nanos) => {
            let whole = (secs + 1).unsigned_abs();
            format!("-{whole}.{:09}", 1_000_000_000 - nanos)
        }
    }
}

/// The record's key for an extended attribute, as GNU tar writes it.
pub fn xattr_key(name: &str) -> String {
    format!("{XATTR}{}", name.replace('%', "%25").replace('=', "%3D"))
}

pub fn xattr_name(key: &[u8]) -> Option<Vec<u8>> {
    let name = key.strip_prefix(XATTR.as_bytes())?;
    let text = String::from_utf8(name.to_vec()).ok()?;
    Some(text.replace("%3D", "=").replace("%25", "%").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_any_bytes() {
        let bytes = b"15 a=line\nfeed\n5 b=\n\0\0";
        let records = parse(bytes).unwrap();
        assert_eq!(get(&records, "a"), Some(&b"line\nfeed"[..]));
        assert_eq!(get(&records, "b"), Some(&b""[..]));
        for wrong in [&b"5 a=b\n"[..], b"x", b"99 a=b\n", b"6 a b\n", b"3 \n", b"0 a=b\n"] {
            assert!(parse(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn there_are_not_millions_of_them() {
        assert_eq!(parse(&b"4 =\n".repeat(MOST)).unwrap().len(), MOST);
        assert!(parse(&b"4 =\n".repeat(MOST + 1)).is_none());
    }

    #[test]
    fn times_there_and_back() {
        for (secs, nanos) in [(0, 0), (5, 1), (-1, 0), (-1, 500_000_000), (-7, 999_999_999)] {
            let at = Timestamp { secs, nanos };
            let records = vec![(b"mtime".to_vec(), time_text(at).into_bytes())];
            assert_eq!(time(&records, "mtime"), Some(at), "{}", time_text(at));
        }
        assert_eq!(xattr_name(xattr_key("user.a=%b").as_bytes()), Some(b"user.a=%b".to_vec()));
    }
}
