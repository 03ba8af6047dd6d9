//! Ranks of locks: `docs/locks.md`, the table of the door to locks, and the comments on fields say
//! the same.

use std::collections::BTreeMap;

use super::Text;

const TABLE: &str = "crates/block/src/sync/rank.rs";
const DOCUMENT: &str = "docs/locks.md";

/// Returns what breaks the rules.
pub fn check(texts: &[Text]) -> Vec<String> {
    let find = |path: &str| texts.iter().find(|text| text.path == path);
    let (Some(table), Some(document)) = (find(TABLE), find(DOCUMENT)) else { return Vec::new() };
    let mut findings = Vec::new();
    let rows = rows(&table.content);
    compare(table, &rows, document, &mut findings);
    let ranks: BTreeMap<&str, &str> = rows.iter().map(|row| (row.lock, row.rank)).collect();
    for text in texts.iter().filter(|text| {
        text.is_rust()
            && text.path.starts_with("crates/")
            && !text.path.starts_with("crates/block/src/sync/")
    }) {
        if !text.is_test() {
            fields(text, &ranks, &mut findings);
        }
    }
    findings
}

/// A row of the table in the source, with its line.
struct Row<'a> {
    line: usize,
    lock: &'a str,
    rank: &'a str,
    name: &'a str,
}

/// Reads lines such as `row(SIZE, 20, "0.2", "size"),`.
fn rows(content: &str) -> Vec<Row<'_>> {
    content.lines().enumerate().filter_map(|(number, line)| row(number + 1, line)).collect()
}

fn row(line: usize, text: &str) -> Option<Row<'_>> {
    let (lock, rest) = text.trim_start().strip_prefix("row(")?.split_once(',')?;
    let mut texts = rest.split('"');
    Some(Row { line, lock, rank: texts.nth(1)?, name: texts.nth(1)? })
}

/// The document's rows and the table's are the same, by rank and name.
fn compare(table: &Text, rows: &[Row<'_>], document: &Text, findings: &mut Vec<String>) {
    let mut told = BTreeMap::new();
    let mut in_table = false;
    for (number, line) in document.content.lines().enumerate() {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let (Some(rank), Some(lock)) = (cells.next(), cells.next()) else {
            in_table = false;
            continue;
        };
        in_table |= (rank, lock) == ("rank", "lock");
        if in_table && rank != "rank" && !rank.starts_with('-') {
            let name = lock.split([',', ';']).next().unwrap_or(lock);
            told.insert((rank, name), number + 1);
        }
    }
    for row in rows {
        if told.remove(&(row.rank, row.name)).is_none() {
            findings.push(table.finding(
                row.line,
                format_args!("{DOCUMENT} has no lock '{}' of rank {}", row.name, row.rank),
            ));
        }
    }
    for ((rank, name), line) in told {
        findings.push(
            document.finding(line, format_args!("{TABLE} has no lock '{name}' of rank {rank}")),
        );
    }
}

/// A lock with a rank in its type repeats it in the comment above, and one whose comment states a
/// rank has it in its type.
fn fields(text: &Text, ranks: &BTreeMap<&str, &str>, findings: &mut Vec<String>) {
    let mut comment = String::new();
    for (number, line) in text.product_code().lines().enumerate() {
        let line = line.trim();
        if let Some(more) = line.strip_prefix("///") {
            comment.push_str(more);
            continue;
        }
        if line.starts_with("#[") {
            continue;
        }
        let stated = stated_rank(&comment);
        let has_lock =
            (line.contains("Mutex<") || line.contains("RwLock<") || line.contains("Ranked<"))
                && !line.contains("fn ")
                && !line.contains("Guard<");
        let lock = line
            .split_once("{ rank::")
            .and_then(|(_, rest)| rest.split_once(" }"))
            .map(|(lock, _)| lock);
        match (lock, stated) {
            (Some(lock), stated) if ranks.get(lock).copied() != stated.as_deref() => {
                let (wanted, stated) = (
                    ranks.get(lock).copied().unwrap_or("none"),
                    stated.unwrap_or_else(|| "none".to_owned()),
                );
                findings.push(text.finding(
                    number + 1,
                    format_args!(
                        "{lock} has rank {wanted} in {TABLE}, and the comment above states {stated}"
                    ),
                ));
            }
            (None, Some(rank)) if has_lock && rank != "leaf" => {
                findings.push(text.finding(
                    number + 1,
                    format_args!(
                        "a lock whose comment states rank {rank} has it in its type too: \
                         bedplate_block::sync"
                    ),
                ));
            }
            _ => {}
        }
        comment.clear();
    }
}

/// Returns the rank that a comment states: what stands behind the word, or that the lock is a leaf.
fn stated_rank(comment: &str) -> Option<String> {
    let mut words = comment
        .split(|c: char| !c.is_alphanumeric() && c != '.')
        .map(|word| word.trim_end_matches('.'));
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case("rank") {
            return words.next().map(str::to_owned);
        }
        if word.eq_ignore_ascii_case("leaf") {
            return Some("leaf".to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    fn findings(document: &str, source: &str) -> Vec<String> {
        let table =
            "    row(SIZE, 20, \"0.2\", \"size\"),\n    row(HOLDS, LEAF, \"leaf\", \"holds\"),\n";
        check(&[text(TABLE, table), text(DOCUMENT, document), text("crates/fs/src/a.rs", source)])
    }

    const DOCUMENTED: &str = "| rank | lock | guards |\n| --- | --- | --- |\n| 0.2 | size, of all \
                              | it |\n| leaf | holds | them |\n\n| other | table |\n| 7 | x |\n";
    const FIELDS: &str = "    /// Rank 0.2: the size.\n    a: Mutex<(), { rank::SIZE }>,\n    /// \
                          A leaf.\n    b: RwLock<u8, { rank::HOLDS }>,\n";

    #[test]
    fn what_agrees_is_no_finding() {
        assert_eq!(findings(DOCUMENTED, FIELDS), Vec::<String>::new());
    }

    #[test]
    fn a_rank_that_differs_from_the_document_is_found_from_both_sides() {
        assert_eq!(findings(&DOCUMENTED.replace("0.2", "0.3"), FIELDS).len(), 2);
        assert_eq!(findings(&DOCUMENTED.replace("| leaf | holds | them |\n", ""), FIELDS).len(), 1);
        assert_eq!(
            findings(
                &DOCUMENTED.replace("| leaf | holds", "| 9 | more | it |\n| leaf | holds"),
                FIELDS
            )
            .len(),
            1
        );
    }

    #[test]
    fn a_field_without_its_rank_is_found() {
        assert_eq!(findings(DOCUMENTED, &FIELDS.replace("Rank 0.2", "Rank 0.3")).len(), 1);
        assert_eq!(findings(DOCUMENTED, &FIELDS.replace("    /// A leaf.\n", "")).len(), 1);
        assert_eq!(
            findings(DOCUMENTED, &FIELDS.replace("Mutex<(), { rank::SIZE }>", "Mutex<()>")).len(),
            1
        );
    }
}
