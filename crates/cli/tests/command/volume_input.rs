//! Groups of devices and wrong input: what is refused, in which words, and what is left then.

use std::path::{Path, PathBuf};

use super::harness::{Scratch, bedplate, run, text};
use super::volumes::{another, group, refusal};

/// Returns the names of what lies in the directory of a test.
fn names(scratch: &Scratch) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(scratch.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// An image of this size was left behind by every refused `create --size`, and the next one took it
/// as it was.
#[test]
fn a_refused_create_leaves_no_image_and_warns_of_nothing() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.path("a.img"), scratch.path("b.img"));
    let small = scratch.directory("elsewhere").join("small.img");
    std::fs::File::create(&small).unwrap().set_len(20 << 20).unwrap();
    let create = |name: &str, more: &[&str]| {
        let words = ["volume", "create", "--size", "40M"];
        bedplate(words.into_iter().chain(more.iter().copied()).chain([name, text(&a), text(&b)]))
    };
    for (name, more, part) in [
        ("a b", &[][..], "letters, digits"),
        ("tank", &["--layout", "raid5"], "three members"),
        ("tank", &["--layout", "stripe", "--unit", "1G"], "does not fit the smallest member"),
        ("tank", &["--layout", "stripe-mirror"], "2 copies"),
        ("tank", &["--reserve", "39M"], "in reserve"),
        ("tank", &["--spare", text(&small)], "to take the place of any member"),
        ("tank", &["--spare", "/dev/null"], "neither a block device nor a regular file"),
    ] {
        let run = create(name, more);
        let told = run.stderr();
        assert!(!told.contains("warning"), "what was not made is warned of: {told}");
        run.fails(1, part);
        assert_eq!(names(&scratch), ["elsewhere"], "after {more:?}");
    }
    for (more, part) in [
        (&["--copies", "3"][..], "--copies is for stripe-mirror"),
        (&["--unit", "32k"], "--unit says how a stripe"),
        (&["--layout", "concat", "--unit", "32k"], "the layout is concat"),
        (&["--layout", "raid5", "--copies", "2"], "the layout is raid5"),
    ] {
        create("tank", more).fails(2, part);
    }
    bedplate(["volume", "create", "tank", "--size", "40", text(&a), text(&b)])
        .fails(2, "a member has at least 5 MiB");
    assert_eq!(names(&scratch), ["elsewhere"]);
    assert!(
        create("tank", &["--layout", "stripe"]).succeeds().stderr().contains("2 columns: a stripe")
    );
}

/// A pipe was opened, and waited for a writer.
#[test]
fn what_is_no_device_or_has_two_names_is_no_member() {
    let scratch = Scratch::new();
    let [a, b, hard, soft, pipe] =
        ["a.img", "b.img", "hard.img", "soft.img", "pipe"].map(|name| scratch.path(name));
    [&a, &b]
        .into_iter()
        .for_each(|path| std::fs::File::create(path).unwrap().set_len(40 << 20).unwrap());
    std::fs::hard_link(&a, &hard).unwrap();
    std::os::unix::fs::symlink("a.img", &soft).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for other in [&hard, &soft, &a] {
        assert!(
            refusal(bedplate(["volume", "create", "tank", text(&a), text(other)]))
                .contains("the same device, or overlap")
        );
    }
    let directory = scratch.directory("dir");
    for (other, part) in [(&pipe, "is neither a block device"), (&directory, "is a directory")] {
        for force in [&[][..], &["--force"]] {
            let words = ["volume", "create", "tank", text(&a), text(other)];
            assert!(
                refusal(bedplate(words.into_iter().chain(force.iter().copied()))).contains(part)
            );
        }
        bedplate(["format", text(other)]).fails(1, "block device");
    }
    bedplate(["volume", "create", "tank", text(&a), text(&b)]).succeeds();
    let first = text(&a);
    for command in ["add", "spare"] {
        assert!(
            refusal(bedplate(["volume", command, first, text(&pipe)]))
                .contains("is neither a block device")
        );
        assert!(
            refusal(bedplate(["volume", command, first, text(&b)]))
                .contains("is a member of the group tank already")
        );
        assert!(refusal(bedplate(["volume", command, first, text(&hard)])).contains("already"));
    }
    assert!(
        refusal(bedplate(["volume", "replace", first, text(&b), text(&a)])).contains("already")
    );
}

