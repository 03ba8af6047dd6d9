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

#[test]
fn s_169_programs_that_may_have_few_descriptors_keep_them() {
    let Some(stage) = Stage::new() else { return };
    let command = stage.command("open 0 @ rw pread 0 0 4096");
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -n 20; exec \"$0\" \"$@\""]).arg(command.get_program());
    limited.args(command.get_args());
    for (name, value) in command.get_envs() {
        limited.env(name, value.unwrap());
    }
    let output = limited.output().unwrap();
    assert_eq!(super::stage::lines(&output.stdout), "read 4096 M");
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
