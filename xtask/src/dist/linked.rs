//! What is linked into the program and the library of leases: a table with licences, the texts of
//! these licences, and a bill of materials (SBOM, CycloneDX 1.5).
//!
//! All three come from cargo's metadata, along the normal dependencies of the two crates that are
//! handed out: what tests and build scripts use is in none of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The crates that are handed out.
const ROOTS: [&str; 2] = ["bedplate-cli", "bedplate-preload"];

/// Beginnings of the names that files with licences and their notices have.
const LICENCE_FILES: [&str; 5] = ["license", "licence", "copying", "notice", "unlicense"];

/// A crate that is linked in and comes from elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Crate {
    name: String,
    version: String,
    licence: String,
    /// Where its sources lie.
    manifest: String,
    /// Its id in the metadata.
    id: String,
}

/// What is linked in.
#[derive(Debug)]
pub struct Linked {
    crates: Vec<Crate>,
    /// Which crates of the list each of them uses, by id.
    uses: BTreeMap<String, BTreeSet<String>>,
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("not stated").to_owned()
}

/// Returns the ids that a node of the resolved graph links in: its normal dependencies.
fn linked_by(node: &Value) -> impl Iterator<Item = String> {
    let normal = |dep: &&Value| list(&dep["dep_kinds"]).any(|kind| kind["kind"].is_null());
    list(&node["deps"]).filter(normal).map(|dep| text(&dep["pkg"]))
}

impl Linked {
    /// Reads what `cargo metadata` printed.
    ///
    /// # Errors
    /// When it does not know the crates that are handed out.
    pub fn read(metadata: &Value) -> Result<Self> {
        let nodes: BTreeMap<String, &Value> =
            list(&metadata["resolve"]["nodes"]).map(|node| (text(&node["id"]), node)).collect();
        let packages: BTreeMap<String, &Value> =
            list(&metadata["packages"]).map(|package| (text(&package["id"]), package)).collect();
        let mut next = Vec::new();
        for root in ROOTS {
            let found = packages.iter().find(|(_, package)| package["name"] == root);
            next.push(found.with_context(|| format!("cargo knows no crate {root}"))?.0.clone());
        }
        let mut seen = BTreeSet::new();
        while let Some(id) = next.pop() {
            if seen.insert(id.clone()) {
                next.extend(nodes.get(&id).into_iter().flat_map(|node| linked_by(node)));
            }
        }
        let foreign = |id: &String| packages.get(id).is_some_and(|p| !p["source"].is_null());
        let uses = seen
            .iter()
            .filter(|id| foreign(id))
            .filter_map(|id| Some((id.clone(), linked_by(nodes.get(id)?).collect())))
            .collect();
        let mut crates: Vec<Crate> = seen
            .iter()
            .filter(|id| foreign(id))
            .map(|id| Crate {
                name: text(&packages[id]["name"]),
                version: text(&packages[id]["version"]),
                licence: text(&packages[id]["license"]),
                manifest: text(&packages[id]["manifest_path"]),
                id: id.clone(),
            })
            .collect();
        crates.sort();
        Ok(Self { crates, uses })
    }

    /// Returns the table of crates with their licences.
    pub fn table(&self) -> String {
        let mut table = "# Licences of what is linked in\n\nTheir texts are in \
             LICENSES-LINKED.txt.\n\n| crate | version | licence |\n| --- | --- | --- |\n"
            .to_owned();
        for Crate { name, version, licence, .. } in &self.crates {
            let _never_fails = writeln!(table, "| {name} | {version} | {licence} |");
        }
        table
    }

    /// Returns each text of a licence or notice once, behind the crates whose sources hold it.
    ///
    /// # Errors
    /// When the sources of a crate cannot be read.
    pub fn texts(&self) -> Result<String> {
        let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut without = Vec::new();
        for member in &self.crates {
            let folder = Path::new(&member.manifest).parent().context("a manifest has a folder")?;
            let named = format!("{} {}", member.name, member.version);
            let found = licence_files(folder)
                .with_context(|| format!("cannot read the sources of {named}"))?;
            if found.is_empty() {
                without.push(format!("{named}: {}", member.licence));
            }
            for content in found {
                texts.entry(content).or_default().insert(named.clone());
            }
        }
        let mut all = String::new();
        for (content, names) in texts {
            let names: Vec<String> = names.into_iter().collect();
            let _never_fails =
                write!(all, "==== {}\n\n{}\n\n", names.join(", "), content.trim_end());
        }
        if !without.is_empty() {
            let _never_fails = write!(
                all,
                "==== Crates whose sources hold no text, with the licence that they state\n\n{}\n",
                without.join("\n")
            );
        }
        Ok(all)
    }

