//! Files that are taken back again and again.

use super::*;

/// Appends so many odd pieces; returns how many there were in all.
fn append(file: &File, count: usize) -> usize {
    for _ in 0..count {
        file.write_at(b"odd piece", file.size()).unwrap();
    }
    count
}

/// S-303: a log that grows in odd pieces is not handed out again for each of them, and comes back
/// once it is left alone.
#[test]
fn s_303_a_file_that_is_taken_back_all_the_time_rests_on_the_mount() {
    let volume = Volume::new();
    let file = volume.filled("log", 2);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    assert_eq!(client.read(lease, 1), Ok(2));
    let handed_out = || volume.fs.lease_report().unwrap().files[0].handed_out;
    let mut times = 0;
    for _ in 0..1000 {
        append(&file, 1);
        file.sync_data().unwrap();
        times += usize::from(handed_out());
    }
    assert!((10..100).contains(&times), "handed out {times} times");
    assert!(!handed_out());
    assert_eq!(client.read(lease, 1), Err(Fallback::Revoked));
    assert_eq!(read(&file, 1), 2, "the mount serves it");
    drop(file);
    volume.end();
}

/// S-303.
#[test]
fn s_303_a_file_that_rested_is_handed_out_again() {
    let volume = Volume::synced_every(Duration::from_millis(50));
    let file = volume.filled("log", 2);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    append(&file, 300);
    let deadline = Instant::now() + Duration::from_secs(20);
    while client.read(lease, 1) != Ok(2) {
        assert!(Instant::now() < deadline, "S-303: it comes back");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(file);
    volume.end();
}
