//! Copies of volumes and halves of mirrors under another name and identity.

use std::path::{Path, PathBuf};

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};
use crate::volumes::{group, refusal};

fn uuid(path: &Path) -> String {
    // Of a group that is degraded it ends with 1.
    let info = bedplate(["info", text(path), "--json"]).json();
    info["uuid"].as_str().unwrap().to_owned()
}

fn copies(scratch: &Scratch, members: &[PathBuf]) -> Vec<PathBuf> {
    let copy = |(at, from): (usize, &PathBuf)| {
        let to = scratch.path(&format!("c{at}.img"));
        std::fs::copy(from, &to).unwrap();
        to
    };
    members.iter().enumerate().map(copy).collect()
}

/// S-400: copies of all members, beside them, named and mounted at once.
#[test]
fn s_400_a_copied_group_is_imported_under_another_name_and_used_beside_it() {
    let scratch = Scratch::new();
    let log = scratch.path("l0.img");
    let members = group(&scratch, "mirror", 2, &["--log", text(&log)]);
    bedplate(["format", text(&members[0])]).succeeds();
    let source = scratch.file("source", &pattern(200_000));
    bedplate(["put", text(&members[0]), text(&source), "/f"]).succeeds();
    let made = copies(&scratch, &[members[0].clone(), members[1].clone(), log]);
    let [c0, c1, c2] = [0, 1, 2].map(|at| text(&made[at]));
    let told = refusal(bedplate(["volume", "import", c0, "--as", "tank2", "--new-identity"]));
    assert!(told.contains("name all devices"), "{told}");
    bedplate(["volume", "import", c0, "--new-identity"]).fails(2, "--as");
    let import = ["volume", "import", c0, c1, c2, "--as", "tank2", "--new-identity", "--json"];
    let renewed = bedplate(import).succeeds().json();
    assert_eq!(renewed["name"].as_str(), Some("tank2"), "{renewed}");
    assert_eq!(renewed["uuid"].as_str(), Some(uuid(&made[0]).as_str()), "{renewed}");
    assert_ne!(uuid(&made[0]), uuid(&members[0]));
    let listed = bedplate(["volume", "list", text(&scratch.path(""))]).succeeds().stdout();
    assert!(listed.contains("tank2") && listed.contains("tank "), "{listed}");
    for volume in [c1, text(&members[1])] {
        bedplate(["check", volume]).succeeds();
    }
    if !can_mount("a group and its copy") {
        return;
    }
    let (one, two) = (scratch.directory("one"), scratch.directory("two"));
    bedplate(["mount", text(&members[1]), text(&one)]).succeeds();
    bedplate(["mount", c1, text(&two)]).succeeds();
    std::fs::write(one.join("only"), b"one").unwrap();
    std::fs::write(two.join("only"), b"two").unwrap();
    for (dir, shown) in [(&one, "one"), (&two, "two")] {
        assert!(std::fs::read(dir.join("f")).unwrap() == pattern(200_000));
        assert_eq!(std::fs::read_to_string(dir.join("only")).unwrap(), shown);
        bedplate(["unmount", text(dir)]).succeeds();
    }
}

/// S-400: the half of a mirror that was split off, and a plain image.
#[test]
fn s_400_a_half_of_a_mirror_and_a_plain_image_get_an_identity_of_their_own() {
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    bedplate(["format", text(&members[0])]).succeeds();
    let elsewhere = scratch.directory("away").join("half.img");
    std::fs::rename(&members[1], &elsewhere).unwrap();
    let half = text(&elsewhere);
    let split = ["volume", "import", half, "--as", "half", "--new-identity", "--degraded"];
    bedplate(split).succeeds().says("group half").says("identity is");
    bedplate(["volume", "import", "--degraded", text(&members[0])]).succeeds().says("group tank");
    assert_ne!(uuid(&elsewhere), uuid(&members[0]));

    let image = scratch.image("v.img");
    let copied = copies(&scratch, std::slice::from_ref(&image));
    let before = uuid(&image);
    assert_eq!(uuid(&copied[0]), before);
    let copied = text(&copied[0]);
    bedplate(["volume", "import", copied, "--as", "x", "--new-identity"]).fails(1, "without --as");
    bedplate(["volume", "import", copied, "--new-identity"]).succeeds().says("identity is");
    assert!(uuid(Path::new(copied)) != before && uuid(&image) == before);
    bedplate(["check", copied]).succeeds();
    bedplate(["volume", "import", copied, "--as", "x"]).fails(2, "--new-identity");
}