/// A group of 130 members was made, and its label was refused ever after; a damaged label, a small
/// spare and a scrub of nothing were no obstacle.
#[test]
fn what_could_never_work_is_refused_when_it_is_asked_for() {
    let scratch = Scratch::new();
    let many: Vec<PathBuf> = (0..129).map(|n| scratch.path(&format!("many{n}.img"))).collect();
    let words = ["volume", "create", "many", "--layout", "stripe", "--size", "6M"];
    assert!(
        refusal(bedplate(words.into_iter().chain(many.iter().map(|path| text(path)))))
            .contains("at most 128 members and not 129")
    );
    let members = group(&scratch, "stripe", 2, &[]);
    let first = text(&members[0]);
    assert!(refusal(bedplate(["volume", "scrub", first])).contains("nothing to compare"));
    let small = scratch.path("small.img");
    std::fs::File::create(&small).unwrap().set_len(20 << 20).unwrap();
    assert!(
        refusal(bedplate(["volume", "spare", first, text(&small)]))
            .contains("to take the place of any member")
    );
    let mut damaged = std::fs::read(first).unwrap();
    [100, (1 << 20) + 100].into_iter().for_each(|at: usize| damaged[at] ^= 1);
    std::fs::write(first, damaged).unwrap();
    let again = |more: &[&str]| {
        bedplate(["volume", "create", "new", first, text(&small)].iter().chain(more))
    };
    assert!(refusal(again(&[])).contains("holds a damaged label of a group: add --force"));
    again(&["--force"]).succeeds();
}

/// Writes an image that another program would know.
fn foreign(scratch: &Scratch, name: &str) -> PathBuf {
    let path = another(scratch, name);
    let mut content = vec![0; 0x43a];
    content[0x438..].copy_from_slice(b"\x53\xef");
    content.resize(40 << 20, 0);
    std::fs::write(&path, content).unwrap();
    path
}

/// `add`, `spare` and `replace` once made a member of whatever was named, a file system with data,
/// too.
#[test]
fn add_spare_and_replace_destroy_nothing_unless_they_are_forced() {
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    let (first, second) = (text(&members[0]), text(&members[1]));
    let (ext, volume, other) =
        (foreign(&scratch, "ext.img"), scratch.image("volume.img"), scratch.path("other0.img"));
    bedplate(["volume", "create", "other", "--layout", "concat", "--size", "40M", text(&other)])
        .succeeds();
    let kept = |path: &Path| std::fs::read(path).unwrap();
    for (device, part) in [
        (&ext, "holds an ext2"),
        (&volume, "holds a Bedplate volume"),
        (&other, "is a member of the group other"),
    ] {
        let before = kept(device);
        for words in [
            &["volume", "add", first, text(device)][..],
            &["volume", "spare", first, text(device)],
            &["volume", "replace", first, second, text(device)],
        ] {
            let told = refusal(bedplate(words));
            assert!(told.contains(part) && told.contains("--force"), "{words:?}: {told}");
        }
        assert!(kept(device) == before, "{} was written to", device.display());
    }
    bedplate(["volume", "add", first, text(&ext), "--force"]).succeeds().says("without data: ");
    bedplate(["volume", "spare", first, text(&other), "--force"]).succeeds().says("spare: ");
    bedplate(["volume", "replace", first, second, text(&volume), "--force"]).succeeds();
    bedplate(["volume", "import", first]).succeeds().says("volume.img  active");
}

/// With `--force` a device lost the label of its old group before the new group looked whether it
/// could take it.
#[test]
fn a_forced_device_that_is_refused_stays_in_its_group() {
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &["--spare", text(&another(&scratch, "spare.img"))]);
    let (first, second, small) = (text(&members[0]), text(&members[1]), scratch.path("small.img"));
    bedplate(["volume", "create", "other", "--layout", "concat", "--size", "20M", text(&small)])
        .succeeds();
    let before = std::fs::read(&small).unwrap();
    for (words, part) in [
        (&["spare", first, text(&small)][..], "to take the place of any member"),
        (&["replace", first, second, text(&small)], "are needed to take the place of"),
        (&["replace", first, "2", text(&small)], "has no data on"),
        (&["unrelocate", first, second, "--to", text(&small)], "does not lie in free space"),
    ] {
        let told = refusal(bedplate(["volume"].iter().chain(words).chain(&["--force"])));
        assert!(told.contains(part), "{words:?}: {told}");
        assert!(std::fs::read(&small).unwrap() == before, "{words:?} wrote to what was refused");
    }
    bedplate(["volume", "show", text(&small)]).succeeds().says("group other, whole");
    // What is taken in is the new group's only.
    bedplate(["volume", "add", first, text(&small), "--force"]).succeeds();
    bedplate(["volume", "show", text(&small)]).succeeds().says("group tank, whole");
}

