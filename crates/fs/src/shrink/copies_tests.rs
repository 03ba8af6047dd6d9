//! A file system on two copies, of which one has rotted: what moves is what was written.

use std::sync::atomic::AtomicUsize;

use bedplate_block::{
    Copies, DeviceCounters, DeviceQueue, EngineReport, Geometry, QueueOptions,
    Result as DeviceResult,
};

use super::*;

/// Two copies of everything, which are read in turns.
#[derive(Debug)]
struct TwoCopies {
    copies: [Arc<MemoryDevice>; 2],
    reads: AtomicUsize,
}

impl TwoCopies {
    fn both(&self, mut act: impl FnMut(&MemoryDevice) -> DeviceResult<()>) -> DeviceResult<()> {
        self.copies.iter().try_for_each(|copy| act(copy))
    }
}

impl BlockDevice for TwoCopies {
    fn name(&self) -> &str {
        "two copies"
    }
    fn geometry(&self) -> Geometry {
        self.copies[0].geometry()
    }
    fn size_bytes(&self) -> u64 {
        self.copies[0].size_bytes()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> DeviceResult<()> {
        self.copies[self.reads.fetch_add(1, Ordering::Relaxed) % 2].read_at(buf, offset)
    }
    fn read_right(
        &self,
        buf: &mut [u8],
        offset: u64,
        is_right: &dyn Fn(&[u8]) -> bool,
    ) -> DeviceResult<Copies> {
        for copy in &self.copies {
            copy.read_at(buf, offset)?;
            if is_right(buf) {
                self.write_at(buf, offset)?;
                return Ok(Copies::Right { healed: true });
            }
        }
        Ok(Copies::NoneRight)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> DeviceResult<()> {
        self.both(|copy| copy.write_at(buf, offset))
    }
    fn flush(&self) -> DeviceResult<()> {
        self.both(MemoryDevice::flush)
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> DeviceResult<()> {
        self.both(|copy| copy.write_zeroes(offset, len))
    }
    fn discard(&self, _: u64, _: u64) -> DeviceResult<bool> {
        Ok(false)
    }
    fn queue(&self, options: &QueueOptions) -> DeviceResult<Box<dyn DeviceQueue>> {
        self.copies[0].queue(options)
    }
    fn engine(&self) -> EngineReport {
        self.copies[0].engine()
    }
    fn counters(&self) -> DeviceCounters {
        self.copies[0].counters()
    }
}

/// Has metadata beyond an end rot in one copy, makes the file system smaller, and returns how many
/// copies are sound on their own then.
fn sound_copies(rotten: usize) -> usize {
    let copies = [MemoryDevice::new(160 * MIB), MemoryDevice::new(160 * MIB)];
    let both = TwoCopies { copies: copies.clone(), reads: AtomicUsize::new(0) };
    let device: Arc<dyn BlockDevice> = Arc::new(both);
    format(&device, 4096);
    let fs = mount(&device);
    behind(&fs, 60 * MIB, 4096, || {
        (0..120).for_each(|n| make(&fs, n));
        fs.state().metadata_commit().unwrap();
    });
    fs.unmount().unwrap();
    let fs = mount(&device);
    assert!(fs.plan_shrink(64 * MIB).unwrap().metadata_bytes > MIB, "they grew beyond");
    let mut page = AlignedBuf::zeroed(4096);
    for at in (64 * MIB..160 * MIB).step_by(4096) {
        copies[rotten].read_at(&mut page, at).unwrap();
        page[100] ^= 4;
        copies[rotten].write_at(&page, at).unwrap();
    }
    let shrunk = shrink(&fs, 64 * MIB);
    if shrunk.and_then(|_| fs.unmount()).is_err() {
        return 0;
    }
    let is_sound = |copy: &&Arc<MemoryDevice>| {
        let device = Arc::clone(copy) as Arc<dyn BlockDevice>;
        let alone = cut_off(&device, 64 * MIB);
        FileSystem::check(&alone, None, false).is_ok_and(|report| report.findings.is_empty()) && {
            let fs = mount(&alone);
            (0..120).all(|n| {
                let name = format!("a name of some length {n}");
                fs.lookup(InodeNo::ROOT, name.as_bytes()).is_ok()
            })
        }
    };
    copies.iter().filter(is_sound).count()
}

/// S-500
#[test]
fn s_500_metadata_move_as_they_were_written() {
    for rotten in [0, 1] {
        assert_eq!(sound_copies(rotten), 2, "copy {rotten} had rotted");
    }
    let found = [0, 1].map(|rotten| {
        plant(Some(PlantedBug::MovedPageNotCompared));
        let found = std::panic::catch_unwind(|| sound_copies(rotten));
        plant(None);
        found.is_err() || found.is_ok_and(|sound| sound < 2)
    });
    assert!(found.contains(&true), "MovedPageNotCompared");
}
