//! `bedplate completions SHELL`

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use serde_json::json;

use crate::cmd::Cli;
use crate::failure::Result;
use crate::render::output::Output;

/// Write the completion script of a shell to standard output
///
/// For bash: bedplate completions bash > /usr/share/bash-completion/completions/bedplate
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// The shell
    shell: Shell,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "bedplate", &mut script);
    if output.is_json() {
        return output.document(&json!({ "shell": arguments.shell.to_string(), "script": String::from_utf8_lossy(&script) }));
    }
    output.bytes(&script)
}
