//! Small pieces of text that several commands print.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bedplate::FileKind;

/// Returns `1 record`, `2 records`.
pub fn count(n: u64, noun: &str) -> String {
    count_in(n, noun, &format!("{noun}s"))
}

/// As [`count`], of a noun with a plural of its own.
pub fn count_in(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Returns what follows a preferred I/O size; nothing where the volume below has no rows.
pub fn rows(row_bytes: u64) -> String {
    match row_bytes {
        0 => String::new(),
        _ => format!("; rows of {} below", bedplate::format_size(row_bytes)),
    }
}

/// Returns the type and permission bits as ls(1) writes them: `-rw-r--r--`.
pub fn permissions(kind: FileKind, mode: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(match kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    });
    for (shift, special, set, unset) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => unset,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Returns a name so that it takes one line and does nothing to a terminal, whatever it holds.
pub fn name(name: impl AsRef<OsStr>) -> String {
    one_line(&bedplate::readable_name(name.as_ref().as_bytes()))
}

/// A name that came from the command line or from the system, as commands tell it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(pub PathBuf);

impl<T: Into<PathBuf>> From<T> for Name {
    fn from(path: T) -> Self {
        Self(path.into())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name(&self.0))
    }
}

impl serde::Serialize for Name {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        readable(&self.0, serializer)
    }
}

/// Writes a path into a document, which holds text only.
pub fn readable<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&bedplate::readable_name(path.as_os_str().as_bytes()))
}

/// Returns a path as a word that a shell reads.
pub fn quoted(path: &Path) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%=".contains(c);
    match path.to_str() {
        Some(text) if !text.is_empty() && !text.starts_with('-') && text.chars().all(plain) => {
            text.to_owned()
        }
        Some(text) if !text.contains(char::is_control) => {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
        _ => format!("$'{}'", path.as_os_str().as_bytes().escape_ascii()),
    }
}

/// Returns a text with its control characters, ends of lines among them, written out.
pub fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

/// Returns the beginning of a text: at most so many bytes, ending between two characters.
pub fn beginning(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Breaks a sentence between words into lines that begin behind `indent` blanks and end before
/// `columns`; a longer word stays whole.
pub fn wrapped(sentence: &str, indent: usize, columns: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in sentence.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("{:indent$}{word}", "")),
        }
    }
    debug_assert!(
        lines.iter().all(|line| line.chars().count() <= columns || !line[indent..].contains(' ')),
        "only a word that is too long passes {columns} columns"
    );
    lines.join("\n")
}

/// Lays rows out in columns, a line for each whatever the cells hold; the columns named in `right`
/// are flushed right.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| one_line(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().enumerate().map(|(at, cell)| {
            let width = widths[at];
            if right.contains(&at) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Returns a duration in three digits and a unit; `-` for none.
pub fn short(ns: Option<u64>) -> String {
    let Some(ns) = ns else { return "-".to_owned() };
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns}ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    if value < 10.0 { format!("{value:.2}{unit}") } else { format!("{value:.0}{unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_ends_between_characters() {
        assert_eq!([beginning("aöb", 2), beginning("aöb", 3), beginning("a", 9)], ["a", "aö", "a"]);
    }

    #[test]
    fn permissions_are_written_as_ls_does() {
        assert_eq!(permissions(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(permissions(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(permissions(FileKind::File, 0o4601), "-rwS-----x");
    }

    #[test]
    fn a_name_takes_one_line() {
        assert_eq!(name(OsStr::from_bytes(b"a\nb\x1b[2J\xff \xc3\xa4")), "a\\nb\\u{1b}[2J\\xff ä");
    }

    #[test]
    fn a_shell_reads_the_same_path() {
        for (path, word) in [
            ("/mnt/a-b.1", "/mnt/a-b.1"),
            ("/a b", "'/a b'"),
            ("it's", r"'it'\''s'"),
            ("a\nb", "$'a\\nb'"),
            ("-x", "'-x'"),
        ] {
            assert_eq!(quoted(Path::new(path)), word);
        }
    }

    #[test]
    fn a_table_has_no_blanks_at_the_ends_of_its_lines() {
        let rows = [vec!["a".into(), "10".into()], vec!["long".into(), "9".into()]];
        assert_eq!(table(&rows, &[1]), "a     10\nlong   9\n");
        assert_eq!(table(&[vec!["a\nb".into(), "10".into()]], &[1]), "a\\nb  10\n");
    }

    #[test]
    fn durations_have_three_digits() {
        for (ns, text) in [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1.00us"),
            (15_400, "15us"),
            (2_500_000, "2.50ms"),
            (3_000_000_000, "3.00s"),
        ] {
            assert_eq!(short(Some(ns)), text);
        }
        assert_eq!(short(None), "-");
    }
}
