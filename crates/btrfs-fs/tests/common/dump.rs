//! What `btrfs inspect-internal dump-tree` says of the inodes of one tree.

use std::path::Path;
use testkit::oracle::sh;

/// The lines of each item of `tree`: (object id, kind, offset), text below the key.
pub fn items(image: &Path, tree: u64) -> Vec<((u64, String, u64), String)> {
    items_by("btrfs", image, tree)
}

/// The same by another `btrfs`.
pub fn items_by(program: &str, image: &Path, tree: u64) -> Vec<((u64, String, u64), String)> {
    let (tree, image) = (tree.to_string(), image.to_string_lossy().into_owned());
    let text = sh(program, &["inspect-internal", "dump-tree", "-t", &tree, &image]);
    let mut items: Vec<((u64, String, u64), String)> = Vec::new();
    for line in text.expect("dump-tree").lines() {
        if let Some(key) = line.strip_prefix("\titem ") {
            let inside = key.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
            let words: Vec<&str> = inside.expect("a key").0.split(' ').collect();
            let number = |word: &str| word.parse().unwrap_or(u64::MAX);
            items.push(((number(words[0]), words[1].into(), number(words[2])), String::new()));
        } else if let Some((_, body)) = items.last_mut()
            && line.starts_with("\t\t")
        {
            body.push_str(line.trim_start());
            body.push('\n');
        }
    }
    items
}

/// The number behind `word`.
pub fn number_after(text: &str, word: &str) -> u64 {
    let mut words = text.split_whitespace().skip_while(|found| *found != word);
    let found = words.nth(1).unwrap_or_else(|| panic!("no {word} in {text}"));
    found.parse().expect("a number")
}

/// `sequence` of an inode item.
pub fn sequence(image: &Path, objectid: u64) -> u64 {
    let items = items(image, 5);
    let key = (objectid, "INODE_ITEM".to_owned(), 0);
    let found = items.iter().find(|(k, _)| *k == key);
    number_after(&found.expect("an inode item").1, "sequence")
}

/// (offset in the file, first byte on the volume that it shows, bytes) of each regular extent.
pub fn extents(image: &Path, tree: u64, objectid: u64) -> Vec<(u64, u64, u64)> {
    let items = items(image, tree).into_iter();
    let of_file = items.filter(|((id, kind, _), _)| *id == objectid && kind == "EXTENT_DATA");
    of_file
        .filter(|(_, body)| body.contains("disk byte"))
        .map(|((_, _, at), body)| {
            let disk = number_after(&body, "byte");
            let shown = body.split("extent data offset").nth(1).expect("an offset");
            let offset = shown.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
            (at, disk + offset.expect("a number"), number_after(shown, "nr"))
        })
        .collect()
}
