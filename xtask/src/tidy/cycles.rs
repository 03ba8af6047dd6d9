//! No crate has modules that depend on each other in a circle. Counted are the modules beside
//! `lib.rs`, with what is below them; tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use super::Text;

/// Modules by name, with the modules they use.
type Edges = BTreeMap<String, BTreeSet<String>>;

/// Returns what breaks the rule: one finding a circle.
pub fn check(texts: &[Text]) -> Vec<String> {
    let mut crates: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for text in texts.iter().filter(|text| text.is_rust()) {
        if let Some((root, file)) = text.path.split_once("/src/") {
            crates.entry(root).or_default().push((file, &text.content));
        }
    }
    crates
        .iter()
        .flat_map(|(root, files)| {
            circles(&edges(files)).into_iter().map(move |circle| finding(root, &circle))
        })
        .collect()
}

fn finding(root: &str, circle: &[String]) -> String {
    format!(
        "{root}/src: the modules {} depend on each other in a circle: what they share belongs \
         below them",
        circle.join(", ")
    )
}

/// Returns the top-level module that a file below `src` belongs to; `None` for the crate's root and
/// for tests.
fn module_of(file: &str) -> Option<&str> {
    let (first, rest) = file.split_once('/').unwrap_or((file, ""));
    let name = first.strip_suffix(".rs").unwrap_or(first);
    let is_root = rest.is_empty() && matches!(name, "lib" | "main");
    let is_test = name.ends_with("tests") || rest.ends_with("tests.rs") || rest.contains("tests/");
    (!is_root && !is_test && name != "bin").then_some(name)
}

/// Returns how many `super` lead from a file below `src` to the crate's root.
fn depth_of(file: &str) -> usize {
    file.trim_end_matches("/mod.rs").split('/').count()
}

fn edges(files: &[(&str, &str)]) -> Edges {
    let root = files
        .iter()
        .find(|(file, _)| *file == "lib.rs" || *file == "main.rs")
        .map_or("", |(_, content)| *content);
    let mut edges: Edges = files
        .iter()
        .filter_map(|(file, _)| module_of(file))
        .map(|name| (name.to_owned(), BTreeSet::new()))
        .collect();
    let shown = reexports(root, &edges);
    for (file, content) in files {
        let Some(module) = module_of(file) else { continue };
        let code = without_tests_and_comments(content);
        let mut used = names_after(&code, "crate::");
        used.extend(names_after(&code, &"super::".repeat(depth_of(file))));
        let used: BTreeSet<_> = used
            .into_iter()
            .map(|name| shown.get(&name).cloned().unwrap_or(name))
            .filter(|name| name != module)
            .collect();
        let known: Vec<_> = used.into_iter().filter(|name| edges.contains_key(name)).collect();
        edges.entry(module.to_owned()).or_default().extend(known);
    }
    edges
}

/// Returns the names that a crate's root shows of its modules, with the module of each.
fn reexports(root: &str, modules: &Edges) -> BTreeMap<String, String> {
    let mut shown = BTreeMap::new();
    for statement in without_tests_and_comments(root).split(';') {
        let Some((_, path)) = statement.split_once("use ") else { continue };
        let path = path.trim_start_matches("crate::");
        let Some((module, names)) =
            path.split_once("::").filter(|(module, _)| modules.contains_key(*module))
        else {
            continue;
        };
        for name in names.split(|c: char| !is_word(c)).filter(|name| !name.is_empty()) {
            shown.insert(name.to_owned(), module.to_owned());
        }
    }
    shown
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the code of a file up to its own tests.
fn without_tests_and_comments(content: &str) -> String {
    let code = content.split("#[cfg(test)]\nmod tests {").next().unwrap_or(content);
    let mut lines = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line))
        .collect::<Vec<_>>()
        .join("\n");
    // A module of tests in a file of its own.
    lines = lines.replace("#[cfg(test)]\nmod ", "");
    lines
}

/// Returns the first name of each path that begins with `start`, those of a list in braces too.
fn names_after(code: &str, start: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices(start) {
        if code[..at].ends_with(|c: char| is_word(c) || c == ':') {
            continue;
        }
        let rest = &code[at + start.len()..];
        match rest.strip_prefix('{') {
            Some(list) => names.extend(first_names(list)),
            None => names.extend(first_name(rest)),
        }
    }
    names
}

