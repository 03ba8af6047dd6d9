//! Rules on source text: file sizes, forbidden words and paths, white space, `forbid(unsafe_code)`.

use std::path::Path;

use super::Text;

/// The most lines a Rust file may have.
const LINES_MAX: usize = 600;

/// The most lines a function may have outside of tests.
const FUNCTION_LINES_MAX: usize = 60;

/// Rooms where `unsafe` may live: the device layer, memory shared with the kernel, and the library
/// that stands in front of the C library in programs.
const UNSAFE_ROOMS: [&str; 3] = ["crates/block/", "crates/fuse/", "crates/preload/"];

/// What no source may hold, with the reason. Each word is cut in two, so that this list does not
/// find itself.
const WORDS: [(&str, &str, &str); 5] = [
    ("todo", "!(", "unfinished code"),
    ("unimpl", "emented!(", "unfinished code"),
    ("FIX", "ME", "a note instead of a decision"),
    ("#[ig", "nore", "a test that is not run"),
    ("XX", "X:", "a note instead of a decision"),
];

/// Words for people, which no comment uses of software: its subject is the thing. Cut in two as
/// above.
const PEOPLE: [(&str, &str); 4] = [("wh", "o"), ("who", "ever"), ("nob", "ody"), ("someb", "ody")];

/// Where people's own directories lie; cut in two as above. What a test writes belongs into a
/// directory of its own, not into the shared one.
const PLACES: [(&str, &str); 4] = [("/ho", "me/"), ("/ro", "ot/"), ("/Us", "ers/"), ("/t", "mp/")];

/// Returns what breaks the rules; `root` is where the repository lies on this machine.
pub fn check(texts: &[Text], root: &Path) -> Vec<String> {
    let mut findings = Vec::new();
    let places = places(root);
    for text in texts {
        if text.path.starts_with("LICENSE") || text.path.ends_with("Cargo.lock") {
            continue;
        }
        white_space(text, &mut findings);
        paths(text, &places, &mut findings);
        if text.is_rust() {
            size(text, &mut findings);
            functions(text, &mut findings);
            words(text, &mut findings);
            people(text, &mut findings);
            forbids_unsafe(text, &mut findings);
        }
    }
    findings
}

fn size(text: &Text, findings: &mut Vec<String>) {
    let lines = text.content.lines().count();
    if lines > LINES_MAX {
        findings.push(format!(
            "{}: {lines} lines; a file that passes {LINES_MAX} is two files",
            text.path
        ));
    }
}

/// A function ends, as rustfmt writes it, with the brace that stands below its first word.
fn functions(text: &Text, findings: &mut Vec<String>) {
    if is_test(&text.path) {
        return;
    }
    let lines: Vec<&str> = text.content.lines().collect();
    let tests = lines.iter().position(|line| *line == "mod tests {").unwrap_or(lines.len());
    for (at, line) in lines[..tests].iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let mut words = line.split_whitespace().skip_while(|word| {
            word.starts_with("pub") || matches!(*word, "const" | "async" | "unsafe" | "extern")
        });
        if words.next() != Some("fn") {
            continue;
        }
        // A declaration has no body, and `{}` is on one line.
        let signature = lines[at..].iter().find(|line| line.ends_with(['{', '}', ';']));
        if signature.is_none_or(|line| !line.ends_with('{')) {
            continue;
        }
        let ends = |line: &&str| line.trim_end() == format!("{:indent$}}}", "");
        let count = lines[at..].iter().position(ends).map_or(0, |end| end + 1);
        if count > FUNCTION_LINES_MAX {
            let told = format_args!(
                "a function of {count} lines; one that passes {FUNCTION_LINES_MAX} is two"
            );
            findings.push(text.finding(at + 1, told));
        }
    }
}

/// Tells whether all of a file is tests.
fn is_test(path: &str) -> bool {
    path.ends_with("tests.rs") || path.split('/').any(|part| matches!(part, "tests" | "examples"))
}

