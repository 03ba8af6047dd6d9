//! The command line.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use serde_json::json;

use crate::cmd::Cli;
use crate::failure::{Exit, Failure};
use crate::render::output::Output;

/// Names under which mount(8) looks for the helper of a type: of `bedplate` in fstab, and of
/// `fuse.bedplate` in the list of mounts, where a remount finds it.
const HELPERS: [&str; 2] = ["mount.bedplate", "mount.fuse.bedplate"];

/// Returns the arguments; called as a helper of mount(8) they are those of `mount`.
pub fn from_environment() -> Vec<OsString> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let name = arguments.first().and_then(|program| Path::new(program).file_name());
    if HELPERS.iter().any(|helper| name == Some(OsStr::new(helper))) {
        as_mount_helper(arguments)
    } else {
        arguments
    }
}

/// Turns `mount.bedplate SPEC DIR [-sfnv] [-t TYPE] [-N NAMESPACE] [-o OPTIONS]` into `bedplate
/// mount SPEC DIR [-o OPTIONS]`.
fn as_mount_helper(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut made: Vec<OsString> = vec!["bedplate".into(), "mount".into()];
    let mut rest = arguments.into_iter().skip(1);
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("-s" | "-n" | "-v") => {}
            // All but the mount itself, says mount(8).
            Some("-f") => made.push("--fake".into()),
            // The type is ours, and the namespace is entered already.
            Some("-t" | "-N") => drop(rest.next()),
            _ => made.push(argument),
        }
    }
    made
}

/// Returns whether a program reads the output. Asked before parsing, because a command line that
/// does not parse is answered in JSON too.
pub fn wants_json(arguments: &[OsString]) -> bool {
    arguments
        .iter()
        .skip(1)
        .take_while(|argument| *argument != "--")
        .any(|argument| argument == "--json")
}

/// Subcommands by their earlier names, which are accepted with a warning.
const EARLIER: [(&str, &str); 1] = [("extsize", "extent-size")];

/// Returns what to say of the name by which a subcommand was called.
pub fn warning(arguments: &[OsString]) -> Option<String> {
    let called =
        arguments.iter().skip(1).find(|argument| !argument.as_encoded_bytes().starts_with(b"-"))?;
    let (earlier, name) = EARLIER.iter().find(|(earlier, _)| called == earlier)?;
    Some(format!(
        "'bedplate {earlier}' is called 'bedplate {name}': the next version does not know the \
         earlier name any more"
    ))
}

/// Why parsing ended without a command to run.
#[derive(Debug)]
pub enum Stop {
    /// Help was asked for.
    Help(clap::Error),
    /// The version was asked for.
    Version,
    /// The command line is wrong.
    Usage(Failure),
}

/// Parses the arguments.
pub fn parse(arguments: &[OsString]) -> Result<Cli, Stop> {
    Cli::try_parse_from(arguments).map_err(|error| match error.kind() {
        ErrorKind::DisplayVersion => Stop::Version,
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Stop::Help(error)
        }
        _ => Stop::Usage(Failure::usage(sentence(&error, arguments))),
    })
}

impl Stop {
    /// Prints what was asked for, or what is wrong.
    pub fn report(&self, output: &Output) -> ExitCode {
        match self {
            Self::Help(help) => {
                // Help that cannot be printed leaves nothing else to do.
                let _printed = help.print();
                ExitCode::from(if help.use_stderr() { Exit::Usage } else { Exit::Done })
            }
            Self::Version => match output.show(&Version) {
                Ok(()) => Exit::Done.into(),
                Err(failure) => crate::report(output, &failure),
            },
            Self::Usage(failure) => crate::report(output, failure),
        }
    }
}

/// Name and version of the program.
struct Version;

impl serde::Serialize for Version {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json!({ "name": "bedplate", "version": env!("CARGO_PKG_VERSION") }).serialize(serializer)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bedplate {}", env!("CARGO_PKG_VERSION"))
    }
}

