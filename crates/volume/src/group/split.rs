//! A mirror in two halves, each a group of its own that knows the other: what the labels of both say
//! from the split to the join. Pure.
//!
//! ```text
//!   one group ──split_off()──► the group: members that left are failed, and named here
//!                              the half, of their own old labels (half()): the others are failed, and named here
//!   either    ──begin_join()─► its labels alone decide: the other's members are its own that come back (joined_to())
//!             ──note_split()─► no half any more, once all of them are up to date
//! ```
//! Identities differ by one *difference*, as those of every renewed group do, which is another one at
//! every split. So each half finds itself in the other, and in no half of an earlier split.
//!
//! - I-SPL-1: the labels of all halves of one split are made of the same configuration, so which of
//!   their members got its label first makes no difference.

use super::renewed::Difference;
use crate::wire::{Fault, Reader, put_text};
use crate::{Config, Error, ErrorKind, Id, Label, MemberState, Result};

/// What a group knows of the half that was split off it, and that half of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// The name that the other half got, or had.
    pub name: String,
    pub(crate) difference: Difference,
    /// The members, as this group knows them, that the other half has, or that come back from it and
    /// are not up to date yet.
    pub members: Vec<Id>,
    /// When they parted, in seconds since 1970.
    pub split_s: u64,
    /// When this half was last opened or closed for writing, or its members changed, in seconds since
    /// 1970.
    pub changed_s: u64,
    /// This half is kept, and takes the members of the other one in.
    pub joins: bool,
}

impl Config {
    /// Says whether a member is with the other half, and does not come back.
    #[must_use]
    pub fn is_split_off(&self, index: usize) -> bool {
        let member = &self.members[index];
        member.state == MemberState::Failed
            && self
                .split
                .as_ref()
                .is_some_and(|split| !split.joins && split.members.contains(&member.id))
    }

    /// Returns the same group after members left it as a half of their own.
    ///
    /// # Errors
    /// `Invalid` with the reason where they are not exactly one whole copy of every volume, up to
    /// date, besides which there is another.
    pub(crate) fn split_off(&self, members: &[usize], name: &str, now_s: u64) -> Result<Self> {
        self.refuse_split(members, name)?;
        let mut config = self.clone();
        for index in members {
            config.set_state(*index, MemberState::Failed);
        }
        config.split = Some(Split {
            name: name.to_owned(),
            difference: Difference::random(),
            members: members.iter().map(|index| self.members[*index].id).collect(),
            split_s: now_s,
            changed_s: now_s,
            joins: false,
        });
        Ok(config)
    }

    fn refuse_split(&self, members: &[usize], name: &str) -> Result<()> {
        let refuse = |why: String| Err(Error::invalid(format!("group {}: {why}", self.name)));
        if let Some(split) = &self.split {
            let other = &split.name;
            return refuse(format!(
                "the half {other} was split off already: join it, or replace the members that went \
                 with it"
            ));
        }
        if name == self.name {
            return refuse("the half needs a name of its own".to_owned());
        }
        if self.has_relayout() {
            return refuse("a relayout is under way: wait for it, or turn it round".to_owned());
        }
        if let Some(single) = self.volumes.iter().find(|volume| !volume.layout.is_mirrored()) {
            let (role, layout) = (single.role.name(), single.layout.name());
            return refuse(format!("the {role} volume is a {layout}: only mirrors can be split"));
        }
        let unfit = |index: &usize| {
            let member = &self.members[*index];
            self.volume_on(*index).is_some()
                && (member.state != MemberState::Active || member.relocated.is_some())
        };
        if let Some(index) = (0..self.members.len()).find(unfit) {
            let member = &self.members[index];
            let is = match member.state {
                MemberState::Active => "in free space of others",
                state => state.name(),
            };
            return refuse(format!(
                "{} is {is}: only a group whose members are all in sync can be split",
                member.path
            ));
        }
        self.refuse_copies(members).or_else(refuse)
    }

