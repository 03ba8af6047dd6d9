//! What is counted and timed.
//!
//! | file | holds |
//! | --- | --- |
//! | `counters` | counters of a file and of the file system, and why an I/O was not served as its mode asks |
//! | `file_counters` | what every read and write of a file counts |
//! | `latency` | histograms of latency, and which I/O is timed |
//! | `waits` | what reads and writes waited for: locks of the file, threads, the device |

mod counters;
mod file_counters;
mod latency;
mod waits;

#[cfg(feature = "statistics-switch")]
pub use counters::statistics_switch;
pub use counters::{CounterSnapshot, Reason};
pub(crate) use counters::{Counters, counting};
pub(crate) use file_counters::FileCounters;
pub(crate) use latency::{FileLatencies, SAMPLE_DEFAULT, Sampler, Timed, Timing};
pub use latency::{Latencies, LatencySnapshot};
pub(crate) use waits::{Awaited, DeviceWatch, WaitMeter, Waiting, in_device, note_queued};
pub use waits::{WaitTime, Waits};
