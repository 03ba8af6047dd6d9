//! The queue of the simulated device: late, shuffled, sometimes twice.

use std::sync::Arc;

use rand::RngExt;

use super::faults::Call;
use super::{NAME, Simulation};
use crate::check::operation_of;
use crate::inline::{Positioned, serve};
use crate::pool::BufferPool;
use crate::{AlignedBuf, Completion, DeviceQueue, Operation, QueueOptions, Request, Result};

/// The device as one request sees it: its flush covers what was complete when the request was
/// submitted.
struct Port<'a> {
    simulation: &'a Simulation,
    covers: usize,
}

impl Positioned for Port<'_> {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let result = self.simulation.read(buf, offset);
        self.simulation.counters.count(Operation::Read, buf.len() as u64, result)
    }

    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        let result = self.simulation.write(buf, offset);
        self.simulation.counters.count(Operation::Write, buf.len() as u64, result)
    }

    fn flush(&self) -> Result<()> {
        self.simulation.counters.count(
            Operation::Flush,
            0,
            self.simulation.flush(Some(self.covers)),
        )
    }

    fn check(&self, request: &Request) -> Result<()> {
        self.simulation.counters.count(
            Operation::Queue,
            0,
            self.simulation.limits().request(NAME, request),
        )
    }
}

pub(super) struct SimulatedQueue {
    simulation: Arc<Simulation>,
    depth_max: usize,
    pushed: Vec<Request>,
    /// Submitted and not carried out, each with the log's length at its submission.
    submitted: Vec<(Request, usize)>,
    done: Vec<Completion>,
    pool: BufferPool,
}

impl SimulatedQueue {
    pub fn new(simulation: Arc<Simulation>, options: &QueueOptions) -> Self {
        let depth_max = options.depth_max.clamp(1, 4096);
        Self {
            simulation,
            depth_max,
            pushed: Vec::new(),
            submitted: Vec::new(),
            done: Vec::new(),
            pool: BufferPool::new(options),
        }
    }

    /// Draws a number up to `max`; the largest in a queue that keeps order, so that it is as prompt
    /// as it is orderly.
    fn draw(&self, max: usize) -> usize {
        if self.simulation.shuffle {
            self.simulation.state.lock().rng.random_range(0..=max)
        } else {
            max
        }
    }

    /// Carries out one submitted request: any of them, or the first in a queue that keeps order.
    fn carry_out_one(&mut self) {
        let index = if self.simulation.shuffle { self.draw(self.submitted.len() - 1) } else { 0 };
        let (request, covers) = self.submitted.remove(index);
        let operation = operation_of(request.kind);
        let completion = serve(&Port { simulation: &self.simulation, covers }, request);
        let place = self.draw(self.done.len());
        tracing::trace!(token = completion.token, %operation, place,
            "simulated request carried out");
        self.done.insert(place, completion);
    }

    /// Adds second completions where a rule asks for them.
    fn duplicate(&self, out: &mut Vec<Completion>, from: usize) {
        let mut state = self.simulation.state.lock();
        let state = &mut *state;
        for index in from..out.len() {
            if state.faults.strike(Call::Completion, &(0..u64::MAX), &mut state.rng).is_some() {
                let again = Completion::new(out[index].token, out[index].result.clone(), None);
                out.push(again);
            }
        }
    }
}

impl DeviceQueue for SimulatedQueue {
    fn depth_max(&self) -> usize {
        self.depth_max
    }

    fn in_flight(&self) -> usize {
        self.pushed.len() + self.submitted.len() + self.done.len()
    }

    fn push(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.in_flight() >= self.depth_max {
            return Err(request);
        }
        self.pushed.push(request);
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        let now = self.simulation.state.lock().log.len();
        self.submitted.extend(self.pushed.drain(..).map(|request| (request, now)));
        Ok(())
    }

    fn complete(&mut self, min: usize, out: &mut Vec<Completion>) -> Result<usize> {
        self.submit()?;
        let least = min.min(self.in_flight());
        let extra = self.draw(self.in_flight() - least);
        while self.done.len() < least + extra {
            self.carry_out_one();
        }
        let from = out.len();
        out.append(&mut self.done);
        self.duplicate(out, from);
        Ok(out.len() - from)
    }

    fn take_buffer(&mut self) -> Option<AlignedBuf> {
        self.pool.take()
    }

    fn give_buffer(&mut self, buf: AlignedBuf) {
        self.pool.give(buf);
    }
}

impl Drop for SimulatedQueue {
    /// Carries out what was submitted: a queue that is dropped waits for it.
    fn drop(&mut self) {
        while !self.submitted.is_empty() {
            self.carry_out_one();
        }
    }
}
