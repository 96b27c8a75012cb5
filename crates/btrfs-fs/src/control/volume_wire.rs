//! How what is told of the whole volume passes the control door, for both ends.
//!
//! What comes in is a stranger's: nothing here trusts it.

use super::wire::{Record, len64, put, put_bytes, take, take_bytes, take_uuid};
use crate::usage::{DeviceUsage, GroupUsage, Usage};

/// More parts than that no answer has room for.
const MOST: u64 = 1024;

fn count(from: &mut &[u8]) -> Option<u64> {
    take(from).filter(|count| *count <= MOST)
}

impl Record for DeviceUsage {
    fn write(&self, to: &mut Vec<u8>) {
        put(to, &[self.id, self.total, self.used]);
        to.extend_from_slice(&self.uuid);
    }

    fn read(from: &mut &[u8]) -> Option<DeviceUsage> {
        let (id, total, used) = (take(from)?, take(from)?, take(from)?);
        Some(DeviceUsage { id, uuid: take_uuid(from)?, total, used })
    }
}

impl Record for GroupUsage {
    fn write(&self, to: &mut Vec<u8>) {
        put(to, &[self.flags, self.total, self.used, len64(&self.on_devices)]);
        self.on_devices.iter().for_each(|(device, bytes)| put(to, &[*device, *bytes]));
    }

    fn read(from: &mut &[u8]) -> Option<GroupUsage> {
        let (flags, total, used) = (take(from)?, take(from)?, take(from)?);
        let on_devices = (0..count(from)?).map(|_| Some((take(from)?, take(from)?)));
        Some(GroupUsage { flags, total, used, on_devices: on_devices.collect::<Option<_>>()? })
    }
}

impl Record for Usage {
    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.fsid);
        put_bytes(to, &self.label);
        put(to, &[self.generation, self.global_reserve, self.available]);
        put(to, &[len64(&self.devices)]);
        self.devices.iter().for_each(|device| device.write(to));
        put(to, &[len64(&self.groups)]);
        self.groups.iter().for_each(|group| group.write(to));
    }

    fn read(from: &mut &[u8]) -> Option<Usage> {
        let (fsid, label) = (take_uuid(from)?, take_bytes(from)?);
        let (generation, global_reserve, available) = (take(from)?, take(from)?, take(from)?);
        let devices = (0..count(from)?).map(|_| DeviceUsage::read(from));
        let devices = devices.collect::<Option<_>>()?;
        let groups = (0..count(from)?).map(|_| GroupUsage::read(from)).collect::<Option<_>>()?;
        Some(Usage { fsid, label, generation, devices, groups, global_reserve, available })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_passes_as_it_is() {
        let device = DeviceUsage { id: 1, uuid: [3; 16], total: 1 << 30, used: 1 << 20 };
        let on_devices = vec![(1, 2 << 20), (2, 7)];
        let group = GroupUsage { flags: 0x24, total: 1 << 20, used: 4096, on_devices };
        let usage = Usage {
            fsid: [7; 16],
            label: b"label".to_vec(),
            generation: 9,
            devices: vec![device],
            groups: vec![group.clone(), GroupUsage { flags: 1, ..group }],
            global_reserve: 5,
            available: 6,
        };
        let mut bytes = Vec::new();
        usage.write(&mut bytes);
        assert_eq!(Usage::read(&mut &bytes[..]), Some(usage));
        for cut in 0..bytes.len() {
            assert_eq!(Usage::read(&mut &bytes[..cut]), None, "{cut}");
        }
    }
}
