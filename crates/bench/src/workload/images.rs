//! `images`: how long it takes to make, clone, delete and list images (checkpoints, reflinks,
//! snapshots of a subvolume), by size, extents and number.
//!
//! Size and extents are taken apart: every size has as many extents, because it is preallocated and
//! written in as many pieces; one more file is small and has a great many. Only that file is there
//! when its images are made.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bedplate::AlignedBuf;
use parking_lot::Mutex;

use super::{Env, Work, sizes};
use crate::driver::{Class, Job, Phase, Worker, run};
use crate::measure::Latencies;
use crate::results::{Case, Measurement};
use crate::target::{FileSpec, FileState, Role, Target, TargetInfo, fill_pattern};
use crate::{Error, Result};

/// Options of `images`.
#[derive(Debug, Clone)]
pub struct Images {
    /// Sizes of the file in bytes; each is a case.
    pub sizes_bytes: Vec<u64>,
    /// In how many pieces of 64 KiB a file of a size is written.
    pub pieces: u64,
    /// Extents of the file that has many; 0: no such case.
    pub extents: u64,
    /// How many images there are in the case of many; 0: no such case.
    pub many: u64,
}

impl Default for Images {
    fn default() -> Self {
        Self {
            sizes_bytes: vec![1 << 30, 10 << 30, 100 << 30],
            pieces: 1024,
            extents: 1_000_000,
            many: 1000,
        }
    }
}

const FILE: &str = "imaged";
const CLONE: &str = "cloned";
const PIECE_BYTES: u64 = 64 << 10;
/// An extent of the file with many; as long is the hole behind it.
const EXTENT_BYTES: u64 = 4096;
const WRITERS: usize = 4;
/// How often each thing is done, unless it takes longer than this altogether.
const TIMES: usize = 10;
const WAIT_LIMIT: Duration = Duration::from_secs(1);

/// One case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    Size(u64),
    Extents(u64),
    Many(u64),
}

/// What of a file is written: so many pieces, so far apart.
#[derive(Debug, Clone, Copy)]
struct Pieces {
    bytes: u64,
    step: u64,
    count: u64,
}

impl Work for Images {
    fn name(&self) -> &'static str {
        "images"
    }

    fn title(&self) -> &'static str {
        "images of one file made one after the other, by its size, its extents and how many there \
         are"
    }

    fn unit(&self) -> &'static str {
        "images/s"
    }

    fn options(&self) -> BTreeMap<String, String> {
        let (pieces, extents, many) =
            (self.pieces.to_string(), self.extents.to_string(), self.many.to_string());
        [
            ("sizes", sizes(&self.sizes_bytes)),
            ("pieces", pieces),
            ("extents", extents),
            ("many", many),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn validate(&self) -> Result<()> {
        if self.points().is_empty() {
            return Err(Error::usage(
                "images has nothing to do: give --sizes, --extents or --many",
            ));
        }
        if self.pieces == 0
            || self
                .sizes_bytes
                .iter()
                .any(|&size| size < self.pieces * PIECE_BYTES || !size.is_multiple_of(PIECE_BYTES))
        {
            return Err(Error::usage(
                "a size is a multiple of 64 KiB and has room for --pieces of 64 KiB",
            ));
        }
        if self.many == 1 || self.many > 100_000 || self.extents > 100_000_000 {
            return Err(Error::usage(
                "--many is 2 to 100,000, or 0, and --extents at most 100,000,000",
            ));
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case = |point: &Point| {
            let (name, curve, axis, x) = match *point {
                Point::Size(bytes) => {
                    (bedplate::format_size(bytes), "images of a file by its size", "bytes", bytes)
                }
                Point::Extents(extents) => (
                    format!("{extents} extents"),
                    "images of a file of many extents",
                    "extents",
                    extents,
                ),
                Point::Many(many) => (
                    format!("the last of {many} images"),
                    "the last of many images",
                    "images",
                    many,
                ),
            };
            Case { name, curve: curve.into(), axis: axis.into(), x: x as f64 }
        };
        self.points().iter().map(case).collect()
    }

    fn space_bytes(&self) -> u64 {
        let largest = self.points().iter().map(|&point| self.file_bytes(point)).max().unwrap_or(0);
        // Every image is followed by a page that goes elsewhere.
        largest + largest / 16 + (self.many + 4 * TIMES as u64) * EXTENT_BYTES
    }

    fn refuses(&self, _case: usize, target: &TargetInfo) -> Option<String> {
        (target.role == Role::Raw).then(|| "a raw device keeps no image of itself".into())
    }

    fn prepare(&self, _target: &dyn Target) -> Result<()> {
        Ok(())
    }

    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        let point = self.points()[case];
        self.make_file(point, target)?;
        let series = Mutex::new(Series {
            target,
            env,
            pieces: self.pieces(point),
            changes: 0,
            timed: Vec::new(),
            figures: BTreeMap::new(),
        });
        let job = Job {
            target,
            threads: 1,
            phase: Phase::Work,
            classes: &[],
            rated: &[],
            sample_every: None,
            stop: env.stop,
        };
        // One thread: the instruments are read around it as around all others.
        let mut measurement = run(&job, |_| {
            let series = &series;
            Ok(move |_: &mut Worker<'_>| match point {
                Point::Many(many) => series.lock().many(many),
                Point::Size(_) | Point::Extents(_) => series.lock().few(),
            })
        })?;
        let Series { timed, figures, .. } = series.into_inner();
        let mut latencies = Latencies::new();
        timed.iter().for_each(|&took| latencies.record(took));
        measurement.ops = timed.len() as u64;
        measurement.ops_observed = measurement.ops;
        measurement.rate = timed.len() as f64 / timed.iter().sum::<Duration>().as_secs_f64();
        measurement
            .latency
            .extend(latencies.summary().map(|summary| (Class::Image.name().to_owned(), summary)));
        measurement.figures = figures;
        Ok(measurement)
    }

    fn clean(&self, target: &dyn Target) -> Result<()> {
        target.remove(CLONE)?;
        target.remove(FILE)
    }
}

