//! Rules on documents: links and paths that exist, greps that hit, a book that holds every page, a
//! README that stays short.

use std::path::Path;

use super::Text;

/// The most lines the README may have.
const README_LINES_MAX: usize = 100;

/// Where the pages of the book lie, and the list of them.
const BOOK: &str = "docs/";
const SUMMARY: &str = "docs/SUMMARY.md";

/// What paths that documents name begin with.
const ROOMS: [&str; 5] = ["crates/", "xtask/", "fuzz/", "contrib/", "docs/"];

/// Documents that have to exist.
const REQUIRED: [&str; 17] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "SECURITY.md",
    "docs/SUMMARY.md",
    "docs/README.md",
    "docs/glossary.md",
    "docs/design.md",
    "docs/format.md",
    "docs/semantics.md",
    "docs/faults.md",
    "docs/locks.md",
    "docs/rooms.md",
    "docs/decisions/README.md",
    ".ci/run",
];

/// Returns what breaks the rules; links are resolved below `root`.
pub fn check(texts: &[Text], root: &Path) -> Vec<String> {
    let mut findings = Vec::new();
    for required in REQUIRED {
        if !texts.iter().any(|text| text.path == required) {
            findings.push(format!("{required}: does not exist"));
        }
    }
    for text in texts.iter().filter(|text| text.is_markdown()) {
        if text.path == "README.md" && text.content.lines().count() > README_LINES_MAX {
            findings.push(format!("README.md: more than {README_LINES_MAX} lines"));
        }
        links(text, texts, root, &mut findings);
        named_paths(text, texts, root, &mut findings);
        greps(text, texts, &mut findings);
    }
    pages(texts, &mut findings);
    findings
}

/// Every page below docs/ is a page of the book.
fn pages(texts: &[Text], findings: &mut Vec<String>) {
    let Some(summary) = texts.iter().find(|text| text.path == SUMMARY) else { return };
    let listed: Vec<_> =
        summary.content.lines().flat_map(targets).map(|target| join(SUMMARY, target)).collect();
    for page in texts
        .iter()
        .filter(|text| text.is_markdown() && text.path.starts_with(BOOK) && text.path != SUMMARY)
    {
        if !listed.iter().any(|path| path == Path::new(&page.path)) {
            findings
                .push(format!("{}: {SUMMARY} does not list it, so the book lacks it", page.path));
        }
    }
}

/// A path of the repository that stands in backquotes exists.
fn named_paths(text: &Text, texts: &[Text], root: &Path, findings: &mut Vec<String>) {
    for (number, line) in prose(text) {
        for named in line.split('`').skip(1).step_by(2).filter(|named| is_path(named)) {
            let below = format!("{}/", named.trim_end_matches('/'));
            let known =
                texts.iter().any(|other| other.path == named || other.path.starts_with(&below));
            if !known && !root.join(named).exists() {
                findings.push(text.finding(number, format_args!("there is no {named}")));
            }
        }
    }
}

/// What a `grep` in backquotes begins with; plain words in quotes follow, and places.
const GREP: &str = "grep -rn \"";

/// A `grep` that stands in backquotes finds something in each of its places.
fn greps(text: &Text, texts: &[Text], findings: &mut Vec<String>) {
    for (number, line) in prose(text) {
        let quoted = line.split('`').skip(1).step_by(2);
        for asked in quoted.filter_map(|quoted| quoted.strip_prefix(GREP)) {
            let (words, places) = asked.split_once("\" ").unwrap_or((asked, ""));
            if places.trim().is_empty() {
                findings.push(text.finding(number, format_args!("grep {words:?} names no place")));
            }
            for place in places.split_whitespace() {
                let below = format!("{}/", place.trim_end_matches('/'));
                let hits = texts.iter().any(|other| {
                    (other.path == place || other.path.starts_with(&below))
                        && other.content.contains(words)
                });
                if !hits {
                    findings.push(
                        text.finding(number, format_args!("grep finds no {words:?} in {place}")),
                    );
                }
            }
        }
    }
}

/// Tells whether this names a file or directory of the repository and nothing else.
fn is_path(named: &str) -> bool {
    ROOMS.iter().any(|room| named.starts_with(room))
        && named.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
}

fn links(text: &Text, texts: &[Text], root: &Path, findings: &mut Vec<String>) {
    for (number, line) in prose(text) {
        for target in targets(line) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            if let Some(problem) = broken(text, target, texts, root) {
                findings.push(text.finding(number, problem));
            }
        }
    }
}

/// Returns the lines outside fenced blocks, with their numbers from 1 on.
fn prose(text: &Text) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.content.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((number + 1, line))
    })
}

