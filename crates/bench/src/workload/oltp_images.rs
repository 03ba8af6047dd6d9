//! Checkpoints that are made while transactions run: at the middle of equal parts of the counted
//! window, each instead of the one before, as a schedule makes them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::Result;
use crate::driver::Worker;
use crate::target::Target;

/// The images of one measurement.
pub(super) struct ImagesBeside<'a> {
    target: &'a dyn Target,
    files: Vec<String>,
    count: usize,
    /// How long each took, in seconds. A leaf: nothing is locked, called or waited for under it.
    made_s: Mutex<Vec<f64>>,
}

impl<'a> ImagesBeside<'a> {
    pub(super) fn new(target: &'a dyn Target, files: Vec<String>, count: usize) -> Self {
        Self { target, files, count, made_s: Mutex::default() }
    }

    /// Makes them, each when its moment has come.
    pub(super) fn make(&self, worker: &mut Worker<'_>) -> Result<()> {
        let counted = worker.counted_until() - worker.counted_from();
        for index in 0..self.count {
            let share = (index as f64 + 0.5) / self.count as f64;
            let due = worker.counted_from() + counted.mul_f64(share);
            while Instant::now() < due && !worker.done(Instant::now()) {
                let left = due.saturating_duration_since(Instant::now());
                std::thread::sleep(left.min(Duration::from_millis(20)));
            }
            if worker.done(Instant::now()) {
                break;
            }
            let begin = Instant::now();
            if index > 0 {
                self.remove(index - 1)?;
            }
            self.each(index, &mut |image, file| {
                self.target.remove_image(image)?;
                self.target.make_image(image, file)
            })?;
            self.made_s.lock().push(begin.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Removes what is left and tells how long they took.
    pub(super) fn end(&self) -> Result<BTreeMap<String, f64>> {
        let made = self.made_s.lock().clone();
        if let Some(last) = made.len().checked_sub(1) {
            self.remove(last)?;
        }
        let mean_s = made.iter().sum::<f64>() / made.len().max(1) as f64;
        Ok(BTreeMap::from([
            ("checkpoints made".to_owned(), made.len() as f64),
            ("checkpoint made ms".to_owned(), mean_s * 1000.0),
        ]))
    }

    fn remove(&self, index: usize) -> Result<()> {
        self.each(index, &mut |image, _| self.target.remove_image(image))
    }

    /// Calls `what` with the name of each image that checkpoint `index` is made of: one of
    /// everything where the target has such, else one of every file.
    fn each(
        &self,
        index: usize,
        what: &mut dyn FnMut(&str, Option<&str>) -> Result<()>,
    ) -> Result<()> {
        let name = format!("bench-oltp-{index}");
        if self.target.has_images_of_everything() {
            return what(&name, None);
        }
        self.files.iter().try_for_each(|file| what(&format!("{name}-{file}"), Some(file)))
    }
}
