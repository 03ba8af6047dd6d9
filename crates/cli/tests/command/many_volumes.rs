//! Groups with many volumes on the command line.

use std::path::Path;

use bedplate_block::DeviceOptions;
use serde_json::Value;

use super::harness::{Run, Scratch, can_mount, command, pattern, run, text};
use super::volumes::refusal;

/// Runs a command beside the images of a group, so that its name is found.
fn at(scratch: &Scratch, arguments: &[&str]) -> Run {
    let mut command = command(arguments);
    command.current_dir(scratch.path(""));
    run(command)
}

/// Makes a group of images with a mirror and a RAID-5.
fn made(scratch: &Scratch, members: &[&str]) {
    let mut words = vec!["volume", "create", "tank", "--size", "120M"];
    words.extend(["--volume", "redo:mirror:33M", "--volume", "data:raid5:70M"]);
    words.extend(members);
    at(scratch, &words).succeeds().says("group tank, 2 volumes on 3 members");
}

fn filled(scratch: &Scratch) {
    for (volume, len) in [("redo", 300_000), ("data", 400_000)] {
        let name = format!("group:tank/{volume}");
        at(scratch, &["format", &name]).succeeds();
        let source = scratch.file("source", &pattern(len));
        put(scratch, volume, &source);
    }
}

/// The path of a member of a volume: files inside of a volume are named by one.
fn member_of(scratch: &Scratch, volume: &str) -> String {
    let told = show(scratch, &format!("group:tank/{volume}"));
    let active = told["members"].as_array().unwrap().iter().find(|m| m["state"] == "active");
    active.unwrap()["path"].as_str().unwrap().to_owned()
}

fn put(scratch: &Scratch, volume: &str, source: &Path) {
    at(scratch, &["put", &member_of(scratch, volume), text(source), "/f"]).succeeds();
}

fn show(scratch: &Scratch, name: &str) -> Value {
    at(scratch, &["volume", "show", name, "--json"]).json()
}

fn holds(scratch: &Scratch, volume: &str, len: usize) {
    let found = at(scratch, &["cat", &member_of(scratch, volume), "/f"]).succeeds();
    assert!(found.stdout_bytes() == pattern(len), "{volume}");
    at(scratch, &["check", &format!("group:tank/{volume}")]).succeeds();
}

/// S-564, S-565, S-567, S-569: made, used by name, one more, grown, given another layout, removed, moved.
#[test]
fn s_569_volumes_of_one_group_are_used_by_name_and_move_together() {
    let scratch = Scratch::new();
    made(&scratch, &["a.img", "b.img", "c.img"]);
    filled(&scratch);
    let told = show(&scratch, "group:tank");
    let names: Vec<&str> =
        told["volumes"].as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
    assert_eq!(
        (names, told["members"].as_array().unwrap().len()),
        (vec!["tank/redo", "tank/data"], 3)
    );
    let free = |told: &Value| told["members"][2]["free_bytes"].as_u64().unwrap();
    let before = free(&told);
    let listed = at(&scratch, &["volume", "list"]).succeeds().stdout();
    assert!(listed.contains("tank/redo") && listed.contains("tank/data"), "{listed}");

    at(
        &scratch,
        &["volume", "add-volume", "group:tank", "late:mirror:8M", "--on", "b.img", "c.img"],
    )
    .succeeds()
    .says("3 volumes");
    assert!(free(&show(&scratch, "group:tank")) < before);
    let unsure = refusal(at(&scratch, &["volume", "remove-volume", "group:tank", "late"]));
    assert!(unsure.contains("add --yes"), "{unsure}");
    at(&scratch, &["volume", "remove-volume", "group:tank", "late", "--yes"]).succeeds();
    assert_eq!(free(&show(&scratch, "group:tank")), before);

    at(&scratch, &["volume", "grow", "group:tank/redo", "40M"]).succeeds();
    let redo = show(&scratch, "group:tank/redo");
    assert_eq!(redo["volumes"][0]["size_bytes"].as_u64(), Some(40 << 20));
    at(&scratch, &["grow", "group:tank/redo"]).succeeds().says("40 MiB");
    let relayout =
        ["volume", "relayout", "group:tank/redo", "--layout", "stripe", "--columns", "2"];
    let told = refusal(at(&scratch, &relayout));
    assert!(told.contains("add --yes"), "{told}");
    at(&scratch, &[&relayout[..], &["--yes"]].concat()).succeeds();
    assert_eq!(show(&scratch, "group:tank/redo")["volumes"][0]["layout"], "stripe");
    at(&scratch, &["volume", "scrub", "group:tank"]).succeeds().says("tank/data");
    at(&scratch, &["volume", "stat", "group:tank"]).succeeds().says("tank/redo").says("tank/data");
    let more = scratch.path("more.img");
    std::fs::File::create(&more).unwrap().set_len(64 << 20).unwrap();
    let (group, device) = ("group:tank", "more.img");
    at(&scratch, &["volume", "add", group, device]).succeeds().says("on 4 members");
    let told = refusal(at(&scratch, &["volume", "remove", group, "a.img"]));
    assert!(told.contains("redo, data lies on") || told.contains("data lies on"), "{told}");
    at(&scratch, &["volume", "remove", group, device]).succeeds().says("on 3 members");
    at(&scratch, &["volume", "export", "group:tank"]).succeeds();
    for (from, to) in [("a.img", "x.img"), ("b.img", "y.img"), ("c.img", "z.img")] {
        std::fs::rename(scratch.path(from), scratch.path(to)).unwrap();
    }
    at(&scratch, &["volume", "import", "group:tank"]).succeeds().says("z.img");
    holds(&scratch, "redo", 300_000);
    holds(&scratch, "data", 400_000);
}

