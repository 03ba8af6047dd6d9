//! How much memory the kernel's page cache holds.

use std::fs;

/// Returns the size in bytes of the page cache, file pages and device pages together; 0 where the
/// system does not tell.
pub(crate) fn page_cache_bytes() -> u64 {
    parse(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

fn parse(text: &str) -> u64 {
    let kib = |name: &str| -> u64 {
        let value = text
            .lines()
            .find_map(|l| l.strip_prefix(name))
            .and_then(|rest| rest.split_whitespace().next());
        value.and_then(|v| v.parse().ok()).unwrap_or(0)
    };
    // `Cached` holds tmpfs pages too; a target that lies in memory must not look like a cache.
    (kib("Cached:") + kib("Buffers:")).saturating_sub(kib("Shmem:")) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_not_page_cache() {
        let text =
            "MemTotal: 100 kB\nBuffers:  10 kB\nCached:  50 kB\nSwapCached: 5 kB\nShmem:  20 kB\n";
        assert_eq!(parse(text), 40 << 10);
        assert_eq!(parse(""), 0);
    }
}
