//! A device that is made of pieces of others, one behind the other.

use std::ops::Range;
use std::sync::Arc;

use crate::check::error;
use crate::{
    AlignedBuf, BlockDevice, Completion, Copies, DeviceCounters, DeviceQueue, EngineReport,
    ErrorKind, Geometry, LiveCounters, Operation, QueueOptions, Request, RequestKind, Result,
    Segment,
};

/// A piece of a device, in whole blocks of it.
#[derive(Debug)]
pub struct WindowPiece {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Its first byte.
    pub start: u64,
    /// How many bytes it has; at least one block.
    pub len: u64,
}

/// Pieces of devices as one device.
#[derive(Debug)]
pub struct Window {
    name: String,
    parts: Vec<WindowPiece>,
    counters: LiveCounters,
}

impl Window {
    /// Makes a device of pieces, called `name` in messages.
    ///
    /// # Panics
    /// Without a piece.
    pub fn open(name: String, parts: Vec<WindowPiece>) -> Arc<Self> {
        assert!(!parts.is_empty(), "a window looks on something");
        debug_assert!(
            parts.iter().all(|part| part.len > 0 && part.start.checked_add(part.len).is_some()),
            "a part of a window holds a byte: {parts:?}"
        );
        Arc::new(Self { name, parts, counters: LiveCounters::default() })
    }

    /// Calls `each` with the parts of a range: device, offset there, first byte of the range,
    /// length.
    fn each(
        &self,
        offset: u64,
        len: u64,
        mut each: impl FnMut(&Arc<dyn BlockDevice>, u64, usize, u64) -> Result<()>,
    ) -> Result<()> {
        let (mut start, end) = (0, offset + len);
        for part in &self.parts {
            let (from, to) = (offset.max(start), end.min(start + part.len));
            debug_assert!(
                from >= to || part.start + to - start <= part.start + part.len,
                "what is asked of a part lies in it: {from}..{to}"
            );
            if from < to {
                each(&part.device, part.start + from - start, (from - offset) as usize, to - from)?;
            }
            start += part.len;
        }
        Ok(())
    }

    fn check(&self, operation: Operation, offset: u64, len: u64) -> Result<()> {
        let size = self.size_bytes();
        if offset <= size && len <= size - offset {
            return Ok(());
        }
        let detail = format!("{len} bytes from there pass the end at byte {size}");
        Err(error(&self.name, ErrorKind::OutOfRange, operation, Some(offset), detail))
    }

    fn most(&self, field: impl Fn(&Geometry) -> u32) -> u32 {
        self.parts.iter().map(|part| field(&part.device.geometry())).max().unwrap_or(512)
    }
}

