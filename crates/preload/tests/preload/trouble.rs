//! A daemon that takes the lease back, is gone, or tells nonsense.

use std::sync::atomic::Ordering;

use bedplate_lease::State;

use super::daemon::FIRST;
use super::stage::Stage;

#[test]
fn a_revoked_file_goes_to_the_mount() {
    let Some(stage) = Stage::new() else { return };
    let of = stage.daemon.entry();
    let control = || stage.daemon.publisher.lock().unwrap().control().clone();
    control().revoke(of);
    assert_eq!(
        stage.run("open 0 @ rw pread 0 0 4096 pwrite 0 0 4096 x"),
        "read 4096 M, write 4096"
    );
    assert_eq!((stage.on_device(FIRST), stage.on_mount(0)), ('D', 'x'));
    assert!(stage.report().contains("revoked=2"), "{}", stage.report());
    control().restore(of);
    assert_eq!(stage.run("open 0 @ rw pread 0 0 4096"), "read 4096 D");
    control().change_sharing();
    let said = stage.run("open 0 @ rw pread 0 0 4096 pwrite 0 0 4096 y");
    assert_eq!(said, "read 4096 D, write 4096");
    assert_eq!((stage.on_device(FIRST), stage.on_mount(0)), ('D', 'y'));
    control().set_state(State::Stopped);
    assert_eq!(stage.run("open 0 @ rw pread 0 8192 4096"), "read 4096 M");
}

#[test]
fn blocks_that_a_replay_looks_at_are_not_written() {
    let Some(stage) = Stage::new() else { return };
    stage.daemon.rewrite(|file| file.unsealed_last = 3);
    let said = stage.run("open 0 @ rw pread 0 0 4096 pwrite 0 0 4096 x");
    assert_eq!(said, "read 4096 D, write 4096");
    assert_eq!((stage.on_device(FIRST), stage.on_mount(0)), ('D', 'x'));
}

#[test]
fn s_169_without_a_daemon_all_is_as_without_the_library() {
    let Some(stage) = Stage::new() else { return };
    stage.daemon.listens.store(false, Ordering::SeqCst);
    assert_eq!(stage.run("open 0 @ rw pread 0 0 4096"), "read 4096 M");
    assert!(stage.report().contains("refused-Failed=1"), "{}", stage.report());
    stage.daemon.knows_ioctl.store(false, Ordering::SeqCst);
    let ioctls = stage.mount.seen.ioctls.load(Ordering::SeqCst);
    assert_eq!(stage.run("open 0 @ rw pread 0 0 4096 open 1 @ rw"), "read 4096 M");
    // A mount that does not know the question is asked once.
    assert_eq!(stage.mount.seen.ioctls.load(Ordering::SeqCst), ioctls + 1);
}

/// What the program says when it may have so many descriptors, and may raise that or not.
fn limited(stage: &Stage, descriptors: u32, may_raise: bool, script: &str) -> String {
    let command = stage.command(script);
    // Root may raise any limit, and another user the soft one.
    let mut limited = std::process::Command::new("setpriv");
    limited.args(["--bounding-set", "-sys_resource"]);
    let of = if may_raise { "-S" } else { "" };
    let shell = format!("ulimit {of} -n {descriptors}; exec \"$0\" \"$@\"");
    limited.args(["sh", "-c", &shell]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        limited.env(name, value.unwrap());
    }
    super::stage::lines(&limited.output().unwrap().stdout)
}

#[test]
fn s_169_programs_that_may_have_few_descriptors_keep_them() {
    let Some(stage) = Stage::new() else { return };
    let script = "open 0 @ rw pread 0 0 4096";
    assert_eq!(limited(&stage, 20, false, script), "read 4096 M");
    // Beyond their limit the library's take no number of theirs.
    assert_eq!(limited(&stage, 20, true, script), "read 4096 D");
}

/// S-168: a program opens as many files, and copies as many descriptors, as without the library: all
/// where its limit can be raised for the library's own, and all but those of the mount where not.
#[test]
fn s_168_a_program_has_as_many_descriptors_as_without_the_library() {
    let Some(stage) = Stage::new() else { return };
    let of = |may_raise, script: &str| {
        let said = limited(&stage, 128, may_raise, script);
        let (before, count) = said.rsplit_once("fill ").unwrap();
        (before.to_owned(), count.parse::<u32>().unwrap())
    };
    let (_, without) = of(false, "fill /dev/null");
    assert!((100..=125).contains(&without), "{without}");
    let script = "open 0 @ rw pread 0 0 4096 fill @";
    let leased = "read 4096 D, ".to_owned();
    assert_eq!(of(true, script), (leased.clone(), without - 1));
    assert_eq!(of(false, script), (leased, without - 1 - 3));
}

#[test]
fn rubbish_in_the_control_memory_crashes_nothing() {
    let Some(stage) = Stage::new() else { return };
    let control = &stage.daemon.control;
    let whole: Vec<u64> = control.iter().map(|word| word.load(Ordering::SeqCst)).collect();
    let mut state = 1_u64;
    for round in 0..60 {
        for _ in 0..=round % 20 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) as usize % control.len();
            control[at].store(state ^ (state >> 31), Ordering::SeqCst);
        }
        let said = stage.run("open 0 @ rw pread 0 0 4096 pread 0 131072 4096 fdatasync 0");
        assert!(said.ends_with("sync 0") && !said.contains('E'), "{said}");
        for (word, value) in control.iter().zip(&whole) {
            word.store(*value, Ordering::SeqCst);
        }
    }
}

#[test]
fn a_call_left_for_good_gives_its_slot_back() {
    let Some(stage) = Stage::new() else { return };
    // A handler in the midst of I/O has no lease; what comes after it has.
    for leave in ["leave", "leavestack"] {
        let said = stage.run(&format!("open 0 @ rw {leave} 0 pread 0 0 4096 pwrite 0 0 4096 D"));
        assert_eq!(said, "within M, read 4096 D, write 4096");
    }
    let clients = stage.daemon.clients.lock().unwrap();
    assert!(clients.iter().all(|client| client.holder(|_| true).is_none()));
}
