//! Round trips, short outputs, and damaged input of every kind.

use super::*;

mod slow_lzo;

const SECTOR: usize = 4096;
const ALL: [Compression; 3] = [Compression::Zlib, Compression::Lzo, Compression::Zstd];

/// xorshift: the same bytes on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn text(len: usize) -> Vec<u8> {
    (0u64..).flat_map(|i| format!("{} line {}\n", i, i * i).into_bytes()).take(len).collect()
}

/// Stretches of noise, runs and repeats, so that every instruction form appears.
fn patchwork(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let mut out: Vec<u8> = Vec::new();
    while out.len() < len {
        let n = match random.next() % 4 {
            0 => random.next() % 5,
            1 => random.next() % 40,
            _ => random.next() % 600,
        } as usize;
        match random.next() % 3 {
            0 => out.extend((0..n).map(|_| random.next() as u8)),
            1 => out.extend(std::iter::repeat_n(random.next() as u8, n)),
            _ if out.is_empty() => {}
            _ => {
                let from = random.next() as usize % out.len();
                let end = (from + n).min(out.len());
                out.extend_from_within(from..end);
            }
        }
    }
    out.truncate(len);
    out
}

fn packed(compression: Compression, content: &[u8]) -> Vec<u8> {
    compress(compression, 3, SECTOR, content, usize::MAX >> 1 & 0xfffff)
        .expect("any length is fine")
}

#[test]
fn contents_come_back() {
    for compression in ALL {
        let mut contents = vec![vec![7], vec![1, 2, 3], text(100), text(4095), text(4096)];
        contents.extend([text(4097), text(100_000), vec![0; MAX_UNCOMPRESSED]]);
        contents.extend((1..60).map(|seed| patchwork(seed, 1 + seed as usize * 2221)));
        for content in contents {
            let stream = packed(compression, &content);
            let mut out = vec![0xff; content.len()];
            decompress(compression, SECTOR, &stream, &mut out).expect("our own stream");
            assert!(out == content, "{compression:?} of {} bytes", content.len());
        }
    }
}

#[test]
fn a_short_output_is_the_beginning_and_a_long_one_ends_in_zeros() {
    for compression in ALL {
        let content = text(50_000);
        let mut stream = packed(compression, &content);
        stream.resize(stream.len().next_multiple_of(SECTOR), 0);
        for len in [0, 1, 100, 4095, 4096, 10_000, 49_999] {
            let mut out = vec![0xff; len];
            decompress(compression, SECTOR, &stream, &mut out).expect("our own stream");
            assert!(out == content[..len], "{compression:?}: {len} bytes");
        }
        let mut out = vec![0xff; 53_248];
        decompress(compression, SECTOR, &stream, &mut out).expect("our own stream");
        assert!(out[..50_000] == content && out[50_000..].iter().all(|b| *b == 0));
    }
}

#[test]
fn what_does_not_get_smaller_is_left_alone() {
    let mut random = Random(3);
    let noise: Vec<u8> = (0..65536).map(|_| random.next() as u8).collect();
    for compression in ALL {
        assert_eq!(compress(compression, 3, SECTOR, &noise, noise.len() - SECTOR), None);
        assert_eq!(compress(compression, 3, SECTOR, &[], 100), None);
        assert_eq!(compress(compression, 3, SECTOR, &vec![0; MAX_UNCOMPRESSED + 1], 9999), None);
        let small = compress(compression, 99, SECTOR, &text(65536), 50_000).expect("compressible");
        assert!(small.len() <= 50_000);
    }
}

#[test]
fn every_level_makes_a_stream() {
    for compression in ALL {
        let (low, default, high) = levels(compression);
        assert!((low..=high).contains(&default));
        for level in low..=high {
            let content = patchwork(9, 70_000);
            let stream = compress(compression, level, SECTOR, &content, 70_000).expect("fits");
            let mut out = vec![0; content.len()];
            decompress(compression, SECTOR, &stream, &mut out).expect("our own stream");
            assert!(out == content, "{compression:?} at level {level}");
        }
        let bytes = |level| {
            let limit = 2 * MAX_UNCOMPRESSED;
            compress(compression, level, SECTOR, &text(MAX_UNCOMPRESSED), limit)
                .expect("fits")
                .len()
        };
        let is_told = bytes(high) < bytes(low);
        assert_eq!(is_told, low < high, "{compression:?}: levels are what they say");
    }
}

#[test]
fn cut_streams_are_errors() {
    for compression in ALL {
        let content = text(20_000);
        let stream = packed(compression, &content);
        let mut out = vec![0; content.len()];
        for len in [0, 1, 3, 4, 7, stream.len() / 2, stream.len() - 60] {
            let verdict = decompress(compression, SECTOR, &stream[..len], &mut out);
            assert!(verdict.is_err(), "{compression:?} cut to {len}");
        }
    }
}

/// Most damage is an error, some decodes to other content; none of it panics or writes
/// outside the output (which safe slices would turn into a panic).
#[test]
fn damaged_streams_never_panic() {
    for compression in ALL {
        let content = patchwork(5, 12_000);
        let stream = packed(compression, &content);
        let mut random = Random(11);
        let mut errors = 0;
        for _ in 0..4000 {
            let mut bad = stream.clone();
            for _ in 0..1 + random.next() % 4 {
                let at = random.next() as usize % bad.len();
                bad[at] = random.next() as u8;
            }
            let mut out = vec![0; 12_288];
            errors += usize::from(decompress(compression, SECTOR, &bad, &mut out).is_err());
        }
        assert!(errors > 100, "{compression:?}: only {errors} of 4000 were noticed");
    }
}

