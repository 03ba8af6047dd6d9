//! Where not everything is allowed: io_uring forbidden, no superuser.

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Options;
use super::bad_input::find;
use super::bed::{Bed, is_mounted, processes_of};
use super::{fio, sqlite};
use crate::cleanup::Guard;
use crate::{binaries, sh};

const LIMIT: Duration = Duration::from_secs(60);
/// How long tests may be built, where the other steps have not done so, and each binary may run.
const TESTS_LIMIT: Duration = Duration::from_secs(560);

fn launcher() -> Result<Vec<OsString>> {
    Ok(vec![std::env::current_exe()?.into(), "without-io-uring".into()])
}

/// With io_uring forbidden by seccomp the thread engine serves, says so with the reason, and
/// verified data and killed databases come back whole.
pub fn no_io_uring(bed: &mut Bed, options: &Options) -> Result<()> {
    bed.launcher = launcher()?;
    let image = bed.format("engine.img", "64M")?;
    let mounted = bed.mount(&image, "")?;
    let info = bed.json([OsStr::new("info"), mounted.directory.as_os_str()])?;
    let engine = find(&info, "engine").context("info names no engine")?.to_string();
    println!("    engine: {engine}");
    ensure!(
        engine.contains("threads") && engine.contains("io_uring"),
        "the engine is not threads with its reason: {engine}"
    );
    mounted.unmount(bed)?;
    std::fs::remove_file(image)?;
    fio::verify(bed, "mode=concurrent", false, &[])?;
    std::fs::remove_file(bed.path("volume.img"))?;
    if super::needs::Need::Program("sqlite3").missing().is_none() {
        sqlite::killed(bed, &Options { kills: 1, ..options.clone() }, "WAL", "mode=cached")?;
    }
    Ok(())
}

/// The tests that do I/O on images pass with io_uring forbidden too: the others have devices in
/// memory, to which that is all the same. Packages, targets, and words of the names.
const TESTS_ON_IMAGES: [(&str, Option<&str>, &[&str]); 3] = [
    ("bedplate-block", None, &[]),
    ("bedplate", None, &[]),
    ("bedplate-fs", Some("filesystem"), &["leases", "parallel"]),
];

pub fn no_io_uring_tests(_: &mut Bed, _: &Options) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // All of the workspace, as the step of the tests builds it: there is nothing left to build.
    let built = binaries::build(&mut Command::new(cargo), &["--workspace"], TESTS_LIMIT)?;
    for (package, target, words) in TESTS_ON_IMAGES {
        let mut chosen = built.iter().filter(|binary| binary.is_of(package, target)).peekable();
        ensure!(chosen.peek().is_some(), "{package} has no such tests: {target:?}");
        for binary in chosen {
            binary.pass_under(&launcher()?, words, TESTS_LIMIT)?;
        }
    }
    Ok(())
}

/// An ordinary user formats, mounts in the background, uses, and unmounts, with `fusermount3` and
/// with `bedplate unmount`.
pub fn ordinary_user(bed: &mut Bed, _: &Options) -> Result<()> {
    let number = |flag: &str| -> Result<u32> {
        Ok(sh::output(Command::new("id").args([flag, "nobody"]), LIMIT)?.trim().parse()?)
    };
    let (user, group) = (number("-u")?, number("-g")?);
    let _device = let_users_open_fuse()?;
    bed.use_copy_of_program()?;
    let (reuid, regid) = (format!("--reuid={user}"), format!("--regid={group}"));
    bed.launcher = ["setpriv", &reuid, &regid, "--clear-groups"].map(OsString::from).into();
    let (home, directory) = make_home(bed, user, group)?;
    let image = bed.path("home/volume.img");
    bed.succeeds([
        OsStr::new("format"),
        image.as_os_str(),
        OsStr::new("--size"),
        OsStr::new("64M"),
    ])?;

    let as_user = |script: &str| {
        let mut command = Command::new(&bed.launcher[0]);
        command
            .args(&bed.launcher[1..])
            .args(["sh", "-ec", &format!("cd \"$HOME/mnt\"; {script}")])
            .current_dir("/")
            .env("HOME", &home);
        sh::output(&mut command, LIMIT)
    };
    bed.succeeds([OsStr::new("mount"), image.as_os_str(), directory.as_os_str()])?;
    ensure!(is_mounted(&directory), "the command returned and nothing is mounted");
    as_user(
        "mkdir d && echo words > d/f && ln -s f d/l && chmod 600 d/f && sync d/f && test \"$(cat \
         d/l)\" = words && test \"$(stat -c %u:%a d/f)\" = \"$(id -u):600\"",
    )?;
    ensure!(
        std::fs::read_dir(&directory).is_err(),
        "without allow_other, another user looks into the mount"
    );
    as_user("cd / && fusermount3 -u \"$HOME/mnt\"")?;
    wait_until_released(&image)?;
    bed.check(&image)?;

    bed.succeeds([
        OsStr::new("mount"),
        image.as_os_str(),
        directory.as_os_str(),
        OsStr::new("-o"),
        OsStr::new("mode=concurrent"),
    ])?;
    as_user(
        "test \"$(cat d/f)\" = words && dd if=/dev/urandom of=d/g bs=64k count=32 conv=fsync \
         status=none",
    )?;
    bed.succeeds([OsStr::new("unmount"), directory.as_os_str()])?;
    wait_until_released(&image)?;
    bed.check(&image)
}

/// Makes a directory that is a user's own, and one in it to mount at.
fn make_home(bed: &Bed, user: u32, group: u32) -> Result<(PathBuf, PathBuf)> {
    let home = bed.make_directory("home")?;
    chown(&home, Some(user), Some(group))?;
    std::fs::set_permissions(&home, Permissions::from_mode(0o700))?;
    let directory = bed.make_directory("home/mnt")?;
    chown(&directory, Some(user), Some(group))?;
    Ok((home, directory))
}

/// Gives every user the FUSE device for as long as the guard lives, where the system does not do so
/// by itself.
fn let_users_open_fuse() -> Result<Option<Guard>> {
    const DEVICE: &str = "/dev/fuse";
    let permissions = std::fs::metadata(DEVICE)?.permissions();
    if permissions.mode() & 0o006 == 0o006 {
        return Ok(None);
    }
    let guard = Guard::new(move || {
        if let Err(error) = std::fs::set_permissions(DEVICE, permissions) {
            eprintln!("xtask: cannot give {DEVICE} its permissions back: {error}");
        }
    });
    std::fs::set_permissions(DEVICE, Permissions::from_mode(0o666))?;
    Ok(Some(guard))
}

fn wait_until_released(image: &Path) -> Result<()> {
    let start = Instant::now();
    while !processes_of(image).is_empty() {
        ensure!(start.elapsed() < LIMIT, "the serving process does not end after the unmount");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
