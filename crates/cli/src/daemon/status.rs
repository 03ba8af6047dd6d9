//! What is told of a group: its members, its volumes, a picture of the layout.

use std::fmt;
use std::time::Duration;

use bedplate::{
    FOREGROUND_PERCENT_DEFAULT, FOREGROUND_UNLIMITED, Group, GroupConfig, Layout, MemberState,
    MemberStatistics, OperationStatistics, PlexStatistics, RelayoutState, VolumeStatistics,
    format_duration, format_size,
};
use serde::{Deserialize, Serialize};

use crate::daemon::halves::SplitStatus;
use crate::daemon::scrubbed::ScrubStatus;
use crate::failure::Exit;
use crate::render::text;

/// A group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    pub name: String,
    pub id: String,
    pub event: u64,
    pub clean: bool,
    /// Bytes that are still to be compared or copied until all copies agree; `None` where no
    /// process has the group open.
    pub pending_bytes: Option<u64>,
    /// The rate of late, and how long the rest takes at that.
    pub pending_bytes_per_second: Option<u64>,
    pub pending_seconds: Option<u64>,
    /// What the p99 of reads, writes and flushes may grow to while members are filled, moved or
    /// compared, in hundredths; 65,535: anything.
    pub foreground_percent: u16,
    /// What it grew to of late; `None` while nothing of that goes on, or the volumes are idle.
    pub foreground_found_percent: Option<u32>,
    /// When copies are compared by themselves, and what came of it.
    #[serde(default)]
    pub scrub: Option<ScrubStatus>,
    pub volumes: Vec<VolumeStatus>,
    pub members: Vec<MemberStatus>,
    /// The half of the mirror that was split off, or that this one was split off from.
    #[serde(default)]
    pub split: Option<SplitStatus>,
    /// What an administrator should know: members that nothing stands in for, and those that lie in
    /// free space of others.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Why it could not be opened with the members that were found; only where no process has it
    /// open.
    #[serde(default)]
    pub refused: Option<String>,
}

/// A volume of a group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VolumeStatus {
    pub role: String,
    pub layout: String,
    pub size_bytes: u64,
    pub unit_bytes: Option<u64>,
    pub copies: usize,
    /// The layout line by line; `{n}` stands for member n.
    pub picture: Vec<String>,
    /// What it is becoming.
    pub relayout: Option<RelayoutStatus>,
    pub statistics: Option<VolumeStatistics>,
    /// What each whole copy of it did; one where there is one copy.
    #[serde(default)]
    pub plexes: Vec<PlexStatistics>,
}

/// A relayout under way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RelayoutStatus {
    /// The layout that addresses go to.
    pub layout: String,
    /// That layout line by line.
    pub picture: Vec<String>,
    /// `running`, `paused`, or what the last step failed with; `waiting` where no process has the
    /// group open.
    pub state: String,
    /// How many bytes are there, and how many go.
    pub moved_bytes: u64,
    pub total_bytes: u64,
    /// How long the rest takes at the rate of late.
    pub seconds_left: Option<u64>,
}

/// A member of a group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MemberStatus {
    pub index: usize,
    pub id: String,
    pub path: String,
    pub size_bytes: u64,
    pub state: String,
    pub since_event: u64,
    pub has_data: bool,
    /// Whether its device was found; what lies on others is where they are.
    #[serde(default = "yes")]
    pub found: bool,
    /// The members in whose free space it lies, by their path; none where it has a device of its
    /// own.
    #[serde(default)]
    pub lies_on: Vec<String>,
    pub statistics: Option<MemberStatistics>,
    /// The part of the time of the statistics in which at least one operation was under way.
    #[serde(default)]
    pub utilisation: Option<f64>,
    /// How many operations were under way on average.
    #[serde(default)]
    pub queue_depth_mean: Option<f64>,
}

