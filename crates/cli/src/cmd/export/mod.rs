//! `bedplate export nbd`

mod nbd;

use clap::Subcommand;

use crate::failure::Result;
use crate::render::output::Output;

/// Offer files to other programs and machines
#[derive(Debug, Subcommand)]
pub enum Command {
    Nbd(nbd::Arguments),
}

pub fn run(command: &Command, output: &Output) -> Result<()> {
    match command {
        Command::Nbd(arguments) => nbd::run(arguments, output),
    }
}
