//! The names of checkpoints that `bedplate backup run` makes: a prefix and the time.

/// What the time in a name looks like.
const TIME: &[u8] = b"0000-00-00T00:00:00Z";

/// Returns the prefix of a name that a turn gave.
pub fn prefix(name: &[u8]) -> Option<&[u8]> {
    let (prefix, time) = name.split_at_checked(name.len().checked_sub(TIME.len())?)?;
    let fits = |(byte, like): (&u8, &u8)| {
        if *like == b'0' { byte.is_ascii_digit() } else { byte == like }
    };
    let prefix = prefix.strip_suffix(b"-").filter(|prefix| !prefix.is_empty())?;
    time.iter().zip(TIME).all(fits).then_some(prefix)
}