impl MemberStatus {
    fn set_statistics(&mut self, statistics: Option<MemberStatistics>) {
        self.utilisation = statistics.as_ref().and_then(MemberStatistics::utilisation);
        self.queue_depth_mean = statistics.as_ref().and_then(MemberStatistics::queue_depth_mean);
        self.statistics = statistics;
    }
}

/// The state of a member of an open group that was overwritten, and that cannot leave because the
/// group is not whole without it.
const LOST: &str = "lost";

/// The state of a member that is with the other half of a split.
pub const SPLIT: &str = "split";

/// What an older version's answer does not say.
fn yes() -> bool {
    true
}

impl Status {
    /// Tells of an open group, and looks first whether its members are what they were.
    pub fn of(group: &Group) -> Self {
        if let Err(error) = group.check_members() {
            tracing::debug!(%error, "told as broken");
        }
        let mut status = Self::from_config(&group.config());
        let mut statistics = group.statistics();
        for member in &mut status.members {
            member.set_statistics(statistics.get_mut(member.index).and_then(Option::take));
        }
        let mut failures = Vec::new();
        for (index, why) in group.failures().into_iter().enumerate() {
            let Some((member, why)) =
                status.members.iter_mut().find(|member| member.index == index).zip(why)
            else {
                continue;
            };
            failures.push(format!("{} failed: {why}", member.path));
            if member.state == MemberState::Active.name() {
                LOST.clone_into(&mut member.state);
            }
        }
        status.notes.splice(0..0, failures);
        let progress = group.progress();
        (status.pending_bytes, status.pending_seconds) =
            (Some(progress.pending_bytes), progress.seconds_left);
        status.pending_bytes_per_second = progress.bytes_per_second;
        status.foreground_found_percent = group.foreground().found_percent;
        for (volume, role) in
            status.volumes.iter_mut().zip(group.config().volumes.iter().map(|volume| volume.role))
        {
            if let (Some(relayout), Some(progress)) =
                (&mut volume.relayout, group.relayout_progress())
            {
                relayout.state = match progress.state {
                    RelayoutState::Running => "running".to_owned(),
                    RelayoutState::Paused => "paused".to_owned(),
                    RelayoutState::Failing(why) => format!("failing, tried again: {why}"),
                };
                relayout.seconds_left = progress.seconds_left;
            }
            volume.statistics = group.volume_statistics(role);
            volume.plexes = group.plex_statistics(role);
        }
        status
    }

    /// Leaves of the statistics what came after an earlier status. What has another place by now is
    /// told whole.
    pub fn since(mut self, earlier: &Self) -> Self {
        for (volume, before) in self.volumes.iter_mut().zip(&earlier.volumes) {
            volume.statistics = volume.statistics.take().map(|now| {
                before.statistics.as_ref().map_or(now.clone(), |before| now.since(before))
            });
            for (plex, before) in volume
                .plexes
                .iter_mut()
                .zip(&before.plexes)
                .filter(|(plex, before)| plex.members == before.members)
            {
                plex.statistics = plex.statistics.since(&before.statistics);
            }
        }
        for member in &mut self.members {
            let before = earlier
                .members
                .iter()
                .find(|before| before.id == member.id)
                .and_then(|before| before.statistics.as_ref());
            let now = member.statistics.take();
            member.set_statistics(
                now.map(|now| before.map_or(now.clone(), |before| now.since(before))),
            );
        }
        self
    }

