//! From labels to a group: which configuration counts, which devices belong to it, which are
//! refused and why. Pure.

use crate::planted::{Mistake, is_planted};
use crate::{Config, Error, ErrorKind, Label, Member, MemberState, Result};

/// A device with its label.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub name: String,
    pub size_bytes: u64,
    pub label: Label,
}

/// What the labels amount to.
#[derive(Debug)]
pub(crate) struct Assembly {
    /// The newest configuration, as it stands in a label.
    pub config: Config,
    /// For every member the device found for it.
    pub places: Vec<Option<usize>>,
    /// Members that the configuration counts as failed and whose device is back: what they missed
    /// is known.
    pub returned: Vec<usize>,
    /// Members that the configuration counts as failed and whose device holds something older than
    /// when they failed.
    pub older: Vec<usize>,
    /// Members that were split off and whose device, given after them, has not the label of the half
    /// yet.
    pub parting: Vec<(usize, usize)>,
    /// Members that should be there and are not.
    pub missing: Vec<usize>,
    /// Those of them of which an older copy is there, with its name.
    pub outdated: Vec<(usize, String)>,
}

/// Puts a group together.
///
/// # Errors
/// `Foreign`, `Duplicated`, `Diverged`, `Outdated`: each names the device. Missing members are no
/// error here.
pub(crate) fn assemble(found: &[Found]) -> Result<Assembly> {
    let first = found
        .first()
        .ok_or_else(|| Error::new(ErrorKind::Missing, "no member of a group was found"))?;
    // The first that is named says which group is meant.
    let own = |device: &&Found| device.label.config.id == first.label.config.id;
    let newest =
        found.iter().filter(own).max_by_key(|device| device.label.config.event).unwrap_or(first);
    let config = newest.label.config.clone();
    for device in found {
        same_group(newest, device)?;
    }
    if let Some((one, other)) = estranged(found) {
        return Err(diverged(one, other));
    }
    let mut assembly = Assembly {
        places: vec![None; config.members.len()],
        returned: Vec::new(),
        older: Vec::new(),
        parting: Vec::new(),
        missing: Vec::new(),
        outdated: Vec::new(),
        config,
    };
    for (at, device) in found.iter().enumerate() {
        place(&mut assembly, found, at, device)?;
    }
    if let Some((_, what)) =
        assembly.outdated.iter().find(|(index, _)| assembly.places[*index].is_some())
    {
        return Err(Error::new(
            ErrorKind::Duplicated,
            format!("group {}: a member is there twice: {what}", assembly.config.name),
        ));
    }
    let config = &assembly.config;
    let needed = |index: &usize| {
        matches!(config.members[*index].state, MemberState::Active | MemberState::Stale)
    };
    assembly.missing = (0..config.members.len())
        .filter(|index| assembly.places[*index].is_none())
        .filter(needed)
        .collect();
    Ok(assembly)
}

fn same_group(newest: &Found, device: &Found) -> Result<()> {
    let (ours, theirs) = (&newest.label.config, &device.label.config);
    if ours.id != theirs.id {
        let message = format!(
            "{} belongs to the group {} ({}) and not to {} ({})",
            device.name, theirs.name, theirs.id, ours.name, ours.id
        );
        return Err(Error::new(ErrorKind::Foreign, message));
    }
    if ours.event == theirs.event && ours != theirs {
        return Err(diverged(newest, device));
    }
    Ok(())
}

/// Returns two of which one failed, as the other knows, and was opened without that one later:
/// whose label is the newer says nothing then.
fn estranged(found: &[Found]) -> Option<(&Found, &Found)> {
    let failed = |one: &Found, of: &Found| {
        let members = &of.label.config.members;
        members
            .iter()
            .find(|member| member.id == one.label.member && member.state == MemberState::Failed)
            .map(|member| member.since)
    };
    let went_on = |one: &Found, of: &Found| {
        failed(one, of).is_some_and(|since| since <= one.label.config.event)
            && failed(of, one).is_some()
    };
    found.iter().find_map(|one| Some((one, found.iter().find(|other| went_on(one, other))?)))
}

