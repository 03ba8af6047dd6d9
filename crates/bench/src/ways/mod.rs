//! What each way in costs: the same reads and writes of one file of a volume, by every way that leads
//! to it, beside a raw device and a file of a kernel's file system.
//!
//! ```text
//!   Ways ── run ──► Place   the volume and the file; opens one way at a time
//!             │        └──► Opened: servers as processes of their own, and a client
//!             │                                   client ── file.rs      calls and lists of this process
//!             │                                          ├─ program.rs   a program under the preload library
//!             │                                          └─ libnfs.rs    fio
//!             └───► Areas   what each way wrote, and every other one reads
//! ```
//! The ways take turns: each is opened, measured in every case and closed, before the next is opened.
//! So nothing of one burdens another, all see the very same blocks, and a volume that has one user at
//! a time is enough. A way that cannot be gone here has no figures, and a reason.

mod areas;
mod client;
mod file;
mod guest;
mod libnfs;
mod place;
mod program;
mod run;
mod service;
mod way;

use std::path::PathBuf;

use areas::Areas;
pub use program::follow_order;
pub use run::run_ways;
pub use way::Way;

use crate::target::{Kind, Place, TargetSpec};
use crate::workload::Work;
use crate::{Error, Result};

/// What `bench ways` measures.
#[derive(Debug, Clone)]
pub struct Ways {
    /// The targets: a volume, and as references a raw device and a directory of a kernel's file
    /// system, of which at most one each.
    pub targets: Vec<TargetSpec>,
    /// The `bedplate` program: every server is a process of it.
    pub program: PathBuf,
    /// The fio that drives libnfs.
    pub fio: PathBuf,
    /// Size in bytes of the measured part of the file.
    pub size_bytes: u64,
    /// Size in bytes of one read or write: a multiple of 4096.
    pub block_bytes: u64,
    /// Numbers of threads with synchronous calls.
    pub threads: Vec<usize>,
    /// Depths of a list.
    pub depths: Vec<usize>,
    /// The ways; empty: all of them.
    pub only: Vec<Way>,
}

impl Default for Ways {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            program: PathBuf::from("bedplate"),
            fio: PathBuf::from("fio"),
            size_bytes: 256 << 20,
            block_bytes: 8192,
            threads: vec![1, 16],
            depths: vec![16],
            only: Vec::new(),
        }
    }
}

/// Most threads, and the largest depth: a guest's memory has room for all of their blocks.
const NUMBER_MAX: usize = 256;
/// Largest block in bytes.
const BLOCK_BYTES_MAX: u64 = 1 << 20;

impl Ways {
    /// Returns the ways that are asked for, in the order of tables.
    fn chosen(&self) -> Vec<Way> {
        let is_chosen = |way: &Way| self.only.is_empty() || self.only.contains(way);
        Way::ALL.into_iter().filter(is_chosen).collect()
    }

    fn loads(&self) -> Vec<client::Load> {
        client::loads(self.size_bytes, self.block_bytes, &self.threads, &self.depths)
    }

    fn validate(&self) -> Result<()> {
        let numbers = || self.threads.iter().chain(&self.depths);
        if let Some(number) = numbers().find(|number| **number == 0 || **number > NUMBER_MAX) {
            return Err(Error::usage(format!(
                "{number} threads or operations at once: choose 1 to {NUMBER_MAX}"
            )));
        }
        let block = self.block_bytes;
        if !block.is_multiple_of(4096) || block == 0 || block > BLOCK_BYTES_MAX {
            return Err(Error::usage(format!(
                "an operation of {block} bytes: choose a multiple of 4 KiB up to {}",
                bedplate::format_size(BLOCK_BYTES_MAX)
            )));
        }
        if !self.size_bytes.is_multiple_of(block) {
            return Err(Error::usage(format!(
                "--size is no multiple of an operation of {}",
                bedplate::format_size(block)
            )));
        }
        let loads = self.loads();
        if loads.is_empty() {
            return Err(Error::usage("there is nothing to measure: give --threads or --depth"));
        }
        loads.iter().try_for_each(|load| load.mixed().validate())?;
        self.volume().map(drop)
    }

