//! What the volumes of an open group share: the configuration, the open members, and the one way in
//! which a member leaves.
//!
//! ```text
//!   active ──fail()──► failed ──(comes back)──► stale ──finish()──► active
//!   spare ──relocate()──► stale            labels of all others are durable before the state changes for any operation (I-GRP-1)
//!   active ──check_label()──► overwritten: not read from here on ──fail()──► failed, and all of it is copied if it comes back
//! ```
//! * I-GRP-1: a member counts as failed only once the labels of all that remain say so durably; a
//!   write that it missed is acknowledged only after that. So an opening that finds that member
//!   later knows that it is outdated.
//! * I-GRP-2: no label is written over one that is not what was written there last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_block::Waker;
use bedplate_block::sync::{Mutex, RwLock, rank};

use super::label::EVENT_OF_ARRIVAL;
use super::member_handle::MemberHandle;
use super::schedule::TimePoint;
use crate::{Config, Error, ErrorKind, Label, Member, MemberState, Result, ScrubSchedule};

/// The open members by their index; `None` for one that is away.
pub(crate) type Handles = Vec<Option<Arc<MemberHandle>>>;

#[derive(Debug)]
pub(crate) struct GroupState {
    pub name: String,
    pub read_only: bool,
    /// Rank G2: after a dirty region log's lock, before nothing.
    config: Mutex<Config, { rank::CONFIGURATION }>,
    /// A leaf lock.
    handles: RwLock<Arc<Handles>, { rank::VOLUME_LEAF }>,
    /// How often they changed.
    handles_version: AtomicU64,
    /// How many members were found overwritten.
    overwritten: AtomicU64,
    /// Wakes the background thread.
    pub waker: Waker,
}

impl GroupState {
    pub fn new(config: Config, handles: Handles, read_only: bool) -> Self {
        Self {
            name: config.name.clone(),
            read_only,
            config: Mutex::new(config),
            handles: RwLock::new(Arc::new(handles)),
            handles_version: AtomicU64::new(0),
            overwritten: AtomicU64::new(0),
            waker: Waker::default(),
        }
    }

    /// Returns a number that changes with the open members: for callers that keep them.
    #[inline]
    pub fn handles_version(&self) -> u64 {
        self.handles_version.load(Ordering::Acquire)
    }

    /// Replaces the open members: before they are used, or under the configuration's lock.
    pub fn replace_handles(&self, handles: Arc<Handles>) {
        *self.handles.write() = handles;
        self.handles_version.fetch_add(1, Ordering::Release);
    }

    #[inline]
    pub fn handles(&self) -> Arc<Handles> {
        Arc::clone(&self.handles.read())
    }

    pub fn config(&self) -> Config {
        self.config.lock().clone()
    }

    /// Returns when copies are compared by themselves, without copying the rest.
    pub fn scrub_schedule(&self) -> Option<ScrubSchedule> {
        self.config.lock().scrub
    }

    /// Changes the schedule for scrubs, where there still is one.
    pub fn change_scrub(&self, change: impl FnOnce(&mut ScrubSchedule, &mut Config)) -> Result<()> {
        self.change(|config| {
            if let Some(mut schedule) = config.scrub {
                change(&mut schedule, config);
                config.scrub = Some(schedule);
            }
            Ok(())
        })
    }

    /// Takes a member out because an operation on it failed. Returns once the others know durably;
    /// at once if they knew.
    ///
    /// # Errors
    /// `Broken` when the data is not whole without it.
    pub fn fail(&self, handle: &Arc<MemberHandle>, why: &bedplate_block::Error) -> Result<()> {
        let mut config = self.config.lock();
        let Some(index) = config
            .index_of(handle.id)
            .filter(|index| config.members[*index].state != MemberState::Failed)
        else {
            return Ok(());
        };
        // What lies on it leaves with it.
        let leaving = config.with_relocated(&[index]);
        if leaving.iter().any(|at| config.members[*at].state == MemberState::Active)
            && !config.survives_without(&[index])
        {
            return Err(self.broken(&config, index, why));
        }
        if self.read_only {
            // Nothing is written: an opening for writing finds the members as they are then.
            for at in leaving {
                config.set_state(at, MemberState::Failed);
                self.handles()[at].iter().for_each(|handle| handle.set_state(MemberState::Failed));
            }
            return Ok(());
        }
        handle.note_failure(why);
        tracing::warn!(event = "member_failed", group = self.name, member = handle.name(), error = %why,
            "the member failed and leaves the group; the others go on");
        let mut next = config.clone();
        for at in leaving {
            next.set_state(at, MemberState::Failed);
            if handle.is_overwritten() {
                next.forget_last_event(at);
            }
        }
        let published = self.publish(&mut config, next, &self.handles());
        self.waker.wake();
        published
    }