    /// Returns the bill of materials, as CycloneDX 1.5 in JSON; the same sources give the same one.
    pub fn bill(&self, version: &str) -> String {
        let reference = |member: &Crate| format!("pkg:cargo/{}@{}", member.name, member.version);
        let references: BTreeMap<&str, String> =
            self.crates.iter().map(|member| (member.id.as_str(), reference(member))).collect();
        let component = |member: &Crate| {
            json!({
                "type": "library",
                "bom-ref": reference(member),
                "name": member.name,
                "version": member.version,
                "licenses": [{ "expression": member.licence.replace('/', " OR ") }],
                "purl": reference(member),
            })
        };
        let uses = |member: &Crate| -> Vec<&String> {
            let ids = self.uses.get(&member.id).into_iter().flatten();
            ids.filter_map(|id| references.get(id.as_str())).collect()
        };
        let depends =
            |member: &Crate| json!({ "ref": reference(member), "dependsOn": uses(member) });
        let own = format!("pkg:cargo/bedplate-cli@{version}");
        let bill = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": { "component": {
                "type": "application",
                "bom-ref": own,
                "name": "bedplate",
                "version": version,
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
            }},
            "components": self.crates.iter().map(component).collect::<Vec<_>>(),
            "dependencies": self.crates.iter().map(depends).collect::<Vec<_>>(),
        });
        format!("{bill:#}\n")
    }
}

/// Returns the licences and notices that lie in a folder of sources.
fn licence_files(folder: &Path) -> Result<Vec<String>> {
    let mut paths: Vec<_> = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    paths.sort();
    let is_licence = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        path.is_file() && LICENCE_FILES.iter().any(|start| name.starts_with(start))
    };
    let chosen = paths.iter().filter(|path| is_licence(path));
    chosen.map(|path| Ok(String::from_utf8_lossy(&fs::read(path)?).replace("\r\n", "\n"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A graph in which the program uses `a`, that uses `b`; a test uses `t`, a build script `s`.
    fn metadata(folder: &Path) -> Value {
        let package = |name: &str, source: Value| {
            let manifest = folder.join(name).join("Cargo.toml");
            json!({ "name": name, "id": name, "version": "1", "source": source,
                    "license": "MIT/Apache-2.0", "manifest_path": manifest })
        };
        let dep = |id: &str, kind: Value| json!({ "pkg": id, "dep_kinds": [{ "kind": kind }] });
        let foreign = ["b", "a", "t", "s"].map(|name| package(name, json!("registry")));
        let own = ROOTS.map(|name| package(name, Value::Null));
        let packages = [&own[..], &foreign[..]].concat();
        json!({
            "packages": packages,
            "resolve": { "nodes": [
                { "id": ROOTS[0], "deps": [
                    dep("a", Value::Null), dep("t", json!("dev")), dep("s", json!("build"))] },
                { "id": ROOTS[1], "deps": [dep("a", Value::Null)] },
                { "id": "a", "deps": [dep("b", Value::Null)] },
                { "id": "b", "deps": [] },
            ]},
        })
    }

    #[test]
    fn what_is_linked_in_is_listed_in_order_and_nothing_else() {
        let linked = Linked::read(&metadata(Path::new("/none"))).unwrap();
        let table = linked.table();
        assert!(
            table.ends_with("| --- |\n| a | 1 | MIT/Apache-2.0 |\n| b | 1 | MIT/Apache-2.0 |\n"),
            "{table}"
        );
        let bill: Value = serde_json::from_str(&linked.bill("2")).unwrap();
        assert_eq!(bill["components"].as_array().unwrap().len(), 2);
        assert_eq!(bill["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(
            bill["dependencies"][0],
            json!({ "ref": "pkg:cargo/a@1", "dependsOn": ["pkg:cargo/b@1"] })
        );
    }

    #[test]
    fn a_text_is_printed_once_and_a_crate_without_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("a/LICENSE-MIT"), "be kind\n").unwrap();
        fs::write(folder.path().join("a/COPYING"), "be kind\n").unwrap();
        fs::write(folder.path().join("a/lib.rs"), "code").unwrap();
        let texts = Linked::read(&metadata(folder.path())).unwrap().texts().unwrap();
        assert_eq!(
            texts,
            "==== a 1\n\nbe kind\n\n==== Crates whose sources hold no text, with the licence that \
             they state\n\nb 1: MIT/Apache-2.0\n"
        );
    }
}
