//! `bedplate bench ways [-t volume:DEVICE …]`

use std::path::PathBuf;
use std::time::Duration;

use bedplate::{parse_duration, parse_size};
use bedplate_bench::{Bed, BedOptions, DeviceClass, Part, Progress, Schedule, Way, Ways, run_ways};
use clap::Args;

use super::{Consent, Report, Session, parse, show_progress};
use crate::failure::{Failure, Result};
use crate::render::output::Output;

/// What each way in costs: the same reads and writes of one file of a volume through the library, a
/// lease, the mount, NBD, vhost-user-blk and NFS, beside a raw device and a kernel file system
///
/// Servers are processes of their own. Without targets image files are made for it. A way that
/// cannot be gone here has a line with the reason: NFS and mounts of devices need root, libnfs a fio
/// that is built with it.
#[derive(Debug, Args)]
pub struct Arguments {
    /// What to measure on: volume:DEVICE, which the ways lead into, and beside it raw:DEVICE and
    /// path:DIR, which they are compared with
    #[arg(short, long = "target", value_name = "TARGET")]
    targets: Vec<String>,
    /// Finish within two minutes: 3 rounds of 250 ms on a file of 64 MiB
    #[arg(long)]
    quick: bool,
    /// Only these ways: raw, kernel, library, lease, mount, mount-cached, nbd, vhost-user, nfs,
    /// nfs-libnfs, nfs-kernel
    #[arg(long, value_name = "WAY", value_delimiter = ',')]
    only: Vec<String>,
    /// Size of the file [default: 256M, with --quick 64M]
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// Size of one read or write
    #[arg(long, value_name = "SIZE", default_value = "8K", value_parser = parse_size)]
    block: u64,
    /// Numbers of threads with synchronous calls
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    threads: Vec<usize>,
    /// Depths of a list of one thread
    #[arg(long, value_delimiter = ',', default_value = "16")]
    depth: Vec<usize>,
    /// How often each way is measured; ways take turns [default: 5, with --quick 3]
    #[arg(long)]
    rounds: Option<usize>,
    /// How long one measurement lasts [default: 1s, with --quick 250ms]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    time: Option<Duration>,
    /// What runs before it counts [default: 200ms, with --quick 50ms]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    warm_up: Option<Duration>,
    /// The fio that drives libnfs
    #[arg(long, value_name = "PROGRAM", default_value = "fio")]
    fio: PathBuf,
    /// Make the images on a disk instead of in shared memory
    #[arg(long, conflicts_with = "targets")]
    disk: bool,
    /// Make the images in this directory
    #[arg(long, value_name = "DIR", conflicts_with = "targets")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    report: Report,
}

/// What a program does that is measured by 'bench ways'
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Order {
    /// The order, as that command writes it
    pub text: String,
}

/// The smallest image that kernel file systems are made on.
const IMAGE_BYTES_MIN: u64 = 384 << 20;

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let (mut ways, schedule) = (arguments.ways()?, arguments.schedule());
    let mut session = Session::begin(output)?;
    let measured = if ways.targets.is_empty() {
        on_a_bed(&mut session, arguments, &mut ways, &schedule)
    } else {
        session.measure_ways(&ways, &schedule, &mut |path| arguments.consent.given(path))
    };
    session.end(&arguments.report, measured)
}

impl Arguments {
    fn ways(&self) -> Result<Ways> {
        let program = std::env::current_exe().map_err(|e| {
            Failure::new("io", format!("cannot find the program of the servers: {e}"))
        })?;
        let only = self.only.iter().map(|name| name.parse());
        Ok(Ways {
            targets: parse(&self.targets)?,
            program,
            fio: self.fio.clone(),
            size_bytes: self.size.unwrap_or(if self.quick { 64 << 20 } else { 256 << 20 }),
            block_bytes: self.block,
            threads: self.threads.clone(),
            depths: self.depth.clone(),
            only: only.collect::<bedplate_bench::Result<Vec<Way>>>()?,
        })
    }

    fn schedule(&self) -> Schedule {
        let ms = |quick, full| Duration::from_millis(if self.quick { quick } else { full });
        Schedule {
            rounds: self.rounds.unwrap_or(if self.quick { 3 } else { 5 }),
            time: self.time.unwrap_or(ms(250, 1000)),
            warm_up: self.warm_up.unwrap_or(ms(50, 200)),
        }
    }
}

/// Measures on images that are made for it.
fn on_a_bed(
    session: &mut Session<'_>,
    arguments: &Arguments,
    ways: &mut Ways,
    schedule: &Schedule,
) -> bedplate_bench::Result<()> {
    let options = BedOptions {
        class: if arguments.disk { DeviceClass::Disk } else { DeviceClass::Memory },
        directory: arguments.dir.clone(),
        image_bytes: ways.size_bytes.saturating_mul(2).max(IMAGE_BYTES_MIN),
        program: None,
    };
    session.say("making image files");
    let bed = Bed::make(&options)?;
    bed.missing.iter().for_each(|what| session.note(what));
    ways.targets = bed.targets(&[Part::Raw, Part::Concurrent, Part::KernelDirect])?;
    session.measure_ways(ways, schedule, &mut |path| bed.owns(path))
}

impl Session<'_> {
    fn measure_ways(
        &mut self,
        ways: &Ways,
        schedule: &Schedule,
        confirm: &mut dyn FnMut(&std::path::Path) -> bool,
    ) -> bedplate_bench::Result<()> {
        let bar = self.bar.clone();
        let mut show = |progress: Progress<'_>| show_progress(&bar, progress);
        run_ways(ways, schedule, &mut self.results, &self.stop, confirm, &mut show)
    }
}
