//! Text that people write: sizes, durations, mount options, names with a suffix.

use bedplate_fs::{format_duration, format_size, parse_duration, parse_size, split_mode_suffix};
use bedplate_serve::fuse::MountSettings;

/// Reads a size and a duration; what is written of a size and can be read again is nearly the same.
pub fn sizes(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match parse_size(text) {
        Ok(bytes) => {
            // Two decimals are written, rounded: not every text that we write is a whole number of
            // bytes.
            if let Ok(again) = parse_size(&format_size(bytes)) {
                assert!(
                    again.abs_diff(bytes) <= bytes / 100 + 1,
                    "{bytes} was written as {}",
                    format_size(bytes)
                );
            }
        }
        Err(sentence) => assert!(sentence.contains("is not a size"), "{sentence}"),
    }
    match parse_duration(text) {
        Ok(duration) => assert!(!format_duration(duration).is_empty()),
        Err(sentence) => assert!(sentence.contains("is not a duration"), "{sentence}"),
    }
}

/// Reads mount options.
pub fn mount_options(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match MountSettings::parse(text) {
        Ok(settings) => {
            assert!((1..=1024).contains(&settings.file_system.threads));
            assert!(
                settings.file_system.read_ahead_bytes_min
                    <= settings.file_system.read_ahead_bytes_max
            );
        }
        Err(error) => assert!(error.message.contains("mount option '"), "{error}"),
    }
}

/// Splits a name.
pub fn names(data: &[u8]) {
    let (stem, mode) = split_mode_suffix(data);
    match mode {
        None => assert_eq!(stem, data),
        Some(mode) => {
            assert!(!stem.is_empty() && stem.len() + 2 + mode.name().len() == data.len());
            assert_eq!([stem, b"::", mode.name().as_bytes()].concat(), data);
        }
    }
}
