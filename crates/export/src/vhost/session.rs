//! One front end: what it says of its guest's memory and queues, and which of these are served.
//!
//! ```text
//!   ring: no kick ── SET_VRING_KICK, enabled ─► served ── GET_VRING_BASE, a change ─► drained
//!                                                 ▲                                      │
//!                                                 └────────── while it is to be ─────────┘
//! ```
//! I-VHO-3: what a queue is made of changes only while no thread serves it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVirtioFeatures,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{Queue, QueueT};

use super::device::Device;
use super::memory::{REGIONS_MAX, Table, refused};
use super::ring::Ring;
use super::worker::Worker;

fn failed(error: io::Error) -> Error {
    Error::ReqHandlerError(error)
}

fn not_served(what: &str) -> Error {
    failed(refused(format!("{what} is not served, and was not offered")))
}

/// A queue as the front end describes it.
#[derive(Debug, Default)]
struct Described {
    queue: Queue,
    has_rings: bool,
    is_enabled: bool,
    /// It cannot be served until it is described anew.
    is_broken: bool,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
    worker: Option<Worker>,
}

/// What a front end has said so far.
#[derive(Debug)]
pub struct Session {
    device: Arc<Device>,
    memory: Table,
    features: u64,
    queues: Vec<Described>,
}

impl Session {
    /// Begins with queues of at most `size_max` entries, a power of two.
    pub fn new(device: Arc<Device>, queues_max: u16, size_max: u16) -> io::Result<Self> {
        let queue = |_| match Queue::new(size_max) {
            Ok(queue) => Ok(Described { queue, ..Described::default() }),
            Err(error) => Err(refused(error)),
        };
        let queues = (0..queues_max).map(queue).collect::<io::Result<_>>()?;
        Ok(Self { device, memory: Table::default(), features: 0, queues })
    }

    /// Serves no queue any more, once what is under way is answered.
    pub fn end(&mut self) {
        for queue in &mut self.queues {
            queue.halt();
        }
    }

    /// Changes a queue while it is not served.
    fn change<T>(
        &mut self,
        index: u32,
        change: impl FnOnce(&mut Described, &Table) -> io::Result<T>,
    ) -> Result<T> {
        let index = index as usize;
        let count = self.queues.len();
        let Some(queue) = self.queues.get_mut(index) else {
            return Err(failed(refused(format!("there is no queue {index}: they are {count}"))));
        };
        queue.halt();
        let changed = change(queue, &self.memory).map_err(failed)?;
        queue.settle(index, &self.memory, &self.device).map_err(failed)?;
        Ok(changed)
    }

    /// Changes the guest's memory while no queue is served.
    fn change_memory(&mut self, change: impl FnOnce(&mut Table) -> io::Result<()>) -> Result<()> {
        self.end();
        change(&mut self.memory).map_err(failed)?;
        self.settle()
    }

    fn settle(&mut self) -> Result<()> {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            queue.settle(index, &self.memory, &self.device).map_err(failed)?;
        }
        Ok(())
    }

    fn has_protocol_features(&self) -> bool {
        self.features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0
    }
}

impl Described {
    /// Serves the queue, where it is to be and is not.
    fn settle(&mut self, index: usize, memory: &Table, device: &Arc<Device>) -> io::Result<()> {
        let wanted = self.is_enabled && self.has_rings && !self.is_broken;
        let (true, Some(kick), None) = (wanted, &self.kick, &self.worker) else { return Ok(()) };
        let kick = Arc::clone(kick);
        let queue = std::mem::take(&mut self.queue);
        let ring = Ring::new(queue, Arc::clone(memory.map()), self.call.clone());
        if let Err(halt) = ring.check() {
            tracing::warn!("queue {index} of the guest is not served: {halt}");
            self.is_broken = true;
            self.queue = ring.into_queue();
            return Ok(());
        }
        self.worker = Some(Worker::start(index, ring, kick, device)?);
        Ok(())
    }