fn words(text: &Text, findings: &mut Vec<String>) {
    for (number, line) in text.content.lines().enumerate() {
        for (start, end, reason) in WORDS {
            if line.contains(&format!("{start}{end}")) {
                findings.push(text.finding(number + 1, format_args!("`{start}{end}` is {reason}")));
            }
        }
        if line.contains(concat!("TO", "DO")) && !line.contains(concat!("TO", "DO(0")) {
            findings.push(
                text.finding(number + 1, "a note for later names its decision, as in (0004)"),
            );
        }
    }
}

fn people(text: &Text, findings: &mut Vec<String>) {
    for (number, line) in
        text.content.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"))
    {
        let used = |word: &str| {
            PEOPLE.iter().any(|(start, end)| word.eq_ignore_ascii_case(&format!("{start}{end}")))
        };
        if let Some(word) = line.split(|c: char| !c.is_alphanumeric()).find(|word| used(word)) {
            findings.push(text.finding(
                number + 1,
                format_args!(
                    "`{word}` in a comment: name the thread, the process or the user that is meant"
                ),
            ));
        }
    }
}

fn white_space(text: &Text, findings: &mut Vec<String>) {
    for (number, line) in text.content.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            findings.push(text.finding(number + 1, "white space at the end of the line"));
        }
    }
    if !text.content.is_empty() && !text.content.ends_with('\n') {
        findings.push(format!("{}: no newline at the end", text.path));
    }
}

/// Every crate root forbids unsafe code, except in the rooms where it may live.
fn forbids_unsafe(text: &Text, findings: &mut Vec<String>) {
    if UNSAFE_ROOMS.iter().any(|room| text.path.starts_with(room)) || !is_crate_root(&text.path) {
        return;
    }
    if !text.content.contains("#![forbid(unsafe_code)]") {
        findings.push(format!("{}: no #![forbid(unsafe_code)]", text.path));
    }
}

/// Tells whether cargo compiles this file as a crate of its own.
fn is_crate_root(path: &str) -> bool {
    let path = Path::new(path);
    let parent =
        path.parent().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or("");
    match path.file_name().and_then(|name| name.to_str()).unwrap_or("") {
        "lib.rs" | "build.rs" => true,
        "main.rs" => {
            matches!(parent, "src")
                || path.components().any(|part| {
                    matches!(part.as_os_str().to_str(), Some("tests" | "examples" | "bin"))
                })
        }
        _ => {
            matches!(parent, "tests" | "examples" | "benches" | "bin")
                && !path.components().any(|part| part.as_os_str() == "src" && parent != "bin")
        }
    }
}

/// Returns the starts of paths that mean something on one machine only: people's directories, and
/// where this repository lies.
fn places(root: &Path) -> Vec<String> {
    let mut places: Vec<String> =
        PLACES.iter().map(|(start, end)| format!("{start}{end}")).collect();
    let around = root.parent().filter(|parent| parent.parent().is_some());
    places.extend(around.map(|parent| format!("{}/", parent.display())));
    places
}

