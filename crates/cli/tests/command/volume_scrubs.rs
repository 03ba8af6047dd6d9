//! Scrubs of groups: what differs, which copy is believed, and when they run.

use std::os::unix::fs::FileExt;

use super::harness::{Scratch, bedplate, text};
use super::volumes::{group, refusal};

#[test]
fn a_scrub_names_the_file_that_differs_and_leaves_what_nobody_knows() {
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    bedplate(["format", text(&members[0])]).succeeds();
    let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    let file = scratch.file("in", &content);
    bedplate(["put", text(&members[0]), text(&file), "/data"]).succeeds();
    assert!(
        bedplate(["volume", "scrub", text(&members[0])])
            .succeeds()
            .stdout()
            .contains("0 differences")
    );
    // A bit turns on one member, in the middle of the file.
    let image = std::fs::OpenOptions::new().read(true).write(true).open(&members[1]).unwrap();
    let bytes = std::fs::read(&members[1]).unwrap();
    let needle: Vec<u8> = (50_000..50_004_u32).flat_map(u32::to_le_bytes).collect();
    let at = bytes.windows(needle.len()).rposition(|window| window == needle).unwrap();
    image.write_all_at(&[bytes[at] ^ 4], at as u64).unwrap();
    drop(image);
    let run = bedplate(["volume", "scrub", "--repair", text(&members[0])]);
    assert_eq!(run.code(), 4);
    let found = run.stdout();
    assert!(found.contains("/data, byte 199") || found.contains("/data, byte 200"), "{found}");
    assert!(found.contains("not known") && found.contains("m1.img"), "{found}");
}

/// S-284: of a file that is no database a scrub believes the copy that has the checksum, on either
/// member and of a RAID-5 too, and makes the other like it.
#[test]
fn s_284_a_scrub_believes_the_copy_that_has_its_checksum() {
    for (shape, count, spoiled) in [("mirror", 2, 0), ("mirror", 2, 1), ("raid5", 3, 1)] {
        let scratch = Scratch::new();
        let members = group(&scratch, shape, count, &[]);
        bedplate(["format", text(&members[0])]).succeeds();
        let inside = format!("{}:/", text(&members[0]));
        bedplate(["integrity", &inside, "on"]).succeeds();
        let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let file = scratch.file("in", &content);
        bedplate(["put", text(&members[0]), text(&file), "/data"]).succeeds();
        let mut bytes = std::fs::read(&members[spoiled]).unwrap();
        // Some block of the file that lies on the member.
        let on_member = |number: &u32| {
            let needle: Vec<u8> = (*number..*number + 8).flat_map(u32::to_le_bytes).collect();
            bytes.windows(32).rposition(|window| window == needle)
        };
        let at = (50_000..70_000).step_by(4096).find_map(|number| on_member(&number)).unwrap();
        bytes[at] ^= 4;
        std::fs::write(&members[spoiled], &bytes).unwrap();
        let found =
            bedplate(["volume", "scrub", "--repair", text(&members[0])]).succeeds().stdout();
        assert!(found.contains("/data, byte "), "{shape}, {spoiled}: {found}");
        let again = bedplate(["volume", "scrub", text(&members[0])]).succeeds().stdout();
        assert!(again.contains("0 differences"), "{shape}, {spoiled}: {again}");
        let read = bedplate(["cat", text(&members[0]), "/data"]).succeeds();
        assert!(read.stdout_bytes() == &content[..], "{shape}, {spoiled}");
        bytes[at] ^= 4;
        let now = std::fs::read(&members[spoiled]).unwrap();
        assert!(now[at] == bytes[at], "{shape}, {spoiled}: the member has it again");
    }
}

