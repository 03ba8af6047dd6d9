//! The book: `docs/` built by mdBook into one folder, with every link of the sources and of the
//! result checked.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::{sh, tidy};

/// The longest a build may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Checks the links of all documents, builds the book and checks its pages; returns whether nothing
/// was found.
///
/// # Errors
/// When mdBook is not installed or does not build the book, or a page cannot be read.
pub fn build() -> Result<bool> {
    let mut findings = tidy::of_documents()?;
    let folder = sh::target_directory()?.join("book");
    mdbook(&folder)?;
    findings.extend(broken_links(&folder)?);
    for finding in &findings {
        println!("book: {finding}");
    }
    println!("book: {}, {} findings", folder.join("index.html").display(), findings.len());
    Ok(findings.is_empty())
}

fn mdbook(folder: &Path) -> Result<()> {
    let mut command = Command::new("mdbook");
    command.args(["build", "docs", "--dest-dir"]).arg(folder);
    if let Err(error) = Command::new("mdbook").arg("--version").output() {
        ensure!(
            error.kind() != ErrorKind::NotFound,
            "mdbook is not installed: cargo install mdbook"
        );
        return Err(error).context("mdbook cannot be started");
    }
    if !sh::passes(&mut command, LIMIT)? {
        bail!("mdbook does not build the book; its output is above");
    }
    Ok(())
}

/// Returns the links of all pages in `folder` that lead to no page, file or heading of it.
fn broken_links(folder: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for page in pages(folder)? {
        let html = std::fs::read_to_string(&page)
            .with_context(|| format!("cannot read {}", page.display()))?;
        for target in html
            .match_indices("href=\"")
            .filter_map(|(at, mark)| html[at + mark.len()..].split('"').next())
        {
            if !target.contains(':') && !leads_somewhere(&page, &html, target) {
                let name = page.strip_prefix(folder).unwrap_or(&page);
                findings.push(format!("{}: the link to {target} leads nowhere", name.display()));
            }
        }
    }
    Ok(findings)
}

/// Tells whether a relative link of a page leads to a file, and its anchor to an element there.
fn leads_somewhere(page: &Path, html: &str, target: &str) -> bool {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let has = |text: &str| anchor.is_empty() || text.contains(&format!("id=\"{anchor}\""));
    if file.is_empty() {
        return has(html);
    }
    let path = page.parent().unwrap_or(page).join(file);
    path.exists()
        && (anchor.is_empty() || std::fs::read_to_string(path).is_ok_and(|text| has(&text)))
}

/// Returns the pages below a folder, but for the one shown in place of those that do not exist: its
/// links begin at the server's root.
fn pages(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)
            .with_context(|| format!("cannot list {}", folder.display()))?
        {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "html")
                && !path.ends_with("404.html")
            {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_pages_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, html: &str| std::fs::write(folder.path().join(name), html).unwrap();
        std::fs::create_dir(folder.path().join("guide")).unwrap();
        write(
            "index.html",
            "<h1 id=\"top\"></h1><a href=\"guide/a.html#part\"></a><a href=\"#top\"></a><a \
             href=\"https://example.org/\">",
        );
        write(
            "guide/a.html",
            "<h2 id=\"part\"></h2><a href=\"../index.html\"></a><a \
             href=\"../index.html#none\"></a><a href=\"b.html\"></a>",
        );
        write("404.html", "<a href=\"nowhere\"></a>");
        let findings = broken_links(folder.path()).unwrap();
        assert_eq!(
            findings,
            [
                "guide/a.html: the link to ../index.html#none leads nowhere",
                "guide/a.html: the link to b.html leads nowhere"
            ]
        );
    }
}
