//! Streams that nobody wrote: damage is told, with its offset, and nothing comes of it.

use btrfs_send::{Command, Decoder, Encoder, Origin, Problem, Protocol, Verity};

fn stream(protocol: Protocol) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), protocol).unwrap();
    let origin = Origin { uuid: [7; 16], ctransid: 9 };
    encoder.put(&Command::Subvol { path: b"snap", origin }).unwrap();
    encoder.put(&Command::MkFile { path: b"file", ino: 257 }).unwrap();
    encoder.put(&Command::Write { path: b"file", offset: 5, data: &[1; 999] }).unwrap();
    encoder.put(&Command::End).unwrap();
    encoder.into_inner()
}

/// Commands until the end, and the error if there was one.
fn run(bytes: &[u8]) -> (usize, Option<(u64, Problem)>) {
    let (mut decoder, mut count) = (Decoder::new(bytes), 0);
    loop {
        match decoder.next_command() {
            Ok(Some(_)) => count += 1,
            Ok(None) => return (count, None),
            Err(error) => {
                assert!(decoder.next_command().unwrap().is_none(), "nothing behind an error");
                return (count, Some((error.offset, error.problem)));
            }
        }
    }
}

#[test]
fn what_is_cut_off_is_told_wherever_it_is_cut() {
    for protocol in [Protocol::V1, Protocol::V2] {
        let whole = stream(protocol);
        assert!(matches!(run(&whole), (4, None)));
        for len in 0..whole.len() {
            let (_, error) = run(&whole[..len]);
            let (offset, problem) = error.expect("a cut stream");
            assert!(offset <= len as u64);
            assert!(matches!(problem, Problem::Truncated), "{len}: {problem:?}");
        }
    }
}

#[test]
fn a_bit_that_is_wrong_is_found_with_its_command() {
    let whole = stream(Protocol::V1);
    // The header has no checksum: of version 3 the same bytes are another stream.
    const OF_VERSION: usize = 13 * 8 + 1;
    for bit in (0..whole.len() * 8).filter(|bit| *bit != OF_VERSION) {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let (count, error) = run(&bytes);
        let (offset, _) = error.unwrap_or_else(|| panic!("bit {bit}: {count} commands"));
        assert!(offset <= (bit / 8) as u64, "{bit}");
    }
}

#[test]
fn no_length_makes_it_hold_more_than_a_command() {
    let mut bytes = stream(Protocol::V2);
    bytes[17..21].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(run(&bytes), (0, Some((17, Problem::TooLong(u32::MAX))))));
    // In protocol 1 content has a length of 16 bits, and its command as well.
    let mut encoder = Encoder::new(Vec::new(), Protocol::V1).unwrap();
    let long = vec![0; 66_000];
    let error = encoder.put(&Command::Write { path: b"f", offset: 0, data: &long }).unwrap_err();
    assert!(matches!(error.problem, Problem::AttributeLength(_)), "{error}");
    let mut encoder = Encoder::new(Vec::new(), Protocol::V2).unwrap();
    encoder.put(&Command::Write { path: b"f", offset: 0, data: &long }).unwrap();
    // The longest command there may be in protocol 1 is read, one of a byte more is not.
    let write = |len: usize| {
        let mut encoder = Encoder::new(Vec::new(), Protocol::V1).unwrap();
        let data = vec![0; len];
        encoder.put(&Command::Write { path: b"f", offset: 0, data: &data }).map_err(drop)?;
        Ok::<_, ()>(encoder.into_inner())
    };
    let attributes = 5 + 12 + 4;
    assert!(matches!(
        run(&write((64 << 10) - attributes).unwrap()),
        (1, Some((_, Problem::Truncated)))
    ));
    let longer = write((64 << 10) - attributes + 1).map(|bytes| run(&bytes));
    assert!(matches!(longer, Err(()) | Ok((0, Some((17, Problem::TooLong(65_537)))))));
}

