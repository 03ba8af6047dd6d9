//! What is reachable: the member operations that a layout asks for, issued by a plain loop over the
//! members' own queues, without a volume in between, without labels, a log or statistics.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate::{
    AlignedBuf, BlockDevice, Completion, DeviceQueue, QueueOptions, Request, RequestKind, Segment,
};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::DATA_START;
use super::load::Load;
use crate::Result;
use crate::target::fill_pattern;

/// The queues of one thread, one for each member.
struct Loop {
    queues: Vec<Box<dyn DeviceQueue>>,
    /// Requests of this size fit a member's data.
    slots: u64,
    request_bytes: u64,
    done: Vec<Completion>,
}

impl Loop {
    fn new(members: &[Arc<dyn BlockDevice>], request_bytes: u64, depth: usize) -> Result<Self> {
        let options = QueueOptions { depth_max: depth, ..QueueOptions::default() };
        let queues =
            members.iter().map(|member| Ok(member.queue(&options)?)).collect::<Result<_>>()?;
        let size_bytes = members.iter().map(|member| member.size_bytes()).min().unwrap_or(0);
        Ok(Self {
            queues,
            slots: (size_bytes - DATA_START) / request_bytes,
            request_bytes,
            done: Vec::new(),
        })
    }

    fn push(&mut self, member: usize, token: u64, kind: RequestKind, slot: u64, buf: AlignedBuf) {
        let first =
            Segment { offset: DATA_START + slot * self.request_bytes, len: buf.len() as u32 };
        let pushed = self.queues[member].push(Request {
            token,
            kind,
            buf: Some(buf),
            first,
            rest: Vec::new(),
        });
        assert!(pushed.is_ok(), "no more is pushed than the queue holds");
    }

    /// Submits everything, and takes what has ended: something in any case.
    fn turn(&mut self) -> Result<()> {
        self.queues.iter_mut().try_for_each(|queue| queue.submit())?;
        for queue in self.queues.iter_mut().filter(|queue| queue.in_flight() > 0) {
            queue.complete(0, &mut self.done)?;
        }
        if self.done.is_empty()
            && let Some(queue) = self
                .queues
                .iter_mut()
                .max_by_key(|queue| queue.in_flight())
                .filter(|queue| queue.in_flight() > 0)
        {
            queue.complete(1, &mut self.done)?;
        }
        Ok(())
    }

    /// Says whether every member takes one more: one may be slower than the others.
    fn has_room(&self) -> bool {
        self.queues.iter().all(|queue| queue.in_flight() < queue.depth_max())
    }

    fn in_flight(&self) -> usize {
        self.queues.iter().map(|queue| queue.in_flight()).sum()
    }
}

fn per_second(count: u64, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}

/// Deals requests out to the members in turn, from as many threads, and returns how many there were
/// in a second.
pub(super) fn dealt(
    members: &[Arc<dyn BlockDevice>],
    threads: usize,
    load: Load,
    time: Duration,
) -> Result<f64> {
    let start = Instant::now();
    let count = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|at| scope.spawn(move || deal(members, at as u64, load, time)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread of load does not panic"))
            .sum::<Result<u64>>()
    })?;
    Ok(per_second(count, start))
}

fn deal(members: &[Arc<dyn BlockDevice>], seed: u64, load: Load, time: Duration) -> Result<u64> {
    let mut all = Loop::new(members, load.request_bytes, load.depth)?;
    let mut idle = buffers(load.depth, load.request_bytes);
    let (mut rng, start, mut count) = (Xoshiro256PlusPlus::seed_from_u64(seed), Instant::now(), 0);
    let mut next = seed * all.slots / 4 * members.len() as u64;
    while start.elapsed() < time || all.in_flight() > 0 {
        while start.elapsed() < time
            && let Some(buf) = idle.pop()
        {
            let (member, unit) =
                ((next % members.len() as u64) as usize, next / members.len() as u64);
            let slot = if load.random { rng.random_range(0..all.slots) } else { unit % all.slots };
            next += 1;
            all.push(member, 0, load.kind, slot, buf);
        }
        all.turn()?;
        for completion in all.done.drain(..) {
            completion.result?;
            idle.extend(completion.buf);
            count += 1;
        }
    }
    Ok(count)
}

fn buffers(count: usize, bytes: u64) -> Vec<AlignedBuf> {
    let mut buf = AlignedBuf::zeroed(bytes as usize);
    fill_pattern(&mut buf, 5);
    (0..count).map(|_| AlignedBuf::from_slice(&buf)).collect()
}

