//! Nodes of a sound volume changed, with right checksums; then the volume is used.

use crate::hostile::base::Base;
use crate::hostile::choices::Choices;
use crate::hostile::disk::Layered;
use crate::hostile::drive::{Opening, drive};
use crate::hostile::mutate::mutate;
use std::sync::{Arc, OnceLock};

/// A sound volume of small nodes, always the same.
pub fn base() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| Base::ours(1, 4096, 300))
}

pub fn image(data: &[u8]) -> bool {
    let mut choices = Choices::Bytes(data);
    let device = Arc::new(Layered::new(&base().device));
    let told = mutate(base(), &device, &mut choices);
    match drive(&device, &mut choices) {
        Opening::Opened(opened) => assert!(opened.after.is_some(), "{told}: opens only once"),
        Opening::Refused(_) => return false,
    }
    true
}
