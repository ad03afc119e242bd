//! Where models come from, and what a caller is told about the one it got.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use crate::catalog::License;

/// Where models may come from when the cache has none.
#[derive(Debug, Clone)]
pub struct Sources {
    /// The Python program whose pip talks to the package registry.
    pub python: PathBuf,
    /// The hub.
    pub hub: HubAccess,
}

/// Whether and where the Hugging Face hub is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HubAccess {
    /// The hub that hf-hub finds by itself (`HF_ENDPOINT`, `HF_TOKEN`).
    Default,
    /// The hub at this base URL.
    At(String),
    /// Never.
    Off,
}

impl Sources {
    /// `python3` (Windows: `python`) from PATH, and the hub unless
    /// `HF_HUB_OFFLINE` is set to something other than `0`.
    pub fn of_this_process() -> Self {
        let offline: Option<OsString> = std::env::var_os("HF_HUB_OFFLINE");
        let offline = offline.is_some_and(|value| !value.is_empty() && value != "0");
        Self {
            python: PathBuf::from(if cfg!(windows) { "python" } else { "python3" }),
            hub: if offline { HubAccess::Off } else { HubAccess::Default },
        }
    }
}

/// Where a pulled model came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The path the user gave.
    Local,
    /// It was already in the cache.
    Cache,
    /// The Hugging Face hub.
    Hub,
    /// The Python package registry.
    Registry,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local file",
            Self::Cache => "cache",
            Self::Hub => "Hugging Face hub",
            Self::Registry => "Python package registry",
        })
    }
}

/// How sure it is that a file is the published one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verified {
    /// Its SHA-256 was computed now and is the known one (for a hub file that was
    /// in the cache: that of its download).
    Digest,
    /// Its length is right, and the stamp of an earlier verification is beside it
    /// and as old as the file.
    Stamp,
    /// Nothing is known to compare with (local files, hub files beyond their
    /// length): the format reader is the judge.
    Unknown,
}

/// A model file that is there.
#[derive(Debug, Clone)]
pub struct Pulled {
    /// Where it is.
    pub path: PathBuf,
    /// Where it came from.
    pub source: Source,
    /// Its license, where known.
    pub license: Option<License>,
    /// Its length in bytes.
    pub n_bytes: u64,
    /// How it was checked.
    pub verified: Verified,
}
