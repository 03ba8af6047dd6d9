//! Workloads once, targets many: the same work on raw devices, kernel file systems and Bedplate,
//! side by side.
#![forbid(unsafe_code)]

mod advise;
mod bed;
mod columns;
mod compare;
mod csv;
mod driver;
mod error;
mod machine;
mod markdown;
mod measure;
mod paper_table;
mod papers;
mod replay;
mod report;
mod results;
mod run;
mod suite;
mod summary;
mod table;
mod target;
mod units;
mod volumes;
mod way_table;
mod ways;
mod workload;

pub use advise::{AdviseOptions, Advised, FileClass, Ruling, Sorted, Standing, Step, advise};
pub use bed::{Bed, BedOptions, DeviceClass, PairOptions, Part};
pub use compare::{Compared, ComparedFiles, compare};
pub use csv::csv;
pub use error::{Error, ErrorKind, Result};
pub use machine::Machine;
pub use markdown::markdown;
pub use measure::{
    Comparison, DeviceOps, DevicePoint, DeviceUse, LatencySummary, Spread, Verdict, all_devices,
};
pub use paper_table::{Counterpart, counterparts, papers_markdown};
pub use papers::{Paper, PaperLine, paper};
pub use replay::{LeftOut, Pace, ReplayOptions, Replayed, ReplayedCalls, replay};
pub use report::{
    STYLE as REPORT_STYLE, escape as escape_html, write_report, write_sizing_page, write_trace_page,
};
pub use results::{
    Case, CpuUse, Measurement, Record, Results, Skipped, TimePoint, WorkloadResults,
};
pub use run::{Progress, Schedule, run_workload};
pub use suite::{Entry, Extent, suite};
pub use summary::{Row, summarize};
pub use table::table;
pub use target::{Caching, Confirm, Kind, Place, PlaceInfo, Role, TargetInfo, TargetSpec, Targets};
pub use units::{format_micros, format_number};
pub use volumes::{VolumeReport, VolumeRow, Volumes};
pub use ways::{Way, Ways, follow_order, run_ways};
pub use workload::{
    Cached, Checkpoint, Copy, DataLayout, Engine, Images, Increments, LogState, Mixed, Oltp,
    PageMoves, Pipe, Redo, Scan, Sequential, Server, Sio, Workload, Writers,
};
