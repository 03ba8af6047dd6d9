//! What `bedplate place` tells.

use std::fmt;
use std::path::PathBuf;

use bedplate::{FilePlacement, PlacementMember, PlacementState, format_size};
use serde::Serialize;

use crate::render::text;

/// What moved.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct Moved {
    pub moved_bytes: u64,
    /// The members have no room for the rest.
    pub is_full: bool,
}

/// A file or directory.
#[derive(Debug, Serialize)]
pub struct Placed {
    #[serde(serialize_with = "text::readable")]
    pub path: PathBuf,
    #[serde(flatten)]
    pub placement: FilePlacement,
    #[serde(flatten)]
    pub moved: Moved,
}

#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub paths: Vec<Placed>,
}

fn name(member: &PlacementMember) -> String {
    member.path.clone().unwrap_or_else(|| format!("{} (has left the volume)", member.id))
}

impl Placed {
    fn wanted(&self) -> String {
        let members: Vec<String> = self.placement.members.iter().map(name).collect();
        let members = members.join(", ");
        match self.placement.state {
            PlacementState::Anywhere => "anywhere".to_owned(),
            PlacementState::Placed => format!("on {members}"),
            PlacementState::Moving => {
                format!("on {members}, once the relayout has ended; until then anywhere")
            }
            PlacementState::NoPart => format!(
                "on {members}, which have no part of the volume to themselves any more: anywhere \
                 until it is placed again"
            ),
        }
    }

    /// What lies elsewhere, and why it stays there.
    fn elsewhere(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FilePlacement { misplaced_bytes, shared_bytes, .. } = self.placement;
        let rest = misplaced_bytes - shared_bytes;
        if rest > 0 {
            let why = if self.moved.is_full { ": the members are full" } else { "" };
            write!(f, "; {} lie elsewhere{why}", format_size(rest))?;
        }
        if shared_bytes > 0 {
            write!(
                f,
                "; {} lie elsewhere because checkpoints or other files need them (--unshare copies \
                 them)",
                format_size(shared_bytes)
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", text::name(&self.path), self.wanted())?;
        if self.moved.moved_bytes > 0 {
            write!(f, "; {} moved", format_size(self.moved.moved_bytes))?;
        }
        self.elsewhere(f)?;
        for member in &self.placement.on {
            write!(f, "\n  {} on {}", format_size(member.bytes), member.path)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, path) in self.paths.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            write!(f, "{path}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bedplate::MemberBytes;

    use super::*;

    fn placed(state: PlacementState, misplaced_bytes: u64, shared_bytes: u64) -> Placed {
        let member = PlacementMember { id: "01-02".into(), path: Some("/dev/sdb".into()) };
        let on = vec![MemberBytes { id: "01-02".into(), path: "/dev/sdb".into(), bytes: 4 << 20 }];
        Placed {
            path: "/t".into(),
            placement: FilePlacement {
                state,
                members: vec![member],
                on,
                misplaced_bytes,
                shared_bytes,
            },
            moved: Moved::default(),
        }
    }

    /// S-622: what lies elsewhere is told with its reason.
    #[test]
    fn s_622_a_report_says_where_a_file_lies_and_why_not_elsewhere() {
        let mut told = placed(PlacementState::Placed, 3 << 20, 1 << 20);
        told.moved = Moved { moved_bytes: 8 << 20, is_full: true };
        assert_eq!(
            told.to_string(),
            "/t: on /dev/sdb; 8 MiB moved; 2 MiB lie elsewhere: the members are full; 1 MiB lie \
             elsewhere because checkpoints or other files need them (--unshare copies them)\n  4 \
             MiB on /dev/sdb"
        );
        let mut told = placed(PlacementState::NoPart, 0, 0);
        told.placement.members[0].path = None;
        assert!(told.to_string().starts_with("/t: on 01-02 (has left the volume), which have no"));
        assert!(placed(PlacementState::Moving, 0, 0).to_string().contains("relayout has ended"));
        let report = Report { paths: vec![placed(PlacementState::Anywhere, 0, 0)] };
        assert_eq!(report.to_string(), "/t: anywhere\n  4 MiB on /dev/sdb");
    }
}
