//! Power cuts: at every moment of a random workload, with any subset of what was not flushed, and
//! again after recovery.

use std::sync::Arc;

use bedplate_block::{
    BlockDevice, CrashChoice, Geometry, MemoryDevice, SimulatedDevice, SimulatedOptions, Snapshot,
};

use super::driver::{Bug, DATA_BYTES, Driver, History, LOG_BYTES, Setup, parts};
use super::*;
use crate::planted::{PlantedBug, plant};

type Judgement = std::result::Result<(), String>;

/// How a device may forget.
fn geometries() -> [Geometry; 3] {
    let disk = Geometry { volatile_cache: true, ..MemoryDevice::GEOMETRY };
    [disk, Geometry { untorn_unit: 4096, ..disk }, Geometry { volatile_cache: false, ..disk }]
}

struct Run {
    setup: Setup,
    geometry: Geometry,
    steps: u64,
    /// Images judged for each moment.
    choices: u64,
}

impl Run {
    fn devices(&self, images: &[Snapshot], seed: u64) -> Vec<Arc<SimulatedDevice>> {
        let options =
            SimulatedOptions { seed, geometry: self.geometry, ..SimulatedOptions::default() };
        images.iter().map(|image| SimulatedDevice::over(image, &options)).collect()
    }

    fn live(
        &self,
        images: &[Snapshot],
        history: History,
        last: Lsn,
        seed: u64,
    ) -> (Vec<Arc<SimulatedDevice>>, Driver) {
        let devices = self.devices(images, seed);
        let log = self.setup.separate.then(|| Arc::clone(&devices[1]));
        let mut driver =
            Driver::start(self.setup, Arc::clone(&devices[0]), log, history, last, seed);
        for _ in 0..self.steps {
            driver.step();
        }
        (devices, driver)
    }

    /// Cuts the power at every moment; calls `then` with what was found.
    fn cut_everywhere(
        &self,
        devices: &[Arc<SimulatedDevice>],
        driver: &Driver,
        dice: &mut Dice,
        mut then: impl FnMut(&mut Dice, Vec<Snapshot>, Lsn) -> Judgement,
    ) -> Judgement {
        for moment in 0..driver.moments.count() {
            let at = driver.moments.at(moment);
            let next = driver.moments.at((moment + 1).min(driver.moments.count() - 1));
            for choice in 0..self.choices {
                let choices = [CrashChoice::LoseAll, CrashChoice::KeepAll];
                let mut choose = || {
                    choices
                        .get(choice as usize)
                        .cloned()
                        .unwrap_or_else(|| CrashChoice::Seeded(dice.roll()))
                };
                let images: Vec<_> = (0..devices.len())
                    .map(|index| {
                        // Without a cache only one write is on its way when the power goes, though
                        // there be two devices.
                        let idle = !self.geometry.volatile_cache && at[index] == next[index];
                        devices[index].crash_content(
                            at[index],
                            &if idle { CrashChoice::LoseAll } else { choose() },
                        )
                    })
                    .collect();
                let last = self
                    .judge(&images, driver, moment)
                    .map_err(|what| format!("moment {moment}, choice {choice}: {what}"))?;
                then(dice, images, last)?;
            }
        }
        Ok(())
    }

    fn judge(
        &self,
        images: &[Snapshot],
        driver: &Driver,
        moment: usize,
    ) -> std::result::Result<Lsn, String> {
        let mut devices = images
            .iter()
            .map(|image| MemoryDevice::from_snapshot(image, self.geometry) as Arc<dyn BlockDevice>);
        let data = devices.next().unwrap();
        driver.history.judge(&parts(self.setup, data, devices.next()), moment)
    }

    /// Lives twice: a life, a power cut, a recovery, a second life, a power cut.
    fn run(&self, seed: u64) -> Judgement {
        let empty = [Snapshot::empty(DATA_BYTES), Snapshot::empty(LOG_BYTES)];
        let empty = &empty[..1 + usize::from(self.setup.separate)];
        let (devices, driver) = self.live(empty, History::default(), Lsn(0), seed);
        let mut dice = Dice(seed ^ 0xfeed);
        self.cut_everywhere(&devices, &driver, &mut dice, |dice, images, last| {
            if !dice.one_in(60) {
                return Ok(());
            }
            let (devices, second) = self.live(&images, driver.history.clone(), last, dice.roll());
            self.cut_everywhere(&devices, &second, dice, |_, _, _| Ok(()))
                .map_err(|what| format!("second life: {what}"))
        })
    }
}

fn search(setup: Setup, geometry: Geometry, seeds: std::ops::Range<u64>) -> Option<String> {
    let run = Run { setup, geometry, steps: 45, choices: 6 };
    seeds
        .into_iter()
        .find_map(|seed| run.run(seed).err().map(|what| format!("seed {seed}: {what}")))
}

#[test]
fn no_power_cut_breaks_a_promise_of_a_log_beside_its_data() {
    for geometry in geometries() {
        assert_eq!(search(Setup { separate: false, bug: Bug::None }, geometry, 0..8), None);
    }
}

#[test]
fn no_power_cut_breaks_a_promise_of_a_log_on_its_own_device() {
    for geometry in geometries() {
        assert_eq!(search(Setup { separate: true, bug: Bug::None }, geometry, 0..5), None);
    }
}

/// The judge is worth something only if it sees each of the mistakes that the log's rules prevent.
#[test]
fn the_judge_finds_every_planted_bug() {
    let beside = |bug| Setup { separate: false, bug };
    let apart = |bug| Setup { separate: true, bug };
    for setup in [
        beside(Bug::DropDataFlushes),
        apart(Bug::DropDataFlushes),
        apart(Bug::DropLogFlushes),
        beside(Bug::OverwriteWithoutPermission),
        beside(Bug::ReuseBeforeSealed),
        beside(Bug::ExposeWithoutChecksum),
        beside(Bug::SameIncarnation),
        beside(Bug::TrimBeforeCommit),
    ] {
        let found = search(setup, geometries()[0], 0..40);
        assert!(found.is_some(), "{setup:?} went unnoticed");
    }
}

/// So is it with data that only the log has.
#[test]
fn i_hom_1_the_judge_finds_every_mistake_with_data_in_the_log() {
    for bug in [
        PlantedBug::SealedBeforeHome,
        PlantedBug::HomeOverNewer,
        PlantedBug::HomeNotWritten,
        PlantedBug::HomeNotReplayed,
    ] {
        plant(Some(bug));
        let found = search(Setup { separate: false, bug: Bug::None }, geometries()[0], 0..40);
        plant(None);
        assert!(found.is_some(), "{bug:?} went unnoticed");
    }
}
