//! Rules on documents: links that exist, a README that stays short.

use std::path::Path;

use super::Text;

/// The most lines the README may have.
const README_LINES_MAX: usize = 100;

/// Documents that have to exist.
const REQUIRED: [&str; 13] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "docs/guide.md",
    "docs/design.md",
    "docs/format.md",
    "docs/semantics.md",
    "docs/faults.md",
    "docs/locks.md",
    "docs/decisions/0001-redb-memtables.md",
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
    }
    findings
}

fn links(text: &Text, texts: &[Text], root: &Path, findings: &mut Vec<String>) {
    let mut fenced = false;
    for (number, line) in text.content.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for target in targets(line) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            if let Some(problem) = broken(text, target, texts, root) {
                findings.push(text.finding(number + 1, problem));
            }
        }
    }
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
    let path = if file.is_empty() { Path::new(&text.path).to_path_buf() } else { join(&text.path, file) };
    if !root.join(&path).exists() && !texts.iter().any(|other| Path::new(&other.path) == path) {
        return Some(format!("the link to {target} leads nowhere"));
    }
    let linked = texts.iter().find(|other| Path::new(&other.path) == path)?;
    let known = anchor.is_empty() || linked.content.lines().any(|line| line.starts_with('#') && slug(line) == anchor);
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
    words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_')).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    fn link_findings(texts: &[Text]) -> Vec<String> {
        check(texts, Path::new("a directory that does not exist")).into_iter().filter(|finding| !finding.ends_with("does not exist")).collect()
    }

    #[test]
    fn links_are_followed() {
        let there = text("docs/b.md", "# B\n\n## The second part\n");
        let good = text("docs/a.md", "# A\n[x](b.md) [y](../docs/b.md#the-second-part) [z](#a) [w](https://example.org/)\n");
        assert_eq!(link_findings(&[there, good]), Vec::<String>::new());
    }

    #[test]
    fn broken_links_are_found() {
        let there = text("docs/b.md", "# B\n");
        let bad = text("docs/a.md", "[x](c.md)\n[y](b.md#none)\n```\n[z](inside-a-fence.md)\n```\n");
        let findings = link_findings(&[there, bad]);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].starts_with("docs/a.md:1:") && findings[1].starts_with("docs/a.md:2:"), "{findings:?}");
    }

    #[test]
    fn a_long_readme_and_a_missing_document_are_found() {
        let findings = check(&[text("README.md", &"x\n".repeat(README_LINES_MAX + 1))], Path::new("."));
        assert!(findings.iter().any(|finding| finding.starts_with("README.md: more than")));
        assert!(findings.iter().any(|finding| finding.starts_with("CHANGELOG.md")));
    }
}