/// S-431: what only a checkpoint has is named and mended, and superblocks and pages of the metadata
/// tree are mended, on either member and of a RAID-5 too.
#[test]
fn s_431_a_scrub_mends_what_rots_of_a_checkpoint_and_of_metadata() {
    for (shape, count, spoiled) in [("mirror", 2, 0), ("mirror", 2, 1), ("raid5", 3, 1)] {
        let scratch = Scratch::new();
        let members = group(&scratch, shape, count, &[]);
        let first = text(&members[0]);
        bedplate(["format", first]).succeeds();
        bedplate(["integrity", &format!("{first}:/"), "on"]).succeeds();
        let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let file = scratch.file("in", &content);
        bedplate(["put", first, text(&file), "/data"]).succeeds();
        bedplate(["checkpoint", "create", first, "then"]).succeeds();
        bedplate(["rm", first, "/data"]).succeeds();
        let whole = std::fs::read(&members[spoiled]).unwrap();
        let mut bytes = whole.clone();
        let last_of = |needle: &[u8]| bytes.windows(needle.len()).rposition(|w| w == needle);
        let block = (50_000..70_000).step_by(4096).find_map(|number: u32| {
            last_of(&(number..number + 8).flat_map(u32::to_le_bytes).collect::<Vec<_>>())
        });
        let tree = last_of(b"checkpoint_scope");
        let superblock = last_of(b"BEDPLATE");
        let rotten: Vec<usize> = [block, superblock, tree].into_iter().flatten().collect();
        assert!(block.is_some() && rotten.len() > 1, "{shape}, {spoiled}: {rotten:?}");
        rotten.iter().for_each(|at| bytes[*at] ^= 4);
        std::fs::write(&members[spoiled], &bytes).unwrap();
        let found = bedplate(["volume", "scrub", "--repair", first]).succeeds().stdout();
        assert!(found.contains("checkpoint 'then', inode "), "{shape}, {spoiled}: {found}");
        let now = std::fs::read(&members[spoiled]).unwrap();
        for at in rotten {
            assert!(now[at] == whole[at], "{shape}, {spoiled}: byte {at} is right again");
        }
        let again = bedplate(["volume", "scrub", first]).succeeds().stdout();
        assert!(again.contains("0 differences"), "{shape}, {spoiled}: {again}");
    }
}

/// A database of SQLite as the checksum VFS leaves it: its header, and eight bytes of sums at the
/// end of every page.
pub fn checksummed(page_bytes: usize, pages: usize) -> Vec<u8> {
    let mut all: Vec<u8> = (0..page_bytes * pages / 4)
        .flat_map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    all[..16].copy_from_slice(b"SQLite format 3\0");
    all[16..18].copy_from_slice(&(page_bytes as u16).to_be_bytes());
    all[20] = 8;
    for page in all.chunks_mut(page_bytes) {
        let (mut sums, end) = ([0_u32; 2], page_bytes - 8);
        for (at, word) in page[..end].chunks(4).enumerate() {
            let word = u32::from_le_bytes(word.try_into().unwrap());
            sums[at % 2] = sums[at % 2].wrapping_add(word).wrapping_add(sums[1 - at % 2]);
        }
        page[end..end + 4].copy_from_slice(&sums[0].to_le_bytes());
        page[end + 4..].copy_from_slice(&sums[1].to_le_bytes());
    }
    all
}

/// S-64, S-96: pages smaller than a block and larger ones; a bit in the middle of a page and one in
/// the header that tells what the pages are.
#[test]
fn s_96_a_scrub_believes_the_copy_whose_database_page_verifies() {
    for (page_bytes, turned, page) in
        [(1024, 5 * 1024 + 77, 5), (8192, 3 * 8192 + 5000, 3), (4096, 18, 0)]
    {
        let scratch = Scratch::new();
        let members = group(&scratch, "mirror", 2, &[]);
        bedplate(["format", text(&members[0])]).succeeds();
        let content = checksummed(page_bytes, 64);
        let file = scratch.file("in", &content);
        bedplate(["put", text(&members[0]), text(&file), "/some.db"]).succeeds();
        let mut bytes = std::fs::read(&members[0]).unwrap();
        let needle = &content[1000..1064];
        let start =
            bytes.windows(needle.len()).rposition(|window| window == needle).unwrap() - 1000;
        bytes[start + turned] ^= 4;
        std::fs::write(&members[0], &bytes).unwrap();
        let found =
            bedplate(["volume", "scrub", "--repair", text(&members[0])]).succeeds().stdout();
        assert!(
            found.contains(&format!("SQLite page {page}")) && found.contains("m1.img is right"),
            "{found}"
        );
        assert!(
            bedplate(["volume", "scrub", text(&members[0])])
                .succeeds()
                .stdout()
                .contains("0 differences")
        );
        assert_eq!(
            bedplate(["cat", text(&members[0]), "/some.db"]).succeeds().stdout_bytes(),
            &content[..]
        );
    }
}