fn newest_of(found: &[Found]) -> Option<&Found> {
    found.iter().max_by_key(|device| device.label.config.event)
}

fn diverged(newest: &Found, device: &Found) -> Error {
    let (one, other, group) = (&newest.name, &device.name, &newest.label.config.name);
    let message = format!(
        "group {group}: {one} and {other} each went on without the other, so what they hold \
         differs: import one of them alone (degraded), copy out what the other has, then replace \
         the other"
    );
    Error::new(ErrorKind::Diverged, message)
}

/// Says whether a configuration of before knows that a member was replaced or removed: it was in
/// the group then at the latest, and is not named. A device that names it all the same, in a
/// configuration that counts, went on from one that is older still.
fn was_let_go(before: &Config, member: &Member) -> bool {
    member.since <= before.event && before.index_of(member.id).is_none()
}

fn went_on_after_leaving(gone: &Member, found: &[Found], device: &Found) -> Error {
    let at = found
        .iter()
        .find(|found| found.label.member == gone.id)
        .map_or(&gone.path, |found| &found.name);
    let (group, name) = (&device.label.config.name, &device.name);
    let message = format!(
        "group {group}: {at} was replaced or removed, as {name} knows, and went on without {name} \
         all the same, so what they hold differs: disconnect {at} to go on with what the group \
         holds; or import it alone (degraded) for what was written to it since"
    );
    Error::new(ErrorKind::Diverged, message)
}

