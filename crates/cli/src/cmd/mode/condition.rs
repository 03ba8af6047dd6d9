//! A condition on a measurement and the one before it: one comparison, as in `p99 < -10%`.
//!
//! ```text
//!   condition = quantity ("<" | "<=" | ">" | ">=") value
//!   quantity = ["read." | "write." | "sync."] ("p50" | "p99" | "average") | "throughput" | "operations" | "hit"
//!   value = number "%"     the change since before; of "hit" in points
//!         | what the quantity is written in: 500us, 200M (a second), 10000 (a second), 0.8
//! ```

use std::str::FromStr;

use bedplate::{parse_duration, parse_size};

/// A condition, as written and understood.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// As it was written.
    pub text: String,
    quantity: Quantity,
    order: Order,
    value: Value,
}

/// Something that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// A latency in nanoseconds.
    Latency(Of, Statistic),
    /// Bytes a second.
    Throughput,
    /// Reads and writes a second.
    Operations,
    /// Share of the reads through the library cache that it answered.
    Hit,
}

/// Of which operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// Reads and writes together.
    All,
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Syncs.
    Sync,
}

/// What of their latencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistic {
    /// Average.
    Average,
    /// Median.
    P50,
    /// 99th percentile.
    P99,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Value {
    /// In percent.
    Change(f64),
    Absolute(f64),
}

/// What came of conditions.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// All hold, and why: each with what was found.
    Hold(String),
    /// One does not.
    Fails(String),
    /// A quantity was not measured.
    Unknown(String),
}

/// Tells whether all conditions hold, given the value of each quantity before and after; `None`:
/// not measured.
pub fn judge(conditions: &[Condition], value: impl Fn(Quantity) -> Option<(f64, f64)>) -> Outcome {
    let mut found = Vec::new();
    for condition in conditions {
        let Some((before, after)) = value(condition.quantity) else {
            return Outcome::Unknown(condition.text.clone());
        };
        let (holds, told) = condition.compare(before, after);
        if !holds {
            return Outcome::Fails(told);
        }
        found.push(told);
    }
    Outcome::Hold(found.join(" and "))
}

impl Condition {
    /// Returns whether it holds, and a word on what was found.
    fn compare(&self, before: f64, after: f64) -> (bool, String) {
        let (found, wanted, shown) = match self.value {
            Value::Absolute(wanted) => (after, wanted, self.quantity.show(after)),
            Value::Change(wanted) => {
                let points = self.quantity == Quantity::Hit;
                let found = if points { (after - before) * 100.0 } else { change(before, after) };
                (found, wanted, format!("{found:+.1}{}", if points { " points" } else { "%" }))
            }
        };
        let holds = match self.order {
            Order::Less => found < wanted,
            Order::LessOrEqual => found <= wanted,
            Order::Greater => found > wanted,
            Order::GreaterOrEqual => found >= wanted,
        };
        (holds, format!("{} (found {shown})", self.text))
    }
}

/// Returns the change in percent.
pub fn change(before: f64, after: f64) -> f64 {
    if before == after { 0.0 } else { (after - before) / before * 100.0 }
}

impl Quantity {
    fn show(self, value: f64) -> String {
        match self {
            Self::Latency(..) => crate::mount::watch::short(Some(value as u64)),
            Self::Throughput => format!("{}/s", bedplate::format_size(value as u64)),
            Self::Operations => format!("{value:.0}/s"),
            Self::Hit => format!("{value:.3}"),
        }
    }
}

const SHAPE: &str = "write QUANTITY < VALUE, as in 'p99 < -10%' or 'read.p99 < 500us'; give \
                     --keep-if once for each condition";

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let none = || format!("'{text}' is no comparison: {SHAPE}");
        let (name, rest) = text.split_at(text.find(['<', '>']).ok_or_else(none)?);
        let orders = [
            ("<=", Order::LessOrEqual),
            (">=", Order::GreaterOrEqual),
            ("<", Order::Less),
            (">", Order::Greater),
        ];
        let (sign, order, value) = orders
            .into_iter()
            .find_map(|(sign, order)| Some((sign, order, rest.strip_prefix(sign)?)))
            .ok_or_else(none)?;
        let (name, value) = (name.trim(), value.trim());
        if [name, value].iter().any(|word| word.is_empty() || word.contains(char::is_whitespace)) {
            return Err(none());
        }
        let quantity = quantity_named(name)?;
        Ok(Self {
            text: format!("{name} {sign} {value}"),
            quantity,
            order,
            value: value_of(quantity, value)?,
        })
    }
}

