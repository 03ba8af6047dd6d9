//! How many processors the kernel makes queues for.

/// Returns how many processors there may ever be: the kernel has a queue for each of them.
///
/// # Errors
/// When the system does not tell.
pub fn processors() -> std::io::Result<u16> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count(&text).ok_or_else(|| {
        std::io::Error::other(format!(
            "/sys/devices/system/cpu/possible says '{}', which is no list of processors",
            text.trim()
        ))
    })
}

/// Reads a list of ranges that begins with 0: the last number counts.
fn count(text: &str) -> Option<u16> {
    let last = text.trim().rsplit([',', '-']).next()?;
    last.parse::<u16>().ok()?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_processor_tells_how_many_there_are() {
        for (text, expected) in
            [("0\n", Some(1)), ("0-1\n", Some(2)), ("0-3,8-11", Some(12)), ("", None), ("x", None)]
        {
            assert_eq!(count(text), expected, "{text:?}");
        }
        assert_eq!(count("0-65535"), None);
    }
}
