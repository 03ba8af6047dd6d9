//! How busy devices are while a measurement runs: a series of intervals for each, and the whole
//! counted window.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The first interval; a long run has longer ones.
const INTERVAL: Duration = Duration::from_millis(50);
/// With more samples every second one is dropped, and the interval doubles.
const SAMPLES_MAX: usize = 240;

/// How busy one device was in a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceUse {
    /// The device: the kernel's name of it, or where it is.
    pub name: String,
    /// Part of the counted window in which at least one request was in flight, in percent.
    pub busy_percent: f64,
    /// How many were in flight on average in the counted window.
    pub queue_depth_mean: f64,
    /// The same in intervals of the whole run.
    pub series: Vec<DevicePoint>,
}

/// One interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DevicePoint {
    /// When it ended, in seconds since the threads were let go.
    pub t_s: f64,
    /// Part of it in which at least one request was in flight, in percent.
    pub busy_percent: f64,
    /// How many were in flight on average.
    pub queue_depth_mean: f64,
}

/// The counters of one device at a moment: times that only grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceTime {
    pub name: String,
    /// How long at least one request was in flight.
    pub busy: Duration,
    /// How long all requests were in flight together.
    pub queued: Duration,
}

/// The counters of all devices of a target at one moment.
#[derive(Debug, Clone)]
struct Sample {
    at: Instant,
    devices: Vec<DeviceTime>,
}

/// Collects the counters of a run.
#[derive(Debug)]
pub(crate) struct DeviceLog {
    every: Duration,
    samples: Vec<Sample>,
    window: [Sample; 2],
}

impl DeviceLog {
    /// Begins with the counters as they are.
    pub(crate) fn begin(devices: Vec<DeviceTime>) -> Self {
        let first = Sample { at: Instant::now(), devices };
        Self { every: INTERVAL, samples: vec![first.clone()], window: [first.clone(), first] }
    }

    /// Returns when the next sample is due; `None` where no device is measured.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.samples.last().filter(|last| !last.devices.is_empty()).map(|last| last.at + self.every)
    }

    /// Takes a sample.
    pub(crate) fn sample(&mut self, devices: Vec<DeviceTime>) {
        self.samples.push(Sample { at: Instant::now(), devices });
        if self.samples.len() > SAMPLES_MAX {
            let mut at = 0;
            self.samples.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.every *= 2;
        }
    }

    /// Takes note of where the counted window begins (0) and ends (1).
    pub(crate) fn mark(&mut self, end: usize, devices: Vec<DeviceTime>) {
        self.window[end] = Sample { at: Instant::now(), devices };
    }

    /// Returns how busy each device was; `go`: when the threads were let go.
    pub(crate) fn conclude(&self, go: Instant) -> Vec<DeviceUse> {
        let [first, last] = &self.window;
        let of = |(at, device): (usize, &DeviceTime)| {
            let (busy_percent, queue_depth_mean) = between(first, last, at).unwrap_or_default();
            let point = |pair: &[Sample]| {
                let (busy_percent, queue_depth_mean) = between(&pair[0], &pair[1], at)?;
                let t_s = pair[1].at.saturating_duration_since(go).as_secs_f64();
                Some(DevicePoint { t_s, busy_percent, queue_depth_mean })
            };
            DeviceUse {
                name: device.name.clone(),
                busy_percent,
                queue_depth_mean,
                series: self.samples.windows(2).filter_map(point).collect(),
            }
        };
        last.devices.iter().enumerate().map(of).collect()
    }
}

/// Returns how busy a device was between two samples, in percent, and how many requests were in
/// flight.
fn between(a: &Sample, b: &Sample, at: usize) -> Option<(f64, f64)> {
    let (then, now) = (a.devices.get(at)?, b.devices.get(at)?);
    let seconds = b.at.saturating_duration_since(a.at).as_secs_f64();
    if seconds <= 0.0 || then.name != now.name {
        return None;
    }
    let part = |now: Duration, then: Duration| now.saturating_sub(then).as_secs_f64() / seconds;
    // The kernel counts in ticks, of which one may belong to the interval before.
    Some(((part(now.busy, then.busy) * 100.0).min(100.0), part(now.queued, then.queued)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(busy_ms: u64, queued_ms: u64) -> Vec<DeviceTime> {
        vec![DeviceTime {
            name: "sda".into(),
            busy: Duration::from_millis(busy_ms),
            queued: Duration::from_millis(queued_ms),
        }]
    }

    fn at(go: Instant, ms: u64, devices: Vec<DeviceTime>) -> Sample {
        Sample { at: go + Duration::from_millis(ms), devices }
    }

    #[test]
    fn intervals_are_differences_and_the_window_is_the_counted_part() {
        let go = Instant::now();
        let log = DeviceLog {
            every: INTERVAL,
            samples: vec![
                at(go, 0, time(70, 700)),
                at(go, 100, time(170, 900)),
                at(go, 200, time(170, 900)),
                at(go, 300, time(220, 950)),
            ],
            window: [at(go, 100, time(170, 900)), at(go, 300, time(220, 950))],
        };
        let found = log.conclude(go);
        assert_eq!(found.len(), 1);
        let of = |point: &DevicePoint| (point.busy_percent.round(), point.queue_depth_mean.round());
        let series: Vec<_> = found[0].series.iter().map(of).collect();
        assert_eq!(series, [(100.0, 2.0), (0.0, 0.0), (50.0, 1.0)]);
        assert!((found[0].busy_percent - 25.0).abs() < 0.1, "{found:?}");
        assert!((found[0].queue_depth_mean - 0.25).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn a_long_run_has_longer_intervals_and_no_more_samples() {
        let mut log = DeviceLog::begin(time(0, 0));
        (1..=SAMPLES_MAX as u64).for_each(|n| log.sample(time(n, n)));
        assert_eq!((log.samples.len(), log.every), (SAMPLES_MAX / 2 + 1, 2 * INTERVAL));
        assert_eq!(log.samples[1].devices, time(2, 2));
        assert_eq!(DeviceLog::begin(Vec::new()).due(), None, "nothing is measured");
    }
}
