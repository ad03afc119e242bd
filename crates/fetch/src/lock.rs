//! One process at a time works on one model.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::progress::Progress;

/// How often a waiting process looks again; short enough to feel immediate.
const POLL: Duration = Duration::from_millis(100);

/// An exclusive lock on a file, released when dropped and by the system when
/// the process ends in whatever way.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock on `path`, saying so once, until it is free or the
    /// user cancels.
    pub(crate) fn acquire(path: &Path, model: &str, progress: &mut dyn Progress) -> Result<Self> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .map_err(|error| Error::io("open", path, error))?;
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", path, error)),
                Err(TryLockError::WouldBlock) => {}
            }
            if !told {
                progress.message(&format!("another process is fetching {model}; waiting for it"));
                told = true;
            }
            if progress.cancelled() {
                return Err(Error::Cancelled);
            }
            std::thread::sleep(POLL);
        }
    }
}