/// Returns the targets of the inline links of one line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](").filter_map(|(at, mark)| {
        let rest = &line[at + mark.len()..];
        rest.split_once(')').map(|(target, _)| target)
    })
}

/// Says why a link leads nowhere; `None` when it leads somewhere.
fn broken(text: &Text, target: &str, texts: &[Text], root: &Path) -> Option<String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path =
        if file.is_empty() { Path::new(&text.path).to_path_buf() } else { join(&text.path, file) };
    if text.path.starts_with(BOOK) && !path.starts_with(BOOK) {
        return Some(format!(
            "the link to {target} leads out of the book: name the path in backquotes instead"
        ));
    }
    if !root.join(&path).exists() && !texts.iter().any(|other| Path::new(&other.path) == path) {
        return Some(format!("the link to {target} leads nowhere"));
    }
    let linked = texts.iter().find(|other| Path::new(&other.path) == path)?;
    let known = anchor.is_empty()
        || linked.content.lines().any(|line| line.starts_with('#') && slug(line) == anchor);
    (!known).then(|| format!("{} has no heading #{anchor}", linked.path))
}

/// Resolves `target` beside the file `from`.
fn join(from: &str, target: &str) -> std::path::PathBuf {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.iter().collect()
}

/// Returns the anchor of a heading, as the usual hosts make it.
fn slug(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    words
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    fn link_findings(texts: &[Text]) -> Vec<String> {
        check(texts, Path::new("a directory that does not exist"))
            .into_iter()
            .filter(|finding| !finding.ends_with("does not exist"))
            .collect()
    }

    #[test]
    fn links_are_followed() {
        let there = text("docs/b.md", "# B\n\n## The second part\n");
        let good = text(
            "docs/a.md",
            "# A\n[x](b.md) [y](../docs/b.md#the-second-part) [z](#a) [w](https://example.org/)\n",
        );
        assert_eq!(link_findings(&[there, good]), Vec::<String>::new());
    }

    #[test]
    fn broken_links_are_found() {
        let there = text("docs/b.md", "# B\n");
        let bad =
            text("docs/a.md", "[x](c.md)\n[y](b.md#none)\n```\n[z](inside-a-fence.md)\n```\n");
        let findings = link_findings(&[there, bad]);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(
            findings[0].starts_with("docs/a.md:1:") && findings[1].starts_with("docs/a.md:2:"),
            "{findings:?}"
        );
    }

    #[test]
    fn a_page_that_the_book_lacks_and_a_link_out_of_it_are_found() {
        let summary = text("docs/SUMMARY.md", "- [A](a.md)\n");
        let listed = text("docs/a.md", "[out](../README.md)\n");
        let missing = text("docs/guide/b.md", "# B\n");
        let findings = link_findings(&[summary, listed, missing, text("README.md", "# R\n")]);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(
            findings[0].starts_with("docs/a.md:1: the link to ../README.md leads out"),
            "{findings:?}"
        );
        assert!(
            findings[1].starts_with("docs/guide/b.md: docs/SUMMARY.md does not list it"),
            "{findings:?}"
        );
    }

    #[test]
    fn paths_in_backquotes_exist() {
        let source = text("crates/fs/src/space.rs", "");
        let page = text(
            "A.md",
            "`crates/fs/src` `crates/fs/src/space.rs` `crates/*/x` `cargo \
             run`\n`crates/fs/gone.rs`\n",
        );
        let findings = link_findings(&[source, page]);
        assert_eq!(findings, ["A.md:2: there is no crates/fs/gone.rs"]);
    }

    #[test]
    fn greps_in_backquotes_hit_in_every_place() {
        let sources = [
            text("crates/fs/src/space.rs", "// which free run is taken\n"),
            text("crates/fsx/src/lib.rs", "// hot spare\n"),
        ];
        let page = text(
            "A.md",
            "`grep -rn \"free run\" crates/fs/src`\n\
             `grep -rn \"hot spare\" crates/fsx crates/fs`\n\
             `grep -rn \"free run\"`\n\
             ```\n`grep -rn \"in a fence\" crates`\n```\n",
        );
        let [first, second] = sources;
        let findings = link_findings(&[first, second, page]);
        assert_eq!(
            findings,
            [
                "A.md:2: grep finds no \"hot spare\" in crates/fs",
                "A.md:3: grep \"free run\\\"\" names no place"
            ]
        );
    }

    #[test]
    fn a_long_readme_and_a_missing_document_are_found() {
        let findings =
            check(&[text("README.md", &"x\n".repeat(README_LINES_MAX + 1))], Path::new("."));
        assert!(findings.iter().any(|finding| finding.starts_with("README.md: more than")));
        assert!(findings.iter().any(|finding| finding.starts_with("CHANGELOG.md")));
    }
}