/// Writes whole rows: sums the data of each up and writes all units. Returns rows in a second.
pub(super) fn rows(
    members: &[Arc<dyn BlockDevice>],
    unit_bytes: u64,
    depth: usize,
    time: Duration,
) -> Result<f64> {
    let mut all = Loop::new(members, unit_bytes, depth)?;
    let (width, start) = (members.len(), Instant::now());
    let mut idle = buffers(depth * width, unit_bytes);
    let (mut next, mut ended) = (0, 0);
    while start.elapsed() < time || all.in_flight() > 0 {
        while start.elapsed() < time && idle.len() >= width && all.has_room() {
            let mut row = idle.split_off(idle.len() - width);
            let (parity, data) = row.split_at_mut(1);
            parity[0].copy_from_slice(&data[0]);
            data[1..].iter().for_each(|unit| xor(&mut parity[0], unit));
            for (column, buf) in row.into_iter().enumerate() {
                all.push(
                    (column + next as usize) % width,
                    0,
                    RequestKind::Write,
                    next % all.slots,
                    buf,
                );
            }
            next += 1;
        }
        all.turn()?;
        for completion in all.done.drain(..) {
            completion.result?;
            idle.extend(completion.buf);
            ended += 1;
        }
    }
    Ok(per_second(ended / width as u64, start))
}

/// A small write under way: what it read, and how many operations have not ended.
struct Small {
    slot: u64,
    column: usize,
    read: Vec<AlignedBuf>,
    open: usize,
    writes: bool,
}

/// Reads old data and old parity, sums up, writes both: two reads and two writes, and nothing that
/// closes the write hole. Returns writes in a second.
pub(super) fn small_writes(
    members: &[Arc<dyn BlockDevice>],
    request_bytes: u64,
    depth: usize,
    time: Duration,
) -> Result<f64> {
    let mut all = Loop::new(members, request_bytes, depth)?;
    let (width, start, new) = (members.len(), Instant::now(), buffers(1, request_bytes).remove(0));
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
    let mut under_way: Vec<Option<Small>> = (0..depth).map(|_| None).collect();
    let mut idle = buffers(2 * depth, request_bytes);
    let (mut free, mut ended) = ((0..depth).collect::<Vec<_>>(), 0);
    while start.elapsed() < time || all.in_flight() > 0 {
        while start.elapsed() < time
            && let Some(at) = free.pop()
        {
            let (slot, column) = (rng.random_range(0..all.slots), rng.random_range(0..width));
            for member in [column, (column + 1) % width] {
                let buf = idle.pop().expect("there are two buffers for each write");
                all.push(member, at as u64, RequestKind::Read, slot, buf);
            }
            under_way[at] =
                Some(Small { slot, column, read: Vec::with_capacity(2), open: 2, writes: false });
        }
        all.turn()?;
        let mut done = std::mem::take(&mut all.done);
        for completion in done.drain(..) {
            completion.result?;
            let at = completion.token as usize;
            let small = under_way[at].as_mut().expect("what ends was begun");
            small.read.extend(completion.buf);
            small.open -= 1;
            if small.open > 0 {
                continue;
            }
            if small.writes {
                idle.append(&mut small.read);
                (under_way[at], ended) = (None, ended + 1);
                free.push(at);
                continue;
            }
            let (mut parity, mut data) = (small.read.remove(1), small.read.remove(0));
            xor(&mut parity, &data);
            data.copy_from_slice(&new);
            xor(&mut parity, &data);
            (small.open, small.writes) = (2, true);
            let (slot, column) = (small.slot, small.column);
            all.push(column, at as u64, RequestKind::Write, slot, data);
            all.push((column + 1) % width, at as u64, RequestKind::Write, slot, parity);
        }
        all.done = done;
    }
    Ok(per_second(ended, start))
}

fn xor(sum: &mut [u8], bytes: &[u8]) {
    let (words, others) = (sum.as_chunks_mut::<8>().0, bytes.as_chunks::<8>().0);
    words.iter_mut().zip(others).for_each(|(word, other)| {
        *word = (u64::from_ne_bytes(*word) ^ u64::from_ne_bytes(*other)).to_ne_bytes();
    });
}

#[cfg(test)]
mod tests {
    use bedplate::MemoryDevice;

    use super::*;

    #[test]
    fn a_plain_loop_issues_the_operations_of_the_layout_and_no_others() {
        let memory: Vec<_> = (0..4).map(|_| MemoryDevice::new(48 << 20)).collect();
        let members: Vec<Arc<dyn BlockDevice>> =
            memory.iter().map(|member| Arc::clone(member) as _).collect();
        let sum = || {
            memory
                .iter()
                .map(|member| member.counters())
                .fold((0, 0), |sum, one| (sum.0 + one.reads, sum.1 + one.writes))
        };
        let time = Duration::from_millis(30);
        assert!(rows(&members, 16 << 10, 4, time).unwrap() > 0.0);
        let (reads, writes) = sum();
        assert!(reads == 0 && writes > 0 && writes % 4 == 0, "{reads} {writes}");
        assert!(small_writes(&members, 4096, 4, time).unwrap() > 0.0);
        let small = sum();
        assert!(small.0 > 0 && small.0 == small.1 - writes && small.0 % 2 == 0, "{small:?}");
        let load = Load { kind: RequestKind::Read, request_bytes: 8192, depth: 4, random: true };
        assert!(dealt(&members, 2, load, time).unwrap() > 0.0);
        assert_eq!(sum().1, small.1);
    }
}
