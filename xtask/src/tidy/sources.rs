//! Rules on source text: file sizes, forbidden words and paths, white space, `forbid(unsafe_code)`.

use std::path::Path;

use super::Text;

/// The most lines a Rust file may have.
const LINES_MAX: usize = 600;

/// Rooms where `unsafe` may live: the device layer. Foreign interfaces join this list by name when they exist.
const UNSAFE_ROOMS: [&str; 1] = ["crates/block/"];

/// What no source may hold, with the reason. Each word is cut in two, so that this list does not find itself.
const WORDS: [(&str, &str, &str); 5] = [
    ("todo", "!(", "unfinished code"),
    ("unimpl", "emented!(", "unfinished code"),
    ("FIX", "ME", "a note instead of a decision"),
    ("#[ig", "nore", "a test that nobody runs"),
    ("XX", "X:", "a note instead of a decision"),
];

/// First components of absolute paths that exist on every Linux machine or stand for a reader's own.
const PATHS: [&str; 16] = ["dev", "proc", "sys", "etc", "usr", "bin", "sbin", "lib", "var", "run", "mnt", "media", "opt", "srv", "data", "boot"];

/// Returns what breaks the rules.
pub fn check(texts: &[Text]) -> Vec<String> {
    let mut findings = Vec::new();
    for text in texts {
        if text.path.starts_with("LICENSE") || text.path.ends_with("Cargo.lock") {
            continue;
        }
        white_space(text, &mut findings);
        paths(text, &mut findings);
        if text.is_rust() {
            size(text, &mut findings);
            words(text, &mut findings);
            forbids_unsafe(text, &mut findings);
        }
    }
    findings
}

fn size(text: &Text, findings: &mut Vec<String>) {
    let lines = text.content.lines().count();
    if lines > LINES_MAX {
        findings.push(format!("{}: {lines} lines; a file that passes {LINES_MAX} is two files", text.path));
    }
}

fn words(text: &Text, findings: &mut Vec<String>) {
    for (number, line) in text.content.lines().enumerate() {
        for (start, end, reason) in WORDS {
            if line.contains(&format!("{start}{end}")) {
                findings.push(text.finding(number + 1, format_args!("`{start}{end}` is {reason}")));
            }
        }
        if line.contains(concat!("TO", "DO")) && !line.contains(concat!("TO", "DO(0")) {
            findings.push(text.finding(number + 1, "a note for later names its decision, as in (0004)"));
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
    let parent = path.parent().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or("");
    match path.file_name().and_then(|name| name.to_str()).unwrap_or("") {
        "lib.rs" | "build.rs" => true,
        "main.rs" => matches!(parent, "src") || path.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "examples" | "bin"))),
        _ => {
            matches!(parent, "tests" | "examples" | "benches" | "bin") && !path.components().any(|part| part.as_os_str() == "src" && parent != "bin")
        }
    }
}

/// No absolute path of one machine: a first component that is not everybody's.
fn paths(text: &Text, findings: &mut Vec<String>) {
    for (number, line) in text.content.lines().enumerate() {
        for (at, _) in line.match_indices('/') {
            let before = line[..at].chars().next_back();
            if !matches!(before, None | Some(' ' | '"' | '\'' | '`' | '(' | '=' | ':')) || (before == Some(':') && line[..at].ends_with("s:")) {
                continue;
            }
            let component: String = line[at + 1..].chars().take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')).collect();
            let deeper = line[at + 1 + component.len()..].strip_prefix('/').is_some_and(|rest| rest.starts_with(char::is_alphanumeric));
            if deeper && component.starts_with(|c: char| c.is_ascii_lowercase()) && !PATHS.contains(&component.as_str()) {
                findings.push(text.finding(number + 1, format_args!("/{component}/… is a path of one machine")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    #[test]
    fn a_long_file_is_found() {
        let long = "//! x\n".repeat(LINES_MAX + 1);
        assert_eq!(check(&[text("crates/fs/src/a.rs", &long)]).len(), 1);
        assert!(check(&[text("crates/fs/src/a.rs", &"//! x\n".repeat(LINES_MAX))]).is_empty());
    }

    #[test]
    fn forbidden_words_are_found_with_their_line() {
        for (start, end, _) in WORDS {
            let findings = check(&[text("crates/fs/src/a.rs", &format!("fn a() {{}}\n{start}{end}\n"))]);
            assert_eq!(findings.len(), 1, "{start}{end}");
            assert!(findings[0].starts_with("crates/fs/src/a.rs:2: "), "{findings:?}");
        }
        let noted = concat!("// TO", "DO(0004): later\n");
        assert!(check(&[text("a.rs", noted)]).is_empty());
        assert_eq!(check(&[text("a.rs", &noted.replace("(0004)", ""))]).len(), 1);
    }

    #[test]
    fn white_space_is_found_in_any_text() {
        assert_eq!(check(&[text("a.md", "word \n")]).len(), 1);
        assert_eq!(check(&[text("a.toml", "a = 1")]).len(), 1);
        assert!(check(&[text("a.md", "word\n")]).is_empty());
    }

    #[test]
    fn a_crate_root_without_the_attribute_is_found() {
        for path in ["crates/fs/src/lib.rs", "crates/cli/src/main.rs", "crates/fs/tests/all.rs", "crates/a/examples/b.rs", "crates/a/src/bin/b.rs"] {
            assert_eq!(check(&[text(path, "//! x\n")]).len(), 1, "{path}");
            assert!(check(&[text(path, "#![forbid(unsafe_code)]\n")]).is_empty(), "{path}");
        }
        for path in ["crates/block/src/lib.rs", "crates/fs/src/log/mod.rs", "crates/fs/src/tests/a.rs"] {
            assert!(check(&[text(path, "//! x\n")]).is_empty(), "{path}");
        }
    }

    #[test]
    fn a_path_of_one_machine_is_found() {
        let home = concat!("/ho", "me/someone/file");
        assert_eq!(check(&[text("a.md", &format!("see {home}\n"))]).len(), 1);
        assert_eq!(check(&[text("a.rs", &format!("const A: &str = \"{home}\";\n"))]).len(), 1);
        for good in ["see /dev/loop0 and /mnt/x/y\n", "and/or/else\n", "https://a.b/c/d\n", "`/`\n", "a / b / c\n"] {
            assert!(check(&[text("a.md", good)]).is_empty(), "{good}");
        }
    }
}
