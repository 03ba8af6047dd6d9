//! Memory that was freed, given back to the system.

/// Gives whole pages of freed memory back to the system, wherever they lie. The allocator of the C
/// library keeps them otherwise, unless they are the last of their arena. Takes milliseconds for
/// each hundred megabytes: for a background thread after much was freed.
#[cfg(target_env = "gnu")]
pub fn give_free_memory_back() {
    // SAFETY: malloc_trim(3) may be called from any thread at any time; it touches free memory
    // only, under the allocator's own locks.
    let _given = unsafe { libc::malloc_trim(0) };
}

/// Does nothing: only the GNU C library keeps freed pages in the middle of its arenas and can be
/// asked for them.
#[cfg(not(target_env = "gnu"))]
pub fn give_free_memory_back() {}

/// Returns how much memory the machine has, in bytes; 0 where the system does not say.
#[must_use]
pub fn memory_bytes() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = told.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}
