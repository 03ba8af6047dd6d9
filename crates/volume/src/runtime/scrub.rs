//! Scrubs while the volumes are in use: a part at a time, throttled to the foreground latency
//! limit.

use std::collections::BTreeSet;
use std::time::Instant;

use super::GroupRuntime;
use crate::Result;
use crate::io::VolumeIo;
use crate::scrub::{Compared, Difference, How, ScrubReport};

impl GroupRuntime {
    pub fn scrub_again(&self, how: How<'_>, report: &mut ScrubReport) -> Result<()> {
        for io in &self.ios {
            let own = |one: &Difference| one.role == io.role && !one.repaired;
            let regions: BTreeSet<u64> = report
                .differences
                .iter()
                .filter(|one| own(one))
                .filter_map(|one| io.region_compared_at(one.range.start))
                .collect();
            for region in regions {
                let mut again = ScrubReport::default();
                if self.scrub_region(io, region, how, &mut again)? == Compared::Whole {
                    report.differences.retain(|one| {
                        !own(one) || io.region_compared_at(one.range.start) != Some(region)
                    });
                    report.differences.append(&mut again.differences);
                }
            }
        }
        self.throttle.leave(&self.ios);
        Ok(())
    }

    /// Compares a region in parts, each of which keeps writes to the region waiting.
    pub fn scrub_region(
        &self,
        io: &VolumeIo,
        region: u64,
        how: How<'_>,
        report: &mut ScrubReport,
    ) -> Result<Compared> {
        let mut from = 0;
        loop {
            let pace = self.throttle.wait(&self.ios);
            let began = Instant::now();
            match io.scrub_part(region, from, pace.chunk_bytes, how, report)? {
                Compared::Part(byte) => from = byte,
                over => return Ok(over),
            }
            std::thread::sleep(pace.rest(began.elapsed()));
        }
    }
}