/// S-564, S-567: two daemons, one volume each; the table changes meanwhile, and what is mounted is
/// not removed.
#[test]
fn s_564_two_volumes_are_mounted_at_once() {
    if !can_mount("s_564_two_volumes_are_mounted_at_once") {
        return;
    }
    let scratch = Scratch::new();
    made(&scratch, &["a.img", "b.img", "c.img"]);
    filled(&scratch);
    let dirs = [scratch.directory("redo"), scratch.directory("data")];
    let mounted = Mounted(&scratch, dirs.to_vec());
    for (volume, dir) in [("redo", &dirs[0]), ("data", &dirs[1])] {
        at(&scratch, &["mount", &format!("group:tank/{volume}"), text(dir)]).succeeds();
        std::fs::write(dir.join("new"), pattern(200_000)).unwrap();
    }
    for words in [
        &["volume", "remove-volume", "group:tank", "redo", "--yes"][..],
        &["volume", "grow", "group:tank/redo", "36M"],
        &["volume", "export", "group:tank"],
    ] {
        let told = refusal(at(&scratch, words));
        assert!(told.contains("is mounted at"), "{words:?}: {told}");
    }
    at(&scratch, &["volume", "add-volume", "group:tank", "late:stripe"]).succeeds();
    at(&scratch, &["volume", "remove-volume", "group:tank", "late", "--yes"]).succeeds();
    let new = scratch.path("new.img");
    std::fs::File::create(&new).unwrap().set_len(120 << 20).unwrap();
    at(&scratch, &["volume", "replace", "group:tank", "a.img", "new.img"]).succeeds();
    for volume in ["group:tank/redo", "group:tank/data"] {
        at(&scratch, &["volume", "wait", volume]).succeeds().says("new.img");
    }
    for dir in &dirs {
        assert!(std::fs::read(dir.join("new")).unwrap() == pattern(200_000));
    }
    drop(mounted);
    std::fs::remove_file(scratch.path("a.img")).unwrap();
    at(&scratch, &["volume", "show", "group:tank"]).succeeds();
    holds(&scratch, "redo", 300_000);
    holds(&scratch, "data", 400_000);
}

/// Mounts that end with the test, whatever its outcome.
struct Mounted<'a>(&'a Scratch, Vec<std::path::PathBuf>);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        for dir in &self.1 {
            drop(at(self.0, &["unmount", text(dir)]));
        }
    }
}

