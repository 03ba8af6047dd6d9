//! How mounts start and end.

use std::fs::{File, create_dir, metadata, read, write};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bedplate_fs::FileSystem;
use bedplate_serve::ErrorKind;
use bedplate_serve::fuse::{Mount, MountSettings};

use crate::harness::{
    Mounted, NOBODY, Server, available, format_memory, has_program, is_cut_off, needs_root,
    ordinary_users_may_mount, server_command,
};

fn is_mounted(path: &Path) -> bool {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    std::fs::read_to_string("/proc/self/mountinfo")
        .unwrap()
        .contains(&format!(" {} ", path.display()))
}

#[test]
fn a_started_mount_is_live_and_shows_its_kind() {
    let Some(m) = Mounted::new("fsname=my\\disk") else { return };
    assert!(m.mount.is_live());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line =
        mounts.lines().find(|line| line.contains(m.root().to_str().unwrap())).unwrap().to_string();
    assert!(
        line.contains(" fuse.bedplate ")
            && line.contains("nosuid")
            && line.contains("nodev")
            && line.contains("default_permissions"),
        "{line}"
    );
    assert!(!line.contains("allow_other"));
    m.finish();
}

#[test]
fn s_8_unmounting_by_a_command_ends_it_cleanly() {
    if !has_program("fusermount3") {
        return;
    }
    let Some(m) = Mounted::new("") else { return };
    write(m.path("f"), vec![1; 100_000]).unwrap();
    assert!(Command::new("fusermount3").arg("-u").arg(m.root()).status().unwrap().success());
    m.mount.wait().unwrap();
    assert!(!m.mount.is_live() && !is_mounted(m.root()));
    m.mount.unmount().unwrap();
    let m = m.again("");
    assert!(read(m.path("f")).unwrap() == vec![1; 100_000]);
    m.finish();
}

#[test]
fn s_49_a_mount_in_use_is_not_taken_away_unless_by_force() {
    let Some(m) = Mounted::new("") else { return };
    let file = File::create(m.path("f")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 5000], 0).unwrap();
    let busy = m.mount.unmount().unwrap_err();
    assert_eq!(busy.kind, ErrorKind::Busy);
    assert!(busy.message.contains(&format!("({})", std::process::id())), "{busy}");
    assert!(m.mount.is_live() && m.path("f").exists());
    m.mount.force_unmount().unwrap();
    assert!(!is_mounted(m.root()));
    assert!(
        std::os::unix::fs::FileExt::write_all_at(&file, &[8], 0)
            .and_then(|()| file.sync_all())
            .is_err()
    );
    drop(file);
    let device = Arc::clone(&m.device);
    drop(m);
    let m = Mounted::on(device, "");
    assert!(read(m.path("f")).unwrap() == vec![7; 5000], "what was dirty was written first");
    m.finish();
}

#[test]
fn a_copy_in_another_mount_namespace_is_named() {
    if !needs_root() || !has_program("unshare") {
        return;
    }
    let Some(m) = Mounted::new("") else { return };
    write(m.path("f"), b"x").unwrap();
    // A container started while the volume was mounted: unmounting here does not unmount there.
    // The copies it gets of other tests' mounts are none of its business.
    let script = "while read -r source dir rest; do test \"$dir\" = \"$M\" || case $rest in \
                  fuse.bedplate*) umount -l \"$dir\";; esac; done < /proc/self/mounts; echo ready; \
                  read -r line";
    let mut container = Command::new("unshare");
    container
        .args(["-m", "--propagation", "private", "sh", "-c", script])
        .env("M", m.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut container = container.spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(container.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let error = m.mount.unmount().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy);
    assert!(error.message.contains(&format!("({})", container.id())), "{error}");
    assert!(m.mount.is_live() && !is_mounted(m.root()));
    drop(container.stdin.take());
    container.wait().unwrap();
    m.mount.wait().unwrap();
    m.finish();
}

#[test]
fn a_second_mount_on_the_same_place_is_refused() {
    let Some(m) = Mounted::new("") else { return };
    let settings = MountSettings::default();
    let other = FileSystem::mount(format_memory(), None, settings.file_system.clone()).unwrap();
    let error = Mount::start(other, m.root(), &settings).unwrap_err();
    assert_eq!(error.kind, ErrorKind::MountPoint);
    assert!(error.message.contains("already"), "{error}");
    m.finish();
}

#[test]
fn s_45_after_a_kill_calls_fail_at_once_and_mounting_again_is_enough() {
    if !available() {
        return;
    }
    let uid = rustix::process::geteuid().as_raw();
    let mut server = Server::start(uid, "");
    write(server.dir.path().join("f"), b"x").unwrap();
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    is_cut_off(metadata(server.dir.path()));
    let settings = MountSettings::default();
    let fs = FileSystem::mount(format_memory(), None, settings.file_system.clone()).unwrap();
    let mount = Mount::start(fs, server.dir.path(), &settings).unwrap();
    write(server.dir.path().join("f"), b"x").unwrap();
    mount.unmount().unwrap();
    assert!(!is_mounted(server.dir.path()));
}

#[test]
fn a_dead_mount_of_somebody_else_is_explained() {
    if !available() || !needs_root() || !has_program("fusermount3") {
        return;
    }
    let mut dead = Server::start(rustix::process::geteuid().as_raw(), "allow_other");
    dead.process.kill().unwrap();
    dead.process.wait().unwrap();
    let output = server_command(NOBODY, "", dead.dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        said.contains("has died") && said.contains("fusermount3 -u") && said.contains("umount"),
        "{said}"
    );
}

#[test]
fn s_49_an_ordinary_user_mounts_uses_and_unmounts() {
    if !available() || !needs_root() || !ordinary_users_may_mount() {
        return;
    }
    let mut server = Server::start(NOBODY, "");
    // Root itself is kept out of a user's mount; the user works in it.
    let user = |script: &str| {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).env("M", server.dir.path()).current_dir("/");
        std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
        std::os::unix::process::CommandExt::gid(&mut command, NOBODY);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    };
    user("echo 1 > $M/f && mkdir $M/d && mv $M/f $M/d/g && test $(cat $M/d/g) = 1 && sync $M/d/g");
    user(
        "dd if=/dev/zero of=$M/d/h::concurrent bs=64k count=16 conv=fsync status=none && test \
         $(stat -c %s $M/d/h) = 1048576",
    );
    user("fusermount3 -u $M");
    assert!(server.wait(), "the server ended with an error");
    assert!(!is_mounted(server.dir.path()));
}

#[test]
fn auto_unmount_takes_the_mount_away_when_the_server_dies() {
    if !available() || !has_program("fusermount3") {
        return;
    }
    let mut server = Server::start(rustix::process::geteuid().as_raw(), "auto_unmount");
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    for _ in 0..1000 {
        if !is_mounted(server.dir.path()) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("the mount is still there");
}

#[test]
fn a_mount_point_must_be_an_empty_directory() {
    if !available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    create_dir(dir.path().join("sub")).unwrap();
    let start = |settings: &MountSettings| {
        let fs = FileSystem::mount(format_memory(), None, settings.file_system.clone()).unwrap();
        Mount::start(fs, dir.path(), settings)
    };
    assert_eq!(start(&MountSettings::default()).unwrap_err().kind, ErrorKind::MountPoint);
    let mount = start(&MountSettings::parse("nonempty").unwrap()).unwrap();
    assert!(!dir.path().join("sub").exists());
    mount.unmount().unwrap();
    assert!(dir.path().join("sub").exists());
}