fn place(assembly: &mut Assembly, found: &[Found], at: usize, device: &Found) -> Result<()> {
    let config = &assembly.config;
    let group = &config.name;
    let index = match device.label.outdated_in(config, &device.name) {
        Some(message) => return Err(Error::new(ErrorKind::Outdated, message)),
        None => config.index_of(device.label.member).expect("a device with a place is a member"),
    };
    if let Some(other) = assembly.places[index] {
        let message = format!(
            "{} and {} are the same member of the group {group}: one is a copy of the other",
            found[other].name, device.name
        );
        return Err(Error::new(ErrorKind::Duplicated, message));
    }
    if let Some(gone) =
        config.members.iter().find(|member| was_let_go(&device.label.config, member))
    {
        return Err(went_on_after_leaving(gone, found, device));
    }
    let member = &config.members[index];
    if device.size_bytes < member.size_bytes && member.state != MemberState::Spare {
        let message = format!(
            "{} has {} bytes, and the group {group} uses {} of it: it was cut short: make it as \
             long as it was, or disconnect it and import degraded",
            device.name, device.size_bytes, member.size_bytes
        );
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    if member.state == MemberState::Failed {
        if device.label.config.event >= member.since {
            return Err(diverged(newest_of(found).unwrap_or(device), device));
        }
        if device.label.is_parting(config) {
            assembly.parting.push((index, at));
            return Ok(());
        }
        let is_the_one =
            device.label.config.event >= member.last_event || is_planted(Mistake::OlderCopyTaken);
        if is_the_one { assembly.returned.push(index) } else { assembly.older.push(index) }
    } else if config.volume_on(index).is_some()
        && device.label.config.event < config.common_event
        && member.since <= config.common_event
    {
        // Every member had this event when the group was open, so this is what the member was
        // before. One that came later need not have it.
        let (name, event, common_event) =
            (&device.name, device.label.config.event, config.common_event);
        assembly.outdated.push((
            index,
            format!(
                "{name} is an older copy of it: its label is of event {event}, and it had \
                 {common_event}"
            ),
        ));
        return Ok(());
    }
    assembly.places[index] = Some(at);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Extent, Id, Layout, Mirror, Role, VolumeConfig};

    fn config(event: u64) -> Config {
        let member = |n: u8| Member {
            id: Id([n; 16]),
            path: format!("/dev/{n}"),
            size_bytes: 8 << 20,
            state: MemberState::Active,
            since: 1,
            last_event: 0,
            relocated: None,
        };
        let extent = |member| Layout::Extent(Extent { member, start: 4 << 20, len: 4 << 20 });
        let layout = Layout::Mirror(Mirror::new(vec![extent(0), extent(1)]));
        let volumes =
            vec![VolumeConfig { role: Role::Data, region_bytes: 1 << 20, layout, relayout: None }];
        Config {
            id: Id([99; 16]),
            name: "tank".into(),
            event,
            common_event: 0,
            clean: true,
            foreground_percent: crate::FOREGROUND_PERCENT_DEFAULT,
            data_start: 4 << 20,
            reserve_bytes: 0,
            scrub: None,
            findings: Vec::new(),
            split: None,
            members: vec![member(1), member(2), member(3)],
            volumes,
        }
    }

    fn found(member: u8, config: Config) -> Found {
        Found {
            name: format!("/dev/x{member}"),
            size_bytes: 8 << 20,
            label: Label { member: Id([member; 16]), config },
        }
    }

    fn failed(event: u64, index: usize, since: u64) -> Config {
        let mut config = config(event);
        config.members[index].state = MemberState::Failed;
        config.members[index].since = since;
        config
    }

    fn refusal(found: &[Found]) -> Error {
        assemble(found).unwrap_err()
    }

    #[test]
    fn members_are_found_in_any_order_and_under_any_name() {
        let assembly =
            assemble(&[found(3, config(5)), found(1, config(5)), found(2, config(4))]).unwrap();
        assert_eq!(
            (assembly.places, assembly.missing, assembly.config.event),
            (vec![Some(1), Some(2), Some(0)], vec![], 5)
        );
    }

    #[test]
    fn a_foreign_a_duplicated_and_a_removed_member_are_refused_by_name() {
        let mut foreign = found(2, config(5));
        foreign.label.config.id = Id([1; 16]);
        let error = refusal(&[found(1, config(5)), foreign]);
        assert!(error.kind == ErrorKind::Foreign && error.message.contains("/dev/x2"), "{error}");
        let error = refusal(&[found(1, config(5)), found(1, config(5))]);
        assert_eq!(error.kind, ErrorKind::Duplicated);
        let error = refusal(&[found(1, config(5)), found(7, config(3))]);
        assert!(error.kind == ErrorKind::Outdated && error.message.contains("/dev/x7"), "{error}");
        let mut short = found(2, config(5));
        short.size_bytes -= 512;
        assert!(refusal(&[found(1, config(5)), short]).message.contains("cut short"));
    }

    #[test]
    fn a_missing_member_is_told_from_a_failed_one() {
        assert_eq!(assemble(&[found(1, config(5))]).unwrap().missing, vec![1, 2]);
        assert_eq!(
            assemble(&[found(1, failed(5, 1, 4)), found(3, config(5 - 1))]).unwrap().missing,
            Vec::<usize>::new()
        );
    }

    #[test]
    fn a_member_that_was_away_comes_back_and_one_that_went_on_alone_is_refused() {
        let assembly =
            assemble(&[found(1, failed(9, 1, 6)), found(2, config(5)), found(3, config(5))])
                .unwrap();
        assert_eq!(assembly.returned, vec![1]);
        let both = [found(1, failed(9, 1, 6)), found(2, failed(7, 0, 6))];
        assert_eq!(refusal(&both).kind, ErrorKind::Diverged);
        let tie = [found(1, failed(6, 1, 6)), found(2, failed(6, 0, 6))];
        assert_eq!(refusal(&tie).kind, ErrorKind::Diverged);
        // Member 3 has no extent: its place was taken.
        assert_eq!(
            refusal(&[found(1, failed(9, 2, 6)), found(3, config(5))]).kind,
            ErrorKind::Outdated
        );
    }
}
