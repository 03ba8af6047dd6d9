//! Guests that put anything on their queues.

use vm_memory::{Bytes, GuestAddress};

use crate::bed::{Bed, pattern};
use crate::guest::{
    BASE, DISCARD, Guest, IN, INDIRECT, IOERR, MEMORY_BYTES, NEXT, OK, OUT, Queue, SIZE, UNSUPP,
    WRITE,
};
use crate::places::Place;

const END: u64 = BASE + MEMORY_BYTES;
const INDIRECTLY: u16 = 4;
const DISK_BYTES: u64 = 1 << 20;

/// Puts a chain of descriptors on the queue: address, length, flags, without the flag for the next.
fn offer(queue: &mut Queue, chain: &[(u64, u32, u16)]) {
    for (number, (address, len, flags)) in chain.iter().enumerate() {
        let is_last = number + 1 == chain.len();
        let flags = flags | if is_last { 0 } else { NEXT };
        queue.descriptor(number as u16, *address, *len, flags, number as u16 + 1);
    }
    queue.offer(0);
    queue.kick();
}

/// A request, and the status that it gets.
type Refused = (&'static str, u32, u64, fn(&Queue) -> Vec<(u64, u32, u16)>, u8);

/// What lies between header and status.
const REFUSED: [Refused; 15] = [
    ("nothing", IN, 0, |_| vec![], OK),
    ("no such kind", 99, 0, |_| vec![], UNSUPP),
    ("part of a sector", IN, 0, |q| vec![(q.data_at(0), 511, WRITE)], IOERR),
    ("beyond the end", IN, 2048, |q| vec![(q.data_at(0), 512, WRITE)], IOERR),
    ("over the end", OUT, 2047, |q| vec![(q.data_at(0), 1024, 0)], IOERR),
    ("sectors that overflow", OUT, u64::MAX, |q| vec![(q.data_at(0), 512, 0)], IOERR),
    ("bytes that overflow", IN, u64::MAX / 512, |q| vec![(q.data_at(0), 512, WRITE)], IOERR),
    ("outside of memory", IN, 0, |_| vec![(END, 512, WRITE)], IOERR),
    ("half of it outside", OUT, 0, |_| vec![(END - 256, 512, 0)], IOERR),
    ("addresses that overflow", OUT, 0, |_| vec![(u64::MAX - 100, 4096, 0)], IOERR),
    ("all that can be", IN, 0, |_| vec![(BASE, u32::MAX - 64, WRITE)], IOERR),
    ("a read into what is read-only", IN, 0, |q| vec![(q.data_at(0), 512, 0)], IOERR),
    ("a write out of what is written", OUT, 0, |q| vec![(q.data_at(0), 512, WRITE)], IOERR),
    (
        "a buffer to read after one to write",
        OUT,
        0,
        |q| vec![(q.data_at(0), 512, WRITE), (q.data_at(0), 512, 0)],
        IOERR,
    ),
    ("ranges that are none", DISCARD, 0, |_| vec![], IOERR),
];

/// A disk whose content is known.
fn bed() -> (Bed, Vec<u8>) {
    let bed = Bed::new(Place::Image, DISK_BYTES);
    let content = pattern(1, DISK_BYTES as usize);
    bed.disk.write_at(&content, 0).unwrap();
    (bed, content)
}

fn is_untouched(bed: &Bed, content: &[u8]) -> bool {
    let mut found = vec![0; content.len()];
    bed.disk.read_at(&mut found, 0).unwrap();
    found == content
}

/// I-VHO-1: what lies outside of disk or memory is not begun.
#[test]
fn s_558_requests_that_mean_nothing_are_answered_and_change_nothing() {
    let (bed, content) = bed();
    let mut guest = Guest::new(&bed.socket, 1);
    let queue = &mut guest.queues[0];
    for (what, kind, sector, data, status) in REFUSED {
        let mut chain = vec![(queue.header(0, kind, sector), 16, 0)];
        chain.extend(data(queue));
        chain.push((queue.status_at(0), 1, WRITE));
        offer(queue, &chain);
        assert_eq!(queue.wait().0, 0, "{what}");
        assert_eq!(queue.status(0), status, "{what}");
    }
    let header = queue.header(0, IN, 0);
    offer(queue, &[(header, 15, 0), (queue.status_at(0), 1, WRITE)]);
    assert_eq!((queue.wait().1, queue.status(0)), (1, IOERR), "half a header");
    let header = queue.header(0, IN, 0);
    offer(queue, &[(header, 16, WRITE), (queue.status_at(0), 1, WRITE)]);
    assert_eq!((queue.wait().0, queue.status(0)), (0, IOERR), "a header that is written to");
    for (count, len, what) in [(300, 512, "many buffers"), (140, 256 << 10, "33 MiB and more")] {
        let (header, data, status) = (queue.header(0, IN, 0), queue.data_at(0), queue.status_at(0));
        queue.descriptor_at(INDIRECT, 0, header, 16, NEXT, 1);
        for number in 1..=count {
            queue.descriptor_at(INDIRECT, number, data, len, NEXT | WRITE, number + 1);
        }
        queue.descriptor_at(INDIRECT, count + 1, status, 1, WRITE, 0);
        let table = (queue.base + INDIRECT, (u32::from(count) + 2) * 16, INDIRECTLY);
        offer(queue, &[table]);
        assert_eq!((queue.wait().1, queue.status(0)), (0, IOERR), "{what}");
    }
    assert!(queue.read(0, 65_536) == content[..65_536]);
    assert!(is_untouched(&bed, &content));
}

/// Something that leaves a queue without a meaning.
type Breaks = (&'static str, fn(&mut Queue));

const BREAKS: [Breaks; 13] = [
    ("no status", |q| offer(q, &[(q.header(0, OUT, 0), 16, 0), (q.data_at(0), 512, 0)])),
    ("nothing at all", |q| offer(q, &[(q.header(0, OUT, 0), 0, 0)])),
    ("a status outside of memory", |q| offer(q, &[(q.header(0, OUT, 0), 16, 0), (END, 1, WRITE)])),
    ("more bytes than a chain may have", |q| {
        let whole = (BASE, u32::MAX, WRITE);
        offer(q, &[(q.header(0, OUT, 0), 16, 0), whole, (q.status_at(0), 1, WRITE)]);
    }),
    ("a circle", |q| {
        let header = q.header(0, OUT, 0);
        q.descriptor(0, header, 16, NEXT, 1);
        q.descriptor(1, q.status_at(0), 1, NEXT | WRITE, 0);
        q.offer(0);
    }),
    ("a chain that leads out of the table", |q| {
        q.descriptor(0, q.header(0, OUT, 0), 16, NEXT, 1);
        q.descriptor(1, q.status_at(0), 1, NEXT | WRITE, SIZE);
        q.offer(0);
    }),
    ("a chain that begins outside of it", |q| q.offer(SIZE)),
    ("a table outside of memory", |q| offer(q, &[(END, 48, INDIRECTLY)])),
    ("a table of odd length", |q| offer(q, &[(q.base + INDIRECT, 47, INDIRECTLY)])),
    ("a table of nothing", |q| offer(q, &[(q.base + INDIRECT, 0, INDIRECTLY)])),
    ("a table of tables", |q| {
        q.descriptor_at(INDIRECT, 0, q.base + INDIRECT, 48, INDIRECTLY, 0);
        offer(q, &[(q.base + INDIRECT, 48, INDIRECTLY)]);
    }),
    ("more than the queue holds", |q| q.set_available(q.available.wrapping_add(SIZE + 1))),
    ("fewer than there were", |q| q.set_available(q.available.wrapping_sub(2))),
];

#[test]
fn s_558_a_queue_that_is_broken_is_served_no_more_and_others_are() {
    for (what, breaks) in BREAKS {
        let (bed, content) = bed();
        let mut guest = Guest::new(&bed.socket, 2);
        assert!(guest.queues[0].read(0, 512) == content[..512]);
        let queue = &mut guest.queues[0];
        // One that is answered although what follows it is not.
        queue.send(5, IN, 8, &[], 512);
        breaks(queue);
        queue.kick();
        assert!(guest.queues[1].read(16, 512) == content[8192..8704], "{what}");
        guest.stop(0);
        let queue = &guest.queues[0];
        let served = queue.used_index().wrapping_sub(queue.used);
        assert!(served <= 1, "{what} is served");
        assert!(is_untouched(&bed, &content), "{what} changes something");
        // A driver that sets its queue up anew, as at the next boot.
        let mut queue = guest.queues.remove(0);
        let used = queue.used_index();
        (queue.available, queue.used) = (used, used);
        queue.set_available(used);
        queue.set_used_event(used);
        guest.describe(&queue, SIZE, used).unwrap();
        guest.start(&queue);
        assert!(queue.read(0, 512) == content[..512], "{what}: it is served again");
    }
}

#[test]
fn s_558_rings_that_are_no_memory_are_not_served() {
    let (bed, content) = bed();
    let mut guest = Guest::new(&bed.socket, 2);
    let mut queue = guest.queues.remove(0);
    guest.stop(0);
    // The end of the used ring is beyond the end of memory.
    let base = std::mem::replace(&mut queue.base, END - 0x3000 - 16);
    guest.describe(&queue, SIZE, 0).unwrap();
    guest.start(&queue);
    queue.kick();
    assert!(guest.queues[0].read(0, 512) == content[..512]);
    queue.base = base;
    let used = queue.used_index();
    guest.describe(&queue, SIZE, used).unwrap();
    assert!(queue.read(0, 512) == content[..512], "it is where there is memory");
}

#[test]
fn s_558_anything_in_a_queue_leaves_the_server_whole() {
    let (bed, _) = bed();
    for seed in 0..60_u64 {
        let mut guest = Guest::new(&bed.socket, 2);
        let queue = &guest.queues[0];
        // Tables and rings are anything, of which some is nearly right.
        let anything = pattern(seed + 100, 0x4000);
        queue.memory.write_slice(&anything, GuestAddress(queue.base)).unwrap();
        for number in 0..SIZE {
            let die = anything[usize::from(number)];
            if die < 160 {
                let (at, flags) = (queue.data_at(0) + u64::from(die) * 8, u16::from(die) & 3);
                let len = [1, 16, 512, 4096][usize::from(die) % 4];
                queue.descriptor(number, at, len, flags, (number + 1) % SIZE);
            }
        }
        let header = pattern(seed, 4096);
        queue.memory.write_slice(&header, GuestAddress(queue.data_at(0))).unwrap();
        queue.set_available(queue.available.wrapping_add(seed as u16 % SIZE));
        queue.kick();
        let last = &mut guest.queues[1];
        last.write(0, &[seed as u8; 512]);
        guest.stop(0);
    }
    let mut guest = Guest::new(&bed.socket, 1);
    assert_eq!(guest.queues[0].read(0, 512).len(), 512);
}

/// Returns the most memory that this process has held at once.
fn peak_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// 84 reads of 31 MiB at once, all into the same 256 KiB of the guest, hold no more than the bound:
/// 256 MiB, and 1 MiB for each queue.
#[test]
fn s_558_requests_that_are_large_and_many_hold_bounded_memory() {
    const ALONE: &str = "BEDPLATE_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        // In a process of its own, where nothing of the others counts.
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let test = "hostile::s_558_requests_that_are_large_and_many_hold_bounded_memory";
        let output =
            command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let bed = Bed::new(Place::System, 32 << 20);
    let mut guest = Guest::new(&bed.socket, 4);
    let before = peak_bytes();
    for queue in &mut guest.queues {
        for slot in 0..SIZE / 3 {
            let table = INDIRECT + u64::from(slot) * 0x1000;
            let (header, status) = (queue.header(slot, IN, 0), queue.status_at(slot));
            queue.descriptor_at(table, 0, header, 16, NEXT, 1);
            for number in 1..=124 {
                let data = queue.data_at(0);
                queue.descriptor_at(table, number, data, 256 << 10, NEXT | WRITE, number + 1);
            }
            queue.descriptor_at(table, 125, status, 1, WRITE, 0);
            queue.descriptor(slot, queue.base + table, 126 * 16, INDIRECTLY, 0);
            queue.offer(slot);
        }
        queue.kick();
    }
    for queue in &mut guest.queues {
        (0..SIZE / 3).for_each(|_| assert_eq!(queue.wait().1, (31 << 20) + 1));
    }
    let grown = peak_bytes() - before;
    // The guest's own memory is in this process, too: 256 KiB and the tables.
    assert!(grown < 280 << 20, "{} MiB", grown >> 20);
}
