//! A database's redo log with group commit: a committer that finds no write in progress writes for
//! all that wait.

use bedplate::AlignedBuf;
use parking_lot::{Condvar, Mutex};

use crate::target::{TargetFile, fill_pattern};
use crate::{Error, Result};

/// Most bytes that one log write carries.
const WRITE_MAX: u64 = 1 << 20;

/// A circular log in one file.
pub(crate) struct RedoLog<'a> {
    file: &'a dyn TargetFile,
    size_bytes: u64,
    block_bytes: u64,
    state: Mutex<State>,
    durable: Condvar,
    /// What is written; held by the committer that writes.
    buffer: Mutex<AlignedBuf>,
}

#[derive(Default)]
struct State {
    /// Bytes handed in, and bytes known to be durable, since the beginning.
    appended: u64,
    durable: u64,
    writing: bool,
    failed: bool,
    /// Where the next write goes.
    position: u64,
    writes: u64,
}

impl<'a> RedoLog<'a> {
    pub(crate) fn new(file: &'a dyn TargetFile, size_bytes: u64, block_bytes: u64) -> Self {
        let mut buffer = AlignedBuf::zeroed((WRITE_MAX + block_bytes) as usize);
        fill_pattern(&mut buffer, 1);
        Self {
            file,
            size_bytes,
            block_bytes,
            state: Mutex::default(),
            durable: Condvar::new(),
            buffer: Mutex::new(buffer),
        }
    }

    /// Appends `len` bytes and waits until they are durable.
    pub(crate) fn commit(&self, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.appended += len;
        let mine = state.appended;
        while state.durable < mine {
            if state.failed {
                return Err(Error::target("the redo log failed"));
            }
            if state.writing {
                self.durable.wait(&mut state);
                continue;
            }
            let upto = state.appended.min(state.durable + WRITE_MAX);
            let len = (upto - state.durable).next_multiple_of(self.block_bytes);
            if state.position + len > self.size_bytes {
                state.position = 0;
            }
            let position = state.position;
            state.position += len;
            state.writing = true;
            drop(state);
            let written = self.write(position, len);
            state = self.state.lock();
            state.writing = false;
            state.writes += 1;
            state.failed = written.is_err();
            self.durable.notify_all();
            written?;
            state.durable = upto;
        }
        Ok(())
    }

    fn write(&self, position: u64, len: u64) -> Result<()> {
        let buffer = self.buffer.lock();
        self.file.write_at(&buffer[..len as usize], position)?;
        self.file.sync_data()
    }

    /// Returns how many log writes there were.
    pub(crate) fn writes(&self) -> u64 {
        self.state.lock().writes
    }
}