    /// Refuses members that are not one whole copy of everything, and those that are the last one.
    fn refuse_copies(&self, members: &[usize]) -> std::result::Result<(), String> {
        let paths = |members: &[usize]| {
            let paths: Vec<&str> =
                members.iter().map(|index| self.members[*index].path.as_str()).collect();
            paths.join(" and ")
        };
        if let Some(empty) = members.iter().find(|index| self.volume_on(**index).is_none()) {
            return Err(format!("{} holds no data of it", self.members[*empty].path));
        }
        let are = |members: &[usize]| if members.len() == 1 { "is" } else { "are" };
        if !self.are_whole(&|index| members.contains(&index)) {
            return Err(format!(
                "{} {} not a whole copy: name one member of every mirror",
                paths(members),
                are(members)
            ));
        }
        let spared =
            |left: &&usize| self.are_whole(&|index| members.contains(&index) && index != **left);
        if let Some(more) = members.iter().find(spared) {
            return Err(format!(
                "{} {} more than one whole copy: leave {} out",
                paths(members),
                are(members),
                self.members[*more].path
            ));
        }
        if !self.are_whole(&|index| !members.contains(&index)) {
            let (paths, are) = (paths(members), are(members));
            return Err(format!("{paths} {are} the last copy: nothing would be left without"));
        }
        Ok(())
    }

    fn are_whole(&self, good: &dyn Fn(usize) -> bool) -> bool {
        self.volumes.iter().all(|volume| volume.layout.survives(&|member| good(member.into())))
    }

    /// Has the next configuration say when it came about, and nothing of a half whose members are all
    /// back or replaced.
    pub(crate) fn note_split(&mut self, now_s: u64) {
        let Some(split) = &mut self.split else { return };
        let is_away = |id: &Id| {
            self.members
                .iter()
                .any(|member| member.id == *id && member.state != MemberState::Active)
        };
        split.members.retain(is_away);
        split.changed_s = now_s;
        if split.members.is_empty() {
            self.split = None;
        }
    }

    /// Says that this half is kept and takes the other one's members in. Refuses two that do not fit
    /// together, or of which something is in the way.
    ///
    /// # Errors
    /// `Foreign`, `Invalid`.
    pub(crate) fn refuse_join(&self, other: &Self) -> Result<()> {
        let (kept, given) = (&self.name, &other.name);
        let pair = self.split.as_ref().zip(other.split.as_ref()).filter(|(own, theirs)| {
            own.difference == theirs.difference && own.difference.apply(self.id) == other.id
        });
        let Some((own, theirs)) = pair else {
            return Err(Error::new(
                ErrorKind::Foreign,
                format!(
                    "{kept} and {given} are not the halves of one split: one of them is of another \
                     group or of an earlier split, or got a new identity since"
                ),
            ));
        };
        if theirs.joins {
            return Err(Error::invalid(format!(
                "a join that keeps {given} has begun already: it can only be ended with --keep {given}"
            )));
        }
        if let Some(moving) = [self, other].into_iter().find(|config| config.has_relayout()) {
            let moving = &moving.name;
            return Err(Error::invalid(format!(
                "a relayout of {moving} is under way: wait for it, or turn it round"
            )));
        }
        if self.volumes != other.volumes || self.data_start != other.data_start {
            return Err(Error::invalid(format!(
                "{kept} and {given} do not have the same layout and size any more: one of them grew, \
                 shrank or was laid out anew since the split, so they stay two groups"
            )));
        }
        let place = |id: &Id| other.index_of(own.difference.apply(*id));
        let holds = |index: usize| {
            other.volume_on(index).is_some() && other.members[index].state == MemberState::Active
        };
        let lacks = own
            .members
            .iter()
            .find(|id| !place(id).is_some_and(&holds))
            .and_then(|id| self.index_of(*id));
        let gone = lacks.map(|index| self.members[index].path.as_str());
        let came = (0..other.members.len())
            .filter(|index| holds(*index))
            .find(|index| !own.members.iter().any(|id| place(id) == Some(*index)))
            .map(|index| other.members[index].path.as_str());
        match gone.or(came) {
            None => Ok(()),
            Some(path) => Err(Error::invalid(format!(
                "{path} failed or was replaced in one of the halves since the split, so they do not \
                 fit together: keep both, or replace the members of {kept} that went with the half"
            ))),
        }
    }