fn paths(text: &Text, places: &[String], findings: &mut Vec<String>) {
    for (number, line) in text.content.lines().enumerate() {
        for place in places {
            let found = line.match_indices(place.as_str()).any(|(at, _)| {
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '/' | '.'))
            });
            if found {
                findings.push(
                    text.finding(number + 1, format_args!("{place}… is a path of one machine")),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    fn check(texts: &[Text]) -> Vec<String> {
        super::check(texts, Path::new("/nowhere/repository"))
    }

    #[test]
    fn a_long_file_is_found() {
        let long = "//! x\n".repeat(LINES_MAX + 1);
        assert_eq!(check(&[text("crates/fs/src/a.rs", &long)]).len(), 1);
        assert!(check(&[text("crates/fs/src/a.rs", &"//! x\n".repeat(LINES_MAX))]).is_empty());
    }

    #[test]
    fn a_long_function_is_found_outside_of_tests() {
        let body = |lines: usize| "        a();\n".repeat(lines - 2);
        let function = |lines| format!("    pub(crate) fn a() {{\n{}    }}\n", body(lines));
        let (long, short) = (function(FUNCTION_LINES_MAX + 1), function(FUNCTION_LINES_MAX));
        let findings = check(&[text("crates/fs/src/a.rs", &format!("impl A {{\n{long}}}\n"))]);
        assert!(findings.len() == 1 && findings[0].starts_with("crates/fs/src/a.rs:2: "));
        assert!(check(&[text("crates/fs/src/a.rs", &format!("{short}{short}"))]).is_empty());
        assert!(check(&[text("crates/fs/src/tests/a.rs", &long)]).is_empty());
        let tests = format!("#[cfg(test)]\nmod tests {{\n{long}}}\n");
        assert!(check(&[text("crates/fs/src/a.rs", &tests)]).is_empty());
        let declared = format!("trait A {{\n    fn a(&self);\n{short}}}\n");
        assert!(check(&[text("crates/fs/src/a.rs", &declared)]).is_empty());
    }

    #[test]
    fn forbidden_words_are_found_with_their_line() {
        for (start, end, _) in WORDS {
            let findings =
                check(&[text("crates/fs/src/a.rs", &format!("fn a() {{}}\n{start}{end}\n"))]);
            assert_eq!(findings.len(), 1, "{start}{end}");
            assert!(findings[0].starts_with("crates/fs/src/a.rs:2: "), "{findings:?}");
        }
        let noted = concat!("// TO", "DO(0004): later\n");
        assert!(check(&[text("a.rs", noted)]).is_empty());
        assert_eq!(check(&[text("a.rs", &noted.replace("(0004)", ""))]).len(), 1);
    }

    #[test]
    fn words_for_people_are_found_in_comments_alone() {
        for (start, end) in PEOPLE {
            let word = format!("{start}{end}");
            assert_eq!(
                check(&[text("a.rs", &format!("fn a() {{}}\n    /// It is {word}, and more.\n"))])
                    .len(),
                1,
                "{word}"
            );
            assert!(
                check(&[text("a.rs", &format!("const A: &str = \"{word}\";\n/// {word}se\n"))])
                    .is_empty(),
                "{word}"
            );
        }
    }

    #[test]
    fn white_space_is_found_in_any_text() {
        assert_eq!(check(&[text("a.md", "word \n")]).len(), 1);
        assert_eq!(check(&[text("a.toml", "a = 1")]).len(), 1);
        assert!(check(&[text("a.md", "word\n")]).is_empty());
    }

    #[test]
    fn a_crate_root_without_the_attribute_is_found() {
        for path in [
            "crates/fs/src/lib.rs",
            "crates/cli/src/main.rs",
            "crates/fs/tests/all.rs",
            "crates/a/examples/b.rs",
            "crates/a/src/bin/b.rs",
        ] {
            assert_eq!(check(&[text(path, "//! x\n")]).len(), 1, "{path}");
            assert!(check(&[text(path, "#![forbid(unsafe_code)]\n")]).is_empty(), "{path}");
        }
        for path in
            ["crates/block/src/lib.rs", "crates/fs/src/log/mod.rs", "crates/fs/src/tests/a.rs"]
        {
            assert!(check(&[text(path, "//! x\n")]).is_empty(), "{path}");
        }
    }

    #[test]
    fn a_path_of_one_machine_is_found() {
        let home = concat!("/ho", "me/someone/file");
        assert_eq!(check(&[text("a.md", &format!("see {home}\n"))]).len(), 1);
        assert_eq!(check(&[text("a.rs", &format!("const A: &str = \"{home}\";\n"))]).len(), 1);
        assert_eq!(check(&[text("a.md", "cd /nowhere/other\n")]).len(), 1);
        for good in [
            "see /dev/loop0 and /mnt/x/y\n",
            "https://a.b/nowhere/d\n",
            "`/`\n",
            "open(\"/a/b/c\")\n",
        ] {
            assert!(check(&[text("a.md", good)]).is_empty(), "{good}");
        }
    }
}