    /// Serves the queue no more, once what is under way is answered.
    fn halt(&mut self) {
        let Some(worker) = self.worker.take() else { return };
        match worker.stop() {
            Some(ended) => {
                self.queue = ended.queue;
                self.is_broken |= ended.is_broken;
            }
            None => {
                tracing::error!("a thread of a queue had panicked");
                self.is_broken = true;
            }
        }
        self.queue.set_ready(false);
        assert!(self.worker.is_none(), "I-VHO-3: a queue that is changed is not served");
    }
}

/// Takes an event descriptor, so that no read or write of it waits.
fn event(file: Option<File>) -> io::Result<Option<Arc<OwnedFd>>> {
    let Some(file) = file else { return Ok(None) };
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(Some(Arc::new(file.into())))
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.end();
        self.queues.iter_mut().for_each(|queue| queue.is_enabled = false);
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        Err(not_served("to reset the device"))
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.device.features() | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !self.get_features()?;
        if unknown != 0 {
            return Err(failed(refused(format!("the features {unknown:#x} were not offered"))));
        }
        self.end();
        self.features = features;
        self.device.choose(features);
        let counts_events = features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0;
        let all = !self.has_protocol_features();
        for queue in &mut self.queues {
            queue.queue.set_event_idx(counts_events);
            queue.is_enabled |= all;
        }
        self.settle()
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        self.change_memory(|memory| memory.replace(regions, files))?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.change(index, |described, _| {
            let size = u16::try_from(num).unwrap_or(0);
            described.queue.try_set_size(size).map_err(|_| {
                let max = described.queue.max_size();
                refused(format!("a queue of {num} entries: they are a power of two up to {max}"))
            })
        })
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.change(index, |described, memory| {
            let queue = &mut described.queue;
            queue.try_set_desc_table_address(memory.translate(descriptor)?).map_err(refused)?;
            queue.try_set_used_ring_address(memory.translate(used)?).map_err(refused)?;
            queue.try_set_avail_ring_address(memory.translate(available)?).map_err(refused)?;
            described.has_rings = true;
            described.is_broken = false;
            Ok(())
        })
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.change(index, |described, _| {
            described.queue.set_next_avail(base as u16);
            described.is_broken = false;
            Ok(())
        })
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.change(index, |described, _| {
            described.kick = None;
            described.call = None;
            Ok(VhostUserVringState::new(index, described.queue.next_avail().into()))
        })
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.change(index.into(), |described, _| {
            if file.is_none() {
                return Err(refused(
                    "a queue without an event that tells of requests is not served",
                ));
            }
            described.kick = event(file)?;
            Ok(())
        })
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.change(index.into(), |described, _| {
            described.call = event(file)?;
            Ok(())
        })
    }

    fn set_vring_err(&mut self, index: u8, _file: Option<File>) -> Result<()> {
        self.change(index.into(), |_, _| Ok(()))
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !self.get_protocol_features()?.bits();
        match unknown {
            0 => Ok(()),
            _ => Err(failed(refused(format!(
                "the features {unknown:#x} of the protocol were not offered"
            )))),
        }
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.change(index, |described, _| {
            described.is_enabled = enable;
            Ok(())
        })
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let config = self.device.config();
        let end = offset.checked_add(size).map(|end| end as usize);
        match end.and_then(|end| config.get(offset as usize..end)) {
            Some(part) => Ok(part.to_vec()),
            None => Err(failed(refused("the configuration ends before what is asked for"))),
        }
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(failed(refused("the configuration has no field that the guest may change")))
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(not_served("a display"))
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(not_served("a shared object"))
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(not_served("a record of requests under way"))
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        Err(not_served("a record of requests under way"))
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        self.change_memory(|memory| memory.add(region, file))?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.change_memory(|memory| memory.remove(region))
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(not_served("migration"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(not_served("migration"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(not_served("shared memory"))
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(not_served("migration"))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}