    /// Says whether the dirty region logs of both halves tell what members of the other one miss.
    pub(crate) fn knows_what_is_missing(&self) -> bool {
        let is_known = |id: &Id| {
            self.index_of(*id).is_some_and(|index| {
                let member = &self.members[index];
                member.last_event < member.since
            })
        };
        self.split.as_ref().is_some_and(|split| split.members.iter().all(is_known))
    }

    /// Decides the join: from the first label that says so on, the other half's members are this
    /// one's, to be brought up to date.
    pub(crate) fn begin_join(&mut self, name: &str) {
        name.clone_into(&mut self.name);
        if let Some(split) = &mut self.split {
            split.joins = true;
        }
    }

    /// Returns the half that members of this group became, whose labels still say this.
    fn half(&self, split: &Split) -> Self {
        let event = self.event + 1;
        let mut config = self.clone();
        (config.event, config.common_event, config.clean) = (event, self.event, true);
        config.findings.clear();
        let mut others = Vec::new();
        for index in 0..config.members.len() {
            if split.members.contains(&self.members[index].id) {
                continue;
            }
            let has_data = self.volume_on(index).is_some();
            let member = &mut config.members[index];
            (member.state, member.since) = (MemberState::Failed, event);
            if has_data {
                member.last_event = self.event;
                others.push(split.difference.apply(member.id));
            } else {
                // A spare stays with the group; its place here is an empty one.
                (member.path, member.size_bytes, member.last_event) = (String::new(), 0, 0);
            }
        }
        let mut config = config.with_identities(split.difference, &split.name);
        config.split = Some(Split {
            name: self.name.clone(),
            difference: split.difference,
            members: others,
            split_s: split.split_s,
            changed_s: split.split_s,
            joins: false,
        });
        config
    }
}

impl Label {
    /// Returns the label that the device of a member which was split off gets.
    pub(crate) fn half(&self, split: &Split) -> Self {
        let half =
            Self { member: split.difference.apply(self.member), config: self.config.half(split) };
        assert!(
            half.config.event == self.config.event + 1
                && half.config.index_of(half.member).is_some(),
            "I-SPL-1: a half follows from the label that it had alone"
        );
        half
    }

    /// Returns the label as a group has it which takes the device in, because it is the kept half and
    /// this one of the other; nothing where that is not so.
    #[must_use]
    pub fn joined_to(&self, config: &Config) -> Option<Self> {
        let split = config.split.as_ref().filter(|split| split.joins)?;
        let id = split.difference.apply(self.member);
        if split.difference.apply(self.config.id) != config.id || !split.members.contains(&id) {
            return None;
        }
        let member = &config.members[config.index_of(id)?];
        // What it missed stands in the logs of both halves from the last event on that both had.
        let event = match member.state {
            MemberState::Failed => member.last_event.min(member.since.saturating_sub(1)),
            MemberState::Active | MemberState::Stale | MemberState::Spare => config.event,
        };
        Some(Self { member: id, config: Config { event, ..config.clone() } })
    }

    /// Says whether its device was to get the label of a half, and did not before the power went.
    pub(crate) fn is_parting(&self, config: &Config) -> bool {
        config.index_of(self.member).is_some_and(|index| {
            config.is_split_off(index) && self.config.event >= config.members[index].last_event
        })
    }
}

pub(super) fn encode(split: Option<&Split>, out: &mut Vec<u8>) {
    let Some(split) = split else { return out.push(0) };
    out.push(1 | if split.joins { 2 } else { 0 });
    out.extend(split.difference.0);
    out.extend(split.split_s.to_le_bytes());
    out.extend(split.changed_s.to_le_bytes());
    put_text(out, &split.name);
    out.extend((split.members.len() as u16).to_le_bytes());
    split.members.iter().for_each(|id| out.extend(id.0));
}

