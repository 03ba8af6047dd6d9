//! `volume`: what layouts of several devices reach of what their members reach, one right after the other, round by round.

mod load;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate::{
    AlignedBuf, Arrangement, BlockDevice, Group, ImportOptions, MemberState, MemoryDevice, NewGroup, RequestKind, Shape, Volume, create_group,
    format_size,
};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::{Error, Result, Spread};
use load::{Load, Part, parts, rate};

/// How many members are measured, and one more that takes a place.
const MEMBERS: usize = 4;
/// Where data begins on a member; below it nothing is written past the group.
const DATA_START: u64 = 8 << 20;

/// What a group keeps for itself at the beginning of a member.
const LABELS: u64 = 4 << 20;

/// Options of the measurement.
#[derive(Debug, Clone)]
pub struct Volumes {
    /// Five devices, overwritten; none: memory.
    pub members: Vec<Arc<dyn BlockDevice>>,
    /// Size of each where it is memory, in bytes.
    pub size_bytes: u64,
    /// How long one measurement lasts.
    pub time: Duration,
    /// How often the volume and its members take turns.
    pub rounds: usize,
}

/// What a layout reached, and what it is compared with: medians of all rounds.
#[derive(Debug, Clone, Serialize)]
pub struct VolumeRow {
    /// What was done.
    pub what: String,
    /// The unit of both figures.
    pub unit: &'static str,
    /// What the volume reached.
    pub volume: f64,
    /// What it is compared with.
    pub reference: f64,
    /// What that is.
    pub of: String,
    /// The median of the rounds' ratios.
    pub ratio: f64,
    /// What else was counted.
    pub note: String,
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct VolumeReport {
    /// What the members are.
    pub members: Vec<String>,
    /// The results.
    pub rows: Vec<VolumeRow>,
}

impl Volumes {
    /// Measures everything.
    ///
    /// # Errors
    /// When there are not five members of enough space, or one fails.
    pub fn measure(&self) -> Result<VolumeReport> {
        let devices: Vec<Arc<dyn BlockDevice>> = match self.members.len() {
            0 => (0..=MEMBERS).map(|_| MemoryDevice::new(self.size_bytes) as _).collect(),
            5 => self.members.clone(),
            count => return Err(Error::usage(format!("{count} members were given: give {}, or none for memory", MEMBERS + 1))),
        };
        if let Some(small) = devices.iter().find(|device| device.size_bytes() < 48 << 20) {
            return Err(Error::usage(format!("{} has {}: a member has 48 MiB at least", small.name(), format_size(small.size_bytes()))));
        }
        if self.rounds == 0 || self.time.is_zero() {
            return Err(Error::usage("there is nothing to measure: give rounds and a time"));
        }
        for device in &devices {
            fill(device)?;
        }
        let bench = Bench { options: self, devices: &devices };
        let mut rows = vec![bench.one()?];
        for kind in [RequestKind::Read, RequestKind::Write] {
            rows.push(bench.stripe(kind)?);
        }
        rows.push(bench.mirror()?);
        rows.extend([bench.parity(true)?, bench.parity(false)?]);
        rows.extend(bench.rebuild()?);
        for device in &devices {
            erase(device)?;
        }
        Ok(VolumeReport { members: devices.iter().map(|device| device.name().to_owned()).collect(), rows })
    }
}

/// Writes every byte once: reads of what was never written tell nothing.
fn fill(device: &Arc<dyn BlockDevice>) -> Result<()> {
    let mut buf = AlignedBuf::zeroed(4 << 20);
    crate::target::fill_pattern(&mut buf, 1);
    for at in (0..device.size_bytes() / buf.len() as u64).map(|n| n * buf.len() as u64) {
        device.write_at(&buf, at)?;
    }
    Ok(device.flush()?)
}

/// Leaves no label.
fn erase(device: &Arc<dyn BlockDevice>) -> Result<()> {
    Ok(device.write_zeroes(0, LABELS)?)
}

struct Bench<'a> {
    options: &'a Volumes,
    devices: &'a [Arc<dyn BlockDevice>],
}

