//! Groups of devices on the command line: made, shown, used, broken, mended.

use std::path::PathBuf;

use super::harness::{Run, Scratch, bedplate, can_mount, text};

/// Makes a group of images and returns their paths.
pub fn group(scratch: &Scratch, layout: &str, members: usize, more: &[&str]) -> Vec<PathBuf> {
    let paths: Vec<PathBuf> = (0..members).map(|n| scratch.path(&format!("m{n}.img"))).collect();
    let mut arguments = vec!["volume", "create", "tank", "--layout", layout, "--size", "40M"];
    arguments.extend(paths.iter().map(|path| path.to_str().unwrap()));
    arguments.extend(more);
    bedplate(arguments).succeeds();
    paths
}

/// Returns the sentence of a refusal.
pub fn refusal(run: Run) -> String {
    let told = run.stderr();
    run.fails(1, "");
    told
}

#[test]
fn a_group_is_made_shown_formatted_used_and_checked_by_any_of_its_members() {
    let scratch = Scratch::new();
    let members = group(&scratch, "stripe-mirror", 4, &[]);
    let shown = bedplate(["volume", "show", text(&members[2])]).succeeds().stdout();
    for words in [
        "group tank, whole, 4 members",
        "striped over 2 columns in units of 64 KiB",
        "├─ mirrored on 2 plexes",
        "m3.img  active",
    ] {
        assert!(shown.contains(words), "{words:?} is missing in {shown}");
    }
    assert!(!shown.contains("p99"), "the default limit is not worth a line: {shown}");
    assert!(
        bedplate(["volume", "tune", text(&members[1]), "--foreground", "2.5"])
            .succeeds()
            .stdout()
            .contains("limit 2.50")
    );
    assert!(
        bedplate(["volume", "show", text(&members[0])])
            .succeeds()
            .stdout()
            .contains("compared: limit 2.50")
    );
    bedplate(["volume", "tune", text(&members[1]), "--foreground", "0.9"]).fails(2, "1.05");
    bedplate(["format", text(&members[1])]).succeeds();
    let file = scratch.file("in", b"content");
    bedplate(["put", text(&members[3]), text(&file), "/file"]).succeeds();
    assert_eq!(bedplate(["cat", text(&members[0]), "/file"]).succeeds().stdout(), "content");
    bedplate(["check", text(&members[2])]).succeeds();
    let listed =
        bedplate(["volume", "list", text(members[0].parent().unwrap())]).succeeds().stdout();
    assert!(listed.contains("tank") && listed.contains("stripe-mirror"), "{listed}");
    let told = bedplate(["volume", "show", text(&members[0]), "--json"]).json();
    assert_eq!(
        (told["clean"].as_bool(), told["volumes"][0]["copies"].as_u64()),
        (Some(true), Some(2))
    );
    bedplate(["volume", "export", text(&members[0])]).succeeds();
}

#[test]
fn a_group_goes_on_without_a_member_and_takes_it_back() {
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    bedplate(["format", text(&members[0])]).succeeds();
    let elsewhere = scratch.directory("elsewhere").join("away.img");
    std::fs::rename(&members[1], &elsewhere).unwrap();
    let told = bedplate(["info", text(&members[0])]).fails(4, "--degraded").stderr();
    assert!(told.contains("m1.img"), "{told}");
    assert!(
        bedplate(["volume", "import", "--degraded", text(&members[0])])
            .succeeds()
            .stdout()
            .contains("degraded")
    );
    let file = scratch.file("in", b"content");
    bedplate(["put", text(&members[0]), text(&file), "/file"]).succeeds();
    // It comes back under another name.
    let back = scratch.path("back.img");
    std::fs::rename(&elsewhere, &back).unwrap();
    assert!(bedplate(["volume", "import", text(&back)]).succeeds().stdout().contains("whole"));
    std::fs::remove_file(&members[0]).unwrap();
    bedplate(["volume", "import", "--degraded", text(&back)]).succeeds();
    assert_eq!(bedplate(["cat", text(&back), "/file"]).succeeds().stdout(), "content");
}

