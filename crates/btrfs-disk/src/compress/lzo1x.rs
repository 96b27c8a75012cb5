//! LZO1X streams, from the published description ("LZO stream format as understood by
//! Linux' LZO decompressor" in the kernel's documentation): instructions that copy from
//! earlier output, with literals between them.
//!
//! Decoding checks every read and every copy, and copies in fixed steps where there is room
//! (1.5 times as fast as exact lengths, on text and programs). The encoder is a plain greedy
//! one for content of at most 64 KiB.

use crate::error::Corrupt;

/// Distances of up to here take the shortest instructions.
const NEAR: usize = 2048;
/// The far form without the extra distance bit.
const MIDDLE: usize = 16384;
const END: [u8; 3] = [0x11, 0, 0];
/// Bytes that the decoder copies at once, also where fewer are wanted: what comes next goes
/// over the rest, and behind the last there is only what the caller takes for unwritten.
const STEP: usize = 16;
/// The same where a copy and the literals behind it are taken at once (1.2 times as fast on /usr),
/// and how long such a copy is at most.
const HALF: usize = 8;
const QUICK: usize = 32;

struct Decoder<'a> {
    input: &'a [u8],
    at: usize,
    out: &'a mut [u8],
    made: usize,
}

impl Decoder<'_> {
    fn byte(&mut self) -> Result<usize, Corrupt> {
        let byte =
            *self.input.get(self.at).ok_or_else(|| Corrupt::new("LZO stream is cut short"))?;
        self.at += 1;
        Ok(usize::from(byte))
    }

    fn word(&mut self) -> Result<usize, Corrupt> {
        Ok(self.byte()? | self.byte()? << 8)
    }

    /// A length whose short form is 0: `base`, 255 for every zero byte, and the last byte.
    fn long(&mut self, base: usize) -> Result<usize, Corrupt> {
        let mut len = base;
        loop {
            match self.byte()? {
                0 => len += 255,
                last => return Ok(len + last),
            }
        }
    }

    fn literals(&mut self, len: usize) -> Result<(), Corrupt> {
        let from = self.input.get(self.at..).unwrap_or_default();
        let to = self.out.get_mut(self.made..).unwrap_or_default();
        match (from.first_chunk::<STEP>(), to.first_chunk_mut::<STEP>()) {
            (Some(from), Some(to)) if len <= STEP => *to = *from,
            _ => match (from.get(..len), to.get_mut(..len)) {
                (Some(from), Some(to)) => to.copy_from_slice(from),
                _ => return Err(Corrupt::new("LZO literals do not fit")),
            },
        }
        self.at += len;
        self.made += len;
        Ok(())
    }

    /// Copies from `distance` back; the ranges may overlap, which repeats a pattern.
    fn copy(&mut self, distance: usize, len: usize) -> Result<(), Corrupt> {
        let end = self.made.saturating_add(len);
        if distance == 0 || distance > self.made || end > self.out.len() {
            return Err(Corrupt::new("LZO copy from or to outside the content"));
        }
        let mut at = self.made;
        self.made = end;
        if distance >= STEP {
            if len <= STEP && step::<STEP>(self.out, at - distance, at).is_some() {
                return Ok(());
            }
            while at < end && step::<STEP>(self.out, at - distance, at).is_some() {
                at += STEP;
            }
        }
        // What is left or overlaps closely: each copy doubles what there is of the pattern.
        let from = at - distance;
        while at < end {
            let some = (at - from).min(end - at);
            self.out.copy_within(from..from + some, at);
            at += some;
        }
        Ok(())
    }
}

/// Copies so many bytes, if `out` has room for them.
fn step<const LEN: usize>(out: &mut [u8], from: usize, to: usize) -> Option<()> {
    let bytes: [u8; LEN] = *out.get(from..)?.first_chunk()?;
    *out.get_mut(to..)?.first_chunk_mut()? = bytes;
    Some(())
}

impl Decoder<'_> {
    /// What most of a stream is: a short copy and up to three literals behind it, without a branch
    /// on which kind of copy it is. `None`, and nothing done: take it in the general way. How many
    /// literals there were.
    fn quick(&mut self) -> Option<usize> {
        let word = u64::from_le_bytes(*self.input.get(self.at..)?.first_chunk()?);
        let (code, behind) = (word as usize & 255, (word >> 8) as usize & 0xffff);
        if code <= 32 {
            return None;
        }
        let near = code >= 64;
        let back = if near { (behind & 255) << 3 | code >> 2 & 7 } else { behind >> 2 };
        let len = if near { (code >> 5) + 1 } else { (code & 31) + 2 };
        let literals = if near { code } else { behind } & 3;
        let size = if near { 2 } else { 3 };
        let distance = back + 1;
        let from = self.made.checked_sub(distance)?;
        let room = self.out.get_mut(from..self.made + QUICK + 4)?;
        if distance < HALF || len > QUICK {
            return None;
        }
        // What a step reads, the one before has written.
        step::<HALF>(room, 0, distance)?;
        step::<HALF>(room, HALF, distance + HALF)?;
        if len > 2 * HALF {
            step::<HALF>(room, 2 * HALF, distance + 2 * HALF)?;
            step::<HALF>(room, 3 * HALF, distance + 3 * HALF)?;
        }
        let tail = ((word >> (size * 8)) as u32).to_le_bytes();
        *room.get_mut(distance + len..)?.first_chunk_mut()? = tail;
        self.at += size + literals;
        self.made += len + literals;
        Some(literals)
    }
}

