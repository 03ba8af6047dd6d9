//! Carrying dirty pages to the backing: in file order, in large contiguous writes, never two of one
//! page at a time.
//!
//! ```text
//!              write_at                      write_run                       landed
//!   clean ───────────────► dirty ─────────────────────────► flying ─────────────────────► clean
//!                            ▲   (its bytes are copied out,   │ │  write_at: dirty and flying at once; the next
//!                            │    so writers go on)           │ │  write of the page waits for the landing
//!                            └────── failed: latched ─────────┘ ▼
//! ```
//!
//! A failed write loses nothing: the pages are dirty again and stay in memory, the error stays with
//! the file until a flush has told it. To try again is sound, because the bytes are still here: the
//! next flush and the sync daemon do (not so after a failed *device flush*; that is latched further
//! below and turns the file system read-only).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::core::{FileCore, FileState, Flying, Latched};
use super::forget::forget_failed;
use super::layout::group_spans;
use super::pages::PageCache;
use super::shard::{Key, ShardState};
use bedplate_store::{Error, ErrorKind, Result};

/// Every page of a file.
pub(super) const ALL: Range<u64> = 0..u64::MAX;

/// What became of an attempt to write one run.
#[derive(Debug)]
pub(super) enum Outcome {
    Wrote(Range<u64>),
    Failed(Error),
    /// There is nothing to take.
    Nothing,
}

/// A run on its way to the backing. Dropping it without [`land`](Self::land) counts as a failure.
struct Carried<'a> {
    cache: &'a PageCache,
    core: &'a Arc<FileCore>,
    id: u64,
    pages: Range<u64>,
    /// A sequential writer made it, and its pages are released behind such.
    sequential: bool,
    /// Units of each page that are carried.
    units: Vec<u8>,
    outcome: Option<Error>,
}

impl PageCache {
    /// Writes the first dirty pages of a range. The second answer: dirty pages were passed over,
    /// because an older write of them is under way.
    pub(super) fn write_run(&self, core: &Arc<FileCore>, within: &Range<u64>) -> (Outcome, bool) {
        let mut state = core.state.lock();
        let flying: Vec<Range<u64>> = state.flying.iter().map(|f| f.pages.clone()).collect();
        let (taken, blocked) = state.dirty.take(within, self.request_pages(), &flying);
        let Some(pages) = taken else { return (Outcome::Nothing, blocked) };
        state.random.remove(&pages);
        debug_assert!(
            flying.iter().all(|other| other.end <= pages.start || pages.end <= other.start),
            "I-CACHE-4: a page is written by one write at a time: {pages:?}"
        );
        let id = state.next_flying;
        state.next_flying += 1;
        state.flying.push(Flying { id, pages: pages.clone() });
        let sequential = core.release().written && state.writer.note(&pages, self.windows().min);
        drop(state);
        let mut carried = Carried {
            cache: self,
            core,
            id,
            sequential,
            units: Vec::new(),
            pages: pages.clone(),
            outcome: Some(interrupted()),
        };
        let outcome = carried.carry();
        carried.outcome = outcome.as_ref().err().map(|error| self.describe(core, &pages, error));
        let failure = carried.outcome.clone();
        drop(carried);
        (failure.map_or(Outcome::Wrote(pages), Outcome::Failed), blocked)
    }

    fn describe(&self, core: &FileCore, pages: &Range<u64>, error: &Error) -> Error {
        let (start, end) = (self.layout.start_of(pages.start), self.layout.start_of(pages.end));
        let message = format!(
            "writing cached bytes {start}..{end} of inode {} failed: {error}; they are still in \
             memory, sync again when the cause is gone",
            core.ino
        );
        Error { message, ..error.clone() }
    }

