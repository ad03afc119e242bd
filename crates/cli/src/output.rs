//! Output: JSON to a file or stdout, tables, and text that may meet a closed
//! pipe.

use anyhow::Context;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write};
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

/// Checks that `path` can be written.
///
/// # Errors
/// The directory does not exist or takes no files, or `path` is a directory.
pub fn check_writable(path: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(!path.is_dir(), "cannot write {}: it is a directory", path.display());
    let tried = match fate(path) {
        Fate::Replaced(target) => beside(&target).map(drop),
        Fate::WrittenInto => File::options().write(true).open(path).map(drop),
    };
    tried.with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file through a temporary one: it appears whole or not at all. A
/// device or a pipe (`/dev/stdout`) is written into instead.
///
/// # Errors
/// What the system says; an existing file is then unchanged.
pub fn write_file(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || -> anyhow::Result<()> {
        let target = match fate(path) {
            Fate::Replaced(target) => target,
            Fate::WrittenInto => {
                File::options().write(true).open(path)?.write_all(bytes)?;
                return Ok(());
            }
        };
        let mut file = beside(&target)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(&target)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// What writing to a path does.
enum Fate {
    /// A file, new or old, takes the place: that of a link's target if the path
    /// is a link.
    Replaced(PathBuf),
    /// A device or a pipe stays and takes the bytes.
    WrittenInto,
}

fn fate(path: &Path) -> Fate {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Fate::WrittenInto,
        Ok(_) => Fate::Replaced(fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())),
        Err(_) => Fate::Replaced(path.to_path_buf()),
    }
}

/// A temporary file in the directory of `path`, with the permissions of any new
/// file.
fn beside(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    fs::metadata(parent)?;
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    // The name of a temporary file, which the error carries, tells a user nothing.
    builder.tempfile_in(parent).map_err(|error| error.kind().into())
}

/// Says something on stderr. Nobody may be listening, which is no reason to
/// fail.
pub fn note(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}

/// Prints to stdout at once; a closed pipe is an error, not a panic.
///
/// # Errors
/// What the system says.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("cannot write to standard output")
}

/// Most characters of a foreign text that are shown.
const MOST_SHOWN: usize = 200;

/// Text from a file that nobody vouches for, fit for a terminal: one line of at most
/// 200 characters in which nothing moves the cursor or turns the direction of
/// writing.
pub fn printable(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut shown = String::new();
    let mut rest = text.chars();
    for c in rest.by_ref().take(MOST_SHOWN) {
        match c.is_control() || turns(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    if rest.next().is_some() {
        shown.push('…');
    }
    shown
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
    fn foreign_text_cannot_steer_the_terminal() {
        assert_eq!(printable("Qwen2.5 \"7B\" é 名"), "Qwen2.5 \"7B\" é 名");
        assert_eq!(printable("a\x1b[2Jb\r\nc\u{202e}d"), "a\\u{1b}[2Jb\\r\\nc\\u{202e}d");
        assert_eq!(printable(&"x".repeat(MOST_SHOWN)), "x".repeat(MOST_SHOWN));
        assert_eq!(printable(&"é".repeat(9999)), "é".repeat(MOST_SHOWN) + "…");
    }

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
        let missing = dir.path().join("missing/report.json");
        let error = format!("{:#}", write_file(&missing, b"new").unwrap_err());
        assert!(error.contains("report.json") && !error.contains("at path"), "{error}");
        assert!(check_writable(&missing).is_err());
        assert!(check_writable(dir.path()).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        write_file(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        write_file(&file, b"old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_file(&link, b"new").unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_pipe_takes_the_bytes() {
        use std::io::Read;
        use std::os::fd::AsRawFd;
        let (mut reader, writer) = io::pipe().unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()));
        check_writable(&path).unwrap();
        write_file(&path, b"report").unwrap();
        drop(writer);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"report");
    }
}
