//! Mirrors that are split, and halves that become one mirror again, on the command line.

use std::path::PathBuf;

use serde_json::Value;

use super::harness::{Scratch, bedplate, can_mount, command, pattern, run, text};
use super::volumes::{group, refusal};

fn put(scratch: &Scratch, member: &str, content: &[u8], name: &str) {
    let source = scratch.file("source", content);
    bedplate(["put", member, text(&source), name]).succeeds();
}

fn cat(member: &str, name: &str) -> Vec<u8> {
    bedplate(["cat", member, name]).succeeds().stdout_bytes().to_vec()
}

fn uuid(member: &str) -> Value {
    bedplate(["info", member, "--json"]).succeeds().json()["uuid"].clone()
}

fn states(member: &str) -> Vec<String> {
    let told = bedplate(["volume", "show", member, "--json"]).json();
    let members = told["members"].as_array().unwrap();
    members.iter().map(|member| member["state"].as_str().unwrap().to_owned()).collect()
}

/// A formatted mirror of two with a file on it.
fn mirror(scratch: &Scratch) -> Vec<PathBuf> {
    let members = group(scratch, "mirror", 2, &[]);
    bedplate(["format", text(&members[0])]).succeeds();
    put(scratch, text(&members[0]), &pattern(300_000), "/f");
    members
}

/// S-590, S-593: split, both used, and joined with either half, by names and by devices.
#[test]
fn s_593_a_mirror_is_split_used_twice_and_joined_with_the_side_that_is_named() {
    let scratch = Scratch::new();
    let members = mirror(&scratch);
    let (one, two) = (text(&members[0]), text(&members[1]));
    let told = bedplate(["volume", "split", one, two, "--as", "trial", "--json"]).succeeds().json();
    assert_eq!(told["group"]["split"]["other"], "trial", "{told}");
    assert_eq!(
        (&told["half"]["name"], &told["half"]["split"]["other"]),
        (&"trial".into(), &"tank".into())
    );
    // Split is no failure.
    bedplate(["volume", "show", one]).succeeds().says("group tank, split").says("split from trial");
    assert_eq!(
        (states(one), states(two)),
        (vec!["active".into(), "split".into()], vec!["split".into(), "active".into()])
    );
    assert_ne!(uuid(one), uuid(two));
    for member in [one, two] {
        bedplate(["check", member]).succeeds();
        assert!(cat(member, "/f") == pattern(300_000));
    }
    let again = refusal(bedplate(["volume", "split", one, two, "--as", "trial"]));
    assert!(again.contains("already"), "{again}");
    let other = refusal(bedplate(["volume", "split", one, one, "--as", "third"]));
    assert!(other.contains("trial was split off already"), "{other}");
    put(&scratch, one, b"of tank", "/mine");
    put(&scratch, two, b"of trial", "/theirs");

    bedplate(["volume", "join", one, two]).fails(2, "--keep");
    bedplate(["volume", "join", one, two, "--keep", "neither"]).fails(2, "names neither half");
    let before = [&members[0], &members[1]].map(|member| std::fs::read(member).unwrap());
    let dry = bedplate(["volume", "join", one, two, "--keep", "trial", "--dry-run"]).succeeds();
    dry.says("what tank wrote since would be lost").says("last in use");
    assert!(before == [&members[0], &members[1]].map(|member| std::fs::read(member).unwrap()));
    let joined =
        bedplate(["volume", "join", one, two, "--keep", "trial", "--json"]).succeeds().json();
    assert_eq!(
        (&joined["lost"]["name"], &joined["group"]["name"]),
        (&"tank".into(), &"tank".into()),
        "{joined}"
    );
    let number = |key: &str| joined[key].as_u64().unwrap();
    assert!(number("copied_bytes") > 0 && number("copied_bytes") <= number("total_bytes"));
    bedplate(["volume", "show", one]).succeeds().says("group tank, whole");
    bedplate(["volume", "scrub", one]).succeeds().says(" 0 differences");
    assert!(cat(one, "/theirs") == b"of trial" && cat(one, "/f") == pattern(300_000));
    bedplate(["cat", one, "/mine"]).fails(1, "does not exist");
    bedplate(["check", two]).succeeds();

    // Once more, from anywhere, with the group kept.
    bedplate(["volume", "split", two, "1", "--as", "trial"]).succeeds();
    put(&scratch, one, b"of tank", "/mine");
    put(&scratch, two, b"of trial", "/lost");
    let mut here = command(["volume", "join", "tank", "trial", "--keep", "tank"]);
    here.current_dir(scratch.path(""));
    run(here).succeeds();
    assert!(cat(two, "/mine") == b"of tank" && cat(two, "/theirs") == b"of trial");
    bedplate(["cat", one, "/lost"]).fails(1, "does not exist");
    assert_eq!(states(one), ["active", "active"]);
}

