//! What neither the compiler nor clippy sees: sizes, edges of crates and modules, words, links,
//! licences, ids, and the table of mutants.
//!
//! Each rule is a pure function from the repository's text (or cargo's metadata) to findings; this
//! file reads the text once and prints.

mod crates;
mod cycles;
mod documents;
mod ids;
mod levels;
mod locks;
mod sources;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::sh;

/// One text file of the repository.
pub struct Text {
    /// Path from the root, with `/`.
    pub path: String,
    /// Its whole content.
    pub content: String,
}

impl Text {
    fn is_rust(&self) -> bool {
        Path::new(&self.path).extension().is_some_and(|extension| extension == "rs")
    }

    fn is_markdown(&self) -> bool {
        Path::new(&self.path).extension().is_some_and(|extension| extension == "md")
    }

    /// Returns whether it holds tests alone.
    fn is_test(&self) -> bool {
        let path = &self.path;
        path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
    }

    /// Returns the source up to its module of tests.
    fn product_code(&self) -> &str {
        self.content.find("\nmod tests {").map_or(&self.content, |end| &self.content[..end])
    }

    /// Returns a finding that names a line (from 1) of this file.
    fn finding(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{line}: {what}", self.path)
    }
}

/// Runs every rule, prints what it finds and returns whether nothing was found.
///
/// # Errors
/// When the repository or cargo's metadata cannot be read.
pub fn passes() -> Result<bool> {
    let texts = read_texts()?;
    let mut findings = Vec::new();
    findings.extend(sources::check(&texts, &std::env::current_dir()?));
    findings.extend(documents::check(&texts, Path::new(".")));
    findings.extend(ids::check(&texts));
    findings.extend(levels::check(&texts));
    findings.extend(locks::check(&texts));
    findings.extend(cycles::check(&texts));
    findings.extend(crates::check(&metadata()?));
    let proof = texts.iter().find(|text| text.path == "docs/proof.md");
    findings.extend(crate::mutants::misplaced(proof.map_or("", |text| &text.content))?);
    for finding in &findings {
        println!("tidy: {finding}");
    }
    println!("tidy: {} files read, {} findings", texts.len(), findings.len());
    Ok(findings.is_empty())
}

/// Returns what breaks the rules on documents.
///
/// # Errors
/// When the repository cannot be read.
pub fn of_documents() -> Result<Vec<String>> {
    Ok(documents::check(&read_texts()?, Path::new(".")))
}

/// Reads every text file that git knows or would add; where there is no git (a source archive),
/// every file outside `target`.
fn read_texts() -> Result<Vec<Text>> {
    let listed = sh::output(
        Command::new("git").args(["ls-files", "-z", "-c", "-o", "--exclude-standard"]),
        Duration::from_secs(60),
    );
    let paths = match listed {
        Ok(list) => list.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect(),
        Err(_) => walk(Path::new("."))?,
    };
    let mut texts = Vec::new();
    for path in paths {
        // Inputs of fuzzers and chunks of kept backups are bytes, even where they happen to be text.
        let is_bytes = path.contains("/tests/kept/") && path.contains("/chunks/");
        if is_bytes || path.starts_with("fuzz/corpus/") {
            continue;
        }
        // A deleted file may still be listed, and a stored image of a volume is no text.
        if let Ok(content) = std::fs::read_to_string(&path) {
            texts.push(Text { path, content });
        }
    }
    Ok(texts)
}

fn walk(top: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut directories: Vec<PathBuf> = vec![top.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)
            .with_context(|| format!("cannot list {}", directory.display()))?
        {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                if path != top.join("target") && path != top.join(".git") {
                    directories.push(path);
                }
            } else {
                found.push(path.strip_prefix(top).unwrap_or(&path).to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns what cargo says of the packages that are compiled here.
///
/// # Errors
/// When cargo does not say.
pub fn metadata() -> Result<serde_json::Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let text = sh::output(
        Command::new(cargo).args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            &target,
        ]),
        Duration::from_secs(300),
    )?;
    serde_json::from_str(&text).context("cargo metadata is not JSON")
}

#[cfg(test)]
fn text(path: &str, content: &str) -> Text {
    Text { path: path.to_owned(), content: content.to_owned() }
}
