//! Where suites come from: a crate that cargo installs, or a source tree whose path was given,
//! which is built there when it is not built yet.
//!
//! Nothing here knows where a tree could be fetched from.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::real::needs;
use crate::sh;

const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// The packages, as Debian names them, with which the trees are built and run.
const PACKAGES: [&str; 23] = [
    "acl",
    "attr",
    "autoconf",
    "automake",
    "bc",
    "e2fsprogs",
    "gawk",
    "gcc",
    "libacl1-dev",
    "libaio-dev",
    "libattr1-dev",
    "libcap-dev",
    "libgdbm-compat-dev",
    "libtool-bin",
    "liburing-dev",
    "make",
    "pkg-config",
    "procps",
    "psmisc",
    "quota",
    "uuid-dev",
    "xfslibs-dev",
    "xfsprogs",
];

/// A tree that has to be built, and how.
pub struct Tree<'a> {
    /// Its directory.
    pub path: &'a Path,
    /// A file of the tree, to recognise it.
    pub mark: &'a str,
    /// What is there once it is built.
    pub built: &'a str,
    /// The commands that build it, for a shell.
    pub commands: &'a str,
}

impl Tree<'_> {
    /// Returns the directory of the built tree.
    ///
    /// # Errors
    /// When it is not such a tree, or does not build.
    pub fn build(&self) -> Result<PathBuf> {
        let path = self
            .path
            .canonicalize()
            .with_context(|| format!("cannot find {}", self.path.display()))?;
        ensure!(
            path.join(self.mark).exists(),
            "{} is not the expected source tree: it has no {}",
            path.display(),
            self.mark
        );
        if path.join(self.built).exists() {
            return Ok(path);
        }
        needs::install_packages(&PACKAGES)?;
        println!("    building {}", path.display());
        sh::output(
            Command::new("sh").args(["-e", "-c", self.commands]).current_dir(&path),
            BUILD_LIMIT,
        )?;
        ensure!(
            path.join(self.built).exists(),
            "{} was built and has no {}",
            path.display(),
            self.built
        );
        Ok(path)
    }
}

/// Returns the program of a crate, which cargo installs below `target` when it is neither there nor
/// on the path.
///
/// # Errors
/// When it cannot be installed.
pub fn from_crate(name: &str) -> Result<PathBuf> {
    if let Some(program) = needs::find_program(name) {
        return Ok(program);
    }
    let root = sh::target_directory()?.join("suites");
    let program = root.join("bin").join(name);
    if !program.is_file() {
        ensure!(
            needs::may_install(),
            "{name} is not installed: run 'cargo install {name} --locked', or allow its \
             installation"
        );
        println!("    installing the crate {name}");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut install = Command::new(cargo);
        install
            .args(["install", name, "--locked", "--root"])
            .arg(&root)
            .arg("--target-dir")
            .arg(root.join("build"));
        sh::output(&mut install, BUILD_LIMIT)?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_recognised_built_once_and_refused_when_it_is_another() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        let built = |commands| Tree { path, mark: "mark", built: "done", commands }.build();
        assert!(
            built("touch done")
                .expect_err("no mark")
                .to_string()
                .contains("not the expected source tree")
        );
        std::fs::write(path.join("mark"), "").expect("writes");
        std::fs::write(path.join("done"), "").expect("writes");
        assert_eq!(
            built("exit 1").expect("it is built"),
            path.canonicalize().expect("it is there")
        );
    }
}