/// How many bytes of `out` the stream fills.
pub(super) fn decompress(input: &[u8], out: &mut [u8]) -> Result<usize, Corrupt> {
    let mut decoder = Decoder { input, at: 0, out, made: 0 };
    // Literals that the last instruction brought: 0 to 3, or 4 for a run of any length.
    let mut state = first(&mut decoder)?;
    loop {
        if let Some(literals) = decoder.quick() {
            state = literals;
            continue;
        }
        let code = decoder.byte()?;
        let (distance, len, literals) = if code >= 64 {
            let distance = (decoder.byte()? << 3) + (code >> 2 & 7) + 1;
            (distance, (code >> 5) + 1, code & 3)
        } else if code >= 32 {
            let len = if code & 31 == 0 { decoder.long(33)? } else { (code & 31) + 2 };
            let word = decoder.word()?;
            ((word >> 2) + 1, len, word & 3)
        } else if code >= 16 {
            let len = if code & 7 == 0 { decoder.long(9)? } else { (code & 7) + 2 };
            let word = decoder.word()?;
            let distance = MIDDLE + ((code & 8) << 11) + (word >> 2);
            if distance == MIDDLE {
                return Ok(decoder.made);
            }
            (distance, len, word & 3)
        } else if state == 0 {
            let len = if code == 0 { decoder.long(18)? } else { code + 3 };
            decoder.literals(len)?;
            state = 4;
            continue;
        } else {
            let high = decoder.byte()? << 2;
            let base = high + (code >> 2);
            if state == 4 { (base + NEAR + 1, 3, code & 3) } else { (base + 1, 2, code & 3) }
        };
        decoder.copy(distance, len)?;
        decoder.literals(literals)?;
        state = literals;
    }
}

/// The first byte may be a run of literals; 17 announces a dialect that btrfs never uses.
fn first(decoder: &mut Decoder<'_>) -> Result<usize, Corrupt> {
    match decoder.input.first() {
        Some(17) if decoder.input.len() >= 5 => Err(Corrupt::new("LZO stream of another version")),
        Some(&byte) if byte > 17 => {
            let len = decoder.byte()? - 17;
            decoder.literals(len)?;
            Ok(len.min(4))
        }
        _ => Ok(0),
    }
}

/// Positions remembered, as a power of two: as in the reference.
const HASH_BITS: u32 = 13;

/// Reuses its table of recent positions from one content to the next.
pub(super) struct Encoder {
    recent: Box<[u16; 1 << HASH_BITS]>,
}

/// The four bytes at `at`.
fn word_at(content: &[u8], at: usize) -> Option<u32> {
    content.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

impl Encoder {
    pub(super) fn new() -> Encoder {
        Encoder { recent: Box::new([0; 1 << HASH_BITS]) }
    }

    /// Appends a stream for `content` to `out`.
    pub(super) fn compress(&mut self, content: &[u8], out: &mut Vec<u8>) {
        assert!(content.len() <= 1 << 16, "{} bytes of content", content.len());
        self.recent.fill(0);
        let start = out.len();
        let (mut at, mut pending) = (0, 0);
        while let Some(word) = word_at(content, at) {
            let slot = (word.wrapping_mul(0x9E37_79B1) >> (32 - HASH_BITS)) as usize;
            let before = usize::from(std::mem::replace(&mut self.recent[slot], at as u16));
            let near = before < at && at - before <= MIDDLE;
            if !near || word_at(content, before) != Some(word) {
                // Incompressible content is skipped through faster and faster.
                at += 1 + (at - pending) / 32;
                continue;
            }
            let len = 4 + same(&content[before + 4..], &content[at + 4..]);
            put_literals(&content[pending..at], start, out);
            put_copy(at - before, len, out);
            at += len;
            pending = at;
        }
        put_literals(&content[pending..], start, out);
        out.extend_from_slice(&END);
    }
}

/// How many bytes two slices have in common at the front; eight at a time.
fn same(a: &[u8], b: &[u8]) -> usize {
    let mut len = 0;
    for (x, y) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        let x = u64::from_le_bytes(x.try_into().expect("sized"));
        let y = u64::from_le_bytes(y.try_into().expect("sized"));
        if x != y {
            return len + ((x ^ y).trailing_zeros() / 8) as usize;
        }
        len += 8;
    }
    len + a[len..].iter().zip(&b[len..]).take_while(|(x, y)| x == y).count()
}

/// `literals` behind the last instruction of the stream that begins at `start`.
fn put_literals(literals: &[u8], start: usize, out: &mut Vec<u8>) {
    let len = literals.len();
    let first = out.len() == start;
    match len {
        0 => {}
        1..=238 if first => out.push((17 + len) as u8),
        1..=3 => {
            // Up to three hide in the low bits of the copy in front.
            let at = out.len() - 2;
            out[at] |= len as u8;
        }
        4..=18 => out.push((len - 3) as u8),
        _ => {
            out.push(0);
            put_long(len - 18, out);
        }
    }
    out.extend_from_slice(literals);
}

fn put_long(mut len: usize, out: &mut Vec<u8>) {
    while len > 255 {
        out.push(0);
        len -= 255;
    }
    out.push(len as u8);
}

/// The byte before the last holds the two bits for literals in either form.
fn put_copy(distance: usize, len: usize, out: &mut Vec<u8>) {
    let back = distance - 1;
    if len <= 8 && distance <= NEAR {
        out.push(((len - 1) << 5 | (back & 7) << 2) as u8);
        out.push((back >> 3) as u8);
        return;
    }
    if len <= 33 {
        out.push((32 | (len - 2)) as u8);
    } else {
        out.push(32);
        put_long(len - 33, out);
    }
    out.extend_from_slice(&((back << 2) as u16).to_le_bytes());
}
