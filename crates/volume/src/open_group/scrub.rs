//! Scrubs of an open group, asked for and by themselves.

use std::sync::Arc;
use std::time::Duration;

use super::Group;
use crate::scrub::{Compared, How};
use crate::{Error, Judge, Judges, Result, ScrubReport, ScrubSchedule};

impl Group {
    /// Compares all copies, region by region, while the volumes are in use. With `repair`, copies that are known to be wrong are written anew.
    /// `progress` gets the bytes done after each region.
    ///
    /// # Errors
    /// `Broken` or `Device` when a repair fails and nothing stands in for the member.
    pub fn scrub(&self, repair: bool, judge: &dyn Judge, progress: &mut dyn FnMut(u64)) -> Result<ScrubReport> {
        let mut report = ScrubReport::default();
        self.open.inner.check_members()?;
        for core in &self.open.inner.cores {
            for region in 0.. {
                match self.open.inner.scrub_region(core, region, How { repair, judge }, &mut report)? {
                    Compared::Absent => break,
                    Compared::Busy => report.skipped_regions += 1,
                    Compared::Part(_) | Compared::Whole => progress(core.region_bytes()),
                }
            }
        }
        self.open.inner.throttle.leave(&self.open.inner.cores);
        Ok(report)
    }

    /// Compares the regions once more in which a report names what was not made good, with one who may know more: then the report says what is
    /// known now.
    ///
    /// # Errors
    /// As [`scrub`](Self::scrub).
    pub fn scrub_again(&self, repair: bool, judge: &dyn Judge, report: &mut ScrubReport) -> Result<()> {
        self.open.inner.scrub_again(How { repair, judge }, report)
    }
}

impl Group {
    /// Compares all copies at regular times, the first at once, as long as somebody has the group open with its background thread; with `repair`,
    /// copies that are known to be wrong are made good. `None` ends that and forgets what came of it. Durable; counts from now on.
    ///
    /// # Errors
    /// `Invalid` where nothing has another copy, or the period is shorter than a minute or longer than ten years; `Broken`, `Device`.
    pub fn schedule_scrub(&self, every: Option<Duration>, repair: bool) -> Result<()> {
        let shared = &self.open.inner.shared;
        shared.change(|config| {
            let schedule = every.map(|every| {
                let every_s = every.as_secs();
                config.scrub.map_or_else(|| ScrubSchedule::new(every_s, repair), |now| ScrubSchedule { every_s, repair, ..now })
            });
            if let Some(fault) = schedule.and_then(|schedule| schedule.fault()) {
                return Err(Error::invalid(format!("group {}: {fault}", config.name)));
            }
            if schedule.is_some() && !config.volumes.iter().any(crate::VolumeConfig::is_redundant) {
                return Err(Error::invalid(format!("group {} has one copy of everything: there is nothing to compare", config.name)));
            }
            config.scrub = schedule;
            if schedule.is_none() {
                config.findings.clear();
            }
            Ok(())
        })?;
        shared.bell.ring();
        Ok(())
    }

    /// States who lends judges to scrubs on a schedule; nobody from the beginning.
    pub fn lend_judges(&self, judges: Option<Arc<Judges>>) {
        *self.open.inner.bench.0.lock() = judges;
    }
}
