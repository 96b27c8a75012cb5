//! Whole nodes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| spinney_fuzz::gate(spinney_fuzz::repaired(data)));
