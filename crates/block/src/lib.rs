//! Devices: aligned reads, writes and flushes, and the engines that carry them.
//!
//! This is the lowest room. It knows nothing of files, and it is the only room in the storage path
//! where `unsafe` may live.

mod buffer;
mod busy;
mod check;
mod counters;
mod descriptor;
mod device;
mod error;
mod extents;
mod file;
mod file_handle;
mod file_system;
mod heap;
mod in_place;
mod in_place_name;
mod inherit;
mod inline;
mod interval_map;
mod little_endian;
mod log_scale;
mod member_map;
mod memory;
mod memory_limit;
mod mount_table;
mod nbd;
mod one_flush;
mod open;
mod page_cache;
mod part;
mod period;
mod pool;
mod queue;
mod record_lock;
mod shared_arena;
mod shared_memory;
mod sim;
mod snapshot;
mod striped;
pub mod sync;
mod threads;
mod uring;
mod user_options;
mod waker;
mod window;
mod workers;

pub use buffer::AlignedBuf;
pub use busy::{BusyMeter, BusyTime};
pub use counters::LiveCounters;
pub use descriptor::without_errno;
pub use device::{
    BlockDevice, CALL_BYTES_MAX, Copies, DeviceCounters, EngineReport, EngineThreads, Geometry,
    HeldCopies, Lent,
};
pub use error::{Error, ErrorKind, Operation, Result};
pub use extents::{FileExtent, extents, file_extents};
pub use file::{Backing, DeviceOptions, Engine, create_image};
pub use file_handle::FileHandle;
pub use file_system::sync_file_system;
pub use heap::{allocate_from_few_arenas, give_free_memory_back, memory_bytes, resident_bytes};
pub use in_place::{
    CONTENT_BYTES as IN_PLACE_CONTENT_BYTES, HEADER_BYTES as IN_PLACE_HEADER_BYTES, InPlaceHeader,
    InPlaceState, OldKind, SECOND_COPY as IN_PLACE_SECOND_COPY, Watched,
    grain_bytes as in_place_grain_bytes, show as show_in_place,
};
pub use in_place_name::{in_place_device, in_place_path};
pub use inherit::close_descriptors_on_exec;
pub use interval_map::{IntervalMap, RunValue};
pub use little_endian::{LeReader, Short};
pub use log_scale::LogScale;
pub use member_map::{MemberMap, MemberName, MemberRange};
pub use memory::MemoryDevice;
pub use memory_limit::memory_limit_bytes;
pub use mount_table::MountEntry;
pub use nbd::{device_path, is_nbd_uri, wire as nbd_wire};
pub use one_flush::OneFlush;
pub use open::open;
pub use page_cache::{begin_writing, cached_bytes, cached_pages, touch_mapped};
pub use part::Part;
pub use period::Period;
pub use queue::{Completion, DeviceQueue, QueueOptions, Request, RequestKind, Segment};
pub use record_lock::{
    HeldRecord, RECORD_END, find_record, lock_record, try_lock_record, unlock_record,
};
pub use shared_arena::{ArenaPiece, SharedArena};
pub use shared_memory::{SharedMemory, Sharing};
pub use sim::{
    CrashChoice, CrashStep, DeviceCall, Fault, FaultRule, FlushFault, FlushOutcome, Hook,
    HookedDevice, JoinedMembers, ReadFault, Recorded, Recording, RecordingDevice, SimulatedDevice,
    SimulatedOptions, Source, Spooled, Trigger, WriteFault,
};
pub use snapshot::Snapshot;
pub use striped::StripedCounters;
pub use user_options::UserOptions;
pub use waker::Waker;
pub use window::{Window, WindowPiece};
pub use workers::Workers;