impl Bench<'_> {
    fn group(&self, shape: Shape, members: usize, background: bool) -> Result<Group> {
        let members = self.devices[..members].to_vec();
        let data = Arrangement { shape, unit_bytes: shape.unit_bytes_default(), plexes: 2 };
        let new = NewGroup {
            name: "bench".into(),
            data,
            members: members.clone(),
            log_members: Vec::new(),
            spares: Vec::new(),
            region_bytes: None,
            reserve_bytes: 0,
            force: true,
        };
        create_group(&new).map_err(told)?;
        let group = Group::import(&members, &ImportOptions { background, ..ImportOptions::default() }).map_err(told)?;
        group.sync().map_err(told)?;
        Ok(group)
    }

    /// Lets both take turns and returns the medians: of the volume, of the reference, of their ratio.
    fn turns(&self, mut volume: impl FnMut() -> Result<f64>, mut reference: impl FnMut() -> Result<f64>) -> Result<(f64, f64, f64)> {
        let (mut volumes, mut references, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..self.options.rounds {
            // Who begins changes, so that neither always meets a warm machine.
            let (one, other) = if round % 2 == 0 {
                let one = volume()?;
                (one, reference()?)
            } else {
                let other = reference()?;
                (volume()?, other)
            };
            volumes.push(one);
            references.push(other);
            ratios.push(one / other.max(f64::MIN_POSITIVE));
        }
        Ok((median(&volumes), median(&references), median(&ratios)))
    }

    fn one(&self) -> Result<VolumeRow> {
        let device = &self.devices[0];
        let volume = Volume::over(Arc::clone(device)).device();
        let load = Load { kind: RequestKind::Write, request_bytes: 8192, depth: 16, random: true };
        let run = |device: &Arc<dyn BlockDevice>| Ok(rate(&parts(device, DATA_START, 1, 8192), load, self.options.time)?.0);
        let told = self.turns(|| run(&volume), || run(device))?;
        let same = if Arc::ptr_eq(&volume, device) { "the volume is the device itself" } else { "a layer lies in between" };
        Ok(row("one device: 8 KiB writes, queue of 16", "1/s", told, "the device", same.into()))
    }

    /// Each member at full depth alone and all at once, against as many threads on the volume with the same depth in all.
    fn against_sum(&self, device: &Arc<dyn BlockDevice>, members: usize, load: Load) -> Result<(f64, f64, f64)> {
        let own = parts(device, 0, members as u64, load.request_bytes);
        let of_members: Vec<Part> = self.devices[..members].iter().flat_map(|member| parts(member, DATA_START, 1, load.request_bytes)).collect();
        let mib = |told: (f64, f64)| told.1 / f64::from(1 << 20);
        self.turns(|| Ok(mib(rate(&own, load, self.options.time)?)), || Ok(mib(rate(&of_members, load, self.options.time)?)))
    }

    fn stripe(&self, kind: RequestKind) -> Result<VolumeRow> {
        let group = self.group(Shape::Stripe, MEMBERS, false)?;
        let device = volume_of(&group)?;
        let load = Load { kind, request_bytes: 64 << 10, depth: 8, random: false };
        let told = self.against_sum(&device, MEMBERS, load)?;
        let what = format!("stripe over {MEMBERS}: sequential {}s of 64 KiB, {MEMBERS} queues of 8", name(kind));
        Ok(row(&what, "MiB/s", told, "the sum of the members", String::new()))
    }

    fn mirror(&self) -> Result<VolumeRow> {
        let group = self.group(Shape::Mirror, 2, false)?;
        let device = volume_of(&group)?;
        let load = Load { kind: RequestKind::Read, request_bytes: 8192, depth: 16, random: true };
        let told = self.against_sum(&device, 2, load)?;
        Ok(row("mirror of 2: random reads of 8 KiB, 2 queues of 16", "MiB/s", told, "the sum of the plexes", String::new()))
    }

    /// Whole rows against the bytes that their data members write; small writes against small writes on one member.
    fn parity(&self, whole: bool) -> Result<VolumeRow> {
        let group = self.group(Shape::Raid5, MEMBERS, false)?;
        let device = volume_of(&group)?;
        let data = MEMBERS as u64 - 1;
        let request_bytes = if whole { data * Shape::Raid5.unit_bytes_default() } else { 4096 };
        let load = Load { kind: RequestKind::Write, request_bytes, depth: 16, random: !whole };
        let own = parts(&device, 0, 1, request_bytes);
        let alone = Load { request_bytes: if whole { request_bytes / data } else { request_bytes }, ..load };
        let (mut operations, mut requests) = ((0, 0, 0), 0);
        let volume = || {
            group.reset_statistics();
            let told = rate(&own, load, self.options.time)?;
            let sum = |of: &dyn Fn(&bedplate::MemberStatistics) -> u64| group.statistics().iter().flatten().map(of).sum::<u64>();
            operations.0 += sum(&|member| member.reads.operations);
            operations.1 += sum(&|member| member.writes.operations);
            operations.2 += sum(&|member| member.flushes.operations);
            requests += group.volume_statistics(bedplate::Role::Data).map_or(0, |told| told.writes.operations);
            Ok(told.0)
        };
        let members = if whole { &self.devices[..data as usize] } else { &self.devices[..1] };
        let of_members: Vec<Part> = members.iter().flat_map(|member| parts(member, DATA_START, 1, alone.request_bytes)).collect();
        let lanes = members.len() as f64;
        let told = self.turns(volume, || Ok(rate(&of_members, alone, self.options.time)?.0 / lanes))?;
        let each = |count: u64| count as f64 / (requests as f64).max(1.0);
        let least = if whole { format!("0 and {MEMBERS}") } else { "2 and 2, besides 2 of the log".to_owned() };
        let note = format!(
            "{:.2} reads, {:.2} writes and {:.2} flushes of members for each write; alone it takes at least {least}",
            each(operations.0),
            each(operations.1),
            each(operations.2)
        );
        let (what, of) = if whole {
            (format!("RAID-5 over {MEMBERS}: whole rows of {}, queue of 16", format_size(request_bytes)), "units by that many members at once")
        } else {
            (format!("RAID-5 over {MEMBERS}: random writes of 4 KiB, queue of 16"), "one member")
        };
        Ok(row(&what, "1/s", told, of, note))
    }

    /// A member is replaced: how fast it is filled while nobody works, and what somebody who works meanwhile feels.
    fn rebuild(&self) -> Result<[VolumeRow; 2]> {
        let (mut filled, mut latency) = (Vec::new(), Vec::new());
        for _ in 0..self.options.rounds {
            let copied = self.copy()?;
            let group = self.group(Shape::Mirror, 2, false)?;
            let bytes = volume_of(&group)?.size_bytes();
            let start = Instant::now();
            group.replace(1, self.newcomer()?).map_err(told)?;
            group.sync().map_err(told)?;
            filled.push((bytes as f64 / f64::from(1 << 20) / start.elapsed().as_secs_f64(), copied));
            drop(group);
            latency.push(self.foreground()?);
        }
        let told = medians(&filled);
        let first = row("mirror of 2: a new member is filled, nobody else works", "MiB/s", told, "a plain copy from member to member", String::new());
        let pairs: Vec<(f64, f64)> = latency.iter().map(|told| (told.during_us, told.before_us)).collect();
        let rate = median(&latency.iter().map(|told| told.mib_per_s).collect::<Vec<_>>());
        let note = format!("filled at {rate:.0} MiB/s meanwhile");
        Ok([first, row("mirror of 2: p99 of 8 KiB writes while a member is filled", "µs", medians(&pairs), "the same without", note)])
    }

    /// Returns the fifth device, which is nobody's member.
    fn newcomer(&self) -> Result<&Arc<dyn BlockDevice>> {
        let device = &self.devices[MEMBERS];
        erase(device)?;
        Ok(device)
    }

    /// Copies from the first member to the fifth, in the pieces that a rebuild takes, and returns MiB/s.
    fn copy(&self) -> Result<f64> {
        const PIECE: u64 = 256 << 10;
        let mut buf = AlignedBuf::zeroed(PIECE as usize);
        let (from, to) = (&self.devices[0], &self.devices[MEMBERS]);
        let count = (from.size_bytes().min(to.size_bytes()) - DATA_START) / PIECE;
        let start = Instant::now();
        for at in (0..count).map(|n| DATA_START + n * PIECE) {
            from.read_at(&mut buf, at)?;
            to.write_at(&buf, at)?;
        }
        Ok((count * PIECE) as f64 / f64::from(1 << 20) / start.elapsed().as_secs_f64())
    }

    fn foreground(&self) -> Result<Foreground> {
        let group = self.group(Shape::Mirror, 2, true)?;
        let device = volume_of(&group)?;
        let until = Instant::now() + self.options.time;
        let before_us = p99_us(&device, &mut || Instant::now() < until)?;
        let start = Instant::now();
        group.replace(1, self.newcomer()?).map_err(told)?;
        let mut filled_s = None;
        let during_us = p99_us(&device, &mut || {
            let is_filled = group.config().members.iter().take(2).all(|member| member.state == MemberState::Active);
            filled_s = filled_s.or(is_filled.then(|| start.elapsed().as_secs_f64()));
            !is_filled
        })?;
        let mib = device.size_bytes() as f64 / f64::from(1 << 20);
        Ok(Foreground { before_us, during_us, mib_per_s: mib / filled_s.unwrap_or(f64::INFINITY) })
    }
}

