//! What is handed out: the program without debug information, its symbols apart, man pages,
//! completions, examples and licences, in one folder; and a Debian package of them.
//!
//! ```text
//! target/dist/
//!   bin/bedplate                                            stripped of debug information; function names stay for backtraces
//!   lib/debug/bin/bedplate.debug                            the debug information, which debuggers find by the link in the program
//!   lib/libbedplate_lease.so                                what `bedplate run` puts in front of a program's calls
//!   share/man/man1/bedplate*.1                              one for each subcommand
//!   share/bash-completion/, share/zsh/, share/fish/         completions
//!   share/bedplate/contrib/                                 examples: all of contrib/
//!   share/doc/bedplate/                                     README, CHANGELOG, licences, licences of what is linked in, bill of materials
//!   bedplate_VERSION_ARCHITECTURE.deb                       see `debian`
//! ```

mod debian;
mod linked;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{sh, tidy};

/// The longest that the release build may take.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// The longest that anything else may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Files that must be there, beside those of contrib/. A man page of a subcommand stands for all of
/// them.
const FILES: [&str; 12] = [
    "bin/bedplate",
    "lib/debug/bin/bedplate.debug",
    "share/man/man1/bedplate.1",
    "share/man/man1/bedplate-mount.1",
    "share/bash-completion/completions/bedplate",
    "share/zsh/site-functions/_bedplate",
    "share/fish/vendor_completions.d/bedplate.fish",
    "share/doc/bedplate/README.md",
    "share/doc/bedplate/CHANGELOG.md",
    "share/doc/bedplate/LICENSE-APACHE",
    "share/doc/bedplate/LICENSE-MIT",
    LIBRARY,
];

/// The library of leases, where `bedplate run` looks for it.
const LIBRARY: &str = "lib/libbedplate_lease.so";

const LIBRARY_NAME: &str = "libbedplate_lease.so";

/// Where the licences of what is linked in are listed.
const LINKED: &str = "share/doc/bedplate/LICENSES-LINKED.md";

/// Their texts.
const TEXTS: &str = "share/doc/bedplate/LICENSES-LINKED.txt";

/// The bill of materials.
const BILL: &str = "share/doc/bedplate/sbom.cdx.json";

/// What is written about what is linked in.
const LISTS: [&str; 3] = [LINKED, TEXTS, BILL];

/// What to pack.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The program to pack, with the library of leases beside it; without it the release build is
    /// made.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Build a program that needs no library of the system, not even the one of C: with musl, whose
    /// target has to be there (`rustup target add`, and a C compiler `musl-gcc`).
    #[arg(long = "static", conflicts_with = "program")]
    statically: bool,
    /// Where to put it all; what is there is removed first.
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
}

impl Options {
    /// Packs `program` into `folder`.
    pub fn of(program: &Path, folder: &Path) -> Self {
        let (program, into) = (Some(program.to_path_buf()), Some(folder.to_path_buf()));
        Self { program, statically: false, into }
    }

    /// Builds a program that needs no library, and packs it into `folder`.
    pub fn static_in(folder: &Path) -> Self {
        Self { program: None, statically: true, into: Some(folder.to_path_buf()) }
    }
}

/// Makes the folder, and says what is in it; returns whether nothing is missing.
///
/// # Errors
/// When the program does not build, a tool is missing, or a file cannot be written.
pub fn build(options: &Options) -> Result<bool> {
    let target = sh::target_directory()?;
    let (program, library) = match &options.program {
        Some(program) => (program.clone(), program.with_file_name(LIBRARY_NAME)),
        None => release(&target, options.statically)?,
    };
    let default = if options.statically { "dist-static" } else { "dist" };
    let folder = options.into.clone().unwrap_or_else(|| target.join(default));
    if folder.exists() {
        let ours = folder.join(FILES[0]).exists() || fs::read_dir(&folder)?.next().is_none();
        ensure!(ours, "{} holds something else: it is not removed", folder.display());
        fs::remove_dir_all(&folder)?;
    }
    split(&program, &folder)?;
    pack_library(&library, &folder)?;
    pages(&program, &folder)?;
    copy(Path::new("contrib"), &folder.join("share/bedplate/contrib"))?;
    for name in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        put(
            &folder,
            &format!("share/doc/bedplate/{name}"),
            &fs::read(name).with_context(|| format!("cannot read {name}"))?,
        )?;
    }
    let linked = linked::Linked::read(&tidy::metadata()?)?;
    put(&folder, LINKED, linked.table().as_bytes())?;
    put(&folder, TEXTS, linked.texts()?.as_bytes())?;
    put(&folder, BILL, linked.bill(env!("CARGO_PKG_VERSION")).as_bytes())?;
    let missing = missing(&folder, Path::new("contrib"))?;
    for path in &missing {
        println!("dist: {path} is missing or empty");
    }
    let size = |path: &Path| fs::metadata(path).map(|meta| meta.len());
    let (before, after) = (size(&program)?, size(&folder.join(FILES[0]))?);
    println!(
        "dist: {}, {} files missing; the program has {after} bytes, {before} with debug \
         information",
        folder.display(),
        missing.len()
    );
    if missing.is_empty() && debian_tools() {
        let package = debian::build(&folder, options.statically)?;
        println!("dist: {}, {} bytes", package.display(), size(&package)?);
    }
    Ok(missing.is_empty())
}

