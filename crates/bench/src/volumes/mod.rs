//! `volume`: what layouts of several devices reach of what their members reach, one right after the
//! other, round by round.

mod background;
mod load;
mod plain;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bedplate::{
    AlignedBuf, Arrangement, BlockDevice, Group, ImportOptions, MemoryDevice, NewGroup,
    RequestKind, Shape, Volume, create_group, format_size,
};
use serde::{Deserialize, Serialize};

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
    /// Only measurements whose name contains one of these; none: all.
    pub only: Vec<String>,
}

/// What a layout reached, and what it is compared with: medians of all rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VolumeRow {
    /// What was done.
    pub what: String,
    /// The unit of both figures.
    pub unit: String,
    /// What the volume reached.
    pub volume: f64,
    /// What it is compared with.
    pub reference: f64,
    /// What that is.
    pub of: String,
    /// The median of the rounds' ratios.
    pub ratio: f64,
    /// The same of what a plain loop reaches that issues the member operations of the layout, from
    /// as many threads; `None` where that is the reference.
    pub plain_ratio: Option<f64>,
    /// What else was counted.
    pub note: String,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// How often the volume and what it is compared with took turns.
    pub rounds: usize,
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
            count => {
                return Err(Error::usage(format!(
                    "{count} members were given: give {}, or none for memory",
                    MEMBERS + 1
                )));
            }
        };
        if let Some(small) = devices.iter().find(|device| device.size_bytes() < 48 << 20) {
            return Err(Error::usage(format!(
                "{} has {}: a member has 48 MiB at least",
                small.name(),
                format_size(small.size_bytes())
            )));
        }
        if self.rounds == 0 || self.time.is_zero() {
            return Err(Error::usage("there is nothing to measure: give rounds and a time"));
        }
        for device in &devices {
            fill(device)?;
        }
        let bench = Bench { options: self, devices: &devices };
        let mut rows = Vec::new();
        for (name, measure) in MEASUREMENTS {
            if self.only.is_empty() || self.only.iter().any(|only| name.contains(only.as_str())) {
                rows.extend(measure(&bench)?);
            }
        }
        if rows.is_empty() {
            let names: Vec<&str> = MEASUREMENTS.iter().map(|(name, _)| *name).collect();
            return Err(Error::usage(format!(
                "no measurement is called so: there are {}",
                names.join(", ")
            )));
        }
        for device in &devices {
            erase(device)?;
        }
        Ok(VolumeReport {
            rounds: self.rounds,
            members: devices.iter().map(|device| device.name().to_owned()).collect(),
            rows,
        })
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

/// What is measured, by name.
type Measurement = (&'static str, fn(&Bench<'_>) -> Result<Vec<VolumeRow>>);

const MEASUREMENTS: [Measurement; 9] = [
    ("one", |bench| Ok(vec![bench.one()?])),
    ("stripe-read", |bench| Ok(vec![bench.stripe(RequestKind::Read)?])),
    ("stripe-write", |bench| Ok(vec![bench.stripe(RequestKind::Write)?])),
    ("mirror-read", |bench| Ok(vec![bench.mirror()?])),
    ("raid5-rows", |bench| Ok(vec![bench.parity(true)?])),
    ("raid5-small", |bench| Ok(vec![bench.parity(false)?])),
    ("rebuild", |bench| bench.rebuild()),
    ("resync", |bench| bench.resync()),
    ("foreground", |bench| bench.foreground()),
];

struct Bench<'a> {
    options: &'a Volumes,
    devices: &'a [Arc<dyn BlockDevice>],
}

