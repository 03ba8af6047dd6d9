//! A cap that changes: what stays, what is written first, what a failure leaves.

use super::*;

fn read(t: &Setup, page: u64) -> bool {
    let mut buf = vec![0; 4096];
    let (n, hit) = t.file.read_at(&mut buf, page * 4096).expect("sound");
    let expected = |at: usize| (at / 4096 * 31 + at % 251) as u8;
    let first = page as usize * 4096;
    assert!(
        n == 4096 && buf.iter().enumerate().all(|(i, byte)| *byte == expected(first + i)),
        "page {page} holds what the file holds"
    );
    hit
}

fn look(t: &Setup, page: u64) {
    read(t, page);
}

fn of_pages(cap_pages: u64) -> CacheOptions {
    CacheOptions { read_ahead_bytes_max: 0, ..options(cap_pages) }
}

fn resident(t: &Setup) -> u64 {
    t.cache.counters().resident_bytes / 4096
}

#[test]
fn i_cache_6_a_smaller_cap_keeps_the_hot_pages_and_gives_the_memory_back() {
    let t = setup(&of_pages(500), &pattern(8 << 20));
    let hot = || (0..60).map(|page| page * 20 + 3);
    (0..4).for_each(|_| hot().for_each(|page| look(&t, page)));
    (1300..2000).for_each(|page| look(&t, page));
    assert_eq!(resident(&t), 500);
    t.cache.retune(&of_pages(500), &of_pages(100)).expect("nothing is dirty");
    assert_eq!((resident(&t), t.cache.cap_bytes()), (100, 100 * 4096));
    let hits = hot().filter(|&page| read(&t, page)).count();
    assert!(hits >= 55, "{hits} of 60 hot pages were kept");
    assert!(resident(&t) <= 100);
    (0..2048).for_each(|page| look(&t, page));
    assert_eq!(resident(&t), 100, "the cache is full and no larger");
}

#[test]
fn a_larger_cap_is_used() {
    let t = setup(&of_pages(16), &pattern(8 << 20));
    (0..16).for_each(|page| look(&t, page));
    t.cache.retune(&of_pages(16), &of_pages(300)).expect("nothing is written");
    assert!((0..16).all(|page| read(&t, page)), "growing evicts nothing");
    (0..300).for_each(|page| look(&t, page));
    assert_eq!(resident(&t), 300);
    assert!((0..300).all(|page| read(&t, page)));
}

#[test]
fn a_smaller_cap_writes_back_what_is_dirty() {
    let t = setup(&of_pages(200), &vec![0; 1 << 20]);
    let data = pattern(64 * 4096);
    t.file.write_at(&data, 0).expect("room");
    t.cache.retune(&of_pages(200), &of_pages(20)).expect("sound");
    assert!(resident(&t) <= 20 && t.cache.counters().dirty_bytes <= 20 * 4096);
    t.file.flush().expect("sound");
    assert!(t.backing.content()[..data.len()] == data);
}

#[test]
fn a_cap_that_cannot_shrink_stays_as_it_was_and_loses_nothing() {
    let t = setup(&of_pages(200), &vec![0; 1 << 20]);
    let data = pattern(80 * 4096);
    // Every other page, so that no run is complete and written behind.
    (0..40).map(|page| page * 2 * 4096).for_each(|at| {
        assert_eq!(t.file.write_at(&data[at..at + 4096], at as u64).expect("room"), 4096);
    });
    t.backing.writes_left.store(0, Ordering::SeqCst);
    let error = t.cache.retune(&of_pages(200), &of_pages(20)).expect_err("the device fails");
    assert!(error.message.contains("injected"), "{error}");
    assert_eq!(t.cache.cap_bytes(), 200 * 4096);
    t.file.flush().expect_err("told once");
    t.file.flush().expect("the pages are still here");
    let content = t.backing.content();
    assert!(
        (0..40).map(|page| page * 2 * 4096).all(|at| content[at..at + 4096] == data[at..at + 4096])
    );
    (0..200).for_each(|page| {
        assert_eq!(t.file.read_at(&mut [0; 4096], page * 4096).expect("sound").0, 4096);
    });
    assert_eq!(resident(&t), 200);
}

#[test]
fn limits_of_dirty_pages_follow_their_shares() {
    let t = setup(&of_pages(200), &vec![0; 1 << 20]);
    let strict = CacheOptions {
        write_behind_percent_start: 5,
        write_behind_percent_max: 10,
        ..of_pages(200)
    };
    let write = |pages: std::ops::Range<u64>| {
        pages.for_each(|page| {
            assert_eq!(t.file.write_at(&[7; 4096], page * 2 * 4096).expect("room"), 4096);
        });
    };
    write(0..40);
    assert_eq!(t.cache.counters().dirty_bytes, 40 * 4096, "less than a quarter");
    t.cache.retune(&of_pages(200), &strict).expect("nothing has to be written");
    write(40..100);
    assert!(
        t.cache.counters().dirty_bytes <= 10 * 4096,
        "the background, here the writer itself, begins at 5 %"
    );
}
