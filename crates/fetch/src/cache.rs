//! Where files live: the cache directory, stamps, and the step that makes a
//! finished file visible.
//!
//! ```text
//! <cache>/models/NAME            a finished file
//! <cache>/models/NAME.sha256     its stamp: written by us after the digest was computed, with the
//!                                modification time of the file, which lies so far back that a
//!                                later change shows, and on Unix the time of the file's last
//!                                change of any kind, which no program can put back
//! <cache>/models/hf/ORG/NAME/... finished files of the hub, by commit: `store/repository.rs`
//! <cache>/partial/KEY/...        parts of a download under way
//! <cache>/locks/KEY.lock         who is working on it
//! ```

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::progress::Progress;

/// Bytes moved between two looks at the cancel flag: large enough for full disk
/// speed, small enough (a few milliseconds) that cancelling feels immediate.
const COPY_BYTES: usize = 1 << 20;

/// A change that is made this long after a modification time never leaves that time again: the
/// coarsest clock of a file system in use, FAT's, ticks every 2 s, and such clocks lag by
/// milliseconds.
const TICK: Duration = Duration::from_secs(3);

/// The directory that holds the models: `TIDEKV_HOME` if set, else the platform's
/// place for caches (`$XDG_CACHE_HOME/tidekv` or `~/.cache/tidekv`,
/// `~/Library/Caches/tidekv`, `%LOCALAPPDATA%\tidekv`). An empty variable counts as
/// none, and so does a relative path in one that is the platform's. The directory
/// need not exist.
///
/// # Errors
/// [`Error::NoCacheDir`] where none of them is set: a directory that others can
/// write to is never taken instead.
pub fn cache_dir() -> Result<PathBuf> {
    cache_dir_from(|name| std::env::var_os(name))
}

fn cache_dir_from(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let directory =
        |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(home) = directory("TIDEKV_HOME") {
        return Ok(home);
    }
    // The XDG base directory specification says to ignore relative paths.
    let absolute = |name: &str| directory(name).filter(|path| path.is_absolute());
    let (platform, variables) = if cfg!(windows) {
        (absolute("LOCALAPPDATA"), "LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        (absolute("HOME").map(|home| home.join("Library").join("Caches")), "HOME")
    } else {
        let home = || absolute("HOME").map(|home| home.join(".cache"));
        (absolute("XDG_CACHE_HOME").or_else(home), "XDG_CACHE_HOME or HOME")
    };
    Ok(platform.ok_or(Error::NoCacheDir { variables })?.join("tidekv"))
}

/// A file that is complete, synced and digested, but not yet in its place.
pub(crate) struct Finished {
    /// Where it is: in `partial/`, on the same file system as its place.
    pub(crate) path: PathBuf,
    /// Its length.
    pub(crate) n_bytes: u64,
    /// Its digest, lower-case hexadecimal.
    pub(crate) sha256: String,
}

/// What is known about a file that is already in its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// There is none.
    Absent,
    /// It is not the file that was published; why, in words.
    Differs(String),
    /// The stamp beside it carries the right digest and the file's own times.
    Stamp,
    /// The digest was computed now and is right.
    Digest,
}

/// How closely a file in its place is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// At its stamp; at its bytes only where the stamp does not vouch for it.
    Stamp,
    /// At all its bytes.
    Bytes,
}

/// What a file should be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Published<'a> {
    /// Length in bytes, where known.
    pub(crate) n_bytes: Option<u64>,
    /// Lower-case hexadecimal digest.
    pub(crate) sha256: &'a str,
}

/// Creates `path` and its parents.
///
/// # Errors
/// [`Error::DiskFull`], and for every other reason [`Error::CacheUnwritable`]: a
/// file in the way or a missing mount asks for the same remedy as a permission.
pub(crate) fn create_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|error| match Error::io("create the directory", path, error) {
        Error::Io { path, source, .. } => Error::CacheUnwritable { path, source },
        other => other,
    })
}

