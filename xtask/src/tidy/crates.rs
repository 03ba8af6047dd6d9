//! Rules on crates: arrows between rooms, duplicate versions, licences.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Which rooms a room may use. Rooms that are not here put others together and may use all.
const EDGES: [(&str, &[&str]); 20] = [
    ("bedplate-block", &[]),
    ("bedplate-lease", &[]),
    ("bedplate-trace", &[]),
    ("bedplate-preload", &["bedplate-lease", "bedplate-trace"]),
    ("bedplate-volume", &["bedplate-block"]),
    ("bedplate-store", &["bedplate-block"]),
    ("bedplate-cache", &["bedplate-block", "bedplate-store", "bedplate-lease"]),
    ("bedplate-fs", &["bedplate-block", "bedplate-store", "bedplate-cache", "bedplate-lease"]),
    ("bedplate", &["bedplate-block", "bedplate-volume", "bedplate-fs"]),
    ("bedplate-fuse", &["bedplate-block"]),
    (
        "bedplate-serve",
        &["bedplate-block", "bedplate-fs", "bedplate-fuse", "bedplate-lease", "bedplate-nfs"],
    ),
    ("bedplate-backup", &["bedplate-block"]),
    ("bedplate-nfs", &["bedplate-block", "bedplate-store", "bedplate-cache"]),
    ("bedplate-direct", &["bedplate-block", "bedplate-nfs"]),
    ("bedplate-adopt", &["bedplate-block", "bedplate-fs"]),
    ("bedplate-doctor", &["bedplate-block"]),
    ("bedplate-export", &["bedplate-block", "bedplate-fs", "bedplate-nfs"]),
    ("bedplate-crashlab", &["bedplate-block", "bedplate", "bedplate-serve", "bedplate-bench"]),
    // All but the crash judge, whose interleaving points no program may carry.
    (
        "bedplate-cli",
        &[
            "bedplate-adopt",
            "bedplate-block",
            "bedplate",
            "bedplate-serve",
            "bedplate-bench",
            "bedplate-backup",
            "bedplate-crashlab",
            "bedplate-direct",
            "bedplate-doctor",
            "bedplate-export",
            "bedplate-nfs",
            "bedplate-trace",
        ],
    ),
    ("xtask", &[]),
];

/// Crates that are in the tree in two versions, and why that is not ours to mend. An entry that is
/// no longer true is a finding.
const DUPLICATES: [(&str, &str); 7] = [
    ("bitflags", "vmm-sys-util, below vhost and virtio-queue, is still at bitflags 1"),
    ("crypto-common", "object_store's md-5 is at digest 0.11, crc-fast still at 0.10"),
    ("digest", "object_store's md-5 is at digest 0.11, crc-fast still at 0.10"),
    ("getrandom", "shuttle, for tests only, still uses rand 0.8"),
    ("rand", "shuttle, for tests only, still uses rand 0.8"),
    ("rand_core", "shuttle, for tests only, still uses rand 0.8"),
    ("syn", "macros at build time only; their authors move to 3 one by one"),
];

/// Licences that may be linked into a program under MIT OR Apache-2.0.
const LICENCES: [&str; 11] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unlicense",
    "CC0-1.0",
    "0BSD",
    "Unicode-3.0",
];

/// Returns what breaks the rules; `metadata` is what `cargo metadata` prints.
pub fn check(metadata: &Value) -> Vec<String> {
    let packages = used_packages(metadata);
    let mut findings = Vec::new();
    edges(&packages, &mut findings);
    planted(&packages, &mut findings);
    interleaved(&packages, &mut findings);
    duplicates(&packages, &mut findings);
    licences(&packages, &mut findings);
    findings
}

/// Returns the packages that are compiled on this platform: those of the resolved graph.
fn used_packages(metadata: &Value) -> Vec<&Value> {
    let nodes: BTreeSet<&str> =
        list(&metadata["resolve"]["nodes"]).filter_map(|node| node["id"].as_str()).collect();
    list(&metadata["packages"])
        .filter(|package| package["id"].as_str().is_some_and(|id| nodes.contains(id)))
        .collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or("")
}

