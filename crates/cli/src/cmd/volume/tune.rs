//! `bedplate volume tune GROUP --foreground FACTOR|off`

use std::path::PathBuf;

use bedplate::FOREGROUND_UNLIMITED;
use bedplate_serve::control::GroupRequest;
use clap::Args;

use super::change::tell;
use crate::daemon::control;
use crate::device::group;
use crate::failure::Result;
use crate::render::output::Output;

/// Limit what rebuild, relayout and scrub cost the programs that use the volumes, mounted or not
#[derive(Debug, Args)]
pub struct Arguments {
    /// Any member, group:NAME, or where it is mounted
    group: PathBuf,
    /// How many times as long as without it the slowest of 100 reads, writes or flushes may take
    /// while members are filled, moved or compared: 1.05 and more, or off; 1.5 where nothing was
    /// stated. Measured all the time, kept by smaller pieces and longer rests
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    foreground: u16,
}

/// Reads a factor and returns hundredths of it.
fn factor(text: &str) -> std::result::Result<u16, String> {
    if text == "off" {
        return Ok(FOREGROUND_UNLIMITED);
    }
    let read = text.parse::<f64>().ok().filter(|read| (1.05..=100.0).contains(read));
    read.map(|read| (read * 100.0).round() as u16)
        .ok_or_else(|| format!("{text:?} is neither a factor from 1.05 to 100 nor 'off'"))
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let located = group::named(&arguments.group)?;
    tell(control::request(&located, &GroupRequest::Foreground(arguments.foreground))?, output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_is_read_in_hundredths() {
        assert_eq!(
            (factor("1.5"), factor("2"), factor("off")),
            (Ok(150), Ok(200), Ok(FOREGROUND_UNLIMITED))
        );
        for wrong in ["1", "0.5", "-2", "NaN", "1000", "fast", ""] {
            assert!(factor(wrong).is_err(), "{wrong}");
        }
    }
}
