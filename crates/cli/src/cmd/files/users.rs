//! Processes that have files of a directory open, with what they read and write in all.

use std::path::Path;

use bedplate::format_size;
use serde::Serialize;

/// A process.
#[derive(Debug, Serialize)]
pub struct User {
    pid: u32,
    name: String,
    /// Files of the directory that it has open.
    files: u64,
    /// What it had read from devices in all, whatever the file; nothing without the permission.
    read_bytes: Option<u64>,
    /// What it had written to devices in all.
    written_bytes: Option<u64>,
}

/// Finds them.
pub fn users(directory: &Path) -> Vec<User> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut users: Vec<User> = pids.filter_map(|pid| user(pid, directory)).collect();
    users.sort_by_key(|user| std::cmp::Reverse(user.read_bytes.max(user.written_bytes)));
    users
}

fn user(pid: u32, directory: &Path) -> Option<User> {
    let place = Path::new("/proc").join(pid.to_string());
    let links = std::fs::read_dir(place.join("fd")).ok()?.flatten();
    let is_below = |link: &std::fs::DirEntry| {
        std::fs::read_link(link.path()).is_ok_and(|path| path.starts_with(directory))
    };
    let files = links.filter(is_below).count() as u64;
    if files == 0 {
        return None;
    }
    let name = std::fs::read_to_string(place.join("comm")).unwrap_or_default();
    let told = std::fs::read_to_string(place.join("io")).unwrap_or_default();
    let of = |name: &str| {
        told.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    Some(User {
        pid,
        name: name.trim().to_owned(),
        files,
        read_bytes: of("read_bytes:"),
        written_bytes: of("write_bytes:"),
    })
}

impl User {
    /// Its row of a table.
    pub fn cells(&self) -> Vec<String> {
        let size = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), format_size);
        vec![
            self.name.clone(),
            self.pid.to_string(),
            self.files.to_string(),
            size(self.read_bytes),
            size(self.written_bytes),
        ]
    }
}