struct Foreground {
    before_us: f64,
    during_us: f64,
    mib_per_s: f64,
}

/// Writes 8 KiB at random places, one after the other, and returns the time in which 99 of 100 ended.
fn p99_us(device: &Arc<dyn BlockDevice>, go_on: &mut dyn FnMut() -> bool) -> Result<f64> {
    let (buf, mut rng, mut times) = (AlignedBuf::zeroed(8192), Xoshiro256PlusPlus::seed_from_u64(9), Vec::new());
    while times.len() % 64 != 0 || go_on() || times.is_empty() {
        let at = rng.random_range(0..device.size_bytes() / 8192) * 8192;
        let start = Instant::now();
        device.write_at(&buf, at)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[(times.len() * 99 / 100).min(times.len() - 1)])
}

fn volume_of(group: &Group) -> Result<Arc<dyn BlockDevice>> {
    group.volume(bedplate::Role::Data).ok_or_else(|| Error::target("the group has no volume for data"))
}

#[expect(clippy::needless_pass_by_value, reason = "map_err hands it over")]
fn told(error: bedplate::GroupError) -> Error {
    Error::target(error.to_string())
}

fn name(kind: RequestKind) -> &'static str {
    if kind == RequestKind::Read { "read" } else { "write" }
}

fn row(what: &str, unit: &'static str, (volume, reference, ratio): (f64, f64, f64), of: &str, note: String) -> VolumeRow {
    VolumeRow { what: what.to_owned(), unit, volume, reference, of: of.to_owned(), ratio, note }
}

