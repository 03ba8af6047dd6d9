//! Write-behind of one file: clusters that are complete, and pages that are written at random.

use super::*;

const PAGE: u64 = 4096;
const CLUSTER: u64 = crate::CLUSTER_BYTES;

/// S-521: so many clusters in a row, complete, are written behind, and nothing before.
#[test]
fn s_521_a_file_is_written_behind_once_its_clusters_are_complete() {
    for clusters in [1_u64, 3, 20] {
        let behind = CacheOptions { write_behind_clusters: clusters as u32, ..options(16 << 10) };
        let t = setup(&behind, &[]);
        let (whole, end) = (clusters * CLUSTER, 2 * clusters * CLUSTER + PAGE);
        for offset in (0..end).step_by(1024) {
            t.file.write_at(&[7; 1024], offset).expect("room");
            let expected = offset / whole * whole;
            assert_eq!(t.cache.counters().write_behind_bytes, expected, "{clusters}: {offset}");
        }
        assert_eq!(t.file.dirty_bytes(), PAGE, "{clusters}");
        t.file.flush().expect("sound");
        assert_eq!(t.backing.content(), vec![7; end as usize]);
    }
}

/// S-521: what is scattered completes no cluster, and what is complete is written by its file alone.
#[test]
fn s_521_scattered_pages_complete_no_cluster() {
    let t = setup(&CacheOptions { write_behind_clusters: 1, ..options(4096) }, &pattern(4 << 20));
    for page in (0..1024).step_by(2) {
        t.file.write_at(&[1; 4096], page * PAGE).expect("room");
    }
    assert_eq!(t.cache.counters().write_behind_bytes, 0);
    t.file.flush().expect("sound");
}

/// S-521: one more than may be dirty, and all that are at random are written, in file order; what
/// is written in order waits for its clusters.
#[test]
fn s_521_pages_written_at_random_are_bounded_and_sequential_ones_are_not() {
    let bounded = CacheOptions {
        write_behind_random: 8,
        write_behind_percent_start: 75,
        write_behind_percent_max: 75,
        ..options(4096)
    };
    let t = setup(&bounded, &pattern(16 << 20));
    for step in 0..100 {
        t.file.write_at(&[3; 4096], step * PAGE).expect("room");
    }
    assert_eq!(t.backing.calls(), [], "in order, and no request is complete");
    // Of two pages each, and both count.
    for place in [90_u64, 20, 60, 40] {
        t.file.write_at(&[1; 8192], place << 16).expect("room");
    }
    assert_eq!(t.backing.calls(), [], "as many as may be dirty");
    t.file.write_at(&[1; 4096], 50 << 16).expect("room");
    let write = |place: u64, len| Call::Write(place << 16, len);
    assert_eq!(
        t.backing.calls(),
        [write(20, 8192), write(40, 8192), write(50, 4096), write(60, 8192), write(90, 8192)]
    );
    assert_eq!(t.file.dirty_bytes(), 100 * PAGE, "what was written in order stays");
    // Counted anew, and not what a sync has written meanwhile.
    for place in 100..108_u64 {
        t.file.write_at(&[1; 4096], place << 16).expect("room");
    }
    t.file.flush().expect("sound");
    t.backing.calls();
    for place in 110..118_u64 {
        t.file.write_at(&[1; 4096], place << 16).expect("room");
    }
    assert_eq!(t.backing.calls(), []);
}

/// S-521: 0 is off, and both are set while I/O goes on.
#[test]
fn s_521_both_are_off_where_they_are_0_and_count_at_once() {
    let off = options(4096);
    let t = setup(&off, &pattern(16 << 20));
    for place in 1..100_u64 {
        t.file.write_at(&[1; 4096], place << 16).expect("room");
    }
    assert_eq!(t.backing.calls(), []);
    let on = CacheOptions { write_behind_random: 4, write_behind_clusters: 1, ..off.clone() };
    t.cache.retune(&off, &on).expect("nothing is written for it");
    for place in 100..105_u64 {
        t.file.write_at(&[1; 4096], place << 16).expect("room");
    }
    assert_eq!(t.backing.calls().len(), 5, "those that were written since");
    t.cache.retune(&on, &off).expect("nothing is written for it");
    for place in 120..130_u64 {
        t.file.write_at(&[1; 4096], place << 16).expect("room");
    }
    assert_eq!(t.backing.calls(), []);
}

/// S-521: what a truncation cuts off counts no more.
#[test]
fn s_521_pages_that_are_cut_off_count_no_more() {
    let t = setup(&CacheOptions { write_behind_random: 4, ..options(4096) }, &pattern(16 << 20));
    for place in 100..104_u64 {
        t.file.write_at(&[1; 4096], place << 16).expect("room");
    }
    drop(t.file.begin_truncate(1 << 20));
    t.backing.truncate(1 << 20);
    for place in 1..5_u64 {
        t.file.write_at(&[1; 4096], place << 16).expect("room");
    }
    assert_eq!(t.backing.calls(), []);
}