/// Removes a file or directory tree; one that is not there is no error.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// Says whether `path` holds the published file: by length, stamp and
/// times where that is enough, else by reading the file.
///
/// # Errors
/// The file exists and cannot be read, or the user cancels.
pub(crate) fn trust(
    path: &Path,
    published: Published<'_>,
    look: Look,
    progress: &mut dyn Progress,
) -> Result<Trust> {
    let found = match fs::metadata(path) {
        Ok(found) if found.is_file() => found,
        _ => return Ok(Trust::Absent),
    };
    if let Some(n_bytes) = published.n_bytes
        && n_bytes != found.len()
    {
        return Ok(Trust::Differs(format!("it has {} bytes, expected {n_bytes}", found.len())));
    }
    if look == Look::Stamp && stamp_vouches(path, &found, published.sha256) {
        return Ok(Trust::Stamp);
    }
    let now = SystemTime::now();
    progress.message(&format!("checking {}", path.display()));
    let mut file = File::open(path).map_err(|error| Error::io("open", path, error))?;
    let mut digest = Digesting::new(io::sink());
    copy(&mut file, &mut digest, progress, &mut |progress, n| progress.bytes(n, found.len()))
        .map_err(|error| error.at("read", path, path))?;
    let actual = digest.finish().1;
    if actual != published.sha256 {
        let expected = published.sha256;
        return Ok(Trust::Differs(format!("its SHA-256 is {actual}, expected {expected}")));
    }
    // A change after a time that is still ticking could leave that time: no stamp yet. Nor is there
    // one in a cache that is only readable. The next look digests again.
    let age = found.modified().ok().and_then(|modified| now.duration_since(modified).ok());
    if age >= Some(TICK) {
        let _ = write_stamp(path, published.sha256, Some(&found));
    }
    Ok(Trust::Digest)
}

/// `true` if the stamp was written for this digest and for the file as it is now.
fn stamp_vouches(path: &Path, found: &Metadata, sha256: &str) -> bool {
    let stamped = fs::metadata(stamp_of(path)).and_then(|stamp| stamp.modified()).ok();
    stamped.is_some()
        && stamped == found.modified().ok()
        && read_stamp(path).as_deref() == Some(sha256)
        && stamped_change(path) == last_change(found)
}

/// When bytes, times or name of a file last changed, in seconds since 1970. Unlike the modification
/// time it cannot be set. A stamp without it, from an earlier version, vouches for nothing.
#[cfg(unix)]
fn last_change(found: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    Some(format!("{}.{:09}", found.ctime(), found.ctime_nsec()))
}

/// Not told here.
#[cfg(not(unix))]
fn last_change(_found: &Metadata) -> Option<String> {
    None
}

/// Moves a finished file to its place. In between no reader sees a file with a
/// wrong stamp: the old file goes first, then a stamp is written that vouches for no
/// file, then the new file appears. It is dated back by a tick, so that the stamp which
/// follows, after the last change of the file's name, holds at once.
pub(crate) fn publish(finished: &Finished, place: &Path) -> Result<()> {
    if let Some(parent) = place.parent() {
        create_dir(parent)?;
    }
    let dated_back = date_back(&finished.path);
    remove(place)?;
    write_stamp(place, &finished.sha256, None)?;
    fs::rename(&finished.path, place).map_err(|error| Error::io("rename to", place, error))?;
    if let Ok(found) = dated_back.and_then(|()| fs::metadata(place)) {
        write_stamp(place, &finished.sha256, Some(&found))?;
    }
    sync_directory_of(place)
}

/// Gives a file a modification time that a change from now on cannot leave.
fn date_back(path: &Path) -> io::Result<()> {
    File::options().write(true).open(path)?.set_modified(SystemTime::now() - TICK)
}

/// The digest in the stamp beside `path`, if there is a well-formed one.
pub(crate) fn read_stamp(path: &Path) -> Option<String> {
    let text = fs::read_to_string(stamp_of(path)).ok()?;
    let digest = text.split_whitespace().next()?;
    let sound = digest.len() == 64 && digest.bytes().all(|c| c.is_ascii_hexdigit());
    sound.then(|| digest.to_ascii_lowercase())
}