#[test]
fn a_relayout_that_would_change_nothing_is_refused_with_the_reason() {
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    let first = text(&members[0]);
    bedplate(["format", first]).succeeds();
    let event = || bedplate(["volume", "show", first, "--json"]).json()["volumes"].clone();
    let before = event();
    for (words, part) in [
        (&["relayout", "--plexes", "2"][..], "nothing would change"),
        (&["relayout", "--unit", "32k"], "only stripes and RAID-5 have a unit"),
        (&["grow"], "have no more room"),
        (&["shrink", "1G"], "volume grow"),
    ] {
        let (command, more) = words.split_first().unwrap();
        assert!(
            refusal(bedplate(["volume", command, first].iter().chain(more))).contains(part),
            "{words:?}"
        );
    }
    assert_eq!(event(), before);
}

/// A member that is away was told not to be one, unless its whole path was given.
#[test]
fn members_are_named_by_relative_paths_also_when_they_are_away() {
    let scratch = Scratch::new();
    group(&scratch, "mirror", 2, &[]);
    std::fs::rename(scratch.path("m1.img"), scratch.directory("away").join("m1.img")).unwrap();
    let new = another(&scratch, "new.img");
    let here = |words: &[&str]| {
        let mut command = super::harness::command(words);
        command.current_dir(scratch.path(""));
        run(command)
    };
    here(&["volume", "import", "--degraded", "m0.img"]).succeeds();
    here(&["volume", "replace", "m0.img", "m1.img", text(&new)]).succeeds();
}

/// A group of which half was away was shown as whole, and the words "(not found)" stood in the path
/// for programs.
#[test]
fn a_group_that_cannot_be_opened_is_shown_as_such_with_the_reason() {
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    let (first, away) = (text(&members[0]), scratch.directory("away").join("m1.img"));
    let list = || bedplate(["volume", "list", text(&scratch.path(""))]);
    list().succeeds().says("whole");
    std::fs::rename(&members[1], &away).unwrap();
    let shown = bedplate(["volume", "show", first]).ends(4).stdout();
    for words in [
        "group tank, refused",
        "m1.img  active, not found",
        "cannot be opened as it is: ",
        "import --degraded",
    ] {
        assert!(shown.contains(words), "{words:?} is missing in {shown}");
    }
    let told = bedplate(["volume", "show", first, "--json"]).json();
    assert_eq!(
        (told["members"][1]["path"].as_str(), told["members"][1]["found"].as_bool()),
        (members[1].to_str(), Some(false))
    );
    assert!(told["refused"].as_str().unwrap().contains("was not found"));
    list().ends(4).says("refused");
    // Each goes on alone.
    bedplate(["volume", "import", "--degraded", first]).succeeds();
    bedplate(["volume", "show", first]).ends(1).says("group tank, degraded");
    std::fs::rename(&members[0], scratch.path("away/m0.img")).unwrap();
    std::fs::rename(&away, &members[1]).unwrap();
    bedplate(["volume", "import", "--degraded", text(&members[1])]).succeeds();
    std::fs::rename(scratch.path("away/m0.img"), &members[0]).unwrap();
    for member in &members {
        bedplate(["volume", "show", text(member)]).ends(4).says("each went on without the other");
    }
    bedplate(["volume", "list", text(&scratch.path("nothing"))]).fails(1, "is no directory");
    bedplate(["volume", "list", first]).fails(1, "'bedplate volume show' takes a member");
    bedplate(["volume", "show", "group:"]).fails(2, "followed by the name");
}

#[test]
fn a_group_is_named_by_where_it_is_mounted() {
    if !super::harness::can_mount("volume_input") {
        return;
    }
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    bedplate(["format", text(&members[0])]).succeeds();
    let dir = scratch.directory("mnt");
    bedplate(["mount", text(&members[0]), text(&dir)]).succeeds();
    bedplate(["volume", "show", text(&dir)]).succeeds().says("group tank, whole, 2 members");
    bedplate(["volume", "scrub", text(&dir)]).succeeds().says("0 differences");
    std::fs::create_dir(dir.join("below")).unwrap();
    bedplate(["volume", "show", text(&dir.join("below"))]).fails(1, "is a directory");
    bedplate(["unmount", text(&dir)]).succeeds();
}
