//! Backups that are killed, lose their target or the power: nothing that is listed is incomplete,
//! and the next run goes on where the last one ended.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Scratch, bedplate, can_mount, command, pattern, text};

/// The test's data, in chunks.
const CHUNKS: usize = 24;

/// A mount with a checkpoint `one` of some files.
fn source(scratch: &Scratch) -> PathBuf {
    let (_, dir) = scratch.mounted("mode=concurrent");
    fs::create_dir(dir.join("db")).unwrap();
    for file in 0..CHUNKS / 4 {
        let mut content = pattern(4 << 20);
        content.iter_mut().step_by(1000).for_each(|byte| *byte ^= file as u8 + 1);
        fs::write(dir.join(format!("db/table{file}")), content).unwrap();
    }
    bedplate(["checkpoint", "create", text(&dir), "one"]).succeeds();
    dir
}

/// How many chunks lie in a directory of backups.
fn stored(repository: &Path) -> usize {
    let parts = fs::read_dir(repository.join("chunks")).into_iter().flatten().flatten();
    let names = parts.flat_map(|part| fs::read_dir(part.path()).into_iter().flatten().flatten());
    names.filter(|name| !name.file_name().to_string_lossy().ends_with(".partial")).count()
}

/// Begins a backup.
fn begin(dir: &Path, repository: &str) -> Child {
    command(["--json", "backup", "create", text(dir), "one", repository])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until so many chunks are stored; returns whether they came before the end.
fn wait_for(chunks: usize, repository: &Path, child: &mut Child) -> bool {
    let start = Instant::now();
    while stored(repository) < chunks {
        assert!(start.elapsed() < Duration::from_secs(60), "no chunks come");
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}

/// S-78, S-102: killed after any number of chunks, a backup is not listed, what is stored stays,
/// and the next run stores only what is missing.
#[test]
fn s_102_a_killed_backup_is_none_and_its_chunks_are_used() {
    if !can_mount("killed backups") {
        return;
    }
    let scratch = Scratch::new();
    let dir = source(&scratch);
    let repository = scratch.path("backups");
    for chunks in [0, 1, 2, 3, 5, 8, 13, CHUNKS - 1, CHUNKS] {
        let mut child = begin(&dir, text(&repository));
        wait_for(chunks, &repository, &mut child);
        child.kill().unwrap();
        let ended = child.wait_with_output().unwrap();
        if !repository.join("bedplate-backup").exists() {
            continue;
        }
        bedplate(["backup", "verify", text(&repository)]).succeeds();
        if ended.status.success() || repository.join("manifests/one").exists() {
            // It was faster than the kill: it is there, and whole.
            bedplate(["backup", "delete", text(&repository), "one"]).succeeds();
        } else {
            bedplate(["backup", "list", text(&repository)]).succeeds().says("no backups");
        }
    }
    let mut child = begin(&dir, text(&repository));
    wait_for(CHUNKS / 2, &repository, &mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    let before = stored(&repository);
    bedplate(["backup", "list", text(&repository)]).succeeds();
    if !repository.join("manifests/one").exists() {
        let made = bedplate(["--json", "backup", "create", text(&dir), "one", text(&repository)])
            .succeeds()
            .json();
        assert_eq!(made["stored_bytes"].as_u64(), Some(((CHUNKS - before) << 20) as u64), "{made}");
    }
    bedplate(["backup", "verify", text(&repository)])
        .succeeds()
        .says(&format!("1 backup, {CHUNKS} chunks"));
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-102: a target that goes away in the middle is named in one sentence; when it is back, nothing
/// is listed that is not whole.
#[test]
fn s_102_a_target_that_vanishes_holds_nothing_by_half() {
    if !can_mount("targets that vanish") {
        return;
    }
    let scratch = Scratch::new();
    let dir = source(&scratch);
    let (image, target) = (scratch.image("target.img"), scratch.directory("target"));
    bedplate(["mount", text(&image), text(&target), "-o", "mode=concurrent"]).succeeds();
    let repository = target.join("backups");
    let mut pid = [0; 16];
    let len = rustix::fs::getxattr(&target, "user.bedplate.pid", &mut pid[..]).unwrap();
    let pid: i32 = String::from_utf8_lossy(&pid[..len]).parse().unwrap();
    let mut child = begin(&dir, text(&repository));
    assert!(wait_for(3, &repository, &mut child), "it is in the middle");
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let ended = child.wait_with_output().unwrap();
    let told: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{told}");
    assert!(
        told["error"]["message"]
            .as_str()
            .is_some_and(|message| message.contains("backups") && !message.contains('\n')),
        "{told}"
    );
    bedplate(["unmount", text(&target)]).succeeds().says("a daemon that died");
    bedplate(["mount", text(&image), text(&target), "-o", "mode=concurrent"]).succeeds();
    // The mark itself may not have been durable yet.
    if repository.join("bedplate-backup").exists() {
        bedplate(["backup", "list", text(&repository)]).succeeds().says("no backups");
    }
    bedplate(["backup", "create", text(&dir), "one", text(&repository)]).succeeds();
    bedplate(["backup", "verify", text(&repository)])
        .succeeds()
        .says(&format!("1 backup, {CHUNKS} chunks"));
    bedplate(["unmount", text(&target)]).succeeds();
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-102: the power of the target goes after any device write: what is listed is whole, what was
/// told to be made is listed, and what was told to be deleted is not.
#[test]
fn s_102_a_power_cut_of_the_target_leaves_backups_whole() {
    if !can_mount("power cuts of a target of backups") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let program = env!("CARGO_BIN_EXE_bedplate");
    fs::create_dir(dir.join("db")).unwrap();
    fs::write(dir.join("db/table"), pattern(2_500_000)).unwrap();
    bedplate(["checkpoint", "create", text(&dir), "one"]).succeeds();
    fs::write(dir.join("db/other"), pattern(1_200_000)).unwrap();
    bedplate(["checkpoint", "create", text(&dir), "two"]).succeeds();
    let script = scratch.file(
        "work.sh",
        format!(
            "set -e; R=$BEDPLATE_DIR/backups; for name in one two; do {program} backup create {0} \
             $name $R > $BEDPLATE_SCRATCH/told; echo $name; done
             {program} backup delete $R one > $BEDPLATE_SCRATCH/told; echo deleted\n",
            text(&dir)
        )
        .as_bytes(),
    );
    let check = scratch.file(
        "check.sh",
        format!(
            "R=$BEDPLATE_DIR/backups; has() {{ grep -qx $1 $BEDPLATE_ACKNOWLEDGED; }}
             test -e $R/bedplate-backup || {{ has one && {{ echo 'nothing is there'; exit 1; }}; \
             exit 0; }}
             {program} backup verify $R || exit 1
             for name in one two; do
                 if has $name && ! test -e $R/manifests/$name; then test $name = one && has two || \
             {{ echo $name is gone; exit 1; }}; fi
             done
             if has deleted; then ! test -e $R/manifests/one || {{ echo one is back; exit 1; }}; \
             fi\n"
        )
        .as_bytes(),
    );
    let work = scratch.directory("work");
    let (run, check) = (format!("sh {}", text(&script)), format!("sh {}", text(&check)));
    let lab = [
        "crashlab",
        "--json",
        "--size",
        "64M",
        "--states",
        "60",
        "--jobs",
        "2",
        "--seed",
        "5",
        "--dir",
        text(&work),
        "-o",
        "mode=concurrent",
    ];
    let report = bedplate(lab.into_iter().chain(["--check", &check, "--", "sh", "-c", &run]))
        .succeeds()
        .json();
    assert_eq!(
        (report["states"].as_u64(), report["recorded"]["acknowledgements"].as_u64()),
        (Some(60), Some(3)),
        "{report}"
    );
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// Once Ctrl-C during `format --fill` left an image of gigabytes that held nothing.
#[test]
fn an_interrupted_fill_leaves_no_image() {
    let scratch = Scratch::new();
    let image = scratch.path("v.img");
    let mut format = command(["format", text(&image), "--size", "4G", "--fill"]);
    let child = format.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    let is_filling = || {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(&image).is_ok_and(|meta| meta.blocks() > 0)
    };
    while !is_filling() {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is filled");
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let ended = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && told.contains("interrupted while filling"), "{told}");
    assert!(!image.exists(), "the image is left behind");
}
