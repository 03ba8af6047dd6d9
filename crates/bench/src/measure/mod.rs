//! Instruments: clocks, histograms, processor time, device operations. Each reads the system and
//! nothing else.

mod cpu;
mod device_ops;
mod device_use;
mod latency;
mod page_cache;
mod processes;
pub(crate) mod stats;
mod trace;

pub(crate) use cpu::{CpuTimes, thread_waits};
pub(crate) use device_ops::DeviceStat;
pub use device_ops::{DeviceOps, all_devices};
pub(crate) use device_use::{DeviceLog, DeviceTime};
pub use device_use::{DevicePoint, DeviceUse};
pub(crate) use latency::Latencies;
pub use latency::LatencySummary;
pub(crate) use page_cache::page_cache_bytes;
pub(crate) use processes::processor_s;
pub use stats::{Comparison, Spread, Verdict};