/// Returns what the parser takes a wrong word for, where that is near enough to be meant.
fn suggestion(error: &clap::Error) -> String {
    let words = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => vec![word.clone()],
        Some(ContextValue::Strings(words)) => words.clone(),
        _ => Vec::new(),
    };
    let pairs = [
        (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
        (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        (ContextKind::InvalidValue, ContextKind::SuggestedValue),
    ];
    let near = pairs.into_iter().filter_map(|(wrong, near)| {
        let (wrong, near) = (words(wrong), words(near));
        Some(bedplate::meant(wrong.first()?, near.iter().map(String::as_str)))
    });
    near.collect()
}

/// Puts the parser's explanation, which ends at its first empty line, into one sentence that says
/// where to read on.
fn sentence(error: &clap::Error, arguments: &[OsString]) -> String {
    let text = error.render().to_string();
    let explanation: Vec<&str> =
        text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    let explanation = explanation.join(" ");
    let explanation = explanation.strip_prefix("error: ").unwrap_or(&explanation);
    let mut named = String::from("bedplate ");
    let root = Cli::command();
    let mut command = &root;
    for word in arguments
        .iter()
        .skip(1)
        .filter_map(|argument| argument.to_str())
        .filter(|word| !word.starts_with('-'))
    {
        match command.find_subcommand(word) {
            Some(found) => {
                command = found;
                named.push_str(found.get_name());
                named.push(' ');
            }
            // What follows belongs to the command.
            None => break,
        }
    }
    format!("{explanation}{}; see '{named}--help'", suggestion(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_parser_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_command_line_is_one_sentence_that_says_where_to_read_on() {
        for (line, expected) in [
            (
                "bedplate format",
                "the following required arguments were not provided: <PATH>; see 'bedplate format \
                 --help'",
            ),
            (
                "bedplate --json checkpoint create",
                "the following required arguments were not provided: <VOLUME> <NAME>; see \
                 'bedplate checkpoint create --help'",
            ),
            (
                "bedplate mode",
                "the following required arguments were not provided: <FILE>; see 'bedplate mode \
                 --help'",
            ),
            (
                "bedplate chekpoint",
                "unrecognized subcommand 'chekpoint' (is 'checkpoint' meant?); see 'bedplate \
                 --help'",
            ),
            (
                "bedplate format v.img --sise 1G",
                "unexpected argument '--sise' found (is '--size' meant?); see 'bedplate format \
                 --help'",
            ),
            ("bedplate frobnicate", "unrecognized subcommand 'frobnicate'; see 'bedplate --help'"),
        ] {
            let Err(Stop::Usage(failure)) = parse(&words(line)) else { panic!("{line} is wrong") };
            assert_eq!(failure.message, expected);
            assert_eq!(failure.exit, Exit::Usage);
        }
    }

    #[test]
    fn an_earlier_name_of_a_subcommand_is_taken_with_a_warning() {
        for (earlier, name) in EARLIER {
            let line = words(&format!("bedplate --json {earlier} /f"));
            assert!(
                parse(&line).is_ok()
                    && warning(&line).unwrap().contains(&format!("'bedplate {name}'"))
            );
            assert_eq!(warning(&words(&format!("bedplate {name} /f"))), None);
        }
    }

    #[test]
    fn json_is_asked_for_anywhere_but_behind_two_dashes() {
        assert!(
            wants_json(&words("bedplate --json info x"))
                && wants_json(&words("bedplate info x --json"))
        );
        assert!(!wants_json(&words("bedplate info -- --json")) && !wants_json(&words("--json")));
    }

    #[test]
    fn the_mount_helper_is_the_mount_command() {
        assert_eq!(
            as_mount_helper(words("/sbin/mount.bedplate /dev/x /mnt -n -o rw,noauto")),
            words("bedplate mount /dev/x /mnt -o rw,noauto")
        );
        assert_eq!(
            as_mount_helper(words("mount.fuse.bedplate group:g /mnt -f -t fuse.bedplate -o ro")),
            words("bedplate mount group:g /mnt --fake -o ro")
        );
    }
}
