//! The Debian package, made of the folder that [`super::build`] filled.
//!
//! `dpkg-deb` packs it: every Debian system has it, and what goes where is a list below, beside
//! that of the folder. cargo-deb would have to be compiled first, from some 200 crates, wherever
//! the package is made.
//!
//! ```text
//! /usr/bin/bedplate                         the program
//! /usr/sbin/mount.bedplate, mount.fuse.bedplate   links to it, for mount(8) and fstab
//! /usr/lib/bedplate/libbedplate_lease.so    what `bedplate run` preloads
//! /usr/lib/systemd/system/                  bedplate@.service, bedplate.slice, timers for backups and trim
//! /usr/lib/udev/rules.d/64-bedplate.rules   starts the volumes of a group whose members appear
//! /etc/bedplate/                            empty: a file for each volume that is mounted at boot
//! /usr/share/man, bash-completion, zsh, fish
//! /usr/share/doc/bedplate/                  copyright, changelog, licences, bill of materials, examples/
//! ```

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{LIMIT, copy, put};
use crate::sh;

/// The version of all crates.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Files of the folder, and where the package puts them.
const MOVED: [(&str, &str); 5] = [
    ("bin/bedplate", "usr/bin/bedplate"),
    (super::LIBRARY, "usr/lib/bedplate/libbedplate_lease.so"),
    (
        "share/bash-completion/completions/bedplate",
        "usr/share/bash-completion/completions/bedplate",
    ),
    ("share/zsh/site-functions/_bedplate", "usr/share/zsh/vendor-completions/_bedplate"),
    (
        "share/fish/vendor_completions.d/bedplate.fish",
        "usr/share/fish/vendor_completions.d/bedplate.fish",
    ),
];

/// Units of systemd that are installed; what else is in contrib/ are examples.
const UNITS: [&str; 7] = [
    "bedplate@.service",
    "bedplate-member@.service",
    "bedplate.slice",
    "bedplate-backup@.service",
    "bedplate-backup@.timer",
    "bedplate-trim@.service",
    "bedplate-trim@.timer",
];

/// What udev asks when a device appears.
const RULES: &str = "64-bedplate.rules";

/// Links, and where they lead.
const LINKS: [(&str, &str); 3] = [
    ("usr/sbin/mount.bedplate", "../bin/bedplate"),
    ("usr/sbin/mount.fuse.bedplate", "mount.bedplate"),
    ("usr/share/man/man8/mount.bedplate.8.gz", "../man1/bedplate-mount.1.gz"),
];

/// Told to systemd when its units came or went; a mount goes on with the program that serves it.
const RELOAD: &str = "#!/bin/sh\nset -e\nif [ -d /run/systemd/system ]; then\n    \
                      systemctl --system daemon-reload >/dev/null || true\nfi\n";

const DESCRIPTION: &str = "\
file system for databases, in user space
 Bedplate gives ordinary files the speed of a raw device: readers and writers
 of one file run in parallel, a durable append costs one flush, and each file
 has the I/O mode that suits it. Checkpoints, clones, untorn pages, and volumes
 over several devices come with it. This package has the command, which formats,
 mounts and maintains volumes, and the units that mount them at boot.";

/// Packs `folder` into a package beside what is there, and returns its path. A program that is
/// static depends on nothing; the library of leases needs what programs of its system have anyway.
///
/// # Errors
/// When a tool is missing, or a file cannot be written.
pub fn build(folder: &Path, statically: bool) -> Result<PathBuf> {
    let stage = tempfile::tempdir().context("cannot make a temporary folder")?;
    let root = stage.path();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755))?;
    arrange(folder, root)?;
    let architecture = print("dpkg", &["--print-architecture"])?;
    let depends = if statically {
        String::new()
    } else {
        let libc = libc_of(&folder.join("bin/bedplate"))?;
        format!("Depends: libc6 (>= {libc}), libgcc-s1\n")
    };
    let size_kib = bytes_of(root)?.div_ceil(1024);
    put(root, "DEBIAN/control", control(&architecture, &depends, size_kib).as_bytes())?;
    for script in ["DEBIAN/postinst", "DEBIAN/postrm"] {
        put(root, script, RELOAD.as_bytes())?;
    }
    modes(root)?;
    let package = folder.join(format!("bedplate_{VERSION}_{architecture}.deb"));
    // xz: what dpkg of Debian 8 and Ubuntu 14.04 can unpack, and every later one.
    sh::output(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Zxz", "--build"])
            .arg(root)
            .arg(&package),
        LIMIT,
    )
    .context("dpkg-deb makes the package")?;
    Ok(package)
}

