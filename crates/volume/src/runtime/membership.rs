//! Members that come: spares, replacements, and what takes a failed member's place by itself: a
//! spare, or free space of others (hot relocation).
//!
//! A new member takes the *index* of the one it replaces, so layouts and regions stay as they are.
//! In order: the bits of everything the place holds become durable; the label of the new member,
//! then those of all others say that it is stale; it takes writes, and the old one none any more;
//! its regions count as behind; they are copied. A crash in between leaves either the old
//! membership or a stale member with all its bits set, and every device that either needs (S-105).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bedplate_block::BlockDevice;

use super::GroupRuntime;
use super::arrival::{Arrival, refuse_idle_spare};
use super::create::member_of;
use crate::group::{Handles, MEMBERS_MAX, MemberHandle};
use crate::redundancy::BEHIND;
use crate::{Config, Error, Label, Member, MemberState, Result, Which};

impl GroupRuntime {
    /// Adds a member without data: a spare, or an active one that brings room.
    pub fn add(&self, new: Arrival<'_>, state: MemberState) -> Result<()> {
        let _members_stay = self.maintenance.lock();
        let device = new.device;
        new.refuse_foreign(&self.group_state.config())?;
        self.group_state.change_members(|config, handles| {
            let member = member_of(&**device, state, config.event + 1)?;
            if state == MemberState::Spare {
                refuse_idle_spare(config, &member)?;
                self.refuse_coarse_spare(config, &**device)?;
            }
            let handle = Some(MemberHandle::new(member.id, Arc::clone(device), state));
            if let Some(place) = config.members.iter().position(Member::is_vacant) {
                (config.members[place], handles[place]) = (member, handle);
                return Ok(());
            }
            if config.members.len() >= MEMBERS_MAX {
                return Err(Error::invalid(format!(
                    "group {} has {MEMBERS_MAX} members, and more do not fit a label",
                    config.name
                )));
            }
            handles.push(handle);
            config.members.push(member);
            Ok(())
        })
    }

    pub fn remove(&self, which: Which) -> Result<()> {
        let _members_stay = self.maintenance.lock();
        let config = self.group_state.config();
        let index = which.index_in(&config)?;
        let member = &config.members[index];
        if config.volume_on(index).is_some() {
            let (group, path) = (&config.name, &member.path);
            return Err(Error::invalid(format!(
                "{path} holds data of the group {group}: replace it where there is another copy; \
                 or add a member and let the data go there by a relayout without {path}; or let \
                 the volume do with fewer columns or plexes, after it was made smaller where the \
                 others have not the room"
            )));
        }
        self.refuse_host(&config, index)?;
        let handles = self.group_state.handles();
        self.group_state.change_members(|config, handles| {
            let_go(config, handles, index);
            Ok(())
        })?;
        match &handles[index] {
            Some(handle) if handle.id == member.id => Label::erase(&*handle.device),
            _ => Ok(()),
        }
    }

    pub fn replace(&self, which: Which, new: Arrival<'_>) -> Result<()> {
        let left = self.put_in_place(which, new)?;
        // The label of a relocated member lies on other members and is found only by its
        // description; its room may have another use already.
        if let Some(left) = left {
            self.take_label_off(&left);
        }
        Ok(())
    }

    /// Takes the label off a member that left: found alone it would pass for the group, with old
    /// data. One that does not answer keeps it; beside any other member it is told apart (S-108).
    fn take_label_off(&self, left: &MemberHandle) {
        if let Err(error) = Label::erase(&*left.device) {
            let (group, member) = (&self.group_state.name, left.name());
            tracing::warn!(group, member, %error,
                "the member that was replaced keeps its label: erase it before it is found without \
                 the others");
        }
    }

    /// Puts a device in the place of a member and returns that, where it was open and has a device
    /// of its own.
    fn put_in_place(&self, which: Which, new: Arrival<'_>) -> Result<Option<Arc<MemberHandle>>> {
        let _members_stay = self.maintenance.lock();
        let config = self.group_state.config();
        let index = which.index_in(&config)?;
        new.refuse_foreign(&config)?;
        let old = &config.members[index];
        if config.volume_on(index).is_none() {
            return Err(Error::invalid(format!(
                "group {} has no data on {}: remove it, and add the other",
                config.name, old.path
            )));
        }
        if !config.survives_without(&[index]) {
            return Err(Error::invalid(format!(
                "group {} is not whole without {}: it cannot be replaced",
                config.name, old.path
            )));
        }
        self.refuse_host(&config, index)?;
        let left = self.group_state.handles()[index].clone().filter(|_| old.relocated.is_none());
        self.fill_place(&config, index, new.device)?;
        Ok(left)
    }

    /// Lets a device that was checked take the place of a member.
    pub fn fill_place(
        &self,
        config: &Config,
        index: usize,
        device: &Arc<dyn BlockDevice>,
    ) -> Result<()> {
        let member = member_of(&**device, MemberState::Stale, config.event + 1)?;
        self.refuse_unfit(config, index, &member, &**device)?;
        self.take_place(index, |config, handles| {
            if !config.survives_without(&[index]) {
                let (group, old) = (&config.name, &config.members[index].path);
                return Err(Error::invalid(format!(
                    "group {group}: a member failed just now, and the group is not whole without \
                     {old}: it stays"
                )));
            }
            handles[index] =
                Some(MemberHandle::new(member.id, Arc::clone(device), MemberState::Stale));
            config.members[index] = member.clone();
            config.members[index].since = config.event + 1;
            Ok(())
        })
    }

