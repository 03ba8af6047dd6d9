//! An open group: import, what runs in the background, and the close that leaves nothing in doubt.
//!
//! ```text
//!   labels ──assemble()──► which members are here, came back, are missing
//!     import()   labels durable: in use ─► dirty region logs joined ─► crash? their regions are unsynced ─► volumes usable at once
//!     background unsynced and behind regions, spares, clean-up          (background.rs)
//!     close      flush ─► logs emptied ─► labels durable: clean
//! ```

mod relayout;
mod renew;
mod scrub;
mod split;

use std::sync::Arc;
use std::thread::JoinHandle;

use bedplate_block::BlockDevice;
use parking_lot::Mutex;

pub use split::{JoinHalf, JoinPlan};

use crate::group::FOREGROUND_PERCENT_MIN;
use crate::io::VolumeDevice;
use crate::runtime::{self, GroupRuntime};
use crate::{
    Arrival, Config, Error, ImportOptions, MemberState, MemberStatistics, PlexStatistics, Result,
    Role, VolumeStatistics, Which,
};

/// How far the members are from holding the same everywhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SyncProgress {
    /// Bytes that are still to be compared or copied.
    pub pending_bytes: u64,
    /// Bytes of all volumes with more than one copy.
    pub total_bytes: u64,
    /// Bytes per second of late; `None` where nothing is pending, nothing was copied yet, or no
    /// thread copies.
    pub bytes_per_second: Option<u64>,
    /// How long the rest takes at that rate, in seconds.
    pub seconds_left: Option<u64>,
}

/// What work in the background costs the users of the volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreground {
    /// What the slowest of 100 reads, writes or flushes may take, in hundredths of what it takes
    /// while nothing is copied; [`FOREGROUND_UNLIMITED`](crate::FOREGROUND_UNLIMITED): anything.
    pub limit_percent: u16,
    /// What it took of late; `None` while nothing is copied, or the volumes are not used.
    pub found_percent: Option<u32>,
}

/// An open group. Cheap to clone; it is closed, and its members are free, when the last clone and
/// the last of its volumes are gone.
#[derive(Debug, Clone)]
pub struct Group {
    pub(crate) open: Arc<OpenGroup>,
}

/// A handle that does not keep the group open.
#[derive(Debug, Clone)]
pub struct WeakGroup {
    open: std::sync::Weak<OpenGroup>,
}

impl WeakGroup {
    /// Returns the group while another handle keeps it open.
    #[must_use]
    pub fn upgrade(&self) -> Option<Group> {
        self.open.upgrade().map(|open| Group { open })
    }
}

/// Ends the background thread and closes the group: when it is asked to, or when the last user
/// goes.
#[derive(Debug)]
pub(crate) struct OpenGroup {
    pub runtime: Arc<GroupRuntime>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// A leaf lock but for the closing itself.
    closed: Mutex<bool>,
}

impl Group {
    /// Opens a group on devices that the caller has claimed, in any order.
    ///
    /// # Errors
    /// `NotAMember`, `NewerFormat`, `Corrupt`, `Foreign`, `Duplicated`, `Outdated`, `Diverged`,
    /// `Missing`: each names the device or the member, and nothing was written. `Broken` when what
    /// is there does not hold everything, `Device` when a member fails meanwhile.
    pub fn import(devices: &[Arc<dyn BlockDevice>], options: &ImportOptions) -> Result<Self> {
        let (assembly, devices) = runtime::assembled(devices, options)?;
        let runtime = Arc::new(runtime::open(&assembly, &devices, options)?);
        if !options.read_only {
            let older = assembly
                .older
                .iter()
                .filter_map(|index| Some((*index, &devices[assembly.places[*index]?])));
            older.into_iter().try_for_each(|(index, device)| runtime.take_back(index, device))?;
        }
        let background = options.background && !options.read_only;
        let thread = if background { Some(crate::background::start(&runtime)?) } else { None };
        Ok(Self {
            open: Arc::new(OpenGroup {
                runtime,
                thread: Mutex::new(thread),
                closed: Mutex::new(false),
            }),
        })
    }

    /// Starts the thread that [`ImportOptions::background`] asks for, unless it runs: for a caller
    /// that sets an arbiter provider first, so that nothing is copied without one.
    ///
    /// # Errors
    /// `Device` where there can be no thread.
    pub fn start_background(&self) -> Result<()> {
        let closed = self.open.closed.lock();
        let mut thread = self.open.thread.lock();
        if !*closed && thread.is_none() && !self.open.runtime.group_state.read_only {
            *thread = Some(crate::background::start(&self.open.runtime)?);
        }
        Ok(())
    }

    /// Says by their labels alone why a group could not be opened with these devices. They may be
    /// in use, and nothing is written.
    ///
    /// # Errors
    /// As [`import`](Self::import).
    pub fn check(devices: &[Arc<dyn BlockDevice>]) -> Result<()> {
        runtime::assembled(devices, &ImportOptions::default()).map(drop)
    }

