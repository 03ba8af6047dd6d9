//! What a name that there is not may have been meant to be.

/// Returns ` (is 'x' meant?)` with the known name that is nearest to a wrong one; nothing where
/// none is near.
#[must_use]
pub fn meant<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> String {
    // A third of a word may be wrong.
    let allowed = wrong.chars().count().div_ceil(3);
    let near = known
        .map(|name| (distance(wrong, name, allowed), name))
        .filter(|(distance, _)| *distance <= allowed)
        .min();
    near.map_or_else(String::new, |(_, name)| format!(" (is '{name}' meant?)"))
}

/// Counts how many letters have to be changed, added, left out or swapped with their neighbour; of
/// names whose lengths differ by more than `most` it is more than that.
fn distance(one: &str, other: &str, most: usize) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().abs_diff(other.len()) > most {
        return most + 1;
    }
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let changed = rows[i][j] + usize::from(a != b);
            let mut least = changed.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_proposed_where_one_is_near() {
        let known = ["cache", "sync", "read-ahead-max", "read-ahead-min"];
        let told = |wrong: &str| meant(wrong, known.into_iter());
        for (wrong, name) in [
            ("chace", "cache"),
            ("cahce", "cache"),
            ("sinc", "sync"),
            ("read-ahed-max", "read-ahead-max"),
            ("readahead-min", "read-ahead-min"),
        ] {
            assert_eq!(told(wrong), format!(" (is '{name}' meant?)"));
        }
        for wrong in ["", "speed", "x", "frobnicate"] {
            assert_eq!(told(wrong), "", "{wrong}");
        }
    }
}
