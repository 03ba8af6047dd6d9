//! Mounts as mount(8) and fstab make, change and show them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Run, Scratch, bedplate, can_mount, run, text};
use crate::volumes::another;

/// Calls the command as mount(8) calls its helpers.
fn helper(scratch: &Scratch, name: &str, source: &str, dir: &Path, more: &[&str]) -> Run {
    let link = scratch.path(name);
    if !link.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_bedplate"), &link).unwrap();
    }
    let mut command = Command::new(link);
    command.env("BEDPLATE_SYSLOG", "/dev/null").arg(source).arg(dir).args(more);
    run(command)
}

/// Returns the line of the list of mounts for a directory.
fn listed(dir: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(4) == dir.to_str());
    line.map(str::to_owned)
}

/// Once a line of fstab with `nofail` or `x-systemd.automount` was refused as unknown, and `-f`
/// mounted.
#[test]
fn s_202_a_line_of_fstab_mounts_and_what_only_pretends_does_not() {
    if !can_mount("lines of fstab") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("v.img"), scratch.directory("mnt"));
    let line = "defaults,nofail,_netdev,user,noauto,lazytime,nodiratime,noexec,x-systemd.automount,comment=a";
    helper(&scratch, "mount.bedplate", text(&image), &dir, &["-f", "-o", line]).succeeds();
    assert_eq!(listed(&dir), None, "S-202: -f mounts nothing");
    for (name, flags) in [
        ("mount.bedplate", &["-n", "-o", line][..]),
        ("mount.fuse.bedplate", &["-t", "fuse.bedplate", "-o", line]),
    ] {
        helper(&scratch, name, text(&image), &dir, flags).succeeds();
        let shown = listed(&dir).expect("S-202: it is mounted");
        assert!(shown.contains("fuse.bedplate") && shown.contains("noexec"), "S-202: {shown}");
        bedplate(["unmount", text(&dir)]).succeeds();
    }
    helper(&scratch, "mount.bedplate", text(&image), &dir, &["-o", "nofial"]).fails(2, "nofial");
}

#[test]
fn s_203_a_remount_changes_flags_and_tunables_under_open_files() {
    if !can_mount("a remount") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("");
    let image = text(&image);
    let remount =
        |options: &str| helper(&scratch, "mount.fuse.bedplate", image, &dir, &["-o", options]);
    // As mount(8) passes on 'mount -o remount,ro DIR'.
    let listed_options = "nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions";
    std::fs::write(dir.join("file"), b"content").unwrap();
    let open = std::fs::File::options().append(true).open(dir.join("file")).unwrap();
    remount(&format!("ro,{listed_options},remount")).fails(1, "open for writing");
    drop(open);
    remount(&format!("ro,{listed_options},remount")).succeeds().says("remounted with ro");
    let refused = std::fs::write(dir.join("file"), b"other").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "S-203");
    assert_eq!(std::fs::read(dir.join("file")).unwrap(), b"content");
    let shown = listed(&dir).unwrap();
    assert!(shown.contains("ro,nosuid,nodev,relatime"), "S-203: other flags stay: {shown}");
    remount("remount,rw,cache=16M,sync=7s").succeeds().says("cache=16 MiB");
    std::fs::write(dir.join("file"), b"other").unwrap();
    let tuned = bedplate(["--json", "tune", text(&dir), "cache"]).succeeds().json();
    assert_eq!(tuned["tunables"][0]["value"], 16 << 20, "S-203: {tuned}");
    bedplate(["mount", image, text(&dir), "-o", "remount,cache=lots"]).fails(2, "cache=lots");
    bedplate(["mount", image, text(&dir), "-o", "remount,frobnicate"]).fails(2, "frobnicate");
    let later = remount("remount,allow_other").succeeds();
    assert!(later.stderr().contains("does not change allow_other"), "S-203: {}", later.stderr());
    bedplate(["unmount", text(&dir)]).succeeds();

    bedplate(["mount", image, text(&dir), "-o", "ro"]).succeeds();
    remount("remount,rw").fails(1, "was mounted with ro");
    bedplate(["unmount", text(&dir)]).succeeds();
    remount("remount,rw").fails(1, "no Bedplate mount");
}

