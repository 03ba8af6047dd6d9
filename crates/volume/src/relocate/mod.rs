//! What takes a failed member's place by itself: a spare, or free space of others (hot relocation);
//! and the way back.

use std::sync::Arc;

use crate::group::{self, Handles, MEMBERS_MAX, MemberHandle};
use crate::runtime::{Arrival, GroupRuntime, let_go};
use crate::{
    Config, Error, ErrorKind, Id, Label, Member, MemberState, Piece, RelocatedMember, Result, Which,
};

impl GroupRuntime {
    /// Moves a relocated member to a device of its own.
    pub fn unrelocate(&self, which: Which, new: Arrival<'_>) -> Result<()> {
        let _members_stay = self.maintenance.lock();
        let config = self.group_state.config();
        let (name, index) = (&config.name, which.index_in(&config)?);
        let Some(relocated) = config.members[index].relocated.as_ref() else {
            return Err(Error::invalid(format!(
                "group {name}: {} does not lie in free space of others",
                config.members[index].path
            )));
        };
        // The device that it was on is welcome, although its label names this group.
        let own = Label::read(&**new.device)
            .ok()
            .filter(|label| label.config.id == config.id && label.member == relocated.was);
        if own.is_none() {
            new.refuse_foreign(&config)?;
        }
        if !config.survives_without(&[index]) {
            let path = &config.members[index].path;
            return Err(Error::invalid(format!(
                "group {name} is not whole without {path}: wait until all copies agree"
            )));
        }
        let was = relocated.was;
        self.fill_place(&config, index, new.device)?;
        // The member that failed is another one from now on.
        let config = self.group_state.config();
        let old = config.index_of(was).filter(|old| config.volume_on(*old).is_none());
        old.map_or(Ok(()), |old| {
            self.group_state.change_members(|config, handles| {
                let_go(config, handles, old);
                Ok(())
            })
        })
    }

    /// Replaces failed members by hot spares, and where none fits, moves them into free space of
    /// others.
    pub fn relocate(&self) -> Result<()> {
        if self.group_state.read_only {
            return Ok(());
        }
        let _members_stay = self.maintenance.lock();
        loop {
            let (config, handles) = (self.group_state.config(), self.group_state.handles());
            let failed = |index: &usize| {
                config.members[*index].state == MemberState::Failed
                    && config.volume_on(*index).is_some()
                    && !config.is_split_off(*index)
            };
            let Some((index, spare)) = (0..config.members.len())
                .filter(failed)
                .find_map(|index| Some((index, self.spare_for(&config, &handles, index)?)))
            else {
                if self.relocate_to_room()? {
                    continue;
                }
                return Ok(());
            };
            tracing::warn!(
                event = "spare_takes_over",
                group = self.group_state.name,
                failed = config.members[index].path,
                spare = config.members[spare].path,
                "a spare takes over"
            );
            self.take_place(index, |config, handles| {
                debug_assert!(
                    config.volume_on(spare).is_none(),
                    "a spare holds nothing of a volume: {:?}",
                    config.members[spare]
                );
                config.members.swap(index, spare);
                handles.swap(index, spare);
                handles[spare] = None;
                config.set_state(index, MemberState::Stale);
                Ok(())
            })?;
        }
    }

    /// Chooses the hot spare for a failed member: the smallest that is large enough and has no
    /// larger blocks.
    fn spare_for(&self, config: &Config, handles: &Handles, index: usize) -> Option<usize> {
        let (needed, block) = (config.needed_bytes(index), self.block_size_on(config, index));
        let serves =
            |handle: &Arc<MemberHandle>| handle.device.geometry().logical_block_size <= block;
        let is_spare = |at: &usize| {
            config.members[*at].state == MemberState::Spare
                && config.members[*at].size_bytes >= needed
        };
        let spares = (0..config.members.len())
            .filter(is_spare)
            .filter(|at| handles[*at].as_ref().is_some_and(serves));
        spares.min_by_key(|at| config.members[*at].size_bytes)
    }