pub(super) fn decode(reader: &mut Reader<'_>) -> std::result::Result<Option<Split>, Fault> {
    let at = reader.at();
    let flags = reader.u8("the flags of a split")?;
    if flags > 3 || flags == 2 {
        return Err(Fault::new(at, format!("{flags} are no flags of a split")));
    }
    if flags == 0 {
        return Ok(None);
    }
    let difference = Difference::from_bytes(reader.id("the difference of a split")?.0)
        .ok_or_else(|| Fault::new(at + 1, "no split has this difference"))?;
    let split_s = reader.u64("the time of a split")?;
    let changed_s = reader.u64("the time of the last change since a split")?;
    let name = reader.text("the name of the other half")?;
    let count = reader.u16("the number of members that were split off")?;
    let members = (0..count)
        .map(|_| reader.id("a member that was split off"))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    if members.is_empty() {
        return Err(Fault::new(at, "no member was split off"));
    }
    Ok(Some(Split { name, difference, members, split_s, changed_s, joins: flags & 2 != 0 }))
}

impl Split {
    /// Returns what is wrong with it in a group.
    pub(super) fn fault(&self, config: &Config) -> Option<String> {
        let unknown = self.members.iter().find(|id| config.index_of(**id).is_none())?;
        Some(format!("the member {unknown} that was split off is none of the group"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::label::tests::label;
    use super::*;
    use crate::wire::Reader;

    fn halves() -> (Label, Label, Config) {
        let whole = label();
        let config = whole.config.split_off(&[1, 2, 5], "half", 1_795_262_400).unwrap();
        let split = config.split.clone().unwrap();
        let stays = Label { member: Id([1; 16]), config: Config { event: 4, ..config.clone() } };
        (stays, whole.half(&split), config)
    }

    #[test]
    fn both_halves_come_back_and_their_labels_are_of_version_7() {
        let (stays, half, _) = halves();
        for label in [&stays, &half] {
            let bytes = label.encode().unwrap();
            assert_eq!((bytes[8], Label::decode(&bytes).as_ref()), (7, Ok(label)));
        }
        let members = |label: &Label| label.config.split.as_ref().unwrap().members.len();
        assert_eq!((members(&stays), members(&half)), (3, 3));
        assert!(half.config.members[6].is_vacant(), "the spare stays");
    }

    /// I-SPL-1
    #[test]
    fn i_spl_1_all_members_of_a_half_get_the_same_configuration() {
        let (_, half, config) = halves();
        let split = config.split.unwrap();
        for member in [3, 6] {
            let other = Label { member: Id([member; 16]), ..label() }.half(&split);
            assert_eq!(other.config, half.config);
            assert_ne!(other.member, half.member);
        }
    }

    #[test]
    fn a_half_is_taken_in_by_the_one_that_decided_so_and_by_no_other() {
        let (stays, half, _) = halves();
        let mut kept = stays.config;
        assert_eq!(half.joined_to(&kept), None, "nothing was decided");
        kept.refuse_join(&half.config).unwrap();
        kept.begin_join("tank");
        let joined = half.joined_to(&kept).unwrap();
        assert_eq!((joined.member, joined.config.id), (Id([2; 16]), kept.id));
        assert!(joined.config.event < kept.members[1].since, "it missed what came since");
        let foreign = label().config.split_off(&[1, 2, 5], "half", 0).unwrap();
        assert_eq!(label().half(&foreign.split.unwrap()).joined_to(&kept), None);
        for index in [1, 2, 5] {
            kept.set_state(index, MemberState::Active);
        }
        kept.note_split(1);
        assert!(kept.split.is_none() && half.joined_to(&kept).is_none());
    }

    #[test]
    fn hostile_bytes_are_no_split() {
        let (stays, ..) = halves();
        let mut bytes = Vec::new();
        encode(stays.config.split.as_ref(), &mut bytes);
        for (at, byte) in [(0, 2), (0, 4), (1, 1)] {
            let mut bad = bytes.clone();
            bad[at] = byte;
            assert!(decode(&mut Reader::new(&bad)).is_err(), "byte {at}");
        }
        let mut same = bytes.clone();
        same[1..17].fill(0);
        assert!(decode(&mut Reader::new(&same)).is_err(), "no difference");
        assert!((0..bytes.len()).all(|len| decode(&mut Reader::new(&bytes[..len])).is_err()));
        let mut config = stays.config;
        config.split.as_mut().unwrap().members.push(Id([77; 16]));
        assert!(config.fault().is_some_and(|fault| fault.contains("none of the group")));
    }
}
