//! Rules on ids: an invariant (`I-LOG-3`) that a module's head states is stated once, asserted and
//! tested; a clause of the semantics (`S-12`) is tested.
//!
//! An id counts as asserted where the message of an assert outside tests names it, and as tested
//! where a test names it: `I-LOG-3`, or `i_log_3` in a test's name. What no assert can see stands
//! in a table of `docs/proof.md` with the reason, and nothing else does.

use std::collections::{BTreeMap, BTreeSet};

use super::Text;

/// Where an id was seen.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    asserted: bool,
    tested: bool,
}

/// Returns what breaks the rules.
pub fn check(texts: &[Text]) -> Vec<String> {
    let mut findings = Vec::new();
    invariants(texts, &mut findings);
    clauses(texts, &mut findings);
    findings
}

fn invariants(texts: &[Text], findings: &mut Vec<String>) {
    let mut stated: BTreeMap<String, String> = BTreeMap::new();
    for text in texts.iter().filter(|text| is_product(text)) {
        for (number, line) in text.content.lines().enumerate() {
            if line.trim_start().starts_with("//!") {
                for id in ids(line, "I-") {
                    stated.entry(id).or_insert_with(|| text.finding(number + 1, ""));
                }
            }
        }
    }
    let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
    for text in texts.iter().filter(|text| is_product(text)) {
        note(text, &mut seen);
    }
    stated_once(texts, findings);
    let mut excused = without_assert(texts, findings);
    for (id, place) in stated {
        let found = seen.get(&id).copied().unwrap_or_default();
        match (found.asserted, excused.remove(&id)) {
            (false, None) => findings.push(format!(
                "{place}{id} is stated, and no assert names it; docs/proof.md may say why none can"
            )),
            (true, Some(line)) => findings.push(format!(
                "{PROOF}:{line}: {id} has an assert, and stands among those without one"
            )),
            _ => {}
        }
        if !found.tested {
            findings.push(format!("{place}{id} is stated, and no test names it"));
        }
    }
    findings.extend(
        excused
            .into_iter()
            .map(|(id, line)| format!("{PROOF}:{line}: no module's head states {id}")),
    );
}

const PROOF: &str = "docs/proof.md";

/// Reads the table of invariants that no assert can see, with the lines they stand in.
fn without_assert(texts: &[Text], findings: &mut Vec<String>) -> BTreeMap<String, usize> {
    let Some(proof) = texts.iter().find(|text| text.path == PROOF) else { return BTreeMap::new() };
    let Some((before, table)) = proof.content.split_once("\n### Invariants without an assert\n")
    else {
        return BTreeMap::new();
    };
    let first = before.lines().count() + 2;
    let mut excused = BTreeMap::new();
    for (number, line) in table.lines().enumerate().take_while(|(_, line)| !line.starts_with('#')) {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let (Some(id), Some(reason)) = (cells.next(), cells.next()) else { continue };
        if let [id] = ids(id, "I-").as_slice() {
            if reason.is_empty() {
                findings.push(
                    proof
                        .finding(first + number, format_args!("{id} has no assert, and no reason")),
                );
            }
            excused.insert(id.clone(), first + number);
        }
    }
    excused
}

/// A head states an invariant in a line that begins with its id and a colon; another that means the
/// same refers to it in other words.
fn stated_once(texts: &[Text], findings: &mut Vec<String>) {
    let mut stated = BTreeSet::new();
    for text in texts.iter().filter(|text| is_product(text)) {
        for (number, line) in text.content.lines().enumerate() {
            let Some(head) = line.trim_start().strip_prefix("//!") else { continue };
            let head = head.trim_start_matches(['-', '*', ' ']);
            let Some(id) =
                ids(head, "I-").into_iter().next().filter(|id| head.starts_with(id.as_str()))
            else {
                continue;
            };
            if head[id.len()..].starts_with([':', '*']) && !stated.insert(id.clone()) {
                findings
                    .push(text.finding(number + 1, format_args!("{id} is stated elsewhere too")));
            }
        }
    }
}

/// The product's own sources: this toolbox talks about ids without having any.
fn is_product(text: &Text) -> bool {
    text.is_rust() && !text.path.starts_with("xtask/src/tidy/")
}

/// Adds every id that `text` names outside module heads.
fn note(text: &Text, seen: &mut BTreeMap<String, Seen>) {
    let mut in_tests = is_test_file(&text.path);
    for line in text.content.lines() {
        in_tests |= line.trim_start().starts_with("mod tests {");
        if line.trim_start().starts_with("//!") {
            continue;
        }
        let names = names_in_functions(line, "i_");
        for id in ids(line, "I-").into_iter().chain(names) {
            seen.entry(id).or_default().tested |= in_tests;
        }
    }
    if !is_test_file(&text.path) {
        for id in asserts(text.product_code()).iter().flat_map(|assert| ids(assert, "I-")) {
            seen.entry(id).or_default().asserted = true;
        }
    }
}

