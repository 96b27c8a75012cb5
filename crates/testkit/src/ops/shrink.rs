//! From a long failing sequence to a short one.

use super::op::Op;

/// Drops operations, large pieces first and then one by one, as long as `fails` still
/// says yes. `fails` starts from a fresh file system each time.
pub fn minimise(ops: &[Op], mut fails: impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut kept = ops.to_vec();
    let mut piece = kept.len().div_ceil(2).max(1);
    loop {
        let before = kept.len();
        let mut end = kept.len();
        // From the back: what comes late depends on what comes early.
        while end > 0 {
            let start = end.saturating_sub(piece);
            let shorter = [&kept[..start], &kept[end..]].concat();
            if fails(&shorter) {
                kept = shorter;
            }
            end = start;
        }
        match (piece, kept.len() < before) {
            (1, false) => return kept,
            (1, true) => {}
            _ => piece = piece.div_ceil(2),
        }
    }
}

/// The sequence as text, one operation a line.
pub fn listing(ops: &[Op]) -> String {
    let line = |(step, op): (usize, &Op)| format!("{:4}  {op:?}\n", step + 1);
    ops.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Config, generate};

    #[test]
    fn what_does_not_matter_is_dropped() {
        let mut ops = generate(1, 300, &Config::all().without(&[crate::ops::OpKind::Sync]));
        ops.insert(40, Op::Sync);
        ops.insert(220, Op::Close { slot: 77 });
        let fails = |ops: &[Op]| {
            let first = ops.iter().position(|op| *op == Op::Sync);
            let second = ops.iter().position(|op| *op == Op::Close { slot: 77 });
            matches!((first, second), (Some(a), Some(b)) if a < b)
        };
        assert_eq!(minimise(&ops, fails), [Op::Sync, Op::Close { slot: 77 }]);
    }
}