    /// Lets a member that failed move into free space of others. Returns whether one did.
    fn relocate_to_room(&self) -> Result<bool> {
        let (config, handles) = (self.group_state.config(), self.group_state.handles());
        if config.has_relayout() {
            // Its places may be those that are free.
            return Ok(false);
        }
        for index in (0..config.members.len())
            .filter(|index| config.members[*index].state == MemberState::Failed)
            .filter(|index| !config.is_split_off(*index))
        {
            let Some(volume) = config.volume_on(index).filter(|volume| volume.is_redundant())
            else {
                continue;
            };
            let block = self.block_size_on(&config, index);
            let usable = |at: usize| {
                let handle = handles[at].as_ref().filter(|handle| handle.is_active());
                handle.is_some_and(|handle| handle.device.geometry().logical_block_size <= block)
            };
            if let Ok(pieces) = group::pieces_for(&config, &volume.layout, index, &usable) {
                self.move_in(&config, index, pieces)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn move_in(&self, config: &Config, index: usize, pieces: Vec<Piece>) -> Result<()> {
        debug_assert!(
            !pieces.is_empty() && pieces.iter().all(|piece| piece.len > 0),
            "a member that moves in has a place: {pieces:?}"
        );
        let old = config.members[index].clone();
        let path_of = |piece: &Piece| {
            config.index_of(piece.host).map_or("", |host| &config.members[host].path)
        };
        let hosts: Vec<&str> = pieces.iter().map(path_of).collect();
        let was = old.relocated.as_ref().map_or(old.id, |relocated| relocated.was);
        let home = old.path.split('@').next().unwrap_or_default();
        let relocated = Member {
            id: Id::random(),
            path: format!("{home}@{}", hosts.join("+")),
            size_bytes: pieces.iter().map(|piece| piece.len).sum(),
            state: MemberState::Stale,
            since: config.event + 1,
            last_event: 0,
            relocated: Some(RelocatedMember { was, pieces }),
        };
        let window = group::window_on(config, &self.group_state.handles(), &relocated);
        let window = window.ok_or_else(|| {
            Error::invalid(format!("group {}: {} shrank", config.name, hosts.join(" or ")))
        })?;
        // Before the others name it, so that a crash never leaves a place that cannot be found.
        let mut named = config.clone();
        named.members[index] = relocated.clone();
        if let Err(error) = (Label { member: relocated.id, config: named }).write(&*window) {
            return self.give_up_host(config, &relocated, error);
        }
        tracing::warn!(
            event = "member_relocated",
            group = self.group_state.name,
            failed = old.path,
            to = hosts.join(", "),
            "no spare stands in; it moves into free space"
        );
        let taken = self.take_place(index, |config, handles| {
            handles[index] = Some(MemberHandle::new(relocated.id, window, MemberState::Stale));
            config.members[index] = relocated.clone();
            config.members[index].since = config.event + 1;
            // The one that failed is known when it comes back.
            if old.relocated.is_none() && config.members.len() < MEMBERS_MAX {
                config.members.push(old);
                handles.push(None);
            }
            Ok(())
        });
        // A host may die at any moment of this.
        match taken {
            Err(error) if error.kind == ErrorKind::Device => {
                self.give_up_host(config, &relocated, error)
            }
            taken => taken,
        }
    }

    /// Takes a host that does not work out of the group, so that another is looked for.
    fn give_up_host(&self, config: &Config, relocated: &Member, error: Error) -> Result<()> {
        let handles = self.group_state.handles();
        let hosts = relocated
            .relocated
            .iter()
            .flat_map(|relocated| &relocated.pieces)
            .filter_map(|piece| handles[config.index_of(piece.host)?].as_ref());
        for host in hosts {
            if let Err(gone) = host.device.flush() {
                return self.group_state.fail(host, &gone);
            }
        }
        Err(error)
    }
}