/// Returns what stands in the brackets of asserts, and of what else ends the program with a
/// message.
fn asserts(code: &str) -> Vec<&str> {
    let starts = ["assert!(", "assert_eq!(", "assert_ne!(", "panic!(", "unreachable!(", ".expect("];
    let found = starts
        .iter()
        .flat_map(|start| code.match_indices(start).map(|(at, start)| &code[at + start.len()..]));
    found.map(|rest| &rest[..closing(rest)]).collect()
}

/// Returns where the bracket closes that was open before `code`; brackets in strings and as single
/// characters do not count.
fn closing(code: &str) -> usize {
    let (mut depth, mut in_string, mut escaped) = (1, false, false);
    let is_quoted = |at: usize| code[..at].ends_with('\'') && code[at + 1..].starts_with('\'');
    for (at, c) in code.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            '(' if !in_string && !is_quoted(at) => depth += 1,
            ')' if !in_string && !is_quoted(at) => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    code.len()
}

fn is_test_file(path: &str) -> bool {
    path.contains("/tests/")
        || path.ends_with("/tests.rs")
        || path.ends_with("_tests.rs")
        || path.starts_with("crates/sim/")
}

fn clauses(texts: &[Text], findings: &mut Vec<String>) {
    let Some(semantics) = texts.iter().find(|text| text.path == "docs/semantics.md") else {
        return;
    };
    for (number, line) in semantics.content.lines().enumerate() {
        let Some(id) = line
            .strip_prefix("**S-")
            .and_then(|rest| rest.split_once("**"))
            .map(|(number, _)| format!("S-{number}"))
        else {
            continue;
        };
        if !texts.iter().any(|text| is_product(text) && names_clause(text, &id)) {
            findings.push(
                semantics
                    .finding(number + 1, format_args!("{id} is promised, and no test names it")),
            );
        }
    }
    by_number(semantics, findings);
}

/// The table by number, where there is one, has every clause with the heading that it stands under.
fn by_number(semantics: &Text, findings: &mut Vec<String>) {
    let Some((clauses, table)) = semantics.content.split_once("\n## Clauses by number\n") else {
        return;
    };
    let mut subject = "";
    for (number, line) in clauses.lines().enumerate() {
        if line.starts_with('#') {
            subject = line.trim_start_matches('#').trim();
        } else if let Some((id, _)) = line
            .strip_prefix("**")
            .and_then(|rest| rest.split_once("**"))
            .filter(|(id, _)| id.starts_with("S-"))
            && !table.contains(&format!("| {id} | [{subject}]("))
        {
            findings.push(semantics.finding(
                number + 1,
                format_args!("the table of clauses by number does not have {id} under '{subject}'"),
            ));
        }
    }
}

fn names_clause(text: &Text, id: &str) -> bool {
    let mut in_tests = is_test_file(&text.path) || text.path.starts_with("xtask/src/real/");
    for line in text.content.lines() {
        in_tests |= line.trim_start().starts_with("mod tests {");
        if in_tests
            && (ids(line, "S-").iter().any(|named| named == id)
                || names_in_functions(line, "s_").iter().any(|named| named == id))
        {
            return true;
        }
    }
    false
}

/// Returns the ids in `line` that start with `prefix` and end with a number: `I-LOG-3`, `S-12`.
fn ids(line: &str, prefix: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices(prefix) {
        if line[..at]
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || c == '-' || c == '_')
        {
            continue;
        }
        let id: String = line[at..]
            .chars()
            .take_while(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '-')
            .collect();
        let id = id.trim_end_matches('-');
        if id.rsplit_once('-').is_some_and(|(start, number)| {
            number.parse::<u32>().is_ok() && (prefix == "S-" || start.len() > 2)
        }) {
            found.push(id.to_owned());
        }
    }
    found
}

