//! The volume's label, asked for and set.

use crate::engine::Engine;
use crate::error::IntoFs;
use crate::label::Label;
use vfs::{Errno, Result};

pub(crate) fn get(engine: &Engine) -> Vec<u8> {
    match engine.label.get() {
        Some(label) => label.iter().copied().take_while(|byte| *byte != 0).collect(),
        None => engine.core.volume.superblock().label().to_vec(),
    }
}

pub(crate) fn set(engine: &Engine, text: &[u8]) -> Result<()> {
    engine.core.health.changeable().fs()?;
    let mut label: Label = [0; 256];
    if text.len() >= label.len() || text.contains(&0) {
        return Err(Errno::EINVAL.into());
    }
    label[..text.len()].copy_from_slice(text);
    engine.label.set(&label);
    // Content of others that the device refuses is not this one's error.
    let committed = engine.committer.commit_what_lands();
    let left = engine.label.done(Some(Box::new(label)));
    committed?;
    if left {
        engine.core.health.changeable().fs()?;
        return Err(Errno::ENOSPC.into());
    }
    Ok(())
}