impl Images {
    fn points(&self) -> Vec<Point> {
        let sizes = self.sizes_bytes.iter().map(|&bytes| Point::Size(bytes));
        let extents = (self.extents > 0).then_some(Point::Extents(self.extents));
        sizes.chain(extents).chain((self.many > 0).then_some(Point::Many(self.many))).collect()
    }

    fn file_bytes(&self, point: Point) -> u64 {
        match point {
            Point::Size(bytes) => bytes,
            Point::Extents(extents) => extents * 2 * EXTENT_BYTES,
            Point::Many(_) => self.pieces * 2 * PIECE_BYTES,
        }
    }

    fn pieces(&self, point: Point) -> Pieces {
        match point {
            Point::Extents(count) => Pieces { bytes: EXTENT_BYTES, step: 2 * EXTENT_BYTES, count },
            Point::Size(_) | Point::Many(_) => {
                let step = self.file_bytes(point) / self.pieces / PIECE_BYTES * PIECE_BYTES;
                Pieces { bytes: PIECE_BYTES, step, count: self.pieces }
            }
        }
    }

    /// Makes the file anew.
    fn make_file(&self, point: Point, target: &dyn Target) -> Result<()> {
        target.remove(CLONE)?;
        let Pieces { bytes: piece, step, count } = self.pieces(point);
        let state = if matches!(point, Point::Extents(_)) {
            FileState::Empty
        } else {
            FileState::Unwritten
        };
        target.create(&FileSpec {
            name: FILE.into(),
            size_bytes: self.file_bytes(point),
            state,
        })?;
        let file = target.open(FILE)?;
        let mut buf = AlignedBuf::zeroed(piece as usize);
        fill_pattern(&mut buf, piece);
        let (buf, file) = (&buf, &file);
        let write = |writer: usize| {
            (0..count)
                .skip(writer)
                .step_by(WRITERS)
                .try_for_each(|at| file.write_at(buf, at * step))
        };
        std::thread::scope(|scope| {
            let writers: Vec<_> =
                (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
            writers
                .into_iter()
                .try_for_each(|writer| writer.join().expect("a writer does not panic"))
        })?;
        file.sync_data()?;
        target.quiesce()
    }
}

/// What is done with one file.
struct Series<'a, 'e> {
    target: &'a dyn Target,
    env: &'a Env<'e>,
    pieces: Pieces,
    changes: u64,
    /// How long the images took that count.
    timed: Vec<Duration>,
    figures: BTreeMap<String, f64>,
}

fn image(number: u64) -> String {
    format!("bench-{number}")
}

impl Series<'_, '_> {
    /// Writes a page again, so that no image is that of the one before.
    fn change(&mut self) -> Result<()> {
        let mut buf = AlignedBuf::zeroed(EXTENT_BYTES as usize);
        fill_pattern(&mut buf, self.changes);
        let at = self.changes % self.pieces.count * self.pieces.step;
        self.changes += 1;
        self.target.open(FILE)?.write_at(&buf, at)
    }