#[test]
fn a_spare_and_a_replacement_come_and_go() {
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    let new = scratch.path("new.img");
    std::fs::File::create(&new).unwrap().set_len(40 << 20).unwrap();
    assert!(
        bedplate(["volume", "spare", text(&members[0]), text(&new)])
            .succeeds()
            .stdout()
            .contains("spare: ")
    );
    let told =
        refusal(bedplate(["volume", "replace", text(&members[0]), text(&members[1]), text(&new)]));
    assert!(
        told.contains("is a member of the group tank already") && told.contains("volume remove"),
        "{told}"
    );
    assert!(
        !bedplate(["volume", "remove", text(&members[0]), text(&new)])
            .succeeds()
            .stdout()
            .contains("spare: ")
    );
    let told = refusal(bedplate(["volume", "remove", text(&members[0]), text(&members[1])]));
    assert!(told.contains("replace it where there is another copy"), "{told}");
    bedplate(["volume", "replace", text(&members[0]), text(&members[1]), text(&new)]).succeeds();
    let shown = bedplate(["volume", "import", text(&members[0])]).succeeds().stdout();
    assert!(shown.contains("new.img  active") && !shown.contains("m1.img"), "{shown}");
}

/// S-108: a member that is replaced loses its label; one that was away then is named beside the
/// others, and loses it when that is asked for.
#[test]
fn s_108_who_was_replaced_is_no_member_any_more() {
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    let (first, second, third) =
        (text(&members[0]), another(&scratch, "second.img"), another(&scratch, "third.img"));
    bedplate(["volume", "replace", first, text(&members[1]), text(&second)]).succeeds();
    assert!(
        refusal(bedplate(["volume", "import", "--degraded", text(&members[1])]))
            .contains("carries no label")
    );
    bedplate(["volume", "import", first]).succeeds();
    let elsewhere = scratch.directory("elsewhere").join("second.img");
    std::fs::rename(&second, &elsewhere).unwrap();
    bedplate(["volume", "import", "--degraded", first]).succeeds();
    bedplate(["volume", "replace", first, "1", text(&third)]).succeeds();
    std::fs::rename(&elsewhere, &second).unwrap();
    let run = bedplate(["volume", "import", text(&second)]);
    assert!(
        run.stderr().contains("second.img is outdated: it was replaced in the group tank"),
        "{}",
        run.stderr()
    );
    assert!(run.succeeds().stdout().contains("whole"));
    bedplate(["volume", "remove", first, text(&second)]).succeeds();
    assert!(
        refusal(bedplate(["volume", "import", "--degraded", text(&second)]))
            .contains("carries no label")
    );
}

/// S-109: what is left of a group is mounted read-only, and no member is written to.
#[test]
fn s_109_a_group_without_a_member_is_mounted_to_look_at_it() {
    if !can_mount("volumes") {
        return;
    }
    let scratch = Scratch::new();
    let members = group(&scratch, "raid5", 3, &[]);
    bedplate(["format", text(&members[0])]).succeeds();
    let file = scratch.file("in", &[7; 300_000]);
    bedplate(["put", text(&members[0]), text(&file), "/file"]).succeeds();
    std::fs::remove_file(&members[1]).unwrap();
    let dir = scratch.directory("mnt");
    let before = [0, 2].map(|at| std::fs::read(&members[at]).unwrap());
    let told = refusal(bedplate(["mount", "-o", "ro", text(&members[0]), text(&dir)]));
    assert!(told.contains("m1.img") && told.contains("ro,degraded"), "{told}");
    bedplate(["mount", "-o", "degraded", text(&members[0]), text(&dir)])
        .fails(2, "degraded goes with ro");
    bedplate(["mount", "-o", "ro,degraded", text(&members[0]), text(&dir)]).succeeds();
    assert_eq!(std::fs::read(dir.join("file")).unwrap(), [7; 300_000]);
    bedplate(["unmount", text(&dir)]).succeeds();
    assert!(before == [0, 2].map(|at| std::fs::read(&members[at]).unwrap()), "nothing was written");
}