    /// Writes all dirty pages of a range and waits for the writes of it that others began. Stops at
    /// the first failure.
    ///
    /// Two passes: a page that is dirty while an older write of it is under way is passed over in
    /// the first, written in the second; if another thread took it in between took what it held
    /// when this call began, or newer, and is waited for.
    ///
    /// A failure of a write that it waited for is its failure too, also where another caller was
    /// told of it: those pages are dirty again.
    pub(super) fn write_out(&self, core: &Arc<FileCore>, pages: &Range<u64>) -> Result<()> {
        let failures = core.state.lock().failures;
        for _pass in 0..2 {
            let mut passed_over = false;
            let mut failure = None;
            let mut at = pages.start;
            loop {
                let (outcome, blocked) = self.write_run(core, &(at..pages.end));
                passed_over |= blocked;
                match outcome {
                    Outcome::Wrote(run) => at = run.end,
                    Outcome::Failed(error) => {
                        failure = Some(error);
                        break;
                    }
                    Outcome::Nothing => break,
                }
            }
            core.settle_begun(pages);
            if let Some(error) = failure {
                return Err(error);
            }
            if !passed_over {
                break;
            }
        }
        let state = core.state.lock();
        let failed_meanwhile = state.last_failure.as_ref().filter(|_| state.failures != failures);
        failed_meanwhile.map_or(Ok(()), |error| Err(error.clone()))
    }

    /// As [`write_out`](Self::write_out), and tells an error that was latched before. Large amounts
    /// are shared with the writing threads, so that several writes are under way at once.
    pub(super) fn flush(self: &Arc<Self>, core: &Arc<FileCore>, pages: &Range<u64>) -> Result<()> {
        self.share_writing(core, pages);
        let outcome = self.write_out(core, pages);
        core.state.lock().tell(outcome, *pages == ALL)
    }

    /// Lets the writing threads write dirty pages of a range too, where there are many.
    pub(super) fn share_writing(self: &Arc<Self>, core: &Arc<FileCore>, pages: &Range<u64>) {
        if core.pinned_pages.load(Relaxed) > 2 * self.request_pages() && self.write_threads > 0 {
            for _ in 1..self.write_threads.min(3) {
                let (cache, core, pages) = (Arc::clone(self), Arc::clone(core), pages.clone());
                self.writers.submit(move || {
                    while matches!(cache.write_run(&core, &pages).0, Outcome::Wrote(_)) {}
                });
            }
        }
    }

    /// A sequential writer has completed a run, or too much is dirty: writes behind, in the
    /// background.
    pub(super) fn schedule(self: &Arc<Self>, core: &Arc<FileCore>, run: Option<Range<u64>>) {
        let mut state = core.state.lock();
        state.behind.extend(run);
        let random_max = self.random_max();
        if random_max > 0 && state.random.count() > random_max && state.error.is_none() {
            let runs = state.random.take();
            state.behind.extend(runs);
        }
        if state.error.is_some() || std::mem::replace(&mut state.scheduled, true) {
            return;
        }
        drop(state);
        let (cache, job_core) = (Arc::clone(self), Arc::clone(core));
        if !self.writers.submit(move || cache.write_behind(&job_core)) {
            core.state.lock().scheduled = false;
        }
    }

    fn write_behind(&self, core: &Arc<FileCore>) {
        loop {
            let mut state = core.state.lock();
            let run = state.behind.pop();
            if state.error.is_some()
                || (run.is_none() && self.pinned_pages() <= self.pinned_background())
            {
                state.scheduled = false;
                state.behind.clear();
                return;
            }
            drop(state);
            let progress = match run {
                Some(run) => self.write_out(core, &run).is_ok(),
                None => matches!(self.drain(core), Outcome::Wrote(_)),
            };
            if !progress {
                core.state.lock().scheduled = false;
                return;
            }
        }
    }

    /// Writes some dirty run of a file, around and around, so that pages that become dirty again at
    /// once do not starve the others.
    fn drain(&self, core: &Arc<FileCore>) -> Outcome {
        let from = core.state.lock().drain_at;
        let mut outcome = self.write_run(core, &(from..u64::MAX)).0;
        if from > 0 && matches!(outcome, Outcome::Nothing) {
            outcome = self.write_run(core, &(0..from)).0;
        }
        if let Outcome::Wrote(run) = &outcome {
            core.state.lock().drain_at = run.end;
        }
        outcome
    }

    /// I-CACHE-6: a writer that would pass the share of dirty pages first writes some back itself.
    pub(super) fn throttle(&self, core: &Arc<FileCore>) -> Result<()> {
        let pinned_max = self.pinned_max();
        if self.pinned_pages() < pinned_max {
            return Ok(());
        }
        self.counters.throttled.fetch_add(1, Relaxed);
        self.drain_below(core, pinned_max)?;
        if self.pinned_pages() >= pinned_max {
            self.files_to_flush()
                .iter()
                .try_for_each(|other| self.drain_below(other, pinned_max))?;
        }
        Ok(())
    }

