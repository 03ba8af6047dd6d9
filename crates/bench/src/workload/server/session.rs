//! A session with a database: its own shell at the other end of two pipes.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};

use crate::{Error, Result};

/// What the shell prints when it is through with what it was told.
pub(super) const DONE: &str = "bedplate-bench-done";

/// One session; one thread's.
pub(super) struct Session {
    shell: RefCell<Shell>,
}

struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    errors: ChildStderr,
    /// What makes the shell print [`DONE`].
    ask: &'static str,
}

impl Session {
    /// Starts a shell that reads statements, in a group of its own so that a terminal's Ctrl-C does
    /// not end it before the run does.
    pub(super) fn open(command: &mut Command, ask: &'static str) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let command = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn().map_err(|e| Error::io(&name, "cannot be run", e))?;
        let (Some(input), Some(output), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Error::target(format!("{name}: its pipes are missing")));
        };
        let session = Self {
            shell: RefCell::new(Shell {
                child,
                input,
                output: BufReader::new(output),
                errors,
                ask,
            }),
        };
        // Connected, and ready for the clock to start.
        session.run(&[])?;
        Ok(session)
    }

    /// Runs statements and waits until they are through.
    pub(super) fn run(&self, statements: &[String]) -> Result<()> {
        let mut shell = self.shell.borrow_mut();
        let text = statements.join("\n") + shell.ask;
        let told = shell.input.write_all(text.as_bytes());
        let mut line = String::new();
        while told.is_ok() {
            line.clear();
            match shell.output.read_line(&mut line) {
                Ok(1..) if line.trim_end() == DONE => return Ok(()),
                Ok(1..) => {}
                Ok(0) | Err(_) => break,
            }
        }
        Err(shell.ended())
    }
}

impl Shell {
    fn ended(&mut self) -> Error {
        let mut said = String::new();
        // Its complaint is all that is left to hear; none is an answer too.
        let _heard = self.errors.by_ref().take(4096).read_to_string(&mut said);
        Error::target(format!("the database's shell ended: {}", said.trim().replace('\n', "; ")))
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It may be gone already.
        let _killed = self.child.kill();
        let _status = self.child.wait();
    }
}
