//! The Debian package: made, installed into a root of its own, used there, and removed.
//!
//! The root holds what the package depends on and nothing else: the C library and a shell of this
//! machine, entered into dpkg's list with the versions that they have. `debian-package` makes it
//! with debootstrap instead, from Debian's archive. `static-program` has a root without anything.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::Options;
use super::bed::{Bed, COMMAND_LIMIT, is_mounted};
use super::needs::find_program;
use crate::{cleanup, dist, sh};

/// The packages that ours depends on, and that a root has to have.
const DEPENDENCIES: [&str; 2] = ["libc6", "libgcc-s1"];

/// Files that a user looks for after the installation.
const EXPECTED: [&str; 10] = [
    "usr/share/man/man1/bedplate.1.gz",
    "usr/share/man/man8/mount.bedplate.8.gz",
    "usr/share/bash-completion/completions/bedplate",
    "usr/share/zsh/vendor-completions/_bedplate",
    "usr/lib/bedplate/libbedplate_lease.so",
    "usr/share/doc/bedplate/copyright",
    "usr/share/doc/bedplate/LICENSES-LINKED.txt",
    "usr/share/doc/bedplate/sbom.cdx.json",
    "usr/share/doc/bedplate/examples/prometheus/bedplate.rules.yml",
    "usr/share/doc/bedplate/examples/systemd/example.conf",
];

/// S-240: in a root made of this machine's C library.
pub fn in_a_small_root(bed: &mut Bed, _: &Options) -> Result<()> {
    let root = bed.make_directory("root")?;
    for (link, to) in [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib")] {
        fs::create_dir_all(root.join(to))?;
        symlink(to, root.join(link))?;
    }
    fs::create_dir_all(root.join("usr/lib64"))?;
    symlink("usr/lib64", root.join("lib64"))?;
    for program in [Path::new("/bin/sh"), &bed.program] {
        copy_libraries(program, &root)?;
    }
    fs::copy("/bin/sh", root.join("usr/bin/sh"))?;
    for folder in ["info", "updates", "triggers"] {
        fs::create_dir_all(root.join("var/lib/dpkg").join(folder))?;
    }
    let mut listed = String::new();
    for package in DEPENDENCIES {
        let form = "Package: ${Package}\nStatus: install ok installed\nArchitecture: \
                    ${Architecture}\nMulti-Arch: same\nVersion: ${Version}\nMaintainer: \
                    none <none@example.invalid>\nDescription: of this machine\n\n";
        let mut query = Command::new("dpkg-query");
        query.args(["--showformat", form, "--show", package]);
        listed.push_str(&sh::output(&mut query, COMMAND_LIMIT)?);
        fs::write(root.join(format!("var/lib/dpkg/info/{package}.list")), "")?;
    }
    fs::write(root.join("var/lib/dpkg/status"), listed)?;
    installed_used_removed(bed, &root)
}

/// S-240: in a root made by debootstrap.
pub fn in_debian(bed: &mut Bed, _: &Options) -> Result<()> {
    let root = bed.make_directory("root")?;
    let mut bootstrap = Command::new("debootstrap");
    bootstrap.args(["--variant=minbase", "stable"]).arg(&root);
    sh::output(&mut bootstrap, Duration::from_secs(900))?;
    installed_used_removed(bed, &root)
}

/// S-405: in a root that has nothing else, the static program does all that the packaged one does.
pub fn in_an_empty_root(bed: &mut Bed, _: &Options) -> Result<()> {
    let (root, folder) = (bed.make_directory("root")?, bed.path("dist"));
    ensure!(dist::build(&dist::Options::static_in(&folder))?, "dist lacks files");
    fs::create_dir_all(root.join("usr/bin"))?;
    fs::create_dir_all(root.join("sbin"))?;
    fs::copy(folder.join("bin/bedplate"), root.join("usr/bin/bedplate"))?;
    symlink("/usr/bin/bedplate", root.join("sbin/mount.bedplate"))?;
    println!("    the program alone: {} KiB", kib(&root.join("usr/bin/bedplate"))?);
    let _proc = furnished(&root)?;
    used(&root)
}

