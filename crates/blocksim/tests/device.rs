//! The simulated device against what its words say: crash images have what a flush covered,
//! and nothing that was never written.

use blockdev::BlockDevice;
use blocksim::{
    Access, Choice, Epoch, Fault, Hook, Image, Lie, SECTOR, SimDevice, Span, WriteFate,
};
use std::sync::{Arc, Mutex, OnceLock};

const LEN: u64 = 1 << 20;

fn device() -> SimDevice {
    SimDevice::new(Image::zeros(LEN))
}

fn byte(image: &Image, at: u64) -> u8 {
    let mut buf = [0];
    image.read(at, &mut buf).expect("in range");
    buf[0]
}

#[test]
fn a_flush_covers_what_came_before_it_and_nothing_else() {
    let dev = device();
    dev.write_at(0, &[1; 512]).unwrap();
    dev.flush().unwrap();
    dev.write_at(0, &[2; 512]).unwrap();
    dev.write_at(8192, &[3; 512]).unwrap();
    let recording = dev.recording();
    let epochs: Vec<_> = recording.epochs().collect();
    assert_eq!(epochs.len(), 2);
    assert_eq!((epochs[0].end, epochs[1].end), (1, 4));
    let first: Vec<u8> =
        epochs[0].choices(8, 1).iter().map(|c| byte(&epochs[0].image(c), 0)).collect();
    assert!(first.contains(&0) && first.contains(&1) && !first.contains(&2));
    let mut second: Vec<(u8, u8)> = epochs[1]
        .choices(4, 1)
        .iter()
        .map(|c| epochs[1].image(c))
        .map(|image| (byte(&image, 0), byte(&image, 8192)))
        .collect();
    second.sort();
    assert_eq!(second, [(1, 0), (1, 3), (2, 0), (2, 3)], "every subset of two writes");
}

#[test]
fn torn_writes_are_torn_at_sectors_only() {
    let dev = device();
    dev.write_at(0, &[7; 4096]).unwrap();
    let recording = dev.recording();
    let epoch = recording.epochs().next().unwrap();
    let mut mixed = 0;
    for seed in 0..64 {
        let image = epoch.image(&Choice(vec![WriteFate::Torn(seed)]));
        let mut buf = [0; 4096];
        image.read(0, &mut buf).unwrap();
        let sectors: Vec<u8> = buf.chunks(SECTOR as usize).map(|s| s[0]).collect();
        for (sector, first) in buf.chunks(SECTOR as usize).zip(&sectors) {
            assert!(sector.iter().all(|b| b == first), "a sector is whole or not there");
        }
        if seed % 2 == 0 {
            assert!(sectors.is_sorted_by(|a, b| a >= b), "the first ones arrive");
        }
        mixed += (sectors.contains(&0) && sectors.contains(&7)) as usize;
    }
    assert!(mixed > 40, "{mixed} of 64 are mixed");
}

#[test]
fn choices_are_all_subsets_where_few_and_repeat_with_their_seed() {
    let dev = device();
    for i in 0..3 {
        dev.write_at(i * 4096, &[1; 4096]).unwrap();
    }
    let recording = dev.recording();
    let epoch = recording.epochs().next().unwrap();
    let all = epoch.choices(8, 5);
    assert_eq!(all.len(), 8);
    assert!(all.iter().all(|c| c.0.iter().all(|f| !matches!(f, WriteFate::Torn(_)))));
    let more = epoch.choices(40, 5);
    assert_eq!(more, epoch.choices(40, 5));
    assert_ne!(more, epoch.choices(40, 6));
    assert!(more.len() > 30 && all.iter().all(|c| more.contains(c)));
}

#[test]
fn writes_across_blocks_read_back_and_images_are_independent() {
    let dev = device();
    let data: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
    dev.write_at(4000, &data).unwrap();
    let before = dev.image();
    dev.write_vectored_at(5000, &[&[9; 100], &[8; 100]]).unwrap();
    let mut buf = vec![0; data.len()];
    before.read(4000, &mut buf).unwrap();
    assert_eq!(buf, data);
    dev.read_at(4000, &mut buf).unwrap();
    assert_eq!((buf[1000], buf[1100], buf[1200]), (9, 8, data[1200]));
    let flat = dev.image().flatten();
    flat.read(4000, &mut buf).unwrap();
    assert_eq!((buf[999], buf[1000]), (data[999], 9));
    assert!(dev.read_at(LEN - 1, &mut [0; 2]).is_err());
    assert!(dev.write_at(LEN, &[0]).is_err());
}

#[test]
fn faults_hit_once_or_from_then_on() {
    let fault = |access, nth, span| Fault { access, nth, span };
    let dev = device()
        .failing(&[fault(Access::Write, 1, Span::Once), fault(Access::Flush, 1, Span::FromThenOn)]);
    assert!(dev.write_at(0, &[1; 1024]).is_ok());
    assert!(dev.write_at(4096, &[1; 1024]).is_err());
    assert!(dev.write_at(8192, &[1; 1024]).is_ok());
    assert_eq!((byte(&dev.image(), 4096), byte(&dev.image(), 4096 + 512)), (1, 0));
    assert!(dev.flush().is_ok() && dev.flush().is_err() && dev.flush().is_err());
    assert_eq!((dev.counts().writes, dev.counts().flushes, dev.counts().failed), (3, 3, 3));
}

