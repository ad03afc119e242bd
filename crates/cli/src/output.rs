//! Output: JSON to a file or stdout, tables, and text that may meet a closed
//! pipe.

use anyhow::Context;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Where `--json` writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonTarget {
    /// Stdout, which then carries the object alone.
    Stdout,
    /// A file, which appears whole or not at all.
    File(PathBuf),
}

impl std::str::FromStr for JsonTarget {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "-" => JsonTarget::Stdout,
            path => JsonTarget::File(PathBuf::from(path)),
        })
    }
}

impl JsonTarget {
    /// Checks early that the target can be written, so that a long run is not
    /// lost for a mistyped path.
    ///
    /// # Errors
    /// The directory does not exist or takes no files.
    pub fn check(&self) -> anyhow::Result<()> {
        match self {
            JsonTarget::Stdout => Ok(()),
            JsonTarget::File(path) => check_writable(path),
        }
    }

    /// Writes one object.
    ///
    /// # Errors
    /// What the system says; an existing file is then unchanged.
    pub fn write(&self, value: &impl Serialize) -> anyhow::Result<()> {
        let mut text = serde_json::to_string_pretty(value)?;
        text.push('\n');
        match self {
            JsonTarget::Stdout => print_text(&text),
            JsonTarget::File(path) => write_file(path, text.as_bytes()),
        }
    }
}

/// Checks that a file can be created beside `path`.
///
/// # Errors
/// The directory does not exist or takes no files, or `path` is a directory.
pub fn check_writable(path: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(!path.is_dir(), "cannot write {}: it is a directory", path.display());
    beside(path).map(drop).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file through a temporary one: it appears whole or not at all.
///
/// # Errors
/// What the system says; an existing file is then unchanged.
pub fn write_file(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || -> anyhow::Result<()> {
        let mut file = beside(path)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

fn beside(path: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    tempfile::NamedTempFile::new_in(parent.unwrap_or(Path::new(".")))
}

/// Prints to stdout at once; a closed pipe is an error, not a panic.
///
/// # Errors
/// What the system says.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(())
}

/// Rows of cells as aligned columns: the first to the left, the others to the
/// right.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            match column {
                0 => text.push_str(&format!("  {cell:<width$}")),
                _ => text.push_str(&format!("  {cell:>width$}")),
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let text = table(&[row(["a", "10"]), row(["long", "9"])]);
        assert_eq!(text, "  a     10\n  long   9\n");
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        write_file(&path, b"old").unwrap();
        assert!(write_file(&dir.path().join("missing/report.json"), b"new").is_err());
        assert!(check_writable(dir.path()).is_err());
        write_file(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }
}