    /// Tells of a group by its labels alone.
    pub fn from_config(config: &GroupConfig) -> Self {
        let volumes = config.volumes.iter().map(|volume| VolumeStatus {
            role: volume.role.name().into(),
            layout: volume.layout.name().into(),
            size_bytes: volume.size_bytes(),
            unit_bytes: volume.layout.unit_bytes(),
            copies: volume.layout.copies(),
            picture: picture(&volume.layout),
            relayout: volume.relayout.as_ref().map(|relayout| RelayoutStatus {
                layout: relayout.next.name().into(),
                picture: picture(&relayout.next),
                state: if relayout.paused { "paused" } else { "waiting" }.into(),
                moved_bytes: relayout.moved_bytes(&volume.layout),
                total_bytes: volume.size_bytes(),
                seconds_left: None,
            }),
            statistics: None,
            plexes: Vec::new(),
        });
        let members =
            config.members.iter().enumerate().filter(|(_, member)| !member.is_vacant()).map(
                |(index, member)| MemberStatus {
                    index,
                    id: member.id.to_string(),
                    path: member.path.clone(),
                    size_bytes: member.size_bytes,
                    state: if config.is_split_off(index) { SPLIT } else { member.state.name() }
                        .into(),
                    since_event: member.since,
                    has_data: config.volume_on(index).is_some(),
                    found: true,
                    lies_on: hosts(config, index),
                    statistics: None,
                    utilisation: None,
                    queue_depth_mean: None,
                },
            );
        Self {
            name: config.name.clone(),
            id: config.id.to_string(),
            event: config.event,
            clean: config.clean,
            pending_bytes: None,
            pending_bytes_per_second: None,
            pending_seconds: None,
            foreground_percent: config.foreground_percent,
            foreground_found_percent: None,
            scrub: ScrubStatus::of(config),
            volumes: volumes.collect(),
            members: members.collect(),
            split: SplitStatus::of(config),
            notes: notes(config),
            refused: None,
        }
    }

    /// Says what work in the background costs the foreground, while there is any, and the limit
    /// where another than the default was stated.
    fn foreground(&self) -> Option<String> {
        let factor = |percent: u32| format!("{:.2}", f64::from(percent) / 100.0);
        let limit = match self.foreground_percent {
            FOREGROUND_UNLIMITED => "no limit".to_owned(),
            percent => format!("limit {}", factor(percent.into())),
        };
        let stated = self.foreground_percent != FOREGROUND_PERCENT_DEFAULT;
        match self.foreground_found_percent {
            Some(found) => Some(format!(
                "p99 of the foreground: {} times what it is without ({limit})",
                factor(found)
            )),
            None => stated.then(|| {
                format!(
                    "p99 of the foreground while members are filled, moved or compared: {limit}"
                )
            }),
        }
    }

    /// Returns what a command that shows the group answers to its caller.
    pub fn exit(&self) -> Exit {
        match self.health() {
            "whole" | SPLIT => Exit::Done,
            "degraded" | "rebuilding" => Exit::Failed,
            _ => Exit::Broken,
        }
    }

    /// Returns whether the process that has the group open is at work on it: copies are made or
    /// compared, or a volume is given another layout.
    pub fn is_busy(&self) -> bool {
        let fills = self
            .members
            .iter()
            .any(|member| member.has_data && member.state == MemberState::Stale.name());
        let moves = self
            .volumes
            .iter()
            .filter_map(|volume| volume.relayout.as_ref())
            .any(|relayout| relayout.state != "paused");
        fills || moves || self.pending_bytes.is_some_and(|bytes| bytes > 0)
    }

    /// Says in one word how the group is.
    pub fn health(&self) -> &'static str {
        let state =
            |name: &str| self.members.iter().any(|member| member.has_data && member.state == name);
        if self.refused.is_some() {
            "refused"
        } else if state(LOST) {
            "broken"
        } else if state(MemberState::Failed.name()) {
            "degraded"
        } else if state(MemberState::Stale.name()) {
            "rebuilding"
        } else if state(SPLIT) {
            SPLIT
        } else {
            "whole"
        }
    }
}

/// Returns the paths of the members that one lies on.
fn hosts(config: &GroupConfig, index: usize) -> Vec<String> {
    let pieces = config.members[index].relocated.iter().flat_map(|guest| &guest.pieces);
    let known = pieces.map(|piece| {
        config
            .index_of(piece.host)
            .map_or_else(|| piece.host.to_string(), |host| config.members[host].path.clone())
    });
    known.collect()
}

