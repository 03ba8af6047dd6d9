//! Names of files, members and checkpoints that are no UTF-8, end lines or command terminals: every
//! command reaches them, tells them on one line, and gives programs what they are.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::harness::{Scratch, bedplate, can_mount, text};

const ODD: &[u8] = b"odd\xff\n\x1b[2J";
const SHOWN: &str = r"odd\xff\n\u{1b}[2J";

/// `stat`, `mode`, `untorn`, `extent-size` and `preallocate` took no name that is not UTF-8, and
/// `explain` of a directory left such files out.
#[test]
fn every_command_reaches_a_file_of_any_name_and_tells_it_on_one_line() {
    if !can_mount("every_command_reaches_a_file_of_any_name_and_tells_it_on_one_line") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=concurrent");
    let path = dir.join(OsStr::from_bytes(ODD));
    // Not aligned, so that there is something to explain.
    std::fs::write(&path, [7; 5000]).unwrap();
    let on = |file: &Path, words: &[&str]| {
        let at = words.iter().position(|word| *word == "FILE").unwrap();
        let words = words
            .iter()
            .enumerate()
            .map(|(n, word)| if n == at { file.as_os_str() } else { OsStr::new(word) });
        bedplate(words).succeeds()
    };
    let commands: [&[&str]; 8] = [
        &["stat", "FILE"],
        &["mode", "FILE", "concurrent"],
        &["untorn", "FILE", "8k"],
        &["extent-size", "FILE", "64k"],
        &["release-behind", "FILE", "read"],
        &["preallocate", "FILE", "64k"],
        &["explain", "FILE"],
        &["iostat", "FILE"],
    ];
    for words in commands {
        let told = on(&path, words);
        let told = told.stdout();
        assert!(
            told.lines().any(|line| line.contains(SHOWN)) && !told.contains('\u{1b}'),
            "{words:?}: {told}"
        );
        if words[0] != "iostat" {
            let document = on(&path, &[&["--json"], words].concat()).json();
            assert!(
                document["path"].as_str().unwrap().ends_with("odd\\xff\n\u{1b}[2J"),
                "{words:?}: {document}"
            );
        }
    }
    let explained = bedplate(["explain", text(&dir)]).succeeds().stdout();
    assert!(
        explained.lines().any(|line| line.ends_with(SHOWN)),
        "what a directory's file did is told: {explained}"
    );
    bedplate(["unmount", text(&dir)]).succeeds();
    let mut inside = OsString::from(&image);
    inside.push(":/");
    inside.push(OsStr::from_bytes(ODD));
    for words in &commands[..5] {
        assert!(
            on(Path::new(&inside), words).stdout().lines().any(|line| line.contains(SHOWN)),
            "{words:?}"
        );
    }
    let listed = bedplate(["ls", text(&image)]).succeeds().stdout();
    assert_eq!(listed.lines().collect::<Vec<_>>(), [SHOWN]);
}

/// A line in the path of a member broke the picture of its group.
#[test]
fn a_member_with_an_odd_path_has_one_line_in_pictures_and_tables() {
    let scratch = Scratch::new();
    let odd = scratch.path("a\nb\u{1b}[2J.img");
    let plain = scratch.path("c.img");
    let create = [
        "volume",
        "create",
        "tank",
        "--layout",
        "mirror",
        "--size",
        "40M",
        text(&odd),
        text(&plain),
    ];
    let created = bedplate(create).succeeds().stdout();
    let shown = bedplate(["volume", "show", text(&plain)]).succeeds().stdout();
    let listed = bedplate(["volume", "list", text(&scratch.path(""))]).succeeds().stdout();
    let stat = bedplate(["volume", "stat", text(&plain)]).succeeds().stdout();
    let escaped = r"a\nb\u{1b}[2J.img";
    for (told, line) in
        [(&created, "  active"), (&shown, "  active"), (&listed, ""), (&stat, "  active")]
    {
        assert!(
            told.lines().any(|found| found.contains(&format!("{escaped}{line}")))
                && !told.contains('\u{1b}'),
            "{told}"
        );
    }
    let exact = bedplate(["--json", "volume", "show", text(&plain)]).succeeds().json();
    assert_eq!(exact["members"][0]["path"].as_str(), odd.to_str());
    std::fs::rename(&odd, scratch.directory("away").join("gone.img")).unwrap();
    let shown = bedplate(["volume", "show", text(&plain)]).ends(4).stdout();
    assert!(
        shown
            .lines()
            .any(|line| line.contains("cannot be opened as it is") && line.contains(escaped)),
        "{shown}"
    );
}
