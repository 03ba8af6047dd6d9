//! How leases of a file, and of a mount, stand, in a sentence each.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bedplate::{InodeNo, LeaseReport};

use crate::failure::{Failure, Result};
use crate::mount::leases::list;
use crate::mount::{Mount, leases};
use crate::render::text;

/// Says how the leases of a mount stand; `None` where it hands out none.
pub fn of_mount(mount: &Mount) -> Result<Option<String>> {
    Ok(leases::of(mount)?.map(|told| sentence(&told)))
}

fn sentence(told: &LeaseReport) -> String {
    let total = &told.total;
    let mut line = format!(
        "{} reads, {} writes, {} syncs of {} went to the device",
        total.reads,
        total.writes,
        total.syncs,
        text::count_in(told.clients.len() as u64, "process", "processes"),
    );
    if total.hits > 0 {
        line += &format!("; {} reads found their pages in the cache", total.hits);
    }
    for (what, counts) in [("through the mount", &total.fallbacks), ("refused", &total.refused)] {
        if let Some(list) = list(counts) {
            line += &format!("; {what}: {list}");
        }
    }
    for wait in &told.waits {
        line += &format!("; WAITING: {wait}");
    }
    line
}

/// Says how the leases of a file stand; `None` where its mount hands out none.
pub fn of_file(path: &Path, mount: &Mount) -> Result<Option<String>> {
    let Some(told) = leases::of(mount)? else { return Ok(None) };
    let attributes =
        std::fs::metadata(path).map_err(|error| Failure::system("look at", path, &error))?;
    Ok(Some(standing(InodeNo(attributes.ino()), &told)))
}

fn standing(inode: InodeNo, told: &LeaseReport) -> String {
    let mut line = match told.files.iter().find(|file| file.inode == inode) {
        Some(file) if file.handed_out => "handed out to the programs that asked for it".to_owned(),
        Some(_) => "taken back at this moment: something needs the file alone".to_owned(),
        None => match told.refused_files.iter().find(|file| file.inode == inode) {
            Some(file) => format!("refused: {}", file.reason),
            None => "not asked for: run the program with bedplate run".to_owned(),
        },
    };
    for wait in told.waits.iter().filter(|wait| wait.inode == Some(inode)) {
        line += &format!("; WAITING: {wait}");
    }
    line
}

#[cfg(test)]
mod tests {
    use bedplate::{LeaseWait, LeasedInode, RefusedInode};

    use super::*;

    #[test]
    fn a_file_is_leased_taken_back_refused_or_not_asked_for() {
        let wait = LeaseWait {
            pid: 7,
            process: "postgres, stopped".to_owned(),
            inode: Some(InodeNo(3)),
            writes: true,
        };
        let told = LeaseReport {
            files: vec![
                LeasedInode { inode: InodeNo(2), handed_out: true },
                LeasedInode { inode: InodeNo(3), handed_out: false },
            ],
            refused_files: vec![RefusedInode { inode: InodeNo(4), reason: "why".to_owned() }],
            waits: vec![wait],
            ..LeaseReport::default()
        };
        assert!(standing(InodeNo(2), &told).starts_with("handed out"));
        let taken = standing(InodeNo(3), &told);
        assert!(taken.starts_with("taken back") && taken.contains("WAITING: process 7"), "{taken}");
        assert_eq!(standing(InodeNo(4), &told), "refused: why");
        assert!(standing(InodeNo(5), &told).starts_with("not asked for"));
    }
}