impl Bench<'_> {
    /// Makes a group whose copies agree.
    fn group(&self, shape: Shape, members: usize, background: bool) -> Result<Group> {
        let group = self.new_group(shape, members, background)?;
        group.sync().map_err(told)?;
        Ok(group)
    }

    /// Makes a group. Until it is synchronised, all of it is in doubt.
    fn new_group(&self, shape: Shape, members: usize, background: bool) -> Result<Group> {
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
        drop(new);
        self.import(members.len(), background)
    }

    fn import(&self, members: usize, background: bool) -> Result<Group> {
        Group::import(
            &self.devices[..members],
            &ImportOptions { background, ..ImportOptions::default() },
        )
        .map_err(told)
    }

    /// Lets all take turns and returns the medians: of the volume, of the reference, of the ratio
    /// to it and, where there is one, to the plain loop.
    fn turns(
        &self,
        mut volume: impl FnMut() -> Result<f64>,
        mut reference: impl FnMut() -> Result<f64>,
        mut plain: Option<&mut dyn FnMut() -> Result<f64>>,
    ) -> Result<Medians> {
        let (mut rates, mut plains) = (Vec::new(), Vec::new());
        for round in 0..self.options.rounds {
            // The order alternates, so that neither always meets a warm machine.
            let early = if round % 2 == 1 { Some(reference()?) } else { None };
            let one = volume()?;
            let other = early.map_or_else(&mut reference, Ok)?;
            rates.push((one, other));
            if let Some(plain) = &mut plain {
                plains.push(one / plain()?.max(f64::MIN_POSITIVE));
            }
        }
        Ok(Medians {
            plain_ratio: (!plains.is_empty()).then(|| median(&plains)),
            ..medians(&rates)
        })
    }

    fn one(&self) -> Result<VolumeRow> {
        let device = &self.devices[0];
        let volume = Volume::over(Arc::clone(device)).device();
        let load = Load { kind: RequestKind::Write, request_bytes: 8192, depth: 16, random: true };
        let run = |device: &Arc<dyn BlockDevice>| {
            Ok(rate(&parts(device, DATA_START, 1, 8192), load, self.options.time)?.0)
        };
        let told = self.turns(|| run(&volume), || run(device), None)?;
        let same = if Arc::ptr_eq(&volume, device) {
            "the volume is the device itself"
        } else {
            "a layer lies in between"
        };
        Ok(row("one device: 8 KiB writes, queue of 16", "1/s", told, "the device", same.into()))
    }

    /// Each member at full depth alone and all at once, against as many threads on the volume with
    /// the same depth in all, and on the members in turn.
    fn against_sum(
        &self,
        device: &Arc<dyn BlockDevice>,
        members: usize,
        load: Load,
    ) -> Result<Medians> {
        let own = parts(device, 0, members as u64, load.request_bytes);
        let of_members: Vec<Part> = self.devices[..members]
            .iter()
            .flat_map(|member| parts(member, DATA_START, 1, load.request_bytes))
            .collect();
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        let mut plain = || {
            Ok(mib(plain::dealt(&self.devices[..members], members, load, self.options.time)?
                * load.request_bytes as f64))
        };
        let time = self.options.time;
        self.turns(
            || Ok(mib(rate(&own, load, time)?.1)),
            || Ok(mib(rate(&of_members, load, time)?.1)),
            Some(&mut plain),
        )
    }

    fn stripe(&self, kind: RequestKind) -> Result<VolumeRow> {
        let group = self.group(Shape::Stripe, MEMBERS, false)?;
        let device = volume_of(&group)?;
        let load = Load { kind, request_bytes: 64 << 10, depth: 8, random: false };
        let told = self.against_sum(&device, MEMBERS, load)?;
        let what = format!(
            "stripe over {MEMBERS}: sequential {}s of 64 KiB, {MEMBERS} queues of 8",
            name(kind)
        );
        Ok(row(&what, "MiB/s", told, "the sum of the members", String::new()))
    }

    fn mirror(&self) -> Result<VolumeRow> {
        let group = self.group(Shape::Mirror, 2, false)?;
        let device = volume_of(&group)?;
        let load = Load { kind: RequestKind::Read, request_bytes: 8192, depth: 16, random: true };
        let told = self.against_sum(&device, 2, load)?;
        Ok(row(
            "mirror of 2: random reads of 8 KiB, 2 queues of 16",
            "MiB/s",
            told,
            "the sum of the plexes",
            String::new(),
        ))
    }

    /// Whole rows against the bytes that their data members write; small writes against small
    /// writes on one member.
    fn parity(&self, whole: bool) -> Result<VolumeRow> {
        let group = self.group(Shape::Raid5, MEMBERS, false)?;
        let device = volume_of(&group)?;
        let data = MEMBERS as u64 - 1;
        let request_bytes = if whole { data * Shape::Raid5.unit_bytes_default() } else { 4096 };
        let load = Load { kind: RequestKind::Write, request_bytes, depth: 16, random: !whole };
        let own = parts(&device, 0, 1, request_bytes);
        let alone = Load {
            request_bytes: if whole { request_bytes / data } else { request_bytes },
            ..load
        };
        let (mut operations, mut requests) = ((0, 0, 0), 0);
        let volume = || {
            group.reset_statistics();
            let told = rate(&own, load, self.options.time)?;
            let sum = |of: &dyn Fn(&bedplate::MemberStatistics) -> u64| {
                group.statistics().iter().flatten().map(of).sum::<u64>()
            };
            operations.0 += sum(&|member| member.reads.operations);
            operations.1 += sum(&|member| member.writes.operations);
            operations.2 += sum(&|member| member.flushes.operations);
            requests += group
                .volume_statistics(bedplate::Role::Data)
                .map_or(0, |told| told.writes.operations);
            Ok(told.0)
        };
        let members = if whole { &self.devices[..data as usize] } else { &self.devices[..1] };
        let of_members: Vec<Part> = members
            .iter()
            .flat_map(|member| parts(member, DATA_START, 1, alone.request_bytes))
            .collect();
        let lanes = members.len() as f64;
        let (unit_bytes, time) = (Shape::Raid5.unit_bytes_default(), self.options.time);
        let mut plain = || match whole {
            true => plain::rows(&self.devices[..MEMBERS], unit_bytes, load.depth, time),
            false => plain::small_writes(&self.devices[..MEMBERS], request_bytes, load.depth, time),
        };
        let told =
            self.turns(volume, || Ok(rate(&of_members, alone, time)?.0 / lanes), Some(&mut plain))?;
        let each = |count: u64| count as f64 / (requests as f64).max(1.0);
        let operations = (each(operations.0), each(operations.1), each(operations.2));
        let (what, of, note) = told_of_parity(whole, request_bytes, operations);
        Ok(row(&what, "1/s", told, of, note))
    }
}