/// S-107: a bit in a page of a RAID-5 is made again from the rest of its row, one in the parity
/// where all pages of the row are whole, and what is wrong twice is left.
#[test]
fn s_107_a_scrub_of_a_raid5_finds_the_unit_that_is_wrong_by_its_database_page() {
    const ROWS: usize = 4 << 20;
    let scratch = Scratch::new();
    let members = group(&scratch, "raid5", 3, &["--unit", "64K"]);
    bedplate(["format", text(&members[0])]).succeeds();
    let content = checksummed(4096, 160);
    let file = scratch.file("in", &content);
    bedplate(["put", text(&members[0]), text(&file), "/some.db"]).succeeds();
    let mut images: Vec<Vec<u8>> =
        members.iter().map(|path| std::fs::read(path).unwrap()).collect();
    // Page by page: a place on the members at which both units of data hold pages of the file.
    let page_at = |member: usize, at: usize| {
        content.chunks(4096).position(|page| page == &images[member][at..at + 4096])
    };
    let parity_of = |at: usize| 2 - (at - ROWS) / (64 << 10) % 3;
    let whole = |at: &usize| {
        (0..3)
            .filter(|member| *member != parity_of(*at))
            .all(|member| page_at(member, *at).is_some())
    };
    let at = (ROWS..images[0].len() - 4096).step_by(4096).find(whole).unwrap();
    let (parity, data) = (parity_of(at), (parity_of(at) + 1) % 3);
    let page = page_at(data, at).unwrap();
    let turn = |images: &mut Vec<Vec<u8>>, member: usize| {
        images[member][at + 1000] ^= 4;
        std::fs::write(&members[member], &images[member]).unwrap();
    };
    let scrub = |how: &[&str]| {
        bedplate(["volume", "scrub", text(&members[0])].iter().copied().chain(how.iter().copied()))
    };
    turn(&mut images, data);
    let found = scrub(&[]);
    assert_eq!(found.code(), 4);
    let words = format!(
        "(/some.db, byte {}, SQLite page {page}): {} at byte {} is wrong",
        page * 4096 + 512,
        text(&members[data]),
        at + 512
    );
    assert!(found.stdout().contains(&words), "{words} is missing in {}", found.stdout());
    let found = scrub(&["--repair"]).succeeds().stdout();
    assert!(found.contains(&words.replace("is wrong", "was wrong, made again")), "{found}");
    assert!(scrub(&[]).succeeds().stdout().contains("0 differences"));
    images = members.iter().map(|path| std::fs::read(path).unwrap()).collect();
    turn(&mut images, parity);
    let found = scrub(&["--repair"]).succeeds().stdout();
    assert!(
        found.contains("(parity)")
            && found.contains(&format!(
                "{} at byte {} was wrong",
                text(&members[parity]),
                at + 512
            )),
        "{found}"
    );
    assert!(scrub(&[]).succeeds().stdout().contains("0 differences"));
    images = members.iter().map(|path| std::fs::read(path).unwrap()).collect();
    turn(&mut images, data);
    turn(&mut images, parity);
    assert!(
        scrub(&["--repair"]).succeeds().stdout().contains("0 differences"),
        "one bit in both cancels out in the sum, which parity cannot show"
    );
    // As it is now: what it was before that scrub is an older copy, which would be refused.
    images[parity] = std::fs::read(&members[parity]).unwrap();
    images[parity][at + 1000] ^= 6;
    std::fs::write(&members[parity], &images[parity]).unwrap();
    let found = scrub(&["--repair"]);
    assert!(
        found.code() == 4 && found.stdout().contains("not known which is right"),
        "{}",
        found.stdout()
    );
}

/// S-106: a schedule is told, carried out while the group is open, and forgotten when it is turned
/// off.
#[test]
fn s_106_scrubs_are_put_on_schedule_and_shown() {
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    let first = text(&members[0]);
    bedplate(["volume", "scrub", first, "--every", "soon"]).fails(2, "--every");
    assert!(
        refusal(bedplate(["volume", "scrub", first, "--every", "10s"]))
            .contains("between a minute and ten years")
    );
    assert!(bedplate(["volume", "show", first, "--json"]).json()["scrub"].is_null());
    assert!(
        bedplate(["volume", "scrub", first, "--every", "7d", "--repair"])
            .succeeds()
            .stdout()
            .contains("scrub every 7d with repair, ")
    );
    let state = || bedplate(["volume", "show", first, "--json"]).json()["scrub"].clone();
    // Every opening goes on with it.
    let start = std::time::Instant::now();
    while state()["state"] != "waiting" {
        assert!(start.elapsed().as_secs() < 120, "{}", state());
        bedplate(["volume", "scrub", first]).succeeds();
    }
    let told = state();
    assert_eq!(
        (
            told["every_s"].as_u64(),
            told["last"]["differences"].as_u64(),
            told["last"]["left"].as_u64()
        ),
        (Some(604_800), Some(0), Some(0))
    );
    assert_eq!(told["next_s"].as_u64().unwrap() - told["begun_s"].as_u64().unwrap(), 604_800);
    let shown = bedplate(["volume", "show", first]).succeeds().stdout();
    assert!(shown.contains("next 20") && shown.contains("0 differences, 0 left"), "{shown}");
    assert!(
        !bedplate(["volume", "scrub", first, "--every", "off"])
            .succeeds()
            .stdout()
            .contains("scrub every")
    );
    assert!(state().is_null());
}
