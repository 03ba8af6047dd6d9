//! Conditions on a measurement and the one before it: `p99 < -10% and throughput >= -2%`.
//!
//! ```text
//!   condition = all { "or" all }          all = comparison { "and" comparison }
//!   comparison = quantity ("<" | "<=" | ">" | ">=") value
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
    /// One of these lists must hold wholly.
    any: Vec<Vec<Comparison>>,
}

#[derive(Debug, Clone, PartialEq)]
struct Comparison {
    text: String,
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

/// What came of a condition.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It holds, and why: the comparisons with what was found.
    Holds(String),
    /// It does not.
    Fails(String),
    /// A quantity was not measured.
    Unknown(String),
}

impl Condition {
    /// Tells whether it holds, given the value of each quantity before and after; `None`: not measured.
    pub fn judge(&self, value: impl Fn(Quantity) -> Option<(f64, f64)>) -> Outcome {
        let mut failed = Vec::new();
        for all in &self.any {
            let mut found = Vec::new();
            let mut holds = true;
            for comparison in all {
                let Some((before, after)) = value(comparison.quantity) else { return Outcome::Unknown(comparison.text.clone()) };
                let (is, told) = comparison.compare(before, after);
                holds &= is;
                found.push(told);
            }
            if holds {
                return Outcome::Holds(found.join(" and "));
            }
            failed.push(found.join(" and "));
        }
        Outcome::Fails(failed.join(", or "))
    }
}

impl Comparison {
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

const SHAPE: &str = "write QUANTITY < VALUE, as in 'p99 < -10%' or 'read.p99 < 500us and throughput > -5%'";

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let spaced = ["<=", ">=", "<", ">"].iter().fold(text.to_owned(), |text, sign| match *sign {
            "<" | ">" => spaced_out(&text, sign),
            _ => text.replace(sign, &format!(" {sign} ")),
        });
        let words: Vec<&str> = spaced.split_whitespace().collect();
        if words.is_empty() {
            return Err(format!("there is no condition: {SHAPE}"));
        }
        let any = words.split(|word| *word == "or").map(|all| all.split(|word| *word == "and").map(comparison).collect());
        Ok(Self { text: text.to_owned(), any: any.collect::<Result<_, _>>()? })
    }
}

/// Puts blanks around a sign that stands alone.
fn spaced_out(text: &str, sign: &str) -> String {
    let mut spaced = String::with_capacity(text.len() + 8);
    let mut rest = text;
    while let Some(at) = rest.find(sign) {
        let (head, tail) = rest.split_at(at);
        let tail = &tail[1..];
        spaced.push_str(head);
        spaced.push_str(&if tail.starts_with('=') { sign.to_owned() } else { format!(" {sign} ") });
        rest = tail;
    }
    spaced + rest
}

fn comparison(words: &[&str]) -> Result<Comparison, String> {
    let shown = words.join(" ");
    let [quantity, order, value] = words else { return Err(format!("'{shown}' is no comparison: {SHAPE}")) };
    let quantity = quantity_named(quantity)?;
    let order = match *order {
        "<" => Order::Less,
        "<=" => Order::LessOrEqual,
        ">" => Order::Greater,
        ">=" => Order::GreaterOrEqual,
        other => return Err(format!("'{other}' in '{shown}' is none of <, <=, > and >=")),
    };
    Ok(Comparison { quantity, order, value: value_of(quantity, value)?, text: shown })
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
            "'{name}' is not measured: known are p50, p99, average (also read.p99, write.p99, sync.p99 …), throughput, operations and hit"
        )),
    }
}

fn value_of(quantity: Quantity, text: &str) -> Result<Value, String> {
    let number = |text: &str| text.parse::<f64>().ok().filter(|value| value.is_finite());
    if let Some(percent) = text.strip_suffix('%') {
        return number(percent).map(Value::Change).ok_or_else(|| format!("'{text}' is no change in percent: write it as in -10%"));
    }
    match quantity {
        Quantity::Latency(..) if number(text).is_none() => parse_duration(text).map(|d| Value::Absolute(d.as_nanos() as f64)),
        Quantity::Throughput => parse_size(text).map(|bytes| Value::Absolute(bytes as f64)),
        Quantity::Latency(..) => Err(format!("'{text}' has no unit: write a change as in -10%, or a duration as in 500us")),
        Quantity::Operations | Quantity::Hit => number(text).map(Value::Absolute).ok_or_else(|| format!("'{text}' is not a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything was 200 before and is 100 now; the hit ratio went from 0.5 to 0.75.
    fn judge(text: &str) -> Outcome {
        let condition: Condition = text.parse().unwrap();
        condition.judge(|quantity| match quantity {
            Quantity::Hit => Some((0.5, 0.75)),
            Quantity::Latency(Of::Sync, _) => None,
            _ => Some((200.0, 100.0)),
        })
    }

    #[test]
    fn conditions_hold_or_fail_as_they_read() {
        for text in
            ["p99 < -10%", "p99<=-50%", "average < 150ns", "hit > 20%", "hit>=0.75", "throughput < 101", "p99 > 0% or p50 < -40%", "operations > 99"]
        {
            assert!(matches!(judge(text), Outcome::Holds(_)), "{text}");
        }
        for text in ["p99 < -50%", "read.p99 > 1us", "hit > 26%", "p99 < 0% and throughput > -5%", "p50 > 0% or p99 > 0%"] {
            assert!(matches!(judge(text), Outcome::Fails(_)), "{text}");
        }
        assert_eq!(judge("p99 < 0% and sync.p99 < 0%"), Outcome::Unknown("sync.p99 < 0%".to_owned()));
        assert_eq!(judge("p99<-10%"), Outcome::Holds("p99 < -10% (found -50.0%)".to_owned()));
    }

    #[test]
    fn what_is_no_condition_is_refused_with_what_to_write() {
        for (text, part) in [
            ("", "there is no condition"),
            ("p99", "'p99' is no comparison"),
            ("p99 < ", "is no comparison"),
            ("p98 < 1%", "'p98' is not measured"),
            ("read.hit > 1%", "'read.hit' is not measured"),
            ("p99 = 1%", "'=' in"),
            ("p99 < fast", "'fast' is not a duration"),
            ("p99 < 5", "has no unit"),
            ("p99 < x%", "no change in percent"),
            ("p99 < NaN%", "no change in percent"),
            ("p99 < 1% and", "is no comparison"),
            ("p99 < 1% p50 < 1%", "is no comparison"),
            ("hit > much", "not a number"),
        ] {
            let error = text.parse::<Condition>().unwrap_err();
            assert!(error.contains(part) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