fn notes(config: &GroupConfig) -> Vec<String> {
    let guests = (0..config.members.len()).filter(|index| {
        config.members[*index].relocated.is_some() && config.volume_on(*index).is_some()
    });
    let guests = guests.map(|index| {
        let (path, hosts) = (&config.members[index].path, hosts(config, index).join(" and "));
        format!(
            "{path} lies in free space of {hosts}: 'bedplate volume unrelocate' moves it to a \
             device of its own"
        )
    });
    let halves = SplitStatus::of(config).map(|split| split.note());
    halves
        .into_iter()
        .chain(guests)
        .chain((0..config.members.len()).filter_map(|index| config.stranded(index)))
        .collect()
}

/// Draws a layout.
fn picture(layout: &Layout) -> Vec<String> {
    let mut lines = Vec::new();
    draw(layout, "", "", &mut lines);
    lines
}

fn draw(layout: &Layout, first: &str, rest: &str, lines: &mut Vec<String>) {
    let size = format_size(layout.size_bytes());
    let children = layout.children();
    lines.push(match layout {
        Layout::Extent(extent) => format!("{first}{{{}}}", extent.member),
        Layout::Concat(_) => format!("{first}concatenated, {} parts, {size}", children.len()),
        Layout::Stripe(stripe) => format!(
            "{first}striped over {} columns in units of {}, {size}",
            children.len(),
            format_size(stripe.unit_bytes())
        ),
        Layout::Raid5(raid5) => {
            format!(
                "{first}RAID-5 over {} columns in units of {}, {size}",
                children.len(),
                format_size(raid5.unit_bytes())
            )
        }
        Layout::Mirror(_) => format!("{first}mirrored on {} plexes, {size}", children.len()),
    });
    for (at, child) in children.iter().enumerate() {
        let (branch, below) =
            if at + 1 == children.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        draw(child, &format!("{rest}{branch}"), &format!("{rest}{below}"), lines);
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "group {}, {}, {}",
            self.name,
            self.health(),
            text::count(self.members.len() as u64, "member")
        )?;
        for volume in &self.volumes {
            writeln!(f, "{}: {}", volume.role, volume.layout)?;
            for line in &volume.picture {
                writeln!(f, "  {}", self.with_member(line))?;
            }
            if let Some(relayout) = &volume.relayout {
                writeln!(f, "  becomes {}, {relayout}", relayout.layout)?;
                for line in &relayout.picture {
                    writeln!(f, "  {}", self.with_member(line))?;
                }
            }
        }
        for member in self.members.iter().filter(|member| !member.has_data) {
            let state = if member.state == MemberState::Active.name() {
                "without data"
            } else {
                &member.state
            };
            writeln!(
                f,
                "{state}: {}{}",
                text::one_line(&member.path),
                if member.found { "" } else { " (not found)" }
            )?;
        }
        if let Some(pending) = self.pending_bytes.filter(|pending| *pending > 0) {
            let rate = self
                .pending_bytes_per_second
                .map(|rate| format!(" at {}/s", format_size(rate)))
                .unwrap_or_default();
            let seconds = self
                .pending_seconds
                .map(|seconds| format!(", about {}", format_duration(Duration::from_secs(seconds))))
                .unwrap_or_default();
            writeln!(f, "{} to go until all copies agree{rate}{seconds}", format_size(pending))?;
        }
        if let Some(line) = self.foreground() {
            writeln!(f, "{line}")?;
        }
        if let Some(scrub) = &self.scrub {
            writeln!(f, "{scrub}")?;
        }
        for note in &self.notes {
            writeln!(f, "{}", text::one_line(note))?;
        }
        if let Some(why) = &self.refused {
            writeln!(f, "it cannot be opened as it is: {}", text::one_line(why))?;
        }
        write!(f, "id {}, event {}", self.id, self.event)
    }
}

