//! Where models come from, and what a caller is told about the one it got.

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;

use crate::catalog::License;

/// Where models may come from when the cache has none.
#[derive(Debug, Clone)]
pub struct Sources {
    /// The Python program whose pip talks to the package registry; `None`: never.
    pub python: Option<PathBuf>,
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
    /// `python3` (Windows: `python`) from PATH and the hub, or [`Sources::offline`]
    /// if `TIDEKV_OFFLINE` or `HF_HUB_OFFLINE` is set to something other than `0`,
    /// `false`, `no` or `off`.
    pub fn of_this_process() -> Self {
        let no = |value: &OsStr| {
            ["", "0", "false", "no", "off"].iter().any(|no| value.eq_ignore_ascii_case(no))
        };
        let set = |name| std::env::var_os(name).is_some_and(|value| !no(&value));
        if set("TIDEKV_OFFLINE") || set("HF_HUB_OFFLINE") {
            return Self::offline();
        }
        let python = PathBuf::from(if cfg!(windows) { "python" } else { "python3" });
        Self { python: Some(python), hub: HubAccess::Default }
    }

    /// None: only what is in the cache is found, and nothing touches the network.
    pub fn offline() -> Self {
        Self { python: None, hub: HubAccess::Off }
    }

    /// Whether there are none.
    pub(crate) fn are_off(&self) -> bool {
        self.python.is_none() && self.hub == HubAccess::Off
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
    /// Its SHA-256 was computed now and is the known one: for files of the hub that
    /// which the hub states, or where they were in the cache that of their download.
    Digest,
    /// Its length is right, and the stamp of an earlier verification is beside it
    /// and as old as the file.
    Stamp,
    /// Nothing is known to compare with (local files, and beyond their length hub
    /// files without a stated digest): the format reader is the judge.
    Unknown,
}

/// A model that is there.
#[derive(Debug, Clone)]
pub struct Pulled {
    /// Where it is: a file, or the directory of a model of several.
    pub path: PathBuf,
    /// Where it came from.
    pub source: Source,
    /// Its license, where known.
    pub license: Option<License>,
    /// Bytes of its files.
    pub n_bytes: u64,
    /// How it was checked.
    pub verified: Verified,
}