    fn broken(&self, config: &Config, index: usize, why: &bedplate_block::Error) -> Error {
        let lost: Vec<&str> = config
            .members
            .iter()
            .enumerate()
            .filter(|(_, member)| member.state == MemberState::Failed && !member.is_vacant())
            .filter(|(index, _)| !config.is_split_off(*index))
            .map(|(_, member)| member.path.as_str())
            .collect();
        let earlier = if lost.is_empty() {
            String::new()
        } else {
            format!(", after {} failed earlier", lost.join(" and "))
        };
        let message = format!(
            "group {} is not whole without {}, which failed{earlier}: {why}",
            self.name, config.members[index].path
        );
        Error { kind: ErrorKind::Broken, message, source: Some(why.clone()) }
    }

    /// Changes the configuration: `change` gets the next one and says whether to go on.
    pub fn change(&self, change: impl FnOnce(&mut Config) -> Result<()>) -> Result<()> {
        let mut config = self.config.lock();
        let mut next = config.clone();
        change(&mut next)?;
        self.publish(&mut config, next, &self.handles())
    }

    /// Changes the configuration together with the open members. Until the labels say so durably,
    /// operations go by the members of before: what they miss would count as theirs after a crash.
    pub fn change_members(
        &self,
        change: impl FnOnce(&mut Config, &mut Handles) -> Result<()>,
    ) -> Result<()> {
        let mut config = self.config.lock();
        let before = self.handles();
        let (mut next, mut handles) = (config.clone(), (*before).clone());
        change(&mut next, &mut handles)?;
        announce(&next, &before, &handles)?;
        self.publish(&mut config, next, &handles)?;
        // Operations that go by the members of before may still write to one that left, and its
        // failure concerns none of them.
        let stays = |gone: &Arc<MemberHandle>| {
            handles.iter().flatten().any(|handle| Arc::ptr_eq(handle, gone))
        };
        before
            .iter()
            .flatten()
            .filter(|handle| !stays(handle))
            .for_each(|gone| gone.set_state(MemberState::Failed));
        self.replace_handles(Arc::new(handles));
        Ok(())
    }

    /// Returns how many members were found overwritten so far: what was read from members while
    /// this changed may be nothing that was written to them.
    pub fn overwritten_count(&self) -> u64 {
        self.overwritten.load(Ordering::Acquire)
    }

    /// Compares the labels of members with what was written there last, and returns those that
    /// something else wrote over and that have not left yet.
    pub fn find_overwritten(
        &self,
        concerns: &dyn Fn(usize) -> bool,
    ) -> Vec<(Arc<MemberHandle>, bedplate_block::Error)> {
        let config = self.config.lock();
        let handles = self.handles();
        let found =
            self.check_labels(&config, &handles).into_iter().filter(|(index, _)| concerns(*index));
        found
            .filter_map(|(index, error)| Some((Arc::clone(handles[index].as_ref()?), error)))
            .collect()
    }

    /// Compares the labels of the members that are not failed with what was written there last, and
    /// returns those that are to leave: one that was overwritten in any case; one whose label
    /// cannot be read, and that may answer later, if the group is whole without it. Called under
    /// the configuration's lock.
    fn check_labels(
        &self,
        config: &Config,
        handles: &Handles,
    ) -> Vec<(usize, bedplate_block::Error)> {
        let mut lost = Vec::new();
        for (index, handle) in handles.iter().enumerate() {
            let Some(handle) =
                handle.as_ref().filter(|_| config.members[index].state != MemberState::Failed)
            else {
                continue;
            };
            let known = handle.is_overwritten();
            if let Err(error) = handle.check_label()
                && (handle.is_overwritten() || config.survives_without(&[index]))
            {
                self.count_overwritten(handle, known, &error);
                lost.push((index, error));
            }
        }
        lost
    }

