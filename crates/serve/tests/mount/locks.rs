//! Locks are the kernel's own.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::Errno;

use crate::harness::{Mounted, has_program};

#[test]
fn s_42_flock_excludes_other_opens_and_other_processes() {
    let Some(m) = Mounted::new("") else { return };
    let (first, second) = (File::create(m.path("f")).unwrap(), File::open(m.path("f")).unwrap());
    flock(&first, FlockOperation::LockExclusive).unwrap();
    assert_eq!(flock(&second, FlockOperation::NonBlockingLockShared), Err(Errno::AGAIN));
    let other =
        |path| Command::new("flock").arg("-n").arg(path).arg("true").status().unwrap().success();
    assert!(!other(m.path("f")));
    // The same inode by another of its names: one file, one set of locks.
    assert!(!other(m.path("f::concurrent")));
    drop(first);
    flock(&second, FlockOperation::NonBlockingLockShared).unwrap();
    drop(second);
    assert!(other(m.path("f")));
    m.finish();
}

#[test]
fn s_46_a_file_is_one_by_whatever_name_it_is_opened() {
    let Some(m) = Mounted::new("") else { return };
    let opens: Vec<File> = ["f", "f::concurrent", "f::direct"]
        .map(|name| {
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(m.path(name))
                .unwrap()
        })
        .into();
    let ino = m.path("f").metadata().unwrap().ino();
    for (i, open) in opens.iter().enumerate() {
        open.set_len(1000 * i as u64).unwrap();
        for other in &opens {
            assert_eq!(
                (other.metadata().unwrap().ino(), other.metadata().unwrap().len()),
                (ino, 1000 * i as u64)
            );
        }
    }
    flock(&opens[1], FlockOperation::LockExclusive).unwrap();
    assert_eq!(flock(&opens[0], FlockOperation::NonBlockingLockExclusive), Err(Errno::AGAIN));
    assert_eq!(flock(&opens[2], FlockOperation::NonBlockingLockExclusive), Err(Errno::AGAIN));
    drop(opens);
    m.finish();
}

#[test]
fn s_42_record_locks_exclude_other_processes() {
    if !has_program("python3") {
        return;
    }
    let Some(m) = Mounted::new("mode=concurrent") else { return };
    let file = File::create(m.path("f")).unwrap();
    fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
    let script = "import \
                  fcntl,sys\nf=open(sys.argv[1],'r+')\nfcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB,10,100)";
    let other = |name: &str| {
        Command::new("python3")
            .args(["-c", script])
            .arg(m.path(name))
            .output()
            .unwrap()
            .status
            .success()
    };
    assert!(!other("f"));
    assert!(!other("f::cached"));
    fcntl_lock(&file, FlockOperation::Unlock).unwrap();
    assert!(other("f"));
    drop(file);
    m.finish();
}