impl BlockDevice for Window {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        let all = || self.parts.iter().map(|part| part.device.geometry());
        let logical_block_size = self.most(|geometry| geometry.logical_block_size);
        Geometry {
            logical_block_size,
            physical_block_size: self.most(|geometry| geometry.physical_block_size),
            buffer_align: self.most(|geometry| geometry.buffer_align),
            untorn_unit: all()
                .map(|geometry| geometry.untorn_unit)
                .min()
                .unwrap_or(512)
                .max(logical_block_size),
            // Its parts are pieces of rows.
            row_bytes: 0,
            volatile_cache: all().any(|geometry| geometry.volatile_cache),
            read_only: all().any(|geometry| geometry.read_only),
        }
    }

    fn size_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len).sum()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len() as u64;
        self.check(Operation::Read, offset, len)?;
        let result = self.each(offset, len, |device, at, from, len| {
            device.read_at(&mut buf[from..from + len as usize], at)
        });
        self.counters.count(Operation::Read, len, result)
    }

    fn read_right(
        &self,
        buf: &mut [u8],
        offset: u64,
        is_right: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Copies> {
        let len = buf.len() as u64;
        self.check(Operation::Read, offset, len)?;
        let mut found = None;
        self.each(offset, len, |device, at, _, part| {
            if part == len {
                found = Some(device.read_right(buf, at, is_right)?);
            }
            Ok(())
        })?;
        match found {
            Some(found) => Ok(found),
            // It lies on two parts: what is right cannot be said of each.
            None => {
                self.read_at(buf, offset)?;
                Ok(if is_right(buf) { Copies::Right { healed: false } } else { Copies::NoneRight })
            }
        }
    }

    fn hold_copies(&self, held: bool) -> bool {
        self.parts.iter().filter(|part| part.device.hold_copies(held)).count() > 0
    }

    fn ranges_in_doubt(&self) -> Vec<Range<u64>> {
        let (mut all, mut start) = (Vec::new(), 0);
        for part in &self.parts {
            let within = part.device.ranges_in_doubt().into_iter().filter_map(|range| {
                let (from, to) =
                    (range.start.max(part.start), range.end.min(part.start + part.len));
                (from < to).then(|| start + from - part.start..start + to - part.start)
            });
            all.extend(within);
            start += part.len;
        }
        all
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let len = buf.len() as u64;
        self.check(Operation::Write, offset, len)?;
        let result = self.each(offset, len, |device, at, from, len| {
            device.write_at(&buf[from..from + len as usize], at)
        });
        self.counters.count(Operation::Write, len, result)
    }

    fn flush(&self) -> Result<()> {
        let result = self.parts.iter().try_for_each(|part| part.device.flush());
        self.counters.count(Operation::Flush, 0, result)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.check(Operation::Write, offset, len)?;
        let result = self.each(offset, len, |device, at, _, len| device.write_zeroes(at, len));
        self.counters.count(Operation::Write, len, result)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        self.check(Operation::Discard, offset, len)?;
        let mut taken = false;
        self.each(offset, len, |device, at, _, len| {
            taken |= device.discard(at, len)?;
            Ok(())
        })?;
        Ok(taken)
    }

    /// Of one piece alone: where two devices answer differently the range would not be as it was.
    fn discard_to_zeros(&self, offset: u64, len: u64) -> Result<bool> {
        self.check(Operation::Discard, offset, len)?;
        let mut pieces = Vec::new();
        self.each(offset, len, |device, at, _, len| {
            pieces.push((device.clone(), at, len));
            Ok(())
        })?;
        match pieces.as_slice() {
            [(device, at, len)] => device.discard_to_zeros(*at, *len),
            _ => Ok(false),
        }
    }

    /// Opens a queue that hands requests on where they lie in one piece, and serves the others from
    /// the calling thread.
    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn DeviceQueue>> {
        let parts = self
            .parts
            .iter()
            .map(|part| WindowPiece {
                device: Arc::clone(&part.device),
                start: part.start,
                len: part.len,
            })
            .collect();
        let (mut devices, mut queue_of) = (Vec::<&Arc<dyn BlockDevice>>::new(), Vec::new());
        for part in &self.parts {
            let known = devices.iter().position(|device| Arc::ptr_eq(device, &part.device));
            queue_of.push(known.unwrap_or(devices.len()));
            devices.extend(known.is_none().then_some(&part.device));
        }
        let below =
            devices.into_iter().map(|device| device.queue(options)).collect::<Result<Vec<_>>>()?;
        let window = Self { name: self.name.clone(), parts, counters: LiveCounters::default() };
        Ok(Box::new(WindowQueue { window, below, queue_of, done: Vec::new() }))
    }

    fn engine(&self) -> EngineReport {
        self.parts[0].device.engine()
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.snapshot()
    }
}

struct WindowQueue {
    window: Window,
    /// One for each device.
    below: Vec<Box<dyn DeviceQueue>>,
    /// By piece, the queue of its device.
    queue_of: Vec<usize>,
    /// What was served from the calling thread.
    done: Vec<Completion>,
}

impl WindowQueue {
    /// Returns the piece that all of a request lies in, and where that begins in the window.
    fn piece_of(&self, request: &Request) -> Option<(usize, u64)> {
        let mut start = 0;
        for (at, part) in self.window.parts.iter().enumerate() {
            let inside = |segment: &Segment| {
                segment.offset >= start
                    && segment.offset + u64::from(segment.len) <= start + part.len
            };
            if request.kind != RequestKind::Flush
                && std::iter::once(&request.first).chain(&request.rest).all(inside)
            {
                return Some((at, start));
            }
            start += part.len;
        }
        (self.window.parts.len() == 1 && request.kind == RequestKind::Flush).then_some((0, 0))
    }

