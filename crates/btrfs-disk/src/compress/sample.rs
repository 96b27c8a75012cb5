//! A quick look at content: whether compressing it is worth the try.
//!
//! The measures are those that the kernel's documentation names, on a sample of every sixteenth
//! byte: does it repeat, how many byte values are there, how many of them make most of it, and
//! its entropy. So about the same content is compressed as by the kernel.

/// Bytes of one stretch of the sample, and how far apart their beginnings are.
const STRETCH: usize = 16;
const INTERVAL: usize = 256;
/// Content of so few byte values is text.
const FEW_VALUES: usize = 64;
/// So many values that make nine tenths of it leave nothing to gain.
const MANY_VALUES: usize = 200;
/// Bits of entropy for each byte, in hundredths of eight, up to which it is worth the try.
const ENTROPY: f64 = 80.0;

/// False: it will hardly get smaller.
pub fn looks_compressible(content: &[u8]) -> bool {
    let sample = sample_of(content);
    let (first, second) = sample.split_at(sample.len() / 2);
    if first == &second[..first.len()] {
        return true;
    }
    let mut counts = [0u32; 256];
    sample.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let values = counts.iter().take_while(|count| **count > 0).count();
    if values < FEW_VALUES {
        return true;
    }
    match most_of(&counts, sample.len()) {
        few if few <= FEW_VALUES => true,
        many if many >= MANY_VALUES => false,
        _ => entropy(&counts[..values], sample.len()) <= ENTROPY,
    }
}

fn sample_of(content: &[u8]) -> Vec<u8> {
    content.chunks(INTERVAL).flat_map(|part| &part[..part.len().min(STRETCH)]).copied().collect()
}

/// How many of the most frequent values make nine tenths of all.
fn most_of(counts: &[u32; 256], len: usize) -> usize {
    let (mut sum, enough) = (0, len * 9 / 10);
    let reached = counts.iter().position(|count| {
        sum += *count as usize;
        sum > enough
    });
    reached.map_or(counts.len(), |at| at + 1)
}

fn entropy(counts: &[u32], len: usize) -> f64 {
    let part = |count: &u32| {
        let p = f64::from(*count) / len as f64;
        -p * p.log2()
    };
    counts.iter().map(part).sum::<f64>() * 100.0 / 8.0
}
