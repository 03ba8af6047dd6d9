//! A second process with a file open: it does what lines on its standard input say and answers each
//! with a line.
//!
//! ```text
//! open plain|direct PATH     write OFFSET LEN SEED     read OFFSET LEN     sync     close
//! ```
//! `read` answers with the checksum of what it read, everything else with `ok`.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;

use super::superblock::crc32c;

/// What direct I/O wants of a buffer's address on any device.
const ALIGN: usize = 4096;

/// Returns the bytes that stand for `seed`.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(len).collect()
}

/// Runs `use_buffer` on `len` bytes at an aligned address.
pub fn with_aligned<T>(len: usize, use_buffer: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut memory = vec![0; len + ALIGN];
    let start = memory.as_ptr().align_offset(ALIGN);
    use_buffer(&mut memory[start..start + len])
}

/// Serves lines until the input ends.
///
/// # Errors
/// Never for a call that failed: that is answered.
pub fn serve() -> Result<()> {
    let mut file = None;
    for line in std::io::stdin().lock().lines() {
        let answer = obey(&line?, &mut file).unwrap_or_else(|error| format!("error: {error:#}"));
        println!("{answer}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn obey(line: &str, file: &mut Option<File>) -> Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let number =
        |at: usize| words.get(at).context("too few words")?.parse::<u64>().context("not a number");
    let opened = || file.as_ref().context("no file is open");
    match words[0] {
        "open" => {
            let flags =
                if words.get(1) == Some(&"direct") { OFlags::DIRECT } else { OFlags::empty() };
            let path = words.get(2).context("no path")?;
            *file = Some(
                OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .custom_flags(flags.bits().cast_signed())
                    .open(path)?,
            );
        }
        "write" => {
            let bytes = pattern(number(3)?, usize::try_from(number(2)?)?);
            with_aligned(bytes.len(), |buffer| {
                buffer.copy_from_slice(&bytes);
                opened()?.write_all_at(buffer, number(1)?).context("write")
            })?;
        }
        "read" => {
            return with_aligned(usize::try_from(number(2)?)?, |buffer| {
                opened()?.read_exact_at(buffer, number(1)?).context("read")?;
                Ok(crc32c(buffer).to_string())
            });
        }
        "sync" => opened()?.sync_data()?,
        "close" => *file = None,
        other => bail!("what is {other}?"),
    }
    Ok("ok".to_owned())
}

/// The calling side of a peer.
pub struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts one.
    ///
    /// # Errors
    /// When this program cannot be started again.
    pub fn start() -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("peer")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("a peer has an output")?);
        Ok(Self { child, input, output })
    }

    /// Sends a line and returns the answer.
    ///
    /// # Errors
    /// When the peer answers with an error or not at all.
    pub fn ask(&mut self, line: &str) -> Result<String> {
        let input = self.input.as_mut().context("the peer was closed")?;
        writeln!(input, "{line}")?;
        let mut answer = String::new();
        self.output.read_line(&mut answer)?;
        let answer = answer.trim();
        if answer.is_empty() || answer.starts_with("error: ") {
            bail!("'{line}' was answered with '{answer}'");
        }
        Ok(answer.to_owned())
    }

    /// Reads a range and compares it with `bytes`.
    ///
    /// # Errors
    /// When it differs; names the range.
    pub fn expect(&mut self, offset: u64, bytes: &[u8], what: &str) -> Result<()> {
        let answer = self.ask(&format!("read {offset} {}", bytes.len()))?;
        if answer != crc32c(bytes).to_string() {
            bail!("{what}: {} bytes at {offset} are not what was written last", bytes.len());
        }
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.input = None;
        let _status = self.child.wait();
    }
}