/// S-591, S-595
#[test]
fn s_595_what_cannot_be_split_or_joined_is_refused() {
    let scratch = Scratch::new();
    let members = group(&scratch, "raid5", 3, &[]);
    let told = refusal(bedplate(["volume", "split", text(&members[0]), "0", "--as", "x"]));
    assert!(told.contains("only mirrors can be split"), "{told}");
    let scratch = Scratch::new();
    let members = mirror(&scratch);
    let (one, two) = (text(&members[0]), text(&members[1]));
    let told = refusal(bedplate(["volume", "split", one, one, two, "--as", "x"]));
    assert!(told.contains("more than one whole copy"), "{told}");
    let told = refusal(bedplate(["volume", "split", one, two, "--as", "tank"]));
    assert!(told.contains("a name of its own"), "{told}");
    let told = refusal(bedplate(["volume", "join", one, two, "--keep", "tank"]));
    assert!(told.contains("no half of it"), "{told}");
    bedplate(["volume", "split", one, two, "--as", "x"]).succeeds();
    let import = ["volume", "import", two, "--as", "y", "--new-identity"];
    bedplate(import).succeeds();
    let told = refusal(bedplate(["volume", "join", one, two, "--keep", "tank"]));
    assert!(told.contains("got a new identity since"), "{told}");
    // Each goes on alone, with another mirror for the one that is lost.
    let new = scratch.path("new.img");
    std::fs::File::create(&new).unwrap().set_len(48 << 20).unwrap();
    bedplate(["volume", "replace", one, "1", text(&new)]).succeeds();
    bedplate(["volume", "import", one]).succeeds().says("group tank, whole");
}

/// S-592: while it is mounted and written to.
#[test]
fn s_592_a_mounted_mirror_is_split_and_its_half_is_mounted_beside_it() {
    if !can_mount("halves of a mounted group") {
        return;
    }
    let scratch = Scratch::new();
    let members = mirror(&scratch);
    let (one, two) = (text(&members[0]), text(&members[1]));
    let (dir, beside) = (scratch.directory("mnt"), scratch.directory("beside"));
    bedplate(["mount", one, text(&dir)]).succeeds();
    // Not durable when the command comes: it is on both all the same.
    std::fs::write(dir.join("early"), b"early").unwrap();
    bedplate(["volume", "split", text(&dir), two, "--as", "trial"]).succeeds().says("group trial");
    std::fs::write(dir.join("late"), b"late").unwrap();
    bedplate(["mount", two, text(&beside)]).succeeds();
    for dir in [&dir, &beside] {
        assert!(std::fs::read(dir.join("f")).unwrap() == pattern(300_000));
        assert_eq!(std::fs::read(dir.join("early")).unwrap(), b"early");
    }
    assert!(!beside.join("late").exists());
    std::fs::write(beside.join("upgraded"), b"upgraded").unwrap();
    bedplate(["status", text(&dir)]).succeeds();
    let told = refusal(bedplate(["volume", "join", one, two, "--keep", "tank"]));
    assert!(told.contains("is mounted at") && told.contains("unmount"), "{told}");
    bedplate(["unmount", text(&dir)]).succeeds();
    let told = refusal(bedplate(["volume", "join", one, two, "--keep", "tank"]));
    assert!(told.contains("group trial is mounted at"), "{told}");
    bedplate(["unmount", text(&beside)]).succeeds();
    bedplate(["volume", "join", one, two, "--keep", "tank"]).succeeds().says("group tank, whole");
    assert!(cat(two, "/late") == b"late");
    bedplate(["cat", two, "/upgraded"]).fails(1, "does not exist");
}

/// S-594: the decision is in the labels of the kept half alone: any command finds both halves as the
/// one group, and an import goes on.
#[test]
fn s_594_a_join_that_was_cut_goes_on_by_any_command() {
    let scratch = Scratch::new();
    let members = mirror(&scratch);
    let (one, two) = (text(&members[0]), text(&members[1]));
    bedplate(["volume", "split", one, two, "--as", "trial"]).succeeds();
    put(&scratch, one, b"of tank", "/mine");
    put(&scratch, two, b"of trial", "/theirs");
    let half = std::fs::read(&members[1]).unwrap();
    {
        let open = |path| bedplate_block::open(path, &bedplate::DeviceOptions::default()).unwrap();
        let (kept, other) = ([open(&members[0])], [open(&members[1])]);
        let options = bedplate::ImportOptions { background: false, ..Default::default() };
        drop(bedplate::Group::join(&kept, &other, "tank", &options).unwrap());
    }
    // As if nothing had come to the other half's device.
    std::fs::write(&members[1], half).unwrap();
    let told = bedplate(["volume", "show", two]).ends(1).says("group tank, rebuilding").stdout();
    assert!(told.contains("a join that keeps this half has begun"), "{told}");
    let listed = bedplate(["volume", "list", text(&scratch.path(""))]).ends(1).stdout();
    assert!(listed.contains("tank") && !listed.contains("trial"), "{listed}");
    assert!(cat(two, "/mine") == b"of tank");
    let told = refusal(bedplate(["volume", "join", one, two, "--keep", "trial"]));
    assert!(told.contains("can only be ended"), "{told}");
    bedplate(["volume", "join", one, two, "--keep", "tank"]).succeeds().says("group tank, whole");
    bedplate(["volume", "scrub", two]).succeeds().says(" 0 differences");
    bedplate(["cat", two, "/theirs"]).fails(1, "does not exist");
}