/// S-568: a member that is gone is replaced in every volume; what was interrupted is ended by the
/// next import.
#[test]
fn s_568_a_member_that_is_gone_is_replaced_and_an_import_ends_what_was_interrupted() {
    let scratch = Scratch::new();
    made(&scratch, &["a.img", "b.img", "c.img"]);
    filled(&scratch);
    std::fs::remove_file(scratch.path("a.img")).unwrap();
    let told = refusal(at(&scratch, &["volume", "import", "group:tank"]));
    assert!(told.contains("a.img") && told.contains("--degraded"), "{told}");
    let add = ["volume", "add-volume", "group:tank", "late:mirror:8M", "--on", "b.img", "c.img"];
    let told = refusal(at(&scratch, &add));
    assert!(told.contains("a.img") && told.contains("volume replace"), "{told}");
    let new = scratch.path("new.img");
    std::fs::File::create(&new).unwrap().set_len(120 << 20).unwrap();
    let replace = ["volume", "replace", "group:tank", "a.img", "new.img"];
    let told = refusal(at(&scratch, &replace));
    assert!(told.contains("import --degraded group:tank"), "{told}");
    at(&scratch, &["volume", "import", "--degraded", "group:tank"]).ends(0);
    at(&scratch, &["volume", "show", "group:tank"]).ends(1).says("not found").says("degraded");

    // The second volume is in use elsewhere, so the command cannot end.
    let busy =
        bedplate_block::open(member_of(&scratch, "data"), &DeviceOptions::default()).unwrap();
    let told = refusal(at(&scratch, &replace));
    assert!(told.contains("in use"), "{told}");
    at(&scratch, &["volume", "show", "group:tank"]).ends(1).says("takes the place of another");
    let other = scratch.path("other.img");
    std::fs::File::create(&other).unwrap().set_len(120 << 20).unwrap();
    let late = ["volume", "replace", "group:tank", "a.img", "other.img"];
    let late = refusal(at(&scratch, &late));
    assert!(late.contains("being replaced already"), "{late}");
    drop(busy);
    at(&scratch, &["volume", "import", "group:tank"]).succeeds().says("new.img");
    let told = show(&scratch, "group:tank");
    let members = told["members"].as_array().unwrap();
    assert!(members.len() == 3 && members.iter().all(|m| m["replaces"].is_null()), "{told}");
    std::fs::remove_file(scratch.path("b.img")).unwrap();
    at(&scratch, &["volume", "import", "--degraded", "group:tank"]).ends(0);
    holds(&scratch, "redo", 300_000);
    holds(&scratch, "data", 400_000);
}

/// S-569
#[test]
fn s_569_what_cannot_be_done_is_refused_in_a_sentence() {
    let scratch = Scratch::new();
    let create = |volumes: &[&str]| {
        let mut words = vec!["volume", "create", "tank", "a.img", "b.img", "--size", "120M"];
        volumes.iter().for_each(|volume| words.extend(["--volume", volume]));
        refusal(at(&scratch, &words))
    };
    let told = create(&["redo:mirror:33M", "redo:stripe"]);
    assert!(told.contains("two volumes redo") && !scratch.path("a.img").exists(), "{told}");
    let told = create(&["redo:mirror:4G"]);
    assert!(told.contains("redo needs 4100 MiB") && told.contains("116 MiB are free"), "{told}");
    let told = create(&["redo:raid5:33M"]);
    assert!(told.contains("volume redo") && told.contains("at least three members"), "{told}");
    at(&scratch, &["volume", "create", "t", "a.img", "--volume", "a:raid9"]).fails(2, "no layout");
    let idle = ["volume", "create", "t", "a.img", "--volume", "a:mirror", "--layout", "mirror"];
    at(&scratch, &idle).fails(2, "cannot be used with");

    made(&scratch, &["a.img", "b.img", "c.img"]);
    for (words, part) in [
        (&["format", "a.img"][..], "name one, group:tank/redo or group:tank/data"),
        (&["format", "group:tank", "--force"], "name one"),
        (&["info", "group:tank"], "name one"),
        (&["volume", "split", "group:tank/redo", "0", "--as", "x"], "a split is not offered"),
        (&["volume", "join", "group:tank/redo", "x", "--keep", "x"], "a join is not offered"),
        (&["volume", "spare", "group:tank/redo", "new.img"], "a spare is not offered"),
        (&["volume", "add", "group:tank/redo", "new.img"], "not offered for tank/redo"),
        (&["volume", "replace", "group:tank/redo", "0", "new.img"], "not offered for tank/redo"),
        (&["volume", "relayout", "group:tank", "--layout", "stripe"], "name one"),
        (&["volume", "add-volume", "group:tank", "redo:mirror:8M"], "two volumes redo"),
        (&["volume", "add-volume", "group:none", "x:mirror:8M"], "no group with many volumes"),
        (&["volume", "remove-volume", "group:tank", "x", "--yes"], "there are redo, data"),
        (&["volume", "replace", "group:tank", "x.img", "a.img"], "has no member x.img"),
        (&["volume", "create", "other", "a.img", "b.img"], "by force only"),
    ] {
        let told = refusal(at(&scratch, words));
        assert!(told.contains(part), "{words:?}: {told}");
    }
    // A table that is damaged in one place is read in the other; in both it is refused, and the
    // volumes go on without the member.
    let image = scratch.path("a.img");
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    let damage = |at| std::os::unix::fs::FileExt::write_all_at(&file, &[0x55; 64], at).unwrap();
    damage(200);
    at(&scratch, &["volume", "show", "a.img"]).succeeds();
    damage((1 << 20) + 200);
    at(&scratch, &["volume", "show", "group:tank"]).ends(4).says("not found").says("refused");
    at(&scratch, &["volume", "import", "--degraded", "group:tank"]).succeeds().says("degraded");
    let told = refusal(at(&scratch, &["volume", "create", "other", "a.img", "b.img"]));
    assert!(told.contains("by force only"), "{told}");
}
