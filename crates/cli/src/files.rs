//! Files that are written: whole or not at all, and never over what is no file.

use crate::exit::Ended;
use anyhow::{Context, ensure};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Checks that `path` can be written.
///
/// # Errors
/// The directory does not exist or takes no files, or `path` is something that a
/// report cannot be written to: a directory, a named pipe, a disk.
pub fn check_writable(path: &Path) -> anyhow::Result<()> {
    let try_it = || -> anyhow::Result<()> {
        match fate(path)? {
            Fate::Replaced(target) => drop(beside(&target)?),
            Fate::WrittenInto => drop(File::options().write(true).open(path)?),
        }
        Ok(())
    };
    try_it().with_context(|| format!("cannot write {}", path.display()))
}

/// Checks that `path` can be written and is none of the files that are read.
///
/// # Errors
/// As [`check_writable`], or it is one of `inputs`, or lies in one that is a directory.
pub fn check_output(path: &Path, inputs: &[&Path]) -> anyhow::Result<()> {
    let is_read = |input: &&Path| match fs::metadata(input) {
        Ok(found) if found.is_dir() => fs::canonicalize(path)
            .is_ok_and(|path| fs::canonicalize(input).is_ok_and(|input| path.starts_with(input))),
        Ok(_) => same_file(path, input),
        Err(_) => false,
    };
    if inputs.iter().any(is_read) {
        let path = path.display();
        let problem = format!("{path} is read by this command; write the output to another file");
        return Err(Ended::Usage(problem).into());
    }
    check_writable(path)
}

/// Writes a file through a temporary one: it appears whole or not at all. A
/// device or an open pipe (`/dev/stdout`) is written into instead.
///
/// # Errors
/// What the system says; an existing file is then unchanged.
pub fn write_file(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || -> anyhow::Result<()> {
        let target = match fate(path)? {
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
    /// A character device or a pipe that the process has open stays and takes the bytes.
    WrittenInto,
}

fn fate(path: &Path) -> anyhow::Result<Fate> {
    let Ok(found) = fs::metadata(path) else { return Ok(Fate::Replaced(path.to_path_buf())) };
    let target = fs::canonicalize(path);
    if found.is_file() {
        return Ok(Fate::Replaced(target.unwrap_or_else(|_| path.to_path_buf())));
    }
    ensure!(!found.is_dir(), "it is a directory");
    let stream = stream(found.file_type());
    // A named pipe would tell its reader that all is said when it is tried, and wait for another
    // reader when it is written. A pipe without a name is one that this process has open.
    let open = stream == Some(Stream::Pipe) && (target.is_err() || path.starts_with("/dev"));
    let written_into = open || stream == Some(Stream::Device);
    ensure!(written_into, "it is neither a regular file nor a character device");
    Ok(Fate::WrittenInto)
}

/// What takes bytes and is no file.
#[derive(PartialEq, Eq)]
enum Stream {
    Device,
    Pipe,
}

#[cfg(unix)]
fn stream(kind: fs::FileType) -> Option<Stream> {
    use std::os::unix::fs::FileTypeExt;
    match kind {
        kind if kind.is_char_device() => Some(Stream::Device),
        kind if kind.is_fifo() => Some(Stream::Pipe),
        _ => None,
    }
}

#[cfg(not(unix))]
fn stream(_: fs::FileType) -> Option<Stream> {
    Some(Stream::Device)
}

/// Whether two paths name one file that would be replaced, existing or not.
pub fn same_file(a: &Path, b: &Path) -> bool {
    match (place(a), place(b)) {
        (Some(a), Some(b)) => a == b && !matches!(fate(&a), Ok(Fate::WrittenInto)),
        _ => a == b,
    }
}

/// A path without links or dots, if its directory exists.
fn place(path: &Path) -> Option<PathBuf> {
    let named = || Some(fs::canonicalize(parent(path)).ok()?.join(path.file_name()?));
    fs::canonicalize(path).ok().or_else(named)
}

/// The directory that a path lies in.
fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// A temporary file in the directory of `path`, with the permissions of any new
/// file.
fn beside(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    let parent = parent(path);
    fs::metadata(parent)?;
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    // The name of a temporary file, which the error carries, tells a user nothing.
    builder.tempfile_in(parent).map_err(|error| error.kind().into())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(fs::read(&path).unwrap(), b"old");
        write_file(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        write_file(&file, b"old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_file(&link, b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
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

    #[cfg(unix)]
    #[test]
    fn one_file_by_two_names_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("file"), dir.path().join("other"));
        let dotted = dir.path().join(".").join("file");
        assert!(same_file(&file, &dotted) && !same_file(&file, &other));
        write_file(&file, b"").unwrap();
        std::os::unix::fs::symlink(&file, &other).unwrap();
        assert!(same_file(&file, &dotted) && same_file(&file, &other));
        assert!(!same_file(Path::new("/dev/null"), Path::new("/dev/null")));
    }
}