fn edges(packages: &[&Value], findings: &mut Vec<String>) {
    let rooms: BTreeSet<&str> = packages
        .iter()
        .filter(|package| package["source"].is_null())
        .map(|package| name(package))
        .collect();
    for (room, allowed) in EDGES {
        let Some(package) =
            packages.iter().find(|package| name(package) == room && package["source"].is_null())
        else {
            continue;
        };
        for dependency in list(&package["dependencies"]).map(name) {
            if rooms.contains(dependency) && dependency != room && !allowed.contains(&dependency) {
                findings.push(format!(
                    "{room} uses {dependency}: an arrow that the rooms do not allow"
                ));
            }
        }
    }
}

/// The feature that plants mistakes: only the judge's tests may ask for it, so that no program has
/// them; and the file system's own, of the store.
const PLANTED: &str = "planted-bugs";

/// Crates whose tests may ask for it.
const PLANTERS: [&str; 2] = ["bedplate-sim", "bedplate-fs"];

/// The one feature that turns another crate's on: the file system's that of the store, under the
/// same name.
const HANDED_ON: (&str, &str, &str) = ("bedplate-fs", PLANTED, "bedplate-store/planted-bugs");

fn planted(packages: &[&Value], findings: &mut Vec<String>) {
    for package in packages.iter().filter(|package| package["source"].is_null()) {
        for dependency in list(&package["dependencies"])
            .filter(|dependency| list(&dependency["features"]).any(|feature| feature == PLANTED))
        {
            if !PLANTERS.contains(&name(package)) || dependency["kind"] != "dev" {
                findings.push(format!(
                    "{} asks for the feature {PLANTED}, which only the tests of {} may",
                    name(package),
                    PLANTERS.join(" and ")
                ));
            }
        }
        let hidden = package["features"]
            .as_object()
            .into_iter()
            .flatten()
            .flat_map(|(feature, asked)| {
                list(asked)
                    .filter_map(move |asked| asked.as_str().map(|asked| (feature.as_str(), asked)))
            })
            .any(|(feature, asked)| {
                asked.contains(PLANTED) && (name(package), feature, asked) != HANDED_ON
            });
        if hidden {
            findings.push(format!(
                "a feature of {} turns {PLANTED} on, which only the tests of bedplate-sim may ask \
                 for",
                name(package)
            ));
        }
    }
}

/// The feature of the file system in which the crash judge lets another thread go on. No program
/// carries it: the judge alone asks for it.
const INTERLEAVE: (&str, &str) = ("interleave", "bedplate-sim");

fn interleaved(packages: &[&Value], findings: &mut Vec<String>) {
    let (feature, judge) = INTERLEAVE;
    for package in
        packages.iter().filter(|package| package["source"].is_null() && name(package) != judge)
    {
        if list(&package["dependencies"])
            .any(|dependency| list(&dependency["features"]).any(|asked| asked == feature))
        {
            findings.push(format!(
                "{} asks for the feature {feature}, which only {judge} may",
                name(package)
            ));
        }
    }
}

fn duplicates(packages: &[&Value], findings: &mut Vec<String>) {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        versions
            .entry(name(package))
            .or_default()
            .insert(package["version"].as_str().unwrap_or(""));
    }
    versions.retain(|_, found| found.len() > 1);
    for (krate, found) in &versions {
        if !DUPLICATES.iter().any(|(known, _)| known == krate) {
            findings.push(format!(
                "{krate} is in the tree in the versions {found:?}: agree on one, or add the reason \
                 to the list"
            ));
        }
    }
    for (known, reason) in DUPLICATES {
        if !versions.contains_key(known) {
            findings.push(format!(
                "{known} is listed as a duplicate ({reason}) and is none: take it off the list"
            ));
        }
    }
}

fn licences(packages: &[&Value], findings: &mut Vec<String>) {
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("");
        if !is_allowed(licence) {
            findings.push(format!(
                "{} {}: the licence '{licence}' is not on the list",
                name(package),
                package["version"].as_str().unwrap_or("")
            ));
        }
    }
}

/// Tells whether an SPDX expression can be met from the list: every part of an AND, one part of an
/// OR.
fn is_allowed(expression: &str) -> bool {
    let expression = strip_parentheses(expression.trim());
    if let Some(parts) = split(expression, " OR ").or_else(|| split(expression, "/")) {
        return parts.iter().any(|part| is_allowed(part));
    }
    if let Some(parts) = split(expression, " AND ") {
        return parts.iter().all(|part| is_allowed(part));
    }
    LICENCES.contains(&expression)
}

