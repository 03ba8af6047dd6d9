//! Access control lists by the tools that people use: `setfacl`, `getfacl`, `cp -a`, backups, and a
//! daemon that is killed.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Options;
use super::bed::{Bed, Mounted};
use crate::sh;

const LIMIT: Duration = Duration::from_secs(60);

/// A user that owns nothing here.
const OTHER: &str = "65534";

/// Sets lists, and makes files under different umasks below a directory with a default list.
const MAKE: &str = "mkdir tree && cd tree && umask 077 && echo words > before \
                    && setfacl -m u:65534:rX,d:u:65534:rwX,d:g:7:r . && umask 022 && echo words > after \
                    && mkdir sub && echo words > sub/deep && echo words > plain && setfacl -b plain \
                    && chmod 640 plain && ln -s after link";

/// S-492, S-493, S-494: lists are set, seen and followed, and survive copies, a killed daemon, a
/// backup and a check.
pub fn tools(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = bed.format("volume.img", "128M")?;
    let mut mounted = bed.mount(&image, "acl,allow_other")?;
    in_shell(&mounted, &format!("{MAKE} && sync ."))?;
    let made = lists(&mounted.path("tree"))?;
    for line in ["user:65534:rwx", "mask::rw-", "default:user:65534:rwx", "default:group:7:r--"] {
        ensure!(made.contains(line), "'{line}' is missing in {made}");
    }
    follows(&mounted)?;
    in_shell(&mounted, "cp -a tree copied")?;
    let copied = lists(&mounted.path("copied"))?;
    ensure!(copied == made, "cp -a made {copied} of {made}");
    bed.succeeds([
        OsStr::new("cp"),
        mounted.path("tree/after").as_os_str(),
        mounted.path("by-bedplate").as_os_str(),
    ])?;
    let (copied, of) = (lists(&mounted.path("by-bedplate"))?, lists(&mounted.path("tree/after"))?);
    ensure!(copied == of, "bedplate cp made {copied} of {of}");
    in_shell(&mounted, "sync tree/sub tree")?;
    mounted.crash()?;
    mounted.clear()?;

    // Without the option: the volume has lists.
    let mounted = bed.mount(&image, "allow_other")?;
    let kept = lists(&mounted.path("tree"))?;
    ensure!(kept == made, "after a crash there is {kept} instead of {made}");
    follows(&mounted)?;
    backed_up(bed, &mounted, &made)?;
    mounted.unmount(bed)?;
    bed.check(&image)
}

/// What the other user may do, and no longer when the owner says so.
fn follows(mounted: &Mounted) -> Result<()> {
    let may = |script: &str| -> Result<bool> {
        let (user, group) = (format!("--reuid={OTHER}"), format!("--regid={OTHER}"));
        let mut command = Command::new("setpriv");
        command.args([&user, &group, "--clear-groups"]).args(["sh", "-c", script]);
        command.current_dir("/").env("M", &mounted.directory);
        Ok(sh::finish(&mut command, LIMIT)?.status.success())
    };
    in_shell(mounted, "chmod 755 . && chmod g+rx tree")?;
    for (script, expected) in [
        ("cat $M/tree/after", true),
        ("echo more >> $M/tree/sub/deep", true),
        ("echo more > $M/tree/new", false),
        ("cat $M/tree/before", false),
        ("cat $M/tree/plain", false),
        ("setfacl -m u:65534:rwx $M/tree/after", false),
    ] {
        ensure!(may(script)? == expected, "the other user: '{script}' should be {expected}");
    }
    in_shell(mounted, "chmod g-r tree/after")?;
    ensure!(!may("cat $M/tree/after")?, "the mask does not bound the list");
    in_shell(mounted, "chmod g+r tree/after")?;
    ensure!(may("cat $M/tree/after")?, "the mask came back, and the rights did not");
    Ok(())
}

/// A backup of the lists, restored beside them, is the same.
fn backed_up(bed: &Bed, mounted: &Mounted, made: &str) -> Result<()> {
    let repository = bed.path("repository");
    let path = |path: &Path| path.as_os_str().to_owned();
    bed.succeeds([OsStr::new("backup"), "init".as_ref(), repository.as_os_str()])?;
    bed.succeeds(["checkpoint".into(), "create".into(), path(&mounted.directory), "now".into()])?;
    bed.succeeds([
        "backup".into(),
        "create".into(),
        path(&mounted.directory),
        "now".into(),
        path(&repository),
    ])?;
    let place = mounted.path("restored");
    std::fs::create_dir(&place)?;
    bed.succeeds(["restore".into(), path(&repository), "now".into(), path(&place)])?;
    let restored = lists(&place.join("tree"))?;
    ensure!(restored == made, "the backup has {restored} instead of {made}");
    Ok(())
}

/// All lists, modes and owners below a directory.
fn lists(directory: &Path) -> Result<String> {
    let mut command = Command::new("getfacl");
    command.args(["-nPR", "."]).current_dir(directory);
    if directory.is_file() {
        command = Command::new("getfacl");
        command.args(["-nP", "--omit-header"]).arg(directory);
    }
    sh::output(&mut command, LIMIT)
}

fn in_shell(mounted: &Mounted, script: &str) -> Result<()> {
    let mut command = Command::new("sh");
    command.args(["-ec", script]).current_dir(&mounted.directory);
    sh::output(&mut command, LIMIT).map(drop)
}