/// Tells whether a Debian package can be made here, and says so where not.
fn debian_tools() -> bool {
    let there = sh::output(Command::new("dpkg-deb").arg("--version"), LIMIT).is_ok();
    if !there {
        println!("dist: no Debian package: dpkg-deb is not installed");
    }
    there
}

/// Builds the program and the library of leases; returns where they are. The library is loaded into
/// programs of this system, so it is never static.
fn release(target: &Path, statically: bool) -> Result<(PathBuf, PathBuf)> {
    let build = |words: &[&str]| -> Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--release", "--locked"]).args(words);
        ensure!(sh::passes(&mut command, BUILD_LIMIT)?, "the release build failed");
        Ok(())
    };
    let library = target.join("release").join(LIBRARY_NAME);
    if !statically {
        build(&["-p", "bedplate-cli", "-p", "bedplate-preload"])?;
        return Ok((target.join("release/bedplate"), library));
    }
    let triple = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    build(&["-p", "bedplate-cli", "--target", &triple])
        .with_context(|| format!("with the target {triple}: 'rustup target add {triple}'"))?;
    build(&["-p", "bedplate-preload"])?;
    let program = target.join(triple).join("release/bedplate");
    needs_no_library(&program)?;
    Ok((program, library))
}

/// Refuses a program that asks for a loader or for a library.
fn needs_no_library(program: &Path) -> Result<()> {
    let told = sh::output(Command::new("readelf").args(["-l", "-d"]).arg(program), LIMIT)
        .context("readelf of binutils tells what the program needs")?;
    let asks = told.lines().find(|line| line.contains("INTERP") || line.contains("(NEEDED)"));
    ensure!(asks.is_none(), "{} is not static: {}", program.display(), asks.unwrap_or_default());
    Ok(())
}

/// Copies the program without debug information, and that beside it.
fn split(program: &Path, folder: &Path) -> Result<()> {
    let (stripped, symbols) = (folder.join(FILES[0]), folder.join(FILES[1]));
    for path in [&stripped, &symbols] {
        fs::create_dir_all(path.parent().context("a file lies in a folder")?)?;
    }
    objcopy(Command::new("objcopy").arg("--only-keep-debug").arg(program).arg(&symbols))?;
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(&symbols);
    objcopy(Command::new("objcopy").arg("--strip-debug").arg(link).arg(program).arg(&stripped))
}

/// Copies the library of leases without debug information.
fn pack_library(library: &Path, folder: &Path) -> Result<()> {
    let packed = folder.join(LIBRARY);
    ensure!(
        library.is_file(),
        "{} is missing: build bedplate-preload beside the program",
        library.display()
    );
    fs::create_dir_all(packed.parent().context("a file lies in a folder")?)?;
    objcopy(Command::new("objcopy").arg("--strip-debug").arg(library).arg(packed))
}

fn objcopy(command: &mut Command) -> Result<()> {
    sh::output(command, LIMIT)
        .map(drop)
        .context("objcopy of binutils parts the program from its debug information")
}

/// Has the program write its man pages and completions.
fn pages(program: &Path, folder: &Path) -> Result<()> {
    let man = folder.join("share/man/man1");
    fs::create_dir_all(&man)?;
    sh::output(Command::new(program).arg("manpages").arg(&man), LIMIT)?;
    for (shell, path) in ["bash", "zsh", "fish"].into_iter().zip(&FILES[4..7]) {
        put(
            folder,
            path,
            sh::output(Command::new(program).args(["completions", shell]), LIMIT)?.as_bytes(),
        )?;
    }
    Ok(())
}

fn put(folder: &Path, path: &str, content: &[u8]) -> Result<()> {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().context("a file lies in a folder")?)?;
    fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Copies a folder with all that is in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let entry = entry?;
        let into = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &into)?;
        } else {
            fs::copy(entry.path(), into).map(drop)?;
        }
    }
    Ok(())
}

/// Returns what must be in the folder and is not, or is empty.
fn missing(folder: &Path, contrib: &Path) -> Result<Vec<String>> {
    let mut wanted: Vec<String> = FILES.into_iter().chain(LISTS).map(str::to_owned).collect();
    let mut folders = vec![contrib.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in
            fs::read_dir(&next).with_context(|| format!("cannot list {}", next.display()))?
        {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                wanted.push(format!(
                    "share/bedplate/contrib/{}",
                    path.strip_prefix(contrib)?.display()
                ));
            }
        }
    }
    wanted.retain(|path| fs::metadata(folder.join(path)).map_or(true, |meta| meta.len() == 0));
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_empty_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (contrib, dist) = (folder.path().join("contrib"), folder.path().join("dist"));
        put(&contrib, "a/unit.service", b"x").unwrap();
        assert_eq!(missing(&dist, &contrib).unwrap().len(), FILES.len() + LISTS.len() + 1);
        for path in FILES.into_iter().chain(LISTS) {
            put(&dist, path, b"x").unwrap();
        }
        assert_eq!(missing(&dist, &contrib).unwrap(), ["share/bedplate/contrib/a/unit.service"]);
        copy(&contrib, &dist.join("share/bedplate/contrib")).unwrap();
        assert_eq!(missing(&dist, &contrib).unwrap(), Vec::<String>::new());
        put(&dist, FILES[0], b"").unwrap();
        assert_eq!(missing(&dist, &contrib).unwrap(), [FILES[0]]);
    }
}