/// S-483: what is best read and written whole is told by the commands that tell the alignment.
#[test]
fn s_483_commands_tell_the_rows_of_the_volume_below() {
    let scratch = Scratch::new();
    let members = group(&scratch, "raid5", 3, &[]);
    let first = text(&members[0]);
    bedplate(["format", first]).succeeds();
    let file = scratch.file("in", &[7; 10_000]);
    bedplate(["put", first, text(&file), "/file"]).succeeds();
    let info = bedplate(["--json", "info", first]).succeeds().json();
    assert_eq!(
        (&info["row_bytes"], &info["preferred_io_bytes"]),
        (&(32 << 10).into(), &(128 << 10).into()),
        "S-483: {info}"
    );
    bedplate(["info", first]).succeeds().says("rows of 32 KiB below");
    let inside = format!("{first}:/file");
    bedplate(["stat", &inside]).succeeds().says("preferred     I/O of 4 KiB; rows of 32 KiB below");
    bedplate(["tune", first, "preferred-io=1M", "mode=direct"]).succeeds();
    let stat = bedplate(["--json", "stat", &inside]).succeeds().json();
    assert_eq!(
        (&stat["row_bytes"], &stat["preferred_io_bytes"]),
        (&(32 << 10).into(), &(1 << 20).into()),
        "S-483: {stat}"
    );
    if !can_mount("rows of a mounted group") {
        return;
    }
    let dir = scratch.directory("mnt");
    bedplate(["mount", first, text(&dir)]).succeeds();
    for command in ["stat", "explain"] {
        bedplate([command, text(&dir.join("file"))])
            .succeeds()
            .says("preferred     I/O of 1 MiB; rows of 32 KiB below");
    }
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-112
#[test]
fn s_112_a_member_of_a_stripe_gives_its_data_away_and_leaves() {
    let scratch = Scratch::new();
    let members = group(&scratch, "stripe", 2, &[]);
    let (first, second, new) = (text(&members[0]), text(&members[1]), another(&scratch, "new.img"));
    bedplate(["format", first]).succeeds();
    let file = scratch.file("in", &[9; 400_000]);
    bedplate(["put", first, text(&file), "/file"]).succeeds();
    assert!(refusal(bedplate(["volume", "remove", first, first])).contains("--without"));
    bedplate(["volume", "add", first, text(&new)]).succeeds();
    bedplate(["volume", "relayout", second, "--without", first]).succeeds();
    let shown = bedplate(["volume", "remove", second, first]).succeeds().stdout();
    assert!(
        shown.contains("2 members") && !shown.contains("m0.img") && !shown.contains("failed"),
        "{shown}"
    );
    std::fs::remove_file(&members[0]).unwrap();
    assert_eq!(bedplate(["cat", second, "/file"]).succeeds().stdout().len(), 400_000);
    let spare = bedplate(["volume", "spare", second, text(&another(&scratch, "spare.img"))])
        .succeeds()
        .says("3 members");
    let warned = spare.stderr();
    assert!(warned.contains("are on one physical device, which serves them"), "{warned}");
}

#[test]
fn unwise_and_impossible_groups_are_told_why() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.path("a.img"), scratch.path("b.img"));
    let create = |more: &[&str]| {
        let words = ["volume", "create", "tank", "--size", "40M", "--layout"];
        bedplate(words.into_iter().chain(more.iter().copied()).chain([text(&a), text(&b)]))
    };
    let run = create(&["stripe", "--unit", "6000"]);
    assert!(refusal(run).contains("not a multiple of 512"));
    let run = bedplate(["volume", "create", "tank", "--size", "40M", text(&a), text(&a)]);
    assert!(refusal(run).contains("same device"));
    let warned = create(&["stripe"]).succeeds().stderr();
    for words in ["four columns", "one copy", "one physical device"] {
        assert!(warned.contains(words), "{words:?} is missing in {warned}");
    }
    assert!(refusal(create(&["mirror"])).contains("member of the group tank"));
    let (c, force) = (scratch.path("c.img"), ["raid5", "--force", "--unit", "512"]);
    let warned =
        create(&force.iter().copied().chain([text(&c)]).collect::<Vec<_>>()).succeeds().stderr();
    for words in ["intent log lies on the RAID-5", "not a multiple of 4 KiB", "one physical device"]
    {
        assert!(warned.contains(words), "{words:?} is missing in {warned}");
    }
    assert!(refusal(bedplate(["volume", "show", "group:nothing"])).contains("BEDPLATE_DEVICES"));
    let plain = scratch.image("plain.img");
    assert!(refusal(bedplate(["volume", "show", text(&plain)])).contains("no label"));
}