    fn stopped(&self) -> bool {
        self.env.stop.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Does something some times, each after a change and undone after it; returns how long each
    /// took, and notes how long undoing took.
    fn repeat(
        &mut self,
        what: &str,
        work: &dyn Fn() -> Result<()>,
        undo: &dyn Fn() -> Result<()>,
    ) -> Result<Vec<Duration>> {
        let began = Instant::now();
        let (mut done, mut undone) = (Vec::new(), Duration::ZERO);
        while done.len() < TIMES
            && (done.is_empty() || began.elapsed() < WAIT_LIMIT)
            && !self.stopped()
        {
            self.change()?;
            done.push(timed(work)?);
            undone += timed(undo)?;
        }
        let mean = |sum: Duration| sum.as_secs_f64() * 1e6 / done.len().max(1) as f64;
        self.figures.insert(format!("{what} made µs"), mean(done.iter().sum()));
        self.figures.insert(format!("{what} removed µs"), mean(undone));
        Ok(done)
    }

    /// Images of the file, of everything, and clones.
    fn few(&mut self) -> Result<()> {
        let target = self.target;
        if target.has_images_of_everything() {
            self.repeat("image of everything", &|| target.make_image(&image(0), None), &|| {
                target.remove_image(&image(0))
            })?;
        }
        self.repeat("clone", &|| target.make_clone(CLONE, FILE), &|| target.remove(CLONE))?;
        self.timed = self.repeat(
            "image of the file",
            &|| target.make_image(&image(0), Some(FILE)),
            &|| target.remove_image(&image(0)),
        )?;
        Ok(())
    }

    /// Image after image; the last one counts. Then they are listed, and the one in the middle is
    /// deleted, and all others.
    fn many(&mut self, many: u64) -> Result<()> {
        let (target, file) =
            (self.target, (!self.target.has_images_of_everything()).then_some(FILE));
        let mut last = Duration::ZERO;
        let mut made = 0;
        while made < many && !self.stopped() {
            self.change()?;
            last = timed(&|| target.make_image(&image(made), file))?;
            if made == 0 {
                self.figures.insert("the first made µs".into(), last.as_secs_f64() * 1e6);
            }
            made += 1;
        }
        let mut found = 0;
        let listed = timed_mut(&mut || target.list_images().map(|images| found = images))?;
        if found as u64 != made {
            return Err(Error::target(format!(
                "{}: {made} images were made and {found} are listed",
                target.info().label
            )));
        }
        let middle = timed(&|| target.remove_image(&image(made / 2)))?;
        let others = timed(&|| {
            (0..made)
                .filter(|number| *number != made / 2)
                .try_for_each(|number| target.remove_image(&image(number)))
        })?;
        let each = others / u32::try_from(made.max(2) - 1).unwrap_or(u32::MAX);
        let figures = [
            ("the last made µs", last),
            ("all listed µs", listed),
            ("the middle one removed µs", middle),
            ("each other removed µs", each),
        ];
        self.figures
            .extend(figures.map(|(what, took)| (what.to_owned(), took.as_secs_f64() * 1e6)));
        self.timed.push(last);
        Ok(())
    }
}

fn timed(work: &dyn Fn() -> Result<()>) -> Result<Duration> {
    timed_mut(&mut || work())
}

fn timed_mut(work: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}
