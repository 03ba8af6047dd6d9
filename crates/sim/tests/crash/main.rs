//! The judge over random workloads and directed ones, over devices that fail, and over mistakes
//! that were planted.
#![forbid(unsafe_code)]

#[expect(clippy::unwrap_used, reason = "its helpers are tests too")]
mod devices;
mod failing;
#[expect(clippy::unwrap_used, reason = "its helpers are tests too")]
mod heal;
mod interleaved;
mod leased;
mod members;
mod planted;
#[expect(clippy::unwrap_used, reason = "its helpers are tests too")]
mod rot;
#[expect(clippy::unwrap_used, reason = "its helpers are tests too")]
mod sums;
mod threads;
mod workloads;
