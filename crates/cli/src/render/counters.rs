//! Counters with the reasons by name, as `stat` and `info` print them.

use std::fmt;

use bedplate::Reason;
use serde::Serialize;
use serde_json::{Map, Value};

/// Counters as a table of names and numbers; what comes from a live mount and from the library
/// looks the same.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Counters(Value);

impl Counters {
    /// Takes the counters as the library and the daemon serialize them, or as this serialized them
    /// before.
    pub fn from_json(mut value: Value) -> Self {
        if let Some(reasons) = value.get_mut("reasons") {
            name_reasons(reasons);
        }
        Self(value)
    }

    /// Gives the table.
    pub fn into_json(self) -> Value {
        self.0
    }

    fn number(&self, name: &str) -> u64 {
        self.0.get(name).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Returns the reasons that were counted at all.
    fn reasons(&self) -> impl Iterator<Item = (&str, u64)> {
        let reasons = self.0.get("reasons").and_then(Value::as_object).into_iter().flatten();
        reasons
            .filter_map(|(name, count)| Some((name.as_str(), count.as_u64()?)))
            .filter(|&(_, count)| count > 0)
    }
}

/// Turns the list of counts, in the order of [`Reason::ALL`], into names and counts.
fn name_reasons(reasons: &mut Value) {
    if let Value::Array(counts) = reasons {
        let named: Map<String, Value> = Reason::ALL
            .iter()
            .zip(counts.drain(..))
            .map(|(reason, count)| (reason.name().to_owned(), count))
            .collect();
        *reasons = Value::Object(named);
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |name| bedplate::format_size(self.number(name));
        writeln!(f, "reads         {} ({})", self.number("reads"), size("read_bytes"))?;
        writeln!(f, "writes        {} ({})", self.number("writes"), size("written_bytes"))?;
        writeln!(f, "direct        {}", self.number("direct"))?;
        writeln!(f, "misaligned    {}", self.number("misaligned"))?;
        writeln!(
            f,
            "cache         {} hits, {} misses",
            self.number("cache_hits"),
            self.number("cache_misses")
        )?;
        if self.number("released_bytes") > 0 {
            writeln!(f, "released      {} behind sequential I/O", size("released_bytes"))?;
        }
        if self.number("delayed") > 0 {
            writeln!(
                f,
                "delayed       {} writes, written in larger pieces",
                self.number("delayed")
            )?;
        }
        if self.number("window_hits") > 0 {
            writeln!(f, "read ahead    {} reads past the caches", self.number("window_hits"))?;
        }
        if self.number("large") > 0 {
            writeln!(f, "large         {} past the library cache", self.number("large"))?;
        }
        writeln!(f, "syncs         {}", self.number("syncs"))?;
        writeln!(f, "transitions   {}", self.number("mode_transitions"))?;
        let reasons: Vec<String> =
            self.reasons().map(|(name, count)| format!("{name} {count}")).collect();
        let reasons = if reasons.is_empty() {
            "none: every I/O was served as its mode asks".to_owned()
        } else {
            reasons.join(", ")
        };
        write!(f, "reasons       {reasons}")
    }
}

#[cfg(test)]
mod tests {
    use bedplate::CounterSnapshot;

    use super::*;

    #[test]
    fn reasons_are_named_and_only_those_counted_are_printed() {
        let mut snapshot = CounterSnapshot { reads: 3, ..CounterSnapshot::default() };
        snapshot.reasons[Reason::Hole as usize] = 7;
        let counters = Counters::from_json(serde_json::to_value(&snapshot).unwrap());
        let text = counters.to_string();
        assert!(
            text.contains("reads         3") && text.ends_with("reasons       hole 7"),
            "{text}"
        );
        let document = counters.into_json();
        assert_eq!(document["reasons"]["hole"], 7);
        assert_eq!(Counters::from_json(document).to_string(), text);
    }
}
