//! An LZO1X decoder that copies byte by byte, for comparison with the one that takes steps.

use super::super::lzo1x;
use super::{Random, patchwork, text};

/// The length in the low `bits` of the code, or in the bytes behind it.
fn long(
    input: &mut impl Iterator<Item = usize>,
    code: usize,
    bits: u32,
    base: usize,
) -> Option<usize> {
    let mut len = match code & ((1 << bits) - 1) {
        0 => base,
        some => return Some(some),
    };
    loop {
        match input.next()? {
            0 => len += 255,
            last => return Some(len + last),
        }
    }
}

/// What the stream says, if it is whole and fills no more than `room`.
fn slow(input: &[u8], room: usize) -> Option<Vec<u8>> {
    let mut input = input.iter().map(|&byte| usize::from(byte));
    let mut out = Vec::new();
    let mut state = 0;
    let mut begun = false;
    loop {
        let code = input.next()?;
        let first = !std::mem::replace(&mut begun, true);
        let (len, back) = match code {
            // Another version of the format, if there is enough of it.
            17 if first && input.len() >= 4 => return None,
            18.. if first => (0, None),
            0..16 if state == 0 => (long(&mut input, code, 4, 15)? + 3, None),
            0..16 if state == 4 => (3, Some(2049 + (code >> 2) + (input.next()? << 2))),
            0..16 => (2, Some(1 + (code >> 2) + (input.next()? << 2))),
            16..32 => (long(&mut input, code, 3, 7)? + 2, Some(16384 + ((code & 8) << 11))),
            32..64 => (long(&mut input, code, 5, 31)? + 2, Some(1)),
            _ => ((code >> 5) + 1, Some(1 + (code >> 2 & 7) + (input.next()? << 3))),
        };
        let mut literals = code & 3;
        match back {
            None => {
                literals = if first && code > 17 { code - 17 } else { len };
                state = literals.min(4);
            }
            Some(mut distance) => {
                if (16..64).contains(&code) {
                    let word = input.next()? | input.next()? << 8;
                    distance += word >> 2;
                    literals = word & 3;
                    if code < 32 && distance == 16384 {
                        return Some(out);
                    }
                }
                for _ in 0..len {
                    let from = out.len().checked_sub(distance)?;
                    out.push(out[from]);
                }
                state = literals;
            }
        }
        for _ in 0..literals {
            out.push(input.next()? as u8);
        }
        if out.len() > room {
            return None;
        }
    }
}

/// Whether the stream was whole.
fn same(stream: &[u8], room: usize) -> bool {
    let mut out = vec![0xee; room];
    let made = lzo1x::decompress(stream, &mut out).ok();
    let got = made.map(|made| &out[..made]);
    let told = slow(stream, room);
    assert!(got == told.as_deref(), "room of {room} for {stream:?}: {got:?}, not {told:?}");
    told.is_some()
}

fn stream(content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    lzo1x::Encoder::new().compress(content, &mut out);
    out
}

/// Every instruction in any order, most copies from behind the beginning.
fn instructions(random: &mut Random, count: usize) -> Vec<u8> {
    let mut out = vec![17 + 30];
    out.extend((0..30).map(|_| random.next() as u8));
    for _ in 0..count {
        let noise = random.next();
        let near = (noise >> 8 & 31) as u8;
        match noise & 3 {
            0 => out.extend([64 | noise as u8, near >> 3]),
            1 => out.extend([32 | near, near << 2 | 3, 0]),
            2 => out.extend([32, near + 1, near << 4, near >> 4]),
            _ => out.extend([noise as u8 >> 4, (noise >> 32) as u8]),
        }
        out.extend((0..noise >> 40 & 3).map(|_| random.next() as u8));
    }
    out.extend([0x11, 0, 0]);
    out
}

#[test]
fn steps_make_what_bytes_make() {
    let mut random = Random(29);
    let mut whole = [0; 2];
    for round in 0..6000 {
        let len = 1 + random.next() as usize % 5000;
        let content = if round % 5 == 0 { text(len) } else { patchwork(round + 1, len) };
        let mut stream = stream(&content);
        for room in [len, len + 1, len + 15, len + 16, 5000.max(len)] {
            assert!(same(&stream, room));
        }
        assert!(!same(&stream, len - 1));
        for _ in 0..3 {
            let at = random.next() as usize % stream.len();
            stream[at] ^= 1 << (random.next() % 8);
            whole[usize::from(same(&stream, 4096.max(len)))] += 1;
        }
        stream.truncate(random.next() as usize % stream.len());
        same(&stream, len);
    }
    assert!(whole[0] > 100 && whole[1] > 100, "damaged streams: {whole:?}");
}

#[test]
fn steps_refuse_what_bytes_refuse() {
    let mut random = Random(31);
    let mut whole = [0; 2];
    for _ in 0..200_000 {
        let count = random.next() as usize % 12;
        let stream = instructions(&mut random, count);
        whole[usize::from(same(&stream, random.next() as usize % 900))] += 1;
    }
    assert!(whole[0] > 10_000 && whole[1] > 10_000, "{whole:?}");
}
