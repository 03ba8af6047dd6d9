//! Asynchronous requests: what goes to the device, and what does not.

use super::daemon::{FIRST, SECOND};
use super::stage::Stage;

/// What the library reports of the last program.
fn last_report(stage: &Stage) -> String {
    stage.report().lines().last().unwrap_or_default().to_owned()
}

#[test]
fn s_360_requests_on_leased_files_go_to_the_device() {
    let Some(stage) = Stage::new() else { return };
    let said = stage.run(
        "open 0 @ rw setup 8 make 0 0 r 0 4096 - make 1 0 w 4096 4096 x make 2 0 R 131072 4096 - \
         make 3 0 W 8192 4096 y submit 4 0 1 2 3 collect 4",
    );
    // The program's requests are as they were, and its pointers come back.
    assert_eq!(said, "submit 4, 0: 4096 D, 1: 4096 x, 2: 8192 D, 3: 8192 y");
    let at = |at| (stage.on_device(FIRST + at), stage.on_mount(at as usize));
    assert_eq!((at(4096), at(8192), at(12288)), (('x', 'M'), ('y', 'M'), ('y', 'M')));
    assert!(last_report(&stage).contains("reads=2 writes=2"), "{}", stage.report());
    assert_eq!(stage.daemon.ended(), 4);
    let said = stage.run("open 0 @ rw setup 8 make 0 0 r 0 4096 - submit 1 0 pcollect 1 destroy");
    assert_eq!(said, "submit 1, 0: 4096 D, destroy 0");
}

#[test]
fn s_360_the_kernel_counts_requests_that_nothing_collects() {
    let Some(stage) = Stage::new() else { return };
    let ended = |script: &str| {
        stage.run(script);
        let clients = stage.daemon.clients.lock().unwrap();
        let ended = stage.daemon.ended();
        (ended, clients.last().unwrap().has_requests(|| ended))
    };
    let begin = "open 0 @ rw setup 8 make 0 0 r 0 4096 - make 1 0 w 0 4096 x submit 2 0 1";
    assert_eq!(ended(begin), (2, false));
    assert_eq!(ended(&format!("{begin} destroy")), (2, false));
    // The kernel takes as many as the context has room for, and says so.
    let many = "open 0 @ rw setup 1 make 0 0 r 0 4096 - submit 15 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 \
                collect 1";
    let (count, in_flight) = ended(many);
    assert!((1..=128).contains(&count) && !in_flight, "{count}");
    assert_eq!(ended(&format!("{begin} fork exit")), (2, false));
    // A child of a fork is a client of its own, with contexts of its own.
    let said = stage.run(&format!("{begin} fork setup 8 submit 1 0 collect 1"));
    assert_eq!(said, "submit 2, submit 1, 0: 4096 x, child 0, submit 1, 0: 4096 x");
}

#[test]
fn s_361_what_the_lease_does_not_cover_is_the_mounts() {
    let Some(stage) = Stage::new() else { return };
    // Not aligned, across extents, beyond the map, not to be written, a counter of the program's,
    // a sync, another file.
    for (what, said) in [
        ("0 r 100 4096 -", "4096 M"),
        ("0 c 0 4096 -", "4096 -"),
        ("0 r 129024 4096 -", "4096 M"),
        ("0 r 196608 4096 -", "4096 M"),
        ("0 w 131072 4096 x", "4096 x"),
        ("0 e 0 4096 -", "4096 M"),
        ("0 s 0 0 x", "0 x"),
        ("1 r 0 4096 -", "4096 O"),
    ] {
        let script = format!("open 0 @ rw open 1 @@ rw setup 8 make 0 {what} submit 1 0 collect 1");
        assert_eq!(stage.run(&script), format!("submit 1, 0: {said}"), "{what}");
        assert!(last_report(&stage).contains("reads=0 writes=0"), "{what}: {}", stage.report());
    }
    assert_eq!((stage.on_device(SECOND), stage.on_mount(131_072)), ('D', 'x'));
    // An open whose writes are durable, and the library told to leave requests alone.
    let said = stage.run("open 0 @ rws setup 8 make 0 0 w 0 4096 z submit 1 0 collect 1");
    assert_eq!((said.as_str(), stage.on_device(FIRST)), ("submit 1, 0: 4096 z", 'D'));
    let mut off = stage.command("open 0 @ rw setup 8 make 0 0 r 0 4096 - submit 1 0 collect 1");
    let output = off.env("BEDPLATE_LEASE_AIO", "off").output().unwrap();
    assert_eq!(super::stage::lines(&output.stdout), "submit 1, 0: 4096 z");
}

#[test]
fn s_361_a_mixed_batch_keeps_its_order_and_its_result() {
    let Some(stage) = Stage::new() else { return };
    let make = "open 0 @ rw open 1 @@ rw dup 1 9 rawclose 9 setup 32 make 0 0 r 0 4096 - make 1 1 r 0 4096 - make 2 0 w \
                4096 4096 x make 3 0 w 131072 4096 y make 4 0 r 4096 4096 - make 5 9 r 0 4096 -";
    let said = stage.run(&format!("{make} submit 5 0 1 2 3 4 collect 5"));
    let all = "0: 4096 D, 1: 4096 O, 2: 4096 x, 3: 4096 y, 4: 4096 x";
    assert_eq!(said, format!("submit 5, {all}"));
    // A bad one ends the batch, and is the error of one that it begins.
    let said = stage.run(&format!("{make} submit 6 0 1 2 3 5 4 collect 4 submit 2 5 0"));
    assert_eq!(said, "submit 4, 0: 4096 D, 1: 4096 O, 2: 4096 x, 3: 4096 y, submit EBADF");
}

#[test]
fn s_360_a_request_is_used_again_before_its_submission_returned() {
    let Some(stage) = Stage::new() else { return };
    let make = "open 0 @ rw setup 64 make 0 0 w 0 4096 a make 1 0 w 4096 4096 a make 2 0 w 0 4096 a \
                make 3 0 w 4096 4096 a";
    assert_eq!(stage.run(&format!("{make} turns")), "submit 4, turned 1");
    for at in 0..32 {
        let wanted = if at < 2 { 'a' } else { 'D' };
        assert_eq!(stage.on_device(FIRST + at * 4096), wanted, "block {at}");
    }
    assert_eq!((stage.on_device(0), stage.on_device(4096)), ('D', 'D'));
}

#[test]
fn s_362_a_pause_sends_requests_to_the_mount() {
    let Some(stage) = Stage::new() else { return };
    let script = "open 0 @ rw setup 8 wait make 0 0 r 0 4096 - submit 1 0 collect 1";
    let mut child = stage.command(script);
    let mut child = child
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while stage.daemon.clients.lock().unwrap().is_empty() {
        assert!(std::time::Instant::now() < deadline, "the program attaches");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    stage.daemon.clients.lock().unwrap()[0].pause();
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    let said = super::stage::lines(&output.stdout);
    assert_eq!(said, "waits, submit 1, 0: 4096 M");
    assert!(last_report(&stage).contains("revoked=1"), "{}", stage.report());
}