fn quantity_named(name: &str) -> Result<Quantity, String> {
    let (of, statistic) = match name.split_once('.') {
        Some(("read", rest)) => (Of::Read, rest),
        Some(("write", rest)) => (Of::Write, rest),
        Some(("sync", rest)) => (Of::Sync, rest),
        _ => (Of::All, name),
    };
    match statistic {
        "p50" => Ok(Quantity::Latency(of, Statistic::P50)),
        "p99" => Ok(Quantity::Latency(of, Statistic::P99)),
        "average" => Ok(Quantity::Latency(of, Statistic::Average)),
        "throughput" if of == Of::All => Ok(Quantity::Throughput),
        "operations" if of == Of::All => Ok(Quantity::Operations),
        "hit" if of == Of::All => Ok(Quantity::Hit),
        _ => Err(format!(
            "'{name}' is not measured: known are p50, p99, average (also read.p99, write.p99, \
             sync.p99 …), throughput, operations and hit"
        )),
    }
}

fn value_of(quantity: Quantity, text: &str) -> Result<Value, String> {
    let number = |text: &str| text.parse::<f64>().ok().filter(|value| value.is_finite());
    if let Some(percent) = text.strip_suffix('%') {
        return number(percent)
            .map(Value::Change)
            .ok_or_else(|| format!("'{text}' is no change in percent: write it as in -10%"));
    }
    match quantity {
        Quantity::Latency(..) if number(text).is_none() => {
            parse_duration(text).map(|d| Value::Absolute(d.as_nanos() as f64))
        }
        Quantity::Throughput => parse_size(text).map(|bytes| Value::Absolute(bytes as f64)),
        Quantity::Latency(..) => Err(format!(
            "'{text}' has no unit: write a change as in -10%, or a duration as in 500us"
        )),
        Quantity::Operations | Quantity::Hit => {
            number(text).map(Value::Absolute).ok_or_else(|| format!("'{text}' is not a number"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything was 200 before and is 100 now; the hit ratio went from 0.5 to 0.75.
    fn judge(texts: &[&str]) -> Outcome {
        let conditions: Vec<Condition> = texts.iter().map(|text| text.parse().unwrap()).collect();
        super::judge(&conditions, |quantity| match quantity {
            Quantity::Hit => Some((0.5, 0.75)),
            Quantity::Latency(Of::Sync, _) => None,
            _ => Some((200.0, 100.0)),
        })
    }

    #[test]
    fn a_condition_holds_or_fails_as_it_reads() {
        for text in [
            "p99 < -10%",
            "p99<=-50%",
            "average < 150ns",
            "hit > 20%",
            "hit>=0.75",
            "throughput < 101",
            "operations > 99",
        ] {
            assert!(matches!(judge(&[text]), Outcome::Hold(_)), "{text}");
        }
        for text in ["p99 < -50%", "read.p99 > 1us", "hit > 26%", "throughput > -5%"] {
            assert!(matches!(judge(&[text]), Outcome::Fails(_)), "{text}");
        }
        assert_eq!(judge(&["p99<-10%"]), Outcome::Hold("p99 < -10% (found -50.0%)".to_owned()));
    }

    #[test]
    fn of_several_all_have_to_hold() {
        assert_eq!(
            judge(&["p99 < 0%", "hit > 20%"]),
            Outcome::Hold("p99 < 0% (found -50.0%) and hit > 20% (found +25.0 points)".to_owned())
        );
        assert_eq!(
            judge(&["p99 < 0%", "throughput > -5%"]),
            Outcome::Fails("throughput > -5% (found -50.0%)".to_owned())
        );
        assert_eq!(
            judge(&["p99 < 0%", "sync.p99 < 0%"]),
            Outcome::Unknown("sync.p99 < 0%".to_owned())
        );
    }

    #[test]
    fn what_is_no_condition_is_refused_with_what_to_write() {
        for (text, part) in [
            ("", "is no comparison"),
            ("p99", "'p99' is no comparison"),
            ("p99 < ", "is no comparison"),
            ("p98 < 1%", "'p98' is not measured"),
            ("read.hit > 1%", "'read.hit' is not measured"),
            ("p99 = 1%", "is no comparison"),
            ("p99 < fast", "'fast' is not a duration"),
            ("p99 < 5", "has no unit"),
            ("p99 < x%", "no change in percent"),
            ("p99 < NaN%", "no change in percent"),
            ("p99 < 1% and hit > 1%", "give --keep-if once for each"),
            ("hit > much", "not a number"),
        ] {
            let error = text.parse::<Condition>().unwrap_err();
            assert!(error.contains(part) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
