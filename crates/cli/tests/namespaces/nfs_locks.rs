//! `bedplate run --nfs`: programs that agree with others by locks.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::harness::{Scratch, pattern, run, text};
use crate::nfs_run::{Background, Bed, number_in, until};

/// Returns how `flock -n` of a program on the server ends.
fn locks_here(path: &Path) -> bool {
    Command::new("flock").args(["-n", text(path), "true"]).status().unwrap().success()
}

/// Returns whether a program on the server gets a lock of a file's first bytes by `fcntl`.
fn locks_bytes_here(path: &Path) -> bool {
    let script =
        "import fcntl,sys;fcntl.lockf(open(sys.argv[1],'r+'),fcntl.LOCK_EX|fcntl.LOCK_NB,10)";
    let python = Command::new("python3").args(["-c", script, text(path)]).output().unwrap();
    python.status.success()
}

#[test]
fn s_615_two_programs_on_two_mounts_add_to_one_database() {
    if !has_program("sqlite3") {
        return;
    }
    for options in ["&locks=server", "&mode=cached&nconnect=2"] {
        let Some(mut bed) = Bed::new("a database on two mounts") else { return };
        let made = bed.served.join("db");
        let local = |sql: &str| {
            let shown = Command::new("sqlite3").arg(&made).arg(sql).output().unwrap();
            String::from_utf8(shown.stdout).unwrap()
        };
        local("create table t (who text, n integer)");
        let writer = |who: &str| {
            let script = format!(
                "(echo .timeout 120000; for i in $(seq 200); do \
                 echo \"insert into t values ('{who}', $i);\"; done) | sqlite3 -bail db"
            );
            Background::start(bed.script(options, &script))
        };
        let writers = [writer("a"), writer("b")];
        let count = || local("select count(*) from t").trim().parse().unwrap_or(0);
        until("rows", || count() >= 40);
        // What they hold when it is killed they take back.
        bed = bed.restart();
        for writer in writers {
            assert_eq!(writer.code(), Some(0), "{options}");
        }
        assert_eq!(local("select count(*), count(distinct who || n) from t"), "400|400\n");
        assert_eq!(local("pragma integrity_check"), "ok\n");
        drop(bed);
    }
}

#[test]
fn s_615_locks_of_programs_hold_on_the_server_and_end_with_them() {
    if !has_program("python3") || !has_program("flock") {
        return;
    }
    let Some(bed) = Bed::new("locks of programs") else { return };
    for name in ["whole", "bytes", "open"] {
        std::fs::write(bed.served.join(name), pattern(100)).unwrap();
    }
    let script = "import fcntl,os,signal,struct,sys,time\n\
         a,b,c=[open(n,'r+') for n in ('whole','bytes','open')]\n\
         fcntl.flock(a,fcntl.LOCK_EX); fcntl.lockf(b,fcntl.LOCK_EX,10)\n\
         fcntl.fcntl(c,37,struct.pack('hhqqi4x',fcntl.F_WRLCK,0,0,10,0))\n\
         open('ready','w').write('%d\\n'%os.getpid())\n\
         while not os.path.exists('second'): time.sleep(.02)\n\
         open('bytes').close(); c.close(); open('closed','w').close()\n\
         while True: time.sleep(1)\n";
    let program = bed.scratch.file("program.py", script.as_bytes());
    let running = Background::start(bed.script("", &format!("exec python3 {}", text(&program))));
    until("the program", || number_in(&bed.served.join("ready")).is_some());
    assert!(!locks_here(&bed.served.join("whole")) && locks_bytes_here(&bed.served.join("whole")));
    assert!(!locks_bytes_here(&bed.served.join("bytes")) && locks_here(&bed.served.join("bytes")));
    assert!(!locks_bytes_here(&bed.served.join("open")));
    // Another mount asks which process that is, and gives up to wait when a signal comes.
    let pid = number_in(&bed.served.join("ready")).unwrap();
    let asker = format!(
        "import fcntl,signal,struct\n\
         f=open('bytes','r+')\n\
         found=fcntl.fcntl(f,fcntl.F_GETLK,struct.pack('hhqqi4x',fcntl.F_WRLCK,0,5,0,0))\n\
         kind,_,start,count,pid=struct.unpack('hhqqi4x',found)\n\
         assert (kind,start,count,pid)==(fcntl.F_WRLCK,0,10,{pid}),(kind,start,count,pid)\n\
         def end(*_): raise KeyError\n\
         signal.signal(signal.SIGALRM,end); signal.setitimer(signal.ITIMER_REAL,.2)\n\
         try: fcntl.lockf(f,fcntl.LOCK_EX,10)\n\
         except KeyError: print('gave up')\n"
    );
    let asker = bed.scratch.file("asker.py", asker.as_bytes());
    run(bed.script("", &format!("python3 {}", text(&asker)))).succeeds().says("gave up");
    // Any close ends what `fcntl` locked; the last one of the open what belongs to it.
    std::fs::write(bed.served.join("second"), b"").unwrap();
    until("the closes", || bed.served.join("closed").exists());
    until("the end of the open's lock", || locks_bytes_here(&bed.served.join("open")));
    assert!(locks_bytes_here(&bed.served.join("bytes")) && !locks_here(&bed.served.join("whole")));
    running.send_to(pid, Signal::KILL);
    until("the end of a killed program's lock", || locks_here(&bed.served.join("whole")));
    assert_eq!(running.code(), Some(128 + 9));
}

