//! Nodes of a sound volume changed, with right checksums; then the volume is used.
#![no_main]

#[path = "../../crates/btrfs-fs/tests/hostile/mod.rs"]
mod hostile;

use hostile::base::Base;
use hostile::choices::Choices;
use hostile::disk::Layered;
use hostile::drive::{Fate, drive};
use hostile::mutate::mutate;
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, OnceLock};

fn base() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| Base::ours(1, 4096, 300))
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::Bytes(data);
    let device = Arc::new(Layered::new(&base().device));
    let told = mutate(base(), &device, &mut choices);
    if let Fate::Opened(opened) = drive(&device, &mut choices) {
        assert!(opened.after.is_some(), "{told}: opens only once");
    }
});