    fn count_overwritten(&self, handle: &MemberHandle, known: bool, error: &dyn std::fmt::Display) {
        if !known && handle.is_overwritten() {
            tracing::warn!(event = "member_overwritten", group = self.name, member = handle.name(), %error,
                "the member was overwritten; it is not read any more");
            self.overwritten.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Checks that a configuration was made from the one that counts.
    fn check_next(&self, config: &Config, next: &Config, handles: &Handles) {
        debug_assert_eq!(
            next.event, config.event,
            "I-GRP-1: a configuration is made from the one before it"
        );
        debug_assert_eq!(
            next.members.len(),
            handles.len(),
            "I-GRP-1: every member has its handle, or none"
        );
    }

    /// Makes the error of a group that is not whole without a member that it has just lost.
    fn not_whole(&self, member: &Member, believed: bool, error: &Error) -> Error {
        let why = if believed {
            "whose label cannot be read or written"
        } else {
            "which was overwritten"
        };
        let message =
            format!("group {} is not whole without {}, {why}: {error}", self.name, member.path);
        Error { kind: ErrorKind::Broken, message, source: error.source.clone() }
    }

    /// Writes the labels of all members that are not failed, and only then lets the configuration
    /// count. Members whose label cannot be written, or is not what was written there last, leave
    /// with it.
    fn publish(&self, config: &mut Config, mut next: Config, handles: &Handles) -> Result<()> {
        self.check_next(config, &next, handles);
        next.event += 1;
        next.note_split(TimePoint::now().wall_s);
        loop {
            let overwritten = self.check_labels(&next, handles);
            let lost: Vec<(usize, Error)> = match &overwritten[..] {
                [] => self.write_labels(&next, handles),
                _ => overwritten.into_iter().map(|(index, error)| (index, error.into())).collect(),
            };
            let Some((first, error)) = lost.first() else { break };
            let believed = lost.iter().all(|(index, _)| {
                handles[*index].as_ref().is_none_or(|handle| !handle.is_overwritten())
            });
            let failed =
                next.with_relocated(&lost.iter().map(|(index, _)| *index).collect::<Vec<_>>());
            if !next.survives_without(&failed) {
                // Some labels may say what does not count: what is said next must be newer, and
                // tell that no member was let go after all.
                config.outdate(&next);
                return Err(self.not_whole(&next.members[*first], believed, error));
            }
            next.fail(&failed, config.common_event, believed);
            self.waker.wake();
        }
        for (index, handle) in handles.iter().enumerate() {
            if let Some(handle) = handle {
                handle.set_state(next.members[index].state);
            }
        }
        debug_assert!(
            next.event > config.event,
            "I-GRP-1: every change is a new event: {} after {}",
            next.event,
            config.event
        );
        next.common_event = next.event;
        *config = next;
        let known = |index: usize| {
            handles[index].as_ref().is_none_or(|handle| {
                handle.is_failed() == (config.members[index].state == MemberState::Failed)
            })
        };
        assert!(
            (0..handles.len()).all(known),
            "I-GRP-1: members are in the state that the labels say"
        );
        Ok(())
    }

    /// Writes the labels of all members that are not failed, and returns those that cannot be
    /// written.
    fn write_labels(&self, config: &Config, handles: &Handles) -> Vec<(usize, Error)> {
        let mut lost = Vec::new();
        for (index, handle) in handles.iter().enumerate() {
            let Some(handle) =
                handle.as_ref().filter(|_| config.members[index].state != MemberState::Failed)
            else {
                continue;
            };
            if let Err(error) =
                handle.write_label(&Label { member: handle.id, config: config.clone() })
            {
                tracing::warn!(event = "member_failed", group = self.name, member = handle.name(), %error,
                    "the label cannot be written; the member leaves the group");
                handle.note_failure(&error);
                self.count_overwritten(handle, false, &error);
                lost.push((index, error));
            }
        }
        lost
    }
}

/// Lets members that come say where they will belong before any other names them, so that a crash
/// never leaves a group that misses a member which cannot be brought. Such a label is older than
/// every other: until one of the others names the member, it has no place.
fn announce(next: &Config, before: &Handles, handles: &Handles) -> Result<()> {
    let known = |new: &Arc<MemberHandle>| before.iter().flatten().any(|handle| handle.id == new.id);
    let mut coming = handles.iter().flatten().filter(|handle| !known(handle));
    coming.try_for_each(|handle| {
        handle.write_label(&Label {
            member: handle.id,
            config: Config { event: EVENT_OF_ARRIVAL, ..next.clone() },
        })
    })
}