    /// Writes dirty pages of one file until fewer than `pinned_max` are left in the cache, or none
    /// of the file.
    fn drain_below(&self, core: &Arc<FileCore>, pinned_max: u64) -> Result<()> {
        while self.pinned_pages() >= pinned_max {
            match self.drain(core) {
                Outcome::Wrote(_) => {}
                Outcome::Failed(error) => return Err(error),
                Outcome::Nothing => {
                    core.settle_begun(&ALL);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Every frame of a shard is pinned: writes some of them back.
    pub(super) fn make_room(&self, pinned: Option<(Arc<FileCore>, u64)>) -> Result<()> {
        let Some((core, page)) = pinned else { return Ok(()) };
        let request_pages = self.request_pages();
        let start = page / request_pages * request_pages;
        match self.write_run(&core, &(start..start + request_pages)).0 {
            Outcome::Wrote(_) => Ok(()),
            Outcome::Failed(error) => Err(error),
            Outcome::Nothing => {
                core.settle_begun(&(page..page + 1));
                Ok(())
            }
        }
    }

    pub(super) fn files_to_flush(&self) -> Vec<Arc<FileCore>> {
        let mut listed = self.listed.lock();
        let files: Vec<_> = listed.values().filter_map(std::sync::Weak::upgrade).collect();
        listed.retain(|_, file| file.strong_count() > 0);
        files
    }

    /// Takes a file off the list when nothing of it is dirty any more.
    fn unlist(&self, core: &FileCore) {
        let mut state = core.state.lock();
        if state.dirty.is_empty() && state.flying.is_empty() && state.listed {
            state.listed = false;
            self.listed.lock().remove(&core.id);
        }
    }

    /// Writes pages that became dirty at or before `older_than`, of all files: the sync daemon's
    /// turn. A failure stays with its file; the first is returned.
    pub fn flush_aged(&self, older_than: Instant) -> Result<()> {
        let mut first = Ok(());
        for core in self.files_to_flush() {
            let mut at = 0;
            loop {
                let state = core.state.lock();
                let hopeless =
                    state.error.as_ref().is_some_and(|l| l.error.kind == ErrorKind::ReadOnly);
                let Some(run) = state.dirty.first_since(older_than, at).filter(|_| !hopeless)
                else {
                    break;
                };
                drop(state);
                at = run.end;
                if let Err(error) = self.write_out(&core, &run) {
                    first = first.and(Err(error));
                    break;
                }
            }
            self.unlist(&core);
        }
        first
    }

    /// Writes all dirty pages of all files, for a caller that is no sync: errors of earlier
    /// write-behinds stay to be told by the next flush of their file. Goes on with the next file
    /// after a failure.
    ///
    /// # Errors
    /// The first page that could not be written now.
    pub fn write_dirty(self: &Arc<Self>) -> Result<()> {
        let mut first = Ok(());
        for core in self.files_to_flush() {
            self.share_writing(&core, &ALL);
            first = first.and(self.write_out(&core, &ALL));
            self.unlist(&core);
        }
        first
    }

    /// Writes all dirty pages of all files (`sync`, unmount); goes on with the next file after a
    /// failure and returns the first.
    pub fn flush_all(self: &Arc<Self>) -> Result<()> {
        let mut first = Ok(());
        for core in self.files_to_flush() {
            first = first.and(self.flush(&core, &ALL));
            self.unlist(&core);
        }
        first
    }
}

impl FileState {
    /// Turns what a flush met into what it says: an error that no flush has told yet is told now.
    /// `whole`: it wrote the whole file, so nothing that failed before is still unwritten.
    fn tell(&mut self, outcome: Result<()>, whole: bool) -> Result<()> {
        let written = outcome.is_ok();
        let Some(latched) = &mut self.error else { return outcome };
        let told = std::mem::replace(&mut latched.told, true);
        let error = latched.error.clone();
        if written && whole {
            self.error = None;
            if told {
                return Ok(());
            }
        }
        Err(error)
    }
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Io, "a write-behind was interrupted")
}

impl Carried<'_> {
    /// Copies the pages out and writes them.
    fn carry(&mut self) -> Result<()> {
        let page_size = self.cache.layout.page_size();
        let mut staging =
            self.cache.staging.take((self.pages.end - self.pages.start) as usize * page_size);
        let segments = self.collect(&mut staging);
        // After the copy: a byte that was copied is inside the size that is read here.
        let size = self.core.size();
        let start = self.cache.layout.start_of(self.pages.start);
        let outcome = self.core.backing().and_then(|backing| {
            segments.iter().try_for_each(|segment| {
                self.cache.counters.write_behind_runs.fetch_add(1, Relaxed);
                self.cache.counters.write_behind_bytes.fetch_add(segment.len() as u64, Relaxed);
                backing.write_direct(&staging[segment.clone()], start + segment.start as u64, size)
            })
        });
        self.cache.staging.give(staging);
        outcome
    }

    /// Copies the pages' bytes; returns the contiguous parts to write.
    fn collect(&mut self, staging: &mut [u8]) -> Vec<Range<usize>> {
        let layout = self.cache.layout;
        let page_size = layout.page_size();
        let mut segments: Vec<Range<usize>> = Vec::new();
        for span in group_spans(self.pages.clone()) {
            let key = Key { file: self.core.id, group: span.group };
            let mut state = self.cache.shard(self.core.id, span.group).state.write();
            for page in span.first..span.end {
                let at = state.lookup(key, page).expect("I-CACHE-4: a dirty page is in memory");
                let base = (page - self.pages.start) as usize * page_size;
                let frame = state.frame_mut(at);
                assert!(
                    frame.flying == 0 && frame.dirty != 0,
                    "I-CACHE-4: one write of a page at a time"
                );
                frame.flying = std::mem::take(&mut frame.dirty);
                self.units.push(frame.flying);
                let written = if layout.whole_pages && frame.valid == layout.all_units() {
                    frame.valid
                } else {
                    frame.flying
                };
                let bytes = state.bytes(at);
                layout.unit_runs(written, |r| {
                    staging[base + r.start..base + r.end].copy_from_slice(&bytes[r.clone()]);
                    match segments.last_mut().filter(|s| s.end == base + r.start) {
                        Some(last) => last.end = base + r.end,
                        None => segments.push(base + r.start..base + r.end),
                    }
                });
            }
        }
        segments
    }

    /// A page has landed; returns whether it was released.
    fn settle_page(
        &self,
        state: &mut ShardState,
        key: Key,
        page: u64,
        (closed, passing, release): (bool, bool, bool),
    ) -> bool {
        let units = self.units.get((page - self.pages.start) as usize).copied().unwrap_or(0);
        let at = state.lookup(key, page).expect("I-CACHE-4: a flying page is in memory");
        let frame = state.frame_mut(at);
        frame.flying = 0;
        if self.outcome.is_some() {
            frame.dirty |= units;
        }
        if closed || (passing && frame.dirty == 0) {
            state.forget(at);
            self.cache.count_unpinned(self.core);
        } else if frame.dirty == 0 {
            state.unpin(at);
            self.cache.count_unpinned(self.core);
            return release && state.release(key, page);
        }
        false
    }
}

impl Drop for Carried<'_> {
    fn drop(&mut self) {
        let (release, mut released) = (self.sequential && self.outcome.is_none(), 0);
        for span in group_spans(self.pages.clone()) {
            let key = Key { file: self.core.id, group: span.group };
            let mut state = self.cache.shard(self.core.id, span.group).state.write();
            // Asked under the shard's lock: a later close of the file comes to this shard later,
            // and finds the pages landed.
            let end = {
                let core = self.core.state.lock();
                (core.closed, core.passing, release)
            };
            released += (span.first..span.end)
                .filter(|page| self.settle_page(&mut state, key, *page, end))
                .count() as u64;
        }
        let mut state = self.core.state.lock();
        let is_lost = self.outcome.is_some() && state.closed;
        if let Some(error) = self.outcome.take() {
            if !state.closed {
                for page in self.pages.clone() {
                    state.dirty.insert(page, Instant::now);
                }
            }
            state.failures += 1;
            state.last_failure = Some(error.clone());
            state.error.get_or_insert(Latched { error, told: false });
        }
        let id = self.id;
        state.flying.retain(|f| f.id != id);
        self.core.settled.notify_all();
        drop(state);
        if is_lost {
            // It may have been closed after the pages landed as dirty ones: what was closed takes
            // them for a run that is still to be copied out.
            forget_failed(self.cache, self.core, &self.pages);
        }
        self.cache.count_released(self.core, released);
    }
}
