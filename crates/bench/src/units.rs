//! Numbers as tables show them.

/// Writes a number with three significant digits, thousands separated by commas.
#[must_use]
pub fn format_number(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 1000.0 {
        return group_thousands(value.round() as i64);
    }
    let decimals = match magnitude {
        m if m >= 100.0 => 0,
        m if m >= 10.0 => 1,
        m if m >= 1.0 || m == 0.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

fn group_thousands(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut out = String::from(if value < 0 { "-" } else { "" });
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Writes microseconds in the unit that fits: `12.3 µs`, `4.56 ms`.
#[must_use]
pub fn format_micros(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", format_number(us / 1e6)),
        us if us >= 1e3 => format!("{} ms", format_number(us / 1e3)),
        us => format!("{} µs", format_number(us)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(format_number(1_234_567.4), "1,234,567");
        assert_eq!(format_number(123.4), "123");
        assert_eq!(format_number(0.0312), "0.031");
        assert_eq!(format_number(-4567.0), "-4,567");
        assert_eq!(format_micros(12.34), "12.3 µs");
        assert_eq!(format_micros(4560.0), "4.56 ms");
        assert_eq!(format_micros(1.5e6), "1.50 s");
    }
}
