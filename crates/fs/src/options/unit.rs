//! How values of tunables are written.

use serde::{Deserialize, Serialize};

use super::mode_of;
use crate::{IoMode, ReleaseBehind, format_size, parse_duration, parse_size};

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// An I/O mode by its name; as a number 1 `cached`, 2 `direct`, 3 `concurrent`, 4
    /// `concurrent+cache`.
    Mode,
    /// A size: `64M`; `off` is 0.
    Bytes,
    /// A duration in nanoseconds: `5s`.
    Duration,
    /// A share in percent: `25%`, or `25`.
    Percent,
    /// A whole number.
    Number,
    /// Which pages leave the caches: `off`, `read`, `write` or `both`, as a number from 0.
    Release,
    /// `on`, which is 1, or `off`.
    Switch,
}

impl Unit {
    /// Returns the word for the unit.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mode => "mode",
            Self::Bytes => "bytes",
            Self::Duration => "duration",
            Self::Percent => "percent",
            Self::Number => "number",
            Self::Release => "release",
            Self::Switch => "switch",
        }
    }

    /// Reads a value.
    pub(super) fn parse(self, text: &str) -> Result<u64, String> {
        let number =
            |text: &str, what: &str| text.parse().map_err(|_| format!("'{text}' is not {what}"));
        match self {
            Self::Mode => text.parse::<IoMode>().map(|mode| mode as u64),
            Self::Bytes if text == "off" => Ok(0),
            Self::Bytes => parse_size(text),
            Self::Duration => parse_duration(text).and_then(|d| {
                u64::try_from(d.as_nanos()).map_err(|_| format!("'{text}' is too long"))
            }),
            Self::Percent => {
                number(text.trim_end_matches('%'), "a share in percent: write 25% or 25")
            }
            Self::Number => number(text, "a whole number"),
            Self::Release => text.parse::<ReleaseBehind>().map(|release| release as u64),
            Self::Switch => match text {
                "on" => Ok(1),
                "off" => Ok(0),
                _ => Err(format!("'{text}' is neither on nor off")),
            },
        }
    }

    /// Writes a value.
    #[must_use]
    pub fn format(self, value: u64) -> String {
        match self {
            Self::Mode => mode_of(value).name().to_owned(),
            Self::Bytes => format_size(value),
            Self::Duration => {
                let units = [
                    (86_400_000_000_000, "d"),
                    (1_000_000_000, "s"),
                    (1_000_000, "ms"),
                    (1_000, "us"),
                    (1, "ns"),
                ];
                let (scale, name) = units
                    .into_iter()
                    .find(|(scale, _)| value.is_multiple_of(*scale) && value >= *scale)
                    .unwrap_or((1, "ns"));
                format!("{}{name}", value / scale)
            }
            Self::Percent => format!("{value}%"),
            Self::Number => value.to_string(),
            Self::Release => ReleaseBehind::of_code(value).unwrap_or_default().name().to_owned(),
            Self::Switch => if value == 0 { "off" } else { "on" }.to_owned(),
        }
    }
}
