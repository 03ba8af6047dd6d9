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

/// Has all threads allocate from as many arenas as there are processors, at least two; the C library
/// takes eight for each otherwise, and keeps freed pages in every one. For the beginning of a process
/// with many threads.
#[cfg(target_env = "gnu")]
pub fn allocate_from_few_arenas() {
    let processors = std::thread::available_parallelism().map_or(2, |count| count.get().max(2));
    let count = i32::try_from(processors).unwrap_or(i32::MAX);
    // SAFETY: mallopt(3) with M_ARENA_MAX sets one number of the allocator; what it refuses it leaves
    // as it was.
    let _set = unsafe { libc::mallopt(libc::M_ARENA_MAX, count) };
}

/// Does nothing: only the GNU C library has arenas.
#[cfg(not(target_env = "gnu"))]
pub fn allocate_from_few_arenas() {}

/// Returns how much memory of this process is resident, in bytes; 0 where the system does not say.
#[must_use]
pub fn resident_bytes() -> u64 {
    let told = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = told.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0).saturating_mul(rustix::param::page_size() as u64)
}

/// Returns how much memory the machine has, in bytes; 0 where the system does not say.
#[must_use]
pub fn memory_bytes() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = told.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}
