//! Groups of which one copy has rotted unseen, whose data is then moved or copied: what has a
//! checksum, a page of a database and metadata go on as they were written.

use std::collections::HashSet;
use std::path::Path;

use super::harness::{Scratch, bedplate, can_mount, text};
use super::volume_scrubs::checksummed;
use super::volumes::{another, group};

const BLOCK: usize = 4096;

/// Formats a group and puts a file with checksums and a database onto it.
fn filled(scratch: &Scratch, first: &str) -> (Vec<u8>, Vec<u8>) {
    bedplate(["format", first]).succeeds();
    let content: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let database = checksummed(BLOCK, 64);
    let put = |bytes: &[u8], name: &str| {
        bedplate(["put", first, text(&scratch.file("in", bytes)), name]).succeeds();
    };
    put(&database, "/some.db");
    bedplate(["integrity", &format!("{first}:/"), "on"]).succeeds();
    put(&content, "/data");
    (content, database)
}

/// Turns a bit in some of the blocks of files that lie on a member; returns in how many.
fn rot(member: &Path, files: &[&[u8]]) -> usize {
    let blocks: HashSet<&[u8]> = files.iter().flat_map(|file| file.chunks_exact(BLOCK)).collect();
    let mut bytes = std::fs::read(member).unwrap();
    let mut rotten = 0;
    for (number, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
        if number % 5 == 0 && blocks.contains(&*block) {
            block[1234] ^= 4;
            rotten += 1;
        }
    }
    std::fs::write(member, &bytes).unwrap();
    assert!(rotten > 10, "files lie on {}: {rotten} blocks", member.display());
    rotten
}

/// Turns a bit in a superblock, and in the header and a page of the metadata tree, that lie on a member.
fn rot_metadata(member: &Path) {
    let mut bytes = std::fs::read(member).unwrap();
    let last_of = |needle: &[u8]| bytes.windows(needle.len()).rposition(|some| some == needle);
    let places =
        [last_of(b"BEDPLATE"), last_of(b"redb\x1a\n\xa9\r\n"), last_of(b"user.bedplate.integrity")];
    places.into_iter().flatten().for_each(|at| bytes[at] ^= 4);
    assert!(places.iter().any(Option::is_some), "metadata lies on {}", member.display());
    std::fs::write(member, &bytes).unwrap();
}

/// Says that everything on a group is what was written.
fn is_right(member: &str, (content, database): &(Vec<u8>, Vec<u8>), what: &str) {
    bedplate(["check", "--data", member]).succeeds();
    for (name, bytes) in [("/data", content), ("/some.db", database)] {
        assert!(
            bedplate(["cat", member, name]).succeeds().stdout_bytes() == &bytes[..],
            "{what}: {name}"
        );
    }
}

/// S-410: also the first bytes of the header of the metadata tree, which say what it is, are read from
/// another copy where they have rotted.
#[test]
fn s_410_a_header_that_has_rotted_in_one_copy_is_read_from_the_other() {
    for spoiled in [0, 1] {
        let scratch = Scratch::new();
        let members = group(&scratch, "mirror", 2, &[]);
        let first = text(&members[0]);
        let files = filled(&scratch, first);
        rot_metadata(&members[spoiled]);
        is_right(first, &files, &format!("{spoiled} had rotted"));
        bedplate(["volume", "scrub", "--repair", first]).succeeds();
        bedplate(["volume", "scrub", first]).succeeds().says(" 0 differences");
    }
}

/// S-498: a relayout of a group that nothing has mounted moves the copy that is right, whichever
/// member it is on.
#[test]
fn s_498_a_relayout_of_what_is_not_mounted_moves_what_was_written() {
    let to_stripe: &[&str] = &["--layout", "stripe", "--columns", "2", "--yes"];
    let unit: &[&str] = &["--unit", "32K"];
    for (layout, members, spoiled, to) in
        [("mirror", 2, 0..2, to_stripe), ("stripe-mirror", 4, 1..3, unit), ("raid5", 3, 1..2, unit)]
    {
        for spoiled in spoiled {
            let scratch = Scratch::new();
            let members = group(&scratch, layout, members, &[]);
            let files = filled(&scratch, text(&members[0]));
            rot(&members[spoiled], &[&files.0, &files.1]);
            if layout == "mirror" {
                rot_metadata(&members[spoiled]);
            }
            let relayout = ["volume", "relayout", text(&members[0]), "--step", "1M"];
            bedplate(relayout.iter().chain(to)).succeeds();
            is_right(text(&members[0]), &files, &format!("{layout}, {spoiled}"));
        }
    }
}

/// S-499: a member that takes the place of one of three is filled from the copy that is right.
#[test]
fn s_499_a_member_of_what_is_not_mounted_is_filled_with_what_was_written() {
    for spoiled in [0, 1] {
        let scratch = Scratch::new();
        let members = group(&scratch, "mirror", 3, &[]);
        let first = text(&members[0]);
        let files = filled(&scratch, first);
        rot(&members[spoiled], &[&files.0, &files.1]);
        rot_metadata(&members[spoiled]);
        let new = another(&scratch, "m3.img");
        bedplate(["volume", "replace", first, text(&members[2]), text(&new)]).succeeds();
        bedplate(["volume", "import", first]).succeeds();
        bedplate(["volume", "scrub", first]).succeeds().says(" 0 differences");
        is_right(first, &files, &format!("{spoiled} had rotted"));
    }
}

/// S-498: and so does a relayout under a live mount.
#[test]
fn s_498_a_relayout_under_a_mount_moves_what_was_written() {
    if !can_mount("volume_copies") {
        return;
    }
    for spoiled in [0, 1] {
        let scratch = Scratch::new();
        let members = group(&scratch, "mirror", 2, &[]);
        let first = text(&members[0]);
        let files = filled(&scratch, first);
        let dir = scratch.directory("mnt");
        bedplate(["mount", first, text(&dir)]).succeeds();
        rot(&members[spoiled], &[&files.0, &files.1]);
        bedplate(["volume", "relayout", first, "--layout", "stripe", "--columns", "2", "--yes"])
            .succeeds();
        bedplate(["volume", "wait", first]).succeeds();
        assert!(std::fs::read(dir.join("data")).unwrap() == files.0, "{spoiled} had rotted");
        bedplate(["unmount", first]).succeeds();
        is_right(first, &files, &format!("{spoiled} had rotted"));
    }
}