fn median(values: &[f64]) -> f64 {
    Spread::of(values).median
}

fn medians(pairs: &[(f64, f64)]) -> (f64, f64, f64) {
    let of = |of: &dyn Fn(&(f64, f64)) -> f64| median(&pairs.iter().map(of).collect::<Vec<_>>());
    (of(&|pair| pair.0), of(&|pair| pair.1), of(&|pair| pair.0 / pair.1.max(f64::MIN_POSITIVE)))
}

impl fmt::Display for VolumeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let VolumeRow { what, unit, volume, reference, of, ratio, note } = row;
            writeln!(f, "{what}\n    {ratio:.2} of {of}: {volume:.0} {unit}, {reference:.0} {unit}")?;
            if !note.is_empty() {
                writeln!(f, "    {note}")?;
            }
        }
        write!(f, "members: {}", self.members.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_is_measured_and_no_group_stays_behind() {
        let members: Vec<Arc<dyn BlockDevice>> = (0..5).map(|_| MemoryDevice::new(48 << 20) as _).collect();
        let options = Volumes { members: members.clone(), size_bytes: 0, time: Duration::from_millis(40), rounds: 1 };
        let report = options.measure().unwrap();
        assert_eq!(report.rows.len(), 8);
        assert!(report.rows.iter().all(|row| row.volume > 0.0 && row.reference > 0.0 && row.ratio > 0.0), "{report}");
        assert_eq!(report.rows[0].note, "the volume is the device itself");
        // A whole row is written without a read, and by one write of every member.
        assert!(report.rows[4].note.starts_with("0.00 reads, "), "{report}");
        assert!(members.iter().all(|member| bedplate::Label::read(&**member).is_err()));
        assert!(Volumes { members: members[..3].to_vec(), ..options.clone() }.measure().is_err());
        assert!(Volumes { rounds: 0, ..options }.measure().is_err());
    }
}
