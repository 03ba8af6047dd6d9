//! A process with leases beside the mount, as the library for programs makes one: what it may do by
//! itself it does on the device, and asks the mount for everything else.
//!
//! It is a few threads of the judge's here, and its calls of the device are on the clock with all
//! others: a cut or another step may come between any two of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bedplate_block::{AlignedBuf, BlockDevice, SharedMemory};
use bedplate_fs::{File, FileSystem, InodeNo, LeaseClient, LeaseProcess};
use bedplate_lease::{Direction, Fallback, Io, Lease, Permit, Reader, Slots, State};
use parking_lot::Mutex;

/// It lives as long as the mount: one dies with the other.
struct Alive;

impl LeaseProcess for Alive {
    fn is_alive(&self) -> bool {
        true
    }

    fn has_thread_ended(&self, _thread: u32) -> bool {
        false
    }

    fn kill(&self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// The process.
pub(crate) struct Program {
    fs: FileSystem,
    reader: Reader<SharedMemory>,
    slots: Slots<SharedMemory>,
    device: Arc<dyn BlockDevice>,
    /// Slots that no call uses.
    free: Mutex<Vec<usize>>,
    threads: AtomicU32,
    /// Leases that it was given, which may have ended since.
    leases: Mutex<BTreeMap<InodeNo, Lease>>,
    /// The turn of a thread that writes to a buffer.
    turn: Mutex<()>,
    /// The file that was written over last, where that ended, and how many writes it were in order.
    stream: Mutex<(Option<InodeNo>, u64, u32)>,
    /// How much it did by itself.
    done: Arc<AtomicU64>,
    _client: Arc<LeaseClient>,
}

impl Program {
    /// Begins it on a file system that begins to hand out leases.
    pub(crate) fn attach(
        fs: &FileSystem,
        device: &Arc<dyn BlockDevice>,
        done: &Arc<AtomicU64>,
    ) -> Result<Self, String> {
        let refused =
            |what: &dyn std::fmt::Display| format!("there is no process with leases: {what}");
        fs.lease_start(1).map_err(|error| refused(&error))?;
        let client =
            fs.lease_attach(std::process::id(), 0, Alive).map_err(|error| refused(&error))?;
        let memory = fs.lease_memory().ok_or_else(|| refused(&"nothing is leased"))?;
        Ok(Self {
            fs: fs.clone(),
            reader: Reader::open(memory).map_err(|error| refused(&format!("{error:?}")))?,
            slots: Slots::open(client.memory().clone())
                .map_err(|error| refused(&format!("{error:?}")))?,
            device: Arc::clone(device),
            free: Mutex::default(),
            threads: AtomicU32::new(1),
            leases: Mutex::default(),
            turn: Mutex::default(),
            stream: Mutex::default(),
            done: Arc::clone(done),
            _client: client,
        })
    }

    /// Does something as a thread of its own, which has a slot; `None` where there is none.
    fn as_thread<T>(&self, work: impl FnOnce(usize) -> T) -> Option<T> {
        let free = self.free.lock().pop();
        let new = || self.slots.claim(self.threads.fetch_add(1, Ordering::Relaxed), |_| false);
        let slot = free.or_else(new)?;
        let done = work(slot);
        assert!(!self.slots.is_set(slot), "a call that is over holds nothing");
        self.free.lock().push(slot);
        Some(done)
    }

    fn count_done(&self, slot: usize, direction: Direction) {
        self.slots.count_done(slot, direction);
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// The lease of a file, be it one that has ended.
    fn lease(&self, file: &File) -> Option<Lease> {
        let known = self.leases.lock().get(&file.ino()).copied();
        known.or_else(|| self.ask(file))
    }

    fn ask(&self, file: &File) -> Option<Lease> {
        let lease = file.lease().ok()?;
        self.leases.lock().insert(file.ino(), lease);
        Some(lease)
    }

    /// Sets the slot where I/O may go to the device, if need be after the mount was asked for what
    /// it takes.
    fn begin(&self, file: &File, slot: usize, io: Io) -> Option<(Lease, Permit)> {
        const TRIES: usize = 3;
        let mut lease = self.lease(file)?;
        for _ in 0..TRIES {
            match self.reader.begin_growth(&self.slots, slot, lease, io, 0) {
                Ok(permit) => return Some((lease, permit)),
                Err(Fallback::Revoked) => lease = self.ask(file)?,
                Err(Fallback::BeyondSize) if io.direction == Direction::Write => {
                    file.lease_tail(self.slots.client(), io.offset, io.len).ok()?;
                }
                Err(_) => return None,
            }
        }
        None
    }

    /// Writes; `false` where the mount is to do it.
    pub(crate) fn write(&self, file: &File, bytes: &[u8], offset: u64) -> bool {
        if self.append(file, bytes, offset) || self.overwrite(file, bytes, offset) {
            return true;
        }
        if !bytes.as_ptr().addr().is_multiple_of(AlignedBuf::ALIGN) {
            return false;
        }
        let io = Io { direction: Direction::Write, offset, len: bytes.len() as u64 };
        let written = self.as_thread(|slot| {
            let Some((lease, permit)) = self.begin(file, slot, io) else { return false };
            let written = self.device.write_at(bytes, permit.device_offset).is_ok();
            if written {
                self.slots.wrote(lease.entry, permit.fills_to);
                self.count_done(slot, io.direction);
            }
            self.slots.leave(slot);
            written
        });
        written == Some(true)
    }

    /// Appends to a file that rests on the mount, in memory that is shared with that; `false` where it
    /// does not, or the write goes elsewhere.
    fn append(&self, file: &File, bytes: &[u8], offset: u64) -> bool {
        let Some(lease) = self.lease(file) else { return false };
        let len = bytes.len() as u64;
        let room = || {
            let room = self.slots.append_room(lease)?;
            (room.offset == offset && len <= room.room).then_some(room)
        };
        let asked =
            || file.lease_appends(self.slots.client(), offset, len).ok().and_then(|_| room());
        // A thread that waits for its turn waits on no clock.
        let Some(_turn) = self.turn.try_lock() else { return false };
        let Some(room) = room().or_else(asked) else { return false };
        self.slots.put_appended(&room, 0, bytes);
        let appended = self.slots.append(&room, len);
        if appended {
            self.slots.touch(lease.entry);
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        appended
    }

    /// Writes over a file that rests on the mount, in memory that is shared with that, or has it rest
    /// where it is written over in order; `false` where the mount or the device is to do it.
    fn overwrite(&self, file: &File, bytes: &[u8], offset: u64) -> bool {
        const IN_ORDER: u32 = 2;
        let Some(lease) = self.lease(file) else { return false };
        let len = bytes.len() as u64;
        let goes_on = {
            let mut stream = self.stream.lock();
            let (of, end, count) = *stream;
            let count = if (of, end) == (Some(file.ino()), offset) { count + 1 } else { 0 };
            *stream = (Some(file.ino()), offset + len, count);
            count >= IN_ORDER
        };
        let room = || {
            let room = self.slots.overwrite_room(lease)?;
            (room.allows(offset, len) && len <= room.room).then_some(room)
        };
        let asked = || {
            let given = goes_on && file.lease_appends(self.slots.client(), offset, len).is_ok();
            if given { room() } else { None }
        };
        let Some(_turn) = self.turn.try_lock() else { return false };
        let Some(room) = room().or_else(asked) else { return false };
        self.slots.put_overwrite(&room, 0, bytes);
        let overwritten = self.slots.overwrite(&room, offset, len);
        if overwritten {
            self.slots.touch(lease.entry);
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        overwritten
    }

    /// Reads, whole sectors around what is asked for; `None` where the mount is to do it.
    pub(crate) fn read(&self, file: &File, offset: u64, len: u32) -> Option<Vec<u8>> {
        let sector = self.reader.geometry().alignment_bytes;
        let start = offset / sector * sector;
        let end = (offset + u64::from(len)).next_multiple_of(sector);
        let io = Io { direction: Direction::Read, offset: start, len: end - start };
        let index = |bytes: u64| usize::try_from(bytes).expect("small");
        let mut buf = AlignedBuf::zeroed(index(io.len));
        let read = self.as_thread(|slot| {
            let Some((_, permit)) = self.begin(file, slot, io) else { return false };
            let read = self.device.read_at(&mut buf, permit.device_offset).is_ok();
            if read {
                self.count_done(slot, io.direction);
            }
            self.slots.leave(slot);
            read
        });
        let skip = index(offset - start);
        debug_assert!(
            skip + index(len.into()) <= buf.len(),
            "whole sectors hold what is asked for: {len} bytes from {skip} on"
        );
        (read == Some(true)).then(|| buf[skip..skip + index(len.into())].to_vec())
    }

    /// Makes the data of a file durable; `false` where the mount is to do it, or to tell why it is
    /// not.
    pub(crate) fn sync(&self, file: &File) -> bool {
        let flushed = self.as_thread(|slot| {
            let lease = self.lease(file)?;
            self.reader.begin_sync(&self.slots, slot, lease).ok()?;
            let flushed = self.device.flush();
            self.count_done(slot, Direction::Sync);
            self.slots.leave(slot);
            if flushed.is_err() {
                self.fs.lease_flush_failed(5);
            }
            (flushed.is_ok() && self.reader.state() == State::Serving).then_some(())
        });
        flushed.flatten().is_some()
    }
}