    /// Returns what each member failed with since the group was opened, as far as it did; also of
    /// one that was overwritten and without which the group is not whole.
    #[must_use]
    pub fn failures(&self) -> Vec<Option<String>> {
        self.open
            .runtime
            .group_state
            .handles()
            .iter()
            .map(|handle| {
                handle
                    .as_ref()
                    .filter(|handle| handle.is_failed() || handle.is_overwritten())?
                    .failure()
                    .map(str::to_owned)
            })
            .collect()
    }

    /// Returns the volume with a role as a block device; `None` where the group has none.
    #[must_use]
    pub fn volume(&self, role: Role) -> Option<Arc<dyn BlockDevice>> {
        let io = self.open.runtime.ios.iter().find(|io| io.role == role)?;
        Some(Arc::new(VolumeDevice { io: Arc::clone(io), open: Arc::clone(&self.open) as _ }))
    }

    /// Returns a handle that does not keep the group open.
    #[must_use]
    pub fn downgrade(&self) -> WeakGroup {
        WeakGroup { open: Arc::downgrade(&self.open) }
    }

    /// Returns the configuration as it is now.
    #[must_use]
    pub fn config(&self) -> Config {
        self.open.runtime.group_state.config()
    }

    /// Returns what each member did, by its index; `None` for one that is away.
    #[must_use]
    pub fn statistics(&self) -> Vec<Option<MemberStatistics>> {
        self.open
            .runtime
            .group_state
            .handles()
            .iter()
            .map(|handle| handle.as_ref().map(|handle| handle.statistics()))
            .collect()
    }

    /// Returns what the volume with a role did; `None` where the group has none.
    #[must_use]
    pub fn volume_statistics(&self, role: Role) -> Option<VolumeStatistics> {
        self.open.runtime.ios.iter().find(|io| io.role == role).map(|io| io.meter.statistics())
    }

    /// Returns what the plexes of the volume with a role did, each by its members; nothing where
    /// the group has none.
    #[must_use]
    pub fn plex_statistics(&self, role: Role) -> Vec<PlexStatistics> {
        let Some(io) = self.open.runtime.ios.iter().find(|io| io.role == role) else {
            return Vec::new();
        };
        let told = self.statistics();
        let plex = |members: Vec<usize>| {
            let own = members.iter().filter_map(|member| told.get(*member)?.as_ref());
            PlexStatistics {
                statistics: own.fold(MemberStatistics::default(), |sum, one| sum.plus(one)),
                members,
            }
        };
        io.epochs.peek().layout.plexes().into_iter().map(plex).collect()
    }

    /// Sets the statistics to zero.
    pub fn reset_statistics(&self) {
        self.open.runtime.ios.iter().for_each(|io| io.meter.reset());
        self.open
            .runtime
            .group_state
            .handles()
            .iter()
            .flatten()
            .for_each(|handle| handle.reset_statistics());
    }

    /// Returns how far resynchronisation and rebuild are.
    #[must_use]
    pub fn progress(&self) -> SyncProgress {
        let mut progress = SyncProgress::default();
        for io in &self.open.runtime.ios {
            let epoch = io.epochs.peek();
            if let Some(redundancy) = &epoch.redundancy {
                progress.total_bytes += epoch.size_bytes;
                progress.pending_bytes += io.pending() * redundancy.regions.range(0).1;
            }
        }
        let estimate = self.open.runtime.estimate.lock();
        progress.bytes_per_second =
            estimate.bytes_per_second().filter(|_| progress.pending_bytes > 0);
        progress.seconds_left = estimate.seconds_left(progress.pending_bytes);
        progress
    }

    /// Returns the foreground latency limit of work in the background, and what was measured of
    /// late.
    #[must_use]
    pub fn foreground(&self) -> Foreground {
        let limit_percent = self.config().foreground_percent;
        Foreground { limit_percent, found_percent: self.open.runtime.throttle.found_percent() }
    }

    /// Sets the maximum p99 latency of reads, writes and flushes during resync, rebuild, relayout
    /// or scrub, in hundredths of the p99 without them; it is kept as far as the slowest pace
    /// allows. Durable; counts from now on.
    ///
    /// # Errors
    /// `Invalid` below 105, which nothing could keep; `Broken`, `Device`.
    pub fn set_foreground(&self, limit_percent: u16) -> Result<()> {
        if limit_percent < FOREGROUND_PERCENT_MIN {
            let (given, least) =
                (f64::from(limit_percent) / 100.0, f64::from(FOREGROUND_PERCENT_MIN) / 100.0);
            return Err(Error::invalid(format!(
                "a factor of {given} for the foreground cannot be kept: take {least} or more"
            )));
        }
        self.open.runtime.group_state.change(|config| {
            config.foreground_percent = limit_percent;
            Ok(())
        })?;
        self.open.runtime.throttle.set(limit_percent);
        Ok(())
    }

