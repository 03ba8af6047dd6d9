//! What scrubs on a schedule found, place by place: a bounded part of a group's configuration, so
//! that it is told also while the group is not open.

use std::ops::Range;

use super::config::{Config, ROLES};
use super::label::SLOT_BYTES;
use crate::wire::{Fault, Reader, put_text};
use crate::{Id, Label, Role};

/// How many places of one scrub are kept.
pub const FINDINGS_MAX: usize = 16;
/// How many copies, or parts of a row, are kept of each.
pub(crate) const FINDING_COPIES_MAX: usize = 8;
/// A place at which copies differed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubFinding {
    /// Whether the scrub that found it is under way; else it is the last that ended.
    pub under_way: bool,
    /// The volume.
    pub role: Role,
    /// The volume addresses.
    pub range: Range<u64>,
    /// What lies there: file, offset and page, as far as an arbiter knew.
    pub lies: Option<String>,
    /// Of a RAID-5, whether the parity was wrong.
    pub parity: bool,
    /// The members that hold a copy, or a part of the row, and where on them; the first eight.
    pub copies: Vec<(Id, u64)>,
    /// The member whose copy was right, where that was known.
    pub right: Option<Id>,
    /// Of a RAID-5 the member whose part of the row was wrong, where that was known.
    pub wrong: Option<Id>,
    /// Whether it was made good.
    pub repaired: bool,
}

impl Config {
    /// Keeps what the scrub under way found, as far as there is room: never so much that the label
    /// could not say what it has to.
    pub(crate) fn keep_findings(&mut self, new: Vec<ScrubFinding>) {
        let kept = self.findings.iter().filter(|finding| finding.under_way).count();
        for finding in new.into_iter().take(FINDINGS_MAX.saturating_sub(kept)) {
            self.findings.push(finding);
            let label = Label { member: self.members[0].id, config: self.clone() };
            if label.encode().is_ok_and(|bytes| bytes.len() <= SLOT_BYTES / 2) {
                continue;
            }
            self.findings.pop();
            return;
        }
    }

    /// Notes that the scrub under way ended: what it found takes the place of what the one before
    /// found.
    pub(crate) fn end_findings(&mut self) {
        self.findings.retain(|finding| finding.under_way);
        self.findings.iter_mut().for_each(|finding| finding.under_way = false);
    }

    /// Forgets what the scrub under way found, because it begins again.
    pub(crate) fn drop_findings(&mut self) {
        self.findings.retain(|finding| !finding.under_way);
    }
}

const UNDER_WAY: u8 = 1;
const PARITY: u8 = 2;
const REPAIRED: u8 = 4;
const RIGHT: u8 = 8;
const WRONG: u8 = 16;
const LIES: u8 = 32;
const _: () = assert!(
    UNDER_WAY + PARITY + REPAIRED + RIGHT + WRONG + LIES == 0x3f,
    "each thing that is said of a finding has a bit of its own"
);

pub(crate) fn encode(findings: &[ScrubFinding], out: &mut Vec<u8>) {
    out.push(findings.len() as u8);
    for finding in findings {
        let flags = [
            (finding.under_way, UNDER_WAY),
            (finding.parity, PARITY),
            (finding.repaired, REPAIRED),
            (finding.right.is_some(), RIGHT),
            (finding.wrong.is_some(), WRONG),
            (finding.lies.is_some(), LIES),
        ];
        out.push(flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum());
        out.push(ROLES.iter().find(|(role, _)| *role == finding.role).map_or(0, |(_, code)| *code));
        out.extend(finding.range.start.to_le_bytes());
        out.extend(finding.range.end.to_le_bytes());
        out.push(finding.copies.len() as u8);
        for (member, offset) in &finding.copies {
            out.extend(member.0);
            out.extend(offset.to_le_bytes());
        }
        finding.right.iter().chain(&finding.wrong).for_each(|member| out.extend(member.0));
        finding.lies.iter().for_each(|lies| put_text(out, lies));
    }
}

pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Vec<ScrubFinding>, Fault> {
    let at = reader.at();
    let count = reader.u8("the number of findings")?;
    if usize::from(count) > 2 * FINDINGS_MAX {
        return Err(Fault::new(at, format!("{count} findings of scrubs are not possible")));
    }
    (0..count).map(|_| decode_one(reader)).collect()
}

fn decode_one(reader: &mut Reader<'_>) -> Result<ScrubFinding, Fault> {
    let at = reader.at();
    let (flags, role) =
        (reader.u8("the flags of a finding")?, reader.u8("the volume of a finding")?);
    let role =
        ROLES.iter().find(|(_, code)| *code == role).map(|(role, _)| *role).filter(|_| flags < 64);
    let role = role
        .ok_or_else(|| Fault::new(at, "a finding of a scrub has an impossible volume or flags"))?;
    let range = reader.u64("the beginning of a finding")?..reader.u64("the end of a finding")?;
    let copies = reader.u8("the copies of a finding")?;
    if range.is_empty() || usize::from(copies) > FINDING_COPIES_MAX {
        return Err(Fault::new(
            at,
            format!(
                "a finding of a scrub from {} to {} on {copies} members is not possible",
                range.start, range.end
            ),
        ));
    }
    let copies = (0..copies)
        .map(|_| Ok((reader.id("a member of a finding")?, reader.u64("a place of a finding")?)))
        .collect::<Result<_, Fault>>()?;
    let has = |flag: u8| flags & flag != 0;
    let right = if has(RIGHT) { Some(reader.id("the right copy of a finding")?) } else { None };
    let wrong = if has(WRONG) { Some(reader.id("the wrong part of a finding")?) } else { None };
    let lies = if has(LIES) { Some(reader.text("the file of a finding")?) } else { None };
    Ok(ScrubFinding {
        under_way: has(UNDER_WAY),
        role,
        range,
        lies,
        parity: has(PARITY),
        copies,
        right,
        wrong,
        repaired: has(REPAIRED),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding() -> ScrubFinding {
        ScrubFinding {
            under_way: true,
            role: Role::Data,
            range: 8192..8704,
            lies: Some("/base/5/1259, byte 8192, PostgreSQL page 1".into()),
            parity: false,
            copies: vec![(Id([1; 16]), 1 << 22), (Id([2; 16]), 1 << 23)],
            right: Some(Id([1; 16])),
            wrong: None,
            repaired: true,
        }
    }

    #[test]
    fn they_survive_encoding_and_hostile_bytes_are_refused() {
        let bare = ScrubFinding {
            under_way: false,
            role: Role::Log,
            lies: None,
            parity: true,
            right: None,
            wrong: Some(Id([2; 16])),
            ..finding()
        };
        let all = vec![finding(), bare, finding()];
        let mut bytes = Vec::new();
        encode(&all, &mut bytes);
        assert_eq!(decode(&mut Reader::new(&bytes)), Ok(all));
        (0..bytes.len())
            .for_each(|len| assert!(decode(&mut Reader::new(&bytes[..len])).is_err(), "{len}"));
        for (at, byte, word) in
            [(0, 33, "33 findings"), (1, 64, "flags"), (2, 3, "volume"), (19, 9, "9 members")]
        {
            let mut broken = bytes.clone();
            broken[at] = byte;
            assert!(decode(&mut Reader::new(&broken)).unwrap_err().what.contains(word), "{word}");
        }
    }
}
