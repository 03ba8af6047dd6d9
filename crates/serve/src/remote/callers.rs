//! As which user the server is asked.

use bedplate_fuse::HeaderIn;
use bedplate_nfs::Client;

/// The server, as it is seen by each user.
#[derive(Debug)]
pub(super) struct Callers {
    client: Client,
    /// Every program is this one user to the server.
    is_one: bool,
}

impl Callers {
    pub(super) fn new(client: Client) -> Self {
        let url = client.url();
        let is_one = url.uid.is_some() || url.gid.is_some();
        Self { client, is_one }
    }

    pub(super) fn is_one(&self) -> bool {
        self.is_one
    }

    /// Returns the server as this process sees it.
    pub(super) fn own(&self) -> &Client {
        &self.client
    }

    /// Returns the server as what makes a request sees it, with its further groups.
    pub(super) fn of(&self, header: &HeaderIn) -> Client {
        if self.is_one {
            return self.client.clone();
        }
        self.client.as_user(header.uid, header.gid, &groups_of(header.pid))
    }
}

/// Returns the further groups of a thread; none where it is out of sight.
fn groups_of(thread: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    groups_in(&status)
}

fn groups_in(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let words = line.unwrap_or_default().split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_where_the_system_tells_them() {
        assert_eq!(groups_in("Name:\tx\nGroups:\t4 24 1000 \nNgid:\t0\n"), [4, 24, 1000]);
        assert!(groups_in("Name:\tx\n").is_empty() && groups_of(0).is_empty());
    }
}