/// Returns the ids that the name of a function on this line carries: `fn i_log_3_…` is `I-LOG-3`,
/// `fn s_12_…` is `S-12`, several in a row count.
fn names_in_functions(line: &str, prefix: &str) -> Vec<String> {
    let Some((_, rest)) = line.split_once("fn ") else { return Vec::new() };
    let name: String =
        rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    let mut parts = name.split('_').peekable();
    let mut found = Vec::new();
    while parts.peek() == Some(&prefix.trim_end_matches('_')) {
        let mut id = vec![parts.next().unwrap_or_default().to_uppercase()];
        for part in parts.by_ref() {
            id.push(part.to_uppercase());
            if part.parse::<u32>().is_ok() {
                found.push(id.join("-"));
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    #[test]
    fn ids_are_read_from_lines_and_names() {
        assert_eq!(ids("see I-LOG-3, I-FREE-12 and AI-X-1", "I-"), ["I-LOG-3", "I-FREE-12"]);
        assert_eq!(ids("S-12: a (S-3) POSIX-1", "S-"), ["S-12", "S-3"]);
        assert_eq!(ids("I-1 and I-TAIL", "I-"), Vec::<String>::new());
        assert_eq!(names_in_functions("    fn i_log_3_holds() {", "i_"), ["I-LOG-3"]);
        assert_eq!(names_in_functions("fn s_1_s_2_rename_is_atomic() {", "s_"), ["S-1", "S-2"]);
        assert_eq!(names_in_functions("fn size() {", "s_"), Vec::<String>::new());
    }

    #[test]
    fn a_stated_invariant_needs_an_assert_and_a_test() {
        let head = "//! I-LOG-3: order\n";
        let assert = "fn a() {\n    assert!(true, \"I-LOG-3\");\n}\n";
        let test = "mod tests {\n    fn i_log_3_order() {}\n}\n";
        let count = |content: String| check(&[text("crates/fs/src/log.rs", &content)]).len();
        assert_eq!(count(head.to_owned()), 2);
        assert_eq!(count(format!("{head}{assert}")), 1);
        assert_eq!(count(format!("{head}{test}")), 1);
        assert_eq!(count(format!("{head}{assert}{test}")), 0);
        let comment =
            "fn a() {\n    // I-LOG-3\n    assert!(true, \"other ) (\");\n    b(\"I-LOG-3\");\n}\n";
        assert_eq!(count(format!("{head}{comment}{test}")), 1, "a comment is no assert");
        assert_eq!(
            count(format!(
                "{head}{}{test}",
                assert.replace("assert!(true, ", "debug_assert!(\n        f(')', \")\"),\n")
            )),
            0
        );
        assert_eq!(count(format!("{head}{head}{assert}{test}")), 1, "stated twice");
    }

    #[test]
    fn what_no_assert_can_see_has_a_reason_and_no_assert() {
        let head = "//! I-LOG-3: order\n";
        let test = "mod tests {\n    fn i_log_3_order() {}\n}\n";
        let count = |source: &str, row: &str| {
            let proof = format!(
                "# Proof\n\n### Invariants without an assert\n\n| invariant | why |\n| --- | --- \
                 |\n{row}\n## Next\n\n| I-NO-1 | x |\n"
            );
            check(&[
                text("crates/fs/src/log.rs", &format!("{head}{source}\n{test}")),
                text(PROOF, &proof),
            ])
            .len()
        };
        let assert = "fn a() {\n    assert!(true, \"I-LOG-3\");\n}\n";
        assert_eq!(count("", "| I-LOG-3 | a device decides it |"), 0);
        assert_eq!(count("", "| I-LOG-3 | |"), 1, "no reason");
        assert_eq!(count(assert, "| I-LOG-3 | a device decides it |"), 1, "it has an assert");
        assert_eq!(count(assert, "| I-LOG-4 | a device decides it |"), 1, "it is not stated");
    }

    #[test]
    fn a_promised_clause_needs_a_test() {
        let semantics = || text("docs/semantics.md", "**S-1** A.\n\n**S-2** B.\n");
        let named = text("crates/fs/tests/all.rs", "// S-1\nfn a() {}\nfn s_2_b() {}\n");
        assert_eq!(check(&[semantics()]).len(), 2);
        assert!(check(&[semantics(), named]).is_empty());
        assert_eq!(check(&[semantics(), text("crates/fs/src/a.rs", "// S-1 S-2\n")]).len(), 2);
    }

    #[test]
    fn the_table_by_number_has_every_clause_under_its_subject() {
        let head = "## Names\n\n**S-1** A.\n\n## Errors\n\n**S-2** B.\n\n## Clauses by number\n\n| \
                    S-1 | [Names](#names) |\n";
        let mut findings = Vec::new();
        by_number(&text("docs/semantics.md", head), &mut findings);
        assert_eq!(
            findings,
            [
                "docs/semantics.md:7: the table of clauses by number does not have S-2 under 'Errors'"
            ]
        );
        findings.clear();
        by_number(
            &text("docs/semantics.md", &format!("{head}| S-2 | [Errors](#errors) |\n")),
            &mut findings,
        );
        assert_eq!(findings, Vec::<String>::new());
    }
}
