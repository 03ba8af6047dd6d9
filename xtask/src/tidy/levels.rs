//! I/O modes and RAID levels are told apart at home: outside it nothing compares with a named one.
//!
//! A comparison (`==`, `!=`, `matches!`, `if let`) does not see a mode or a level that is added
//! later; a method at home is a `match` over all of them, which the compiler then refuses. A whole
//! `match` elsewhere is allowed for the same reason. Tests may compare.

use super::Text;

/// An enum with its home: the files where its variants may be compared.
struct Levels {
    name: &'static str,
    home: &'static str,
    /// Names behind `::` that are no level.
    others: &'static [&'static str],
}

const LEVELS: [Levels; 4] = [
    Levels { name: "IoMode", home: "crates/store/src/types.rs", others: &["ALL"] },
    Levels { name: "Layout", home: "crates/volume/src/layout/", others: &["Extent"] },
    Levels { name: "Shape", home: "crates/volume/src/layout/", others: &["ALL"] },
    Levels { name: "LayoutName", home: "crates/volume/src/layout/", others: &[] },
];

/// Returns what breaks the rule.
pub fn check(texts: &[Text]) -> Vec<String> {
    let mut findings = Vec::new();
    for text in texts
        .iter()
        .filter(|text| text.is_rust() && text.path.starts_with("crates/") && !text.is_test())
    {
        let code = text.product_code();
        for levels in LEVELS.iter().filter(|levels| !text.path.starts_with(levels.home)) {
            for at in compared(code, levels) {
                let line = code[..at].lines().count().max(1);
                let (name, home) = (levels.name, levels.home);
                findings.push(text.finding(
                    line,
                    format_args!(
                        "a comparison with a {name} that is named: ask a method at home, in {home}"
                    ),
                ));
            }
        }
    }
    findings
}

/// Returns where `code` compares with a named variant, or brings the variants in by `use`, behind
/// which comparisons are not seen.
fn compared(code: &str, levels: &Levels) -> Vec<usize> {
    let start = format!("{}::", levels.name);
    let mut found = Vec::new();
    for (at, _) in code.match_indices(&start) {
        let before = &code[..at];
        if before.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let variant: &str = code[at + start.len()..]
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
            .unwrap_or_default();
        let behind = &code[at + start.len() + variant.len()..];
        let named = variant.starts_with(|c: char| c.is_ascii_uppercase())
            && !levels.others.contains(&variant);
        let imported = variant.is_empty() && statement(before).trim_start().starts_with("use ");
        if imported || (named && (is_operand(before, behind) || is_pattern(before))) {
            found.push(at);
        }
    }
    found
}

/// Returns whether what stands between is an operand of `==` or `!=`, by itself, in `Some(…)` or by
/// its name.
fn is_operand(before: &str, behind: &str) -> bool {
    let before = before.trim_end_matches(|c: char| {
        c.is_alphanumeric() || matches!(c, '_' | ':' | '&' | '*' | '(' | ' ' | '\n')
    });
    let behind = behind.strip_prefix(".name()").unwrap_or(behind);
    let behind = behind.trim_start_matches([')', ' ', '\n']);
    let is_comparison = |operator: &str| matches!(operator, "==" | "!=");
    before.len().checked_sub(2).and_then(|at| before.get(at..)).is_some_and(is_comparison)
        || behind.get(..2).is_some_and(is_comparison)
}

/// Returns whether the end of `before` lies within `matches!(…)` or the pattern of an `if let`.
fn is_pattern(before: &str) -> bool {
    let statement = statement(before);
    let within = |start: &str, end: &dyn Fn(&str) -> bool| {
        statement.rfind(start).is_some_and(|at| !end(&statement[at + start.len()..]))
    };
    let closed = |rest: &str| {
        rest.chars()
            .try_fold(1, |depth, c| {
                Some(depth + i32::from(c == '(') - i32::from(c == ')')).filter(|depth| *depth > 0)
            })
            .is_none()
    };
    let assigned = |rest: &str| rest.contains('=');
    within("matches!(", &closed) || within("if let ", &assigned) || within("while let ", &assigned)
}

/// Returns the statement that the end of `before` stands in, from its beginning.
fn statement(before: &str) -> &str {
    &before[before.rfind([';', '{', '}']).map_or(0, |at| at + 1)..]
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    fn count(path: &str, code: &str) -> usize {
        check(&[text(path, &format!("fn a() {{\n    {code}\n}}\n"))]).len()
    }

    #[test]
    fn a_comparison_outside_the_home_is_found() {
        for code in [
            "let a = mode == IoMode::Cached;",
            "let a = IoMode::Cached != mode;",
            "let a = mode == Some(bedplate::IoMode::Cached);",
            "let a = name == IoMode::Cached.name();",
            "let a = *mode\n        == IoMode::Direct;",
            "if matches!(path, IoMode::Cached | IoMode::Direct) {}",
            "if let Some(IoMode::Cached) = mode {}",
            "use IoMode::{Cached, Direct};",
            "let a = matches!(volume.layout, Layout::Raid5(_));",
            "let a = shape == Shape::Raid5;",
            "if let Layout::Mirror(mirror) = layout {}",
        ] {
            assert!(count("crates/fs/src/a.rs", code) > 0, "{code}");
            assert_eq!(count("crates/fs/src/a/tests.rs", code), 0, "{code}");
        }
        assert_eq!(count("crates/store/src/types.rs", "let a = mode == IoMode::Cached;"), 0);
        assert_eq!(
            count("crates/volume/src/layout/mod.rs", "let a = matches!(self, Layout::Raid5(_));"),
            0
        );
    }

    #[test]
    fn values_and_whole_matches_are_no_comparisons() {
        for code in [
            "let options = Options { mode: IoMode::Cached };",
            "match mode {\n        IoMode::Cached => 1,\n        IoMode::Direct => 2,\n    }",
            "let a = before == after; open(IoMode::Cached);",
            "for mode in IoMode::ALL {}",
            "let a = if let Layout::Extent(extent) = layout { 1 } else { 2 };",
            "let a = matches!(b, C::D) && take(IoMode::Cached);",
            "if let Some(a) = b.find(IoMode::Cached) {}",
        ] {
            assert_eq!(count("crates/fs/src/a.rs", code), 0, "{code}");
        }
        assert_eq!(
            check(&[text(
                "crates/fs/src/a.rs",
                "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { mode == IoMode::Cached }\n}\n"
            )])
            .len(),
            0
        );
    }
}