#[test]
fn a_mounted_group_tells_its_statistics_and_is_rebuilt_under_the_mount() {
    if !can_mount("volumes") {
        return;
    }
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    bedplate(["format", text(&members[0])]).succeeds();
    let dir = scratch.directory("mnt");
    bedplate(["mount", text(&members[1]), text(&dir)]).succeeds();
    std::fs::write(dir.join("file"), vec![7; 1 << 20]).unwrap();
    std::fs::File::open(dir.join("file")).unwrap().sync_all().unwrap();
    bedplate(["info", text(&members[0])]).succeeds().says(text(&dir));
    bedplate(["check", text(&members[0])]).fails(8, "is mounted at");
    bedplate(["grow", text(&members[0]), "1G"]).fails(2, "member of a group");
    let told = bedplate(["volume", "stat", text(&members[0]), "--json"]).json();
    assert!(
        told["volumes"][0]["statistics"]["writes"]["operations"].as_u64().unwrap() > 0,
        "{told}"
    );
    assert!(
        told["members"][1]["statistics"]["writes"]["bytes"].as_u64().unwrap() > 1 << 20,
        "{told}"
    );
    // S-97: a plex for each copy, and in an interval only what happened in it.
    let written = |told: &serde_json::Value, plex: usize| {
        told["volumes"][0]["plexes"][plex]["statistics"]["writes"]["bytes"].as_u64().unwrap()
    };
    assert!(written(&told, 0) > 1 << 20 && written(&told, 1) > 1 << 20, "{told}");
    let rounds = bedplate([
        "volume",
        "stat",
        text(&members[0]),
        "--json",
        "--interval",
        "100ms",
        "--count",
        "2",
    ])
    .succeeds()
    .stdout();
    let rounds: Vec<serde_json::Value> =
        serde_json::Deserializer::from_str(&rounds).into_iter().collect::<Result<_, _>>().unwrap();
    assert!(
        rounds.len() == 2 && written(&rounds[0], 0) > 1 << 20 && written(&rounds[1], 0) < 1 << 20,
        "{rounds:?}"
    );
    // S-504: how busy each member was in the interval, of which most was rest.
    let busy = |told: &serde_json::Value, member: usize, what: &str| {
        told["members"][member][what].as_f64().unwrap()
    };
    for member in 0..2 {
        let measured = told["members"][member]["statistics"]["measured_us"].as_u64().unwrap();
        assert!(busy(&told, member, "utilisation") > 0.0 && measured > 0, "S-504: {told}");
        assert!(busy(&told, member, "queue_depth_mean") > 0.0, "S-504: {told}");
        let interval = rounds[1]["members"][member]["statistics"]["measured_us"].as_u64().unwrap();
        assert!((90_000..measured).contains(&interval), "S-504: {rounds:?}");
        assert!(busy(&rounds[1], member, "utilisation") < 0.5, "S-504: {rounds:?}");
    }
    let shown = bedplate(["volume", "stat", text(&members[0])]).succeeds().says("busy ").stdout();
    assert!(
        shown.contains("data plex 0")
            && shown.contains("data plex 1")
            && shown.contains("corrected"),
        "{shown}"
    );
    let new = scratch.path("new.img");
    std::fs::File::create(&new).unwrap().set_len(40 << 20).unwrap();
    // The member under which the mount is listed leaves: the mount is found by the others all the
    // same.
    bedplate(["volume", "replace", text(&members[0]), text(&members[1]), text(&new)]).succeeds();
    bedplate(["info", text(&new)]).says(text(&dir));
    bedplate(["unmount", text(&members[0])]).succeeds();
    let shown = bedplate(["volume", "export", text(&new)]).succeeds().stdout();
    assert!(shown.contains("new.img  active") && shown.contains("whole"), "{shown}");
    std::fs::remove_file(&members[0]).unwrap();
    bedplate(["volume", "import", "--degraded", text(&new)]).succeeds();
    assert_eq!(bedplate(["cat", text(&new), "/file"]).succeeds().stdout().len(), 1 << 20);
}

/// Makes another image for a group.
pub fn another(scratch: &Scratch, name: &str) -> PathBuf {
    let new = scratch.path(name);
    std::fs::File::create(&new).unwrap().set_len(40 << 20).unwrap();
    new
}

