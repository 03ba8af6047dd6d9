//! Scrubs of an open group, asked for and by themselves.

use std::sync::Arc;
use std::time::Duration;

use super::Group;
use crate::scrub::{Compared, How};
use crate::{ArbiterProvider, Error, PageArbiter, Result, ScrubReport, ScrubSchedule};

impl Group {
    /// Compares all copies, region by region, while the volumes are in use. With `repair`, copies
    /// that are known to be wrong are written again. `progress` gets the bytes done after each
    /// region.
    ///
    /// # Errors
    /// `Broken` or `Device` when a repair fails and nothing stands in for the member.
    pub fn scrub(
        &self,
        repair: bool,
        judge: &dyn PageArbiter,
        progress: &mut dyn FnMut(u64),
    ) -> Result<ScrubReport> {
        let mut report = ScrubReport::default();
        self.open.runtime.check_members()?;
        for io in &self.open.runtime.ios {
            for region in 0.. {
                match self.open.runtime.scrub_region(
                    io,
                    region,
                    How { repair, judge },
                    &mut report,
                )? {
                    Compared::Absent => break,
                    Compared::Busy => report.skipped_regions += 1,
                    Compared::Part(_) | Compared::Whole => progress(io.region_bytes()),
                }
            }
        }
        self.open.runtime.throttle.leave(&self.open.runtime.ios);
        Ok(report)
    }

    /// Compares the regions once more in which a report names what was not made good, with an
    /// arbiter that may know more: then the report says what is known now.
    ///
    /// # Errors
    /// As [`scrub`](Self::scrub).
    pub fn scrub_again(
        &self,
        repair: bool,
        judge: &dyn PageArbiter,
        report: &mut ScrubReport,
    ) -> Result<()> {
        self.open.runtime.scrub_again(How { repair, judge }, report)
    }
}

impl Group {
    /// Compares all copies at regular times, the first at once, while the group is open with its
    /// background thread; with `repair`, copies that are known to be wrong are made good. `None`
    /// ends that and forgets what came of it. Durable; counts from now on.
    ///
    /// # Errors
    /// `Invalid` where nothing has another copy, or the period is shorter than a minute or longer
    /// than ten years; `Broken`, `Device`.
    pub fn schedule_scrub(&self, every: Option<Duration>, repair: bool) -> Result<()> {
        let group_state = &self.open.runtime.group_state;
        group_state.change(|config| {
            let schedule = every.map(|every| {
                let every_s = every.as_secs();
                config.scrub.map_or_else(
                    || ScrubSchedule::new(every_s, repair),
                    |now| ScrubSchedule { every_s, repair, ..now },
                )
            });
            if let Some(fault) = schedule.and_then(|schedule| schedule.fault()) {
                return Err(Error::invalid(format!("group {}: {fault}", config.name)));
            }
            if schedule.is_some() && !config.volumes.iter().any(crate::VolumeConfig::is_redundant) {
                return Err(Error::invalid(format!(
                    "group {} has one copy of everything: there is nothing to compare",
                    config.name
                )));
            }
            config.scrub = schedule;
            if schedule.is_none() {
                config.findings.clear();
            }
            Ok(())
        })?;
        group_state.waker.wake();
        Ok(())
    }

    /// Sets the provider of page arbiters for scheduled scrubs, and for whatever copies from one of
    /// several copies: relayouts, and members that are brought up to date. None at first: then those
    /// do not compare copies.
    pub fn set_arbiter_provider(&self, provider: Option<Arc<ArbiterProvider>>) {
        *self.open.runtime.arbiters.0.lock() = provider;
    }
}