#[test]
fn a_liar_forgets_its_flushes() {
    let dev = device().lying(Some(Lie::FlushOf { every: 2, number: 0 }));
    dev.write_at(0, &[1; 512]).unwrap();
    dev.flush().unwrap();
    dev.write_at(512, &[1; 512]).unwrap();
    dev.flush().unwrap();
    assert_eq!(dev.recording().epochs().count(), 2);
    assert_eq!(dev.recording().epochs().next().unwrap().pending.len(), 2);
}

#[test]
fn discarded_ranges_may_hold_anything_until_written() {
    let dev = device();
    dev.write_at(0, &[1; 8192]).unwrap();
    dev.flush().unwrap();
    dev.discard(0, 4096).unwrap();
    let recording = dev.recording();
    let epoch = recording.epochs().nth(1).unwrap();
    let seen: Vec<u8> = epoch.choices(2, 0).iter().map(|c| byte(&epoch.image(c), 0)).collect();
    assert_eq!(seen, [1, 0xd5]);
    assert_eq!(byte(&dev.image(), 4096), 1);
}

#[test]
fn images_go_to_files_and_come_back() {
    let dev = device();
    dev.write_at(12_345, b"hello").unwrap();
    let path = std::env::temp_dir().join(format!("blocksim-{}", std::process::id()));
    dev.image().export(&path).unwrap();
    let back = Image::import(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut buf = [0; 5];
    back.read(12_345, &mut buf).unwrap();
    assert_eq!((&buf, back.len()), (b"hello", LEN));
}

#[test]
fn a_hook_sees_each_access_before_it_takes_effect_and_may_use_the_device() {
    let seen: Arc<Mutex<Vec<(Access, u64, usize)>>> = Arc::default();
    let dev: Arc<OnceLock<Arc<SimDevice>>> = Arc::default();
    let (list, inner) = (seen.clone(), dev.clone());
    let hook: Hook = Arc::new(move |access, offset| {
        let dev = inner.get().expect("set below");
        list.lock().unwrap().push((access, offset, dev.position()));
    });
    let dev = dev.get_or_init(|| Arc::new(device().hooked(Some(hook))));
    dev.write_at(8192, &[1; 512]).unwrap();
    dev.flush().unwrap();
    dev.read_at(512, &mut [0; 512]).unwrap();
    let expected = [(Access::Write, 8192, 0), (Access::Flush, 0, 1), (Access::Read, 512, 2)];
    assert_eq!(*seen.lock().unwrap(), expected);
}

/// What the epochs from `position` on are: their numbers, ends, and all states of each.
fn told(dev: &SimDevice, position: usize) -> Vec<(usize, usize, Vec<u8>)> {
    let recording = dev.recording();
    let since = recording.epochs().filter(|epoch| epoch.end >= position);
    let states = |epoch: &Epoch| -> Vec<u8> {
        let images = epoch.choices(8, 1).into_iter().map(|choice| epoch.image(&choice));
        images.flat_map(|image| (0..8).map(move |sector| byte(&image, sector * 512))).collect()
    };
    since.map(|epoch| (epoch.index, epoch.end, states(&epoch))).collect()
}

#[test]
fn what_came_before_is_forgotten_and_no_later_crash_changes() {
    let dev = device();
    for round in 0..6 {
        dev.write_at(round * 512, &[round as u8 + 1; 1024]).unwrap();
        dev.write_at(0, &[round as u8 + 1; 512]).unwrap();
        dev.flush().unwrap();
    }
    dev.write_at(512, &[9; 512]).unwrap();
    for position in [4, 5, 6, 11, dev.position()] {
        let before = told(&dev, position);
        dev.forget(position);
        assert_eq!(told(&dev, position), before, "from {position} on");
        assert!(dev.recording().events().len() <= 19 - position + 3, "{position}");
    }
    assert_eq!((dev.position(), byte(&dev.image(), 0)), (19, 6));
}

#[test]
fn a_device_that_keeps_little_forgets_at_flushes() {
    let (bounded, whole) = (device().keeping(2048), device());
    for round in 0..20 {
        for dev in [&bounded, &whole] {
            dev.write_at(round * 256, &[round as u8 + 1; 1024]).unwrap();
            dev.flush().unwrap();
        }
        // Three writes are more than it keeps.
        assert!(bounded.recording().events().len() <= 4, "round {round}");
    }
    bounded.write_at(0, &[99; 512]).unwrap();
    whole.write_at(0, &[99; 512]).unwrap();
    let position = bounded.position() - bounded.recording().events().len();
    assert_eq!(told(&bounded, position), told(&whole, position));
    assert_eq!(bounded.position(), whole.position());
}
