//! Background work: filling a member, resynchronising copies after a crash, and its effect on
//! foreground latency.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate::{AlignedBuf, BlockDevice, Group, MemberState, RequestKind, Shape};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::load::{Load, parts, rate};
use super::{Bench, DATA_START, MEMBERS, Medians, VolumeRow, erase, medians, row, told, volume_of};
use crate::Result;

const MIB: f64 = (1 << 20) as f64;
/// How a device's sequential rate is measured.
const SEQUENTIAL: Load =
    Load { kind: RequestKind::Read, request_bytes: 256 << 10, depth: 4, random: false };
/// Timed rounds of foreground work while a member is filled; fewer when it is full before.
const TIME_FACTOR_MAX: u32 = 4;

/// Foreground latency while a member is filled.
struct Felt {
    before_us: f64,
    during_us: f64,
    mib_per_s: f64,
}

impl Bench<'_> {
    /// Returns the fifth device, which is a member of no group.
    fn newcomer(&self) -> Result<&Arc<dyn BlockDevice>> {
        let device = &self.devices[MEMBERS];
        erase(device)?;
        Ok(device)
    }

    /// Returns the sequential rate of a member in MiB/s.
    fn sequential(&self, kind: RequestKind) -> Result<f64> {
        let parts = parts(&self.devices[MEMBERS], DATA_START, 1, SEQUENTIAL.request_bytes);
        Ok(rate(&parts, Load { kind, ..SEQUENTIAL }, self.options.time)?.1 / MIB)
    }

    /// A member is replaced without foreground work: bytes of the member per second.
    pub(super) fn rebuild(&self) -> Result<Vec<VolumeRow>> {
        let mut rows = Vec::new();
        for (shape, members, name) in
            [(Shape::Mirror, 2, "mirror of 2"), (Shape::Raid5, MEMBERS, "RAID-5 over 4")]
        {
            let (mut copies, mut writes) = (Vec::new(), Vec::new());
            for _ in 0..self.options.rounds {
                let (copied, written) = (self.copy()?, self.sequential(RequestKind::Write)?);
                let group = self.group(shape, members, false)?;
                let columns = if shape.has_parity() { MEMBERS - 1 } else { 1 };
                let bytes = volume_of(&group)?.size_bytes() as f64 / columns as f64;
                let start = Instant::now();
                group.replace(1, self.newcomer()?).map_err(told)?;
                group.sync().map_err(told)?;
                let filled = bytes / MIB / start.elapsed().as_secs_f64();
                copies.push((filled, copied));
                writes.push((filled, written));
            }
            let note = format!(
                "{:.2} of the member's sequential writes, queue of 4",
                medians(&writes).ratio
            );
            let what = format!("{name}: a new member is filled, nothing else works");
            rows.push(row(
                &what,
                "MiB/s",
                medians(&copies),
                "a plain copy from member to member",
                note,
            ));
        }
        Ok(rows)
    }

    /// All regions are in doubt, as after a crash under writes everywhere: bytes of each member
    /// that are compared in a second.
    pub(super) fn resync(&self) -> Result<Vec<VolumeRow>> {
        let mut rows = Vec::new();
        for (shape, members, name) in
            [(Shape::Mirror, 2, "mirror of 2"), (Shape::Raid5, MEMBERS, "RAID-5 over 4")]
        {
            let mut rates = Vec::new();
            for _ in 0..self.options.rounds {
                let read = self.sequential(RequestKind::Read)?;
                let group = self.crashed(shape, members)?;
                let columns = if shape.has_parity() { MEMBERS - 1 } else { 1 };
                let bytes = volume_of(&group)?.size_bytes() as f64 / columns as f64;
                let start = Instant::now();
                group.sync().map_err(told)?;
                rates.push((bytes / MIB / start.elapsed().as_secs_f64(), read));
            }
            let what = format!("{name}: all of it is resynchronised, nothing else works");
            rows.push(row(
                &what,
                "MiB/s",
                medians(&rates),
                "sequential reads of one member, queue of 4",
                String::new(),
            ));
        }
        Ok(rows)
    }

    /// Returns a group that was not closed in order after every region was written to.
    fn crashed(&self, shape: Shape, members: usize) -> Result<Group> {
        let group = self.group(shape, members, false)?;
        let (device, block) = (volume_of(&group)?, AlignedBuf::zeroed(4096));
        for at in (0..device.size_bytes()).step_by(1 << 20) {
            device.write_at(&block, at)?;
        }
        // Neither is ever closed: that is the crash.
        std::mem::forget((device, group));
        self.import(members, false)
    }

    /// Foreground latency while a member is filled, with the default limit and without one.
    pub(super) fn foreground(&self) -> Result<Vec<VolumeRow>> {
        let mut rows = Vec::new();
        for (limit, words) in [
            (bedplate::FOREGROUND_PERCENT_DEFAULT, "at most 1.50 times wanted"),
            (bedplate::FOREGROUND_UNLIMITED, "no limit"),
        ] {
            let (mut felt, mut fractions) = (Vec::new(), Vec::new());
            for _ in 0..self.options.rounds {
                let one = self.feel(limit)?;
                fractions.push((one.mib_per_s, self.copy()?));
                felt.push((one.during_us, one.before_us));
            }
            let filled: Medians = medians(&fractions);
            let note = format!(
                "filled at {:.0} MiB/s meanwhile, {:.2} of a plain copy",
                filled.volume, filled.ratio
            );
            let what =
                format!("mirror of 2: p99 of 8 KiB writes while a member is filled, {words}");
            rows.push(row(&what, "µs", medians(&felt), "the same without", note));
        }
        Ok(rows)
    }

    /// Copies from the first member to the fifth, in the pieces that a rebuild takes, and returns
    /// MiB/s.
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
        Ok((count * PIECE) as f64 / MIB / start.elapsed().as_secs_f64())
    }

    fn feel(&self, limit: u16) -> Result<Felt> {
        let group = self.group(Shape::Mirror, 2, true)?;
        group.set_foreground(limit).map_err(told)?;
        let device = volume_of(&group)?;
        let until = Instant::now() + self.options.time;
        let before_us = p99_us(&device, &mut || Instant::now() < until)?;
        group.replace(1, self.newcomer()?).map_err(told)?;
        let (start, until) = (Instant::now(), Instant::now() + TIME_FACTOR_MAX * self.options.time);
        let is_full = |group: &Group| {
            group.config().members.iter().take(2).all(|member| member.state == MemberState::Active)
        };
        let mut full = None;
        let during_us = p99_us(&device, &mut || {
            full = full.or(is_full(&group).then(|| start.elapsed()));
            full.is_none() && Instant::now() < until
        })?;
        let (progress, took): (_, Duration) =
            (group.progress(), full.unwrap_or_else(|| start.elapsed()));
        let mib_per_s = (device.size_bytes().saturating_sub(progress.pending_bytes)) as f64
            / MIB
            / took.as_secs_f64();
        Ok(Felt { before_us, during_us, mib_per_s })
    }
}

/// Writes 8 KiB at random places, one after the other, and returns the time in which 99 of 100
/// ended.
fn p99_us(device: &Arc<dyn BlockDevice>, go_on: &mut dyn FnMut() -> bool) -> Result<f64> {
    let (buf, mut rng, mut times) =
        (AlignedBuf::zeroed(8192), Xoshiro256PlusPlus::seed_from_u64(9), Vec::new());
    while times.len() % 64 != 0 || go_on() || times.is_empty() {
        let at = rng.random_range(0..device.size_bytes() / 8192) * 8192;
        let start = Instant::now();
        device.write_at(&buf, at)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[(times.len() * 99 / 100).min(times.len() - 1)])
}