fn installed_used_removed(bed: &Bed, root: &Path) -> Result<()> {
    let folder = bed.path("dist");
    ensure!(dist::build(&dist::Options::of(&bed.program, &folder))?, "dist lacks files");
    let package = fs::read_dir(&folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension() == Some(OsStr::new("deb")))
        .context("dist made no package")?;
    dpkg(root, &[OsStr::new("--install"), package.as_os_str()])?;
    let listed = dpkg(root, &["--listfiles", "bedplate"])?;
    println!(
        "    installed: {} files, of a package of {} KiB",
        listed.lines().count(),
        kib(&package)?
    );
    for path in EXPECTED {
        ensure!(root.join(path).is_file(), "the package has no {path}");
    }
    let page =
        sh::output(Command::new("gzip").arg("-dc").arg(root.join(EXPECTED[1])), COMMAND_LIMIT)?;
    ensure!(page.contains(".TH bedplate-mount 1"), "mount.bedplate(8) is another page");
    let proc = furnished(root)?;
    inside(root, &["/usr/bin/bedplate", "run", "--", "/usr/bin/bedplate", "--version"])
        .context("`bedplate run` with the installed library")?;
    used(root)?;
    drop(proc);
    units_are_right(root)?;
    rules_are_right(root)?;
    dpkg(root, &["--purge", "bedplate"])?;
    let left: Vec<&str> = listed
        .lines()
        .filter(|path| {
            let path = root.join(path.trim_start_matches('/'));
            fs::symlink_metadata(&path).is_ok_and(|meta| !meta.is_dir())
                || path.ends_with("bedplate") && path.exists()
        })
        .collect();
    ensure!(left.is_empty(), "after the removal these are left: {}", left.join(" "));
    println!("    removed: nothing is left");
    Ok(())
}

/// Does what a user of the package does first: asks for the version, makes a volume, mounts it as
/// mount(8) would, uses it, and unmounts.
fn used(root: &Path) -> Result<()> {
    let version = inside(root, &["/usr/bin/bedplate", "--version"])?;
    ensure!(
        version.trim() == format!("bedplate {}", env!("CARGO_PKG_VERSION")),
        "the installed program calls itself {version}"
    );
    inside(root, &["/usr/bin/bedplate", "format", "/disk.img", "--size", "64M"])?;
    inside(root, &["/sbin/mount.bedplate", "/disk.img", "/mnt", "-o", "rw,noauto"])?;
    let place = root.join("mnt");
    let mount = cleanup::Guard::new({
        let place = place.clone();
        move || super::bed::detach(&place)
    });
    ensure!(is_mounted(&place), "mount.bedplate mounted nothing");
    fs::write(place.join("file"), "content")?;
    inside(root, &["/usr/bin/bedplate", "unmount", "/mnt"])?;
    ensure!(!is_mounted(&place), "the unmount left the mount");
    mount.done();
    let read = inside(root, &["/usr/bin/bedplate", "cat", "/disk.img", "/file"])?;
    ensure!(read == "content", "the file holds {read:?}");
    println!("    used: {}, mounted by mount.bedplate", version.trim());
    Ok(())
}

