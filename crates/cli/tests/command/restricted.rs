//! Where io_uring is forbidden everything works all the same, and says so.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};

/// Calls `work` in a thread whose programs may not set up an io_uring, as in many containers.
fn without_uring(work: impl FnOnce() + Send) {
    let rules = BTreeMap::from([(libc::SYS_io_uring_setup, Vec::new())]);
    let forbid = SeccompAction::Errno(u32::try_from(libc::EPERM).unwrap());
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        forbid,
        std::env::consts::ARCH.try_into().unwrap(),
    )
    .unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    std::thread::scope(|scope| {
        let restricted = scope.spawn(move || {
            seccompiler::apply_filter(&program).unwrap();
            work();
        });
        restricted.join().unwrap();
    });
}

#[test]
fn without_io_uring_a_volume_is_served_by_threads_and_the_user_is_told() {
    let scratch = Scratch::new();
    without_uring(|| {
        let image = scratch.image("v.img");
        let source = scratch.file("source", &pattern(1 << 20));
        bedplate(["put", text(&image), text(&source), "/file"]).succeeds();
        let info = bedplate(["info", text(&image)]).succeeds().says("threads");
        assert!(
            info.stderr().contains("bedplate: warning: ") && info.stderr().contains("io_uring"),
            "{}",
            info.stderr()
        );
        if can_mount("a mount without io_uring") {
            let dir = scratch.directory("mnt");
            let mounted =
                bedplate(["mount", text(&image), text(&dir)]).succeeds().says("engine threads");
            assert!(
                mounted.stderr().contains("io_uring"),
                "the daemon's warning reaches the terminal: {}",
                mounted.stderr()
            );
            assert_eq!(std::fs::read(dir.join("file")).unwrap(), pattern(1 << 20));
            let told = bedplate(["--json", "info", text(&dir)]).succeeds().json();
            assert_eq!(told["io_threads"]["count_max"], 32, "S-509: {told}");
            bedplate(["info", text(&dir)]).succeeds().says("I/O threads   ").says(" of at most 32");
            bedplate(["unmount", text(&dir)]).succeeds();
        }
        bedplate(["check", text(&image)]).succeeds();
    });
}
