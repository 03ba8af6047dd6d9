//! The promises of `BlockDevice` and `DeviceQueue`, put to any device of at least 4 MiB.

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, Completion, DeviceQueue, ErrorKind, QueueOptions, Request,
    RequestKind, Segment,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A clause's name and its proof.
type Clause = (&'static str, fn(&Arc<dyn BlockDevice>));

/// Puts every clause to a fresh device.
pub fn keeps_all_promises(make: &dyn Fn() -> Arc<dyn BlockDevice>) {
    let clauses: [Clause; 17] = [
        ("states a sane geometry", states_a_sane_geometry),
        ("reads back what was written and touches nothing else", reads_back_what_was_written),
        ("refuses what is unaligned", refuses_what_is_unaligned),
        ("refuses what passes the end and moves nothing", refuses_what_passes_the_end),
        ("zeroes and discards ranges", zeroes_and_discards),
        ("serves callers in parallel", serves_callers_in_parallel),
        ("counts", counts),
        ("a queue carries a full list", queue_carries_a_full_list),
        ("a queue scatters and gathers", queue_scatters_and_gathers),
        ("a queue takes more segments than its depth", queue_takes_many_segments),
        ("a queue flushes", queue_flushes),
        ("a queue hands a bad request back with its buffer", queue_hands_bad_requests_back),
        ("a queue owns registered buffers", queue_owns_buffers),
        ("a queue does not wait unless told to", queue_does_not_wait_unless_told),
        ("a queue tells a descriptor that it is done", queue_tells_a_descriptor_that_it_is_done),
        ("a queue moves between threads", queue_moves_between_threads),
        ("a dropped queue waits for what is in flight", dropped_queue_waits),
    ];
    for (name, clause) in clauses {
        let device = make();
        println!("{}: {name}", device.name());
        clause(&device);
    }
}

fn block(device: &Arc<dyn BlockDevice>) -> usize {
    device.geometry().logical_block_size as usize
}

/// Bytes that differ from place to place and from seed to seed.
fn pattern(len: usize, seed: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    for (at, word) in buf.chunks_mut(8).enumerate() {
        let value = (seed + 1)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(at as u64)
            .wrapping_mul(0xD134_2543_DE82_EF95);
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
    buf
}

fn read(device: &Arc<dyn BlockDevice>, offset: u64, len: usize) -> AlignedBuf {
    let mut buf = pattern(len, 0xBAD);
    device.read_at(&mut buf, offset).unwrap();
    buf
}

fn request(token: u64, kind: RequestKind, buf: AlignedBuf, offset: u64) -> Request {
    let first = Segment { offset, len: buf.len() as u32 };
    Request { token, kind, buf: Some(buf), first, rest: Vec::new() }
}

fn flush_request(token: u64) -> Request {
    Request {
        token,
        kind: RequestKind::Flush,
        buf: None,
        first: Segment { offset: 0, len: 0 },
        rest: Vec::new(),
    }
}

fn queue(device: &Arc<dyn BlockDevice>, depth_max: usize) -> Box<dyn DeviceQueue> {
    device.queue(&QueueOptions { depth_max, ..QueueOptions::default() }).unwrap()
}

/// Carries one request out.
fn run(queue: &mut dyn DeviceQueue, request: Request) -> Completion {
    let mut out = Vec::new();
    queue.push(request).unwrap();
    assert_eq!(queue.complete(1, &mut out).unwrap(), 1);
    out.pop().unwrap()
}

fn states_a_sane_geometry(device: &Arc<dyn BlockDevice>) {
    let geometry = device.geometry();
    assert!(geometry.logical_block_size.is_power_of_two() && geometry.logical_block_size >= 512);
    assert!(
        geometry.physical_block_size.is_power_of_two()
            && geometry.physical_block_size >= geometry.logical_block_size
    );
    assert!(
        geometry.buffer_align.is_power_of_two()
            && geometry.buffer_align as usize <= AlignedBuf::ALIGN
    );
    assert!(geometry.untorn_unit >= geometry.logical_block_size);
    assert!(
        device.size_bytes() >= 4 << 20
            && device.size_bytes().is_multiple_of(u64::from(geometry.logical_block_size))
    );
    assert_eq!(device.refresh_size().unwrap(), device.size_bytes());
    assert!(!device.name().is_empty() && !device.engine().name.is_empty());
}

fn reads_back_what_was_written(device: &Arc<dyn BlockDevice>) {
    let (block, size) = (block(device), device.size_bytes());
    device.write_at(&pattern(16 * block, 1), 0).unwrap();
    device.write_at(&pattern(3 * block, 2), 5 * block as u64).unwrap();
    let got = read(device, 0, 16 * block);
    assert!(got[..5 * block] == pattern(16 * block, 1)[..5 * block]);
    assert!(got[5 * block..8 * block] == pattern(3 * block, 2)[..]);
    assert!(got[8 * block..] == pattern(16 * block, 1)[8 * block..]);
    device.write_at(&pattern(1 << 20, 3), size - (1 << 20)).unwrap();
    assert!(read(device, size - (1 << 20), 1 << 20)[..] == pattern(1 << 20, 3)[..]);
    device.write_at(&pattern(block, 4), size - block as u64).unwrap();
    assert!(read(device, size - block as u64, block)[..] == pattern(block, 4)[..]);
    device.read_at(&mut [], size).unwrap();
    device.write_at(&[], 0).unwrap();
    device.flush().unwrap();
}

fn refuses_what_is_unaligned(device: &Arc<dyn BlockDevice>) {
    let (block, align) = (block(device), device.geometry().buffer_align as usize);
    let mut buf = pattern(4 * block, 1);
    device.write_at(&buf, 0).unwrap();
    let before = device.counters();
    assert_eq!(device.read_at(&mut buf[..block], 1).unwrap_err().kind, ErrorKind::Unaligned);
    assert_eq!(device.read_at(&mut buf[..block - 1], 0).unwrap_err().kind, ErrorKind::Unaligned);
    assert_eq!(
        device.write_at(&buf[..block], block as u64 / 2).unwrap_err().kind,
        ErrorKind::Unaligned
    );
    assert_eq!(device.write_at(&buf[..1], 0).unwrap_err().kind, ErrorKind::Unaligned);
    assert_eq!(device.write_zeroes(1, block as u64).unwrap_err().kind, ErrorKind::Unaligned);
    assert_eq!(device.discard(0, 1).unwrap_err().kind, ErrorKind::Unaligned);
    if align > 1 {
        assert_eq!(device.read_at(&mut buf[1..=block], 0).unwrap_err().kind, ErrorKind::Unaligned);
        assert_eq!(device.write_at(&buf[1..=block], 0).unwrap_err().kind, ErrorKind::Unaligned);
    }
    assert!(device.counters().errors >= before.errors + 5);
    assert_eq!((device.counters().reads, device.counters().writes), (before.reads, before.writes));
    assert!(read(device, 0, 4 * block)[..] == pattern(4 * block, 1)[..]);
}

fn refuses_what_passes_the_end(device: &Arc<dyn BlockDevice>) {
    let (block, size) = (block(device) as u64, device.size_bytes());
    device.write_at(&pattern(block as usize, 1), size - block).unwrap();
    let two = pattern(2 * block as usize, 2);
    for offset in
        [size - block, size, size + block, (i64::MAX as u64 + 1) - block, u64::MAX - block + 1]
    {
        let error = device.write_at(&two, offset).unwrap_err();
        assert_eq!(error.kind, ErrorKind::OutOfRange, "{error}");
        assert_eq!(
            device.read_at(&mut pattern(2 * block as usize, 0), offset).unwrap_err().kind,
            ErrorKind::OutOfRange
        );
        assert_eq!(device.write_zeroes(offset, 2 * block).unwrap_err().kind, ErrorKind::OutOfRange);
        assert_eq!(device.discard(offset, 2 * block).unwrap_err().kind, ErrorKind::OutOfRange);
    }
    assert!(read(device, size - block, block as usize)[..] == pattern(block as usize, 1)[..]);
}

fn zeroes_and_discards(device: &Arc<dyn BlockDevice>) {
    let block = device.geometry().physical_block_size as usize;
    let len = 64 * block;
    device.write_at(&pattern(len, 1), 0).unwrap();
    device.write_zeroes(block as u64, 40 * block as u64).unwrap();
    device.write_zeroes(0, 0).unwrap();
    let got = read(device, 0, len);
    assert!(got[..block] == pattern(len, 1)[..block]);
    assert!(got[block..41 * block].iter().all(|byte| *byte == 0));
    assert!(got[41 * block..] == pattern(len, 1)[41 * block..]);
    // What a discarded range reads as is unspecified; its neighbours are not.
    device.discard(42 * block as u64, 8 * block as u64).unwrap();
    let got = read(device, 0, len);
    assert!(got[41 * block..42 * block] == pattern(len, 1)[41 * block..42 * block]);
    assert!(got[50 * block..] == pattern(len, 1)[50 * block..]);
    device.write_at(&pattern(8 * block, 2), 42 * block as u64).unwrap();
    assert!(read(device, 42 * block as u64, 8 * block)[..] == pattern(8 * block, 2)[..]);
}

fn serves_callers_in_parallel(device: &Arc<dyn BlockDevice>) {
    let block = block(device);
    let rounds = |caller: u64| {
        for round in 0..40 {
            // Neighbours interleave, so that callers share pages and chunks.
            let offset = ((round * 4 + caller) * block as u64) % (2 << 20);
            device.write_at(&pattern(block, caller * 1000 + round), offset).unwrap();
            assert!(read(device, offset, block)[..] == pattern(block, caller * 1000 + round)[..]);
        }
        device.flush().unwrap();
    };
    std::thread::scope(|scope| (0..4).for_each(|caller| drop(scope.spawn(move || rounds(caller)))));
}

fn counts(device: &Arc<dyn BlockDevice>) {
    let block = block(device);
    let before = device.counters();
    device.write_at(&pattern(2 * block, 1), 0).unwrap();
    read(device, 0, block);
    let mut queue = queue(device, 4);
    run(&mut *queue, request(1, RequestKind::Write, pattern(block, 2), 0)).result.unwrap();
    run(&mut *queue, request(2, RequestKind::Read, pattern(3 * block, 2), 0)).result.unwrap();
    run(&mut *queue, flush_request(3)).result.unwrap();
    device.flush().unwrap();
    let after = device.counters();
    assert_eq!(
        (after.reads - before.reads, after.read_bytes - before.read_bytes),
        (2, 4 * block as u64)
    );
    assert_eq!(
        (after.writes - before.writes, after.written_bytes - before.written_bytes),
        (2, 3 * block as u64)
    );
    assert_eq!((after.flushes - before.flushes, after.errors - before.errors), (2, 0));
}

fn queue_carries_a_full_list(device: &Arc<dyn BlockDevice>) {
    let block = block(device);
    let mut queue = queue(device, 7);
    assert_eq!((queue.depth_max(), queue.in_flight()), (7, 0));
    for round in 0..5 {
        for token in 0..7 {
            queue
                .push(request(
                    token,
                    RequestKind::Write,
                    pattern(block, round * 10 + token),
                    token * block as u64,
                ))
                .unwrap();
        }
        let refused =
            queue.push(request(99, RequestKind::Write, pattern(block, 99), 0)).unwrap_err();
        assert!(refused.token == 99 && refused.buf.unwrap()[..] == pattern(block, 99)[..]);
        assert_eq!(queue.in_flight(), 7);
        queue.submit().unwrap();
        assert_eq!(queue.in_flight(), 7);
        let mut out = Vec::new();
        // More than there is asks for all there is.
        let mut count = queue.complete(2, &mut out).unwrap();
        assert!(count >= 2 && count == out.len());
        count += queue.complete(100, &mut out).unwrap();
        assert_eq!((count, queue.in_flight()), (7, 0));
        let mut tokens: Vec<u64> = out.iter().map(|done| done.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..7).collect::<Vec<_>>());
        assert!(out.iter().all(|done| done.result.is_ok()
            && done.buf.as_ref().unwrap()[..] == pattern(block, round * 10 + done.token)[..]));
        (0..7).for_each(|at| {
            assert!(
                read(device, at * block as u64, block)[..] == pattern(block, round * 10 + at)[..]
            );
        });
    }
    assert_eq!(queue.complete(1, &mut Vec::new()).unwrap(), 0);
}

fn queue_scatters_and_gathers(device: &Arc<dyn BlockDevice>) {
    let block = block(device);
    let at = |block_no: u64, blocks: u32| Segment {
        offset: block_no * block as u64,
        len: blocks * block as u32,
    };
    let rest = vec![at(2, 1), at(30, 3)];
    let mut queue = queue(device, 4);
    let write = Request {
        token: 5,
        kind: RequestKind::Write,
        buf: Some(pattern(6 * block, 1)),
        first: at(10, 2),
        rest: rest.clone(),
    };
    run(&mut *queue, write).result.unwrap();
    let bytes = pattern(6 * block, 1);
    assert!(read(device, at(10, 2).offset, 2 * block)[..] == bytes[..2 * block]);
    assert!(read(device, at(2, 1).offset, block)[..] == bytes[2 * block..3 * block]);
    assert!(read(device, at(30, 3).offset, 3 * block)[..] == bytes[3 * block..]);
    // A buffer may be longer than the segments; what they leave over is untouched.
    let read = Request {
        token: 6,
        kind: RequestKind::Read,
        buf: Some(pattern(8 * block, 2)),
        first: at(10, 2),
        rest,
    };
    let done = run(&mut *queue, read);
    assert!(done.result.is_ok() && done.token == 6);
    let got = done.buf.unwrap();
    assert!(
        got[..6 * block] == bytes[..] && got[6 * block..] == pattern(8 * block, 2)[6 * block..]
    );
}

/// More operations than any completion ring holds (I-URING-2).
fn queue_takes_many_segments(device: &Arc<dyn BlockDevice>) {
    let block = block(device);
    let count = 900;
    // Backwards, every other block.
    let mut segments =
        (0..count).rev().map(|at| Segment { offset: at * 2 * block as u64, len: block as u32 });
    let first = segments.next().unwrap();
    let rest: Vec<Segment> = segments.collect();
    let mut queue = queue(device, 2);
    let bytes = pattern(count as usize * block, 7);
    let write = Request {
        token: 1,
        kind: RequestKind::Write,
        buf: Some(pattern(bytes.len(), 7)),
        first,
        rest: rest.clone(),
    };
    run(&mut *queue, write).result.unwrap();
    let done = run(
        &mut *queue,
        Request {
            token: 2,
            kind: RequestKind::Read,
            buf: Some(AlignedBuf::zeroed(bytes.len())),
            first,
            rest,
        },
    );
    done.result.unwrap();
    assert!(done.buf.unwrap()[..] == bytes[..]);
    assert!(read(device, 0, block)[..] == bytes[bytes.len() - block..]);
}

fn queue_flushes(device: &Arc<dyn BlockDevice>) {
    let mut queue = queue(device, 8);
    (0..4).for_each(|token| {
        queue.push(request(token, RequestKind::Write, pattern(4096, token), token * 4096)).unwrap();
    });
    queue.push(flush_request(9)).unwrap();
    let mut out = Vec::new();
    assert_eq!(queue.complete(5, &mut out).unwrap(), 5);
    let flushed = out.iter().find(|done| done.token == 9).unwrap();
    assert!(flushed.result.is_ok() && flushed.buf.is_none());
    (0..4).for_each(|token| {
        assert!(read(device, token * 4096, 4096)[..] == pattern(4096, token)[..]);
    });
}

fn queue_hands_bad_requests_back(device: &Arc<dyn BlockDevice>) {
    let (block, size) = (block(device), device.size_bytes());
    let mut queue = queue(device, 8);
    let mut refused = |request: Request, kind: ErrorKind| {
        let (token, had_buf) = (request.token, request.buf.is_some());
        let done = run(&mut *queue, request);
        let error = done.result.unwrap_err();
        assert_eq!((error.kind, done.token, done.buf.is_some()), (kind, token, had_buf), "{error}");
    };
    refused(request(1, RequestKind::Read, pattern(block, 1), size), ErrorKind::OutOfRange);
    refused(request(2, RequestKind::Write, pattern(block, 1), 1), ErrorKind::Unaligned);
    refused(
        Request { buf: None, ..request(3, RequestKind::Read, pattern(block, 1), 0) },
        ErrorKind::Unsupported,
    );
    refused(
        Request { kind: RequestKind::Flush, ..request(4, RequestKind::Read, pattern(block, 1), 0) },
        ErrorKind::Unsupported,
    );
    let beyond_buffer = vec![Segment { offset: 0, len: block as u32 }];
    refused(
        Request { rest: beyond_buffer, ..request(5, RequestKind::Write, pattern(block, 1), 0) },
        ErrorKind::OutOfRange,
    );
    let beyond_device = vec![Segment { offset: size, len: block as u32 }];
    let half = Segment { offset: 0, len: block as u32 };
    refused(
        Request {
            first: half,
            rest: beyond_device,
            ..request(6, RequestKind::Write, pattern(2 * block, 1), 0)
        },
        ErrorKind::OutOfRange,
    );
    run(&mut *queue, request(7, RequestKind::Read, pattern(block, 1), 0)).result.unwrap();
}

fn queue_owns_buffers(device: &Arc<dyn BlockDevice>) {
    let options = QueueOptions { depth_max: 8, buffers: 3, buffer_bytes: 8192 };
    let (mut one, mut other) = (device.queue(&options).unwrap(), device.queue(&options).unwrap());
    let mut taken: Vec<AlignedBuf> = std::iter::from_fn(|| one.take_buffer()).collect();
    assert!(taken.len() == 3 && taken.iter().all(|buf| buf.len() == 8192));
    for (seed, mut buf) in taken.drain(..).enumerate() {
        buf.copy_from_slice(&pattern(8192, seed as u64));
        let done = run(&mut *one, request(1, RequestKind::Write, buf, 0));
        done.result.unwrap();
        assert!(read(device, 0, 8192)[..] == pattern(8192, seed as u64)[..]);
        let mut buf = done.buf.unwrap();
        buf.fill(0);
        // Part of a registered buffer, and through a queue it does not belong to.
        let queue = if seed == 2 { &mut other } else { &mut one };
        let first = Segment { offset: 4096, len: 4096 };
        let done = run(
            &mut **queue,
            Request { token: 2, kind: RequestKind::Read, buf: Some(buf), first, rest: Vec::new() },
        );
        done.result.unwrap();
        let buf = done.buf.unwrap();
        assert!(
            buf[..4096] == pattern(8192, seed as u64)[4096..]
                && buf[4096..].iter().all(|byte| *byte == 0)
        );
        one.give_buffer(buf);
    }
    assert_eq!(std::iter::from_fn(|| one.take_buffer()).count(), 3);
    one.give_buffer(other.take_buffer().unwrap());
    assert!(one.take_buffer().is_none(), "a buffer of another queue came in");
}

fn queue_does_not_wait_unless_told(device: &Arc<dyn BlockDevice>) {
    let mut queue = queue(device, 8);
    let mut out = Vec::new();
    assert_eq!(queue.complete(0, &mut out).unwrap(), 0);
    (0..8).for_each(|token| {
        queue.push(request(token, RequestKind::Write, pattern(4096, token), token * 4096)).unwrap();
    });
    while out.len() < 8 {
        queue.complete(0, &mut out).unwrap();
        std::thread::yield_now();
    }
    assert_eq!(queue.in_flight(), 0);
}

/// A thread that waits for other things too waits for a queue's descriptor, where it has one.
fn queue_tells_a_descriptor_that_it_is_done(device: &Arc<dyn BlockDevice>) {
    let mut queue = queue(device, 4);
    for round in 0..20 {
        queue.push(request(round, RequestKind::Read, AlignedBuf::zeroed(8192), 0)).unwrap();
        queue.submit().unwrap();
        let mut out = Vec::new();
        if let Some(ready) = queue.readiness() {
            let mut events = [PollFd::new(&ready, PollFlags::IN)];
            let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
            assert_eq!(poll(&mut events, Some(&timeout)).unwrap(), 1, "the end of a read shows");
            assert_eq!(queue.complete(0, &mut out).unwrap(), 1, "and can be taken then");
        } else {
            queue.complete(1, &mut out).unwrap();
        }
        assert_eq!(out[0].token, round);
    }
}

fn queue_moves_between_threads(device: &Arc<dyn BlockDevice>) {
    let mut queue = queue(device, 8);
    for round in 0..3 {
        let submitter = std::thread::spawn(move || {
            (0..8).for_each(|token| {
                queue
                    .push(request(
                        token,
                        RequestKind::Write,
                        pattern(4096, round + token),
                        token * 4096,
                    ))
                    .unwrap();
            });
            queue.submit().unwrap();
            queue
        });
        queue = submitter.join().unwrap();
        let mut out = Vec::new();
        assert_eq!(queue.complete(8, &mut out).unwrap(), 8);
        out.iter().for_each(|done| assert!(done.result.is_ok(), "{:?}", done.result));
        (0..8).for_each(|token| {
            assert!(read(device, token * 4096, 4096)[..] == pattern(4096, round + token)[..]);
        });
    }
}

/// The buffers are freed with the queue, so nothing may use them any more (I-URING-1).
fn dropped_queue_waits(device: &Arc<dyn BlockDevice>) {
    for round in 0..4 {
        let mut queue = queue(device, 16);
        (0..16).for_each(|token| {
            queue
                .push(request(
                    token,
                    RequestKind::Write,
                    pattern(65536, round + token),
                    token * 65536,
                ))
                .unwrap();
        });
        queue.submit().unwrap();
        drop(queue);
        (0..16).for_each(|token| {
            assert!(read(device, token * 65536, 65536)[..] == pattern(65536, round + token)[..]);
        });
    }
    // Pushed and never submitted: the buffers are freed, nothing else happens.
    let mut queue = queue(device, 4);
    queue.push(request(1, RequestKind::Write, pattern(4096, 0xFEED), 0)).unwrap();
    drop(queue);
    assert!(read(device, 0, 65536)[..] == pattern(65536, 3)[..]);
}