/// Puts every file where the package has it.
fn arrange(folder: &Path, root: &Path) -> Result<()> {
    for (from, to) in MOVED {
        place(&folder.join(from), &root.join(to))?;
    }
    let contrib = folder.join("share/bedplate/contrib");
    for unit in UNITS {
        let to = root.join("usr/lib/systemd/system").join(unit);
        place(&contrib.join("systemd").join(unit), &to)?;
    }
    let rules = root.join("usr/lib/udev/rules.d").join(RULES);
    place(&contrib.join("udev").join(RULES), &rules)?;
    let doc = root.join("usr/share/doc/bedplate");
    copy(&folder.join("share/doc/bedplate"), &doc)?;
    copy(&contrib, &doc.join("examples"))?;
    for unit in UNITS {
        fs::remove_file(doc.join("examples/systemd").join(unit))?;
    }
    fs::remove_dir_all(doc.join("examples/udev"))?;
    // Debian's name for it; the texts of MIT and of what is linked in stand beside.
    put(&doc, "copyright", copyright().as_bytes())?;
    fs::rename(doc.join("CHANGELOG.md"), doc.join("changelog"))?;
    gzip(&[doc.join("changelog")])?;
    let man = root.join("usr/share/man/man1");
    copy(&folder.join("share/man/man1"), &man)?;
    let pages: std::io::Result<Vec<_>> =
        fs::read_dir(&man)?.map(|entry| entry.map(|entry| entry.path())).collect();
    gzip(&pages?)?;
    fs::create_dir_all(root.join("etc/bedplate"))?;
    for (link, to) in LINKS {
        let link = root.join(link);
        fs::create_dir_all(link.parent().context("a link lies in a folder")?)?;
        symlink(to, link)?;
    }
    Ok(())
}

fn place(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
    fs::copy(from, to).map(drop).with_context(|| format!("cannot copy {}", from.display()))
}

/// Packs files as Debian wants it: the best way, without name and time.
fn gzip(paths: &[PathBuf]) -> Result<()> {
    sh::output(Command::new("gzip").arg("-9n").args(paths), LIMIT).map(drop)
}

fn copyright() -> String {
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: bedplate\n\n\
         Files: *\n\
         Copyright: the authors of Bedplate\n\
         License: MIT or Apache-2.0\n\
         Comment: The texts are in LICENSE-MIT and LICENSE-APACHE beside this file; those of the\n \
         crates that are linked into the program are in {} and {}.\n",
        file_name(super::LINKED),
        file_name(super::TEXTS),
    )
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `depends` is a line of its own, or nothing.
fn control(architecture: &str, depends: &str, size_kib: u64) -> String {
    format!(
        "Package: bedplate\n\
         Version: {VERSION}\n\
         Architecture: {architecture}\n\
         Maintainer: Bedplate maintainers <maintainers@bedplate.invalid>\n\
         Installed-Size: {size_kib}\n\
         {depends}\
         Recommends: fuse3\n\
         Section: admin\n\
         Priority: optional\n\
         Description: {DESCRIPTION}\n"
    )
}

/// Returns the oldest version of the C library that has all that the program asks it for.
fn libc_of(program: &Path) -> Result<String> {
    let symbols = sh::output(Command::new("objdump").arg("-T").arg(program), LIMIT)
        .context("objdump of binutils lists what the program asks the C library for")?;
    newest_glibc(&symbols).context("the program names no version of the C library")
}

/// Returns the newest `GLIBC_X.Y` that a list of symbols names.
fn newest_glibc(symbols: &str) -> Option<String> {
    let number = |part: &str| part.parse::<u32>().ok();
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].split('.').map(number).collect::<Option<Vec<u32>>>()
    });
    let newest = versions.max()?;
    Some(newest.iter().map(u32::to_string).collect::<Vec<_>>().join("."))
}

fn bytes_of(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let meta = fs::symlink_metadata(&path)?;
        sum += if meta.is_dir() { bytes_of(&path)? } else { meta.len() };
    }
    Ok(sum)
}

/// Gives folders and programs 0755 and all else 0644, whatever they were copied from.
fn modes(folder: &Path) -> Result<()> {
    let runs =
        |path: &Path| ["bedplate", "postinst", "postrm"].iter().any(|name| path.ends_with(name));
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let meta = fs::symlink_metadata(&path)?;
        if meta.is_symlink() {
            continue;
        }
        let mode = if meta.is_dir() || runs(&path) { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        if meta.is_dir() {
            modes(&path)?;
        }
    }
    Ok(())
}

fn print(program: &str, arguments: &[&str]) -> Result<String> {
    let printed = sh::output(Command::new(program).args(arguments), LIMIT)?;
    let printed = printed.trim().to_owned();
    ensure!(!printed.is_empty(), "{program} prints nothing");
    Ok(printed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_the_c_library_is_found_by_number() {
        let symbols = "0 DF *UND* 0 (GLIBC_2.9) read\n0 DF *UND* 0 (GLIBC_2.34) open\n\
                       0 DF *UND* 0 (GLIBC_2.2.5) close\n0 DF *UND* 0 (GLIBC_PRIVATE) x\n";
        assert_eq!(newest_glibc(symbols).as_deref(), Some("2.34"));
        assert_eq!(newest_glibc("none"), None);
    }

    #[test]
    fn the_control_file_has_what_dpkg_wants() {
        let control = control("amd64", "Depends: libc6 (>= 2.34), libgcc-s1\n", 7);
        for line in
            ["Package: bedplate", "Installed-Size: 7", "Depends: libc6 (>= 2.34), libgcc-s1"]
        {
            assert!(control.lines().any(|other| other == line), "{line}: {control}");
        }
        assert!(
            control
                .lines()
                .skip_while(|line| !line.starts_with("Description:"))
                .skip(1)
                .all(|line| line.starts_with(' ') && line.len() <= 80)
        );
    }

    /// The container installs what is packed here, and only under this name.
    #[test]
    fn the_container_copies_the_package() {
        let file =
            fs::read_to_string(crate::root().join("contrib/container/Containerfile")).unwrap();
        assert!(file.contains("COPY bedplate_*.deb /opt/\n"), "{file}");
        assert!(file.contains("ENTRYPOINT [\"/usr/bin/bedplate\"]"), "{file}");
    }
}