#[test]
fn a_group_that_nobody_has_mounted_is_laid_out_anew_grows_and_shrinks() {
    let scratch = Scratch::new();
    let members = group(&scratch, "stripe", 2, &[]);
    let first = text(&members[0]);
    bedplate(["format", first]).succeeds();
    let content = super::harness::pattern(9 << 20);
    let file = scratch.file("in", &content);
    bedplate(["put", first, text(&file), "/file"]).succeeds();
    assert!(
        refusal(bedplate(["volume", "relayout", first, "--columns", "3"])).contains("volume add")
    );
    assert!(
        bedplate(["volume", "add", first, text(&another(&scratch, "m2.img"))])
            .succeeds()
            .stdout()
            .contains("without data: ")
    );
    let told =
        bedplate(["volume", "relayout", first, "--columns", "3", "--unit", "16K", "--step", "1M"])
            .succeeds()
            .stdout();
    assert!(
        told.contains("striped over 3 columns in units of 16 KiB, 108 MiB")
            && !told.contains("becomes"),
        "{told}"
    );
    assert!(bedplate(["cat", first, "/file"]).succeeds().stdout_bytes() == content);
    assert!(bedplate(["grow", first]).succeeds().stdout().contains("108 MiB"));
    let told = refusal(bedplate(["volume", "shrink", first, "72M"]));
    assert!(told.contains("in use by the file system"), "{told}");
    bedplate(["volume", "relayout", first]).fails(2, "--columns");
    for name in ["m3.img", "m4.img", "m5.img"] {
        bedplate(["volume", "add", first, text(&another(&scratch, name))]).succeeds();
    }
    let told = bedplate(["volume", "relayout", first, "--plexes", "2"]).succeeds().stdout();
    assert!(told.contains("stripe-mirror") && told.contains("6 members"), "{told}");
    bedplate(["check", first]).succeeds();
    assert!(bedplate(["volume", "scrub", first]).succeeds().stdout().contains(" 0 differences"));
    let fewer = ["volume", "relayout", first, "--plexes", "1"];
    let told = refusal(bedplate(fewer));
    assert!(
        told.contains("survives the loss of 1 member now, and then the loss of no member"),
        "{told}"
    );
    let told = bedplate(fewer.iter().chain(&["--yes"])).succeeds().stdout();
    assert_eq!(told.matches("without data: ").count(), 3, "{told}");
    assert!(bedplate(["cat", first, "/file"]).succeeds().stdout_bytes() == content);
}

#[test]
fn a_mounted_group_is_laid_out_anew_under_the_mount() {
    if !can_mount("volumes") {
        return;
    }
    let scratch = Scratch::new();
    let members = group(&scratch, "concat", 1, &[]);
    let first = text(&members[0]);
    bedplate(["format", first]).succeeds();
    let dir = scratch.directory("mnt");
    bedplate(["mount", first, text(&dir)]).succeeds();
    let content = super::harness::pattern(8 << 20);
    std::fs::write(dir.join("file"), &content).unwrap();
    bedplate(["volume", "add", first, text(&another(&scratch, "m1.img"))]).succeeds();
    bedplate([
        "volume",
        "relayout",
        first,
        "--layout",
        "stripe",
        "--columns",
        "2",
        "--step",
        "256K",
    ])
    .succeeds()
    .says("group tank");
    // It may be over by now: then there is nothing to pause.
    if bedplate(["volume", "relayout", first, "--pause"]).code() == 0 {
        let told = bedplate(["volume", "show", first]).succeeds().stdout();
        assert!(told.contains("becomes stripe, paused: ") && told.contains(" moved ("), "{told}");
        let told = bedplate(["volume", "show", first, "--json"]).json();
        assert_eq!(told["volumes"][0]["relayout"]["state"].as_str(), Some("paused"));
        bedplate(["volume", "relayout", first, "--resume"]).succeeds();
    }
    while !bedplate(["volume", "show", first, "--json"]).json()["volumes"][0]["relayout"].is_null()
    {
        assert!(std::fs::read(dir.join("file")).unwrap() == content);
    }
    bedplate(["grow", text(&dir)]).succeeds().says("72 MiB");
    std::fs::write(dir.join("more"), &content).unwrap();
    bedplate(["unmount", first]).succeeds();
    bedplate(["check", first]).succeeds();
    assert!(bedplate(["cat", first, "/file"]).succeeds().stdout_bytes() == content);
}