    /// Brings everything up to date from the calling thread: regions in doubt, members that came
    /// back, spares for members that failed.
    ///
    /// # Errors
    /// `Broken` or `Device` when some of what is to be copied cannot be read: everything else was
    /// copied.
    pub fn sync(&self) -> Result<()> {
        let runtime = &self.open.runtime;
        runtime.check_members()?;
        loop {
            runtime.relocate()?;
            runtime.ios.iter().try_for_each(|io| runtime.compare_all_sources(io))?;
            let synced: Vec<_> = runtime.ios.iter().map(|io| io.sync_all()).collect();
            if runtime.finish()? {
                return Ok(synced.into_iter().collect::<bedplate_block::Result<()>>()?);
            }
        }
    }

    /// Takes regions out of the dirty region log that were not written to since the last call. The
    /// background thread calls it now and then.
    ///
    /// # Errors
    /// `Broken` or `Device`.
    pub fn clean_up(&self) -> Result<u64> {
        self.open.runtime.clean_up()
    }

    /// Closes the group while clones of it or its volumes are still about, in threads that are just
    /// ending: nothing is left in doubt, and the labels say so. The caller has made sure that no
    /// writes are under way; later ones are refused. Does nothing the second time.
    ///
    /// # Errors
    /// `Broken` or `Device`: the next import compares what was dirty.
    pub fn close(&self) -> Result<()> {
        self.open.close()
    }

    /// Adds a member that waits for another to fail.
    ///
    /// # Errors
    /// `Foreign` when the device is a member already, `Invalid` when the group is full or the
    /// device does not fit, `Device`.
    pub fn add_spare<'a>(&self, device: impl Into<Arrival<'a>>) -> Result<()> {
        self.open.runtime.add(device.into(), MemberState::Spare)?;
        self.open.runtime.group_state.waker.wake();
        Ok(())
    }

    /// Lets go of a member that holds no data: a spare, or one whose place another took. Its label
    /// is erased where it is there.
    ///
    /// # Errors
    /// `Invalid` when it holds data, `NotFound` when there is no such member.
    pub fn remove(&self, member: impl Into<Which>) -> Result<()> {
        self.open.runtime.remove(member.into())
    }

    /// Moves a member that lies on others back to a device of its own: the one that it was on
    /// before, or any other. What it holds is copied from the others, and the room is free again.
    ///
    /// # Errors
    /// `Invalid` when it does not lie on others, the device does not fit, or the others do not hold
    /// everything; `NotFound`, `Foreign`, `Device`.
    pub fn unrelocate<'a>(
        &self,
        member: impl Into<Which>,
        device: impl Into<Arrival<'a>>,
    ) -> Result<()> {
        self.open.runtime.unrelocate(member.into(), device.into())?;
        self.open.runtime.group_state.waker.wake();
        Ok(())
    }

    /// Puts a new device in the place of a member, which leaves; what it holds is copied from the
    /// others. Once that is durable the label of the one that left is erased, where its device is
    /// open and answers.
    ///
    /// # Errors
    /// `NotFound` when there is no such member, `Invalid` when the device does not fit or the
    /// others do not hold everything; `Foreign`, `Device`.
    pub fn replace<'a>(
        &self,
        member: impl Into<Which>,
        device: impl Into<Arrival<'a>>,
    ) -> Result<()> {
        self.open.runtime.replace(member.into(), device.into())?;
        self.open.runtime.group_state.waker.wake();
        Ok(())
    }
}

impl Group {
    /// Compares the label of every member with what was written there last. A member that something
    /// else wrote over is not read any more and leaves the group as one that fails does, and if it
    /// comes back all of it is copied. The background thread calls it now and then.
    ///
    /// # Errors
    /// `Broken` or `Device` where the group is not whole without such a member: nothing is read
    /// from it, and nothing written to its volume any more.
    pub fn check_members(&self) -> crate::Result<()> {
        self.open.runtime.check_members()
    }
}

impl OpenGroup {
    fn close(&self) -> Result<()> {
        let mut closed = self.closed.lock();
        if std::mem::replace(&mut *closed, true) {
            return Ok(());
        }
        self.runtime.group_state.waker.stop();
        // The arbiter of a scrub may have been the last user: then the background thread closes the
        // group itself, and ends.
        let own = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        if let Some(thread) = self.thread.lock().take().filter(|thread| !own(thread)) {
            // It reports its own failures; one that panicked leaves its regions to the next import.
            let _ended = thread.join();
        }
        let result = self.runtime.close();
        self.runtime.ios.iter().for_each(|io| io.latch_closed());
        result
    }
}

impl Drop for OpenGroup {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(group = self.runtime.group_state.name, %error,
                "the group was not closed in order; the next import compares what was dirty");
        }
    }
}
