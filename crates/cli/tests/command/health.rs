//! What exit codes tell of volumes.

use crate::harness::{Scratch, bedplate, can_mount, text};
use crate::volumes::{another, group};

/// S-182: whole, degraded, whole again, and left by a daemon that died, each by its exit code.
#[test]
fn s_182_status_and_wait_tell_health_by_their_exit_code() {
    if !can_mount("the health of a mounted group") {
        return;
    }
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    let (first, here) = (text(&members[0]), text(members[0].parent().unwrap()));
    bedplate(["format", first]).succeeds();
    let dir = scratch.directory("mnt");
    let mounted = bedplate(["--json", "mount", first, text(&dir)]).succeeds().json();
    bedplate(["status", text(&dir)]).succeeds().says("1 mounted volume, all whole");
    bedplate(["volume", "wait", first]).succeeds().says("group tank, whole");
    // A member that is cut short is noticed when it is read or written.
    std::fs::File::options().write(true).open(&members[1]).unwrap().set_len(1 << 20).unwrap();
    let began = std::time::Instant::now();
    while bedplate(["status", text(&dir)]).code() != 1 {
        let file = std::fs::File::create(dir.join("file")).unwrap();
        std::io::Write::write_all(&mut &file, &[1; 100_000]).unwrap();
        file.sync_all().unwrap();
        assert!(began.elapsed().as_secs() < 120, "S-182: nothing failed");
    }
    let told = bedplate(["status", text(&dir)]);
    assert_eq!(told.code(), 1, "S-182: {}", told.stdout());
    told.says("degraded").says("m1.img");
    let waited = bedplate(["volume", "wait", first]);
    assert_eq!(waited.code(), 1, "S-182: {}", waited.stdout());
    for told in [&["info", text(&dir)][..], &["volume", "show", first], &["volume", "list", here]] {
        let run = bedplate(told);
        assert_eq!(run.code(), 1, "S-182: {told:?}: {}", run.stdout());
        run.says("degraded");
    }
    let info = bedplate(["--json", "info", text(&dir)]).json();
    assert_eq!((&info["health"], &info["pid"]), (&"degraded".into(), &mounted["pid"]));
    let json = bedplate(["--json", "status", text(&dir)]).json();
    assert_eq!(json["mounts"][0]["state"], "degraded");
    bedplate(["volume", "replace", first, text(&members[1]), text(&another(&scratch, "new.img"))])
        .succeeds();
    bedplate(["volume", "wait", text(&dir), "--timeout", "10m"])
        .succeeds()
        .says("group tank, whole");
    for told in [&["info", text(&dir)][..], &["volume", "show", first], &["volume", "list", here]] {
        bedplate(told).succeeds();
    }
    bedplate(["status", text(&dir)]).succeeds().says("all whole");
    let pid = i32::try_from(mounted["pid"].as_i64().unwrap()).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    while bedplate(["status", text(&dir)]).code() != 4 {
        assert!(began.elapsed().as_secs() < 240, "S-182: a dead daemon is not told");
    }
    bedplate(["status", text(&dir)]).says("dead").says("unmount");
    assert_eq!(bedplate(["info", text(&dir)]).code(), 4, "S-182: info of a dead daemon");
}
