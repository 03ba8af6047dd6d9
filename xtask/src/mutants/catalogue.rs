//! The planted mistakes: names and sentences as `planted.rs` of each crate has them, and where each
//! stands.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A crate with mistakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crate {
    /// crates/store, with the list of the file system's mistakes too.
    Store,
    /// crates/fs.
    Fs,
    /// crates/cache.
    Cache,
    /// crates/volume.
    Volume,
}

impl Crate {
    /// Its directory, and the name of its list.
    fn parts(self) -> (&'static str, &'static str) {
        match self {
            Self::Store => ("crates/store", "PlantedBug"),
            Self::Fs => ("crates/fs", "PlantedBug"),
            Self::Cache => ("crates/cache", "PlantedBug"),
            Self::Volume => ("crates/volume", "Mistake"),
        }
    }

    /// Where it lies.
    pub fn directory(self) -> &'static str {
        self.parts().0
    }
}

/// A mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The crate it stands in.
    pub of: Crate,
    /// Its name, with which it is switched on.
    pub name: String,
    /// What it is, one sentence.
    pub says: String,
    /// The file it stands in, below `src`; of several the first.
    pub place: String,
}

impl Mistake {
    /// The module of the crate that it stands in.
    pub fn room(&self) -> &str {
        self.place.split('/').next().unwrap_or_default().trim_end_matches(".rs")
    }
}

/// Reads the mistakes of all crates.
///
/// # Errors
/// When a list cannot be read, or a mistake stands nowhere.
pub fn read() -> Result<Vec<Mistake>> {
    let mut mistakes = Vec::new();
    for (list_of, homes) in [
        (Crate::Store, &[Crate::Store, Crate::Fs, Crate::Cache][..]),
        (Crate::Volume, &[Crate::Volume]),
    ] {
        let (directory, list) = list_of.parts();
        let text = std::fs::read_to_string(Path::new(directory).join("src/planted.rs"))
            .with_context(|| format!("cannot read {directory}/src/planted.rs"))?;
        let mut files = Vec::new();
        for of in homes {
            files.extend(
                sources(&Path::new(of.directory()).join("src"))?
                    .into_iter()
                    .map(|(path, text)| (*of, path, text)),
            );
        }
        for (name, says) in parse(&text, list) {
            let word = format!("{list}::{name}");
            let stands = |text: &str| {
                text.match_indices(&word).any(|(at, _)| {
                    !text[at + word.len()..].starts_with(|next: char| next.is_alphanumeric())
                })
            };
            let place = files.iter().find(|(_, _, text)| stands(text));
            let Some((of, place, _)) = place else {
                bail!("the mistake {name} of {directory} stands nowhere in its source")
            };
            mistakes.push(Mistake { of: *of, name, says, place: place.clone() });
        }
    }
    Ok(mistakes)
}

/// The variants of an enum with the first sentence of each one's documentation.
fn parse(text: &str, list: &str) -> Vec<(String, String)> {
    let body = text.split_once(&format!("enum {list} {{")).map_or("", |(_, rest)| rest);
    let body = body.split_once("\n}").map_or("", |(body, _)| body);
    let (mut found, mut says) = (Vec::new(), String::new());
    for line in body.lines().map(str::trim) {
        if let Some(words) = line.strip_prefix("/// ") {
            if says.is_empty() {
                words.trim_end_matches('.').clone_into(&mut says);
            }
        } else if let Some(name) = line.strip_suffix(',') {
            found.push((name.to_owned(), std::mem::take(&mut says)));
        }
    }
    found
}