    fn serve(&self, mut request: Request) -> Completion {
        let segments: Vec<Segment> =
            std::iter::once(request.first).chain(request.rest.iter().copied()).collect();
        let mut from = 0;
        let result = match (&mut request.buf, request.kind) {
            (_, RequestKind::Flush) | (None, _) => self.window.flush(),
            (Some(buf), kind) => segments.iter().try_for_each(|segment| {
                // A segment need not begin where a buffer may.
                let mut bytes = AlignedBuf::zeroed(segment.len as usize);
                let part = &mut buf[from..from + segment.len as usize];
                from += part.len();
                if kind == RequestKind::Write {
                    bytes.copy_from_slice(part);
                    return self.window.write_at(&bytes, segment.offset);
                }
                self.window.read_at(&mut bytes, segment.offset)?;
                part.copy_from_slice(&bytes);
                Ok(())
            }),
        };
        Completion::new(request.token, result, request.buf)
    }
}

impl DeviceQueue for WindowQueue {
    fn depth_max(&self) -> usize {
        self.below.iter().map(|queue| queue.depth_max()).min().unwrap_or(1)
    }

    fn in_flight(&self) -> usize {
        self.done.len() + self.below.iter().map(|queue| queue.in_flight()).sum::<usize>()
    }

    fn push(&mut self, mut request: Request) -> std::result::Result<(), Request> {
        if self.in_flight() >= self.depth_max() {
            return Err(request);
        }
        debug_assert_eq!(
            self.queue_of.len(),
            self.window.parts.len(),
            "each part of a window has a queue"
        );
        let Some((at, start)) = self.piece_of(&request) else {
            let done = self.serve(request);
            self.done.push(done);
            return Ok(());
        };
        debug_assert!(at < self.below.len().max(self.queue_of.len()), "a piece has a queue");
        if request.kind != RequestKind::Flush {
            let base = self.window.parts[at].start;
            request.first.offset = request.first.offset - start + base;
            request
                .rest
                .iter_mut()
                .for_each(|segment| segment.offset = segment.offset - start + base);
        }
        // No queue has more in flight than all have together, so there is room.
        self.below[self.queue_of[at]].push(request)
    }

    fn submit(&mut self) -> Result<()> {
        self.below.iter_mut().try_for_each(|queue| queue.submit())
    }

    fn complete(&mut self, min: usize, out: &mut Vec<Completion>) -> Result<usize> {
        self.submit()?;
        let mut count = self.done.len();
        out.append(&mut self.done);
        loop {
            for queue in self.below.iter_mut().filter(|queue| queue.in_flight() > 0) {
                count += queue.complete(0, out)?;
            }
            let Some(busy) = self.below.iter_mut().find(|queue| queue.in_flight() > 0) else {
                return Ok(count);
            };
            if count >= min {
                return Ok(count);
            }
            count += busy.complete(1, out)?;
        }
    }

    fn take_buffer(&mut self) -> Option<AlignedBuf> {
        self.below[0].take_buffer()
    }

    fn give_buffer(&mut self, buf: AlignedBuf) {
        self.below[0].give_buffer(buf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn what_crosses_pieces_arrives_on_both_and_what_lies_in_one_is_handed_on() {
        let devices = [MemoryDevice::new(1 << 20), MemoryDevice::new(1 << 20)];
        let part = |at: usize, start, len| WindowPiece {
            device: Arc::clone(&devices[at]) as _,
            start,
            len,
        };
        let window =
            Window::open("window".into(), vec![part(0, 65_536, 8192), part(1, 4096, 12_288)]);
        assert_eq!(window.size_bytes(), 20_480);
        let mut bytes = AlignedBuf::zeroed(8192);
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 512) as u8);
        window.write_at(&bytes, 4096).unwrap();
        let mut half = AlignedBuf::zeroed(4096);
        devices[1].read_at(&mut half, 4096).unwrap();
        assert_eq!(half[..], bytes[4096..]);
        assert!(window.write_at(&bytes, 16_384).is_err());
        let mut queue = window.queue(&QueueOptions::default()).unwrap();
        for (token, offset, len) in [(1, 0, 8192_u32), (2, 8192, 4096), (3, 4096, 8192)] {
            let first = Segment { offset, len };
            let buf = Some(AlignedBuf::zeroed(len as usize));
            assert!(
                queue
                    .push(Request { token, kind: RequestKind::Read, buf, first, rest: Vec::new() })
                    .is_ok()
            );
        }
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            queue.complete(1, &mut done).unwrap();
        }
        done.sort_by_key(|one| one.token);
        assert_eq!(
            done.iter().map(|one| one.buf.as_ref().unwrap().to_vec()).collect::<Vec<_>>(),
            [[&[0; 4096], &bytes[..4096]].concat(), bytes[4096..].to_vec(), bytes.to_vec()]
        );
    }
}