fn first_name(text: &str) -> Option<String> {
    let name: String = text.trim_start().chars().take_while(|c| is_word(*c)).collect();
    (!name.is_empty()).then_some(name)
}

/// Returns the first names of the parts of a list whose brace has been opened.
fn first_names(list: &str) -> Vec<String> {
    let (mut depth, mut begin, mut names) = (1, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => {
                names.extend(first_name(&list[begin..at]));
                begin = at + 1;
            }
            _ => {}
        }
        if depth == 0 {
            names.extend(first_name(&list[begin..at]));
            break;
        }
    }
    names
}

/// Returns the groups of modules of which each reaches every other.
fn circles(edges: &Edges) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        edges.keys().map(|from| (from, reach(edges, from))).collect();
    let mut circles = BTreeSet::new();
    for (from, to) in &reached {
        if to.contains(from) {
            let circle: Vec<_> = to
                .iter()
                .filter(|other| reached[*other].contains(from))
                .map(|other| (*other).clone())
                .collect();
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// Returns all modules that one uses, by way of others too.
fn reach<'a>(edges: &'a Edges, from: &str) -> BTreeSet<&'a String> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        for used in edges.get(module).into_iter().flatten() {
            if reached.insert(used) {
                open.push(used);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    const ROOT: &str = "mod a;\nmod b;\nmod c;\npub use b::{Bee, Other as Third};\n";

    #[test]
    fn a_circle_is_found_through_paths_lists_and_what_the_root_shows() {
        for (a, b) in [
            ("use crate::b::Bee;\n", "fn f() -> crate::a::A {}\n"),
            ("use crate::{Error, b::{Bee, inner::X}};\n", "use super::a;\n"),
            ("use crate::Bee;\n", "use crate::{c, a};\n"),
            ("use crate::b;\n", "fn f() -> super::a::A {}\n"),
        ] {
            let findings = check(&[
                text("crates/x/src/lib.rs", ROOT),
                text("crates/x/src/a.rs", a),
                text("crates/x/src/b.rs", b),
                text("crates/x/src/c.rs", ""),
            ]);
            assert_eq!(findings.len(), 1, "{a} {b}: {findings:?}");
            assert!(findings[0].contains("a, b depend"), "{findings:?}");
        }
    }

    #[test]
    fn the_way_up_is_followed_from_every_depth_and_no_further() {
        let findings = |path: &str, up: &str| {
            check(&[
                text("crates/x/src/lib.rs", ROOT),
                text("crates/x/src/a.rs", "use crate::b;\n"),
                text(path, up),
                text("crates/x/src/c.rs", ""),
            ])
            .len()
        };
        assert_eq!(findings("crates/x/src/b/mod.rs", "use super::a;\n"), 1);
        assert_eq!(findings("crates/x/src/b/inner.rs", "use super::super::a;\n"), 1);
        assert_eq!(findings("crates/x/src/b/inner.rs", "use super::a;\n"), 0, "that is b's own a");
    }

    #[test]
    fn a_long_circle_is_one_finding_and_names_its_modules_alone() {
        let files = [
            text("crates/x/src/lib.rs", ROOT),
            text("crates/x/src/a/mod.rs", "use crate::b;\n"),
            text("crates/x/src/b.rs", "use crate::c;\n"),
            text("crates/x/src/c/deep/er.rs", "use crate::a::A;\n"),
            text("crates/x/src/d.rs", "use crate::a::A;\n"),
        ];
        let findings = check(&files);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].contains("modules a, b, c depend"), "{findings:?}");
    }

    #[test]
    fn tests_comments_other_crates_and_the_module_itself_are_no_circle() {
        let files = [
            text("crates/x/src/lib.rs", ROOT),
            text("crates/x/src/a.rs", "use crate::b;\nuse crate::a::inner;\n"),
            text(
                "crates/x/src/b.rs",
                "// crate::a\nuse other_crate::a;\n#[cfg(test)]\nmod tests {\nuse crate::a;\n}\n",
            ),
            text("crates/x/src/b/tests.rs", "use crate::a;\n"),
            text("crates/y/src/a.rs", "use crate::b;\n"),
        ];
        assert!(check(&files).is_empty(), "{:?}", check(&files));
    }
}