/// The sources of a crate but its list and its tests: paths below the directory, in order, with
/// what they say.
fn sources(directory: &Path) -> Result<Vec<(String, String)>> {
    let mut todo: Vec<PathBuf> = vec![directory.to_path_buf()];
    let mut found = Vec::new();
    while let Some(place) = todo.pop() {
        for entry in
            std::fs::read_dir(&place).with_context(|| format!("cannot list {}", place.display()))?
        {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                todo.extend((name != "tests").then_some(path));
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") && name != "planted.rs" {
                let below = path
                    .strip_prefix(directory)
                    .context("a file lies in its directory")?
                    .to_string_lossy()
                    .into_owned();
                found.push((below, std::fs::read_to_string(&path)?));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The mistakes of which docs/proof.md says that nothing notices them: rows `| `NAME` | place |
/// what | nothing: REASON | |`.
pub fn excused(document: &str) -> BTreeSet<String> {
    let rows = document.lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix("| `")?.split('|').map(str::trim).collect();
        let reason = cells.get(3)?.strip_prefix("nothing: ")?;
        (!reason.is_empty()).then(|| cells[0].trim_end_matches('`').to_owned())
    });
    rows.collect()
}

/// Returns what the table of docs/proof.md, under its heading *Mutants*, says otherwise than the
/// sources: a row for each mistake, with the file it stands in.
pub fn misplaced(document: &str, mistakes: &[Mistake]) -> Vec<String> {
    let section = document.split_once("\n### Mutants\n").map_or("", |(_, rest)| rest);
    let section = section.split_once("\n### ").map_or(section, |(section, _)| section);
    let rows: Vec<(&str, &str)> = section
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
            Some((name, rest.split_once(" | ")?.0))
        })
        .collect();
    let mut findings = Vec::new();
    for Mistake { name, place, .. } in mistakes {
        let places: Vec<&str> =
            rows.iter().filter(|(row, _)| row == name).map(|(_, place)| *place).collect();
        if places != [place] {
            let says = match places[..] {
                [] => "has no row".to_owned(),
                [says] => format!("stands in {says}"),
                _ => format!("has {} rows", places.len()),
            };
            findings.push(format!(
                "docs/proof.md: in the table of mutants `{name}` {says}: it stands in {place}"
            ));
        }
    }
    let is_known = |name: &str| mistakes.iter().any(|mistake| mistake.name == name);
    findings.extend(rows.iter().filter(|(name, _)| !is_known(name)).map(|(name, _)| {
        format!("docs/proof.md: the table of mutants names `{name}`, which is not planted")
    }));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_read_with_their_first_sentence() {
        let text = "/// x\npub enum PlantedBug {\n    /// A flush is left out.\n    /// More.\n    \
                    MissingFlush,\n    /// Two.\n    Two,\n}\nimpl X {\n    A,\n}\n";
        let found = parse(text, "PlantedBug");
        assert_eq!(
            found,
            vec![
                ("MissingFlush".to_owned(), "A flush is left out".to_owned()),
                ("Two".to_owned(), "Two".to_owned())
            ]
        );
        assert!(parse(text, "Mistake").is_empty());
    }

    /// Every mistake of the source stands somewhere, names are different, and the short form names
    /// those that there are.
    #[test]
    fn a_hundred_mistakes_stand_in_the_source() {
        std::env::set_current_dir(crate::root()).expect("the root is there");
        let all = read().expect("the lists are read");
        let names: BTreeSet<_> = all.iter().map(|mistake| mistake.name.as_str()).collect();
        assert!(
            all.len() >= 100 && names.len() == all.len(),
            "{} mistakes, {} names",
            all.len(),
            names.len()
        );
        assert!(all.iter().all(|mistake| mistake.says.len() > 20), "each has a sentence");
        assert!(super::super::QUICK.iter().all(|name| names.contains(name)));
    }

    #[test]
    fn only_a_reason_excuses() {
        let text = "| `A` | log/ring.rs | what | nothing: the tree's flush keeps it too | |\n| `B` \
                    | x | what | nothing | |\n| `C` | x | what | judge | 1 s |\n";
        assert_eq!(excused(text), BTreeSet::from(["A".to_owned()]));
    }

    #[test]
    fn the_table_has_a_row_for_each_mistake_with_its_place() {
        let mistake = |name: &str, place: &str| Mistake {
            of: Crate::Fs,
            name: name.to_owned(),
            says: String::new(),
            place: place.to_owned(),
        };
        let mistakes = [mistake("A", "data/a.rs"), mistake("B", "b.rs"), mistake("C", "c.rs")];
        let table = |rows: &str| {
            format!(
                "# Proof\n| `X` | x.rs | x |\n\n### Mutants\n\n{rows}\n### More\n| `Y` | y.rs |\n"
            )
        };
        let whole = "| `A` | data/a.rs | a | x | |\n| `B` | b.rs | b | x | |\n";
        let sound = table(&format!("{whole}| `C` | c.rs | c | x | |\n"));
        assert!(misplaced(&sound, &mistakes).is_empty());
        let found = misplaced(&table(&whole.replace("data/a", "io/a")), &mistakes[..2]);
        assert!(found.len() == 1 && found[0].contains("stands in io/a.rs: it stands in data/a.rs"));
        assert_eq!(misplaced(&table(whole), &mistakes).len(), 1, "one has no row");
        assert_eq!(misplaced(&table(&format!("{whole}{whole}")), &mistakes[..2]).len(), 2);
        assert_eq!(misplaced(&sound, &mistakes[..2]).len(), 1, "one is not planted any more");
    }
}
