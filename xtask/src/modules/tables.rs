//! The tables of the crates below and above the engine; those of the engine itself are in
//! [`super`].

use super::Table;

pub(super) const DISK: Table = &[
    ("ids", &[]),
    ("key", &[]),
    ("error", &["ids", "key"]),
    ("checksum", &["error"]),
    ("le", &["key", "error"]),
    ("items", &["ids", "key", "error", "checksum", "le"]),
    ("node", &["ids", "key", "le"]),
    ("compress", &["error", "items"]),
    ("geometry", &["checksum", "le", "items", "node"]),
    ("build", &["ids", "key", "checksum", "le", "node", "geometry"]),
    ("check", &["ids", "key", "error", "checksum", "le", "items", "node", "geometry"]),
    ("superblock", &["ids", "error", "checksum", "le", "items", "geometry"]),
];

pub(super) const VOLUME: Table = &[
    ("counters", &[]),
    ("features", &[]),
    ("superblock", &[]),
    ("chunk_map", &["superblock"]),
    ("load", &["chunk_map"]),
    ("volume", &["counters", "features", "superblock", "chunk_map", "load"]),
    ("write", &["counters", "superblock", "volume"]),
    ("read", &["counters", "volume", "write"]),
];

pub(super) const TREE: Table = &[
    ("cache", &[]),
    ("reader", &[]),
    ("cursor", &["reader"]),
    ("dirty", &["reader"]),
    ("walk", &["reader"]),
    ("edit", &["reader", "dirty"]),
    ("scan", &["reader", "cursor"]),
    ("store", &["cache", "reader", "dirty"]),
    ("verify", &["reader", "walk"]),
];

pub(super) const SPACE: Table = &[
    ("items", &[]),
    ("free_space", &["items"]),
    ("refs", &["items"]),
    ("shared", &["refs"]),
    ("space", &["items", "free_space"]),
    ("settle", &["items", "free_space", "refs", "shared", "space"]),
];

pub(super) const CHECK: Table = &[
    ("kind", &[]),
    ("options", &[]),
    ("finding", &["kind"]),
    ("refs", &["kind"]),
    ("source", &["kind", "options", "finding"]),
    ("supers", &["kind", "finding", "source"]),
    ("walk", &["kind", "finding", "refs", "source"]),
    ("data", &["kind", "finding", "source", "walk"]),
    ("extents", &["kind", "finding", "refs", "source", "walk"]),
    ("qgroups", &["kind", "finding", "refs", "source", "walk"]),
    ("chunks", &["kind", "finding", "source", "walk", "extents"]),
    ("csums", &["kind", "finding", "source", "walk", "extents"]),
    ("free_space", &["kind", "finding", "source", "walk", "extents"]),
    ("compare", &["kind", "finding", "refs", "source", "extents", "chunks"]),
    ("inodes", &["kind", "finding", "source", "walk", "csums"]),
    ("log", &["kind", "options", "finding", "refs", "source", "walk", "extents", "csums"]),
    ("roots", &["kind", "finding", "refs", "source", "walk", "inodes"]),
    ("uuids", &["kind", "finding", "source", "walk", "roots"]),
    (
        "driver",
        &[
            "kind",
            "options",
            "finding",
            "refs",
            "source",
            "supers",
            "walk",
            "data",
            "extents",
            "qgroups",
            "chunks",
            "csums",
            "free_space",
            "compare",
            "inodes",
            "log",
            "roots",
            "uuids",
        ],
    ),
];

pub(super) const LIBRARY: Table = &[
    ("error", &[]),
    ("guard", &[]),
    ("sys", &[]),
    ("medium", &["error"]),
    ("volume", &["error", "guard", "medium"]),
    ("check", &["error", "medium", "volume"]),
    ("metadata", &["error", "volume"]),
    ("options", &["error", "guard", "sys", "medium", "volume"]),
    ("transaction", &["error", "volume"]),
    ("tree", &["error", "sys", "volume"]),
    ("file", &["error", "volume", "metadata", "tree"]),
    ("format", &["error", "medium", "volume", "options"]),
    ("import", &["error", "volume", "tree"]),
    ("names", &["error", "volume", "tree"]),
    ("dir", &["error", "volume", "metadata", "transaction", "tree", "file"]),
];

pub(super) const FUSE: Table = &[
    ("abi", &[]),
    ("callers", &[]),
    ("mount_table", &[]),
    ("owners", &[]),
    ("sys", &[]),
    ("device", &["sys"]),
    ("nodeid", &["abi"]),
    ("polling", &["sys"]),
    ("config", &["callers", "owners", "sys", "polling"]),
    ("notify", &["abi", "device", "nodeid"]),
    ("dispatch", &["abi", "callers", "owners", "sys", "nodeid", "polling", "config", "notify"]),
    ("mount", &["mount_table", "sys", "device", "config"]),
    ("classic", &["abi", "sys", "device", "polling", "dispatch"]),
    ("uring", &["abi", "sys", "device", "dispatch"]),
    ("gather", &["device", "dispatch", "classic"]),
    (
        "session",
        &[
            "abi",
            "mount_table",
            "sys",
            "device",
            "polling",
            "config",
            "notify",
            "dispatch",
            "mount",
            "classic",
            "uring",
            "gather",
        ],
    ),
];

pub(super) const CLI: Table = &[
    ("error", &[]),
    ("mode", &[]),
    ("progress", &[]),
    ("sys", &[]),
    ("words", &[]),
    ("args", &["error", "words"]),
    ("mounts", &["sys"]),
    ("output", &["error"]),
    ("when", &["sys"]),
    ("image", &["error", "sys", "mounts"]),
    ("show", &["sys", "output", "when"]),
    ("inside", &["error", "mode", "progress", "output", "image"]),
    ("mount", &["error", "sys", "words", "args", "mounts", "when", "image"]),
    ("archive", &["error", "when", "show", "inside"]),
    (
        "commands",
        &[
            "error", "mode", "progress", "sys", "words", "args", "mounts", "output", "when",
            "image", "show", "inside", "mount", "archive",
        ],
    ),
];