    /// Takes a device back as the member that it was, although it holds something older than that
    /// had when it failed: all of it is copied.
    pub fn take_back(&self, index: usize, device: &Arc<dyn BlockDevice>) -> Result<()> {
        let id = self.group_state.config().members[index].id;
        let _members_stay = self.maintenance.lock();
        self.take_place(index, |config, handles| {
            handles[index] = Some(MemberHandle::new(id, Arc::clone(device), MemberState::Stale));
            config.set_state(index, MemberState::Stale);
            device.name().clone_into(&mut config.members[index].path);
            Ok(())
        })
    }

    fn refuse_host(&self, config: &Config, index: usize) -> Result<()> {
        let relocated_members = config.relocated_on(index);
        relocated_members.first().map_or(Ok(()), |relocated| {
            let (group, path, relocated) =
                (&config.name, &config.members[index].path, &config.members[*relocated].path);
            Err(Error::invalid(format!(
                "group {group}: {relocated} lies in free space of {path}: move it back with \
                 'bedplate volume unrelocate' first"
            )))
        })
    }

    /// Lets `change` put another device in the place of a member.
    pub fn take_place(
        &self,
        index: usize,
        change: impl FnOnce(&mut Config, &mut Handles) -> Result<()>,
    ) -> Result<()> {
        let concerned: Vec<_> = self
            .ios
            .iter()
            .map(|io| (io, io.epochs.get()))
            .filter(|(_, epoch)| epoch.members.contains(&index))
            .collect();
        for (io, epoch) in &concerned {
            let Some(redundancy) = &epoch.redundancy else {
                return Err(Error::invalid(format!(
                    "volume {} has one copy of everything: its members cannot be replaced",
                    io.name
                )));
            };
            for region in io.regions_on(epoch, index) {
                io.mark(epoch, redundancy, region, region)?;
            }
        }
        // I-PAR-2: as when a member fails, and nothing is written to rows until the new one takes
        // part.
        let mut failures = Vec::new();
        let mut still = Vec::new();
        for (io, parity) in concerned
            .iter()
            .flat_map(|(io, epoch)| epoch.parities().map(move |parity| (io, parity)))
        {
            still.push(io.hold_rows(parity, &mut failures));
        }
        if let Some((_, error)) = failures.pop() {
            return Err(error.into());
        }
        let overwritten = self.group_state.overwritten_count();
        let none_was_stale = !self
            .group_state
            .config()
            .members
            .iter()
            .any(|member| member.state == MemberState::Stale);
        self.group_state.change_members(change)?;
        drop(still);
        if none_was_stale {
            self.copied_under.store(overwritten, Ordering::Release);
        }
        for (io, epoch) in &concerned {
            let redundancy = epoch.redundancy.as_ref().expect("it was just found");
            for region in io.regions_on(epoch, index) {
                redundancy.regions.set(region, BEHIND);
            }
            let log = redundancy.log.lock();
            io.write_log(epoch, &log, &log.pages(), true)?;
        }
        Ok(())
    }

    /// Lets members that are up to date be read, when nothing is behind any more. Returns false
    /// where everything is to be copied to them again.
    pub fn finish(&self) -> Result<bool> {
        let _members_stay = self.maintenance.lock();
        for io in &self.ios {
            let config = self.group_state.config();
            let epoch = io.epochs.get();
            let stale: Vec<usize> = epoch
                .members
                .iter()
                .copied()
                .filter(|index| config.members[*index].state == MemberState::Stale)
                .collect();
            if stale.is_empty() || io.pending() > 0 {
                continue;
            }
            self.check_members()?;
            if self.copy_again() {
                return Ok(false);
            }
            io.flush_in(&epoch)?;
            epoch.parities().try_for_each(|parity| io.checkpoint_parity(parity))?;
            self.group_state.change(|config| {
                for index in stale {
                    if config.members[index].state == MemberState::Stale {
                        config.set_state(index, MemberState::Active);
                        tracing::info!(
                            event = "member_rebuilt",
                            group = config.name,
                            member = config.members[index].path,
                            "the member is up to date"
                        );
                    }
                }
                Ok(())
            })?;
        }
        Ok(true)
    }
}

/// Takes a member without data out. No index changes of one whose data a layout names: there its
/// place stays empty.
pub(crate) fn let_go(config: &mut Config, handles: &mut Handles, index: usize) {
    if (index..config.members.len()).any(|at| config.volume_on(at).is_some()) {
        (config.members[index], handles[index]) = (Member::vacant(config.event + 1), None);
        return;
    }
    config.members.remove(index);
    handles.remove(index);
    while config.members.last().is_some_and(|last| {
        last.is_vacant() && config.volume_on(config.members.len() - 1).is_none()
    }) {
        config.members.pop();
        handles.pop();
    }
}