/// Once a group was listed under its first member, and 'volume show DIR' failed when that member
/// was replaced.
#[test]
fn s_204_a_group_is_listed_by_its_name_and_found_by_it_when_its_members_change() {
    if !can_mount("the source of a group") {
        return;
    }
    let scratch = Scratch::new();
    // The list of mounts is the machine's: other tests have groups of other names.
    let name = format!("listed{}", std::process::id());
    let members: Vec<PathBuf> = ["m0.img", "m1.img"].map(|name| scratch.path(name)).into();
    let (first, second) = (text(&members[0]), text(&members[1]));
    bedplate(["volume", "create", &name, "--layout", "mirror", "--size", "40M", first, second])
        .succeeds();
    let source = format!("group:{name}");
    bedplate(["format", text(&members[0])]).succeeds();
    let dir = scratch.directory("mnt");
    bedplate(["mount", text(&members[0]), text(&dir)]).succeeds();
    assert!(listed(&dir).unwrap().contains(&format!(" {source} ")), "S-204: {:?}", listed(&dir));
    let moved: Vec<PathBuf> = members
        .iter()
        .map(|member| scratch.directory("away").join(member.file_name().unwrap()))
        .collect();
    for (member, new) in members.iter().zip(["n0.img", "n1.img"]) {
        let new = another(&scratch, new);
        bedplate(["volume", "replace", text(&dir), text(member), text(&new)]).succeeds();
        bedplate(["volume", "wait", text(&dir), "--timeout", "10m"]).succeeds();
    }
    for (member, moved) in members.iter().zip(&moved) {
        std::fs::rename(member, moved).unwrap();
    }
    bedplate(["volume", "show", text(&dir)]).succeeds().says("n0.img");
    // None of its members lies where groups are looked for, but it is mounted.
    bedplate(["volume", "show", &source]).succeeds().says("n1.img");
    bedplate(["info", &source]).succeeds().says(&format!("volume        {source}"));
    bedplate(["info", text(&scratch.path("n1.img"))]).succeeds().says(text(&dir));
    bedplate(["unmount", &source]).succeeds();
    assert_eq!(listed(&dir), None);
    bedplate(["check", text(&scratch.path("n0.img"))]).succeeds();
}

/// Returns what a program of util-linux says of a mount; `None` where there is none.
fn shown_by(program: &str, arguments: &[&str], dir: &Path) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    table.lines().find(|line| line.contains(text(dir))).map(str::to_owned)
}

/// Once `mount` said of every mount the same, whatever it had been asked for.
#[test]
fn s_480_mount_and_findmnt_show_the_mode_and_what_else_was_asked_for() {
    if !can_mount("what lists of mounts show") {
        return;
    }
    if !rustix::process::geteuid().is_root() || !Path::new("/run/mount").is_dir() {
        println!("skipped: only root has user options, in /run/mount");
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("v.img"), scratch.directory("mnt"));
    let options = "mode=concurrent,cache=16M,inode-lock=whole,noatime,stop-timeout=9s";
    bedplate(["mount", text(&image), text(&dir), "-o", options]).succeeds();
    let kernel = listed(&dir).unwrap();
    assert!(kernel.contains("noatime"), "S-480: the kernel's own flag: {kernel}");
    let asked = "mode=concurrent,cache=16MiB,inode-lock=whole,stop-timeout=9s";
    for (program, arguments) in [("mount", &[][..]), ("findmnt", &["--mtab", "--raw"])] {
        match shown_by(program, arguments, &dir) {
            Some(shown) => assert!(shown.contains(asked), "S-480: {program}: {shown}"),
            None => println!("skipped: no {program} here"),
        }
    }
    // What is the default again is not shown.
    bedplate(["tune", text(&dir), "mode=direct", &default_cache(&dir)]).succeeds();
    let user = || std::fs::read_to_string("/run/mount/utab").unwrap();
    let line = |table: &str| table.lines().find(|l| l.contains(text(&dir))).map(str::to_owned);
    let shown = line(&user()).expect("S-480: a line");
    assert!(shown.ends_with(" OPTS=mode=direct,inode-lock=whole,stop-timeout=9s"), "{shown}");
    // As mount(8) passes on what it shows: nothing of that is a change.
    let passed = "ro,nosuid,nodev,noatime,remount,user_id=0,group_id=0,default_permissions,\
                  mode=direct,inode-lock=whole,stop-timeout=9s";
    let remounted = helper(&scratch, "mount.fuse.bedplate", text(&image), &dir, &["-o", passed]);
    let remounted = remounted.succeeds().says("remounted with ro\n");
    assert_eq!(remounted.stderr(), "", "S-480");
    bedplate(["unmount", text(&dir)]).succeeds();
    assert_eq!(line(&user()), None, "S-480: nothing is left of it");
}

/// Returns the change that sets the cache of a mount to what it would be of itself.
fn default_cache(dir: &Path) -> String {
    let told = bedplate(["--json", "tune", text(dir)]).succeeds().json();
    let all = told["tunables"].as_array().unwrap();
    let cache = all.iter().find(|tunable| tunable["name"] == "cache").unwrap();
    format!("cache={}", cache["default"])
}

#[test]
fn s_481_an_option_without_effect_is_named() {
    if !can_mount("options beside each other") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = (scratch.image("v.img"), scratch.directory("mnt"));
    let options = "ro,lease=owner,discard=on";
    let mounted = bedplate(["mount", text(&image), text(&dir), "-o", options]).succeeds();
    for option in ["'lease='", "'discard=on'"] {
        let said = mounted.stderr();
        assert!(said.contains(&format!("{option} has no effect beside 'ro'")), "S-481: {said}");
    }
    bedplate(["unmount", text(&dir)]).succeeds();
}
