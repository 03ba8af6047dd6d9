//! What a command says: text for people or, with `--json`, one document, both on standard output.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::render::text;

/// A result of another crate, with its text for people in this one.
#[derive(Serialize)]
#[serde(transparent)]
pub struct Shown<T>(pub T);

/// The place a command's results go to.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    json: bool,
}

impl Output {
    /// Chooses between JSON and text.
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Returns whether a program reads the output.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Writes a result: its serialization, or its text without a second empty line.
    pub fn show<T: Serialize + Display>(&self, result: &T) -> Result<()> {
        let text = if self.json {
            serialized(result)?
        } else {
            harmless(&result.to_string()).into_owned()
        };
        if text.is_empty() {
            return Ok(());
        }
        written(writeln!(io::stdout().lock(), "{}", text.trim_end_matches('\n')))
    }

    /// Writes a sentence about what is going on, for people alone.
    pub fn say(&self, sentence: &str) -> Result<()> {
        if self.json {
            return Ok(());
        }
        written(writeln!(io::stdout().lock(), "{}", harmless(sentence)))
    }

    /// Returns whether the reader of standard output is gone, so that a command without an end can
    /// end.
    pub fn reader_is_gone(&self) -> bool {
        let stdout = io::stdout();
        let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok()
            && fds[0].revents().contains(PollFlags::ERR)
    }

    /// Writes one document of many as one line.
    pub fn line<T: Serialize>(&self, document: &T) -> Result<()> {
        let text = serde_json::to_string(document)
            .map_err(|e| Failure::new("io", format!("cannot write the result as JSON: {e}")))?;
        written(writeln!(io::stdout().lock(), "{text}"))
    }

    /// Writes an empty line between two texts.
    pub fn gap(&self) -> Result<()> {
        if self.json { Ok(()) } else { written(writeln!(io::stdout().lock())) }
    }

    /// Writes a document, whatever the form asked for.
    pub fn document<T: Serialize>(&self, document: &T) -> Result<()> {
        written(writeln!(io::stdout().lock(), "{}", serialized(document)?))
    }

    /// Writes raw bytes (file contents, scripts).
    pub fn bytes(&self, bytes: &[u8]) -> Result<()> {
        written(io::stdout().lock().write_all(bytes))
    }

    /// Tells a failure: as a document, or as one line on standard error.
    pub fn fail(&self, failure: &Failure) {
        let told = if self.json {
            let document = json!({ "error": { "kind": failure.kind, "message": failure.message,
                "exit_code": failure.exit as u8 } });
            writeln!(io::stdout().lock(), "{document:#}")
        } else {
            writeln!(io::stderr().lock(), "bedplate: {}", text::one_line(&failure.message))
        };
        // Where telling fails the exit code still says it.
        drop(told);
    }
}

/// Returns a text that does nothing to a terminal: names and messages in it come from files and
/// processes of others.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let is_harmful = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    text.chars()
        .map(|c| if is_harmful(c) { c.escape_unicode().to_string() } else { c.to_string() })
        .collect::<String>()
        .into()
}

fn serialized<T: Serialize>(result: &T) -> Result<String> {
    serde_json::to_string_pretty(result)
        .map_err(|e| Failure::new("io", format!("cannot write the result as JSON: {e}")))
}

/// A reader that has seen enough (`| head`) is no failure.
fn written(result: io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new("io", format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_does_not_reach_the_terminal_as_a_command() {
        assert_eq!(harmless("a\tb\nc äö"), "a\tb\nc äö");
        assert_eq!(harmless("\u{1b}[2Jx\r\u{9b}"), "\\u{1b}[2Jx\\u{d}\\u{9b}");
    }
}
