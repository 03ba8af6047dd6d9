//! A write to rows of a RAID-5, batch after batch, taken a step further by its owner or by any
//! thread that waits for it.
//!
//! ```text
//!   go()   rows? ─► pass? ─► Batch::begin: read ─► log ─► flush ─► write ─► settle ─► next batch … all written: rows are free
//!            └ Stuck  └ Stuck                └──────────── Flying ────────┘                           Over
//! ```

use bedplate_block::Result;

use super::Parity;
use super::plan::{self, Put, Window};
use super::rows::{RowsHeld, Span};
use super::write::{Batch, BatchContext, Outcome};
use crate::io::fanout::Wait;
use crate::io::volume_io::VolumeIo;

/// How far a row write is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Everything is written.
    Over,
    /// Members are at work.
    InFlight,
    /// The rows or the gate are taken.
    Stuck,
}

/// Writes on their way.
pub(super) struct RowWrite {
    spans: Vec<Span>,
    rows: Option<RowsHeld>,
    windows: Vec<Window>,
    /// How many of them are written.
    written: usize,
    batch: Option<Batch>,
}

impl RowWrite {
    /// Plans writes that do not overlap, sorted by address, whose regions the caller has entered.
    pub fn new(parity: &Parity, puts: &[Put]) -> Self {
        let mut spans: Vec<Span> = Vec::with_capacity(puts.len());
        for (first, last) in
            puts.iter().filter(|put| put.len > 0).map(|put| parity.span(put.at, put.len as u64))
        {
            match spans.last_mut() {
                Some(before) if before.1 >= first => before.1 = last.max(before.1),
                _ => spans.push((first, last)),
            }
        }
        Self {
            spans,
            rows: None,
            windows: plan::windows(&parity.raid5, puts),
            written: 0,
            batch: None,
        }
    }

    /// Goes on as far as it can; told to wait, it waits for the members once.
    pub fn go(
        &mut self,
        io: &VolumeIo,
        parity: &Parity,
        buffers: &[&[u8]],
        mut wait: Wait,
    ) -> Result<Progress> {
        if self.rows.is_none() {
            self.rows = parity.rows.try_lock(&self.spans);
        }
        if self.rows.is_none() {
            return Ok(Progress::Stuck);
        }
        while self.written < self.windows.len() {
            let on = BatchContext { io, parity, buffers, windows: &self.windows[self.written..] };
            let Some(batch) = &mut self.batch else {
                io.check_latch()?;
                let Some(pass) = parity.gate.pass() else { return Ok(Progress::Stuck) };
                self.batch = Some(Batch::begin(pass, on)?);
                continue;
            };
            let Some(done) =
                io.lanes.poll(&mut batch.fanout, std::mem::replace(&mut wait, Wait::No))
            else {
                return Ok(Progress::InFlight);
            };
            if let Some(outcome) = batch.next(on, done)? {
                self.end_batch(io, parity, &outcome)?;
            }
        }
        self.rows = None;
        Ok(Progress::Over)
    }

    fn end_batch(&mut self, io: &VolumeIo, parity: &Parity, outcome: &Outcome) -> Result<()> {
        // The pass goes back first: a member leaves only when nothing is under way.
        let failures = self.batch.take().map(|batch| batch.failures).unwrap_or_default();
        io.fail_members(failures)?;
        match outcome {
            Outcome::Written(count) => self.written += count,
            Outcome::Again => {}
            Outcome::Full => io.checkpoint_parity(parity)?,
        }
        Ok(())
    }
}

impl VolumeIo {
    /// Writes a range whose regions the caller has entered.
    pub fn write_rows(&self, parity: &Parity, at: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut row_write =
            RowWrite::new(parity, &[Put { at, buffer: 0, from: 0, len: bytes.len() }]);
        row_write.rows = Some(parity.rows.lock(&row_write.spans, || self.help(parity)));
        loop {
            match row_write.go(self, parity, &[bytes], Wait::ForAll)? {
                Progress::Over => return Ok(()),
                Progress::InFlight => {}
                Progress::Stuck => parity.wait_for_others(),
            }
        }
    }
}
