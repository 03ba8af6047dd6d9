//! Sizes and durations as people write them: the one reader and writer for options, commands and
//! messages.
//!
//! A size is a number and a unit: `512`, `4k`, `64M`, `1.5GiB`, `100 MB`. `k`, `M`, `G`, `T`, `P`
//! with or without `iB` are powers of 1,024, as in fallocate(1); with `B` alone they are powers of
//! 1,000. A duration is a number and `ns`, `us`, `ms`, `s`, `m`, `h` or `d`; a bare number counts
//! seconds. Case matters nowhere, except that `m` and `M` are both minutes in a duration and
//! mebibytes in a size.

use std::time::Duration;

/// What a text asks for, as a fraction without rounding: `digits` / 10^`decimals`.
struct Decimal<'a> {
    digits: u128,
    decimals: u32,
    unit: &'a str,
}

/// More digits than any size or duration has, few enough that the product with the largest unit
/// fits 128 bits.
const DIGITS_MAX: usize = 20;

fn split(text: &str) -> Option<Decimal<'_>> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty()
        || whole.len() + fraction.len() > DIGITS_MAX
        || fraction.contains('.')
        || (number.contains('.') && fraction.is_empty())
    {
        return None;
    }
    let digits = format!("{whole}{fraction}").parse().ok()?;
    Some(Decimal { digits, decimals: u32::try_from(fraction.len()).ok()?, unit: unit.trim_start() })
}

impl Decimal<'_> {
    /// Returns the value times `scale` when it is a whole number that fits.
    fn times(&self, scale: u128) -> Option<u64> {
        let (product, divisor) = (self.digits.checked_mul(scale)?, 10u128.pow(self.decimals));
        if product % divisor == 0 { u64::try_from(product / divisor).ok() } else { None }
    }
}

/// Reads a size in bytes.
///
/// # Errors
/// One sentence that quotes the text and shows how a size is written.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let explain = || {
        format!(
            "'{text}' is not a size: write a whole number of bytes or a unit, as in 4096, 4k, 64M \
             or 1.5GiB"
        )
    };
    let number = split(text).ok_or_else(explain)?;
    let unit = number.unit.to_ascii_lowercase();
    let (power, base): (u32, u128) = match unit.as_bytes() {
        [] | [b'b'] => (0, 1024),
        [prefix] | [prefix, b'i'] | [prefix, b'i', b'b'] => {
            (prefix_power(*prefix).ok_or_else(explain)?, 1024)
        }
        [prefix, b'b'] => (prefix_power(*prefix).ok_or_else(explain)?, 1000),
        _ => return Err(explain()),
    };
    number.times(base.pow(power)).ok_or_else(explain)
}

fn prefix_power(prefix: u8) -> Option<u32> {
    let at = b"kmgtp".iter().position(|&c| c == prefix)?;
    u32::try_from(at + 1).ok()
}

/// Reads a duration.
///
/// # Errors
/// One sentence that quotes the text and shows how a duration is written.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let explain = || {
        format!(
            "'{text}' is not a duration: write a number and a unit, as in 5s, 500ms, 1.5m or 1h"
        )
    };
    let number = split(text).ok_or_else(explain)?;
    let nanos: u128 = match number.unit.to_ascii_lowercase().as_str() {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "" | "s" | "sec" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return Err(explain()),
    };
    number.times(nanos).map(Duration::from_nanos).ok_or_else(explain)
}

/// Writes a size with the largest binary unit it fills and at most two decimals: `512 B`, `64 MiB`,
/// `1.5 GiB`.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut power = (1..UNITS.len()).rev().find(|&power| bytes >> (10 * power) > 0).unwrap_or(0);
    let mut hundredths = hundredths_of(bytes, 1 << (10 * power));
    if hundredths >= 102_400 && power + 1 < UNITS.len() {
        power += 1;
        hundredths = hundredths_of(bytes, 1 << (10 * power));
    }
    format!("{} {}", decimal(hundredths), UNITS[power])
}