    /// Returns the device of the volume. Targets of other kinds, two of one kind, and options are
    /// refused: each way has the options that make it that way.
    fn volume(&self) -> Result<PathBuf> {
        let is_volume = |spec: &&TargetSpec| matches!(spec.kind, Kind::Volume { .. });
        for (i, spec) in self.targets.iter().enumerate() {
            let same = |other: &TargetSpec| other.kind.name() == spec.kind.name();
            if self.targets[..i].iter().any(same) {
                return Err(Error::usage(format!(
                    "'{spec}' is the second target of its kind: the ways lead into one volume, and \
                     are compared with one raw device and one directory"
                )));
            }
            if !is_plain(spec) {
                return Err(Error::usage(format!(
                    "'{spec}': write volume:DEVICE, raw:DEVICE and path:DIR here, without options, \
                     because each way has its own"
                )));
            }
        }
        match self.targets.iter().find(is_volume).map(|spec| &spec.places[..]) {
            Some([Place::Path(path)]) => Ok(path.clone()),
            _ => Err(Error::usage(
                "name the volume that the ways lead into, as in -t volume:DEVICE; memory of this \
                 process has no other way in",
            )),
        }
    }

    /// Returns the target that is a reference.
    fn reference(&self, way: Way) -> Option<&TargetSpec> {
        let kind = match way {
            Way::Raw => "raw",
            Way::Kernel => "path",
            _ => return None,
        };
        self.targets.iter().find(|spec| spec.kind.name() == kind)
    }
}

/// Returns whether a target lies in one place, of this machine's file system, and has no options.
fn is_plain(spec: &TargetSpec) -> bool {
    let [Place::Path(path)] = &spec.places[..] else { return false };
    let without_options = format!("{}:{}", spec.kind.name(), path.display());
    without_options.parse::<TargetSpec>().is_ok_and(|plain| plain.kind == spec.kind)
        && spec.latency.is_zero()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(targets: &[&str]) -> Ways {
        let targets = targets.iter().map(|text| text.parse().unwrap()).collect();
        Ways { targets, ..Ways::default() }
    }

    #[test]
    fn the_default_is_eight_kib_alone_and_many_at_once() {
        let ways = ways(&["volume:/x"]);
        ways.validate().unwrap();
        let names: Vec<String> = ways.loads().iter().map(|load| load.case().name).collect();
        assert_eq!(names.len(), 6);
        assert_eq!(names[0], "8 KiB random reads, 1 thr");
        assert_eq!(names[5], "8 KiB random writes, queue 16");
        assert_eq!(ways.chosen(), Way::ALL);
    }

    #[test]
    fn what_cannot_be_is_refused_in_one_sentence() {
        let refused = |ways: &Ways, part: &str| {
            let told = ways.validate().unwrap_err().to_string();
            assert!(told.contains(part) && !told.contains('\n'), "{told}");
        };
        refused(&ways(&["raw:/x"]), "-t volume:DEVICE");
        refused(&ways(&["volume:memory:64M"]), "without options");
        refused(&ways(&["volume:/x", "volume:/y"]), "second target");
        refused(&ways(&["volume:/x,mode=direct"]), "each way has its own");
        refused(&ways(&["volume:/x", "path:/y,buffered"]), "each way has its own");
        refused(&ways(&["volume:/x", "nfs://h/y"]), "each way has its own");
        refused(&ways(&["volume:/x,cache=1M"]), "each way has its own");
        let base = ways(&["volume:/x"]);
        refused(&Ways { threads: vec![0], ..base.clone() }, "choose 1 to 256");
        refused(&Ways { depths: vec![257], ..base.clone() }, "choose 1 to 256");
        refused(&Ways { threads: vec![], depths: vec![], ..base.clone() }, "nothing to measure");
        refused(&Ways { block_bytes: 1000, ..base.clone() }, "multiple of 4 KiB");
        refused(&Ways { size_bytes: 12_288, ..base.clone() }, "no multiple");
        refused(&Ways { size_bytes: 8192, ..base }, "fewer operations");
    }
}
