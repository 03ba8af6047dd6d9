//! Asynchronous requests beside changes of the map: a kernel that makes them while their client is
//! elsewhere, and counts their ends.

use super::*;

/// The kernel's count of requests that ended.
type Ended = Arc<Mutex<u64>>;

/// One request, under way in the kernel.
fn request(stage: &Stage, inode: u64, block: usize, ended: &Ended) -> JoinHandle<()> {
    let (stage, ended) = (stage.clone(), Arc::clone(ended));
    thread::spawn(move || {
        // Those on the file that changes take long, the others not.
        let steps = if inode == 5 { 120 } else { 4 };
        for _ in 0..thread_rng().gen_range(1..steps) {
            let now = stage.device.lock().unwrap()[block];
            assert!(now == Use::File(inode), "I-LSE-1: a request of {inode} at {block}: {now:?}");
            thread::yield_now();
        }
        *ended.lock().unwrap() += 1;
    })
}

/// A client that begins requests on two files, and collects the ends of some of them.
fn client(stage: &Stage, files: [(u64, Lease); 2], ended: &Ended) -> JoinHandle<()> {
    let (stage, ended) = (stage.clone(), Arc::clone(ended));
    thread::spawn(move || {
        let slots = &stage.clients[0].1;
        let slot = slots.claim(1, |_| false).expect("one thread, one slot");
        let mut under_way = Vec::new();
        for round in 0..6 {
            let (inode, lease) = files[round % 2];
            let io = Io { direction: Direction::Write, offset: 0, len: SECTOR };
            let Ok(permit) = stage.reader.begin_io(slots, slot, lease, io) else { continue };
            if !slots.is_paused() {
                slots.begin_requests(lease.entry, 2);
                let block = (permit.device_offset / SECTOR) as usize;
                under_way.push((lease.entry, request(&stage, inode, block, &ended)));
                // The kernel took one of the two.
                slots.unbegin_requests(lease.entry, 1);
            }
            slots.leave(slot);
            if under_way.len() > 1 && thread_rng().gen_range(0..2) == 0 {
                let (entry, request) = under_way.remove(0);
                request.join().unwrap();
                slots.collect_request(entry, 1);
            }
        }
        under_way.into_iter().for_each(|(_, request)| request.join().unwrap());
    })
}

/// As the daemon waits for requests, with and without a pause of them.
fn drain_requests(stage: &Stage, of: EntryRef, ended: &Ended) {
    let client = &stage.clients[0].0;
    let pauses = thread_rng().gen_range(0..2) == 0;
    if pauses {
        client.pause();
    }
    let ended = || {
        (0..thread_rng().gen_range(0..40)).for_each(|_| thread::yield_now());
        *ended.lock().unwrap()
    };
    while client.may_have_requests(of.index) && client.has_requests(ended) {
        thread::yield_now();
    }
    if pauses {
        client.resume();
    }
}

fn requests_against_revoke() {
    let (mut publisher, stage) = stage(1);
    let first = stage.publish(&mut publisher, 5, 0);
    let other = stage.publish(&mut publisher, 6, 7);
    let ended = Ended::default();
    let files = [(5, lease(first)), (6, lease(other))];
    let threads = vec![client(&stage, files, &ended)];
    linger();
    for step in 0..2 {
        stage.control.revoke(first);
        stage.drain(first);
        drain_requests(&stage, first, &ended);
        stage.set(step, Use::Free);
        stage.set(step + 1, Use::File(5));
        publisher.rewrite(first, &file(&[extent(0, step + 1)]));
        stage.control.restore(first);
    }
    join(threads);
}

#[test]
fn i_lse_8_requests_end_before_their_blocks_are_freed() {
    check(requests_against_revoke);
    finds(Mistake::RequestsNotAwaited, requests_against_revoke);
    finds(Mistake::EndedReadLast, requests_against_revoke);
    finds(Mistake::NotDrained, requests_against_revoke);
}