/// Says what was measured of a RAID-5, against what, and what a write took of its members.
fn told_of_parity(
    whole: bool,
    request_bytes: u64,
    (reads, writes, flushes): (f64, f64, f64),
) -> (String, &'static str, String) {
    let least =
        if whole { format!("0 and {MEMBERS}") } else { "2 and 2, besides 2 of the log".to_owned() };
    let note = format!(
        "{reads:.2} reads, {writes:.2} writes and {flushes:.2} flushes of members for each write; \
         alone it takes at least {least}"
    );
    let (what, of) = if whole {
        (
            format!(
                "RAID-5 over {MEMBERS}: whole rows of {}, queue of 16",
                format_size(request_bytes)
            ),
            "units by that many members at once",
        )
    } else {
        (format!("RAID-5 over {MEMBERS}: random writes of 4 KiB, queue of 16"), "one member")
    };
    (what, of, note)
}

fn volume_of(group: &Group) -> Result<Arc<dyn BlockDevice>> {
    group
        .volume(bedplate::Role::Data)
        .ok_or_else(|| Error::target("the group has no volume for data"))
}

#[expect(clippy::needless_pass_by_value, reason = "map_err hands it over")]
fn told(error: bedplate::GroupError) -> Error {
    Error::target(error.to_string())
}

fn name(kind: RequestKind) -> &'static str {
    if kind == RequestKind::Read { "read" } else { "write" }
}

/// The medians of all rounds.
#[derive(Debug, Clone, Copy)]
struct Medians {
    volume: f64,
    reference: f64,
    ratio: f64,
    plain_ratio: Option<f64>,
}

fn row(what: &str, unit: &str, told: Medians, of: &str, note: String) -> VolumeRow {
    let Medians { volume, reference, ratio, plain_ratio } = told;
    VolumeRow {
        what: what.to_owned(),
        unit: unit.to_owned(),
        volume,
        reference,
        of: of.to_owned(),
        ratio,
        plain_ratio,
        note,
    }
}

fn median(values: &[f64]) -> f64 {
    Spread::of(values).median
}

fn medians(pairs: &[(f64, f64)]) -> Medians {
    let of = |of: &dyn Fn(&(f64, f64)) -> f64| median(&pairs.iter().map(of).collect::<Vec<_>>());
    let ratio = of(&|pair| pair.0 / pair.1.max(f64::MIN_POSITIVE));
    Medians { volume: of(&|pair| pair.0), reference: of(&|pair| pair.1), ratio, plain_ratio: None }
}

impl fmt::Display for VolumeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let VolumeRow { what, unit, volume, reference, of, ratio, plain_ratio, note } = row;
            writeln!(
                f,
                "{what}\n    {ratio:.2} of {of}: {volume:.0} {unit}, {reference:.0} {unit}"
            )?;
            if let Some(plain) = plain_ratio {
                writeln!(f, "    {plain:.2} of a plain loop with the members' operations")?;
            }
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
        let members: Vec<Arc<dyn BlockDevice>> =
            (0..5).map(|_| MemoryDevice::new(48 << 20) as _).collect();
        let options = Volumes {
            members: members.clone(),
            size_bytes: 0,
            time: Duration::from_millis(40),
            rounds: 1,
            only: Vec::new(),
        };
        let report = options.measure().unwrap();
        assert_eq!(report.rows.len(), 12);
        assert!(
            report.rows.iter().filter(|row| row.plain_ratio.is_some()).count() == 5,
            "{report}"
        );
        assert!(
            report
                .rows
                .iter()
                .all(|row| row.volume > 0.0 && row.reference > 0.0 && row.ratio > 0.0),
            "{report}"
        );
        assert_eq!(report.rows[0].note, "the volume is the device itself");
        // A whole row is written without a read, and by one write of every member.
        assert!(report.rows[4].note.starts_with("0.00 reads, "), "{report}");
        assert!(members.iter().all(|member| bedplate::Label::read(&**member).is_err()));
        assert!(Volumes { members: members[..3].to_vec(), ..options.clone() }.measure().is_err());
        assert!(Volumes { rounds: 0, ..options.clone() }.measure().is_err());
        assert!(
            Volumes { only: vec!["tape".into()], ..options }
                .measure()
                .unwrap_err()
                .to_string()
                .contains("raid5-rows")
        );
    }
}