fn has_program(name: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {name}")]).output().unwrap();
    if !found.status.success() {
        println!("skipped: there is no {name}");
    }
    found.status.success()
}

#[test]
fn s_614_locks_that_are_to_be_local_are_not_the_servers() {
    if !has_program("flock") {
        return;
    }
    let Some(bed) = Bed::new("local locks") else { return };
    let hold = "exec 5>f; flock -n 5; touch ready; while test ! -e go; do sleep 0.02; done";
    for (options, is_free) in [("&locks=local", true), ("&locks=server", false)] {
        let running = Background::start(bed.script(options, hold));
        until("the program", || bed.served.join("ready").exists());
        assert_eq!(locks_here(&bed.served.join("f")), is_free, "{options}");
        std::fs::write(bed.served.join("go"), b"").unwrap();
        assert_eq!(running.code(), Some(0));
        for name in ["go", "ready"] {
            std::fs::remove_file(bed.served.join(name)).unwrap();
        }
    }
}

#[test]
fn s_607_locks_on_a_mount_are_those_of_what_is_served_of_it() {
    if !has_program("python3") || !has_program("flock") {
        return;
    }
    let Some(bed) = Bed::on_volume("locks on a volume") else { return };
    let hold = "import fcntl,os,time\n\
         f=open('f','w+'); fcntl.lockf(f,fcntl.LOCK_EX,10,0); fcntl.flock(f,fcntl.LOCK_EX)\n\
         open('ready','w').close()\n\
         while not os.path.exists('go'): time.sleep(.02)\n";
    let program = bed.scratch.file("program.py", hold.as_bytes());
    let running = Background::start(bed.script("", &format!("python3 {}", text(&program))));
    until("the program", || bed.served.join("ready").exists());
    let file = bed.served.join("f");
    assert!(!locks_bytes_here(&file) && !locks_here(&file));
    std::fs::write(bed.served.join("go"), b"").unwrap();
    assert_eq!(running.code(), Some(0));
    assert!(locks_bytes_here(&file) && locks_here(&file));
    let scratch = Scratch::new();
    let begun = scratch.path("begun");
    let script = format!("exec 5<f; flock 5; touch {0}; sleep 100", text(&begun));
    let mut here = Command::new("sh");
    here.args(["-c", &script]).current_dir(&bed.served);
    let here = Background::start(here);
    until("a lock on the mount", || begun.exists());
    run(bed.script("", "flock -n f true")).ends(1);
    drop(here);
}