impl fmt::Display for RelayoutStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (moved, total) = (format_size(self.moved_bytes), format_size(self.total_bytes));
        let percent = self.moved_bytes.saturating_mul(100) / self.total_bytes.max(1);
        write!(f, "{}: {moved} of {total} moved ({percent} %)", self.state)?;
        self.seconds_left.map_or(Ok(()), |seconds| {
            write!(f, ", about {} left", format_duration(Duration::from_secs(seconds)))
        })
    }
}

impl Status {
    /// Puts path and state where a line of the picture names a member.
    fn with_member(&self, line: &str) -> String {
        let Some((before, index)) = line.split_once('{') else { return line.to_owned() };
        let member = index
            .trim_end_matches('}')
            .parse::<usize>()
            .ok()
            .and_then(|index| self.members.iter().find(|member| member.index == index));
        member.map_or_else(
            || line.to_owned(),
            |member| {
                let since = if member.state == "active" {
                    String::new()
                } else {
                    format!(" since event {}", member.since_event)
                };
                let away = if member.found { "" } else { ", not found" };
                format!("{before}{}  {}{since}{away}", text::one_line(&member.path), member.state)
            },
        )
    }

    /// Lays out what every member did.
    pub fn statistics(&self) -> String {
        let head = [
            "volume, plex or member",
            "state",
            "",
            "operations",
            "bytes",
            "average",
            "p50",
            "p99",
            "errors",
        ]
        .map(String::from)
        .to_vec();
        let mut rows = vec![head];
        for volume in &self.volumes {
            let Some(statistics) = &volume.statistics else { continue };
            push_kinds(
                &mut rows,
                &volume.role,
                &volume.layout,
                [&statistics.reads, &statistics.writes, &statistics.flushes],
            );
            rows.push(vec![
                String::new(),
                String::new(),
                format!("{} under way", statistics.queue_depth),
            ]);
            // A plex that is all of the volume's members would tell nothing new.
            for (at, plex) in volume.plexes.iter().enumerate().filter(|_| volume.plexes.len() > 1) {
                let name = format!("{} plex {at}", volume.role);
                push_members(
                    &mut rows,
                    &name,
                    &text::count(plex.members.len() as u64, "member"),
                    &plex.statistics,
                );
            }
        }
        for member in &self.members {
            let Some(statistics) = &member.statistics else { continue };
            push_members(&mut rows, &member.path, &member.state, statistics);
        }
        text::table(&rows, &[3, 4, 5, 6, 7, 8])
    }
}

/// Adds the rows of a member or of all members of a plex.
fn push_members(rows: &mut Vec<Vec<String>>, name: &str, state: &str, of: &MemberStatistics) {
    push_kinds(rows, name, state, [&of.reads, &of.writes, &of.flushes]);
    rows.push(vec![
        String::new(),
        String::new(),
        format!("{} corrected, {} under way", of.corrected, of.queue_depth),
    ]);
    if let (Some(busy), Some(depth)) = (of.utilisation(), of.queue_depth_mean()) {
        let busy = format!("busy {:.1} %, {depth:.2} on average", busy * 100.0);
        rows.push(vec![String::new(), String::new(), busy]);
    }
}

/// Adds a row for each kind of operation; the first names whose they are.
fn push_kinds(
    rows: &mut Vec<Vec<String>>,
    name: &str,
    state: &str,
    kinds: [&OperationStatistics; 3],
) {
    let us = |time: u64| format!("{time} µs");
    for (at, (what, kind)) in ["read", "write", "flush"].into_iter().zip(kinds).enumerate() {
        let (name, state) = if at == 0 {
            (name.to_owned(), state.to_owned())
        } else {
            (String::new(), String::new())
        };
        let times = [us(kind.time_us_average), us(kind.time_us_p50), us(kind.time_us_p99)];
        let counts =
            [name, state, what.to_owned(), kind.operations.to_string(), format_size(kind.bytes)];
        rows.push(counts.into_iter().chain(times).chain([kind.errors.to_string()]).collect());
    }
}