/// What a stamp says of the file's last change; a comment to `sha256sum`.
const LAST_CHANGE: &str = "# last change: ";

/// The last change of the file that the stamp beside `path` vouches for, where it says.
fn stamped_change(path: &Path) -> Option<String> {
    let text = fs::read_to_string(stamp_of(path)).ok()?;
    text.lines().find_map(|line| line.strip_prefix(LAST_CHANGE)).map(str::to_owned)
}

/// Writes the stamp in the form `sha256sum --check` reads. It takes over the
/// modification time and the last change of the file it vouches for, `found`: a file
/// that is written to later has others. Without `found` it vouches for none.
fn write_stamp(path: &Path, sha256: &str, found: Option<&Metadata>) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let change = found.and_then(last_change);
    let change = change.map_or(String::new(), |change| format!("{LAST_CHANGE}{change}\n"));
    let modified = found.and_then(|found| found.modified().ok());
    replace(&stamp_of(path), &format!("{sha256}  {name}\n{change}"), modified)
}

fn stamp_of(path: &Path) -> PathBuf {
    beside(path, "sha256")
}

/// Replaces a small text file so that a reader sees the old or the new text.
pub(crate) fn write_atomically(path: &Path, text: &str) -> Result<()> {
    replace(path, text, None)
}

fn replace(path: &Path, text: &str, modified: Option<SystemTime>) -> Result<()> {
    let scratch = beside(path, "new");
    let written = File::create(&scratch).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        if let Some(modified) = modified {
            file.set_modified(modified)?;
        }
        file.sync_all()
    });
    written.map_err(|error| Error::io("write", &scratch, error))?;
    fs::rename(&scratch, path).map_err(|error| Error::io("rename to", path, error))
}

/// `dir/name.gguf` and `sha256` give `dir/name.gguf.sha256`.
pub(crate) fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    PathBuf::from(name)
}

/// Makes a rename in the directory of `path` survive a power failure.
#[cfg(unix)]
fn sync_directory_of(path: &Path) -> Result<()> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    File::open(parent)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| Error::io("sync", parent, error))
}

/// Directories cannot be opened as files here, and the system orders the rename itself.
#[cfg(not(unix))]
fn sync_directory_of(_path: &Path) -> Result<()> {
    Ok(())
}

/// Which side of a [`copy`] failed.
pub(crate) enum CopyError {
    /// The source could not be read.
    Read(io::Error),
    /// The sink could not be written.
    Write(io::Error),
    /// The user cancelled.
    Cancelled,
}

impl CopyError {
    /// This failure in words, for a copy from the file `from` to the file `to`.
    pub(crate) fn at(self, reading: &'static str, from: &Path, to: &Path) -> Error {
        match self {
            Self::Read(error) => Error::io(reading, from, error),
            Self::Write(error) => Error::io("write", to, error),
            Self::Cancelled => Error::Cancelled,
        }
    }
}

/// Copies `from` to `to` to its end and returns the number of bytes; between
/// two reads it looks at the cancel flag and calls `moved` with the bytes so far.
pub(crate) fn copy(
    from: &mut dyn Read,
    to: &mut dyn Write,
    progress: &mut dyn Progress,
    moved: &mut dyn FnMut(&mut dyn Progress, u64),
) -> Result<u64, CopyError> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut total = 0;
    loop {
        if progress.cancelled() {
            return Err(CopyError::Cancelled);
        }
        let n = match from.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CopyError::Read(error)),
        };
        to.write_all(&buffer[..n]).map_err(CopyError::Write)?;
        total += n as u64;
        moved(progress, total);
    }
}

/// A writer that digests what passes through.
pub(crate) struct Digesting<W> {
    inner: W,
    digest: Sha256,
}

impl<W: Write> Digesting<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, digest: Sha256::new() }
    }

    /// The writer, and the digest in lower-case hexadecimal.
    pub(crate) fn finish(self) -> (W, String) {
        let hex = self.digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        (self.inner, hex)
    }
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.digest.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests;
