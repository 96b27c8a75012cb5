//! Bugs of fsync that Linux file systems had, each told by what a user would do and lose.
//! Written from their public descriptions (reports, commit messages, the summaries of the
//! regression tests that came of them).

use super::ops::*;
use testkit::ops::Op;
use vfs::FallocateMode;

pub type Named = (&'static str, fn() -> Vec<Op>);

/// On the volume are A/, A/C/, A/foo (12000 bytes, user.x), A/bar (900 bytes), B/, B/big
/// (200000 bytes), B/sym: durable.
pub const NAMED: &[Named] = &[
    ("two files change names, one is synced, then it leaves a whiteout behind", || {
        vec![exchange("A/foo", "A/bar"), fsync("A/foo"), whiteout("A/foo", "B/foo"), fsync("B/foo")]
    }),
    ("a new file is renamed into a new directory, its old directory is synced", || {
        vec![mkdir("D"), fsync("D"), create("x"), rename("x", "D/x"), create("x"), fsync("")]
    }),
    ("a synced file is replaced by one that is then renamed again", || {
        vec![
            create("A/x"),
            fsync("A/x"),
            create("A/y"),
            rename("A/y", "A/x"),
            rename("A/x", "B/z"),
            fsync("A/foo"),
        ]
    }),
    ("a file is renamed, its old name is given to a new one, which is synced", || {
        vec![rename("A/foo", "A/old"), create("A/foo"), write("A/foo", 0, 5000, 1), fsync("A/foo")]
    }),
    ("as before, and the old file changes directory", || {
        vec![rename("A/foo", "B/foo"), create("A/foo"), fsync("A/foo")]
    }),
    ("a directory is renamed, and a new one of its old name is synced", || {
        vec![create("A/C/x"), sync(), rename("A/C", "A/D"), mkdir("A/C"), fsync("A/C")]
    }),
    ("two hard links, one removed, a new file of that name is synced", || {
        vec![
            link("A/foo", "A/foo2"),
            sync(),
            unlink("A/foo"),
            create("A/foo"),
            write("A/foo", 0, 300, 2),
            fsync("A/foo"),
        ]
    }),
    ("a name is unlinked, the file gets another one and is synced", || {
        vec![
            link("A/foo", "A/two"),
            sync(),
            unlink("A/foo"),
            link("A/two", "A/three"),
            fsync("A/two"),
        ]
    }),
    ("unlink, link under the same name, sync", || {
        vec![
            link("A/foo", "A/two"),
            sync(),
            unlink("A/two"),
            link("A/foo", "A/two"),
            fsync("A/foo"),
        ]
    }),
    ("a hard link is removed, the file is synced by the other name, the directory goes", || {
        vec![
            link("A/foo", "A/C/foo"),
            sync(),
            unlink("A/C/foo"),
            fsync("A/foo"),
            rmdir("A/C"),
            fsync("A"),
        ]
    }),
    ("a new link in another directory, after a sync of the file", || {
        vec![
            write("A/foo", 0, 100, 3),
            fsync("A/foo"),
            link("A/foo", "B/foo"),
            write("A/foo", 200, 100, 4),
            fsync("A/foo"),
        ]
    }),
    ("links in new directories: the way to each of them", || {
        vec![
            mkdir("D"),
            mkdir("D/E"),
            mkdir("F"),
            create("D/E/x"),
            link("D/E/x", "F/x"),
            link("D/E/x", "A/x"),
            fsync("A/x"),
        ]
    }),
    ("a new file deep in new directories", || {
        vec![
            mkdir("D"),
            mkdir("D/E"),
            mkdir("D/E/F"),
            create("D/E/F/x"),
            write("D/E/F/x", 0, 30_000, 5),
            fsync("D/E/F/x"),
        ]
    }),
    ("a new directory inside a renamed one", || {
        vec![
            rename("A/C", "B/C2"),
            mkdir("B/C2/new"),
            create("B/C2/new/x"),
            fsync("B/C2/new"),
            fsync("B/C2/new/x"),
        ]
    }),
    ("a file in a directory that was renamed twice", || {
        vec![
            mkdir("D"),
            create("D/x"),
            fsync("D/x"),
            rename("D", "E"),
            rename("E", "B/E"),
            write("B/E/x", 0, 10, 6),
            fsync("B/E/x"),
        ]
    }),
    ("a directory moves between two others, of which one is synced", || {
        vec![create("A/C/x"), sync(), rename("A/C", "B/C"), create("A/new"), fsync("A")]
    }),
    ("a file moves between two directories, of which the old one is synced", || {
        vec![rename("A/foo", "B/foo"), fsync("A")]
    }),
    ("a file moves between two directories, of which the new one is synced", || {
        vec![rename("A/foo", "B/foo"), create("B/other"), fsync("B")]
    }),
    ("a file moves and something else in its new directory is synced", || {
        vec![rename("A/foo", "B/foo"), create("B/other"), fsync("B/other"), fsync("B/big")]
    }),
    ("a subdirectory is removed and the directory synced", || {
        vec![mkdir("A/D"), create("A/D/x"), sync(), unlink("A/D/x"), rmdir("A/D"), fsync("A")]
    }),
    ("a subdirectory is removed, its name becomes a file, which is synced", || {
        vec![rmdir("A/C"), create("A/C"), write("A/C", 0, 20_000, 7), fsync("A/C")]
    }),
    ("a file's name becomes a directory", || {
        vec![unlink("A/foo"), mkdir("A/foo"), create("A/foo/x"), fsync("A/foo/x")]
    }),
    ("a symbolic link in a synced directory has its target", || {
        vec![mkdir("A/D"), symlink("../bar", "A/D/sym"), fsync("A/D")]
    }),
    ("a special file in a synced directory", || vec![fifo("A/C/fifo"), fsync("A/C")]),
    ("punch a hole, sync", || {
        vec![
            write("B/big", 0, 200_000, 8),
            fsync("B/big"),
            punch("B/big", 60_000, 40_000),
            fsync("B/big"),
        ]
    }),
    ("punch a hole behind what was synced, extend over it", || {
        vec![
            punch("B/big", 131_072, 68_928),
            fsync("B/big"),
            write("B/big", 180_000, 5000, 9),
            fdatasync("B/big"),
        ]
    }),
    ("punch adjoining holes, with a sync between them", || {
        vec![
            punch("B/big", 16_384, 16_384),
            fsync("B/big"),
            punch("B/big", 32_768, 16_384),
            fsync("B/big"),
            punch("B/big", 0, 16_384),
            fsync("B/big"),
        ]
    }),
    ("truncate, then append, then sync", || {
        vec![truncate("A/foo", 3000), append("A/foo", 9000, 10), fsync("A/foo")]
    }),
    ("truncate to nothing and write anew, as editors do", || {
        vec![truncate("B/big", 0), write("B/big", 0, 5000, 11), fsync("B/big")]
    }),
    ("truncate up, sync, truncate down, sync", || {
        vec![
            truncate("A/foo", 50_000),
            fsync("A/foo"),
            truncate("A/foo", 4096),
            fsync("A/foo"),
            truncate("A/foo", 30_000),
            fdatasync("A/foo"),
        ]
    }),
    ("an inline file grows into an extent after a sync", || {
        vec![write("A/bar", 0, 500, 12), fsync("A/bar"), append("A/bar", 8000, 13), fsync("A/bar")]
    }),
    ("a shrunk file becomes inline", || {
        vec![write("A/foo", 0, 9000, 14), fsync("A/foo"), truncate("A/foo", 100), fsync("A/foo")]
    }),
    ("a file that ends in a hole, extended by truncation, synced after a rename", || {
        vec![truncate("A/bar", 300_000), rename("A/bar", "B/bar"), fsync("B/bar")]
    }),
    ("an xattr is removed and the file synced: it stays removed", || {
        vec![
            set_xattr("A/foo", "user.y", 50, 15),
            set_xattr("A/foo", "user.z", 50, 16),
            fsync("A/foo"),
            remove_xattr("A/foo", "user.y"),
            fsync("A/foo"),
        ]
    }),
    ("all xattrs are removed and the file synced", || {
        vec![remove_xattr("A/foo", "user.x"), write("A/foo", 0, 10, 17), fsync("A/foo")]
    }),
    ("xattrs of a directory", || {
        vec![
            set_xattr("A/C", "user.a", 200, 18),
            fsync("A/C"),
            remove_xattr("A/C", "user.a"),
            fsync("A/C"),
        ]
    }),
    ("an xattr stays when only the file's data is synced again", || {
        vec![
            set_xattr("A/bar", "user.y", 500, 19),
            fsync("A/bar"),
            append("A/bar", 100, 20),
            fdatasync("A/bar"),
        ]
    }),
    ("a part of what was preallocated is overwritten", || {
        vec![
            prealloc("A/foo", 0, 131_072),
            fsync("A/foo"),
            write("A/foo", 16_384, 8192, 21),
            fsync("A/foo"),
            write("A/foo", 100_000, 8192, 22),
            fsync("A/foo"),
        ]
    }),
    ("preallocation behind the end of file survives a sync of something else", || {
        vec![
            prealloc("A/foo", 12_288, 262_144),
            fsync("A/foo"),
            append("A/foo", 20_000, 23),
            fdatasync("A/foo"),
            truncate("A/foo", 10_000),
            fsync("A/foo"),
        ]
    }),
    ("preallocation that extends the file", || {
        vec![fallocate("A/bar", FallocateMode::Allocate, 4096, 60_000), fdatasync("A/bar")]
    }),
    ("a clone of a file that has unwritten content, synced", || {
        vec![write("B/big", 0, 8192, 24), clone("B/big", "A/foo"), fsync("A/foo")]
    }),
    ("cloned twice over the same extent, the source synced", || {
        vec![
            clone_part("B/big", 0, "A/foo", 16_384, 32_768),
            fsync("A/foo"),
            clone_part("B/big", 32_768, "A/foo", 16_384, 32_768),
            write("B/big", 0, 4096, 25),
            fsync("B/big"),
            fsync("A/foo"),
        ]
    }),
    ("a clone within one file, at its end", || {
        vec![clone_part("B/big", 0, "B/big", 262_144, 65_536), fsync("B/big")]
    }),
    ("a file is overwritten after it was cloned", || {
        vec![
            create("A/copy"),
            clone("B/big", "A/copy"),
            sync(),
            write("B/big", 50_000, 20_000, 26),
            fsync("B/big"),
        ]
    }),
    ("exchange of two files, one of them synced", || {
        vec![exchange("A/foo", "B/big"), write("A/foo", 0, 100, 27), fsync("A/foo")]
    }),
    ("exchange of two directories with files, one file synced", || {
        vec![
            create("A/C/x"),
            sync(),
            exchange("A/C", "B"),
            append("A/C/big", 10, 28),
            fsync("A/C/big"),
        ]
    }),
    ("a rename that leaves a whiteout", || vec![whiteout("A/foo", "A/upper"), fsync("A/upper")]),
    ("replace by rename, as every careful program does", || {
        vec![
            create("A/foo.tmp"),
            write("A/foo.tmp", 0, 15_000, 29),
            fsync("A/foo.tmp"),
            rename("A/foo.tmp", "A/foo"),
            fsync("A"),
        ]
    }),
    ("replace by rename, without a sync of the directory, again and again", || {
        let round = |seed| {
            [
                create("A/foo.tmp"),
                write("A/foo.tmp", 0, 3000, seed),
                fsync("A/foo.tmp"),
                rename("A/foo.tmp", "A/foo"),
            ]
        };
        (30..35).flat_map(round).collect()
    }),
    ("an open file loses its name and is synced", || {
        vec![
            open("A/foo", 0),
            unlink("A/foo"),
            write_open(0, 0, 5000, 35),
            fsync_open(0),
            fsync("A"),
        ]
    }),
    ("a file without a name is written, synced, and named", || {
        vec![
            tmpfile("A", 0),
            write_open(0, 0, 20_000, 36),
            fsync_open(0),
            link_open(0, "A/named"),
            fsync("A/named"),
        ]
    }),
    ("many links of one file in one directory, some removed", || {
        let mut ops: Vec<Op> =
            (0..60).map(|n| link("A/foo", &format!("A/a rather long name {n}"))).collect();
        ops.push(fsync("A/foo"));
        ops.extend((0..60).step_by(3).map(|n| unlink(&format!("A/a rather long name {n}"))));
        ops.push(fsync("A/foo"));
        ops
    }),
    ("two files trade names over a third", || {
        vec![
            rename("A/foo", "A/tmp"),
            rename("A/bar", "A/foo"),
            rename("A/tmp", "A/bar"),
            fsync("A/foo"),
        ]
    }),
    ("files trade names with hard links", || {
        vec![
            link("A/foo", "A/foo2"),
            link("A/bar", "A/bar2"),
            sync(),
            unlink("A/foo2"),
            unlink("A/bar2"),
            link("A/foo", "A/bar2"),
            link("A/bar", "A/foo2"),
            fsync("A/foo"),
        ]
    }),
    ("a new directory takes the name of one that moved into it", || {
        vec![
            create("A/C/x"),
            sync(),
            mkdir("A/D"),
            rename("A/C", "A/D/C"),
            rename("A/D", "A/C"),
            create("A/C/y"),
            fsync("A/C/y"),
        ]
    }),
    ("a directory is synced after its new files were renamed inside it", || {
        vec![
            create("A/C/x"),
            create("A/C/y"),
            fsync("A/C"),
            rename("A/C/x", "A/C/z"),
            rename("A/C/y", "A/C/x"),
            fsync("A/C"),
        ]
    }),
    ("a file is synced, grows without a sync, and its directory is synced", || {
        vec![
            create("A/new"),
            write("A/new", 0, 4000, 37),
            fsync("A/new"),
            append("A/new", 100_000, 38),
            fsync("A"),
        ]
    }),
    ("only one of two files in a new directory is synced", || {
        vec![
            mkdir("D"),
            create("D/x"),
            create("D/y"),
            write("D/y", 0, 6000, 39),
            fsync("D/x"),
            fsync("D"),
        ]
    }),
    ("mode and data change, only the data is synced, then all", || {
        vec![
            chmod("A/foo", 0o600),
            write("A/foo", 0, 10, 40),
            fdatasync("A/foo"),
            chmod("A/foo", 0o640),
            fsync("A/foo"),
        ]
    }),
    ("removed and made again with the same name, many times", || {
        let round = |seed| {
            [
                unlink("A/foo"),
                create("A/foo"),
                append("A/foo", 100 * seed as usize, seed),
                fsync("A/foo"),
            ]
        };
        (41..46).flat_map(round).collect()
    }),
    ("a directory is synced while a new file's end has landed and its beginning has not", || {
        vec![
            create("A/new"),
            write("A/new", 0, 100, 47),
            write("A/new", 131_072, 262_144, 48),
            fsync("A"),
            fsync("A/foo"),
        ]
    }),
    ("a whiteout takes a name that was exchanged and synced before", || {
        vec![exchange("A/foo", "A/bar"), fsync("A/foo"), whiteout("A/foo", "B/foo"), fsync("B/foo")]
    }),
    ("a directory's last entry goes and another name comes", || {
        vec![unlink("B/sym"), create("B/new"), fsync("B"), fsync("B/new")]
    }),
    ("a directory's last entry goes and a file moves in", || {
        vec![unlink("B/sym"), rename("A/foo", "B/foo"), fsync("A")]
    }),
    ("a clone is synced and emptied, its source grows and is synced", || {
        vec![
            create("x"),
            write("x", 0, 65_536, 50),
            create("y"),
            clone("x", "y"),
            fsync("y"),
            truncate("y", 0),
            append("x", 65_536, 51),
            fsync("x"),
        ]
    }),
    ("a synced file is cloned and emptied, its clone grows and is synced", || {
        vec![
            create("x"),
            write("x", 0, 65_536, 52),
            fsync("x"),
            create("y"),
            clone("x", "y"),
            truncate("x", 0),
            append("y", 65_536, 53),
            fsync("y"),
        ]
    }),
    ("a synced file grows and is cloned, the clone is synced", || {
        vec![
            create("x"),
            write("x", 0, 65_536, 54),
            fsync("x"),
            append("x", 65_536, 55),
            create("y"),
            clone("x", "y"),
            fsync("y"),
        ]
    }),
    ("a cut file is written, and what was written becomes a hole over old content", || {
        vec![
            truncate("B/big", 0),
            write("B/big", 0, 65_536, 56),
            punch("B/big", 0, 32_768),
            fsync("B/big"),
        ]
    }),
    ("a small file is cut and written, and becomes a hole over old content", || {
        vec![
            truncate("A/bar", 0),
            write("A/bar", 0, 50, 57),
            punch("A/bar", 0, 4096),
            fsync("A/bar"),
        ]
    }),
    ("a cut file grows, and a part of it is zeroed, a hole over old content", || {
        vec![
            truncate("B/big", 10_000),
            append("B/big", 50_000, 58),
            fallocate("B/big", FallocateMode::ZeroRange { keep_size: true }, 5000, 40_000),
            punch("B/big", 20_000, 10_000),
            fsync("B/big"),
        ]
    }),
];
