//! The judge over random workloads and directed ones, over devices that fail, and over mistakes that were planted.
#![forbid(unsafe_code)]

mod failing;
mod planted;
mod workloads;