/// Removes a pair of parentheses around the whole.
fn strip_parentheses(expression: &str) -> &str {
    let Some(inner) = expression.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) else {
        return expression;
    };
    let mut depth = 0_i32;
    for c in inner.chars() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth < 0 {
            return expression;
        }
    }
    inner
}

/// Splits at `separator` outside parentheses; `None` when it does not occur there.
fn split<'a>(expression: &'a str, separator: &str) -> Option<Vec<&'a str>> {
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, found) in expression.match_indices(separator) {
        let before = &expression[start..at];
        if before.matches('(').count() == before.matches(')').count() {
            parts.push(before);
            start = at + found.len();
        }
    }
    if parts.is_empty() {
        return None;
    }
    parts.push(&expression[start..]);
    Some(parts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn licence_expressions_are_understood() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-2.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "(MIT AND (GPL-3.0 OR Zlib))",
        ] {
            assert!(is_allowed(good), "{good}");
        }
        for bad in
            ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Apache-2.0) AND (GPL-2.0 OR AGPL-3.0)"]
        {
            assert!(!is_allowed(bad), "{bad}");
        }
    }

    fn package(name: &str, version: &str, local: bool, dependencies: &[&str]) -> Value {
        let source = if local { Value::Null } else { json!("registry") };
        let dependencies: Vec<Value> =
            dependencies.iter().map(|name| json!({"name": name})).collect();
        json!({"id": format!("{name}@{version}"), "name": name, "version": version, "source": source,
            "license": "MIT",
            "dependencies": dependencies})
    }

    #[test]
    fn an_arrow_that_points_up_is_found() {
        let (block, fs) = (
            package("bedplate-block", "1", true, &["bedplate-fs"]),
            package("bedplate-fs", "1", true, &["bedplate-block", "libc"]),
        );
        let mut findings = Vec::new();
        edges(&[&block, &fs], &mut findings);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].starts_with("bedplate-block uses bedplate-fs"));
    }

    #[test]
    fn planted_mistakes_outside_the_judges_tests_are_found() {
        let asks = |name: &str, kind: Value| {
            let mut package = package(name, "1", true, &[]);
            package["dependencies"] =
                json!([{"name": "bedplate-fs", "kind": kind, "features": [PLANTED]}]);
            let mut findings = Vec::new();
            planted(&[&package], &mut findings);
            findings.len()
        };
        assert_eq!(asks("bedplate-sim", json!("dev")), 0);
        assert_eq!((asks("bedplate-sim", Value::Null), asks("bedplate-cli", json!("dev"))), (1, 1));
        let mut fs = package("bedplate-fs", "1", true, &[]);
        fs["features"] = json!({PLANTED: [], "default": [PLANTED]});
        let mut findings = Vec::new();
        planted(&[&fs], &mut findings);
        assert_eq!(findings.len(), 1, "{findings:?}");
    }

    #[test]
    fn interleaving_points_outside_the_judge_are_found() {
        for (asks, count) in [("bedplate-sim", 0), ("bedplate-cli", 1)] {
            let mut package = package(asks, "1", true, &[]);
            package["dependencies"] = json!([{"name": "bedplate-fs", "features": [INTERLEAVE.0]}]);
            let mut findings = Vec::new();
            interleaved(&[&package], &mut findings);
            assert_eq!(findings.len(), count, "{asks}: {findings:?}");
        }
    }

    #[test]
    fn an_unexplained_duplicate_and_a_stale_explanation_are_found() {
        let packages = [package("a", "1", false, &[]), package("a", "2", false, &[])];
        let mut findings = Vec::new();
        duplicates(&packages.iter().collect::<Vec<_>>(), &mut findings);
        assert_eq!(findings.len(), 1 + DUPLICATES.len(), "{findings:?}");
    }

    #[test]
    fn only_what_is_compiled_here_counts() {
        let metadata = json!({"packages": [package("a", "1", false, &[]), package("b", "1", false, &[])],
            "resolve": {"nodes": [{"id": "a@1"}]}});
        assert_eq!(used_packages(&metadata).len(), 1);
    }
}
