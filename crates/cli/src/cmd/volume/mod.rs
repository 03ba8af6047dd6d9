//! `bedplate volume
//! create|add-volume|remove-volume|list|show|import|export|split|join|add|spare|replace|unrelocate|remove|relayout|grow|shrink|scrub|stat|tune|wait|identify|arrived`

mod arrived;
mod change;
mod create;
mod import;
mod join;
mod many;
mod relayout;
mod scrub;
mod show;
mod split;
mod tune;
mod wait;

use clap::Subcommand;

use crate::failure::{Exit, Result};
use crate::render::output::Output;

/// Make and tend volumes of several devices
#[derive(Debug, Subcommand)]
pub enum Command {
    Create(create::Arguments),
    AddVolume(many::AddVolumeArguments),
    RemoveVolume(many::RemoveVolumeArguments),
    List(show::ListArguments),
    Show(show::Arguments),
    Import(import::Arguments),
    Export(change::ExportArguments),
    Split(split::Arguments),
    Join(join::Arguments),
    Add(change::AddArguments),
    Spare(change::SpareArguments),
    Replace(change::ReplaceArguments),
    Unrelocate(change::UnrelocateArguments),
    Remove(change::RemoveArguments),
    Relayout(relayout::Arguments),
    Grow(relayout::GrowArguments),
    Shrink(relayout::ShrinkArguments),
    Scrub(scrub::Arguments),
    Stat(show::StatArguments),
    Tune(tune::Arguments),
    Wait(wait::Arguments),
    Identify(arrived::IdentifyArguments),
    Arrived(arrived::Arguments),
}

pub fn run(command: &Command, output: &Output) -> Result<Exit> {
    match command {
        Command::Create(arguments) => create::run(arguments, output),
        Command::AddVolume(arguments) => many::add_volume(arguments, output),
        Command::RemoveVolume(arguments) => many::remove_volume(arguments, output),
        Command::List(arguments) => return show::list(arguments, output),
        Command::Show(arguments) => return show::run(arguments, output),
        Command::Identify(arguments) => arrived::identify(arguments, output),
        Command::Arrived(arguments) => arrived::run(arguments, output),
        Command::Wait(arguments) => return wait::run(arguments, output),
        Command::Import(arguments) => import::run(arguments, output),
        Command::Export(arguments) => change::export(arguments, output),
        Command::Split(arguments) => split::run(arguments, output),
        Command::Join(arguments) => join::run(arguments, output),
        Command::Add(arguments) => change::add(arguments, output),
        Command::Relayout(arguments) => relayout::run(arguments, output),
        Command::Grow(arguments) => relayout::grow(arguments, output),
        Command::Shrink(arguments) => relayout::shrink(arguments, output),
        Command::Spare(arguments) => change::spare(arguments, output),
        Command::Replace(arguments) => change::replace(arguments, output),
        Command::Unrelocate(arguments) => change::unrelocate(arguments, output),
        Command::Remove(arguments) => change::remove(arguments, output),
        Command::Scrub(arguments) => return scrub::run(arguments, output),
        Command::Stat(arguments) => show::stat(arguments, output),
        Command::Tune(arguments) => tune::run(arguments, output),
    }?;
    Ok(Exit::Done)
}