/// Gives a root the devices and places that a mount needs.
fn furnished(root: &Path) -> Result<impl Drop + use<>> {
    for folder in ["dev", "proc", "mnt", "run", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    let mode = Mode::from_raw_mode(0o666);
    for (name, major, minor) in [("dev/null", 1, 3), ("dev/fuse", 10, 229)] {
        let device = root.join(name);
        if !device.exists() {
            mknodat(CWD, &device, FileType::CharacterDevice, mode, makedev(major, minor))
                .with_context(|| format!("cannot make /{name} in the root"))?;
        }
    }
    let proc = root.join("proc");
    sh::output(Command::new("mount").args(["-t", "proc", "proc"]).arg(&proc), COMMAND_LIMIT)?;
    let place = proc.clone();
    Ok(cleanup::Guard::new(move || super::bed::detach(&place)))
}

/// Asks systemd whether it understands the units.
fn units_are_right(root: &Path) -> Result<()> {
    let units = Path::new("/usr/lib/systemd/system");
    if find_program("systemd-analyze").is_none() || !units.join("basic.target").exists() {
        println!("    no systemd here: the units are not verified");
        return Ok(());
    }
    let mut made = Vec::new();
    let targets = fs::read_dir(units)?.filter_map(|entry| Some(entry.ok()?.path()));
    for target in targets.filter(|path| path.extension() == Some(OsStr::new("target"))) {
        let to = root.join("usr/lib/systemd/system").join(target.file_name().unwrap_or_default());
        if !to.exists() {
            fs::copy(&target, &to)?;
            made.push(to);
        }
    }
    let kill = root.join("usr/bin/kill");
    if !kill.exists() {
        fs::copy("/bin/kill", &kill)?;
        made.push(kill);
    }
    let mut own = Command::new("systemd-analyze");
    own.args(["verify", "--man=no", "bedplate@db.service", "bedplate.slice"]);
    own.args(["bedplate-backup@db.timer", "bedplate-backup@db.service"]);
    own.args(["bedplate-trim@db.timer", "bedplate-trim@db.service"]);
    own.arg("bedplate-member@loop0.service");
    own.arg(format!("--root={}", root.display()));
    let mut example = Command::new("systemd-analyze");
    example.args(["verify", "--man=no"]);
    example.arg(root.join("usr/share/doc/bedplate/examples/systemd/mnt-db.mount"));
    for command in [&mut own, &mut example] {
        let done = sh::finish(command, COMMAND_LIMIT)?;
        ensure!(
            done.status.success() && done.text().trim().is_empty(),
            "systemd says of the units: {}",
            done.text().trim()
        );
    }
    for path in made {
        fs::remove_file(path)?;
    }
    println!("    systemd understands the units");
    Ok(())
}

/// Asks udev whether it understands the rules, where it can be asked (from version 254 on).
fn rules_are_right(root: &Path) -> Result<()> {
    let rules = root.join("usr/lib/udev/rules.d/64-bedplate.rules");
    ensure!(rules.is_file(), "the package has no rules of udev");
    let can = find_program("udevadm").is_some()
        && sh::finish(Command::new("udevadm").args(["verify", "--help"]), COMMAND_LIMIT)?
            .status
            .success();
    if !can {
        println!("    no `udevadm verify` here: the rules of udev are not verified");
        return Ok(());
    }
    sh::output(Command::new("udevadm").arg("verify").arg(rules), COMMAND_LIMIT)?;
    println!("    udev understands the rules");
    Ok(())
}

/// Runs a program that the root has, in it.
fn inside(root: &Path, words: &[&str]) -> Result<String> {
    sh::output(Command::new("chroot").arg(root).args(words).current_dir(root), COMMAND_LIMIT)
}

fn dpkg<A: AsRef<OsStr>>(root: &Path, arguments: &[A]) -> Result<String> {
    let mut command = Command::new("dpkg");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command.arg(format!("--root={}", root.display())).args(arguments);
    sh::output(&mut command, COMMAND_LIMIT)
}

/// Copies the libraries that a program is linked with to the same places in the root.
fn copy_libraries(program: &Path, root: &Path) -> Result<()> {
    let printed = sh::output(Command::new("ldd").arg(program), COMMAND_LIMIT)?;
    let paths = printed.split_whitespace().filter(|word| word.starts_with('/'));
    let mut count = 0;
    for path in paths.map(PathBuf::from) {
        let to = root.join(path.strip_prefix("/")?);
        fs::create_dir_all(to.parent().context("a library lies in a folder")?)?;
        fs::copy(&path, to).with_context(|| format!("cannot copy {}", path.display()))?;
        count += 1;
    }
    if count == 0 {
        bail!("ldd names no library of {}: {printed}", program.display());
    }
    Ok(())
}

fn kib(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path)?.len().div_ceil(1024))
}
