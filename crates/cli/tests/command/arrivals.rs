//! Members of a group that appear: what udev and systemd ask, with a systemctl that writes down
//! what it is asked. `cargo xtask real package` has systemd and udev read what they are installed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::harness::{Run, Scratch, bedplate, can_mount, command, run, text};
use super::volumes::group;

/// Puts a systemctl into a directory that calls one unit enabled and keeps what it is asked to start.
fn systemctl(dir: &Path, enabled: &str) {
    let program = dir.join("systemctl");
    let script = format!(
        "#!/bin/sh\ncase $1 in\nis-enabled) [ \"$3\" = {enabled} ];;\n\
         start) echo \"$@\" >> {}/asked;;\nesac\n",
        dir.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

/// S-403: a group starts when its last member appears: nothing before, then the units of its volumes
/// that are enabled, and no other.
#[test]
fn s_403_the_last_member_that_appears_starts_the_volumes_of_its_group() {
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    let (a, b) = (members[0].clone(), members[1].clone());
    let (config, bin, away) =
        (scratch.directory("etc"), scratch.directory("bin"), scratch.directory("away"));
    systemctl(&bin, "bedplate@db.service");
    fs::write(config.join("db.conf"), "VOLUME=group:tank\nDIRECTORY=/mnt\n").unwrap();
    fs::write(config.join("other.conf"), "VOLUME=group:tan\n").unwrap();
    fs::write(config.join("member.conf"), format!("VOLUME=\"{}\"\n", text(&a))).unwrap();
    fs::write(config.join("notes.txt"), "VOLUME=group:tank\n").unwrap();
    let arrived = |device: &Path, more: &[&str]| -> Run {
        let words = ["volume", "arrived", text(device), "--config", text(&config)];
        let mut command = command(words.iter().copied().chain(more.iter().copied()));
        command.env("PATH", format!("{}:/usr/bin:/bin", text(&bin)));
        run(command)
    };

    let told = bedplate(["volume", "identify", text(&a)]).succeeds().stdout();
    let lines: Vec<&str> = told.lines().collect();
    assert!(
        lines[0] == "BEDPLATE_GROUP=tank" && lines[1].starts_with("BEDPLATE_MEMBER="),
        "{told}"
    );
    fs::rename(&b, away.join("b.img")).unwrap();
    arrived(&a, &["--start"]).succeeds().says("1 of 2 members; it waits: ");
    assert!(!bin.join("asked").exists(), "S-403: nothing starts before the group is whole");

    fs::rename(away.join("b.img"), &b).unwrap();
    arrived(&b, &[]).succeeds().says("2 of 2 members").says("bedplate@db.service mounts it");
    assert!(!bin.join("asked").exists(), "S-403: nothing starts that was not asked for");
    arrived(&b, &["--start"]).succeeds().says("bedplate@db.service starts");
    let asked = || fs::read_to_string(bin.join("asked")).unwrap();
    assert_eq!(asked(), "start --no-block bedplate@db.service\n", "S-403");

    let plain = scratch.file("plain", &[0; 1 << 16]);
    bedplate(["volume", "identify", text(&plain)]).fails(1, "carries no label");
    arrived(&plain, &[]).fails(1, "carries no label");
    if can_mount("a group that is open") {
        let dir = scratch.directory("mnt");
        bedplate(["format", text(&a)]).succeeds();
        bedplate(["mount", text(&a), text(&dir)]).succeeds();
        bedplate(["volume", "identify", text(&b)]).succeeds().says("BEDPLATE_GROUP=tank");
        arrived(&b, &["--start"]).succeeds().says("2 of 2 members");
        bedplate(["unmount", text(&dir)]).succeeds();
    }
}