#[test]
fn noise_never_panics() {
    let mut random = Random(17);
    for _ in 0..20_000 {
        let len = random.next() as usize % 300;
        let mut noise: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        if len > 8 {
            noise[..4].copy_from_slice(&(len as u32).to_le_bytes());
            noise[4..8].copy_from_slice(&(len as u32 - 8).to_le_bytes());
        }
        let mut out = vec![0; random.next() as usize % 9000];
        for compression in ALL {
            let _ = decompress(compression, SECTOR, &noise, &mut out);
        }
    }
}

#[test]
fn lengths_of_lzo_segments_do_not_cross_sectors() {
    let mut crossings = 0;
    for seed in 1..700 {
        let content = patchwork(seed, 100_000);
        let stream = packed(Compression::Lzo, &content);
        let word = |at: usize| u32::from_le_bytes(stream[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!(word(0), stream.len());
        let mut at = 4;
        while at < stream.len() {
            if SECTOR - at % SECTOR < 4 {
                crossings += 1;
                at = at.next_multiple_of(SECTOR);
            }
            at += 4 + word(at);
        }
        assert_eq!(at, stream.len());
    }
    assert!(crossings > 3, "the padding rule was hardly tested: {crossings}");
}

#[test]
fn a_zstd_frame_with_a_huge_window_is_refused() {
    // Magic, a descriptor without content size, a window of 2^41 bytes.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 31 << 3, 0, 0, 0];
    assert!(decompress(Compression::Zstd, SECTOR, &frame, &mut [0; 100]).is_err());
}

/// What encoder and decoder did before does not show in what they do next: content of the extent
/// before, all of it, a part, or one that was damaged or did not get smaller.
#[test]
fn nothing_is_remembered_of_the_extent_before() {
    let contents: Vec<Vec<u8>> =
        (1..40).map(|seed| patchwork(seed, 3000 * seed as usize)).collect();
    for compression in ALL {
        let streams: Vec<Vec<u8>> = contents.iter().map(|c| packed(compression, c)).collect();
        let mut random = Random(23);
        for round in 0..300 {
            let before = random.next() as usize % streams.len();
            let next = random.next() as usize % streams.len();
            let mut first = streams[before].clone();
            if round % 2 == 0 {
                let at = random.next() as usize % first.len();
                first[at] ^= 1 << (random.next() % 8);
            }
            let mut out = vec![0; random.next() as usize % MAX_UNCOMPRESSED];
            let _ = decompress(compression, SECTOR, &first, &mut out);
            let limit = random.next() as usize % first.len();
            let _ = compress(compression, 3, SECTOR, &contents[before], limit);

            let again = packed(compression, &contents[next]);
            assert!(again == streams[next], "{compression:?}: {next} made after {before}");
            let len = random.next() as usize % (contents[next].len() + 1);
            let mut out = vec![0xff; len];
            decompress(compression, SECTOR, &again, &mut out).expect("our own stream");
            assert!(out == contents[next][..len], "{compression:?}: {next} after {before}");
        }
    }
}

/// Streams of other makers: any window, blocks that are stored, fixed and dynamic, flushes.
#[test]
fn zlib_streams_of_any_window_and_level_in_any_order() {
    let mut streams = Vec::new();
    for (seed, window) in (9..=15u8).cycle().take(70).enumerate() {
        let content = patchwork(seed as u64 + 1, 1 + seed * 1700);
        let level = flate2::Compression::new(seed as u32 % 10);
        let mut encoder = flate2::Compress::new_with_window_bits(level, true, window);
        let mut stream = Vec::with_capacity(2 * content.len() + 1000);
        let half = content.len() / 2;
        encoder.compress_vec(&content[..half], &mut stream, flate2::FlushCompress::Full).unwrap();
        encoder.compress_vec(&content[half..], &mut stream, flate2::FlushCompress::Finish).unwrap();
        streams.push((window, content, stream));
    }
    let mut random = Random(5);
    for _ in 0..2000 {
        let (window, content, stream) = &streams[random.next() as usize % streams.len()];
        let len = random.next() as usize % (content.len() + 1);
        let mut out = vec![0xff; len];
        let told = decompress(Compression::Zlib, SECTOR, stream, &mut out);
        assert!(told.is_ok() && out == content[..len], "window {window}: {told:?}");
    }
}

#[test]
fn a_sample_tells_noise_from_text() {
    let mut random = Random(3);
    let noise: Vec<u8> = (0..MAX_UNCOMPRESSED).map(|_| random.next() as u8).collect();
    assert!(!looks_compressible(&noise));
    for content in [text(MAX_UNCOMPRESSED), text(5000), vec![7; 4096], vec![1], Vec::new()] {
        assert!(looks_compressible(&content), "{} bytes", content.len());
    }
    // Noise that comes twice.
    assert!(looks_compressible(&[&noise[..4096], &noise[..4096]].concat()));
    let packed = packed(Compression::Zstd, &text(MAX_UNCOMPRESSED * 8 / 9));
    assert!(!looks_compressible(&packed), "what is compressed already");
}