#[test]
fn commands_of_protocol_2_are_none_of_protocol_1() {
    let command = Command::Fallocate { path: b"f", mode: 1, offset: 0, len: 9 };
    let mut encoder = Encoder::new(Vec::new(), Protocol::V1).unwrap();
    assert!(matches!(encoder.put(&command).unwrap_err().problem, Problem::UnknownCommand(23)));
    let mut encoder = Encoder::new(Vec::new(), Protocol::V2).unwrap();
    encoder.put(&command).unwrap();
    let mut bytes = encoder.into_inner();
    bytes[13] = 1;
    assert!(matches!(run(&bytes), (0, Some((17, Problem::UnknownCommand(23))))));
    bytes[13] = 4;
    assert!(matches!(run(&bytes), (0, Some((0 | 17, Problem::Version(4))))));
    assert!(matches!(run(b"#!/bin/sh\n"), (0, Some((0, Problem::NotAStream)))));
}

/// As the kernel's sender writes it: path, algorithm (a byte), block size, salt, signature.
#[test]
fn files_that_are_verified_are_protocol_3s() {
    let verity = Verity { algorithm: 1, block_size: 4096, salt: b"\xab\xcd", signature: b"sig" };
    let command = Command::EnableVerity { path: b"f", verity };
    for protocol in [Protocol::V1, Protocol::V2] {
        let mut encoder = Encoder::new(Vec::new(), protocol).unwrap();
        let error = encoder.put(&command).unwrap_err();
        assert!(matches!(error.problem, Problem::UnknownCommand(26)), "{error}");
    }
    let mut encoder = Encoder::new(Vec::new(), Protocol::V3).unwrap();
    encoder.put(&command).unwrap();
    let mut bytes = encoder.into_inner();
    let attributes = [
        &b"\x0f\0\x01\0f"[..],
        b"\x20\0\x01\0\x01",
        b"\x21\0\x04\0\0\x10\0\0",
        b"\x22\0\x02\0\xab\xcd",
        b"\x23\0\x03\0sig",
    ]
    .concat();
    assert_eq!(bytes[27..], attributes);
    assert_eq!(bytes[17..23], [&(attributes.len() as u32).to_le_bytes()[..], b"\x1a\0"].concat());
    let mut decoder = Decoder::new(&bytes[..]);
    assert_eq!(decoder.next_command().unwrap(), Some(command));
    // Attributes of a wrong length, or none.
    let at = 27 + 5;
    for (place, byte) in [(at + 2, 0), (at + 5 + 2, 3)] {
        let mut bad = bytes.clone();
        bad[place] = byte;
        btrfs_send::mend(&mut bad);
        assert!(run(&bad).1.is_some(), "{byte} at {place}");
    }
    bytes[13] = 2;
    assert!(matches!(run(&bytes), (0, Some((17, Problem::UnknownCommand(26))))));
}

/// Or a stream that nobody can receive is told of only there.
#[test]
fn what_no_receiver_takes_is_not_sent() {
    let (origin, time) = (Origin { uuid: [7; 16], ctransid: 9 }, (0, 0));
    let with = |path: &[u8]| {
        let commands = [
            Command::MkFile { path, ino: 257 },
            Command::Symlink { path: b"link", ino: 257, target: path },
            Command::Rename { path: b"file", to: path },
            Command::Link { path: b"file", old: path },
            Command::Write { path, offset: 0, data: b"content" },
            Command::Clone {
                path: b"file",
                offset: 0,
                len: 1,
                from: origin,
                from_path: path,
                from_offset: 0,
            },
            Command::SetXattr { path: b"file", name: path, value: b"" },
            Command::RemoveXattr { path: b"file", name: path },
            Command::Utimes { path, atime: time, mtime: time, ctime: time, otime: None },
        ];
        commands.map(|command| {
            let mut encoder = Encoder::new(Vec::new(), Protocol::V1).unwrap();
            let begun = encoder.offset();
            let put = encoder.put(&command);
            assert_eq!(put.is_err(), encoder.offset() == begun, "nothing of it is written");
            let taken =
                Decoder::new(&encoder.into_inner()[..]).next_command().is_ok_and(|c| c.is_some());
            assert_eq!(put.is_ok(), taken, "{command:?}");
            put.err().map(|error| error.to_string())
        })
    };
    let mut long = b"directory/".repeat(410);
    long.truncate(4096);
    for said in with(&long) {
        let said = said.expect("it is too long");
        assert!(said.contains("directory/directory/") && said.contains("4096"), "{said}");
    }
    assert!(with(&long[..4095]).iter().all(|said| said.is_none()));
    assert!(with(b"a\0b").iter().all(|said| said.is_some()));
}