/// Writes a duration with the unit that reads best and at most two decimals: `650 us`, `1.5 ms`,
/// `12 s`, `3 min 5 s`.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{} us", decimal(hundredths_of(nanos, 1_000))),
        1_000_000..1_000_000_000 => format!("{} ms", decimal(hundredths_of(nanos, 1_000_000))),
        1_000_000_000..120_000_000_000 => {
            format!("{} s", decimal(hundredths_of(nanos, 1_000_000_000)))
        }
        _ => format!("{} min {} s", duration.as_secs() / 60, duration.as_secs() % 60),
    }
}

/// Returns `value` / `unit` in hundredths, rounded to nearest.
fn hundredths_of(value: u64, unit: u64) -> u64 {
    let scaled = (u128::from(value) * 100 + u128::from(unit) / 2) / u128::from(unit);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn decimal(hundredths: u64) -> String {
    match (hundredths / 100, hundredths % 100) {
        (whole, 0) => whole.to_string(),
        (whole, rest) if rest % 10 == 0 => format!("{whole}.{}", rest / 10),
        (whole, rest) => format!("{whole}.{rest:02}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("4k", 4096),
            ("4K", 4096),
            ("4KiB", 4096),
            ("4 KiB", 4096),
            ("4kB", 4000),
            ("64M", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("0.5k", 512),
            ("100T", 100 << 40),
            ("100 MB", 100_000_000),
            ("18446744073709551615", u64::MAX),
            ("16383P", 16383 << 50),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_text_in_the_sentence() {
        for text in [
            "", " ", "k", "4x", "4kk", "-1", "+1", "1e9", "4.", ".5k", "1.2.3k", "0.3", "0.3k",
            "99999P", "4kib4", "४k", "1 2", "4 k i",
        ] {
            let sentence = parse_size(text).expect_err(text);
            assert!(sentence.contains(&format!("'{text}'")), "{sentence}");
        }
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, nanos) in [
            ("5", 5_000_000_000),
            ("5s", 5_000_000_000),
            ("500ms", 500_000_000),
            ("1.5m", 90_000_000_000),
            ("100us", 100_000),
            ("1h", 3_600_000_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        for text in ["", "s", "5x", "-5s", "1.5ns", "1e3s", "5 s s"] {
            parse_duration(text).expect_err(text);
        }
    }

    #[test]
    fn sizes_and_durations_are_written_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (64 << 20, "64 MiB"),
            ((1 << 20) - 1, "1 MiB"),
            (1_000_000_000, "953.67 MiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
        for (nanos, text) in [
            (0, "0 ns"),
            (650_000, "650 us"),
            (1_500_000, "1.5 ms"),
            (12_000_000_000, "12 s"),
            (185_000_000_000, "3 min 5 s"),
        ] {
            assert_eq!(format_duration(Duration::from_nanos(nanos)), text);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_readers_panic(text in ".{0,40}") {
            let (_size, _duration) = (parse_size(&text), parse_duration(&text));
        }

        #[test]
        fn nearly_right_texts_are_read_exactly_or_refused(whole in 0u64..1 << 40, fraction in proptest::option::of(0u64..1_000_000), unit in "[kKmMgGtTpPbBiI ]{0,4}") {
            let text = fraction.map_or_else(|| format!("{whole}{unit}"), |fraction| format!(
                "{whole}.{fraction}{unit}"));
            if let Ok(bytes) = parse_size(&text) {
                prop_assert!(bytes >= whole, "{text} read as {bytes}");
            }
        }

        #[test]
        fn a_written_size_is_read_back_within_its_rounding(bytes in any::<u64>()) {
            let text = format_size(bytes);
            // Two decimals of a binary unit need not be a whole number of bytes; then the reader
            // refuses instead of guessing.
            if let Ok(again) = parse_size(&text) {
                prop_assert!(again.abs_diff(bytes) <= bytes / 200 + 1,
                    "{bytes} -> {text} -> {again}");
            }
        }

        #[test]
        fn whole_units_survive_the_round_trip(count in 1u64..1024, power in 0u32..6) {
            let bytes = count << (10 * power);
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
    }
}
