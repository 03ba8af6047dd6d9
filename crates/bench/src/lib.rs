//! Workloads once, targets many: the same work on raw devices, kernel file systems and Bedplate, side by side.
#![forbid(unsafe_code)]

mod error;
mod machine;
mod measure;
mod target;
mod units;

pub use error::{Error, ErrorKind, Result};
pub use machine::Machine;
pub use measure::{Comparison, DeviceOps, LatencySummary, Spread, Verdict};
pub use target::{Caching, Confirm, Kind, Place, PlaceInfo, Role, TargetInfo, TargetSpec, Targets};
pub use units::{format_micros, format_number};
